"""When measuring motion is thinned: before anything else suffers from a lack of CPU. Pure.

A frame spends the first part of its budget in its capture thread. When many frames of a camera
spend too much there, or frames are lost, less is measured from the next second on; it goes back
one level at a time after some calm.
"""

from __future__ import annotations

from vidserve.frames import Thinning

STRAINED_SHARE = 0.05
"""Of a second's frames that may be late from the capture thread."""
BUDGET_SHARE = 1 / 3
"""Of the budget that a frame may spend there."""
CALM_S = 5.0


class ThinningControl:
    """Of one camera. Owned by the tracking loop.

    Args:
        budget_s: From capture to hand-over.
    """

    def __init__(self, budget_s: float) -> None:
        self._limit_s = budget_s * BUDGET_SHARE
        self._frames = self._late = self._lost = 0
        self._calm_since_s: float | None = None
        self.level = Thinning.FULL

    def frame(self, captured_s: float, ready_s: float) -> None:
        """A frame left its capture thread."""
        self._frames += 1
        self._late += ready_s - captured_s > self._limit_s

    def lost(self, count: int) -> None:
        """Frames were dropped because the capture thread was late."""
        self._lost += count

    def every_second(self, now_s: float) -> Thinning:
        """The level from now on."""
        late = self._late > max(1, STRAINED_SHARE * self._frames)  # one alone is noise
        strained = self._lost > 0 or late
        self._frames = self._late = self._lost = 0
        if strained:
            self._calm_since_s = None
            self.level = Thinning(min(self.level + 1, Thinning.EVERY_SECOND))
        elif self._calm_since_s is None:
            self._calm_since_s = now_s
        elif self.level and now_s - self._calm_since_s >= CALM_S:
            self._calm_since_s = now_s
            self.level = Thinning(self.level - 1)
        return self.level
