"""Motion measured in pictures, from the estimator through the tracker to its answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.linalg import expm

from tests.lab.moving import Board, MovingScene, line, overlap, still
from vidserve.capture.motion import MotionEstimator
from vidserve.frames import Detections, FloatArray, MotionStep, Tracks
from vidserve.tracking.flow import Anchored, Mask, panned
from vidserve.tracking.kalman import RATE_SPREAD, TAU_S, Array, Motion
from vidserve.tracking.tracker import Tracker, TrackerSettings

FPS = 25
SIZE = (640, 360)
Place = Callable[[float], tuple[float, float]]


def detected(boxes: FloatArray, score: float = 0.9) -> Detections:
    count = len(boxes)
    scores = np.full(count, score, np.float32)
    return Detections(boxes.astype(np.float32), scores, np.zeros(count, np.int32))


class Played:
    """A scene through estimator and tracker, perfect detections of what ``visible`` says."""

    def __init__(
        self,
        scene: MovingScene,
        until_s: float,
        interval: int = 10,
        delay_s: float = 0.0,
        visible: Callable[[int, float], bool] = lambda board, time_s: True,
        last_s: float = 1e9,
    ) -> None:
        self.tracker = Tracker(TrackerSettings())
        self.times: list[float] = []
        self.answers: list[Tracks] = []
        self.doubts: list[float] = []
        estimator = MotionEstimator()
        ready: list[tuple[float, Detections, MotionStep | None]] = []
        for frame in range(round(until_s * FPS) + 1):
            now_s = frame / FPS
            step = estimator.step(scene.grey(now_s), now_s, SIZE, self.tracker.regions())
            self.doubts.append(self.tracker.doubt(now_s, step))
            if frame % interval == 0 and now_s <= last_s:
                boxes = scene.boxes(now_s)
                seen = [k for k in range(len(boxes)) if visible(k, now_s)]
                ready.append((now_s, detected(boxes[seen]), step))
            while ready and ready[0][0] + delay_s <= now_s + 1e-9:
                then_s, found, then = ready.pop(0)
                self.tracker.apply(then_s, found, SIZE, now_s, then)
            self.times.append(now_s)
            self.answers.append(self.tracker.at(now_s, SIZE, step))

    def worst(self, scene: MovingScene, from_s: float, board: int = 0, ident: int = 1) -> float:
        """The least overlap of an id with a board."""
        least = 1.0
        for now_s, tracks in zip(self.times, self.answers, strict=True):
            if now_s < from_s:
                continue
            of = tracks.boxes[tracks.ids == ident]
            truth = scene.boxes(now_s)[board : board + 1]
            least = min(least, float(overlap(of, truth)[0]) if len(of) else 0.0)
        return least


def walk_and_stop(time_s: float) -> tuple[float, float]:
    return 150 + 120 * min(time_s, 1.28), 180.0


@pytest.mark.parametrize(
    "board",
    [
        Board(60, 120, line(120, 180, 110, 0)),
        Board(60, 120, walk_and_stop),
        Board(60, 120, still(320, 180), lambda t: 1 + 0.25 * t),
        Board(80, 160, still(320, 180), lambda t: 1 - 0.15 * t),
    ],
    ids=["walks", "stops", "grows", "shrinks"],
)
def test_boxes_stay_on_the_object_between_keyframes(board: Board) -> None:
    scene = MovingScene([board], noise=2.0)
    assert Played(scene, 2.4).worst(scene, 0.2) > 0.85


def shaking(time_s: float) -> tuple[float, float]:
    return 6 * np.sin(23 * time_s), 4 * np.cos(31 * time_s)


def panning(time_s: float) -> tuple[float, float]:
    return 70 * time_s, 0.0


@pytest.mark.parametrize("camera", [shaking, panning])
def test_motion_of_the_camera_is_not_the_objects(camera: Place) -> None:
    boards = [Board(60, 120, still(400, 180)), Board(60, 120, line(100, 180, 100, 0))]
    scene = MovingScene(boards, camera=camera)
    played = Played(scene, 2.4)
    assert played.worst(scene, 0.2) > 0.85
    assert played.worst(scene, 0.2, 1, 2) > 0.8
    rates = played.answers[-1].velocities
    assert np.abs(rates[0]).max() < 12
    assert rates[1, 0] == pytest.approx(100, abs=15)


def test_without_trusted_flow_a_box_glides_relative_to_the_camera() -> None:
    """A plain board has nothing to follow; detections told its rate, the grid the camera's."""
    boards = [Board(60, 120, line(300, 180, 60, 0), contrast=0.0)]
    turning = MovingScene(boards, camera=lambda t: (0.0 if t < 1.6 else 150 * (t - 1.6), 0.0))
    played = Played(turning, 2.2, interval=5, last_s=1.6)
    assert played.worst(turning, 0.3) > 0.6


