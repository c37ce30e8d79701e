"""How far a matched box is believed."""

from __future__ import annotations

import numpy as np
import pytest

from vidserve.tracking.association import costs
from vidserve.tracking.kalman import Array, Motion
from vidserve.tracking.trust import noise_factors

SIZE = (1280, 720)
FAR_APART = np.array([[300.0, 300.0, 40.0, 100.0], [800.0, 300.0, 40.0, 100.0]])


def factors(start: Array, boxes: Array, known: tuple[bool, ...] | None = None) -> Array:
    """Of boxes matched one by one with tracks of some history, in order."""
    motion = Motion.starting(start)
    everyone = np.arange(len(start))
    for _ in range(4):
        motion = motion.predicted(0.2).corrected(everyone, start)
    motion = motion.predicted(0.2)
    cost = costs(motion, boxes, np.ones((len(start), len(boxes)), np.bool_))
    confirmed = np.array(known if known is not None else (True,) * len(start))
    pairs = np.arange(len(boxes)), np.arange(len(boxes))
    return noise_factors(motion, boxes, cost, confirmed, pairs, SIZE)


def test_boxes_as_expected_are_believed() -> None:
    np.testing.assert_array_equal(
        factors(FAR_APART, FAR_APART + np.array([3.0, 2.0, 1.0, -2.0])), 1.0
    )


def test_an_object_that_turns_is_believed() -> None:
    """A surprise about the centre only: the object moved."""
    np.testing.assert_array_equal(
        factors(FAR_APART, FAR_APART + np.array([35.0, 10.0, 0.0, 0.0])), 1.0
    )


def test_a_cut_off_box_is_doubted_along_the_cut() -> None:
    cut = FAR_APART + np.array([[0.0, -30.0, 0.0, -60.0], [0.0, 0.0, 0.0, 0.0]])
    got = factors(FAR_APART, cut)
    assert (got[0, [1, 3]] > 5.0).all()
    np.testing.assert_array_equal(got[0, [0, 2]], 1.0)
    np.testing.assert_array_equal(got[1], 1.0)


def test_a_box_cut_by_the_picture_is_believed() -> None:
    """A car drives in: its box grows faster than anything that is whole."""
    entering = np.array([[20.0, 300.0, 40.0, 60.0]])
    grown = np.array([[40.0, 300.0, 80.0, 60.0]])
    np.testing.assert_array_equal(factors(entering, grown), 1.0)
    inside = np.array([300.0, 0.0, 0.0, 0.0])
    assert factors(entering + inside, grown + inside)[0, 0] > 1.0


@pytest.mark.parametrize(("rival_known", "factor"), [(True, 2.0), (False, 1.0)])
def test_a_box_that_another_known_track_may_own_is_doubted(
    rival_known: bool, factor: float
) -> None:
    pair = np.array([[300.0, 300.0, 40.0, 100.0], [312.0, 300.0, 40.0, 100.0]])
    got = factors(pair, np.array([[305.0, 300.0, 40.0, 100.0]]), (True, rival_known))
    np.testing.assert_array_equal(got, factor)


def test_no_pairs() -> None:
    assert factors(FAR_APART, np.empty((0, 4))).shape == (0, 4)
