"""Whatever comes, in whatever order: what the tracker promises holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.frames import Detections
from vidserve.tracking.tracker import Tracker, TrackerSettings

# Ordinary boxes, and all that a broken model or decoder may send.
coordinate = st.one_of(
    st.floats(-50, 700, width=32),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0, 3e38, -3e38, 1e-30]),
)
one_box = st.tuples(coordinate, coordinate, coordinate, coordinate)
tame_box = st.builds(
    lambda x, y, w, h: (x, y, x + w, y + h),
    st.integers(0, 600),
    st.integers(0, 400),
    st.integers(1, 200),
    st.integers(1, 200),
)


@st.composite
def detections(draw: st.DrawFn) -> Detections:
    boxes = draw(st.lists(st.one_of(tame_box, one_box), max_size=6))
    count = len(boxes)
    score = st.one_of(st.floats(0, 1, width=32), st.just(float("nan")))
    return Detections(
        np.array(boxes, np.float32).reshape(count, 4),
        np.array(draw(st.lists(score, min_size=count, max_size=count)), np.float32),
        np.array(draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)), np.int32),
    )


size = st.sampled_from([(640, 480), (320, 240), (480, 640), (1, 1)])
step_s = st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 1e-9, 10.0, 1e6]))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(step_s, detections(), size, step_s), max_size=20))
def test_promises(steps: list[tuple[float, Detections, tuple[int, int], float]]) -> None:
    tracker = Tracker(TrackerSettings())
    time_s = 100.0
    seen_boxes = 0
    for number, (dt_s, found, picture, ask_s) in enumerate(steps, 1):
        time_s += dt_s
        seen_boxes += len(found)
        before, born_before = tracker.last_detection_s, tracker.counters.born
        begun_until_s = time_s if before is None else before
        tracker.apply(time_s, found, picture)
        assert tracker.last_detection_s is not None
        assert before is None or tracker.last_detection_s >= before
        assert 0.0 <= tracker.doubt(time_s + ask_s) <= 1.0
        for asked_size in (None, picture, (640, 480)):
            tracks = tracker.at(time_s + ask_s, asked_size)
            n = len(tracks)
            assert tracks.boxes.shape == (n, 4)
            assert {len(part) for part in (tracks.scores, tracks.classes, tracks.ages_s)} == {n}
            assert tracks.velocities.shape == (n, 2)
            for part in (tracks.boxes, tracks.scores, tracks.velocities, tracks.ages_s):
                assert part.dtype == np.float32
                assert np.isfinite(part).all()
            assert tracks.ids.dtype == tracks.classes.dtype == np.int32
            assert (tracks.boxes[:, 2:] > tracks.boxes[:, :2]).all(), "area"
            assert (tracks.boxes >= 0.0).all()
            if asked_size is not None:
                assert (tracks.boxes <= np.array(asked_size * 2)).all()
            assert len(set(tracks.ids.tolist())) == n
            assert ((tracks.ids >= 1) & (tracks.ids <= tracker.counters.born)).all()
            # An id given before this detection belongs to a track begun before it.
            old = tracks.ids <= born_before
            begun_s = time_s + ask_s - tracks.ages_s[old].astype(np.float64)
            assert (begun_s <= min(begun_until_s, time_s + ask_s) + 1e-6 * abs(time_s) + 1e-3).all()
        counters = tracker.counters
        assert counters.applied + counters.discarded == number
        assert counters.ended <= counters.born <= seen_boxes
        assert counters.refused <= seen_boxes


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 1.5))
def test_memory_is_bounded(seed: int, interval_s: float) -> None:
    """Random boxes for ever: no more tracks than the boxes within memory."""
    rng = np.random.default_rng(seed)
    tracker = Tracker(TrackerSettings(lost_s=0.5))
    per_picture = 5
    for k in range(60):
        corner = rng.uniform(0, 400, (per_picture, 2))
        boxes = np.concatenate((corner, corner + rng.uniform(5, 60, (per_picture, 2))), axis=1)
        scores = rng.uniform(0.1, 1.0, per_picture).astype(np.float32)
        classes = rng.integers(0, 3, per_picture, dtype=np.int32)
        tracker.apply(
            k * interval_s, Detections(boxes.astype(np.float32), scores, classes), (500, 500)
        )
        alive = tracker.counters.born - tracker.counters.ended
        pictures_remembered = max(0.5, 2.5 * interval_s) / interval_s + 2
        assert alive <= per_picture * pictures_remembered
