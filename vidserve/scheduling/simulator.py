"""The daemon's own scheduler and answer desk on a manual clock, with simulated cameras.

Events in time order; the detector is a formula with noise. No threads, no pixels: it answers in
seconds what a day of cameras would show, and it is how the tests prove the policy.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from vidserve.frames import Batch, Bucket, Frame
from vidserve.scheduling.answering import AnswerDesk
from vidserve.scheduling.baselines import Baseline, EarliestDeadline, Fifo, QueueLimit
from vidserve.scheduling.scheduler import Scheduler, SchedulerSettings, Wait
from vidserve.scheduling.service_time import ServiceTimes

_BUCKET = Bucket(384, 640)
POLICIES: dict[str, Callable[[SchedulerSettings, ServiceTimes], Scheduler | Baseline]] = {
    "deadline": Scheduler,
    "fifo": Fifo,
    "queue-limit": QueueLimit,
    "edf": EarliestDeadline,
}
"""The daemon's own scheduler, and what other systems do."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is simulated.

    Attributes:
        cameras: How many.
        fps: Of each.
        interval_frames: Keyframe interval K.
        service_s: Seconds by batch size.
        noise: Standard deviation of the service time, as a share.
        jitter_s: Frames arrive up to this much late.
        after_s: What follows a detection.
        same_phase: All cameras' frames come at the same moments.
        duration_s: Simulated time.
        seed: Of everything random.
        policy: Key of ``POLICIES``.
    """

    cameras: int = 8
    fps: float = 30.0
    interval_frames: int = 5
    service_s: Callable[[int], float] = field(default=lambda n: 0.003 + 0.002 * n)
    noise: float = 0.05
    jitter_s: float = 0.002
    after_s: float = 0.002
    same_phase: bool = False
    duration_s: float = 20.0
    seed: int = 1
    policy: str = "deadline"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. Rates per second of simulated time, shares 0..1, times in seconds.

    Attributes:
        captured, detected, tracked, pending: Frames.
        late: Detections that came after their frame was answered.
        in_budget: Share of answers within the budget.
        out_of_order: Answers that left before an older frame of their camera.
        per_camera_per_s: Detections in time and late, by camera.
        in_time_per_camera_per_s: Detections in time, by camera.
        gaps_s: From capture to capture of applied detections, all cameras.
        batch_sizes: How often each size was dispatched.
    """

    captured: int
    detected: int
    tracked: int
    pending: int
    late: int
    in_budget: float
    out_of_order: int
    per_camera_per_s: list[float]
    in_time_per_camera_per_s: list[float]
    gaps_s: list[float]
    batch_sizes: Counter[int]

    @property
    def in_time_per_s(self) -> float:
        return sum(self.in_time_per_camera_per_s)

    @property
    def late_share(self) -> float:
        """Of all detections."""
        return self.late / max(1, self.late + self.detected)

    @property
    def jain(self) -> float:
        """Fairness of the detections in time over the cameras, 0..1 (Jain, 1984)."""
        rates = self.in_time_per_camera_per_s
        squares = sum(rate * rate for rate in rates)
        return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0

    @property
    def mean_batch(self) -> float:
        batches = sum(self.batch_sizes.values())
        return sum(n * k for n, k in self.batch_sizes.items()) / max(1, batches)

    def gap_s(self, quantile: float) -> float:
        """Quantile of the gaps; infinite if there is none."""
        return float(np.quantile(self.gaps_s, quantile)) if self.gaps_s else math.inf


