"""Overload beyond longer intervals: smaller inputs, predict-only, and what people are told."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator

from tests.lab.scheduling import SMALL, WIDE, frame, linear, scheduler
from vidserve.frames import Batch, Bucket
from vidserve.scheduling.advice import FillWatch, OverloadNotes
from vidserve.scheduling.control import CALM_S, RARE, OverloadControl
from vidserve.scheduling.keyframes import CameraPlan
from vidserve.scheduling.settings import SchedulerSettings
from vidserve.scheduling.simulator import Arrival, SimulatedCamera, Simulation

MAX_GAP_S = 1.0


def plans_of(*weights: float) -> list[CameraPlan]:
    plans = [CameraPlan(f"c{k}", weight, 5, 1 / 30) for k, weight in enumerate(weights)]
    for plan in plans:
        plan.ladder = (WIDE, SMALL)
    return plans


def state(plan: CameraPlan) -> str:
    if plan.rare_s is not None:
        return "rare"
    return "small" if plan.level else "long" if plan.stretch > 1 else "asked"


class Seconds:
    """A control whose cameras cost ``large_s`` or ``small_s`` a detection."""

    def __init__(self, plans: list[CameraPlan], large_s: float, small_s: float) -> None:
        self.plans = plans
        self.costs = {WIDE: large_s, SMALL: small_s}
        self.control = OverloadControl(MAX_GAP_S)
        self.now_s = 0.0

    def asked(self) -> float:
        return sum(
            self.costs[plan.bucket or WIDE] / plan.interval_s
            for plan in self.plans
            if plan.weight > 0
        )

    def __call__(self, times: int = 1) -> list[str]:
        for _ in range(times):
            self.now_s += 1.0
            self.control.every_second(self.now_s, self.plans, self.asked, 0.9, 0.0)
        return [state(plan) for plan in self.plans]


def test_first_longer_then_smaller_then_predict_only_the_lightest_first() -> None:
    plans = plans_of(3, 1, 2)
    seconds = Seconds(plans, 0.06, 0.01)
    assert seconds() == ["asked", "long", "asked"]
    seconds.costs[WIDE] = 0.4  # all as long as may be: 0.8 to 1 s each
    states = seconds()
    assert states[1] == "small"
    assert states[0] == "long"
    seconds.costs = {WIDE: 0.4, SMALL: 0.36}
    assert seconds() == ["small", "rare", "small"]
    assert plans[1].interval_s == RARE * MAX_GAP_S
    assert "predict-only" in plans[1].overload
    assert "input of 320x192 instead of 640x384" in plans[0].overload


def test_a_smaller_input_that_brings_nothing_is_not_taken() -> None:
    plans = plans_of(2, 1)
    seconds = Seconds(plans, 5.0, 4.99)
    assert seconds() == ["rare", "rare"]
    assert [plan.level for plan in plans] == [0, 0]


def test_a_camera_without_a_smaller_shape_goes_on_to_predict_only() -> None:
    plans = plans_of(1, 1)
    plans[0].ladder = (WIDE,)
    seconds = Seconds(plans, 5.0, 5.0)
    assert seconds() == ["rare", "rare"]
    assert plans[0].level == 0


def test_all_comes_back_in_the_opposite_order() -> None:
    plans = plans_of(2, 1)
    seconds = Seconds(plans, 1.4, 0.9)
    assert seconds() == ["small", "rare"]
    seconds.costs = {WIDE: 0.001, SMALL: 0.0005}
    assert seconds(int(CALM_S)) == ["small", "rare"]
    course = [seconds() for _ in range(20)]
    assert course[0] == ["small", "small"]
    assert course[1] == ["long", "small"]
    assert course[2] == ["long", "long"]
    assert course[-1] == ["asked", "asked"]
    assert all(plan.overload == "" for plan in plans)


def test_a_detector_that_throttles_and_recovers() -> None:
    """A step in load up and down: one way each, no swinging; every frame keeps its budget."""
    throttled = (10.0, 50.0)
    tables = {WIDE: linear(3, 2), SMALL: linear(2, 1)}
    drawn = random.Random(1)

    def service_s(now_s: float, bucket: Bucket, n: int) -> float:
        slow = 14.0 if throttled[0] <= now_s < throttled[1] else 1.0
        return tables[bucket][n] * slow * max(0.2, drawn.gauss(1.0, 0.05))

    def steady(phase_s: float) -> Iterator[Arrival]:
        for k in itertools.count():
            at_s = phase_s + k / 30
            if at_s > 120:
                return
            yield Arrival(at_s, at_s)

    cameras = [SimulatedCamera(f"c{k:02}", 1.0 + k % 3, 5, 30.0, (WIDE, SMALL)) for k in range(40)]
    simulation = Simulation(
        cameras,
        {camera.name: steady(drawn.uniform(0, 1 / 30)) for camera in cameras},
        SchedulerSettings(wait_s=0.0, control=True, max_gap_s=0.5),
        tables,
        service_s,
        duration_s=120.0,
    )
    course: list[dict[str, tuple[float, int, bool]]] = []

    def note(_now_s: float) -> None:
        plans = (simulation.scheduler.plan(camera.name) for camera in cameras)
        course.append({p.name: (p.stretch, p.level, p.rare_s is not None) for p in plans})

    for second in range(1, 120):
        simulation.at(second + 0.5, note)
    result = simulation.run()

    assert result.in_budget == 1.0
    assert set(course[7].values()) == {(1.0, 0, False)}
    during = course[45]
    assert {level for _, level, _ in during.values()} == {1}
    assert any(rare for _, _, rare in during.values())
    heavy = [camera.name for camera in cameras if camera.weight == 3.0]
    light = [camera.name for camera in cameras if camera.weight == 1.0]
    assert sum(during[name][2] for name in light) > sum(during[name][2] for name in heavy)
    assert set(course[-1].values()) == {(1.0, 0, False)}
    for camera in cameras:
        for part in (0, 1, 2):
            values = [float(states[camera.name][part]) for states in course]
            moves = [b - a for a, b in itertools.pairwise(values) if a != b]
            turns = sum((a > 0) != (b > 0) for a, b in itertools.pairwise(moves))
            assert turns <= 1, f"{camera.name} swings: {values}"


def test_a_frame_of_a_camera_that_left_is_given_back() -> None:
    sched = scheduler()
    sched.add_camera("gate", 1.0, 5, 1 / 30)
    sched.remove_camera("gate")
    one = frame("gate", 0, 1.0)
    offer = sched.offer(one, WIDE, 1.0)
    assert offer.superseded is one
    assert not offer.in_time
    sched.set_ladder("gate", (WIDE,))  # nobody minds


def test_a_busy_detector_with_empty_batches_is_told_once_with_figures() -> None:
    watch = FillWatch()
    told = []
    for second in range(1, 200):
        watch.add(0.8, 140, 140 * 8)
        told += [(second, *note) for note in watch.notes(float(second), 0.0)]
    assert len(told) == 1
    second, level, sentence = told[0]
    assert (second, level) == (30, logging.WARNING)
    for words in ("80%", "12% full", "140.0 pictures/s", "wait_ms 0 to 15", "image_size"):
        assert words in sentence
    assert "wait_ms" not in FillWatchAfter(0.8, 140, 1120).sentence(wait_s=0.02)


class FillWatchAfter:
    """Half a minute of the same second."""

    def __init__(self, busy_s: float, frames: int, room: int) -> None:
        self.watch = FillWatch()
        for _ in range(30):
            self.watch.add(busy_s, frames, room)

    def sentence(self, wait_s: float = 0.0) -> str:
        return "".join(text for _, text in self.watch.notes(100.0, wait_s))


def test_full_batches_and_idle_detectors_are_no_trouble() -> None:
    assert FillWatchAfter(0.95, 300, 640).sentence() == ""
    assert FillWatchAfter(0.65, 30, 240).sentence() == ""
    assert FillWatchAfter(0.9, 40, 40).sentence() == ""  # larger batches would bring nothing
    assert FillWatchAfter(1.0, 0, 0).sentence() == ""  # one long batch


def test_the_scheduler_warns_of_empty_batches() -> None:
    """Singles of 24 ms, one after the other, although eight together would take 38 ms."""
    sched = scheduler(SchedulerSettings(wait_s=0.0), {WIDE: linear(22, 2)})
    for k in range(8):
        sched.add_camera(f"c{k}", 1.0, 1, 1 / 30)
    notes: list[tuple[int, str]] = []
    now_s = 0.0
    for step in range(1600):
        name = f"c{step % 8}"
        sched.offer(frame(name, step, now_s), WIDE, now_s)
        batch = sched.next_batch(now_s)
        assert isinstance(batch, Batch)
        before = int(now_s)
        now_s += 0.024
        sched.finished(batch, now_s)
        if int(now_s) > before:
            notes += sched.every_second(now_s)
    assert [text for level, text in notes if level == logging.WARNING and "full" in text]


def test_overload_is_told_when_it_begins_changes_and_ends() -> None:
    notes = OverloadNotes()
    plans = plans_of(1, 2)
    assert notes.notes(plans, 0.5) == []
    plans[0].stretch = 1.25
    ((level, text),) = notes.notes(plans, 1.44)
    assert level == logging.WARNING
    assert "144%" in text
    plans[0].stretch = 1.5
    assert notes.notes(plans, 1.5) == []
    plans[0].level = 1
    assert "smaller detector input for c0" in notes.notes(plans, 1.5)[0][1]
    plans[0].rare_s = 20.0
    assert "predict-only" in notes.notes(plans, 1.5)[0][1]
    plans[0].rare_s, plans[0].level, plans[0].stretch = None, 0, 1.0
    ((level, text),) = notes.notes(plans, 0.2)
    assert (level, text.startswith("overload: over")) == (logging.INFO, True)


def test_many_names_are_not_all_listed() -> None:
    notes = OverloadNotes()
    plans = plans_of(*[1.0] * 9)
    for plan in plans:
        plan.level = 1
    assert "c0, c1, c2, c3 and 5 more" in notes.notes(plans, 2.0)[0][1]


def test_a_camera_that_left_takes_its_overload_along() -> None:
    """Eight of twelve cameras ended while stretched: overload never was over, so never began."""
    sched = scheduler(SchedulerSettings(wait_s=0.0, control=True), {WIDE: linear(50, 50)})
    for name in ("stays", "ends"):
        sched.add_camera(name, 1.0, 1, 1 / 30)
        sched.offer(frame(name, 0, 0.0), WIDE, 0.0)
    begun = sched.every_second(1.0)
    assert [text for _, text in begun if text.startswith("overload: the cameras ask")]
    assert sched.plan("ends").overload
    sched.withdraw("ends")
    assert sched.plan("ends").overload == ""
    sched.plan("stays").interval_frames = 60
    notes = [note for second in range(2, 60) for note in sched.every_second(float(second))]
    assert [text for _, text in notes] == ["overload: over, all cameras are as configured"]


def test_a_frame_of_the_old_size_does_not_bring_back_its_shape() -> None:
    sched = scheduler()
    sched.add_camera("gate", 1.0, 5, 1 / 30)
    sched.set_ladder("gate", (SMALL,))
    sched.offer(frame("gate", 0, 0.0), WIDE, 0.0)
    assert sched.plan("gate").ladder == (SMALL,)


def test_asked_use_counts_whole_frames() -> None:
    """At every frame an interval of 1.56 frames is one of 2."""
    plan = CameraPlan("gate", 1.0, 1, 1 / 30)
    plan.stretch = 1.5625
    assert plan.whole_interval_s == 2 / 30
    plan.stretch = 1.25
    assert plan.whole_interval_s == 1 / 30
