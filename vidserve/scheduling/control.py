"""Overload control: when more detections are asked for than the detector can give.

Keyframe intervals grow by quarters, lowest weight first and the shortest interval first among
equals, until what is asked for fits; after a time of calm they shrink again, one step a second,
as long as the result still fits with some room. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vidserve.scheduling.keyframes import CameraPlan

STEP = 1.25
CALM_S = 10.0
_FULL, _ROOM = 1.0, 0.85
_BUSY = 0.8
_LATE = 0.01


class OverloadControl:
    """Owns the ``stretch`` of all plans. Called under the scheduler's lock, once a second.

    Args:
        max_gap_s: No interval grows beyond this.
    """

    def __init__(self, max_gap_s: float) -> None:
        self._max_gap_s = max_gap_s
        self._calm_since_s: float | None = None

    def every_second(
        self,
        now_s: float,
        plans: Sequence[CameraPlan],
        asked_use: Callable[[], float],
        measured_use: float,
        late_share: float,
    ) -> None:
        """Lengthen or shorten intervals.

        Args:
            now_s: The time.
            plans: Of all cameras that have delivered frames.
            asked_use: Share of the detector's time that the present intervals ask for at its
                best batch size; it is asked again after each step.
            measured_use: Share of the last second in which the detector was busy.
            late_share: Of the detections of the last second that were meant to be in time.
        """
        # Late detections of a detector that is mostly idle come from noise, not from load:
        # asking less often would not help them.
        crowded = late_share > _LATE and measured_use > _BUSY
        if asked_use() > _FULL or crowded:
            self._calm_since_s = None
            steps = 1 if crowded else 0
            while steps > 0 or asked_use() > _FULL:
                if not self._lengthen(plans):
                    return
                steps -= 1
            return
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        if now_s - self._calm_since_s >= CALM_S:
            self._shorten(plans, asked_use)

    def _lengthen(self, plans: Sequence[CameraPlan]) -> bool:
        able = [p for p in plans if p.weight > 0 and p.interval_s * STEP <= self._max_gap_s]
        if not able:
            return False
        min(able, key=lambda p: (p.weight, p.interval_s, p.name)).stretch *= STEP
        return True

    def _shorten(self, plans: Sequence[CameraPlan], asked_use: Callable[[], float]) -> None:
        stretched = [p for p in plans if p.stretch > 1.0]
        if not stretched:
            return
        plan = max(stretched, key=lambda p: (p.weight, p.stretch, p.name))
        before = plan.stretch
        plan.stretch = max(1.0, before / STEP)
        if asked_use() > _ROOM:
            plan.stretch = before
