"""Looks of boxes, and what they are good for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vidserve.frames import ByteArray, Detections, FloatArray
from vidserve.tracking import appearance
from vidserve.tracking.tracker import Tracker, TrackerSettings

SIZE = (320, 240)


def picture(*people: tuple[int, tuple[int, int, int]]) -> ByteArray:
    """People of 40 x 100 at left edges, in a colour, on grey."""
    rgb = np.full((240, 320, 3), 100, np.uint8)
    for left, colour in people:
        rgb[80:180, left : left + 40] = colour
    return rgb


def boxes(*lefts: float) -> FloatArray:
    return np.array([[x, 80, x + 40, 180] for x in lefts], np.float32).reshape(-1, 4)


RED, BLUE = (220, 30, 30), (30, 30, 220)


def test_alike_and_not_alike() -> None:
    seen = appearance.looks(picture((20, RED), (120, BLUE), (220, RED)), boxes(20, 120, 220))
    cost = appearance.cost(seen, seen)
    assert cost[0, 2] < 0 < cost[0, 1]
    assert cost[0, 1] == pytest.approx(1.0 - appearance.NEUTRAL)
    np.testing.assert_allclose((seen**2).sum(axis=1), 1.0, rtol=1e-5)


def test_nothing_known_costs_nothing() -> None:
    seen = appearance.looks(picture((20, RED)), boxes(20))
    none = np.zeros((1, appearance.LENGTH), np.float32)
    assert appearance.cost(none, seen) == 0.0
    assert appearance.cost(seen, none) == 0.0
    np.testing.assert_allclose(appearance.renewed(none, seen), seen, rtol=1e-5)
    np.testing.assert_allclose(appearance.renewed(seen, none), seen, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        np.float32, (3, 4), elements=st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))
    )
)
def test_any_boxes(raw: FloatArray) -> None:
    seen = appearance.looks(picture((20, RED)), raw)
    length = (seen**2).sum(axis=1)
    assert np.isfinite(seen).all()
    assert (np.isclose(length, 1.0, rtol=1e-4) | (length == 0.0)).all()


def test_none_and_five_hundred() -> None:
    rgb = picture((20, RED))
    assert appearance.looks(rgb, boxes()).shape == (0, appearance.LENGTH)
    assert appearance.looks(rgb, np.tile(boxes(20), (500, 1))).shape == (500, appearance.LENGTH)


@pytest.mark.parametrize("with_looks", [True, False])
def test_two_who_turn_back_behind_each_other_are_told_by_their_colours(with_looks: bool) -> None:
    """They walk towards each other, meet, and each goes back where he came from."""
    tracker = Tracker(TrackerSettings())
    for k in range(9):
        now_s = 0.4 * k
        apart = 10.0 + abs(now_s - 1.6) * 55
        left = boxes(140 - apart, 140 + apart)
        rgb = picture((round(140 - apart), RED), (round(140 + apart), BLUE))
        looks = appearance.looks(rgb, left) if with_looks else None
        scores, classes = np.full(2, 0.9, np.float32), np.zeros(2, np.int32)
        tracker.apply(now_s, Detections(left, scores, classes, looks), SIZE)
    shown = tracker.at(3.2)
    by_id = shown.boxes[np.argsort(shown.ids), 0]
    assert (by_id[0] < by_id[1]) == with_looks
