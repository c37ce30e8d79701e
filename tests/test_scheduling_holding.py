"""Small batches that are held, and frames that are detected too late to put the tracker right."""

from __future__ import annotations

import itertools

import pytest

from tests.lab.scheduling import (
    PERIOD_S,
    SMALL,
    WIDE,
    dispatched,
    frame,
    linear,
    names,
    scheduler,
    waits,
    with_cameras,
)
from vidserve.frames import Batch, BatchKind
from vidserve.scheduling.loads import Load, simulate
from vidserve.scheduling.scheduler import Scheduler
from vidserve.scheduling.settings import SchedulerSettings

# -- holding -------------------------------------------------------------------------------

HOLDING = SchedulerSettings(wait_s=0.015, batch_target=4)


def lone_offer(
    settings: SchedulerSettings, other_last_s: float | None, captured_s: float = 1.0
) -> Scheduler:
    """One frame offered at 1.0; another camera whose last detection was then."""
    sched = with_cameras(scheduler(settings), "gate", "other")
    sched.plan("gate").last_s = 0.5
    sched.plan("other").last_s = other_last_s
    sched.offer(frame("gate", 0, captured_s), WIDE, 1.0)
    return sched


def test_without_a_wait_an_idle_detector_starts_at_once() -> None:
    sched = lone_offer(SchedulerSettings(wait_s=0.0), other_last_s=1.0 - 5 * PERIOD_S)
    assert names(dispatched(sched, 1.0)) == ["gate"]


def test_a_small_batch_is_held_while_another_camera_is_due() -> None:
    sched = lone_offer(HOLDING, other_last_s=1.001 - 5 * PERIOD_S)
    assert waits(sched, 1.0) == pytest.approx(1.015)
    sched.offer(frame("other", 0, 1.001), WIDE, 1.001)
    # Nobody else is due: no reason to wait any longer.
    assert sorted(names(dispatched(sched, 1.001))) == ["gate", "other"]


def test_a_hold_ends_by_itself_when_nobody_comes() -> None:
    sched = lone_offer(HOLDING, other_last_s=1.001 - 5 * PERIOD_S)
    until_s = waits(sched, 1.0)
    assert waits(sched, until_s - 1e-6) == until_s
    assert names(dispatched(sched, until_s)) == ["gate"]


def test_nothing_is_held_for_a_camera_that_is_not_due_before_the_end() -> None:
    sched = lone_offer(HOLDING, other_last_s=0.99)
    assert names(dispatched(sched, 1.0)) == ["gate"]


def test_nothing_is_held_for_cameras_without_weight() -> None:
    sched = scheduler(HOLDING)
    with_cameras(sched, "gate")
    with_cameras(sched, "off", weight=0.0)
    sched.plan("off").last_s = 1.0 - 5 * PERIOD_S
    sched.offer(frame("gate", 0, 1.0), WIDE, 1.0)
    assert names(dispatched(sched, 1.0)) == ["gate"]


def test_a_hold_ends_before_a_deadline_would_be_missed() -> None:
    """Captured 15 ms before it was offered: only 30 - 15 - S(2) are left, not 15 ms."""
    sched = lone_offer(HOLDING, other_last_s=1.001 - 5 * PERIOD_S, captured_s=0.985)
    until_s = waits(sched, 1.0)
    assert until_s == pytest.approx(0.985 + 0.030 - sched.service_times.planned(WIDE)[2])
    assert dispatched(sched, until_s).kind is BatchKind.IN_TIME


def test_a_hold_counts_from_the_oldest_offer() -> None:
    sched = with_cameras(scheduler(HOLDING), "a", "b", "c")
    for name in ("a", "b"):
        sched.plan(name).last_s = 0.5
    sched.plan("c").last_s = 1.005 - 5 * PERIOD_S
    sched.offer(frame("a", 0, 1.0), WIDE, 1.0)
    sched.offer(frame("b", 0, 1.010), WIDE, 1.010)
    assert waits(sched, 1.010) == pytest.approx(1.015)


def test_the_target_ends_a_hold() -> None:
    sched = with_cameras(scheduler(HOLDING), *"abcde")
    sched.plan("e").last_s = 1.0 - 5 * PERIOD_S
    for name in "abc":
        sched.offer(frame(name, 0, 1.0), WIDE, 1.0)
    waits(sched, 1.0)
    sched.offer(frame("d", 0, 1.0), WIDE, 1.0)
    assert len(dispatched(sched, 1.0).frames) == 4


def test_nothing_is_held_when_a_larger_batch_is_no_faster() -> None:
    flat = scheduler(HOLDING, {WIDE: linear(0.1, 5)})
    with_cameras(flat, "gate", "other")
    flat.plan("other").last_s = 1.0 - 5 * PERIOD_S
    flat.offer(frame("gate", 0, 1.0), WIDE, 1.0)
    assert names(dispatched(flat, 1.0)) == ["gate"]


# -- corrections ---------------------------------------------------------------------------


