"""A jump or a drift of the camera, seen from boxes alone.

When a camera turns, all boxes leave their predicted places by about the same offset. It is found
by voting (the generalised Hough transform, Ballard 1981): every track and every box of its size
nearby vote for the offset between them, and true pairs agree while chance pairs do not. This is
the camera motion compensation of BoT-SORT (Aharon et al. 2022) for want of pixels; where motion
of the camera is measured in the picture it is not needed.
"""

from __future__ import annotations

import numpy as np

from vidserve.tracking.association import overlaps
from vidserve.tracking.kalman import Array, corners

# Fewer tracks or boxes prove nothing.
LEAST = 3
# Only if predicted and seen boxes overlap less than this on average is there anything to look
# for. That saves nine looks in ten at every frame, half of them at one in 5, and loses nothing
# (../shared/mot and samples; there, jumps are found where the camera moves, and one elsewhere).
POOR = 0.65
# The offset is believed if it raises the sum of the overlaps by a share and by half a box.
# Chance gains less; a camera that jumps gains several boxes.
BETTER, BETTER_BOXES = 1.15, 0.5
# Sides of a track and a box that may vote together differ by at most this factor, and the
# offset between them is at most one height of the track.
ALIKE = 1.25
# Votes within this many heights of each other agree.
AGREE = 0.15
# Bounds on time: tracks, boxes and votes looked at, and offsets tried in earnest.
MOST_TRACKS, MOST_BOXES, MOST_VOTES, TRIED = 32, 64, 200, 8
# Pairs that overlap this much once shifted say how far exactly; of as many tracks as this share
# it must be true. People who all walk their own way agree by threes, never by halves.
SURE, MAJORITY = 0.3, 0.5
# Fewer pairs say nothing of a drift: a family that walks together is no camera.
LEAST_PAIRS = 5
# How much of what is known of a camera's unrest a detection replaces.
UNREST_GAIN = 0.1
# A camera moves if the variance of its motion is this many times that of the mean it is taken
# from, which is understated: people in groups err alike.
CLEARLY = 6.0
# Of one detection, in squares of the mean height: a jump is no lasting unrest.
MOST_UNREST = 9.0


class Drift:
    """What all tracks are off by together, after they were paired with boxes. One per camera.

    What pairs have in common is chance while the camera stands still, and the camera's when it
    moves; one detection alone cannot tell. The variance of the common part beyond chance, over
    the last detections, can (empirical Bayes; Efron and Morris 1973): by it the common part is
    shrunk, and below ``CLEARLY`` it is not believed at all.
    """

    def __init__(self) -> None:
        self._unrest = 0.0

    def __call__(self, off: Array, variance: Array, heights: Array) -> Array | None:
        """The common part of innovations.

        Args:
            off: Of paired tracks: seen minus expected centres, pixels, (n, 2).
            variance: Expected of these, pixels squared, > 0, (n, 2).
            heights: Of the tracks, pixels, (n,).

        Returns:
            Pixels in x and y, (2,); None if the camera is not known to move.
        """
        if len(off) < LEAST_PAIRS:
            return None
        error = off - np.sort(off, axis=0)[len(off) // 2]
        # From the median (the upper of two: sorting is quick) one step to Huber's location.
        surprise = np.sqrt((error * error / variance).sum(axis=1, keepdims=True))
        weight = 1.0 / (variance * np.maximum(surprise, 1.0))
        weight /= weight.sum(axis=0)
        common = (weight * off).sum(axis=0)
        error = off - common
        chance = (weight * error * error).sum(axis=0) / (len(off) - 1)
        unit = float(heights.sum() / len(heights)) ** 2
        found = float((common * common - chance).sum()) / unit
        self._unrest += UNREST_GAIN * (min(found, MOST_UNREST) - self._unrest)
        unrest, doubted = max(self._unrest, 0.0) * unit, CLEARLY * float(chance.sum())
        if unrest <= doubted:
            return None
        believed: Array = common * (unrest / (unrest + doubted))
        return believed


def common_offset(expected: Array, seen: Array) -> Array | None:
    """How far all boxes are from where they were expected.

    Args:
        expected: Predicted boxes cx, cy, w, h of tracks that were just seen, (n, 4), the most
            reliable first.
        seen: Detected ones, (m, 4), the most reliable first.

    Returns:
        Pixels in x and y, (2,); None if no common offset explains the boxes clearly better.
    """
    if min(len(expected), len(seen)) < LEAST:
        return None
    expected, seen = expected[:MOST_TRACKS], seen[:MOST_BOXES]
    tracks, boxes = corners(expected), corners(seen)
    before = float(overlaps(tracks, boxes).max(axis=1).sum())
    if before > POOR * len(expected):
        return None
    heights = expected[:, None, 3]
    offset = seen[None, :, :2] - expected[:, None, :2]
    ratio = seen[None, :, 3] / heights
    votes = (ratio < ALIKE) & (ratio > 1.0 / ALIKE) & (np.abs(offset).max(axis=2) < heights)
    rows, columns = np.nonzero(votes)
    if len(rows) > MOST_VOTES:
        chosen = np.linspace(0, len(rows) - 1, MOST_VOTES).astype(np.intp)
        rows, columns = rows[chosen], columns[chosen]
    if len(rows) < LEAST:
        return None
    offsets = offset[rows, columns]
    apart = np.abs(offsets[:, None] - offsets[None]).max(axis=2)
    support = (apart < AGREE * expected[rows, 3]).sum(axis=1)
    tried = offsets[np.argsort(-support, kind="stable")[:TRIED]]
    shifted = (tracks[None] + np.tile(tried, 2)[:, None]).reshape(-1, 4)
    overlap = overlaps(shifted, boxes).reshape(len(tried), len(tracks), len(boxes))
    gains = overlap.max(axis=2).sum(axis=1)
    best = int(gains.argmax())
    if gains[best] <= before * BETTER + BETTER_BOXES:
        return None
    sure = np.flatnonzero(overlap[best].max(axis=1) > SURE)
    if len(sure) < max(LEAST, MAJORITY * len(tracks)):
        return None
    exact: Array = np.median(offset[sure, overlap[best][sure].argmax(axis=1)], axis=0)
    return exact