@pytest.mark.parametrize("hidden_s", [0.5, 1.0, 1.5])
def test_who_is_hidden_comes_back_as_himself(hidden_s: float) -> None:
    """Behind a wide board that stands; its flow must not hold the walker."""
    walker = Board(40, 100, line(60, 180, 120, 0))
    wall = Board(round(40 + 120 * hidden_s), 200, still(300, 180))
    scene = MovingScene([walker, wall])
    half = wall.width / 2 - 15

    def visible(board: int, time_s: float) -> bool:
        return board == 1 or abs(walker.centre(time_s)[0] - 300) > half

    played = Played(scene, 4.0, interval=5, visible=visible)
    last = played.answers[-1]
    assert sorted(last.ids.tolist()) == [1, 2]
    ended = overlap(last.boxes[np.argsort(last.ids)], scene.boxes(played.times[-1]))
    assert (ended > 0.8).all()


@pytest.mark.parametrize("interval", [3, 10])
def test_two_who_cross_keep_their_ids(interval: int) -> None:
    boards = [Board(44, 110, line(140, 180, 120, 0)), Board(44, 110, line(500, 184, -120, 0))]
    scene = MovingScene(boards)

    def visible(board: int, time_s: float) -> bool:
        x = [board.centre(time_s)[0] for board in boards]
        return board == 1 or abs(x[0] - x[1]) > 26

    played = Played(scene, 3.2, interval, visible=visible)
    last = played.answers[-1]
    assert last.ids.tolist() == [1, 2]
    assert (overlap(last.boxes, scene.boxes(played.times[-1])) > 0.75).all()


@pytest.mark.parametrize(("delay_s", "least"), [(0.03, 0.8), (0.1, 0.8), (0.3, 0.7)])
def test_late_detections_are_carried_to_now(delay_s: float, least: float) -> None:
    """He turns round between detections: only what was measured since knows."""

    def there_and_back(time_s: float) -> tuple[float, float]:
        return 320 + 60 * np.sin(2.6 * time_s), 180.0

    scene = MovingScene([Board(60, 120, there_and_back)])
    # The second detection is known by then: of a box so new that no picture since its instant
    # was searched, flow over 0.3 s at once may fail.
    assert Played(scene, 3.0, delay_s=delay_s).worst(scene, 0.44 + delay_s) > least


# ---- doubt


