"""A jump of the camera found in boxes alone, and what the tracker makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_tracking_flow import step_for
from tests.test_tracking_tracker import KEYFRAME_S, SIZE, Box, centres, new, seen
from vidserve.tracking.camera import (
    LEAST_PAIRS,
    MOST_BOXES,
    MOST_TRACKS,
    Drift,
    common_offset,
)
from vidserve.tracking.kalman import Array


def crowd(count: int, seed: int) -> Array:
    """People spread over the picture, about 40 x 100."""
    rng = np.random.default_rng(seed)
    places = np.stack(np.meshgrid(np.arange(8) * 140.0 + 150, np.arange(4) * 150.0 + 130), axis=-1)
    rows = rng.permutation(places.reshape(-1, 2))[:count] + rng.uniform(-20, 20, (count, 2))
    return np.concatenate((rows, np.tile([40.0, 100.0], (count, 1))), axis=1)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(4, 20),
    st.integers(0, 999),
    st.floats(25, 90),
    st.floats(-60, 60),
    st.integers(0, 2),
)
def test_a_jump_is_measured(count: int, seed: int, x: float, y: float, missing: int) -> None:
    expected = crowd(count, seed)
    rng = np.random.default_rng(seed)
    moved = rng.permutation(expected + np.array([x, y, 0.0, 0.0]))[min(missing, count - 3) :]
    moved = moved + rng.normal(0.0, 1.0, moved.shape)
    offset = common_offset(expected, moved)
    assert offset is not None
    np.testing.assert_allclose(offset, [x, y], atol=3.0)


@pytest.mark.parametrize("seed", range(20))
def test_without_a_jump_there_is_none(seed: int) -> None:
    """Boxes where they were expected, and boxes of people who walk each their own way."""
    rng = np.random.default_rng(seed)
    expected = crowd(12, seed)
    assert common_offset(expected, expected + rng.normal(0.0, 3.0, expected.shape)) is None
    angle = rng.uniform(0.0, 2.0 * np.pi, 12)
    own = np.stack((np.cos(angle), np.sin(angle)), axis=1) * 60.0
    assert common_offset(expected, expected + np.pad(own, ((0, 0), (0, 2)))) is None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_boxes_prove_nothing(count: int) -> None:
    expected = crowd(count, 0)
    assert common_offset(expected, expected + np.array([50.0, 0.0, 0.0, 0.0])) is None
    assert common_offset(crowd(10, 0), expected) is None
    assert common_offset(expected, crowd(10, 0)) is None


def test_a_multitude_is_cut_short() -> None:
    """500 alike boxes: only the most reliable of them are compared."""
    rng = np.random.default_rng(0)
    corner = rng.uniform(0.0, 3000.0, (500, 2))
    expected = np.concatenate((corner, np.full((500, 2), 40.0)), axis=1)
    offset = common_offset(expected, expected + np.array([30.0, 10.0, 0.0, 0.0]))
    assert offset is not None
    np.testing.assert_allclose(offset, [30.0, 10.0])
    far = expected + np.array([30.0, 10.0, 0.0, 0.0])
    far[: max(MOST_TRACKS, MOST_BOXES)] += 1e6
    assert common_offset(expected, far) is None


def test_a_camera_that_jolts_keeps_all_ids() -> None:
    """60 px at once, one and a half widths: no box overlaps with its own track."""
    tracker = new()
    people = crowd(8, 1)
    for k in range(24):
        jolt = [60.0, 25.0, 0.0, 0.0] if k >= 12 else [0.0] * 4
        boxes: list[Box] = [tuple(row) for row in (people + jolt).tolist()]
        tracker.apply(k * KEYFRAME_S, seen(*boxes), SIZE)
        if k > 0:
            tracks = tracker.at(k * KEYFRAME_S)
            order = np.argsort(tracks.ids)
            np.testing.assert_allclose(
                centres(tracks)[order], (people + jolt)[:, :2], atol=4.0, err_msg=str(k)
            )
    assert tracker.counters.born == 8


def test_a_camera_that_begins_to_turn_is_followed() -> None:
    """300 px a second from one keyframe to the next."""
    tracker = new()
    people = crowd(8, 3)
    for k in range(20):
        turned = max(0, k - 8) * 300.0 * KEYFRAME_S
        boxes: list[Box] = [tuple(row) for row in (people - [turned, 0.0, 0.0, 0.0]).tolist()]
        visible = [box for box in boxes if box[0] > 0.0]
        tracker.apply(k * KEYFRAME_S, seen(*visible), SIZE)
        if k == 11:
            speeds = tracker.at(k * KEYFRAME_S).velocities
            assert np.median(speeds[:, 0]) == pytest.approx(-300.0, abs=60.0)
    assert tracker.counters.born == 8


@pytest.mark.parametrize("step_s", [1e-9, 1e-3])
def test_a_jolt_in_no_time_gives_no_mad_rate(step_s: float) -> None:
    tracker = new()
    people = crowd(8, 2)
    for k in range(8):
        tracker.apply(k * KEYFRAME_S, seen(*(tuple(row) for row in people.tolist())), SIZE)
    moved: list[Box] = [tuple(row) for row in (people + np.array([60.0, 0.0, 0.0, 0.0])).tolist()]
    now_s = 7 * KEYFRAME_S + step_s
    tracker.apply(now_s, seen(*moved), SIZE)
    tracks = tracker.at(now_s)
    assert len(tracks) == 8
    assert np.abs(tracks.velocities).max() <= 60.0 * 60.0


def drifted(seed: int, drift_px: float, count: int, detections: int = 80) -> Array:
    """What ``Drift`` believed of each detection, in x: 40 x 100 people, 5 px of their own."""
    rng = np.random.default_rng(seed)
    drift, heights = Drift(), np.full(count, 100.0)
    believed = []
    for _ in range(detections):
        off = rng.normal(0.0, 5.0, (count, 2))
        off[:, 0] += drift_px * rng.choice([-1.0, 1.0])
        common = drift(off, np.full((count, 2), 49.0), heights)
        believed.append(0.0 if common is None else abs(common[0]))
    return np.array(believed)


@pytest.mark.parametrize("seed", range(10))
def test_a_camera_that_stands_still_is_let_be(seed: int) -> None:
    assert (drifted(seed, 0.0, 8) > 0.0).mean() < 0.05


@pytest.mark.parametrize("seed", range(10))
def test_a_shaking_camera_is_known_after_some_detections(seed: int) -> None:
    believed = drifted(seed, 12.0, 10)
    assert (believed[30:] > 0.0).all()
    assert 8.0 < believed[30:].mean() < 12.0


def test_a_few_pairs_are_no_camera() -> None:
    assert not drifted(0, 20.0, LEAST_PAIRS - 1).any()


def test_who_walks_against_the_drift_does_not_bend_it() -> None:
    drift = Drift()
    off = np.tile([20.0, 0.0], (9, 1))
    off[:2] = [-90.0, 40.0]
    for _ in range(40):
        common = drift(off, np.full((9, 2), 49.0), np.full(9, 100.0))
    still = Drift()
    for _ in range(40):
        alone = still(off[2:], np.full((7, 2), 49.0), np.full(7, 100.0))
    assert common is not None and alone is not None
    np.testing.assert_allclose(alone, [20.0, 0.0])
    np.testing.assert_allclose(common / np.hypot(*common), [1.0, 0.0], atol=0.2)
    assert common[0] > 8.0


def test_what_the_camera_is_measured_to_do_is_not_guessed_again() -> None:
    """A step that trusts its camera switches the guess off, drift and all."""
    people = crowd(8, 5)
    boxes: list[Box] = [tuple(row) for row in (people + np.array([6.0, 0.0, 0.0, 0.0])).tolist()]
    asked = []
    for trusted in (False, True):
        tracker = new()
        for k in range(3):
            start: list[Box] = [tuple(row) for row in people.tolist()]
            tracker.apply(k * KEYFRAME_S, seen(*start), SIZE)
        regions = tracker.regions()
        assert regions is not None
        step = replace(step_for(regions.seq, regions.boxes), camera_unbroken=trusted)
        before = tracker._drift._unrest
        tracker.apply(3 * KEYFRAME_S, seen(*boxes), SIZE, step=step)
        asked.append(tracker._drift._unrest != before)
    assert asked == [True, False]


def wander_error(seed: int, monkeypatch: pytest.MonkeyPatch, blind: bool) -> float:
    """How far boxes are off one keyframe on, pixels; the camera turns this way and that."""
    rng = np.random.default_rng(seed)
    tracker, people, at_px, errors = new(), crowd(10, seed), 0.0, []
    if blind:
        monkeypatch.setattr(tracker, "_drift", lambda off, variance, heights: None)
    for k in range(90):
        if k % 6 == 0:
            speed = rng.choice([-1.0, 1.0]) * 20.0  # 4 px a keyframe: no jump
        at_px += speed * KEYFRAME_S
        shown = people + rng.normal(0.0, 1.0, people.shape) + np.array([at_px, 0.0, 0.0, 0.0])
        boxes: list[Box] = [tuple(row) for row in shown.tolist()]
        tracker.apply(k * KEYFRAME_S, seen(*boxes), SIZE)
        if k >= 30 and k % 6 != 5:
            ahead = tracker._table.motion.predicted(KEYFRAME_S).position[:10, 0]
            truth = people[:, 0] + at_px + speed * KEYFRAME_S
            errors.append(np.abs(ahead[:, None] - truth[None]).min(axis=1).mean())
    return float(np.mean(errors))


def test_rates_are_learnt_from_all_tracks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(4)
    alone = np.mean([wander_error(seed, monkeypatch, blind=True) for seed in seeds])
    together = np.mean([wander_error(seed, monkeypatch, blind=False) for seed in seeds])
    assert together < 0.8 * alone, (together, alone)
