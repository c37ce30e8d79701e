"""Motion and identity: simulated scenes with known truth."""

from __future__ import annotations

import numpy as np
import pytest

from tests.test_tracking_tracker import (
    FRAME_S,
    KEYFRAME_S,
    SIZE,
    Box,
    centres,
    new,
    seen,
    still,
    walker,
    watch,
)
from vidserve.frames import Detections

# ---- motion


def test_a_walker_is_followed_between_keyframes() -> None:
    tracker = new()
    last_s = watch(tracker, walker, 3.0)
    for frame in range(6):
        time_s = last_s + frame * FRAME_S
        error = centres(tracker.at(time_s))[0] - walker(time_s)[:2]
        assert np.abs(error).max() < 3.0
    assert tracker.at(last_s).velocities[0] == pytest.approx([90.0, 0.0], abs=9.0)


@pytest.mark.parametrize("noise_px", [1.0, 2.0])
@pytest.mark.parametrize("height_px", [60.0, 200.0])
def test_a_still_object_stays_still(noise_px: float, height_px: float) -> None:
    """No drift from a noisy rate: 40 s, detections six times a second, asked at 30 fps."""
    rng = np.random.default_rng(1)
    tracker = new()
    errors, speeds = [], []
    for k in range(240):
        cx, cy, w, h = rng.normal((400.0, 300.0, 0.5 * height_px, height_px), noise_px)
        tracker.apply(k * KEYFRAME_S, seen((cx, cy, w, h)), SIZE)
        for frame in range(5):
            tracks = tracker.at(k * KEYFRAME_S + frame * FRAME_S)
            if k > 0:
                errors.append(np.abs(centres(tracks)[0] - (400.0, 300.0)).max())
                speeds.append(np.hypot(*tracks.velocities[0]))
    # A raw detection is off by over 3 sigma now and then; so may be the answer, hardly more.
    assert max(errors) < 4.5 * noise_px
    assert np.mean(errors) < 1.2 * noise_px
    assert np.median(speeds) < 0.08 * height_px, "a walker has 0.5 to 0.8 heights a second"
    assert tracker.counters.born == 1


def test_a_fast_small_object_is_caught() -> None:
    """A ball of 20 px that moves 22 px between keyframes: its boxes never overlap."""
    tracker = new()
    last_s = watch(tracker, lambda time_s: (100.0 + 132.0 * time_s, 300.0, 20.0, 20.0), 3.0)
    assert tracker.counters.born == 1
    assert tracker.at(last_s).velocities[0] == pytest.approx([132.0, 0.0], abs=14.0)


def test_without_detections_motion_glides_out() -> None:
    tracker = new(lost_s=100.0)
    last_s = watch(tracker, walker, 2.0)
    xs = [centres(tracker.at(last_s + after_s))[0, 0] for after_s in (0.0, 1.0, 20.0, 90.0)]
    assert 70.0 < xs[1] - xs[0] < 90.0
    assert xs[3] - xs[0] < 90.0 * 4.5, "no farther than the time constant times its speed"
    assert xs[3] - xs[2] < 5.0
    assert np.hypot(*tracker.at(last_s + 90.0).velocities[0]) < 0.1


@pytest.mark.parametrize("delay_s", [0.03, 0.1, 0.3])
def test_late_detections_give_answers_for_now(delay_s: float) -> None:
    tracker = new()
    errors, stale = [], []
    waiting: list[tuple[float, Detections]] = []
    for frame in range(120):
        now_s = frame * FRAME_S
        if frame % 5 == 0:
            waiting.append((now_s, seen(walker(now_s))))
        while waiting and waiting[0][0] + delay_s <= now_s + 1e-9:
            captured_s, detections = waiting.pop(0)
            tracker.apply(captured_s, detections, SIZE, now_s)
        if now_s > 2.0:
            errors.append(abs(centres(tracker.at(now_s))[0, 0] - walker(now_s)[0]))
            assert tracker.last_detection_s is not None
            stale.append(walker(now_s)[0] - walker(tracker.last_detection_s)[0])
    assert max(errors) < 6.0
    assert max(errors) < 0.3 * max(stale), "much nearer than the last detection"
    assert tracker.counters.discarded == 0


def test_asking_never_changes_what_comes() -> None:
    asked, silent = new(), new()
    rng = np.random.default_rng(3)
    for k in range(40):
        time_s = k * KEYFRAME_S
        found = seen(tuple(rng.normal(walker(time_s), 1.5)), score=float(rng.uniform(0.2, 0.9)))
        for tracker in (asked, silent):
            tracker.apply(time_s, found, SIZE)
        for offset_s in (-1.0, 0.0, 0.1, 5.0):
            asked.at(time_s + offset_s)
            asked.doubt(time_s + offset_s)
    one, other = asked.at(7.0), silent.at(7.0)
    np.testing.assert_array_equal(one.boxes, other.boxes)
    np.testing.assert_array_equal(one.ids, other.ids)
    assert asked.counters == silent.counters


