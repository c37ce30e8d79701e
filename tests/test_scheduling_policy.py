"""The scheduler's rules one by one, on a manual clock. Service times are 3 + 2n ms, margin 12 %."""

from __future__ import annotations

import math

import pytest

from tests.lab.scheduling import (
    PERIOD_S,
    SMALL,
    TALL,
    WIDE,
    dispatched,
    frame,
    linear,
    names,
    scheduler,
    waits,
    with_cameras,
)
from vidserve.frames import BatchKind
from vidserve.scheduling.scheduler import Scheduler
from vidserve.scheduling.settings import SchedulerSettings

# -- offers --------------------------------------------------------------------------------


def test_a_newer_offer_gives_the_older_back_exactly_once() -> None:
    sched = with_cameras(scheduler(), "gate")
    frames = [frame("gate", seq, seq * PERIOD_S) for seq in range(3)]
    given = [sched.offer(f, WIDE, f.captured_s).superseded for f in frames]
    assert given[0] is None
    assert given[1] is frames[0]
    assert given[2] is frames[1]
    assert dispatched(sched, 2 * PERIOD_S).frames == (frames[2],)
    assert sched.offer(frame("gate", 3, 0.1), WIDE, 0.1).superseded is None


def test_an_offer_of_one_camera_never_displaces_anothers() -> None:
    sched = with_cameras(scheduler(), "gate", "yard")
    sched.offer(frame("gate", 0, 0.0), WIDE, 0.0)
    assert sched.offer(frame("yard", 0, 0.0), WIDE, 0.0).superseded is None
    assert sorted(names(dispatched(sched, 0.0))) == ["gate", "yard"]


@pytest.mark.parametrize("leave", ["withdraw", "remove_camera"])
def test_a_camera_that_leaves_gets_its_frame_back_once(leave: str) -> None:
    sched = with_cameras(scheduler(), "gate", "yard")
    mine = frame("gate", 0, 0.0)
    sched.offer(mine, WIDE, 0.0)
    sched.offer(frame("yard", 0, 0.0), WIDE, 0.0)
    assert getattr(sched, leave)("gate") is mine
    assert getattr(sched, leave)("gate") is None
    assert names(dispatched(sched, 0.0)) == ["yard"]
    assert waits(sched, 0.0) == math.inf


def test_a_batched_frame_is_not_given_back_when_its_camera_leaves() -> None:
    sched = with_cameras(scheduler(), "gate")
    sched.offer(frame("gate", 0, 0.0), WIDE, 0.0)
    batch = dispatched(sched, 0.0)
    assert sched.withdraw("gate") is None
    assert sched.remove_camera("gate") is None
    sched.finished(batch, 0.005)  # and its end still counts
    assert waits(sched, 0.005) == math.inf


def test_a_camera_that_comes_back_is_due_at_once() -> None:
    sched = with_cameras(scheduler(), "gate")
    sched.offer(frame("gate", 0, 0.0), WIDE, 0.0)
    sched.finished(dispatched(sched, 0.0), 0.005)
    assert not sched.wants("gate", PERIOD_S)
    sched.withdraw("gate")
    assert sched.wants("gate", 2 * PERIOD_S)
    sched.remove_camera("gate")
    assert not sched.wants("gate", 3 * PERIOD_S)
    with_cameras(sched, "gate")
    assert sched.wants("gate", 4 * PERIOD_S)


def test_a_camera_without_weight_is_never_asked_for() -> None:
    sched = scheduler()
    sched.add_camera("gate", 0.0, 1, PERIOD_S)
    assert not any(sched.wants("gate", k * PERIOD_S) for k in range(300))


def test_an_unknown_camera_is_never_asked_for() -> None:
    assert not scheduler().wants("nobody", 0.0)


def test_keyframes_are_asked_for_every_interval() -> None:
    sched = with_cameras(scheduler(), "gate")
    asked = []
    for seq in range(50):
        now_s = seq * PERIOD_S
        if sched.wants("gate", now_s):
            asked.append(seq)
            sched.offer(frame("gate", seq, now_s), WIDE, now_s)
            sched.finished(dispatched(sched, now_s), now_s + 0.005)
    assert asked == list(range(0, 50, 5))


def test_a_keyframe_that_was_not_dispatched_keeps_its_camera_due() -> None:
    sched = with_cameras(scheduler(), "gate")
    for seq in range(4):
        assert sched.wants("gate", seq * PERIOD_S)
        sched.offer(frame("gate", seq, seq * PERIOD_S), WIDE, seq * PERIOD_S)


# -- what a batch may hold -----------------------------------------------------------------


