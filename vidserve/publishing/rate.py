"""Which answers of a camera are published: all, those that changed, or so many a second. Pure."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from vidserve.frames import Answer, Tracks


class PublishMode(enum.Enum):
    """The value is its name in the config."""

    EVERY_FRAME = "every_frame"
    ON_CHANGE = "on_change"
    MAX_PER_S = "max_per_s"


@dataclass(frozen=True, slots=True)
class PublishRule:
    """How often a camera's answers are published.

    Attributes:
        mode: See ``PublishRate``.
        max_per_s: For ``MAX_PER_S``: most messages a second, > 0.
        moved_share: For ``ON_CHANGE``: a box has moved when one of its sides did by more than
            this share of the picture's diagonal.
    """

    mode: PublishMode = PublishMode.EVERY_FRAME
    max_per_s: float = math.inf
    moved_share: float = 0.02

    def __post_init__(self) -> None:
        if not self.max_per_s > 0 or not self.moved_share >= 0:
            raise ValueError(f"not a rate: {self}")


class PublishRate:
    """Decides for one camera, answer by answer in capture order. For one thread.

    ``on_change`` compares with the answer published last, not with the one before, so a slow
    drift is published too; the start counts as an empty picture. ``max_per_s`` keeps a schedule
    on capture times: a frame may be late for it by up to a period without the next one being
    later, so 20 of 30 frames a second are published when 20 are asked for, not 15; in any one
    second there is at most one message more than asked for.
    """

    def __init__(self, rule: PublishRule | None = None) -> None:
        self._rule = rule or PublishRule()
        self._next_s = -math.inf
        self._ids = np.empty(0, np.int32)
        self._classes = np.empty(0, np.int32)
        self._boxes = np.empty((0, 4), np.float32)

    def wants(self, answer: Answer) -> bool:
        """Whether this answer is to be published; True means that it will be."""
        if self._rule.mode is PublishMode.EVERY_FRAME:
            return True
        if self._rule.mode is PublishMode.MAX_PER_S:
            return self._in_schedule(answer.frame.captured_s)
        return self._changed(answer.tracks, answer.frame.width, answer.frame.height)

    def _in_schedule(self, captured_s: float) -> bool:
        if captured_s < self._next_s:
            return False
        self._next_s = max(self._next_s + 1.0 / self._rule.max_per_s, captured_s)
        return True

    def _changed(self, tracks: Tracks, width: int, height: int) -> bool:
        order = np.argsort(tracks.ids)
        ids, classes, boxes = tracks.ids[order], tracks.classes[order], tracks.boxes[order]
        if np.array_equal(ids, self._ids) and np.array_equal(classes, self._classes):
            limit_px = self._rule.moved_share * math.hypot(width, height)
            moved_px = np.abs(boxes - self._boxes).max(initial=0.0)
            if moved_px <= limit_px:
                return False
        self._ids, self._classes, self._boxes = ids, classes, boxes
        return True