def test_a_still_scene_with_noise_is_quiet() -> None:
    scene = MovingScene([Board(60, 120, still(200, 180)), Board(60, 120, still(400, 180))])
    scene.noise = 3.0
    assert max(Played(scene, 2.4).doubts[FPS // 2 :]) == 0.0


def test_who_moves_is_looked_at_as_often_as_asked() -> None:
    scene = MovingScene([Board(60, 120, line(100, 180, 110, 0))])
    doubts = np.array(Played(scene, 2.4).doubts)
    late = doubts[16::10]  # five frames and more after each keyframe
    assert (late >= 0.5).all()
    assert (late < 1.0).all()


def test_a_newcomer_startles() -> None:
    """Motion outside all boxes, after two seconds of nothing."""
    newcomer = Board(90, 150, lambda t: (-100.0 if t < 2 else -100 + 300 * (t - 2), 180.0))
    scene = MovingScene([Board(60, 120, still(400, 180)), newcomer])
    doubts = Played(scene, 2.8, visible=lambda board, time_s: board == 0).doubts
    assert max(doubts[FPS : 2 * FPS]) == 0.0
    assert max(doubts[2 * FPS :]) > 0.75


@pytest.mark.parametrize(
    ("size", "speed"), [((24, 48), 20.0), ((24, 48), 200.0), ((150, 90), 60.0)]
)
def test_whoever_comes_in_is_noticed_within_a_third_of_a_second(
    size: tuple[int, int], speed: float
) -> None:
    """The grid's 48 points alone never had two on a small thing, nor a speed below 20 px/s."""
    enters_s = 1.5

    def place(time_s: float) -> tuple[float, float]:
        return (-size[0] / 2 + speed * max(time_s - enters_s, 0.0), 150.0)

    scene = MovingScene([Board(*size, place), Board(60, 120, still(400, 180))])
    played = Played(scene, 4.0, visible=lambda board, time_s: board == 1)
    whole_s = enters_s + size[0] / speed  # all of it is in the picture
    times = np.array(played.times)
    noticed = times[(np.array(played.doubts) >= 0.5) & (times >= enters_s)]
    assert len(noticed)
    assert noticed[0] <= whole_s + 0.34


def test_another_scene_is_doubt_itself() -> None:
    scene = MovingScene([Board(60, 120, still(200, 180))])
    other = MovingScene([Board(60, 120, still(200, 180))], seed=9)
    tracker, estimator = Tracker(TrackerSettings()), MotionEstimator()
    estimator.step(scene.grey(0.0), 0.0, SIZE, None)
    tracker.apply(0.0, detected(scene.boxes(0.0)), SIZE)
    step = estimator.step(scene.grey(0.04), 0.04, SIZE, tracker.regions())
    assert tracker.doubt(0.04, step) == 0.0
    step = estimator.step(other.grey(0.08), 0.08, SIZE, tracker.regions())
    assert tracker.doubt(0.08, step) == 1.0


def test_who_was_just_missed_is_looked_for_and_then_keeps_nobody_awake() -> None:
    scene = MovingScene([Board(60, 120, still(200, 180)), Board(60, 120, still(400, 180))])
    played = Played(scene, 4.0, visible=lambda board, time_s: board == 0 or time_s < 0.7)
    assert min(played.doubts[int(0.9 * FPS) : int(1.5 * FPS)]) >= 0.5
    assert played.doubts[-1] == 0.0


# ---- the arithmetic


def made(count: int, seed: int = 0) -> Motion:
    rng = np.random.default_rng(seed)
    boxes = np.column_stack((rng.uniform(50, 600, (count, 2)), rng.uniform(20, 90, (count, 2))))
    motion = Motion.starting(boxes).predicted(0.3)
    return motion.corrected(np.arange(count), motion.position + rng.normal(0, 3, (count, 4)))


@pytest.mark.parametrize("dt_s", [0.04, 0.5, 3.0])
def test_a_displacement_is_the_textbooks_update(dt_s: float) -> None:
    """Kalman on the joint state of both instants, with dense matrices."""
    motion = made(2)
    change = np.array([[7.0, -3.0, 2.0, -1.0]])
    variance = np.array([[16.0]])
    got = motion.displaced(dt_s, np.array([1]), change, variance)
    size = motion.position[1, 2:].max()
    for k in range(4):
        drift = np.array([[0.0, 1.0], [0.0, -1.0 / TAU_S]])
        noise = np.diag([0.0, 2.0 * (RATE_SPREAD[k] * size) ** 2 / TAU_S])
        block = expm(np.block([[-drift, noise], [np.zeros((2, 2)), drift.T]]) * dt_s)
        move = block[2:, 2:].T
        process = move @ block[:2, 2:]
        start = np.array([motion.position[1, k], motion.rate[1, k]])
        pp, pr, rr = motion.pp[1, k], motion.pr[1, k], motion.rr[1, k]
        before = np.array([[pp, pr], [pr, rr]])
        joint = np.block(
            [[before, before @ move.T], [move @ before, move @ before @ move.T + process]]
        )
        observe = np.array([[-1.0, 0.0, 1.0, 0.0]])
        mean = np.concatenate((start, move @ start))
        gain = joint @ observe.T / (observe @ joint @ observe.T + variance)
        mean = mean + gain[:, 0] * (change[0, k] - observe @ mean)
        after = (np.eye(4) - gain @ observe) @ joint
        assert [got.position[1, k], got.rate[1, k]] == pytest.approx(mean[2:].tolist())
        found = [got.pp[1, k], got.pr[1, k], got.rr[1, k]]
        assert found == pytest.approx([after[2, 2], after[2, 3], after[3, 3]], rel=1e-6)
    np.testing.assert_array_equal(got.position[0], motion.predicted(dt_s).position[0])


def step_for(seq: int | None, boxes: FloatArray | Array, good: Mask | None = None) -> MotionStep:
    count = len(boxes)
    fine = np.ones(count, np.bool_) if good is None else good
    return MotionStep(
        from_s=0.0,
        to_s=0.2,
        regions_seq=seq,
        ids=np.arange(1, count + 1, dtype=np.int32),
        shift=np.zeros((count, 2), np.float32),
        scale=np.ones(count, np.float32),
        trusted=fine,
        failed=~fine,
        residual=np.zeros(count, np.float32),
        boxes=boxes.astype(np.float32),
        unbroken=fine,
        camera=np.eye(2, 3, dtype=np.float32),
        camera_trusted=True,
        camera_since=np.eye(2, 3),
        camera_unbroken=True,
        outside=0.0,
        changed=0.0,
        scene_change=False,
        points=16 * count,
    )


def crowd(count: int) -> FloatArray:
    k = np.arange(count)
    x, y = 30.0 * (k % 40), 40.0 * (k // 40)
    return np.column_stack((x, y, x + 20, y + 30)).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, 20, 500])
def test_any_number_of_tracks(count: int) -> None:
    tracker = Tracker(TrackerSettings())
    tracker.apply(0.0, detected(crowd(count)), (1280, 720))
    regions = tracker.regions()
    assert regions is not None
    step = step_for(regions.seq, crowd(count) + np.float32(6.0))
    shown = tracker.at(0.2, None, step)
    assert len(shown) == count
    if count:
        assert (shown.boxes[:, 0] - crowd(count)[:, 0]).min() > 4.0
    tracker.apply(0.2, detected(crowd(count) + np.float32(6.0)), (1280, 720), step=step)
    assert sorted(tracker.at(0.2).ids.tolist()) == list(range(1, count + 1))


def test_a_step_for_others_says_nothing() -> None:
    tracker = Tracker(TrackerSettings())
    tracker.apply(0.0, detected(crowd(5)), SIZE)
    plain = tracker.at(0.2).boxes
    for step in (None, step_for(77, crowd(5) + np.float32(9.0)), step_for(None, crowd(0))):
        np.testing.assert_array_equal(tracker.at(0.2, None, step).boxes, plain)
        assert tracker.doubt(0.2, step) == 0.5


def test_a_step_for_the_regions_before_serves_as_well() -> None:
    """Capture threads hear of new regions late, above all of those of late detections."""
    tracker = Tracker(TrackerSettings())
    tracker.apply(0.0, detected(crowd(5)), SIZE)
    regions = tracker.regions()
    assert regions is not None
    at_anchor = step_for(regions.seq, crowd(5) + np.float32(5.0))
    tracker.apply(0.2, detected(crowd(5) + np.float32(5.0)), SIZE, step=at_anchor)
    later = step_for(regions.seq, crowd(5) + np.float32(2.0))  # they turned
    expected = crowd(5) + np.float32(2.0)
    inner = slice(1, 5)
    off = np.abs(tracker.at(0.4, None, later).boxes - expected)[inner].max()
    assert off < 2.0 < np.abs(tracker.at(0.4).boxes - expected)[inner].max()


def test_the_model_pairs_and_flow_measures() -> None:
    """Flow slid from a walker to the one in front of him, who stands: he keeps his own box."""
    tracker = Tracker(TrackerSettings())
    step = None
    for k in range(4):
        x = 100.0 + 30 * k
        boxes = np.array([[x, 100, x + 40, 200], [240, 100, 280, 200]], np.float32)
        if k == 3:
            regions = tracker.regions()
            assert regions is not None
            wrong = np.array([[220, 100, 260, 200], [240, 100, 280, 200]])
            step = step_for(regions.seq, wrong)
        tracker.apply(0.3 * k, detected(boxes), SIZE, step=step)
    shown = tracker.at(0.9)
    assert shown.ids.tolist() == [1, 2]
    assert shown.boxes[0, 0] == pytest.approx(190, abs=25)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        np.float32, (4, 4), elements=st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))
    ),
    arrays.arrays(np.bool_, 4),
    st.sampled_from([0.0, 1e-6, 0.2, 10.0]),
)
def test_nothing_that_a_step_says_breaks_a_tracker(
    boxes: FloatArray, good: Mask, dt_s: float
) -> None:
    tracker = Tracker(TrackerSettings())
    tracker.apply(0.0, detected(crowd(4)), SIZE)
    regions = tracker.regions()
    assert regions is not None
    step = step_for(regions.seq, boxes, good)
    shown = tracker.at(dt_s, None, step)
    assert np.isfinite(shown.boxes).all()
    assert np.isfinite(shown.velocities).all()
    assert 0.0 <= tracker.doubt(dt_s, step) <= 1.0
    if dt_s:
        tracker.apply(dt_s, detected(crowd(4)), SIZE, step=step)
        assert np.isfinite(tracker.at(dt_s + 0.1).boxes).all()
        again = tracker.regions()
        assert again is not None
        assert np.isfinite(again.boxes).all()