def test_a_batch_never_mixes_shapes() -> None:
    sched = scheduler()
    for index in range(4):
        with_cameras(sched, f"wide{index}", f"tall{index}")
        sched.offer(frame(f"wide{index}", 0, 0.0), WIDE, 0.0)
        sched.offer(frame(f"tall{index}", 0, 0.0), TALL, 0.0)
    first = dispatched(sched, 0.0)
    sched.finished(first, 0.011)
    second = dispatched(sched, 0.011)
    assert {first.bucket, second.bucket} == {WIDE, TALL}
    for batch in (first, second):
        prefix = "wide" if batch.bucket == WIDE else "tall"
        assert len(batch.frames) == 4
        assert all(name.startswith(prefix) for name in names(batch))


def eight_offered(sched: Scheduler) -> Scheduler:
    for index in range(8):
        with_cameras(sched, f"c{index}")
        sched.offer(frame(f"c{index}", 0, 0.0), WIDE, 0.0)
    return sched


def test_all_that_fit_go_together() -> None:
    assert len(dispatched(eight_offered(scheduler()), 0.0).frames) == 8


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_the_pixel_budget_bounds_a_batch(most: int) -> None:
    settings = SchedulerSettings(wait_s=0.0, max_pixels=(most + 1) * WIDE.pixels - 1)
    assert len(dispatched(eight_offered(scheduler(settings)), 0.0).frames) == most


def test_the_configured_largest_batch_bounds_a_batch() -> None:
    sched = scheduler(SchedulerSettings(wait_s=0.0, batch_max=3))
    assert len(dispatched(eight_offered(sched), 0.0).frames) == 3


def test_the_models_largest_batch_bounds_a_batch_also_when_correcting() -> None:
    sched = scheduler()
    sched.limit_batch(2)
    assert len(dispatched(eight_offered(sched), 0.0).frames) == 2
    slow = scheduler(tables={WIDE: linear(100, 0.5)})
    slow.limit_batch(2)
    batch = dispatched(eight_offered(slow), 0.0)
    assert (batch.kind, len(batch.frames)) == (BatchKind.CORRECTION, 2)


def test_no_batch_is_larger_than_the_peak_of_the_detectors_rate() -> None:
    table_s = {1: 0.004, 2: 0.005, 3: 0.006, 4: 0.02, 8: 0.04}
    sched = eight_offered(scheduler(tables={WIDE: table_s}))
    assert len(dispatched(sched, 0.0).frames) == 3


def test_a_batch_tells_when_it_started_and_should_end() -> None:
    batch = dispatched(eight_offered(scheduler()), 0.001)
    assert batch.started_s == 0.001
    assert batch.expected_finish_s == pytest.approx(0.001 + 0.019)
    assert batch.kind is BatchKind.IN_TIME


# -- deadlines -----------------------------------------------------------------------------


def test_the_answer_time_leaves_room_for_what_follows() -> None:
    sched = scheduler()
    sched.set_after(0.004)
    assert sched.answer_by(frame("gate", 0, 10.0)) == pytest.approx(10.0 + 0.033 - 0.004 - 0.001)


def test_a_frame_is_in_time_by_the_planned_service_time_to_the_moment() -> None:
    sched = with_cameras(scheduler(), "gate")
    only = frame("gate", 0, 0.0)
    assert sched.offer(only, WIDE, 0.0).in_time
    last_start_s = sched.answer_by(only) - sched.service_times.planned(WIDE)[1]
    # It may wait a little longer than it can be promised to be in time: nothing is lost by that.
    last_hope_s = sched.answer_by(only) - sched.service_times.expected(WIDE)[1]
    assert last_start_s < last_hope_s
    assert sched.still_in_time(only, WIDE, last_hope_s - 1e-9)
    assert not sched.still_in_time(only, WIDE, last_hope_s + 1e-9)
    # Just too late it is neither sent in time nor as a correction: it could have been in time.
    assert waits(sched, last_start_s + 1e-9) == pytest.approx(sched.plan("gate").interval_s)
    assert dispatched(sched, last_start_s - 1e-9).kind is BatchKind.IN_TIME


def test_a_frame_that_is_short_of_time_keeps_the_batch_small() -> None:
    """The old frame would miss S(2): it goes alone, the young one next."""
    sched = with_cameras(scheduler(), "old", "young")
    old = frame("old", 0, 0.0)
    sched.offer(old, WIDE, 0.0)
    planned = sched.service_times.planned(WIDE)
    now_s = sched.answer_by(old) - (planned[1] + planned[2]) / 2
    sched.offer(frame("young", 0, now_s), WIDE, now_s)
    batch = dispatched(sched, now_s)
    assert names(batch) == ["old"]
    sched.finished(batch, now_s + 0.005)
    assert names(dispatched(sched, now_s + 0.005)) == ["young"]


