"""Whatever comes, flow answers in the right shapes, within its bounds, and never raises."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.moving import texture
from vidserve.capture.motion import LEAST_POINTS, MOST_POINTS, MotionEstimator
from vidserve.capture.motion_fit import fit
from vidserve.frames import ByteArray, FloatArray, MotionStep, Regions, Thinning

SIZES = [(160, 90), (64, 48), (33, 97), (9, 7), (1, 1), (200, 4)]
WALL = np.asarray(np.clip(texture(256, 128, 40.0, 1), 0, 255), np.uint8)
PICTURES: dict[tuple[int, int], list[ByteArray]] = {
    (width, height): [
        *(np.ascontiguousarray(WALL[:height, turn : turn + width]) for turn in (0, 1, 3)),
        np.zeros((height, width), np.uint8),
    ]
    for width, height in SIZES
}

coordinates = st.one_of(
    st.floats(-300, 500, width=32),
    st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-30, 160.0, 90.0]),
)
rows = st.lists(st.tuples(coordinates, coordinates, coordinates, coordinates), max_size=12)


@st.composite
def region_sets(draw: st.DrawFn) -> Regions | None:
    boxes = draw(st.none() | rows | st.integers(0, 500))
    if boxes is None:
        return None
    if isinstance(boxes, int):
        corners = np.random.default_rng(boxes).uniform(-50, 250, (boxes, 4))
        array = np.concatenate((corners[:, :2], corners[:, :2] + corners[:, 2:]), axis=1)
    else:
        array = np.array(boxes).reshape(-1, 4)
    first_id = draw(st.integers(0, 5))
    width, height = draw(st.sampled_from([(160, 90), (320, 180), (90, 160), (0, 0)]))
    return Regions(
        seq=0,
        time_s=draw(st.floats(-2, 6)),
        width=width,
        height=height,
        ids=np.arange(first_id, first_id + len(array), dtype=np.int32),
        boxes=array.astype(np.float32),
    )


def check(step: MotionStep, regions: Regions | None) -> None:
    n = len(step)
    assert n == (0 if regions is None or step.regions_seq is None else len(regions))
    assert step.ids.dtype == np.int32 and step.ids.shape == (n,)
    for array, shape in (
        (step.shift, (n, 2)),
        (step.scale, (n,)),
        (step.residual, (n,)),
        (step.boxes, (n, 4)),
        (step.camera, (2, 3)),
    ):
        assert array.dtype == np.float32 and array.shape == shape
    for mask in (step.trusted, step.unbroken):
        assert mask.dtype == np.bool_ and mask.shape == (n,)
    assert step.points <= MOST_POINTS
    assert LEAST_POINTS * int(step.trusted.sum()) <= step.points
    assert 0.0 <= step.outside <= 1.0 and np.isfinite(step.camera).all()
    sure = step.trusted
    assert np.isfinite(step.shift[sure]).all() and np.isfinite(step.residual[sure]).all()
    assert (step.scale[sure] > 0.5).all() and np.isfinite(step.boxes[sure]).all()
    assert np.isinf(step.residual[~sure]).all()
    assert step.to_s > step.from_s
    if step.scene_change:
        assert not sure.any() and not step.camera_trusted
    if regions is not None and n:
        assert not sure[np.isnan(regions.boxes).any(axis=1)].any()


moments = st.tuples(
    st.sampled_from([0.0, 1e-9, 0.033, 0.033, 0.5, 10.0, -1.0]),
    st.integers(0, 3),
    st.sampled_from(SIZES),
    region_sets() | st.just("again"),
    st.sampled_from(list(Thinning)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(moments, min_size=2, max_size=6), st.booleans())
def test_anything(
    plan: list[tuple[float, int, tuple[int, int], Regions | str | None, Thinning]], one_size: bool
) -> None:
    estimator = MotionEstimator()
    time_s = 0.0
    regions: Regions | None = None
    for seq, (step_s, picture, size, new, thinning) in enumerate(plan):
        if not isinstance(new, str):
            regions = dataclasses.replace(new, seq=seq) if new is not None else None
        size = plan[0][2] if one_size else size
        time_s += step_s
        estimator.thinning = thinning
        step = estimator.step(PICTURES[size][picture], time_s, (160, 90), regions)
        if step is not None:
            check(step, regions)


def test_five_hundred_boxes_stay_within_the_bounds() -> None:
    rng = np.random.default_rng(2)
    corners = rng.uniform(0, 100, (500, 2))
    boxes = np.concatenate((corners, corners + rng.uniform(5, 60, (500, 2))), axis=1)
    ids = np.arange(500, dtype=np.int32)
    regions = Regions(1, 0.0, 160, 90, ids, boxes.astype(np.float32))
    for thinning, most in ((Thinning.FULL, MOST_POINTS), (Thinning.FEWER_POINTS, MOST_POINTS // 2)):
        estimator = MotionEstimator()
        estimator.thinning = thinning
        estimator.step(PICTURES[160, 90][0], 0.0, (160, 90), regions)
        step = estimator.step(PICTURES[160, 90][1], 0.1, (160, 90), regions)
        assert step is not None
        check(step, regions)
        assert 0 < step.points <= most


def points_of(seed: int, count: int) -> FloatArray:
    return np.random.default_rng(seed).uniform(-20, 20, (1, count, 2)).astype(np.float32)


@given(
    st.integers(0, 99),
    st.floats(-9, 9),
    st.floats(-9, 9),
    st.floats(-0.05, 0.05),
    st.integers(0, 5),
)
def test_a_fit_finds_the_motion_in_spite_of_strays(
    seed: int, dx: float, dy: float, growth: float, strays: int
) -> None:
    starts = points_of(seed, 16)
    ends = starts * np.float32(1 + growth) + np.array([dx, dy], np.float32)
    ends[0, :strays] += np.float32(30.0)
    good = np.ones((1, 16), np.bool_)
    found = fit(np.zeros((1, 2), np.float32), starts, ends, good, growth_spread=1.0)
    assert np.abs(found.shift[0] - (dx, dy)).max() < 0.1
    assert abs(float(found.growth[0]) - growth) < 0.01
    assert abs(float(found.turn[0])) < 0.01
    assert found.agree[0].tolist() == [False] * strays + [True] * (16 - strays)
    assert float(found.residual[0]) < 0.1


def test_a_fit_of_nothing_is_no_motion() -> None:
    starts = points_of(1, 16)
    none = np.zeros((1, 16), np.bool_)
    found = fit(np.zeros((1, 2), np.float32), starts, starts + 5, none, growth_spread=0.01)
    assert (found.shift == 0).all() and found.growth == 0 and found.turn == 0
    assert np.isinf(found.residual).all() and not found.agree.any()
    empty = np.empty((0, 16, 2), np.float32)
    found = fit(np.empty((0, 2), np.float32), empty, empty, none[:0], growth_spread=0.01)
    assert len(found.shift) == 0
