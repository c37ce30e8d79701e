"""Which frames become keyframes: one interval per camera, phases spread in groups.

Pure: times are capture times on the monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_PERIOD_START_S = 1 / 30
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
    """

    __slots__ = (
        "_intervals_seen",
        "_newest_s",
        "doubt",
        "gap_from_s",
        "interval_frames",
        "last_s",
        "name",
        "period_s",
        "staggered_interval_s",
        "stretch",
        "weight",
    )

    def __init__(
        self, name: str, weight: float, interval_frames: int, period_s: float | None = None
    ) -> None:
        self.name = name
        self.weight = weight
        self.interval_frames = interval_frames
        self.period_s = _PERIOD_START_S if period_s is None else period_s
        self.stretch = 1.0
        self.doubt = 0.0
        self.last_s: float | None = None
        # Unlike ``last_s`` never moved by ``stagger``: the last frame that really went to the
        # detector, before that the first one offered.
        self.gap_from_s: float | None = None
        self.staggered_interval_s: float | None = None
        self._intervals_seen = 0 if period_s is None else 10
        self._newest_s: float | None = None

    @property
    def interval_s(self) -> float:
        """K in seconds: frames times the measured period, times what overload control adds."""
        return self.interval_frames * self.period_s * self.stretch

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

    def due(self, captured_s: float) -> bool:
        """Whether a frame captured then should be a keyframe."""
        if self.last_s is None:
            return True
        return captured_s - self.last_s >= self.interval_s - 0.5 * self.period_s

    def phase_s(self, period_s: float) -> float:
        """Where in a period its frames fall, 0 before the first frame."""
        return 0.0 if self._newest_s is None else self._newest_s % period_s

    def gap_s(self, captured_s: float) -> float:
        """Time since the last detection asked for; infinite before the first."""
        return math.inf if self.last_s is None else captured_s - self.last_s

    def value(self, captured_s: float, longest_gap_s: float) -> float:
        """How much a detection of that frame is worth now: v(f) of the design."""
        gap_s = min(self.gap_s(captured_s), max(longest_gap_s, self.interval_s) * 4)
        return self.weight * gap_s / self.interval_s * (1.0 + self.doubt)


def stagger(plans: Iterable[CameraPlan], group_size: int, now_s: float) -> None:
    """Spread the keyframes of cameras of equal interval over groups of ``group_size``.

    The cameras of a group are due in the same frame period and neighbours in the phase of their
    frames, so that a short hold fills a batch; the groups take turns. (Measured: 16 cameras at
    every 5th frame in one phase are 44 % late with an eager FIFO; one phase per camera gives
    batches of 1.)
    """
    for alike in _alike(plans):
        # The shortest: cameras of one interval may have quite different frame rates.
        period_s = min(plan.period_s for plan in alike)
        ordered, origin_s = _by_phase(alike, period_s)
        groups = math.ceil(len(ordered) / group_size)
        # The first frame of the first camera after now, less half a period: see ``due``.
        start_s = now_s + (origin_s - now_s) % period_s
        for index, plan in enumerate(ordered):
            group = index * groups // len(ordered)
            first_due_s = start_s + round(group * plan.interval_s / groups / period_s) * period_s
            phase_s = (plan.phase_s(period_s) - origin_s) % period_s
            plan.last_s = first_due_s + phase_s - plan.interval_s
            plan.staggered_interval_s = plan.interval_s


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