def test_a_slow_detector_corrects_with_the_newest_frame() -> None:
    sched = with_cameras(scheduler(tables={WIDE: linear(0, 100)}), "gate")
    assert not sched.offer(frame("gate", 0, 0.0), WIDE, 0.0).in_time
    newest = frame("gate", 1, PERIOD_S)
    assert not sched.offer(newest, WIDE, PERIOD_S).in_time
    batch = dispatched(sched, PERIOD_S)
    assert batch.kind is BatchKind.CORRECTION
    assert batch.frames == (newest,)


def test_a_correction_serves_the_longest_gap_first() -> None:
    sched = with_cameras(scheduler(tables={WIDE: linear(0, 100)}), *"abc")
    for name, last_s in (("a", 0.8), ("b", 0.5), ("c", 0.7)):
        sched.plan(name).last_s = last_s
        sched.offer(frame(name, 0, 1.0), WIDE, 1.0)
    assert names(dispatched(sched, 1.0)) == ["b"]


def test_frames_in_time_go_before_frames_that_cannot_be() -> None:
    sched = scheduler(tables={WIDE: linear(0, 100), SMALL: linear(3, 2)})
    with_cameras(sched, "slow", "quick")
    sched.offer(frame("slow", 0, 0.0), WIDE, 0.0)
    sched.offer(frame("quick", 0, 0.0), SMALL, 0.0)
    batch = dispatched(sched, 0.0)
    assert (names(batch), batch.kind) == (["quick"], BatchKind.IN_TIME)
    sched.finished(batch, 0.005)
    batch = dispatched(sched, 0.005)
    assert (names(batch), batch.kind) == (["slow"], BatchKind.CORRECTION)


def test_a_missed_frame_is_corrected_when_its_camera_is_neglected() -> None:
    sched = with_cameras(scheduler(), "gate")
    plan = sched.plan("gate")
    sched.offer(frame("gate", 0, 0.0), WIDE, 0.0)
    sched.finished(dispatched(sched, 0.0), 0.005)
    captured_s = plan.interval_s
    sched.offer(frame("gate", 1, captured_s), WIDE, captured_s)
    missed_s = captured_s + 0.033
    assert waits(sched, missed_s) == pytest.approx(2 * plan.interval_s)
    batch = dispatched(sched, 2 * plan.interval_s)
    assert (names(batch), batch.kind) == (["gate"], BatchKind.CORRECTION)


def test_two_cameras_of_one_phase_share_a_detector_for_one() -> None:
    """A batch of one fits into the budget and a second one does not: the tie is not for ever."""
    load = Load(
        cameras=2, interval_frames=1, same_phase=True, jitter_s=0.0,
        service_s=lambda n: (1 + 14 * n) / 1000,
    )  # fmt: skip
    result = simulate(load)
    assert min(result.per_camera_per_s) >= 10
    assert result.in_budget == 1.0


def test_a_starving_camera_goes_before_heavier_ones_in_time() -> None:
    """One place, a heavy camera every frame in time, a light one always worth less."""
    sched = scheduler(SchedulerSettings(wait_s=0.0, batch_max=1, max_gap_s=0.5))
    sched.add_camera("heavy", 1000.0, 1, PERIOD_S)
    sched.add_camera("light", 1.0, 1, PERIOD_S)
    for name, start_s in (("heavy", -0.01), ("light", 0.0)):  # the last detection of each
        sched.offer(frame(name, 0, start_s), WIDE, start_s)
        sched.finished(dispatched(sched, start_s), start_s + 0.005)
    served: list[tuple[float, str]] = []
    for seq in range(1, 31):
        now_s = seq * PERIOD_S
        for name in ("heavy", "light"):
            sched.offer(frame(name, seq, now_s), WIDE, now_s)
        batch = dispatched(sched, now_s)
        served += [(now_s, name) for name in names(batch)]
        sched.finished(batch, now_s + PERIOD_S / 2)
    light = [now_s for now_s, name in served if name == "light"]
    assert light, "the light camera starves"
    assert light[0] == pytest.approx(0.5, abs=PERIOD_S)


def test_a_camera_that_always_loses_the_race_is_served_before_max_gap() -> None:
    """A 10 fps camera in step with a 30 fps one, both at K = 1, and one batch at a time."""
    sched = scheduler(tables={WIDE: linear(1, 14)})
    sched.add_camera("slow", 1.0, 1, 0.1)
    sched.add_camera("quick", 1.0, 1, PERIOD_S)
    served: list[tuple[float, str]] = []
    busy_until_s = 0.0
    batch = None
    for tick in range(3000):  # milliseconds
        now_s = tick / 1000
        if batch is not None and now_s >= busy_until_s:
            sched.finished(batch, now_s)
            batch = None
        # The quick one's frame always comes just before the slow one's.
        if tick % 33 == 0:
            sched.offer(frame("quick", tick, now_s), WIDE, now_s)
        if batch is None:
            decision = sched.next_batch(now_s)
            if isinstance(decision, Batch):
                batch, busy_until_s = decision, now_s + 0.015
                served += [(now_s, name) for name in names(decision)]
        if tick % 99 == 1:
            sched.offer(frame("slow", tick, now_s), WIDE, now_s)
    times_s = [when_s for when_s, name in served if name == "slow"]
    gaps_s = [b - a for a, b in itertools.pairwise([0.0, *times_s, 3.0])]
    assert max(gaps_s) < 0.8
    assert sum(name == "quick" for _, name in served) > 40
