"""The arithmetic and the verdict of a plan: pure, on made-up machines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.frames import Bucket
from vidserve.planning.capacity import Planner, batch_curves, largest_that_fits
from vidserve.planning.need import (
    CPU_MOST,
    Limit,
    Machine,
    PlannedCamera,
    mix,
    need,
    plain_misses,
)
from vidserve.planning.trial import try_out
from vidserve.scheduling.settings import SchedulerSettings

WIDE, SMALL = Bucket(384, 640), Bucket(192, 320)
SETTINGS = SchedulerSettings()


def camera(name: str = "a", **more: object) -> PlannedCamera:
    given: dict[str, object] = {
        "name": name, "width": 1280, "height": 720, "source_fps": 30.0, "fps": 30.0,
        "interval_frames": 5, "weight": 1.0, "ladder": (WIDE,), "decode_s": 0.003,
        "letterbox_s": 0.001, **more,
    }  # fmt: skip
    return PlannedCamera(**given)  # type: ignore[arg-type]


def machine(a_ms: float = 3, b_ms: float = 2, **more: object) -> Machine:
    table_s = {n: (a_ms + b_ms * n) / 1000 for n in range(1, 9)}
    given: dict[str, object] = {
        "cores": 64, "frame_s": 0.0005, "detection_s": 0.0003, "tables_s": {WIDE: table_s}, **more,
    }  # fmt: skip
    return Machine(**given)  # type: ignore[arg-type]


def planner(cameras: int = 1, on: Machine | None = None, **more: object) -> Planner:
    return Planner(
        [camera(f"c{k}", **more) for k in range(cameras)], on or machine(), SETTINGS, duration_s=4
    )


# -- arithmetic ----------------------------------------------------------------------------


def test_what_a_camera_needs_is_added_up() -> None:
    needed = need([camera(), camera("b", weight=0.0)], machine(), SETTINGS)
    # 30 x 3 ms decoding each, 6 x 1 ms letterbox for one; 30 x 0.5 ms answers, 6 x 0.3 ms.
    assert needed.camera_cores == pytest.approx(2 * 0.090 + 0.006 + 2 * 0.015 + 0.0018)
    assert needed.asked_per_s == pytest.approx(6)
    assert needed.detector_s == pytest.approx(6 * 0.019 / 8)
    assert needed.slower == 1.0


def test_pictures_beyond_the_fps_limit_are_decoded_but_not_answered() -> None:
    all_of_them = need([camera()], machine(), SETTINGS)
    limited = need([camera(fps=10.0)], machine(), SETTINGS)
    assert limited.asked_per_s == pytest.approx(2)
    assert limited.camera_cores == pytest.approx(0.090 + 0.002 + 0.005 + 0.0006)
    assert limited.camera_cores < all_of_them.camera_cores


def test_the_largest_gap_shortens_a_long_interval() -> None:
    assert camera(interval_frames=300).interval_s(2.0) == 2.0
    assert camera(fps=0.2, interval_frames=1).interval_s(2.0) == pytest.approx(5.0)


def test_a_detector_on_the_cpu_gets_what_the_cameras_leave() -> None:
    cameras = [camera(f"c{k}") for k in range(10)]  # about 1.1 cores
    on = machine(cores=2, detector_cores=2.0, detector_yields=True)
    needed = need(cameras, on, SETTINGS)
    assert needed.slower == pytest.approx(2.0 / (2 - needed.camera_cores))
    assert need(cameras, replace(on, detector_yields=False), SETTINGS).slower == 1.0
    assert need(cameras, replace(on, cores=8), SETTINGS).slower == 1.0
    # With no core left it stands still, all but: never a division by nothing.
    assert math.isfinite(need(mix(cameras, 40), on, SETTINGS).slower)


cameras_strategy = st.lists(
    st.builds(
        camera,
        name=st.uuids().map(str),
        source_fps=st.floats(1, 60),
        fps=st.floats(1, 60),
        interval_frames=st.integers(1, 60),
        weight=st.sampled_from([0.0, 1.0, 2.0]),
        ladder=st.sampled_from([(WIDE,), (SMALL,)]),
        decode_s=st.floats(0, 0.05),
        letterbox_s=st.floats(0, 0.01),
    ),
    min_size=1,
    max_size=5,
)
machines_strategy = st.builds(
    machine,
    a_ms=st.floats(0.1, 50),
    b_ms=st.floats(0.1, 50),
    cores=st.integers(1, 64),
    detector_cores=st.floats(0, 4),
    detector_yields=st.booleans(),
)


@given(cameras_strategy, machines_strategy, st.integers(1, 60), st.integers(1, 60))
def test_more_cameras_never_need_less(
    cameras: list[PlannedCamera], on: Machine, count: int, more: int
) -> None:
    few = need(mix(cameras, count), on, SETTINGS)
    many = need(mix(cameras, count + more), on, SETTINGS)
    assert many.camera_cores >= few.camera_cores
    assert many.asked_use >= few.asked_use * (1 - 1e-9)
    assert many.slower >= few.slower
    broken = {miss.limit for miss in plain_misses(few, on, SETTINGS.max_gap_s)}
    assert broken <= {miss.limit for miss in plain_misses(many, on, SETTINGS.max_gap_s)}


@given(cameras_strategy, machines_strategy, st.integers(1, 100))
def test_each_limit_is_named_if_and_only_if_it_is_broken(
    cameras: list[PlannedCamera], on: Machine, count: int
) -> None:
    tried = mix(cameras, count)
    needed = need(tried, on, SETTINGS)
    named = {miss.limit for miss in plain_misses(needed, on, SETTINGS.max_gap_s)}
    busy = needed.camera_cores + needed.detector_s * on.detector_cores
    assert (Limit.CPU in named) == (busy > CPU_MOST * on.cores)
    assert (Limit.DETECTOR in named) == (needed.asked_use > 1)
    assert (Limit.DECODE in named) == any(c.thread_use(SETTINGS.max_gap_s) > 1 for c in tried)


@given(cameras_strategy, st.integers(1, 40))
def test_a_mix_is_the_cameras_in_turn_under_names_of_their_own(
    cameras: list[PlannedCamera], count: int
) -> None:
    found = mix(cameras, count)
    assert len({c.name for c in found}) == count
    for index, made in enumerate(found):
        assert replace(made, name="") == replace(cameras[index % len(cameras)], name="")


@given(st.integers(0, 300), st.integers(1, 300), st.sets(st.integers(0, 600)))
def test_bisection_ends_where_one_fits_and_the_next_does_not(
    low: int, width: int, fitting: set[int]
) -> None:
    high = low + width
    found = largest_that_fits(fitting.__contains__, low, high)
    assert low <= found < high
    assert found == low or found in fitting
    assert found + 1 == high or found + 1 not in fitting


# -- trials --------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(cameras_strategy, machines_strategy, st.integers(1, 12))
def test_a_trial_is_sane_for_any_cameras(
    cameras: list[PlannedCamera], on: Machine, count: int
) -> None:
    trial = try_out(mix(cameras, count), on, SETTINGS, duration_s=2)
    for share in (trial.served_share, trial.late_share, trial.in_time_share, trial.use):
        assert 0 <= share <= 1 + 1e-9
    assert trial.worst_served_share <= trial.served_share + 1e-9
    assert trial.fits == (not trial.misses)
    plain = plain_misses(trial.needed, on, SETTINGS.max_gap_s)
    assert {m.limit for m in plain} <= {m.limit for m in trial.misses}


@pytest.mark.parametrize(
    ("fps", "interval"), [(30.0, 5), (30.0, 30), (1.0, 5), (24.5, 7), (12.5, 100)]
)
def test_a_light_load_is_served_whole_wherever_the_time_is_cut(fps: float, interval: int) -> None:
    cameras = [camera(f"c{k}", fps=fps, interval_frames=interval) for k in range(3)]
    trial = try_out(cameras, machine(), SETTINGS, duration_s=4)
    assert trial.fits, trial.misses
    assert trial.served_share == pytest.approx(1)


def test_overload_shows_in_the_shares_of_all_and_of_the_worst() -> None:
    cameras = [camera(f"c{k}", interval_frames=1) for k in range(30)]
    cameras[0] = camera("light", interval_frames=1, weight=0.01)
    trial = try_out(cameras, machine(), SETTINGS)
    assert 0.3 < trial.served_share < 0.5  # 421 of 900 a second are possible
    assert trial.worst_served_share < 0.1
    assert Limit.DETECTOR in {miss.limit for miss in trial.misses}


def test_without_weight_there_is_nothing_to_detect() -> None:
    trial = planner(2, weight=0.0).trial(2)
    assert trial.fits
    assert trial.use == 0
    assert math.isinf(trial.gap_p99_s)


# -- verdicts ------------------------------------------------------------------------------


def test_the_detector_is_the_limit() -> None:
    verdict = planner(4, interval_frames=1).verdict()
    assert verdict.now.fits
    assert verdict.limit is Limit.DETECTOR
    # 421 detections/s are possible, 30 are asked for by each.
    assert 8 <= verdict.fits <= 14
    assert verdict.more == verdict.fits - 4
    assert verdict.at_the_limit is not None and verdict.at_the_limit.fits
    assert not verdict.help


def test_more_cameras_than_fit_do_not_fit() -> None:
    made = planner(1, interval_frames=1)
    fits = made.verdict().fits
    for factor in (1.3, 1.7, 2.5):
        assert not made.trial(math.ceil(factor * fits)).fits


def test_the_cpu_is_the_limit() -> None:
    verdict = planner(2, machine(0.5, 0.1, cores=2)).verdict()
    per_camera = 0.090 + 0.006 + 0.015 + 0.0018
    assert verdict.limit is Limit.CPU
    assert verdict.fits == math.floor(CPU_MOST * 2 / per_camera)
    assert "cores of 2" in verdict.misses[0].sentence


def test_decoding_is_the_limit() -> None:
    slow = camera("slow", decode_s=0.05)
    verdict = Planner([camera("good"), slow], machine(), SETTINGS, duration_s=2).verdict()
    assert verdict.limit is Limit.DECODE
    assert verdict.fits == 1
    assert "slow" in verdict.misses[0].sentence
    assert [change.change for change in verdict.help] == ["cameras"]


def test_a_detector_that_only_lacks_cores_is_the_limit_of_the_cpu() -> None:
    on = machine(3, 2, cores=4, detector_cores=4.0, detector_yields=True)
    # The cameras take half of the cores; with all four each detection would be in time.
    verdict = planner(18, on, letterbox_s=0.0).verdict()
    assert verdict.now.needed.slower > 1.5
    assert verdict.limit is Limit.CPU
    assert "cores of 4 are needed" in verdict.misses[0].sentence
    crowded = planner(20, on, letterbox_s=0.0).trial(20).misses
    assert "the cameras go first" in crowded[-1].sentence
    assert planner(18, replace(on, detector_yields=False), letterbox_s=0.0).trial(18).fits


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_one_slip_of_a_frame_is_no_broken_promise(interval: int) -> None:
    """At K = 2 a frame later is half as long again, and jitter makes it more."""
    on = machine(3, 6)
    assert planner(3 * interval - 1, on, interval_frames=interval).trial(3 * interval - 1).fits


def test_too_many_cameras_get_help_that_helps() -> None:
    made = planner(20, interval_frames=1)

    def resize(side: int) -> tuple[tuple[PlannedCamera, ...], Machine] | None:
        if side > 320:
            return None
        cameras = tuple(replace(c, ladder=(SMALL,)) for c in made.cameras)
        tables = {**made.machine.tables_s, SMALL: {n: 0.001 + 0.0005 * n for n in range(1, 9)}}
        return cameras, replace(made.machine, tables_s=tables)

    verdict = made.verdict(resize)
    assert not verdict.now.fits and verdict.more < 0
    changes = {change.change: change.value for change in verdict.help}
    assert changes["cameras"] == verdict.fits
    assert changes["detector.image_size"] == 320
    interval = changes["scheduling.keyframe_interval"]
    assert planner(20, interval_frames=interval).trial(20).fits
    assert not planner(20, interval_frames=interval - 1).trial(20).fits


def test_a_detector_slower_than_the_budget_says_so() -> None:
    verdict = planner(2, machine(40, 0.1)).verdict()
    assert verdict.fits == 0 and verdict.at_the_limit is None
    assert "40.1 ms" in verdict.misses[0].sentence
    assert verdict.accepting_late is not None and verdict.accepting_late >= 2
    budgets = [c.value for c in verdict.help if c.change == "scheduling.budget_ms"]
    assert len(budgets) == 1 and budgets[0] > 45


def test_it_stops_where_nothing_is_in_the_way() -> None:
    on = machine(0.01, 0.001, cores=4096)
    verdict = planner(1, on, interval_frames=30).verdict(most=16)
    assert verdict.capped and verdict.fits == 16
    assert verdict.limit is None and not verdict.misses


def test_the_curve_holds_the_operating_point_and_the_limit() -> None:
    made = planner(3, interval_frames=1)
    fits = made.verdict().fits
    counts = [trial.cameras for trial in made.latency_curve(fits)]
    assert counts == sorted(set(counts))
    assert {1, 3, fits} <= set(counts)
    assert counts[-1] > fits


def test_the_peak_of_throughput_is_marked_where_it_is() -> None:
    table_s = {1: 0.010, 2: 0.012, 3: 0.015, 4: 0.030}
    on = machine(tables_s={WIDE: table_s})
    (curve,) = batch_curves([camera(), camera("b")], on, replace(SETTINGS, batch_max=4))
    assert curve.cameras == 2
    assert curve.peak == 3
    assert curve.per_s == pytest.approx([100, 2 / 0.012, 200, 4 / 0.030])
