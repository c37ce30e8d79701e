"""Costs, gate and assignment."""

from __future__ import annotations

import numpy as np
import pytest

from vidserve.tracking.association import APART_COST, assign, associate, costs, overlaps, twins
from vidserve.tracking.kalman import Array, Motion, corners


def boxes(*rows: tuple[float, float, float, float]) -> Array:
    return np.array(rows, np.float64).reshape(-1, 4)


def alike(tracks: int, measured: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    return np.ones((tracks, measured), np.bool_)


def test_overlaps() -> None:
    first = corners(boxes((5, 5, 10, 10)))
    second = corners(boxes((5, 5, 10, 10), (10, 5, 10, 10), (100, 100, 10, 10), (5, 5, 5, 5)))
    np.testing.assert_allclose(overlaps(first, second), [[1.0, 1 / 3, 0.0, 0.25]])


def test_a_small_fast_box_needs_no_overlap() -> None:
    """A ball that left its own box is still inside what the filter thinks possible."""
    motion = Motion.starting(boxes((100, 100, 10, 10))).predicted(0.5)
    near, far = boxes((112, 100, 10, 10), (160, 100, 10, 10))
    assert overlaps(corners(motion.position), corners(near[None]))[0, 0] == 0.0
    assert costs(motion, near[None], alike(1, 1))[0, 0] < APART_COST
    assert costs(motion, far[None], alike(1, 1))[0, 0] == APART_COST


def test_the_gate_opens_with_time() -> None:
    start, moved = boxes((100, 100, 40, 100)), boxes((150, 100, 40, 100))
    soon, later = (Motion.starting(start).predicted(dt_s) for dt_s in (0.05, 0.5))
    assert costs(soon, moved, alike(1, 1))[0, 0] == APART_COST
    assert costs(later, moved, alike(1, 1))[0, 0] < APART_COST


def test_of_two_boxes_that_do_not_overlap_the_nearer_is_cheaper() -> None:
    motion = Motion.starting(boxes((100, 100, 10, 10))).predicted(0.5)
    near, far = costs(motion, boxes((112, 100, 10, 10), (118, 100, 10, 10)), alike(1, 2))[0]
    assert near < far < APART_COST


def test_a_long_lost_track_does_not_reach_across_the_street() -> None:
    """After 2 s nearly all is likely enough for the filter; one standard deviation is near."""
    motion = Motion.starting(boxes((100, 100, 40, 100))).predicted(2.0)
    spread_px = float(np.sqrt(motion.pp[0, 0]))
    near, far = boxes((100 + spread_px, 100, 40, 100), (100 + 2 * spread_px, 100, 40, 100))
    assert costs(motion, near[None], alike(1, 1))[0, 0] < APART_COST
    assert costs(motion, far[None], alike(1, 1))[0, 0] == APART_COST


def test_a_box_of_quite_another_size_is_another_object() -> None:
    motion = Motion.starting(boxes((100, 100, 40, 100))).predicted(0.1)
    assert costs(motion, boxes((100, 100, 10, 25)), alike(1, 1))[0, 0] == APART_COST


def test_another_class_is_possible_but_costs() -> None:
    motion = Motion.starting(boxes((100, 100, 40, 100))).predicted(0.2)
    here, beside = boxes((101, 100, 40, 100)), boxes((130, 100, 40, 100))
    other = ~alike(1, 1)
    same_cost = costs(motion, here, alike(1, 1))[0, 0]
    assert same_cost < costs(motion, here, other)[0, 0] < APART_COST
    assert costs(motion, beside, alike(1, 1))[0, 0] < APART_COST
    assert costs(motion, beside, other)[0, 0] == APART_COST, "needs the overlap"


def test_a_good_pair_is_not_broken_to_save_two_poor_ones() -> None:
    tracks, found = assign(np.array([[0.1, 1.4], [1.3, APART_COST]]))
    assert (tracks.tolist(), found.tolist()) == ([0], [0])


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_nothing_to_assign(shape: tuple[int, int]) -> None:
    tracks, found = assign(np.zeros(shape))
    assert len(tracks) == len(found) == 0


def test_low_scores_come_second_and_only_to_fresh_tracks() -> None:
    cost = np.array(
        [
            [0.1, 0.3, 0.9],
            [0.9, 0.2, 0.9],
            [0.9, 0.9, 0.1],
        ]
    )
    high = np.array([False, True, False])
    fresh = np.array([True, True, False])
    pairs = dict(zip(*(side.tolist() for side in associate(cost, high, fresh)), strict=True))
    # Track 1 takes the high box; track 0, seen just before, may have the low box 0; track 2
    # was lost, and its low box is not enough to bring it back.
    assert pairs == {1: 1, 0: 0}


def test_low_scores_must_overlap() -> None:
    low = np.array([False])
    tracks, found = associate(np.array([[1.2]]), low, np.array([True]))
    assert len(tracks) == len(found) == 0
    tracks, found = associate(np.array([[0.8]]), low, np.array([True]))
    assert (tracks.tolist(), found.tolist()) == ([0], [0])


def test_twins_are_free_boxes_on_a_taken_one_of_their_class() -> None:
    taken = boxes((100, 100, 40, 100), (300, 100, 40, 100))
    free = boxes((104, 100, 40, 100), (120, 100, 40, 100), (300, 100, 40, 100), (700, 100, 40, 100))
    found = twins(free, np.array([0, 0, 5, 0]), taken, np.array([0, 0]))
    assert found.tolist() == [True, False, False, False]
    nothing = twins(free, np.zeros(4, np.int32), boxes(), np.zeros(0, np.int32))
    assert nothing.tolist() == [False] * 4
