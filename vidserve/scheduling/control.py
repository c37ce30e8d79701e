"""Overload control: when more detections are asked for than the detector can give.

Three steps, each taken by the cameras of the lowest weight first: keyframe intervals grow by
quarters, up to the largest gap; where a camera has a smaller input shape, it gets that; at last
a camera is *predict-only*, but for one rare detection that tells whether anything is there. After
a time of calm it goes back the same way, a few cameras a second, as long as the result still
fits with some room. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vidserve.scheduling.keyframes import CameraPlan

STEP = 1.25
CALM_S = 10.0
RARE = 10.0
"""A predict-only camera gets a detection in so many times the largest gap."""
_FULL, _ROOM = 1.0, 0.85
_BUSY = 0.8
_LATE = 0.01
_GAIN = 0.05  # of a camera's share, that a smaller input has to bring
_BACK_SHARE = 8  # a second, one camera in so many takes a step back


class OverloadControl:
    """Owns ``stretch``, ``level`` and ``rare_s`` of all plans. Called under the scheduler's lock.

    Args:
        max_gap_s: No interval grows beyond this, before a camera is predict-only.
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
        """Ask for less or for more.

        Args:
            now_s: The time.
            plans: Of all cameras that have delivered frames.
            asked_use: Share of the detector's time that the plans ask for at its best batch
                size; it is asked again after each step.
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
                if not self._ask_less(plans, asked_use):
                    return
                steps -= 1
            return
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        if now_s - self._calm_since_s >= CALM_S:
            for _ in range(math.ceil(len(plans) / _BACK_SHARE)):
                if not self._ask_more(plans, asked_use):
                    return

    def _ask_less(self, plans: Sequence[CameraPlan], asked_use: Callable[[], float]) -> bool:
        """One step of one camera; False if no step is left."""
        asking = [p for p in plans if p.weight > 0 and p.rare_s is None]
        able = [p for p in asking if p.interval_s * STEP <= self._max_gap_s]
        if able:
            min(able, key=lambda p: (p.weight, p.interval_s, p.name)).stretch *= STEP
            return True
        able = [p for p in asking if p.level < len(p.ladder) - 1]
        for plan in sorted(able, key=lambda p: (p.weight, p.level, p.name)):
            before = asked_use()
            plan.level += 1
            if before - asked_use() >= _GAIN * before / len(asking):
                return True
            plan.level -= 1  # where the detector takes as long for less, less is only lost
        if asked_use() <= _FULL:
            return False  # late, although little is asked for: fewer detections would not help
        rare_s = RARE * self._max_gap_s
        able = [p for p in asking if p.interval_s < rare_s]
        if able:
            min(able, key=lambda p: (p.weight, p.name)).rare_s = rare_s
        return bool(able)

    def _ask_more(self, plans: Sequence[CameraPlan], asked_use: Callable[[], float]) -> bool:
        """Take back one step, the last kind first, if there is room for it; whether it did."""
        rare = [p for p in plans if p.rare_s is not None]
        small = [p for p in plans if p.level > 0]
        stretched = [p for p in plans if p.stretch > 1.0]
        if rare:
            plan = max(rare, key=lambda p: (p.weight, p.name))
        elif small:
            plan = max(small, key=lambda p: (p.weight, p.level, p.name))
        elif stretched:
            plan = max(stretched, key=lambda p: (p.weight, p.stretch, p.name))
        else:
            return False
        before = plan.rare_s, plan.level, plan.stretch
        if rare:
            plan.rare_s = None
        elif small:
            plan.level -= 1
        else:
            plan.stretch = max(1.0, plan.stretch / STEP)
        if asked_use() > _ROOM:
            plan.rare_s, plan.level, plan.stretch = before
            return False
        return True
