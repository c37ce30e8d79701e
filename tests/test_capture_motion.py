"""Optical flow on rendered scenes whose motion is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.lab.moving import Board, MovingScene, line, overlap, still, texture
from vidserve.capture.motion import MOST_POINTS, MotionEstimator
from vidserve.frames import FloatArray, MotionStep, Regions, Thinning

FPS = 30.0
WALKER = Board(60, 120, line(200, 150, 90, 20))
CAR = Board(90, 60, line(430, 250, -150, 0))


def play(
    scene: MovingScene,
    pictures: int = 10,
    thinning: Thinning = Thinning.FULL,
    republish: bool = False,
    fps: float = FPS,
) -> list[MotionStep]:
    """Steps over so many pictures after the first; the true boxes of the first as regions.

    With ``republish`` those of every picture before, as a tracker without error would.
    """
    estimator = MotionEstimator()
    estimator.thinning = thinning
    steps = []
    for number in range(pictures + 1):
        known = max(0, number - 1) if republish else 0
        step = estimator.step(
            scene.grey(number / fps),
            number / fps,
            (scene.width, scene.height),
            scene.regions(known, known / fps),
        )
        if step is not None:
            steps.append(step)
    return steps


def true_shift(scene: MovingScene, step: MotionStep) -> FloatArray:
    before, after = scene.boxes(step.from_s), scene.boxes(step.to_s)
    shift: FloatArray = (after - before).reshape(-1, 2, 2).mean(axis=1)
    return shift


def camera_error_px(scene: MovingScene, step: MotionStep) -> float:
    """Farthest that a corner of the picture is from where the camera took it."""
    moved = np.array(scene.camera(step.from_s)) - np.array(scene.camera(step.to_s))
    corners = np.array([[x, y] for x in (0, scene.width) for y in (0, scene.height)], float)
    found = corners @ step.camera[:, :2].T + step.camera[:, 2]
    return float(np.abs(found - (corners + moved)).max())


@pytest.mark.parametrize("thinning", list(Thinning))
def test_boxes_follow_what_moves(thinning: Thinning) -> None:
    scene = MovingScene([WALKER, CAR])
    steps = play(scene, thinning=thinning)
    for step in steps:
        assert step.trusted.all() and step.camera_trusted and not step.scene_change
        assert np.abs(step.shift - true_shift(scene, step)).max() < 0.15
        assert step.scale == pytest.approx(np.ones(2), abs=0.01)
        assert step.residual.max() < 0.5
        assert 0 < step.points <= MOST_POINTS
    assert steps[-1].unbroken.all()
    assert overlap(steps[-1].boxes, scene.boxes(steps[-1].to_s)).min() > 0.98


def test_each_level_of_thinning_does_less() -> None:
    scene = MovingScene([WALKER, CAR])
    taken = {level: play(scene, thinning=level) for level in Thinning}
    assert [len(steps) for steps in taken.values()] == [10, 10, 10, 5]
    points = [steps[0].points for steps in taken.values()]
    assert points[0] == points[1] > points[2] == points[3]
    sparse = taken[Thinning.EVERY_SECOND]
    assert [step.to_s - step.from_s for step in sparse] == pytest.approx([2 / FPS] * 5)
    assert [a.to_s for a in sparse[:-1]] == [b.from_s for b in sparse[1:]]


def test_a_still_picture_moves_by_exactly_nothing() -> None:
    scene = MovingScene([Board(60, 120, still(200, 150)), Board(90, 60, still(430, 250))])
    for step in play(scene, 3):
        assert (step.shift == 0).all() and (step.scale == 1).all() and step.trusted.all()
        assert (step.camera == np.eye(2, 3)).all() and step.camera_trusted
        assert (step.boxes == scene.boxes(0.0)).all()
        assert step.outside == 0.0 and not step.scene_change


@pytest.mark.parametrize("noise", [4.0, 12.0])
def test_noise_is_not_motion(noise: float) -> None:
    scene = MovingScene([WALKER, Board(90, 60, still(430, 250))], noise=noise)
    steps = play(scene)
    assert np.mean([step.trusted for step in steps]) > 0.9
    assert overlap(steps[-1].boxes, scene.boxes(steps[-1].to_s)).min() > 0.97
    assert max(step.outside for step in steps) < 0.15


@pytest.mark.parametrize(
    "camera",
    [
        lambda time_s: (150.0 * time_s, -40.0 * time_s),
        lambda time_s: (6 * math.sin(40 * time_s), 4 * math.cos(33 * time_s)),
    ],
    ids=["pan", "shake"],
)
def test_the_camera_is_told_from_the_objects(camera: object) -> None:
    scene = MovingScene([WALKER, CAR], camera=camera)  # type: ignore[arg-type]
    for step in play(scene):
        assert step.camera_trusted and camera_error_px(scene, step) < 0.6
        assert step.trusted.all()
        assert np.abs(step.shift - true_shift(scene, step)).max() < 0.3
        assert step.outside < 0.1


def test_boxes_grow_and_shrink_with_the_object() -> None:
    scene = MovingScene(
        [
            Board(60, 120, still(200, 180), scale=lambda time_s: 1.0 + 0.4 * time_s),
            Board(90, 90, still(450, 180), scale=lambda time_s: 1.0 - 0.4 * time_s),
        ]
    )
    steps = play(scene)
    growth = np.prod([step.scale for step in steps], axis=0)
    assert growth == pytest.approx([1 + 0.4 / 3, 1 - 0.4 / 3], abs=0.04)
    assert overlap(steps[-1].boxes, scene.boxes(10 / FPS)).min() > 0.92


def test_an_object_that_stops_stops() -> None:
    scene = MovingScene([Board(60, 120, lambda time_s: (200 + 90 * min(time_s, 0.2), 150))])
    steps = play(scene, 12)
    assert steps[5].shift[0, 0] == pytest.approx(3.0, abs=0.1)
    assert np.abs([step.shift for step in steps[7:]]).max() < 0.05


def test_what_is_hidden_is_not_trusted_and_what_hides_it_is() -> None:
    front, behind = Board(60, 120, line(350, 200, -150, 0)), Board(60, 110, line(250, 180, 150, 0))
    scene = MovingScene([behind, front])
    steps = play(scene, 20, republish=True)
    error = np.array([np.abs(step.shift - true_shift(scene, step)).max(axis=1) for step in steps])
    trusted = np.array([step.trusted for step in steps])
    assert trusted[:, 1].all() and error[:, 1].max() < 0.3
    # 100 px apart, 10 nearer each step: nothing is to be seen of it in the middle.
    assert trusted[:3, 0].all() and trusted[-3:, 0].all() and not trusted[9:11, 0].any()
    assert error[:, 0][trusted[:, 0]].max() < 1.5


def test_the_object_and_not_the_wall_beside_it() -> None:
    # Half of the box is background at rest.
    scene = MovingScene([Board(60, 120, line(200, 150, 120, 0), share=0.5)])
    steps = play(scene)
    assert steps[-1].unbroken.all()
    assert overlap(steps[-1].boxes, scene.boxes(10 / FPS)).min() > 0.95


def test_nothing_to_follow_is_not_trusted() -> None:
    scene = MovingScene([Board(60, 120, still(450, 150), contrast=0.0), WALKER])
    for step in play(scene, 3, republish=True):
        assert step.trusted.tolist() == [False, True]
        assert np.isinf(step.residual[0]) and not step.unbroken[0]
        assert np.abs(step.shift[0]).max() < 0.05  # what the camera did there


def test_little_texture_is_enough() -> None:
    scene = MovingScene([Board(60, 120, line(200, 150, 90, 20), contrast=4.0)])
    steps = play(scene)
    assert steps[-1].unbroken.all()
    assert overlap(steps[-1].boxes, scene.boxes(10 / FPS)).min() > 0.97


def test_too_fast_is_not_trusted() -> None:
    # Nearly its own width a picture: whatever is found, a wrong answer is not trusted.
    scene = MovingScene([Board(24, 50, line(60, 150, 630, 0))])
    for step in play(scene, 8, republish=True):
        error = np.abs(step.shift - true_shift(scene, step)).max()
        assert error < 0.5 or not step.trusted.any()


@pytest.mark.parametrize("thinning", [Thinning.FULL, Thinning.ONE_WAY])
def test_a_cut_is_seen_once(thinning: Thinning) -> None:
    one, other = MovingScene([WALKER], seed=1), MovingScene([WALKER], seed=5)
    estimator = MotionEstimator()
    estimator.thinning = thinning
    changes = []
    for number in range(8):
        grey = (one if number < 4 else other).grey(number / FPS)
        step = estimator.step(grey, number / FPS, (640, 360), one.regions(0, 0.0))
        if step is not None:
            changes.append(step.scene_change)
            if step.scene_change:
                assert not step.trusted.any() and not step.camera_trusted
                assert not step.unbroken.any()
    assert changes == [False, False, False, True, False, False, False]


def test_a_fast_pan_is_no_cut() -> None:
    scene = MovingScene([WALKER], camera=lambda time_s: (300.0 * time_s, 0.0))
    assert not any(step.scene_change for step in play(scene))


def test_dark_is_a_scene_change_and_a_cloud_is_not() -> None:
    wall = texture(640, 360, 25.0, 3)
    bright = np.asarray(np.clip(wall, 0, 255), np.uint8)
    cloudy = np.asarray(np.clip(0.8 * wall, 0, 255), np.uint8)
    dark = np.full((360, 640), 16, np.uint8)
    estimator = MotionEstimator()
    steps = [
        estimator.step(grey, float(number), (640, 360), None)
        for number, grey in enumerate((bright, cloudy, dark, dark, bright))
    ]
    changes = [step.scene_change for step in steps if step is not None]
    assert changes == [False, True, False, True]


def test_motion_outside_all_boxes_is_noticed() -> None:
    scene = MovingScene([WALKER, Board(160, 150, line(450, 180, 90, 0))])
    estimator = MotionEstimator()
    shares = []
    for number in range(6):
        known = scene.regions(0, 0.0)
        only_walker = Regions(0, 0.0, 640, 360, known.ids[:1], known.boxes[:1])
        step = estimator.step(scene.grey(number / FPS), number / FPS, (640, 360), only_walker)
        if step is not None:
            shares.append(step.outside)
            assert step.camera_trusted
    # It covers a tenth of the picture: 4 of 48 points.
    assert min(shares) > 0.06 and max(shares) < 0.2


def test_boxes_stay_cut_off_at_the_edge() -> None:
    scene = MovingScene(
        [Board(100, 100, line(10, 180, 120, 0)), Board(60, 60, line(620, 80, 90, 0))]
    )
    seen = np.clip(scene.boxes(0.0), 0, [640, 360, 640, 360])
    regions = Regions(0, 0.0, 640, 360, np.array([1, 2], np.int32), seen)
    estimator = MotionEstimator()
    for number in range(6):
        step = estimator.step(scene.grey(number / FPS), number / FPS, (640, 360), regions)
    assert step is not None
    truth = np.clip(scene.boxes(5 / FPS), 0, [640, 360, 640, 360])
    assert overlap(step.boxes, truth).min() > 0.95
    assert step.shift[:, 0] == pytest.approx([4.0, 3.0], abs=0.1)


def test_units_are_pixels_as_shown() -> None:
    scene = MovingScene([WALKER, CAR])
    estimator = MotionEstimator()
    known = scene.regions(0, 0.0)
    large = Regions(0, 0.0, 1280, 720, known.ids, known.boxes * 2)
    for number in range(4):
        step = estimator.step(scene.grey(number / FPS), number / FPS, (1280, 720), large)
    assert step is not None
    assert step.shift == pytest.approx(2 * true_shift(scene, step), abs=0.2)
    assert overlap(step.boxes, 2 * scene.boxes(3 / FPS)).min() > 0.98


def test_late_regions_are_brought_up_to_date() -> None:
    # The detector's answer for picture 3 comes when picture 9 is measured: the walker is known
    # by its id and carried by what was measured, the car is new and carried in one jump.
    scene = MovingScene([WALKER, CAR])
    estimator = MotionEstimator()
    for number in range(12):
        time_s = number / FPS
        first, late = scene.regions(0, 0.0), scene.regions(1, 3 / FPS)
        regions = Regions(0, 0.0, 640, 360, first.ids[:1], first.boxes[:1])
        step = estimator.step(
            scene.grey(time_s), time_s, (640, 360), late if number >= 9 else regions
        )
        if number >= 9:
            assert step is not None and step.regions_seq == 1
            assert step.unbroken.all() and step.trusted.all()
            assert overlap(step.boxes, scene.boxes(time_s)).min() > 0.96


def test_regions_older_than_the_history_are_not_unbroken() -> None:
    scene = MovingScene([WALKER])
    grey = scene.grey(0.0)
    known = scene.regions(0, 0.0)
    estimator = MotionEstimator()
    for number in range(11):
        estimator.step(grey, 5.0 + 0.2 * number, (640, 360), None)
    for seq, time_s, unbroken in ((1, 6.4, True), (2, 5.2, False), (3, 1.0, False)):
        regions = Regions(seq, time_s, 640, 360, known.ids, known.boxes)
        step = estimator.step(grey, 7.1 + 0.1 * seq, (640, 360), regions)
        assert step is not None and step.trusted.all()
        assert step.unbroken.tolist() == [unbroken]


def test_a_break_is_remembered_for_regions_from_before_it() -> None:
    scene, other = MovingScene([WALKER]), MovingScene([WALKER], seed=9)
    estimator = MotionEstimator()
    regions = scene.regions(0, 0.0)
    for number in range(9):
        shown = other if number == 4 else scene
        estimator.step(shown.grey(number / FPS), number / FPS, (640, 360), regions)
    for seq, (known, unbroken) in enumerate(((2, False), (7, True)), start=1):
        time_s = (8 + seq) / FPS
        step = estimator.step(
            scene.grey(time_s), time_s, (640, 360), scene.regions(seq, known / FPS)
        )
        assert step is not None and step.unbroken.tolist() == [unbroken]


def test_regions_of_the_picture_that_was_left_out_are_not_carried_twice() -> None:
    scene = MovingScene([WALKER, CAR])
    estimator = MotionEstimator()
    estimator.thinning = Thinning.EVERY_SECOND
    for number in range(5):
        time_s = number / FPS
        before_s = max(0.0, time_s - 1 / FPS)
        step = estimator.step(
            scene.grey(time_s), time_s, (640, 360), scene.regions(number, before_s)
        )
        if step is not None:
            assert step.to_s - step.from_s == pytest.approx(2 / FPS)
            assert overlap(step.boxes, scene.boxes(time_s)).min() > 0.97


def test_regions_of_another_view_are_ignored() -> None:
    scene = MovingScene([WALKER])
    estimator = MotionEstimator()
    turned = Regions(1, 0.0, 360, 640, np.array([1], np.int32), scene.boxes(0.0))
    estimator.step(scene.grey(0.0), 0.0, (640, 360), turned)
    step = estimator.step(scene.grey(0.1), 0.1, (640, 360), turned)
    assert step is not None and step.regions_seq is None and len(step) == 0


def test_what_begins_anew() -> None:
    scene = MovingScene([WALKER])
    grey, regions = scene.grey(0.0), scene.regions(1, 0.0)
    small = np.ascontiguousarray(grey[::2, ::2])
    estimator = MotionEstimator()
    assert estimator.step(grey, 1.0, (640, 360), regions) is None  # the first
    assert estimator.step(grey, 1.0, (640, 360), regions) is None  # no time has passed
    assert estimator.step(grey, 1.1, (640, 360), regions) is not None
    assert estimator.step(small, 1.2, (640, 360), regions) is None  # another size
    assert estimator.step(small, 1.3, (640, 360), regions) is not None
    assert estimator.step(small, 1.4, (320, 180), regions) is None  # the same, shown smaller
    assert estimator.step(small, 1.3, (320, 180), regions) is None  # back in time
    step = estimator.step(small, 1.5, (320, 180), regions)
    assert step is not None and step.from_s == 1.3
    estimator.reset()
    assert estimator.step(small, 1.6, (320, 180), regions) is None
    with pytest.raises(ValueError, match="not finite"):
        estimator.step(small, math.nan, (320, 180), regions)
