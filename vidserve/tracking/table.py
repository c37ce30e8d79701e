"""The tracks of one camera as arrays, a row a track."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vidserve.frames import FloatArray, IntArray
from vidserve.tracking.appearance import LENGTH, renewed
from vidserve.tracking.kalman import Array, Motion

# Seconds in which a vote for a class fades to 37 %.
VOTE_S = 10.0


@dataclass(slots=True)
class TrackTable:
    """Arrays of equal length n; changed in place by the tracker that owns it.

    Attributes:
        motion: State at the anchor.
        keys: int32, distinct from birth on; for whoever follows tracks that have no id yet.
        ids: int32, 0 until confirmed.
        scores: float32, of the last strong hit: one at the level of publishing or above.
        born_s, hit_s, strong_s: float64, capture times of the first, the last and the last
            strong hit.
        missed: int32, detections since the last hit.
        votes: float32 (n, k), sum of faded scores by class; ``columns`` maps class to column.
            k is the number of classes ever seen, at most the model's.
        looks: float32 (n, appearance.LENGTH), zeros where not known.
    """

    motion: Motion
    keys: IntArray
    ids: IntArray
    scores: FloatArray
    born_s: Array
    hit_s: Array
    strong_s: Array
    missed: IntArray
    votes: FloatArray
    looks: FloatArray
    columns: dict[int, int] = field(default_factory=dict)
    next_key: int = 1

    @classmethod
    def empty(cls) -> TrackTable:
        """No tracks."""
        return cls(
            Motion.starting(np.empty((0, 4))),
            np.empty(0, np.int32),
            np.empty(0, np.int32),
            np.empty(0, np.float32),
            np.empty(0),
            np.empty(0),
            np.empty(0),
            np.empty(0, np.int32),
            np.empty((0, 0), np.float32),
            np.empty((0, LENGTH), np.float32),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def classes(self) -> IntArray:
        """Class of each track by vote, int32 (n,)."""
        if not len(self):
            return np.empty(0, np.int32)
        names = np.fromiter(self.columns, np.int32, len(self.columns))
        voted: IntArray = names[self.votes.argmax(axis=1)]
        return voted

    def advance(self, dt_s: float, motion: Motion) -> None:
        """Move all tracks ``dt_s`` seconds on, to ``motion``."""
        self.motion = motion
        self.votes *= np.float32(math.exp(-dt_s / VOTE_S))

    def hit(
        self,
        rows: npt.NDArray[np.intp],
        time_s: float,
        boxes: Array,
        scores: FloatArray,
        classes: IntArray,
        strong: npt.NDArray[np.bool_],
        factors: Array,
        looks: FloatArray,
    ) -> None:
        """Note that tracks ``rows`` (distinct) were seen at these boxes; all others missed.

        ``factors``: on the noise of the boxes, from ``trust.noise_factors``.
        """
        self.motion = self.motion.corrected(rows, boxes, factors)
        self.missed += 1
        self.missed[rows] = 0
        self.hit_s[rows] = time_s
        strongly = rows[strong]
        self.scores[strongly] = scores[strong]
        self.strong_s[strongly] = time_s
        columns = self._columns_of(classes)  # first: it may widen ``votes``
        self.votes[rows, columns] += scores
        self.looks[rows] = renewed(self.looks[rows], looks)

    def begin(
        self,
        time_s: float,
        boxes: Array,
        scores: FloatArray,
        classes: IntArray,
        looks: FloatArray,
    ) -> None:
        """Append a track for each box (m, 4)."""
        count = len(boxes)
        if not count:
            return
        columns = self._columns_of(classes)
        votes = np.zeros((count, len(self.columns)), np.float32)
        votes[np.arange(count), columns] = scores
        times = np.full(count, time_s)
        nothing = np.zeros(count, np.int32)
        self.motion = self.motion.joined(Motion.starting(boxes))
        keys = np.arange(self.next_key, self.next_key + count, dtype=np.int32)
        self.next_key += count
        self.keys = np.concatenate((self.keys, keys))
        self.ids = np.concatenate((self.ids, nothing))
        self.scores = np.concatenate((self.scores, scores))
        self.born_s = np.concatenate((self.born_s, times))
        self.hit_s = np.concatenate((self.hit_s, times))
        self.strong_s = np.concatenate((self.strong_s, times))
        self.missed = np.concatenate((self.missed, nothing))
        self.votes = np.concatenate((self.votes, votes))
        self.looks = np.concatenate((self.looks, looks))

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Drop the other tracks."""
        self.motion = self.motion.pick(kept)
        self.keys = self.keys[kept]
        self.ids, self.scores = self.ids[kept], self.scores[kept]
        self.born_s, self.hit_s = self.born_s[kept], self.hit_s[kept]
        self.strong_s = self.strong_s[kept]
        self.missed, self.votes = self.missed[kept], self.votes[kept]
        self.looks = self.looks[kept]

    def _columns_of(self, classes: IntArray) -> npt.NDArray[np.intp]:
        """Column of each class, (m,); a class not seen before gets a new one."""
        columns = [self.columns.setdefault(name, len(self.columns)) for name in classes.tolist()]
        added = len(self.columns) - self.votes.shape[1]
        if added:
            self.votes = np.pad(self.votes, ((0, 0), (0, added)))
        return np.array(columns, np.intp)
