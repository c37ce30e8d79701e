"""Overload control: rarer detections under load, back after calm, and no swinging."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.scheduling import SMALL, WIDE, Bench, Camera, Record, linear, scheduler, steady
from vidserve.frames import Batch
from vidserve.scheduling.control import CALM_S, RARE, STEP, OverloadControl
from vidserve.scheduling.keyframes import CameraPlan
from vidserve.scheduling.scheduler import Scheduler
from vidserve.scheduling.settings import SchedulerSettings


def plans_of(*weights: float, interval_frames: int = 5) -> list[CameraPlan]:
    return [
        CameraPlan(f"c{index}", weight, interval_frames, 1 / 30)
        for index, weight in enumerate(weights)
    ]


class Second:
    """One camera's detection costs ``each_s`` of the detector; the seconds of a control."""

    def __init__(self, plans: Sequence[CameraPlan], each_s: float, max_gap_s: float = 2.0) -> None:
        self.plans = plans
        self.each_s = each_s
        self.control = OverloadControl(max_gap_s)
        self.now_s = 0.0

    def asked(self) -> float:
        return sum(self.each_s / plan.interval_s for plan in self.plans if plan.weight > 0)

    def __call__(self, use: float = 0.5, late: float = 0.0, times: int = 1) -> list[float]:
        for _ in range(times):
            self.now_s += 1.0
            self.control.every_second(self.now_s, self.plans, self.asked, use, late)
        return [round(plan.stretch, 4) for plan in self.plans]


def test_a_load_that_fits_changes_nothing() -> None:
    second = Second(plans_of(1, 1, 1), each_s=0.05)
    assert second.asked() == pytest.approx(0.9)
    assert second(times=60) == [1.0, 1.0, 1.0]


def test_intervals_grow_by_quarters_until_what_is_asked_fits() -> None:
    second = Second(plans_of(1, 1, 1, 1), each_s=0.05)
    stretches = second()
    assert second.asked() <= 1.0
    assert all(s in (1.0, STEP, round(STEP**2, 4)) for s in stretches)
    assert second(times=5) == stretches  # and not further


def test_the_lowest_weight_gives_first() -> None:
    second = Second(plans_of(3, 1, 2), each_s=0.06)
    assert second()[0] == second()[2] == 1.0
    assert second()[1] > 1.0


def test_of_equal_weights_the_shortest_interval_gives_first() -> None:
    plans = plans_of(1, 1)
    plans[1].interval_frames = 10
    second = Second(plans, each_s=0.117)
    stretches = second()
    assert stretches[0] > 1.0
    assert stretches[1] == 1.0


def test_no_interval_grows_beyond_the_largest_gap() -> None:
    second = Second(plans_of(1, 1, 5), each_s=0.01, max_gap_s=1.0)
    second(times=60, use=1.0, late=0.5)
    for plan in second.plans:
        assert 0.8 <= plan.interval_s <= 1.0  # the next quarter would be too long
        assert plan.rare_s is None  # little is asked for: it would not help


def test_an_interval_that_is_long_by_itself_is_left_alone() -> None:
    second = Second(plans_of(1, 1, interval_frames=90), each_s=100.0)
    assert second(times=5, use=1.0, late=1.0) == [1.0, 1.0]


def test_cameras_without_weight_are_left_alone() -> None:
    second = Second(plans_of(0, 1), each_s=1.0)
    assert second()[0] == 1.0


def test_no_cameras_is_no_trouble() -> None:
    assert Second([], each_s=1.0)(times=20, use=1.0, late=1.0) == []


@pytest.mark.parametrize("late", [0.02, 0.5, 1.0])
def test_a_noisy_second_of_an_idle_detector_changes_nothing(late: float) -> None:
    second = Second(plans_of(1, 1), each_s=0.01)
    assert second(use=0.3, late=late) == [1.0, 1.0]


def test_a_busy_detector_that_is_late_lengthens_one_step_a_second() -> None:
    second = Second(plans_of(1, 2), each_s=0.01)
    assert second(use=0.95, late=0.05) == [STEP, 1.0]
    assert second(use=0.95, late=0.05) == [STEP**2, 1.0]


def test_one_percent_late_is_allowed() -> None:
    second = Second(plans_of(1, 1), each_s=0.01)
    assert second(use=1.0, late=0.01, times=10) == [1.0, 1.0]


def test_it_comes_back_after_ten_seconds_of_calm_one_step_a_second() -> None:
    second = Second(plans_of(1, 1, 1, 1), each_s=0.05)
    stretched = second()
    second.each_s = 0.01
    assert second(times=int(CALM_S)) == stretched
    total = [sum(second()) for _ in range(10)]
    steps = [earlier - later for earlier, later in itertools.pairwise([sum(stretched), *total])]
    assert all(0 <= step <= STEP for step in steps)
    assert second() == [1.0] * 4


def test_trouble_starts_the_calm_anew() -> None:
    second = Second(plans_of(1), each_s=0.01)
    second(use=1.0, late=0.5, times=3)
    second(times=9)
    stretched = second(use=1.0, late=0.5)
    assert second(times=int(CALM_S)) == stretched
    assert second() < stretched


