"""How far a box that was matched to a track is believed: factors on its measurement noise.

A detector's errors are no Gaussian: at an occlusion it cuts a box off or draws one around two
objects, and it hands a box to the wrong one of two neighbours. A filter that believes all boxes
alike learns a false rate from these, throws the track off, and the next pair is wrong too. Both
cures below are the same step: weigh a measurement down instead of refusing it, as robust
estimation (Huber 1964) and probabilistic data association (Bar-Shalom and Tse 1975) do.

Mean HOTA over the eleven sequences of ``../shared/mot`` and ``samples``, three runs each
(detections thinned by 3 %, or other phases of the keyframes), at every frame, one in 3, one in
5, and the last with 100 ms of delay: 50.3 / 48.4 / 45.9 / 41.6 without this module, 51.1 / 49.0
/ 46.4 / 42.1 with the surprise alone, 51.4 / 49.1 / 46.6 / 42.4 with both; PETS09-S2L1 57.5 /
53.6 / 47.5 without and 62.3 / 58.2 / 50.1 with both.
"""

from __future__ import annotations

import numpy as np

from vidserve.tracking.association import APART_COST, Indices, Mask
from vidserve.tracking.kalman import Array, Motion, corners

# Squared surprise about a side, in predicted variances, up to which a box is believed (two
# standard deviations). Huber's function in the width weighs x, the height y: sides change
# slowly, so a surprise about one says that an end of the box is false, and with it the centre.
# A surprise about the centre alone says no such thing: objects turn and stop.
SURPRISE = 4.0
# A box this near to the edge of the picture, in longer sides, is cut off by it. Its sides do
# change fast, as the object enters or leaves; without the exemption MOTA on ``samples/street``,
# one in 5, falls from 67 to 59. Twice or five times as much is alike.
EDGE = 0.02
# A pair is ambiguous if another known track would have cost at most this much more for the
# same box; 0.1 and 0.2 are alike.
MARGIN = 0.2
# Factor for an ambiguous pair. 1 loses 2 points of HOTA on PETS09-S2L1 at every frame; 4 costs
# a point where the camera moves and rates must be learnt quickly (MOT17-05, -13).
AMBIGUOUS = 2.0


def noise_factors(
    motion: Motion,
    boxes: Array,
    cost: Array,
    known: Mask,
    pairs: tuple[Indices, Indices],
    size: tuple[int, int],
) -> Array:
    """What to multiply the measurement variance of each matched box with.

    Args:
        motion: n tracks, predicted to the time of the boxes.
        boxes: cx, cy, w, h of all boxes, (m, 4).
        cost: From ``association.costs``, (n, m).
        known: Which tracks are confirmed, (n,); the others are no rivals.
        pairs: Rows and columns that belong together, k of each.
        size: Width and height of the picture, pixels.

    Returns:
        float64 (k, 4), at least 1.
    """
    rows, columns = pairs
    measured = boxes[columns]
    offset = measured[:, 2:] - motion.position[rows, 2:]
    noise = motion.measurement_variance()[rows]
    surprise = offset * offset / (motion.pp[rows, 2:] + noise)
    factors: Array = np.tile(np.maximum(surprise / SURPRISE, 1.0), 2)

    ends = corners(measured)
    margin = EDGE * measured[:, 2:].max(axis=1, keepdims=True)
    at_edge = (ends[:, :2] < margin) | (ends[:, 2:] > np.array(size) - margin)
    factors[at_edge.any(axis=1)] = 1.0

    own = cost[rows, columns]
    rivals = np.where(known[:, None], cost[:, columns], np.inf)
    rivals[rows, np.arange(len(rows))] = np.inf
    close = rivals < np.minimum(own + MARGIN, APART_COST)
    factors[close.any(axis=0)] *= AMBIGUOUS
    return factors
