"""When the pictures of a file are due, and which were missed. Pure: the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_FPS = 25.0
MAX_FPS = 1000.0
GLITCH_STEPS = 2.0
GAP_S = 5.0  # a longer step is a jump of the clock, unless the source is that slow anyhow
LONGEST_STEP_S = 60.0  # more is nobody's pace: it would be a wait without end
REANCHOR_S = 1.0
_LEARN = 0.1


@dataclass(frozen=True, slots=True)
class Due:
    """The verdict on one picture.

    Attributes:
        due_s: Its capture time (monotonic). May lie ahead: wait until then.
        missed: It came more than the budget after it was due.
        lost: How many other frames were due in time that was given up, all missed.
    """

    due_s: float
    missed: bool = False
    lost: int = 0


class Pacer:
    """Turns the timestamps of a file into due moments.

    A step between timestamps is kept as it is, a gap of seconds too (slow motion, one frame a
    second, a recorder that cut out the quiet parts). A step that cannot be real - none, below
    a thousandth of a second, back, or longer than both ``GAP_S`` and three usual steps - is
    replaced by the usual step, and the pace goes on from there: a jump of the timestamps is no
    gap. The same long step twice in a row is a pace, up to ``LONGEST_STEP_S``. What a
    timestamp that repeats or goes back by a picture or two took too much, the steps after it
    give back: a file whose pictures share their timestamps in pairs keeps its speed.

    Args:
        budget_s: A picture later than this is missed.
        nominal_fps: The rate that the source claims; used only until its steps are known.
    """

    def __init__(self, budget_s: float, nominal_fps: float | None = None) -> None:
        self._budget_s = budget_s
        sane = nominal_fps is not None and 1.0 / LONGEST_STEP_S <= nominal_fps <= MAX_FPS
        self._usual_step_s = 1.0 / (nominal_fps if sane and nominal_fps else DEFAULT_FPS)
        self._learned = 0
        self._last_due_s: float | None = None
        self._last_pts_s: float | None = None
        self._last_raw_step_s: float | None = None
        self._owed_s = 0.0  # by how much it runs behind its timestamps
        self._glitched = False

    @property
    def usual_step_s(self) -> float:
        """Seconds from one picture to the next, as measured, or as claimed before that."""
        return self._usual_step_s

    def restart(self) -> None:
        """The source begins again (a loop): its next picture follows at the usual step."""
        self._last_pts_s = None
        self._last_raw_step_s = None
        self._owed_s = 0.0

    def wake_s(self, expected_pts_s: float | None, now_s: float) -> float:
        """When to begin decoding the next picture, which is guessed to have this pts."""
        if self._last_due_s is None:
            return now_s
        step_s = self._real_step_s(expected_pts_s)
        if step_s is None:
            return self._last_due_s + self._usual_step_s
        return self._last_due_s + step_s - self._paid_s(step_s)

    def picture(self, pts_s: float | None, now_s: float, skipped: int = 0) -> Due:
        """A picture was decoded at ``now_s``, ``skipped`` before it were not; in order."""
        if self._last_due_s is None:
            self._last_due_s, self._last_pts_s = now_s, pts_s
            return Due(now_s)
        step_s = self._step_s(pts_s, 1 + skipped)
        due_s = self._last_due_s + step_s
        late_s = now_s - due_s
        if late_s <= REANCHOR_S:
            self._last_due_s = due_s
            return Due(due_s, missed=late_s > self._budget_s)
        self._last_due_s = now_s
        return Due(now_s, lost=max(1, round(late_s / self._usual_step_s)))

    def _step_s(self, pts_s: float | None, pictures: int) -> float:
        """The step to take over so many pictures; remembers and learns."""
        step_s = self._real_step_s(pts_s)
        raw_step_s = None
        if pts_s is not None and self._last_pts_s is not None:
            raw_step_s = pts_s - self._last_pts_s
        alone, self._glitched = not self._glitched, False
        self._last_pts_s = pts_s
        if raw_step_s is not None:
            self._last_raw_step_s = raw_step_s
        if step_s is not None:
            paid_s = self._paid_s(step_s)
            self._owed_s -= paid_s
            self._learn(step_s / pictures)
            return step_s - paid_s
        usual_s = self._usual_step_s
        if raw_step_s is None or not abs(raw_step_s) <= GLITCH_STEPS * usual_s:
            self._owed_s = 0.0
            return usual_s * pictures
        self._glitched = True
        self._owed_s += usual_s - raw_step_s
        if alone and self._learned:
            self._learn(raw_step_s)
        return usual_s

    def _paid_s(self, step_s: float) -> float:
        """By how much a longer step is shortened for what earlier ones took too much."""
        if step_s < 1.25 * self._usual_step_s:
            return 0.0
        return min(self._owed_s, step_s - self._usual_step_s)

    def _real_step_s(self, pts_s: float | None) -> float | None:
        """The step to this pts if it can be true."""
        if pts_s is None or self._last_pts_s is None:
            return None
        step_s = pts_s - self._last_pts_s
        if not 1.0 / MAX_FPS <= step_s <= LONGEST_STEP_S:  # nor is it NaN
            return None
        if step_s <= max(GAP_S, 3.0 * self._usual_step_s):
            return step_s
        again = self._last_raw_step_s
        return step_s if again is not None and 0.5 * again <= step_s <= 2.0 * again else None

    def _learn(self, step_s: float) -> None:
        # The first steps count as a plain mean, so that a wrong claim is forgotten at once.
        self._learned += 1
        self._usual_step_s += (step_s - self._usual_step_s) * max(_LEARN, 1.0 / self._learned)
        self._usual_step_s = max(self._usual_step_s, 1.0 / MAX_FPS)


class FpsLimit:
    """Lets through at most ``fps`` frames a second on average, evenly. None: all.

    Frames beyond the limit are not captured at all: they take no number and no outcome.
    """

    def __init__(self, fps: float | None) -> None:
        self._period_s = 1.0 / fps if fps else 0.0
        self._next_s = float("-inf")

    def lets_through(self, captured_s: float) -> bool:
        """Whether the frame of this moment counts. In order of capture."""
        # A quarter of a period of tolerance: arrivals jitter; the average keeps the limit.
        if captured_s < self._next_s - 0.25 * self._period_s:
            return False
        # Late by a period and more it begins anew, or it would make up for a pause.
        behind = captured_s - self._next_s >= self._period_s
        self._next_s = (captured_s if behind else self._next_s) + self._period_s
        return True

    def count_lost(self, count: int, before_s: float) -> int:
        """How many frames that never became pictures would have counted.

        Pictures that came go first: of the lost ones only those count that left a period empty.

        Args:
            count: How many were lost since the last picture.
            before_s: Capture time of the picture after them, not yet asked about.
        """
        if not self._period_s:
            return count
        if self._next_s == float("-inf"):
            return 0
        empty = int((before_s - self._next_s) / self._period_s + 1e-6)
        counted = min(count, max(0, empty))
        self._next_s += counted * self._period_s
        return counted


class Hurry:
    """Whether a thread that is late should leave out what it can, until it was not for a while.

    Args:
        calm_s: For so long nothing may have been late.
    """

    def __init__(self, calm_s: float = 3.0) -> None:
        self._calm_s = calm_s
        self._until_s = float("-inf")

    def on(self, now_s: float, late: bool) -> bool:
        """One more picture, late or not. In order of time."""
        if late:
            self._until_s = now_s + self._calm_s
        return now_s < self._until_s