def test_the_highest_weight_comes_back_first() -> None:
    second = Second(plans_of(1, 2), each_s=0.15, max_gap_s=0.5)
    second()
    before = [plan.stretch for plan in second.plans]
    assert min(before) > 1.0
    second.each_s = 0.01
    second(times=int(CALM_S) + 1)
    assert second.plans[0].stretch == before[0]
    assert second.plans[1].stretch < before[1]


def test_nothing_comes_back_while_there_is_no_room_for_it() -> None:
    second = Second(plans_of(1, 1, 1, 1), each_s=0.05)
    stretched = second()
    assert second(times=100) == stretched


@given(
    weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 4.0]), min_size=1, max_size=6),
    max_gap_s=st.sampled_from([0.1, 0.5, 2.0]),
    seconds=st.lists(
        st.tuples(st.floats(0, 2), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60
    ),
)
@settings(max_examples=80, deadline=None)
def test_any_history_keeps_the_bounds(
    weights: list[float], max_gap_s: float, seconds: list[tuple[float, float, float]]
) -> None:
    second = Second(plans_of(*weights), each_s=0.1, max_gap_s=max_gap_s)
    for plan in second.plans:
        plan.ladder = (WIDE, SMALL)
    for each_s, use, late in seconds:
        second.each_s = each_s
        second(use, late)
        for plan in second.plans:
            assert plan.stretch >= 1.0
            asked_s = plan.interval_frames * plan.period_s * plan.stretch
            assert plan.stretch == 1.0 or asked_s <= max_gap_s + 1e-9
            assert plan.rare_s in (None, RARE * max_gap_s)
            assert 0 <= plan.level <= 1
            assert plan.weight > 0 or not plan.overload


# -- with the scheduler around it ----------------------------------------------------------


class Step:
    """Cameras at 30 fps, and more of them between two moments."""

    def __init__(self, few: int, more: int, on_s: float, off_s: float, until_s: float) -> None:
        drawn = random.Random(3)
        self.cameras = [
            steady(f"a{k:02}", 30, until_s, drawn.uniform(0, 1 / 30), interval_frames=1)
            for k in range(few)
        ]
        count = int((off_s - on_s) * 30) - 2
        for k in range(more):
            start_s = on_s + drawn.uniform(0.001, 1 / 30)
            arrivals_s = [start_s + n / 30 for n in range(count)]
            self.cameras.append(
                Camera(f"b{k:02}", arrivals_s, interval_frames=1, comes_s=on_s, leaves_s=off_s)
            )
        self.until_s = until_s
        self.sched: Scheduler = scheduler(SchedulerSettings(wait_s=0.0, control=True))
        self.stretches: list[dict[str, float]] = []

    def run(self) -> Record:
        drawn = random.Random(4)
        table_s = linear(3, 2)

        def takes_s(batch: Batch) -> float:
            return table_s[len(batch.frames)] * max(0.2, drawn.gauss(1, 0.05))

        def note(_now_s: float) -> None:
            self.stretches.append({p.name: p.stretch for p in self.sched.plans()})

        bench = Bench(self.sched, self.cameras, takes_s, seconds=note, until_s=self.until_s)
        return bench.run()


def test_a_step_of_load_up_and_down() -> None:
    """8 cameras fit (240 of 421 a second), 24 do not (720): K grows, holds, and comes back."""
    step = Step(few=8, more=16, on_s=5.0, off_s=25.0, until_s=70.0)
    record = step.run()
    before, during, after = step.stretches[3], step.stretches[9], step.stretches[-1]
    assert set(before.values()) == {1.0}
    assert sum(during.values()) / len(during) > 1.4
    assert set(after.values()) == {1.0}
    for name in (camera.name for camera in step.cameras):
        course = [stretches[name] for stretches in step.stretches if name in stretches]
        moves = [b - a for a, b in itertools.pairwise(course) if a != b]
        turns = sum((a > 0) != (b > 0) for a, b in itertools.pairwise(moves))
        assert turns <= 1, f"{name} swings: {course}"
    assert max(record.longest_gap_s(f"a{k:02}", 0.0, 69.9) for k in range(8)) < 0.5
    late = [
        f for b in record.batches for f in b.frames if not record.answers[f.camera][f.seq].detected
    ]
    assert len(late) <= 0.01 * sum(len(b.frames) for b in record.batches)


def test_a_noisy_second_changes_no_interval_of_a_running_scheduler() -> None:
    sched = scheduler(SchedulerSettings(wait_s=0.0, control=True))
    cams = [steady(f"c{k}", 30, 10.0, k * 0.003) for k in range(4)]
    course: list[float] = []

    def takes_s(batch: Batch) -> float:
        return linear(3, 2)[len(batch.frames)] * (6 if 4 <= batch.started_s < 5 else 1)

    bench = Bench(
        sched, cams, takes_s, seconds=lambda _: course.extend(p.stretch for p in sched.plans())
    )
    bench.run()
    assert set(course) == {1.0}


def test_without_control_no_interval_changes() -> None:
    sched = scheduler(tables={WIDE: linear(100, 100)})
    cams = [steady(f"c{k}", 30, 5.0, k * 0.003, interval_frames=1) for k in range(8)]
    Bench(sched, cams, seconds=lambda _: None, until_s=5.0).run()
    assert all(plan.stretch == 1.0 for plan in sched.plans())
