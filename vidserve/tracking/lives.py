"""From the first to the last sight of each track: what consumers are told as ``start`` and ``end``.

Without an explicit end an object stays "in progress" for those who listen, for hours, when it
left while nobody looked or its camera died.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from vidserve.frames import Tracks

# A step is a share of the box's height: what is below is noise, and would add up on a still object.
STEP = 0.1


@dataclass(frozen=True, slots=True)
class Life:
    """A track so far.

    Attributes:
        id, class_id: As published last.
        confidence: The best that was published, 0..1.
        first_s, last_s: Capture times (monotonic) of the first and last frame that showed it.
        box: x1, y1, x2, y2 in the last of these, pixels.
        path_px: How long its way was, in steps of a tenth of its height, pixels.
        counted_px: Centre up to which the way is counted, pixels.
    """

    id: int
    class_id: int
    confidence: float
    first_s: float
    last_s: float
    box: tuple[float, float, float, float]
    path_px: float
    counted_px: tuple[float, float]


class Lives:
    """The tracks of one camera that were published and have not ended. Pure; one thread."""

    def __init__(self) -> None:
        self._of: dict[int, Life] = {}

    def __len__(self) -> int:
        return len(self._of)

    def seen(self, tracks: Tracks, time_s: float) -> list[Life]:
        """Tracks are published for the frame of this capture time; those that are new."""
        begun = []
        rows = zip(
            tracks.ids.tolist(),
            tracks.classes.tolist(),
            tracks.scores.tolist(),
            tracks.boxes.tolist(),
            strict=True,
        )
        for number, class_id, score, (x1, y1, x2, y2) in rows:
            before = self._of.get(number)
            box, centre = (x1, y1, x2, y2), ((x1 + x2) / 2, (y1 + y2) / 2)
            if before is None:
                life = Life(number, class_id, score, time_s, time_s, box, 0.0, centre)
                begun.append(life)
            else:
                life = replace(
                    before,
                    class_id=class_id,
                    confidence=max(before.confidence, score),
                    last_s=time_s,
                    box=box,
                )
                step_px = math.dist(before.counted_px, centre)
                if step_px >= STEP * (y2 - y1):
                    life = replace(life, path_px=life.path_px + step_px, counted_px=centre)
            self._of[number] = life
        return begun

    def without(self, alive: Iterable[int]) -> list[Life]:
        """Which have ended, if only these ids are left, in view or lost from it."""
        kept = set(alive)
        return [self._of.pop(number) for number in list(self._of) if number not in kept]

    def clear(self) -> list[Life]:
        """All end."""
        return self.without(())