class _Run:
    def __init__(self, load: Load, settings: SchedulerSettings) -> None:
        self.load = load
        self.random = random.Random(load.seed)
        times = ServiceTimes(settings.batch_max)
        times.set_table(_BUCKET, {n: load.service_s(n) for n in range(1, settings.batch_max + 1)})
        self.scheduler = POLICIES[load.policy](settings, times)
        self.scheduler.set_after(load.after_s)
        self.desk = AnswerDesk()
        self.budget_s = settings.budget_s
        self.names = [f"camera{index:03d}" for index in range(load.cameras)]
        for name in self.names:
            self.scheduler.add_camera(name, 1.0, load.interval_frames, 1 / load.fps)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.busy = False
        self.wakes_at: set[float] = set()
        self.captured = self.detected = self.tracked = self.late = self.out_of_order = 0
        self.in_budget = 0
        self.answered_seq = dict.fromkeys(self.names, -1)
        self.applied: dict[str, list[float]] = {name: [] for name in self.names}
        self.in_time: Counter[str] = Counter()
        self.sizes: Counter[int] = Counter()

    def at(self, when_s: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when_s, next(self.order), action))

    def run(self) -> Result:
        period_s = 1 / self.load.fps
        for name in self.names:
            phase_s = 0.0 if self.load.same_phase else self.random.uniform(0, period_s)
            self.next_frame(name, 0, phase_s)
        for second in range(1, int(self.load.duration_s)):
            self.at(float(second), self.scheduler.every_second)
        while self.events:
            now_s, _, action = heapq.heappop(self.events)
            action(now_s)
            self.settle(now_s)
            self.dispatch(now_s)
            self.wake_at(self.desk.next_wake_s())
        return self.result()

    def next_frame(self, name: str, seq: int, ideal_s: float) -> None:
        if ideal_s >= self.load.duration_s:
            return
        captured_s = ideal_s + self.random.uniform(0, self.load.jitter_s)

        def arrive(now_s: float) -> None:
            self.arrive(name, seq, now_s)
            self.next_frame(name, seq + 1, ideal_s + 1 / self.load.fps)

        self.at(captured_s, arrive)

    def arrive(self, name: str, seq: int, now_s: float) -> None:
        frame = Frame(name, seq, now_s, now_s, now_s, 1280, 720)
        self.captured += 1
        in_time = False
        if self.scheduler.wants(name, now_s):
            offer = self.scheduler.offer(frame, _BUCKET, now_s)
            in_time = offer.in_time
            if offer.superseded is not None:
                self.desk.give_up(offer.superseded)
        self.desk.add(frame, self.scheduler.answer_by(frame), in_time)

    def dispatch(self, now_s: float) -> None:
        if self.busy:
            return
        decision = self.scheduler.next_batch(now_s)
        if isinstance(decision, Wait):
            self.wake_at(decision.until_s)
            return
        batch = decision
        self.busy = True
        self.sizes[len(batch.frames)] += 1
        self.desk.batch_started(
            batch, lambda frame: self.scheduler.still_in_time(frame, _BUCKET, now_s)
        )
        factor = max(0.2, self.random.gauss(1.0, self.load.noise))
        end_s = now_s + self.load.service_s(len(batch.frames)) * factor
        self.at(end_s, lambda end: self.finish(batch, end))

    def finish(self, batch: Batch, now_s: float) -> None:
        self.busy = False
        self.scheduler.finished(batch, now_s)
        for frame in batch.frames:
            self.applied[frame.camera].append(frame.captured_s)
            if self.desk.detected(frame):
                self.in_time[frame.camera] += 1
            else:
                self.late += 1

    def settle(self, now_s: float) -> None:
        for frame, detected in self.desk.take_ready(now_s):
            if detected:
                self.detected += 1
            else:
                self.tracked += 1
            self.in_budget += now_s + self.load.after_s - frame.captured_s <= self.budget_s
            self.out_of_order += frame.seq <= self.answered_seq[frame.camera]
            self.answered_seq[frame.camera] = frame.seq

    def wake_at(self, when_s: float) -> None:
        """Look again then; once is enough."""
        if math.isfinite(when_s) and when_s not in self.wakes_at:
            self.wakes_at.add(when_s)
            self.at(when_s, self.wakes_at.discard)

    def result(self) -> Result:
        duration_s = self.load.duration_s
        gaps_s = [
            later - earlier
            for times in self.applied.values()
            for earlier, later in itertools.pairwise(times)
        ]
        return Result(
            captured=self.captured,
            detected=self.detected,
            tracked=self.tracked,
            pending=len(self.desk),
            late=self.late,
            in_budget=self.in_budget / max(1, self.detected + self.tracked),
            out_of_order=self.out_of_order,
            per_camera_per_s=[len(self.applied[name]) / duration_s for name in self.names],
            in_time_per_camera_per_s=[self.in_time[name] / duration_s for name in self.names],
            gaps_s=gaps_s,
            batch_sizes=self.sizes,
        )


def simulate(load: Load, settings: SchedulerSettings | None = None) -> Result:
    """Run one load through the scheduler. Deterministic in the load's seed."""
    return _Run(load, settings or SchedulerSettings(wait_s=0.0)).run()
