"""Which points to follow from one picture to another, and following them.

Pure functions over small grey pictures and their pixels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vidserve.frames import ByteArray, FloatArray

Mask = npt.NDArray[np.bool_]

# Lucas-Kanade: window, halvings above the full picture, rounds. It reaches about half a window
# times two to the power of the halvings, 40 px. On ../shared/mot and the samples windows of 7
# to 15 px and 5 to 20 rounds are alike within 0.2 points of IoU; small ones are cheaper.
WINDOW_PX = 9
HALVINGS = 3
ROUNDS = 10
ENOUGH_PX = 0.03
# Followed there and back, a point has to end this near to where it began.
ROUND_TRIP_PX = 1.0
# Mean difference of the windows' grey levels at a match: noise, and a share of the contrast.
NOISE_LEVELS, CONTRAST_SHARE = 6.0, 0.6
# Points lie in the inner part of a box: towards its edges there is background.
INNER = np.array([0.6, 0.6], np.float32)
# So many times as many places are looked at as needed, to find some that nothing hides.
SPARE = 2


def _spread(count: int) -> FloatArray:
    """Points in -1..1 that fill the square evenly, as does every beginning of them, (count, 2).

    Roberts' R2: multiples of the powers of the plastic number's inverse, modulo 1.
    """
    plastic = 1.32471795724474602596
    turns = np.arange(1, count + 1)[:, None] / np.array([plastic, plastic**2])
    spread: FloatArray = (2.0 * np.mod(turns + 0.5, 1.0) - 1.0).astype(np.float32)
    return spread


_SPREAD = _spread(256)


def place(seen: FloatArray, boxes: FloatArray, each: int) -> tuple[FloatArray, Mask]:
    """Points to follow in each box, away from boxes in front of it where that is possible.

    They lie on whole pixels: their windows need no interpolation, and what does not move then
    moves by exactly zero. Choosing those with the most texture among twice or four times as
    many cost 0.1 ms and 0.3 points of IoU: texture is strongest where an object ends.

    Args:
        seen: float32 (n, 4), what lies inside the picture of ``boxes``.
        boxes: float32 (n, 4).
        each: Points a box.

    Returns:
        float32 (n, each, 2), and bool (n, each): the point shows this box, not one in front.
    """
    middle = (seen[:, :2] + seen[:, 2:]) * np.float32(0.5)
    half = (seen[:, 2:] - seen[:, :2]) * np.float32(0.5) * INNER
    points = np.rint(middle[:, None] + half[:, None] * _SPREAD[: SPARE * each])
    # Seen from above the ground, what stands lower in the picture stands in front.
    front = boxes[None, :, 3] > boxes[:, None, 3]
    hidden = np.asarray((_within(points, boxes) & front[:, None]).any(axis=-1))
    free = np.logical_not(hidden)
    first_free = np.argsort(~free, axis=1, kind="stable")[:, :each]
    return (
        np.take_along_axis(points, first_free[..., None], axis=1).astype(np.float32),
        np.take_along_axis(free, first_free, axis=1),
    )


@lru_cache(maxsize=64)
def grid(width: int, height: int, columns: int, rows: int) -> FloatArray:
    """The middles of the cells of a coarse grid, whole pixels: float32 (columns * rows, 2)."""
    x = np.floor((np.arange(columns) + 0.5) * width / columns)
    y = np.floor((np.arange(rows) + 0.5) * height / rows)
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2).astype(np.float32)
    points.flags.writeable = False
    return points


def covered(points: FloatArray, boxes: FloatArray) -> Mask:
    """Which points (m, 2) lie in any of the boxes (n, 4)."""
    return np.asarray(_within(points, boxes).any(axis=-1))


def _within(points: FloatArray, boxes: FloatArray) -> Mask:
    """Whether points (..., 2) lie in each box, (..., n)."""
    x, y = points[..., 0, None], points[..., 1, None]
    inside: Mask = (x >= boxes[:, 0]) & (x <= boxes[:, 2]) & (y >= boxes[:, 1]) & (y <= boxes[:, 3])
    return inside


def follow(
    first: ByteArray, second: ByteArray, starts: FloatArray, both_ways: bool
) -> tuple[FloatArray, Mask, Mask]:
    """Pyramidal Lucas-Kanade (Bouguet 2000), checked forward and backward (Kalal et al. 2010).

    OpenCV's Python call takes no pyramids, so each of the two calls builds both: 0.16 ms of
    640 x 360 pixels, the rest of its time is the points'.

    Args:
        first, second: uint8 (h, w), the same size.
        starts: float32 (m, 2), inside the picture.
        both_ways: Also check backward.

    Returns:
        Where the points are in ``second``, float32 (m, 2), finite; bool (m,): there was
        something to follow; bool (m,): and it was followed well. Else the place means nothing.
    """
    shape = (-1, 1, 2)
    stop = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, ROUNDS, ENOUGH_PX)
    how: dict[str, Any] = {
        "winSize": (WINDOW_PX, WINDOW_PX),
        "maxLevel": HALVINGS,
        "criteria": stop,
    }
    there, status, difference = cv2.calcOpticalFlowPyrLK(
        first, second, starts.reshape(shape), None, **how
    )
    ends: FloatArray = there.reshape(-1, 2)
    tried: Mask = (status[:, 0] == 1) & np.isfinite(ends).all(axis=1)
    ends = np.where(tried[:, None], ends, starts)
    good: Mask = tried & (
        difference[:, 0] <= NOISE_LEVELS + CONTRAST_SHARE * _contrast(first, starts)
    )
    if both_ways:
        back, status, _ = cv2.calcOpticalFlowPyrLK(second, first, there, None, **how)
        away = back.reshape(-1, 2) - starts
        good &= (status[:, 0] == 1) & ((away * away).sum(axis=1) <= ROUND_TRIP_PX**2)
    return ends, tried, good


def _contrast(picture: ByteArray, points: FloatArray) -> FloatArray:
    """Standard deviation of the grey levels around points (m, 2), (m,)."""
    height, width = picture.shape
    x, y = points.astype(np.intp).T
    rows = np.clip(y[:, None] + _WINDOW, 0, height - 1)
    columns = np.clip(x[:, None] + _WINDOW, 0, width - 1)
    windows = picture[rows[:, :, None], columns[:, None, :]].reshape(len(points), -1)
    deviation: FloatArray = windows.astype(np.float32).std(axis=1)
    return deviation


# Every second pixel tells as much.
_WINDOW = np.arange(0, WINDOW_PX, 2) - WINDOW_PX // 2