def test_the_camera_alone_carries_boxes() -> None:
    camera = np.array([[1.1, 0.0, 5.0], [0.0, 1.1, -3.0]])
    got = panned(np.array([[100.0, 50.0, 20.0, 40.0]]), camera)
    np.testing.assert_allclose(got, [[115.0, 52.0, 22.0, 44.0]])
    start = np.array([[100.0, 50.0, 20.0, 40.0]])
    anchored = Anchored(3, np.array([0]), start)
    step = replace(step_for(3, np.array([[104.0, 30, 126, 74]])), camera_since=camera)
    moved = anchored.measured(step)
    assert moved is not None
    np.testing.assert_allclose(moved.change, 0.0, atol=1e-9)


def test_cost_with_twenty_tracks() -> None:
    """Ten times what is measured on one idle core (0.12 ms and 0.41 ms)."""
    tracker = Tracker(TrackerSettings())
    spent_at, spent_apply = [], []
    step = None
    for k in range(60):
        began_s = time.perf_counter()
        tracker.apply(0.2 * k, detected(crowd(20) + np.float32(k)), (1280, 720), step=step)
        spent_apply.append(time.perf_counter() - began_s)
        regions = tracker.regions()
        assert regions is not None
        step = step_for(regions.seq, regions.boxes + np.float32(1.0))
        began_s = time.perf_counter()
        tracker.at(0.2 * k + 0.1, None, step)
        spent_at.append(time.perf_counter() - began_s)
    assert np.median(spent_at) < 1.2e-3
    assert np.median(spent_apply) < 4e-3
