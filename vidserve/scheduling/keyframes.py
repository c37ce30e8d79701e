"""Which frames become keyframes: one interval per camera, phases spread in groups.

Pure: times are capture times on the monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from vidserve.frames import Bucket

_PERIOD_START_S = 1 / 30
# Worth grows a little faster than the time waited, so that an unlucky phase is not left behind.
# (24 cameras, every frame: the worst camera of six seeds gets 14.3/s instead of 13.8; at 1.5 and
# more the total falls below 95 % of EDF's with 8 + 1n ms.)
_IMPATIENCE = 1.2
_MOST_SAVED = 10.0  # detections that a quiet time may leave for a busy one
_PERIOD_MIN_S, _PERIOD_MAX_S = 1 / 240, 2.0


class CameraPlan:
    """What the scheduler knows of one camera.

    ``saw`` is called by the camera's capture thread, all else by the scheduler; each attribute
    is one float or int, so readers see a whole value.

    Args:
        name: Of the camera.
        weight: How much its detections are worth against other cameras'; >= 0.
        interval_frames: Frames from keyframe to keyframe, >= 1.
        period_s: Expected time between frames, corrected by ``saw``.
        adaptive: Let the tracker's doubt move the keyframes: none for a long time where nothing
            happens, up to twice as often as asked where much does, as many as asked on average.
    """

    __slots__ = (
        "_intervals_seen",
        "_newest_s",
        "adaptive",
        "credit",
        "doubt",
        "gap_from_s",
        "interval_frames",
        "ladder",
        "last_s",
        "level",
        "name",
        "offered_s",
        "period_s",
        "rare_s",
        "staggered_interval_s",
        "stretch",
        "weight",
    )

    def __init__(
        self,
        name: str,
        weight: float,
        interval_frames: int,
        period_s: float | None = None,
        adaptive: bool = False,
    ) -> None:
        self.name = name
        self.weight = weight
        self.interval_frames = interval_frames
        self.period_s = _PERIOD_START_S if period_s is None else period_s
        # What overload control has done: a longer interval, a smaller shape, and at last one
        # detection in so many seconds ("predict-only").
        self.stretch = 1.0
        self.level = 0
        self.rare_s: float | None = None
        self.ladder: tuple[Bucket, ...] = ()
        self.adaptive = adaptive
        self.doubt = 0.5 if adaptive else 0.0
        self.credit = 0.0  # detections saved, to be spent where much happens
        self.last_s: float | None = None
        # Unlike ``last_s`` never moved by ``stagger``: the last frame that really went to the
        # detector, before that the first one offered.
        self.gap_from_s: float | None = None
        self.staggered_interval_s: float | None = None
        self.offered_s: float | None = (
            None  # capture of the first frame offered since the last went
        )
        self._intervals_seen = 0 if period_s is None else 10
        self._newest_s: float | None = None

    @property
    def interval_s(self) -> float:
        """K in seconds: frames times the measured period, times what overload control adds."""
        if self.rare_s is not None:
            return self.rare_s
        return self.interval_frames * self.period_s * self.stretch

    @property
    def whole_interval_s(self) -> float:
        """The interval as it comes out: a keyframe is a whole frame."""
        return max(1, round(self.interval_s / self.period_s)) * self.period_s

    @property
    def bucket(self) -> Bucket | None:
        """The shape for its pictures now; None while their size is not known."""
        return self.ladder[min(self.level, len(self.ladder) - 1)] if self.ladder else None

    @property
    def overload(self) -> str:
        """What overload control did to it, for people; empty: nothing."""
        found = []
        if self.rare_s is not None:
            found.append(f"predict-only, but for one detection in {self.rare_s:g} s")
        elif self.stretch > 1.0:
            asked_s = self.interval_frames * self.period_s
            found.append(f"a detection every {self.interval_s:.2f} s instead of {asked_s:.2f} s")
        if self.level and len(self.ladder) > 1:
            found.append(f"input of {self.bucket} instead of {self.ladder[0]}")
        return "overload: " + ", ".join(found) if found else ""

    def largest_gap_s(self, max_gap_s: float) -> float:
        """The promise of a largest gap, but for a camera that overload made predict-only."""
        return max_gap_s if self.rare_s is None else max(self.rare_s, max_gap_s)

    @property
    def measured(self) -> bool:
        """Whether the frame rate is known from more than a guess."""
        return self._intervals_seen >= 5

    def saw(self, captured_s: float) -> None:
        """Learn the frame period from a captured frame; gaps and repeats are bounded."""
        newest_s, self._newest_s = self._newest_s, captured_s
        if newest_s is None:
            return
        step_s = captured_s - newest_s
        if step_s <= 0:
            return
        seen = self._intervals_seen = min(self._intervals_seen + 1, 30)
        if self.measured:
            step_s = min(max(step_s, 0.5 * self.period_s), 2.0 * self.period_s)
        step_s = min(max(step_s, _PERIOD_MIN_S), _PERIOD_MAX_S)
        self.period_s += (step_s - self.period_s) / seen

    def wanted_s(self, longest_s: float) -> float:
        """The interval by doubt: ``longest_s`` at 0, as asked at 0.5, half of that at 1."""
        asked_s = self.interval_s
        if not self.adaptive or asked_s >= longest_s:
            return asked_s
        if self.doubt < 0.5:
            return float(asked_s * (longest_s / asked_s) ** (1.0 - 2.0 * self.doubt))
        return float(asked_s * 0.5 ** (2.0 * self.doubt - 1.0))

    def due(self, captured_s: float, longest_s: float = math.inf) -> bool:
        """Whether a frame captured then should be a keyframe.

        Args:
            captured_s: Of the frame.
            longest_s: The interval where nothing happens; without it doubt does not count.
        """
        if self.last_s is None:
            return True
        gap_s = captured_s - self.last_s
        if not self.adaptive or math.isinf(longest_s):
            return gap_s >= self.interval_s - 0.5 * self.period_s
        wanted_s = self.wanted_s(longest_s)
        if wanted_s < self.interval_s and self._saved(captured_s) < 1.0 - 1e-6:
            wanted_s = self.interval_s
        return gap_s >= wanted_s - 0.5 * self.period_s

    def _saved(self, captured_s: float) -> float:
        """Detections to spend at a time: one is earned in each interval."""
        if self.gap_from_s is None:
            return self.credit
        frames = round((captured_s - self.gap_from_s) / self.period_s)
        earned = frames * self.period_s / self.interval_s
        return min(self.credit + earned, _MOST_SAVED)

    def went(self, captured_s: float) -> None:
        """A frame captured then goes to the detector.

        If it is some frames later than planned, because others were worth more just then, the
        next one is due as if it had not been: a camera that loses a race once would else leave
        its group for good, and batches become smaller.
        """
        if self.gap_from_s is not None:
            self.credit = max(self._saved(captured_s) - 1.0, 0.0)
        late_frames = 0
        if self.last_s is not None:
            late_s = captured_s - self.last_s - self.interval_s
            late_frames = round(late_s / self.period_s)
            if not 0 < late_frames <= self.interval_s / self.period_s / 2:
                late_frames = 0
        self.last_s = captured_s - late_frames * self.period_s
        self.gap_from_s = captured_s
        self.offered_s = None

    def phase_s(self, period_s: float) -> float:
        """Where in a period its frames fall, 0 before the first frame."""
        return 0.0 if self._newest_s is None else self._newest_s % period_s

    def gap_s(self, captured_s: float) -> float:
        """Time since the last detection asked for; infinite before the first."""
        return math.inf if self.last_s is None else captured_s - self.last_s

    def value(self, captured_s: float, longest_gap_s: float) -> float:
        """How much a detection of that frame is worth now: v(f) of the design, a little convex."""
        gap_s = min(self.gap_s(captured_s), max(longest_gap_s, self.interval_s) * 4)
        waited = max(gap_s, 0.0) / self.interval_s
        return float(self.weight * waited**_IMPATIENCE * (1.0 + self.doubt))


def stagger(
    plans: Iterable[CameraPlan], group_size: Callable[[Bucket | None], int], now_s: float
) -> None:
    """Spread the keyframes of cameras of equal interval over groups that take turns.

    The cameras of a group have one input shape, are due in the same frame period and neighbours
    in the phase of their frames, so that a short hold fills a batch. (Measured: 16 cameras at
    every 5th frame in one phase are 44 % late with an eager FIFO; one phase per camera gives
    batches of 1.)

    Args:
        plans: Cameras of known rate.
        group_size: Largest batch worth making in a shape.
        now_s: The time.
    """
    for alike in _alike(plans):
        # The shortest: cameras of one interval may have quite different frame rates.
        period_s = min(plan.period_s for plan in alike)
        ordered, origin_s = _by_phase(alike, period_s)
        groups = _grouped(ordered, group_size)
        # The first frame of the first camera after now, less half a period: see ``due``.
        start_s = now_s + (origin_s - now_s) % period_s
        # In whole frames and one for all of a group: measured rates differ in the last digits.
        frames = round(min(plan.interval_s for plan in alike) / period_s)
        for turn, group in enumerate(groups):
            wait_s = turn * frames // len(groups) * period_s
            for plan in group:
                phase_s = (plan.phase_s(period_s) - origin_s) % period_s
                plan.last_s = start_s + wait_s + phase_s - plan.interval_s
                plan.staggered_interval_s = plan.interval_s


def _grouped(
    ordered: Sequence[CameraPlan], group_size: Callable[[Bucket | None], int]
) -> list[list[CameraPlan]]:
    """Even groups of neighbours, each of one shape; the shapes in order of appearance."""
    groups: list[list[CameraPlan]] = []
    for bucket in dict.fromkeys(plan.bucket for plan in ordered):
        same = [plan for plan in ordered if plan.bucket == bucket]
        count = math.ceil(len(same) / group_size(bucket))
        made: list[list[CameraPlan]] = [[] for _ in range(count)]
        for index, plan in enumerate(same):
            made[index * count // len(same)].append(plan)
        groups += made
    return groups


def _alike(plans: Iterable[CameraPlan]) -> list[list[CameraPlan]]:
    """Cameras of equal interval, within 10 %: measured periods differ in the last digits."""
    found: list[list[CameraPlan]] = []
    for plan in sorted(plans, key=lambda plan: plan.interval_s):
        if found and plan.interval_s <= 1.1 * found[-1][0].interval_s:
            found[-1].append(plan)
        else:
            found.append([plan])
    return found


def _by_phase(alike: list[CameraPlan], period_s: float) -> tuple[list[CameraPlan], float]:
    """The cameras in the order of their frames, cut at the widest silence, and its end."""
    ordered = sorted(alike, key=lambda plan: (plan.phase_s(period_s), plan.name))
    phases = [plan.phase_s(period_s) for plan in ordered]
    silences = [(phases[i] - phases[i - 1]) % period_s for i in range(len(phases))]
    cut = max(range(len(phases)), key=silences.__getitem__)
    return ordered[cut:] + ordered[:cut], phases[cut]