def test_an_instant_before_the_last_detection_is_answered_with_it() -> None:
    tracker = new()
    last_s = watch(tracker, walker, 2.0)
    np.testing.assert_array_equal(tracker.at(last_s - 0.4).boxes, tracker.at(last_s).boxes)


# ---- identity


@pytest.mark.parametrize("noise_px", [0.0, 1.5])
def test_two_who_cross_keep_their_ids(noise_px: float) -> None:
    rng = np.random.default_rng(5)
    tracker = new()
    order: list[int] = []
    for k in range(60):
        time_s = k * KEYFRAME_S
        left, right = 300.0 + 60.0 * time_s, 900.0 - 60.0 * time_s
        found = seen((left, 300, 40, 100), (right, 306, 42, 104))
        found.boxes[:] += rng.normal(0.0, noise_px, found.boxes.shape).astype(np.float32)
        tracker.apply(time_s, found, SIZE)
        tracks = tracker.at(time_s)
        if k == 2:
            order = tracks.ids[np.argsort(centres(tracks)[:, 0])].tolist()
    tracks = tracker.at(59 * KEYFRAME_S)
    assert tracks.ids[np.argsort(centres(tracks)[:, 0])].tolist() == order[::-1]
    assert tracker.counters.born == 2


def test_crossing_while_one_hides_the_other() -> None:
    tracker = new()
    start: list[int] = []
    for k in range(60):
        time_s = k * KEYFRAME_S
        left, right = 300.0 + 60.0 * time_s, 900.0 - 60.0 * time_s
        both: list[Box] = [(left, 300, 40, 100), (right, 306, 42, 104)]
        tracker.apply(time_s, seen(*(both if abs(left - right) > 25 else both[1:])), SIZE)
        if k == 5:
            start = tracker.at(time_s).ids[np.argsort(centres(tracker.at(time_s))[:, 0])].tolist()
    tracks = tracker.at(59 * KEYFRAME_S)
    assert tracks.ids[np.argsort(centres(tracks)[:, 0])].tolist() == start[::-1]


def test_a_flipping_class_is_one_object_of_the_voted_class() -> None:
    tracker = new()
    for k in range(20):
        wrong = k % 3 == 2
        found = seen(walker(k * 0.2), score=0.6, classes=7 if wrong else 2)
        tracker.apply(k * 0.2, found, SIZE)
        if k > 1:
            assert tracker.at(k * 0.2).classes.tolist() == [2]
    assert tracker.counters.born == 1


def test_old_votes_fade() -> None:
    """A minute as class 2, then twelve seconds as class 7: the present counts for more."""
    tracker = new()
    for k in range(360):
        tracker.apply(k * 0.2, seen(still(0), classes=2 if k < 300 else 7), SIZE)
    assert tracker.at(72.0).classes.tolist() == [7]


def test_rider_and_bicycle_stay_themselves() -> None:
    """Two classes on nearly the same spot, and each is missed at times."""
    tracker = new()
    rng = np.random.default_rng(8)
    for k in range(60):
        time_s = k * KEYFRAME_S
        x = 200.0 + 100.0 * time_s
        rider: Box = (x, 280, 45, 110)
        bicycle: Box = (x + 3, 320, 100, 70)
        miss = rng.integers(0, 6)
        shown = [(rider, 0), (bicycle, 1)]
        if miss < 2:
            shown.pop(int(miss))
        tracker.apply(
            time_s, seen(*(box for box, _ in shown), classes=[name for _, name in shown]), SIZE
        )
    tracks = tracker.at(59 * KEYFRAME_S)
    assert tracker.counters.born == 2
    assert sorted(tracks.classes.tolist()) == [0, 1]
    widths = tracks.boxes[:, 2] - tracks.boxes[:, 0]
    assert tracks.classes[widths.argmax()] == 1


def test_a_second_box_does_not_take_the_identity() -> None:
    """A detector gives two boxes for one person now and then; the single one after it is hers."""
    tracker = new()
    rng = np.random.default_rng(11)
    for k in range(60):
        time_s = k * KEYFRAME_S
        x, y, w, h = walker(time_s)
        found: list[Box] = [(x + rng.normal(0.0, 2.0), y, w, h)]
        if k > 2 and k % 4 < 2:
            found.append((x + rng.normal(0.0, 2.0), y + 10.0, w, h - 15.0))
        tracker.apply(time_s, seen(*found, score=[0.6, 0.9][: len(found)]), SIZE)
        if k > 0:
            assert tracker.at(time_s).ids.tolist() == [1]


