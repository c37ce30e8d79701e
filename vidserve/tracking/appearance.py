"""What detected objects look like: a small colour histogram each, from the keyframe's picture.

Two halves of the inner part of a box (of a person: trunk and legs), each a histogram of 64
colours, as in colour-based tracking (Perez et al. 2002); compared by the Hellinger distance.
It only tells apart whom the places leave open: a cost beside that of ``association``.

Measured with flow, means of three to eight runs, HOTA without and with: PETS09-S2L1 every frame
62.7 and 63.1, one in 3 61.3 and 62.0, one in 5 54.6 and 55.6; sample clips one in 5 63.4 and 67.5,
58.9 and 60.5, 62.4 and 64.1. For lost tracks alone it brought nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vidserve.frames import ByteArray, FloatArray
from vidserve.tracking.kalman import Array

SAMPLES = 12  # a row and a column of each half
COLOURS = 64  # two bits each of red, green and blue
LENGTH = 2 * COLOURS
# Shares of the box that are looked at: the rest is background.
LEFT, RIGHT, TOP, BOTTOM = 0.25, 0.75, 0.1, 0.9
# In units of overlap: how much a distance counts, and the distance that says nothing. Weights
# of 1 and 2 and neutral distances of 0.35 and 0.5 are alike.
WEIGHT, NEUTRAL = 1.0, 0.35
# How much of a look a new one replaces.
RENEWAL = 0.2


def looks(rgb: ByteArray, boxes: FloatArray) -> FloatArray:
    """Looks of boxes, float32 (n, LENGTH), rows of length 1; zeros where nothing is to be seen.

    Args:
        rgb: uint8 (h, w, 3). Another order of colours does as well, if it is always the same.
        boxes: x1 y1 x2 y2 in its pixels, float32 (n, 4); may lie outside, or be not a number.
    """
    height, width = rgb.shape[:2]
    count = len(boxes)
    low, high = boxes[:, :2], boxes[:, 2:]
    fine = np.isfinite(boxes) & np.tile((high > low) & (high > 0) & (low < (width, height)), 2)
    usable = np.flatnonzero(fine.all(axis=1))
    found = np.zeros((count, LENGTH), np.float32)
    seen = boxes[usable].astype(np.float64)
    if not len(seen):
        return found
    across = LEFT + (RIGHT - LEFT) * (np.arange(SAMPLES) + 0.5) / SAMPLES
    down = TOP + (BOTTOM - TOP) * (np.arange(2 * SAMPLES) + 0.5) / (2 * SAMPLES)
    x = seen[:, :1] + (seen[:, 2:3] - seen[:, :1]) * across
    y = seen[:, 1:2] + (seen[:, 3:] - seen[:, 1:2]) * down
    columns = np.clip(x, 0, width - 1).astype(np.intp)
    rows = np.clip(y, 0, height - 1).astype(np.intp)
    two_bits = rgb[rows[:, :, None], columns[:, None, :]] >> 6  # (n, 2s, s, 3)
    colours = (two_bits[..., 0] * 16 + two_bits[..., 1] * 4 + two_bits[..., 2]).astype(np.intp)
    half = np.arange(2 * len(seen)).repeat(SAMPLES * SAMPLES)
    counts = np.bincount(half * COLOURS + colours.ravel(), minlength=len(seen) * LENGTH)
    share = counts.reshape(len(seen), LENGTH) / (2.0 * SAMPLES * SAMPLES)
    found[usable] = np.sqrt(share)
    return found


def cost(known: FloatArray, seen: FloatArray) -> Array:
    """What the looks of tracks (n, LENGTH) and of boxes (m, LENGTH) add to their costs, (n, m).

    Negative where they are alike; 0 where either is not known.
    """
    alike = known @ seen.T
    distance = np.sqrt(np.maximum(1.0 - alike, 0.0)).astype(np.float64)
    told = _known(known)[:, None] & _known(seen)[None, :]
    return np.where(told, WEIGHT * (distance - NEUTRAL), 0.0)


def renewed(known: FloatArray, seen: FloatArray) -> FloatArray:
    """Looks of tracks after they were seen again, row by row; see ``looks``."""
    mixed = np.where(_known(known)[:, None], (1.0 - RENEWAL) * known + RENEWAL * seen, seen)
    mixed = np.where(_known(seen)[:, None], mixed, known)
    length = np.sqrt((mixed * mixed).sum(axis=1, keepdims=True))
    result: FloatArray = (mixed / np.maximum(length, 1e-6)).astype(np.float32)
    return result


def _known(looks: FloatArray) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.greater(looks.max(axis=1, initial=0.0), 0.0)
    return found
