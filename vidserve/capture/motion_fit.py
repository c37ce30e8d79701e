"""The motion that most of some points agree on, for many groups of points at once.

Pure functions. A group is the points in one box, or the grid that tells how the camera moved.
Coordinates are pixels of the small grey picture. Inside, a point is the complex number x + iy:
to grow by g and turn by t is then to add (g + it) times itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vidserve.frames import FloatArray

Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.complex64]

# A point goes with a motion that it is this near to, or nearer than three typical distances
# (medians), but never if it is farther than the third number. Flow is good to about 0.1 px on
# good texture; arms and legs swing by a few.
NEAR_PX, TYPICAL, FAR_PX = 0.7, 3.0, 2.1
ROUNDS = 2
# Least and most that a point is taken to scatter.
NOISE_PX = (0.1, 2.0)


@dataclass(frozen=True, slots=True)
class Fit:
    """What n groups of at most k points did.

    Attributes:
        shift: float32 (n, 2), how far the group's centre moved.
        growth: float32 (n,), factor of size less 1.
        turn: float32 (n,), radians from x towards y; small.
        agree: bool (n, k), points that go with this motion.
        residual: float32 (n,), median of their distances from it; infinite without any.
    """

    shift: FloatArray
    growth: FloatArray
    turn: FloatArray
    agree: Mask
    residual: FloatArray


def fit(
    centres: FloatArray, starts: FloatArray, ends: FloatArray, good: Mask, growth_spread: float
) -> Fit:
    """Shift, growth and turn of each group: the median shift, then least squares of those near.

    Args:
        centres: float32 (n, 2), which point of each group ``shift`` is for.
        starts, ends: float32 (n, k, 2), where the points were and are.
        good: bool (n, k), which points to use.
        growth_spread: Standard deviation of the growth (and turn) that is to be expected. The
            fit is a ridge regression: the more the points scatter, and the closer together
            they lie, the more it prefers no growth.
    """
    away = _complex(starts) - _complex(centres)[:, None]
    moves = _complex(ends) - _complex(starts)
    x, y = _median(moves.real, good), _median(moves.imag, good)
    known = np.isfinite(x)
    shift = (np.where(known, x, 0) + 1j * np.where(known, y, 0)).astype(np.complex64)
    spin = np.zeros(len(away), np.complex64)
    distance = np.abs(moves - shift[:, None])
    # The first time growth is free: what it explains is not scatter.
    noise = np.full(len(away), NOISE_PX[0], np.float32)
    for _ in range(ROUNDS):
        limit = np.minimum(np.maximum(TYPICAL * _median(distance, good), NEAR_PX), FAR_PX)
        agree = good & (distance <= limit[:, None])
        shift, spin = _least_squares(away, moves, agree, noise / np.float32(growth_spread))
        distance = np.abs(moves - shift[:, None] - spin[:, None] * away)
        noise = np.minimum(np.maximum(_median(distance, good), NOISE_PX[0]), NOISE_PX[1])
    return Fit(
        shift.view(np.float32).reshape(-1, 2), spin.real, spin.imag, agree, _median(distance, agree)
    )


def _complex(points: FloatArray) -> Points:
    """(..., 2) as (...)."""
    points = np.ascontiguousarray(points, np.float32)
    return points.view(np.complex64)[..., 0]


def _median(values: FloatArray, mask: Mask) -> FloatArray:
    """Lower median of each row of what the mask chooses; infinite where that is none."""
    ordered = np.where(mask, values, np.float32(np.inf))
    ordered.sort(axis=1)
    middle = (np.maximum(mask.sum(axis=1), 1) - 1) // 2
    picked: FloatArray = ordered[np.arange(len(ordered)), middle]
    return picked


def _least_squares(
    away: Points, moves: Points, chosen: Mask, stiffness_px: FloatArray
) -> tuple[Points, Points]:
    """Shift of the centre and spin (growth + i turn) of each group, from the chosen points."""
    total = np.maximum(chosen.sum(axis=1), 1).astype(np.float32)
    middle = np.where(chosen, away, 0).sum(axis=1) / total
    mean = np.where(chosen, moves, 0).sum(axis=1) / total
    around = np.where(chosen, away - middle[:, None], 0)
    square = (around.real**2 + around.imag**2).sum(axis=1) + stiffness_px**2
    spin = (around.conj() * moves).sum(axis=1) / square
    # The mean is the movement at the middle of the points, not at the centre of the group.
    return (mean - spin * middle).astype(np.complex64), spin.astype(np.complex64)
