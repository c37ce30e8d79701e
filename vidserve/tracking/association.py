"""Which detection belongs to which track: costs, gate and one-to-one assignment.

Pure functions over arrays. Costs mix the overlap of boxes (SORT, Bewley et al. 2016) with the
distance in units of its predicted uncertainty (DeepSORT, Wojke et al. 2017): overlap tells
neighbours apart, the distance still speaks when a small fast box no longer overlaps at all.
The constants were chosen on the detections in ``../shared/mot``; moving one by a third changes
the mean HOTA of the sequences by less than two points, mostly by much less.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from vidserve.frames import IntArray
from vidserve.tracking.kalman import Array, Motion, corners

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

# Squared Mahalanobis distance that 99 % of true pairs stay under (chi-square, 4 numbers).
GATE = 13.3
# Boxes that overlap this much may belong together whatever the filter expected (it is surprised
# by turns, and by boxes that a detector cuts off at an occlusion), and whatever their classes.
SURE_OVERLAP = 0.3
# Cost of being at the edge of the gate, and of another class, in units of overlap.
DISTANCE_COST = 0.5
CLASS_COST = 0.2
# What it costs to leave a track and a box apart. Above every allowed cost, yet finite: with an
# infinite one the assignment would break a good pair to save two poor ones.
APART_COST = 2.0
# A box of low score must cost less: it has to overlap with what is expected.
LOW_SCORE_COST = 1.0
# A free box that overlaps a matched one of its class by more is a second box on one object: the
# level of a strict non-maximum suppression. At every frame it brings 3 to 5 points of HOTA on
# PETS09-S2L1 and the sample clips and changes nothing on MOT17: newcomers from such boxes are so
# unsure of themselves that the next lone box costs them less. 0.7 brings next to nothing on the
# clips; 0.4 brings some more, but takes who walks close behind another for his second box.
TWIN_OVERLAP = 0.5


def overlaps(first: Array, second: Array) -> Array:
    """Intersection over union of corner boxes with area: (n, 4) and (m, 4) to (n, m)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    sides = np.maximum(high - low, 0.0)
    shared = sides[..., 0] * sides[..., 1]
    area_1 = (first[:, 2:] - first[:, :2]).prod(axis=1)
    area_2 = (second[:, 2:] - second[:, :2]).prod(axis=1)
    union = area_1[:, None] + area_2[None, :] - shared
    # A union without area (rounding far outside any picture) overlaps with nothing.
    result: Array = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0.0)
    return result


def costs(motion: Motion, measured: Array, same_class: Mask) -> Array:
    """What each pair of track and box would cost.

    Args:
        motion: n tracks, predicted to the time of the boxes.
        measured: Boxes cx, cy, w, h, float64 (m, 4).
        same_class: bool (n, m).

    Returns:
        float64 (n, m); ``APART_COST`` where the pair is not allowed.
    """
    overlap = overlaps(corners(motion.position), corners(measured))
    offset = measured[None] - motion.position[:, None]
    variance = motion.pp + motion.measurement_variance()
    distance = (offset * offset / variance[:, None]).sum(axis=2)
    # The boxes touch once the predicted one may be off by its own standard deviation. Without
    # this a track that has been lost for a second reaches across the street.
    reach = (motion.position[:, None, 2:] + measured[None, :, 2:]) * 0.5
    near = (np.abs(offset[..., :2]) < reach + np.sqrt(motion.pp[:, None, :2])).all(axis=2)
    allowed = (near & (distance <= GATE) & same_class) | (overlap >= SURE_OVERLAP)
    cost = 1.0 - overlap + DISTANCE_COST * np.minimum(distance / GATE, 1.0)
    return np.where(allowed, cost + CLASS_COST * ~same_class, APART_COST)


def assign(cost: Array) -> tuple[Indices, Indices]:
    """The cheapest one-to-one pairs (rows, columns) of a cost matrix (n, m), allowed ones only."""
    rows, columns = linear_sum_assignment(cost)
    allowed = cost[rows, columns] < APART_COST
    return rows[allowed], columns[allowed]


def associate(cost: Array, high: Mask, fresh: Mask) -> tuple[Indices, Indices]:
    """Pairs by score in two steps, as in ByteTrack (Zhang et al. 2022).

    Boxes of high score choose first, among all tracks; those of low score may only continue
    a track that is left over, was not lost already and overlaps: they are often background.

    Args:
        cost: From ``costs``, (n, m).
        high: Which boxes have a high score, (m,).
        fresh: Which tracks were seen by the last detection, (n,).

    Returns:
        Indices of tracks and of boxes, equally long.
    """
    strong = np.flatnonzero(high)
    tracks, boxes = assign(cost[:, strong])
    boxes = strong[boxes]
    if len(strong) == len(high):
        return tracks, boxes
    left_over = fresh.copy()
    left_over[tracks] = False
    waiting, weak = np.flatnonzero(left_over), np.flatnonzero(~high)
    cost_left = cost[np.ix_(waiting, weak)]
    cost_left[cost_left >= LOW_SCORE_COST] = APART_COST
    more_tracks, more_boxes = assign(cost_left)
    return (
        np.concatenate((tracks, waiting[more_tracks])),
        np.concatenate((boxes, weak[more_boxes])),
    )


def twins(free: Array, free_classes: IntArray, taken: Array, taken_classes: IntArray) -> Mask:
    """Which free boxes are second boxes on an object that has one already.

    Non-maximum suppression (as detectors do it) whose winners are the boxes that tracks chose,
    not those of the highest score.

    Args:
        free: Boxes cx, cy, w, h that no track took, (n, 4), of classes (n,).
        taken: Those that tracks took, (m, 4), of classes (m,).

    Returns:
        bool (n,).
    """
    same_class = free_classes[:, None] == taken_classes[None, :]
    overlap = overlaps(corners(free), corners(taken))
    found: Mask = (same_class & (overlap > TWIN_OVERLAP)).any(axis=1)
    return found