def test_an_offer_tells_the_truth_beside_a_busy_detector() -> None:
    sched = with_cameras(eight_offered(scheduler()), "late")
    batch = dispatched(sched, 0.0)  # busy until 19 ms
    new = frame("late", 0, 0.001)
    assert sched.offer(new, WIDE, 0.001).in_time  # 19 + 5.6 <= 31 ms
    old = frame("late", 1, -0.008)
    assert not sched.offer(old, WIDE, 0.001).in_time
    sched.finished(batch, 0.006, failed=True)  # free sooner than thought, nothing learnt
    assert sched.still_in_time(old, WIDE, 0.006)


def test_the_shape_whose_frame_would_be_lost_goes_first() -> None:
    """Worth a little less, but its time runs out while the other can wait for the next batch."""
    sched = with_cameras(scheduler(), "urgent", "calm")
    sched.plan("urgent").last_s, sched.plan("calm").last_s = -1.0, -1.1
    sched.offer(frame("urgent", 0, 0.0), TALL, 0.02)
    sched.offer(frame("calm", 0, 0.02), WIDE, 0.02)
    batch = dispatched(sched, 0.02)
    assert names(batch) == ["urgent"]
    sched.finished(batch, 0.025)
    batch = dispatched(sched, 0.025)
    assert (names(batch), batch.kind) == (["calm"], BatchKind.IN_TIME)


# -- worth ---------------------------------------------------------------------------------


def one_place(last_s: dict[str, float], weights: dict[str, float] | None = None) -> str:
    """Which camera gets the only place of a batch, captured at 1.0."""
    sched = scheduler(SchedulerSettings(wait_s=0.0, batch_max=1))
    for name, value_s in last_s.items():
        sched.add_camera(name, (weights or {}).get(name, 1.0), 5, PERIOD_S)
        sched.plan(name).last_s = value_s
        sched.offer(frame(name, 0, 1.0), WIDE, 1.0)
    return names(dispatched(sched, 1.0))[0]


def test_the_longest_gap_goes_first() -> None:
    assert one_place({"a": 0.6, "b": 0.2, "c": 0.4}) == "b"


def test_weight_multiplies_the_gap() -> None:
    assert one_place({"a": 0.5, "b": 0.5}, {"b": 2.0}) == "b"
    assert one_place({"a": 0.2, "b": 0.7}, {"b": 2.0}) == "a"


def test_doubt_raises_the_worth() -> None:
    sched = with_cameras(scheduler(SchedulerSettings(wait_s=0.0, batch_max=1)), "a", "b")
    for name in ("a", "b"):
        sched.plan(name).last_s = 0.5
        sched.offer(frame(name, 0, 1.0), WIDE, 1.0)
    sched.plan("b").doubt = 0.5
    assert names(dispatched(sched, 1.0)) == ["b"]


def test_the_worth_of_a_first_detection_is_finite_and_high() -> None:
    sched = with_cameras(scheduler(), "new", "old")
    sched.plan("old").last_s = 0.0
    first = sched.plan("new").value(1.0, 2.0)
    assert math.isfinite(first)
    assert first > sched.plan("old").value(1.0, 2.0)


def test_of_equal_scores_the_larger_batch_goes() -> None:
    """Frames worth nothing more (just detected): one dispatch is better than three."""
    sched = with_cameras(scheduler(), *"abc")
    for name in "abc":
        sched.plan(name).last_s = 1.0
        sched.offer(frame(name, 0, 1.0), WIDE, 1.0)
    assert len(dispatched(sched, 1.0).frames) == 3


# -- learning ------------------------------------------------------------------------------


def test_a_failed_batch_teaches_no_service_time() -> None:
    sched = eight_offered(scheduler())
    before = sched.service_times.expected(WIDE)
    sched.finished(dispatched(sched, 0.0), 3.0, failed=True)
    assert sched.service_times.expected(WIDE) == before


def test_an_unknown_shape_is_guessed_when_it_is_first_offered() -> None:
    sched = with_cameras(scheduler(tables={WIDE: linear(0, 10)}), "gate")
    sched.offer(frame("gate", 0, 0.0), SMALL, 0.0)  # a quarter of the pixels
    batch = dispatched(sched, 0.0)
    assert batch.expected_finish_s == pytest.approx(0.0025)


def test_an_idle_detector_tries_what_is_likely_to_be_in_time() -> None:
    """17 ms of the budget's 30, and a margin: no promise, but most often a detection in time."""
    table_s = {n: 0.026 * n for n in range(1, 9)}
    sched = with_cameras(scheduler(tables={WIDE: table_s}), "gate")
    only = frame("gate", 0, 0.0)
    arrives_s = 0.003
    assert arrives_s + sched.service_times.planned(WIDE)[1] > sched.answer_by(only)
    assert sched.offer(only, WIDE, arrives_s).in_time
    assert dispatched(sched, arrives_s).kind is BatchKind.LIKELY
    slower = frame("gate", 5, 1.0)
    assert not sched.offer(slower, WIDE, 1.005).in_time
    assert dispatched(sched, 1.030).kind is BatchKind.CORRECTION