def test_a_second_person_beside_the_first_is_no_second_box() -> None:
    tracker = new()
    for k in range(4):
        pair: list[Box] = [(400, 300, 40, 100), (418, 300, 40, 100)]
        tracker.apply(k * KEYFRAME_S, seen(*pair), SIZE)
    assert len(tracker.at(3 * KEYFRAME_S)) == 2


@pytest.mark.parametrize("other", ["merged", "cut"])
def test_a_false_box_does_not_throw_a_track_off(other: str) -> None:
    """One box around two people, or one whose legs are hidden: the rate hardly learns from it."""
    tracker = new()
    last_s = watch(tracker, walker, 3.0)
    x, y, w, h = walker(last_s + KEYFRAME_S)
    false: Box = (x + 25.0, y, w + 50.0, h) if other == "merged" else (x, y - 30.0, w, h - 60.0)
    tracker.apply(last_s + KEYFRAME_S, seen(false), SIZE)
    later_s = last_s + 2 * KEYFRAME_S
    error = centres(tracker.at(later_s))[0] - walker(later_s)[:2]
    assert np.abs(error).max() < 12.0, "believed, it would be off by 25 and more"
    tracker.apply(later_s, seen(walker(later_s)), SIZE)
    tracks = tracker.at(later_s)
    assert tracks.ids.tolist() == [1]
    assert tracks.velocities[0] == pytest.approx([90.0, 0.0], abs=20.0)


def test_an_object_that_stops_stops() -> None:
    tracker = new()

    def stopping(time_s: float) -> Box:
        return walker(min(time_s, 3.0))

    errors = []
    for k in range(36):
        time_s = k * KEYFRAME_S
        tracker.apply(time_s, seen(stopping(time_s)), SIZE)
        for frame in range(5):
            now_s = time_s + frame * FRAME_S
            if now_s > 3.5:
                errors.append(abs(centres(tracker.at(now_s))[0, 0] - stopping(now_s)[0]))
    assert max(errors) < 12.0, "a third of a width"
    assert max(errors[len(errors) // 2 :]) < 1.0
    assert tracker.counters.born == 1


@pytest.mark.parametrize("hidden_s", [0.5, 1.0, 1.8])
def test_a_walker_behind_a_wall_comes_back_as_himself(hidden_s: float) -> None:
    """Up to ``lost_s`` (2 s), while another one stands near the place where he comes out."""
    tracker = new()
    for k in range(60):
        time_s = k * KEYFRAME_S
        found = [(900.0, 300.0, 40.0, 100.0)]
        if not 3.0 <= time_s < 3.0 + hidden_s:
            found.append(walker(time_s))
        tracker.apply(time_s, seen(*found), SIZE)
        if k == 2:
            name = int(tracker.at(time_s).ids[np.argmin(centres(tracker.at(time_s))[:, 0])])
        if time_s > 3.0 + hidden_s + KEYFRAME_S and walker(time_s)[0] < 850.0:
            tracks = tracker.at(time_s)
            assert int(tracks.ids[np.argmin(centres(tracks)[:, 0])]) == name
    assert tracker.counters.born == 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("interval_s", [1 / 6, 0.3])
def test_crossing_with_duplicates_and_merged_boxes(seed: int, interval_s: float) -> None:
    """Two cross; where they overlap by half the detector gives one box around both."""
    rng = np.random.default_rng(seed)
    tracker = new()
    order: list[int] = []
    steps = int(10.0 / interval_s)
    for k in range(steps):
        time_s = k * interval_s
        left, right = 300.0 + 70.0 * time_s, 900.0 - 70.0 * time_s
        both: list[Box] = [(left, 300, 40, 100), (right, 306, 42, 104)]
        if abs(left - right) < 15.0:
            both = [((left + right) / 2, 303, 41 + abs(left - right), 102)]
        noisy = [tuple(rng.normal(box, 1.5)) for box in both]
        tracker.apply(time_s, seen(*noisy), SIZE)
        if time_s < 2.0:
            tracks = tracker.at(time_s)
            order = tracks.ids[np.argsort(centres(tracks)[:, 0])].tolist()
    tracks = tracker.at((steps - 1) * interval_s)
    assert tracks.ids[np.argsort(centres(tracks)[:, 0])].tolist() == order[::-1]
