"""The gate: threads sleep until it matters. Real time, with generous bounds."""

from __future__ import annotations

import threading
import time

from tests.lab.scheduling import SMALL, WIDE, frame, linear
from vidserve.clock import RealClock
from vidserve.frames import Batch
from vidserve.gate import SchedulerGate
from vidserve.scheduling.scheduler import Scheduler, Wait
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings

CLOCK = RealClock()
PATIENCE_S = 20.0


class CountingScheduler(Scheduler):
    """The real one; it counts how often it is asked."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        times = ServiceTimes(8)
        times.set_table(WIDE, linear(3, 2))
        super().__init__(settings or SchedulerSettings(wait_s=0.0, budget_s=60.0), times)
        self.asked = 0
        self.asked_once = threading.Event()

    def next_batch(self, now_s: float) -> Batch | Wait:
        self.asked += 1
        self.asked_once.set()
        return super().next_batch(now_s)


class Asker:
    """A detection thread that asks once."""

    def __init__(self, gate: SchedulerGate, idle_s: float) -> None:
        self.result: Batch | None = None
        self.took_s = 0.0
        self._gate = gate
        self._idle_s = idle_s
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        start_s = time.monotonic()
        self.result = self._gate.next_batch(self._idle_s)
        self.took_s = time.monotonic() - start_s

    def join(self) -> Batch | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "next_batch did not return"
        return self.result


def test_nothing_to_do_is_none_after_the_idle_time_and_no_busy_loop() -> None:
    sched = CountingScheduler()
    gate = SchedulerGate(sched, CLOCK)
    start_s = time.monotonic()
    assert gate.next_batch(1.0) is None
    assert time.monotonic() - start_s >= 0.99
    assert sched.asked <= 5


def test_an_idle_time_of_zero_returns_at_once() -> None:
    sched = CountingScheduler()
    assert SchedulerGate(sched, CLOCK).next_batch(0.0) is None
    assert sched.asked == 1


def test_an_offer_wakes_the_detection_thread() -> None:
    sched = CountingScheduler()
    sched.add_camera("gate")
    gate = SchedulerGate(sched, CLOCK)
    asker = Asker(gate, idle_s=600.0)
    assert sched.asked_once.wait(PATIENCE_S)
    now_s = CLOCK.now()
    mine = frame("gate", 0, now_s)
    assert gate.offer(mine, WIDE, now_s).in_time
    batch = asker.join()
    assert batch is not None
    assert batch.frames == (mine,)
    assert sched.asked <= 5


def test_closing_wakes_the_detection_thread_and_ends_all_later_asking() -> None:
    sched = CountingScheduler()
    gate = SchedulerGate(sched, CLOCK)
    asker = Asker(gate, idle_s=600.0)
    assert sched.asked_once.wait(PATIENCE_S)
    gate.close()
    assert asker.join() is None
    asked = sched.asked
    assert gate.next_batch(600.0) is None
    assert sched.asked == asked


def test_a_closed_gate_gives_no_batch_though_frames_wait() -> None:
    sched = CountingScheduler()
    sched.add_camera("gate")
    gate = SchedulerGate(sched, CLOCK)
    mine = frame("gate", 0, CLOCK.now())
    gate.offer(mine, WIDE, CLOCK.now())
    gate.close()
    assert gate.next_batch(600.0) is None
    assert gate.withdraw("gate") is mine  # and it can be taken back


def test_a_hold_is_slept_through() -> None:
    """A batch held for 0.5 s: the scheduler is asked at its start and its end, not in between."""
    settings = SchedulerSettings(wait_s=0.5, budget_s=60.0)
    sched = CountingScheduler(settings)
    sched.add_camera("gate", 1.0, 5, 1 / 30)
    sched.add_camera("other", 1.0, 5, 1 / 30)
    sched.plan("other").last_s = CLOCK.now()
    gate = SchedulerGate(sched, CLOCK)
    now_s = CLOCK.now()
    gate.offer(frame("gate", 0, now_s), WIDE, now_s)
    batch = gate.next_batch(600.0)
    assert batch is not None
    assert batch.started_s - now_s >= 0.499
    assert sched.asked <= 6


def test_a_hold_longer_than_the_idle_time_is_none_and_resumed() -> None:
    sched = CountingScheduler(SchedulerSettings(wait_s=1.0, budget_s=60.0))
    sched.add_camera("gate", 1.0, 5, 1 / 30)
    sched.add_camera("other", 1.0, 5, 1 / 30)
    sched.plan("other").last_s = CLOCK.now()
    gate = SchedulerGate(sched, CLOCK)
    now_s = CLOCK.now()
    gate.offer(frame("gate", 0, now_s), WIDE, now_s)
    assert gate.next_batch(0.05) is None
    assert gate.next_batch(600.0) is not None


def test_many_threads_at_once_lose_no_frame() -> None:
    """Tracking and detection loop hammer the gate: each frame comes back by exactly one way."""
    sched = CountingScheduler()
    cameras = [f"c{k}" for k in range(6)]
    for camera in cameras:
        sched.add_camera(camera, 1.0, 1, 1 / 30)
    gate = SchedulerGate(sched, CLOCK)
    back: list[tuple[str, int]] = []
    batched: list[tuple[str, int]] = []

    def detect() -> None:
        while True:
            batch = gate.next_batch(600.0)
            if batch is None:
                return
            batched.extend((f.camera, f.seq) for f in batch.frames)
            gate.finished(batch, CLOCK.now(), failed=False)

    thread = threading.Thread(target=detect, daemon=True)
    thread.start()
    offered = []
    for seq in range(300):
        for camera in cameras:
            now_s = CLOCK.now()
            old = gate.offer(frame(camera, seq, now_s), WIDE, now_s).superseded
            offered.append((camera, seq))
            if old is not None:
                back.append((old.camera, old.seq))
        if seq % 50 == 0:
            gate.every_second(CLOCK.now(), 0.002)
            # The detection thread gets its turn: an offered frame has to be taken.
            before, until_s = len(batched), time.monotonic() + PATIENCE_S
            while len(batched) == before and time.monotonic() < until_s:
                time.sleep(0.001)
            assert len(batched) > before, "an offered frame was never taken"
    gate.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    for camera in cameras:
        left = gate.withdraw(camera)
        if left is not None:
            back.append((left.camera, left.seq))
    assert sorted(back + batched) == sorted(offered)


def test_what_the_gate_reports() -> None:
    sched = CountingScheduler()
    sched.add_camera("gate", 1.0, 6, 1 / 30)
    sched.plan("gate").stretch = 1.25
    gate = SchedulerGate(sched, CLOCK)
    assert gate.intervals() == {
        "gate": {
            "keyframe_interval_s": 0.25,
            "keyframe_interval": 7.5,
            "stretch": 1.25,
            "bucket": None,
            "overload": "overload: a detection every 0.25 s instead of 0.20 s",
        }
    }
    gate.set_ladder("gate", (WIDE, SMALL))
    sched.plan("gate").level = 1
    assert gate.intervals()["gate"]["bucket"] == "320x192"
    assert "input of 320x192 instead of 640x384" in str(gate.intervals()["gate"]["overload"])
    assert gate.service_ms()["640x384"]["1"] == 5.0


def test_every_second_passes_on_what_follows_a_detection() -> None:
    sched = CountingScheduler()
    gate = SchedulerGate(sched, CLOCK)
    one = frame("gate", 0, 0.0)
    before_s = sched.answer_by(one)
    gate.every_second(1.0, 0.010)
    assert round(before_s - sched.answer_by(one), 6) == 0.008
