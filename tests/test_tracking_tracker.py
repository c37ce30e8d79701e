"""Life of tracks, traps and doubt; motion and identity are in ``test_tracking_scenes``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from vidserve.frames import Detections, Tracks
from vidserve.tracking.tracker import Tracker, TrackerSettings

SIZE = (1280, 720)
KEYFRAME_S = 1 / 6
FRAME_S = 1 / 30
Box = tuple[float, float, float, float]


def seen(
    *boxes: Box, score: float | Sequence[float] = 0.5, classes: int | Sequence[int] = 0
) -> Detections:
    """Detections at boxes cx, cy, w, h."""
    rows = np.array(boxes, np.float64).reshape(-1, 4)
    half = rows[:, 2:] / 2
    return Detections(
        np.concatenate((rows[:, :2] - half, rows[:, :2] + half), axis=1).astype(np.float32),
        np.broadcast_to(np.array(score, np.float32), len(rows)).copy(),
        np.broadcast_to(np.array(classes, np.int32), len(rows)).copy(),
    )


def new(**changes: float) -> Tracker:
    return Tracker(TrackerSettings(**changes))


def centres(tracks: Tracks) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    boxes = tracks.boxes.astype(np.float64)
    return (boxes[:, :2] + boxes[:, 2:]) / 2


def watch(tracker: Tracker, where: Callable[[float], Box], until_s: float) -> float:
    """Apply perfect detections at keyframes; the time of the last one."""
    count = int(until_s / KEYFRAME_S)
    for k in range(count + 1):
        tracker.apply(k * KEYFRAME_S, seen(where(k * KEYFRAME_S)), SIZE)
    return count * KEYFRAME_S


def still(_: float) -> Box:
    return (400.0, 300.0, 40.0, 100.0)


def walker(time_s: float) -> Box:
    return (200.0 + 90.0 * time_s, 300.0, 40.0, 100.0)


# ---- life


def test_two_hits_confirm() -> None:
    tracker = new()
    tracker.apply(0.0, seen(still(0), score=0.5), SIZE)
    assert len(tracker.at(0.0)) == 0
    tracker.apply(0.2, seen(still(0), score=0.2), SIZE)
    assert tracker.at(0.2).ids.tolist() == [1]


def test_one_strong_hit_confirms() -> None:
    tracker = new()
    tracker.apply(0.0, seen(still(0), score=0.8), SIZE)
    assert tracker.at(0.0).ids.tolist() == [1]


def test_low_scores_start_nothing() -> None:
    tracker = new()
    for k in range(5):
        tracker.apply(k * 0.2, seen(still(0), score=0.3), SIZE)
    assert len(tracker.at(1.0)) == 0


def test_levels_by_class() -> None:
    tracker = Tracker(TrackerSettings(confidence={0: 0.9, 1: 0.2}))
    boxes: tuple[Box, Box, Box] = ((100, 100, 50, 50), (300, 100, 50, 50), (500, 100, 50, 50))
    for k in range(2):
        tracker.apply(k * 0.2, seen(*boxes, score=[0.6, 0.3, 0.36], classes=[0, 1, 2]), SIZE)
    assert tracker.at(0.2).classes.tolist() == [1, 2], "a class left out has the default"


def test_noise_seen_once_gets_no_id() -> None:
    tracker = new()
    tracker.apply(0.0, seen(still(0)), SIZE)
    tracker.apply(0.2, Detections.none(), SIZE)
    tracker.apply(0.4, seen(still(0)), SIZE)
    assert len(tracker.at(0.4)) == 0
    assert tracker.counters.born == 0
    tracker.apply(0.6, seen(still(0)), SIZE)
    assert tracker.at(0.6).ids.tolist() == [1], "ids are dense"


def test_one_miss_does_not_blink_and_two_do_not_linger() -> None:
    tracker = new()
    last_s = watch(tracker, still, 2.0)
    tracker.apply(last_s + KEYFRAME_S, Detections.none(), SIZE)
    # A detector may take any time to look again: the decision stands until it has.
    for late_s in (0.0, 0.1, 0.5):
        assert len(tracker.at(last_s + KEYFRAME_S + late_s)) == 1
    tracker.apply(last_s + 2 * KEYFRAME_S, Detections.none(), SIZE)
    assert len(tracker.at(last_s + 2 * KEYFRAME_S)) == 0


def test_a_miss_long_after_the_last_hit_is_believed() -> None:
    tracker = new()
    last_s = watch(tracker, still, 2.0)
    tracker.apply(last_s + 0.5, Detections.none(), SIZE)
    assert len(tracker.at(last_s + 0.5)) == 0


def test_two_misses_are_believed_however_fast_they_come() -> None:
    tracker = new()
    last_s = watch(tracker, still, 2.0)
    for misses, published in ((1, 1), (2, 0)):
        tracker.apply(last_s + misses * FRAME_S, Detections.none(), SIZE)
        assert len(tracker.at(last_s + misses * FRAME_S)) == published


def test_without_a_detector_tracks_stay_for_a_while_and_then_go() -> None:
    tracker = new(lost_s=2.0)
    last_s = watch(tracker, still, 2.0)
    assert len(tracker.at(last_s + 2.0)) == 1
    assert len(tracker.at(last_s + 3.0)) == 0
    assert tracker.counters.ended == 0, "asking changes nothing"


def test_rare_detections_do_not_end_tracks() -> None:
    """One look in 3 s although a lost track is forgotten after 2: it was never lost."""
    tracker = new(lost_s=2.0)
    for k in range(4):
        tracker.apply(3.0 * k, seen(still(0)), SIZE)
    assert tracker.at(9.0).ids.tolist() == [1]
    assert len(tracker.at(12.5)) == 1


def test_a_lost_track_ends_after_lost_s() -> None:
    tracker = new(lost_s=1.0)
    last_s = watch(tracker, still, 1.0)
    for k in range(1, 8):
        tracker.apply(last_s + k * KEYFRAME_S, Detections.none(), SIZE)
    assert tracker.counters.ended == 1
    for k in range(8, 10):
        tracker.apply(last_s + k * KEYFRAME_S, seen(still(0)), SIZE)
    assert tracker.at(last_s + 9 * KEYFRAME_S).ids.tolist() == [2]


def test_occlusion_shorter_than_lost_s_keeps_the_id() -> None:
    tracker = new(lost_s=2.0)
    for k in range(40):
        time_s = k * KEYFRAME_S
        hidden = 3.0 < time_s < 4.5
        tracker.apply(time_s, Detections.none() if hidden else seen(walker(time_s)), SIZE)
    tracks = tracker.at(39 * KEYFRAME_S)
    assert tracks.ids.tolist() == [1]
    assert tracker.counters.born == 1


def test_reset_ends_everything_and_ids_go_on() -> None:
    tracker = new()
    watch(tracker, still, 1.0)
    tracker.reset()
    assert tracker.last_detection_s is None
    assert len(tracker.at(1.0)) == 0
    assert tracker.counters.ended == 1
    tracker.apply(0.0, seen(still(0), score=0.9), SIZE)
    assert tracker.at(0.0).ids.tolist() == [2]


def test_age_and_score() -> None:
    tracker = new()
    last_s = watch(tracker, still, 2.0)
    tracks = tracker.at(last_s + 0.5)
    assert tracks.ages_s[0] == pytest.approx(last_s + 0.5)
    assert tracks.scores[0] == 0.5


# ---- traps


def test_bad_boxes_are_refused_and_counted() -> None:
    boxes = np.array(
        [
            [10, 10, 50, 90],
            [np.nan, 10, 50, 90],
            [10, 10, np.inf, 90],
            [-np.inf, 10, np.inf, 90],
            [50, 10, 50, 90],
            [50, 90, 10, 10],
            [200, 10, 250, 90],
        ],
        np.float32,
    )
    scores = np.array([0.9, 0.9, 0.9, 0.9, 0.9, 0.9, np.nan], np.float32)
    tracker = new()
    tracker.apply(0.0, Detections(boxes, scores, np.zeros(7, np.int32)), SIZE)
    assert tracker.counters.refused == 6
    assert len(tracker.at(0.0)) == 1


def test_boxes_are_clipped_to_the_picture() -> None:
    tracker = new()
    tracker.apply(0.0, seen((0, 0, 100, 100), (-500, 50, 100, 100), score=0.9), SIZE)
    assert tracker.at(0.0).boxes.tolist() == [[0.0, 0.0, 50.0, 50.0]]


def test_an_object_that_leaves_is_published_no_more() -> None:
    tracker = new()
    last_s = watch(tracker, lambda time_s: (1100.0 + 90.0 * time_s, 300.0, 40.0, 100.0), 2.0)
    boxes = tracker.at(last_s + 0.2).boxes
    assert 0.0 < boxes[0, 2] - boxes[0, 0] < 40.0
    assert len(tracker.at(last_s + 2.0)) == 0


@pytest.mark.parametrize("again_s", [0.5, 0.2])
def test_detections_that_are_not_newer_are_discarded(again_s: float) -> None:
    tracker = new()
    tracker.apply(0.5, seen(still(0), score=0.9), SIZE)
    tracker.apply(again_s, seen((900, 300, 40, 100), score=0.9), SIZE)
    assert tracker.counters.discarded == 1
    assert tracker.counters.applied == 1
    assert len(tracker.at(0.6)) == 1


def test_detections_older_than_the_history_are_discarded() -> None:
    tracker = new(history_s=1.0)
    tracker.apply(5.0, seen(still(0), score=0.9), SIZE, now_s=6.5)
    assert tracker.counters.discarded == 1
    assert tracker.last_detection_s is None
    tracker.apply(5.6, seen(still(0), score=0.9), SIZE, now_s=6.5)
    assert tracker.counters.applied == 1


@pytest.mark.parametrize("time_s", [float("nan"), float("inf")])
def test_a_time_that_is_none_is_an_error(time_s: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        new().apply(time_s, Detections.none(), SIZE)


def test_ten_seconds_without_anything() -> None:
    """Longer than any memory: what is seen then is new, even at the same place."""
    tracker = new(lost_s=2.0)
    last_s = watch(tracker, still, 2.0)
    tracker.apply(last_s + 10.0, seen(still(0), score=0.9), SIZE)
    assert tracker.at(last_s + 10.0).ids.tolist() == [2]
    assert tracker.counters.ended == 1


def test_a_new_resolution_keeps_the_tracks() -> None:
    tracker = new()
    last_s = watch(tracker, walker, 2.0)
    half = (640, 360)
    before = tracker.at(last_s + 0.1)
    after = tracker.at(last_s + 0.1, half)
    np.testing.assert_allclose(after.boxes, before.boxes / 2, rtol=1e-5)
    np.testing.assert_allclose(after.velocities, before.velocities / 2, rtol=1e-5)
    x, y, w, h = walker(last_s + KEYFRAME_S)
    tracker.apply(last_s + KEYFRAME_S, seen((x / 2, y / 2, w / 2, h / 2)), half)
    assert tracker.at(last_s + KEYFRAME_S).ids.tolist() == [1]
    assert centres(tracker.at(last_s + KEYFRAME_S))[0] == pytest.approx([x / 2, y / 2], abs=1.0)


def test_another_shape_of_picture_is_another_scene() -> None:
    tracker = new()
    last_s = watch(tracker, still, 2.0)
    assert len(tracker.at(last_s + 0.1, (720, 1280))) == 0
    tracker.apply(last_s + KEYFRAME_S, seen(still(0), score=0.9), (720, 1280))
    assert tracker.at(last_s + KEYFRAME_S).ids.tolist() == [2]


def test_five_hundred_boxes() -> None:
    tracker = new()
    xs, ys = np.meshgrid(np.arange(25) * 50.0 + 30, np.arange(20) * 35.0 + 20)
    for k in range(4):
        grid = [(float(x) + k, float(y), 20.0, 30.0) for x, y in zip(xs.flat, ys.flat, strict=True)]
        tracker.apply(k * KEYFRAME_S, seen(*grid), SIZE)
    assert sorted(tracker.at(0.5).ids.tolist()) == list(range(1, 501))


def test_five_hundred_boxes_on_one_heap_that_jumps_take_bounded_time() -> None:
    """All overlap with many others, and the camera jolts each time; 0.03 s on an idle core."""
    tracker = new()
    rng = np.random.default_rng(5)
    heap = rng.uniform((200.0, 200.0), (800.0, 500.0), (500, 2))
    spent_s = []
    for k in range(6):
        places = heap + rng.normal(0.0, 30.0, 2)
        started_s = time.perf_counter()
        boxes = [(float(x), float(y), 40.0, 100.0) for x, y in places]
        tracker.apply(k * KEYFRAME_S, seen(*boxes), SIZE)
        spent_s.append(time.perf_counter() - started_s)
    assert min(spent_s[2:]) < 1.0


def test_a_mad_detector_does_not_fill_the_memory() -> None:
    tracker = new()
    rng = np.random.default_rng(0)
    for k in range(15):
        boxes = [(float(x), float(y), 3.0, 3.0) for x, y in rng.uniform(0, 700, (300, 2))]
        tracker.apply(k * 1e-3, seen(*boxes, score=0.99), SIZE)
    alive = tracker.counters.born - tracker.counters.ended
    assert alive <= 1000


# ---- doubt


def test_doubt_without_motion_measured_is_as_configured() -> None:
    """The whole of it is in tests/test_tracking_flow.py."""
    tracker = new()
    assert tracker.doubt(0.0) == 1.0, "nothing is known"
    tracker.apply(0.0, Detections.none(), SIZE)
    assert tracker.doubt(0.5) == 0.5, "an empty scene, but nobody looks at it"


# ---- weak detections


def test_weak_detections_carry_a_track_but_are_not_its_confidence() -> None:
    tracker = new(confidence=0.4)
    tracker.apply(0.0, seen(still(0), score=0.8), SIZE)
    for k in range(1, 5):
        tracker.apply(k * KEYFRAME_S, seen(still(0), score=0.15), SIZE)
        tracks = tracker.at(k * KEYFRAME_S)
        assert len(tracks) == 1
        assert tracks.scores[0] == pytest.approx(0.8)


def test_weak_detections_alone_do_not_keep_a_track_in_view_for_ever() -> None:
    tracker = new(confidence=0.4, lost_s=1.0)
    tracker.apply(0.0, seen(still(0), score=0.8), SIZE)
    shown = []
    for k in range(1, 13):
        tracker.apply(k * KEYFRAME_S, seen(still(0), score=0.15), SIZE)
        shown.append(len(tracker.at(k * KEYFRAME_S)))
    assert shown[:5] == [1] * 5
    assert shown[-1] == 0
    tracker.apply(13 * KEYFRAME_S, seen(still(0), score=0.6), SIZE)
    back = tracker.at(13 * KEYFRAME_S)
    assert back.ids.tolist() == [1]
    assert back.scores[0] == pytest.approx(0.6)


def test_no_published_score_is_below_its_level() -> None:
    rng = np.random.default_rng(4)
    tracker = new(confidence=0.5)
    for k in range(60):
        score = float(rng.uniform(0.1, 1.0))
        tracker.apply(k * KEYFRAME_S, seen(walker(k * KEYFRAME_S), score=score), SIZE)
        assert (tracker.at(k * KEYFRAME_S).scores >= 0.5).all()
