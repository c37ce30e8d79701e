"""The daemon's own scheduler and answer desk on a manual clock, with simulated cameras.

Events in time order; the detector is a formula with noise, or what a trace recorded. No threads,
no pixels: it answers in seconds what a day of cameras would show, and it is how the tests prove
the policy.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vidserve.frames import Batch, Bucket, Frame
from vidserve.scheduling.answering import AnswerDesk
from vidserve.scheduling.baselines import Baseline, EarliestDeadline, Fifo, QueueLimit
from vidserve.scheduling.scheduler import Scheduler, Wait
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings

USUAL = Bucket(384, 640)
POLICIES: dict[str, Callable[[SchedulerSettings, ServiceTimes], Scheduler | Baseline]] = {
    "deadline": Scheduler,
    "fifo": Fifo,
    "queue-limit": QueueLimit,
    "edf": EarliestDeadline,
}
"""The daemon's own scheduler, and what other systems do."""


class Arrival(NamedTuple):
    """A frame: when it was captured, and when the tracking loop gets it. Seconds.

    ``doubt``: of the tracker from then on, if it measures motion.
    """

    captured_s: float
    arrives_s: float
    doubt: float | None = None


@dataclass(frozen=True, slots=True)
class SimulatedCamera:
    """A camera as the scheduler knows it.

    Attributes:
        name: Unique.
        weight: Against the other cameras'.
        interval_frames: Keyframe interval K.
        fps: Known beforehand; None: measured from its frames, as in the daemon.
        ladder: Input shapes, largest first.
        adaptive: Doubt moves the keyframes.
    """

    name: str
    weight: float = 1.0
    interval_frames: int = 5
    fps: float | None = 30.0
    ladder: tuple[Bucket, ...] = (USUAL,)
    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. Rates per second of simulated time, shares 0..1, times in seconds.

    Attributes:
        duration_s: Simulated time.
        captured, detected, tracked, pending: Frames.
        late: Detections that came after their frame was answered.
        in_budget: Share of answers within the budget.
        out_of_order: Answers that left before an older frame of their camera.
        busy_s: The detector's.
        per_camera_per_s: Detections in time and late, by camera.
        in_time_per_camera_per_s: Detections in time, by camera.
        gaps_s: From capture to capture of applied detections, all cameras.
        latencies_s: From capture to the end of the batch, of all detections.
        batch_sizes: How often each size was dispatched.
    """

    duration_s: float
    captured: int
    detected: int
    tracked: int
    pending: int
    late: int
    in_budget: float
    out_of_order: int
    busy_s: float
    per_camera_per_s: list[float]
    in_time_per_camera_per_s: list[float]
    gaps_s: list[float]
    latencies_s: list[float]
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
        return _quantile(self.gaps_s, quantile)

    def latency_s(self, quantile: float) -> float:
        """Quantile of the detections' latencies; infinite if there is none."""
        return _quantile(self.latencies_s, quantile)


class Simulation:
    """One run: what the two loops of the daemon do, event by event.

    Args:
        cameras: Known from the start.
        arrivals: Their frames by camera, in order of arrival; asked for one at a time.
        settings: Of the scheduler.
        tables_s: Swept service times by shape and batch size.
        service_s: How long a batch really takes: of its start, shape and size.
        duration_s: Of the run.
        after_s: What follows a detection, by the time; told to the scheduler every second.
        hand_back_s: From the end of a batch until the tracking loop has it, by the time.
        policy: Key of ``POLICIES``.
        wake_s: From the arrival that an idle detector was waiting for until it decides, by the
            time: its thread has to wake up, and others arrive meanwhile.
        seconds_s: When the scheduler does what it does every second; None: every whole one.
    """

    def __init__(
        self,
        cameras: Sequence[SimulatedCamera],
        arrivals: Mapping[str, Iterator[Arrival]],
        settings: SchedulerSettings,
        tables_s: Mapping[Bucket, Mapping[int, float]],
        service_s: Callable[[float, Bucket, int], float],
        *,
        duration_s: float,
        after_s: Callable[[float], float] = lambda now_s: 0.002,
        hand_back_s: Callable[[float], float] = lambda now_s: 0.0,
        policy: str = "deadline",
        wake_s: Callable[[float], float] = lambda now_s: 0.0,
        seconds_s: Sequence[float] | None = None,
    ) -> None:
        self.settings = settings
        self.duration_s = duration_s
        self.after_s = after_s
        self._seconds_s = range(1, math.ceil(duration_s)) if seconds_s is None else seconds_s
        self._arrivals = arrivals
        self._service_s = service_s
        self._hand_back_s = hand_back_s
        self._wake_s = wake_s
        self._waking = self._news = False
        times = ServiceTimes(settings.batch_max)
        for bucket, table_s in tables_s.items():
            times.set_table(bucket, table_s)
        self.scheduler = POLICIES[policy](settings, times)
        self.scheduler.set_after(after_s(0.0))
        self.desk = AnswerDesk()
        self.names = [camera.name for camera in cameras]
        for camera in cameras:
            period_s = None if camera.fps is None else 1 / camera.fps
            self.scheduler.add_camera(
                camera.name, camera.weight, camera.interval_frames, period_s, camera.adaptive
            )
            self.scheduler.set_ladder(camera.name, camera.ladder)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._seq = dict.fromkeys(self.names, 0)
        self._busy = False
        self._wakes_at: set[float] = set()
        self._captured = self._detected = self._tracked = self._late = self._out_of_order = 0
        self._in_budget = 0
        self._busy_s = 0.0
        self._free_s = -math.inf
        self._answered_seq = dict.fromkeys(self.names, -1)
        self._applied: dict[str, list[float]] = {name: [] for name in self.names}
        self._in_time: Counter[str] = Counter()
        self._latencies_s: list[float] = []
        self._sizes: Counter[int] = Counter()

    def at(self, when_s: float, action: Callable[[float], None]) -> None:
        """Do something then; it is given the time."""
        heapq.heappush(self._events, (when_s, next(self._order), action))

    def run(self) -> Result:
        """From the first frame to the last answer."""
        for name in self.names:
            self._next_frame(name)
        for second_s in self._seconds_s:
            self.at(second_s, self._every_second)
        while self._events:
            now_s, _, action = heapq.heappop(self._events)
            action(now_s)
            self._settle(now_s)
            self._dispatch(now_s)
            self._wake_at(self.desk.next_wake_s())
        return self._result()

    def withdraw(self, camera: str) -> None:
        """The camera does not deliver any more."""
        frame = self.scheduler.withdraw(camera)
        if frame is not None:
            self.desk.give_up(frame)

    def _every_second(self, now_s: float) -> None:
        self.scheduler.set_after(self.after_s(now_s))
        self.scheduler.every_second(now_s)

    def _next_frame(self, name: str) -> None:
        arrival = next(self._arrivals[name], None)
        if arrival is None:
            return

        def arrive(now_s: float) -> None:
            self._arrive(name, arrival.captured_s, now_s)
            if arrival.doubt is not None:
                self.scheduler.tell_doubt(name, arrival.doubt)
            self._next_frame(name)

        self.at(arrival.arrives_s, arrive)

    def _arrive(self, name: str, captured_s: float, now_s: float) -> None:
        seq = self._seq[name]
        self._seq[name] = seq + 1
        frame = Frame(name, seq, captured_s, captured_s, now_s, 1280, 720)
        self._captured += 1
        in_time = False
        if self.scheduler.wants(name, captured_s):
            offer = self.scheduler.offer(frame, self._bucket(name), now_s)
            self._news = True
            in_time = offer.in_time
            if offer.superseded is not None:
                self.desk.give_up(offer.superseded)
        self.desk.add(frame, self.scheduler.answer_by(frame), in_time)

    def _bucket(self, name: str) -> Bucket:
        bucket = self.scheduler.plan(name).bucket
        assert bucket is not None, "every camera has a ladder"
        return bucket

    def _dispatch(self, now_s: float) -> None:
        if self._busy or self._waking:
            return
        asleep, self._news = self._news and now_s > self._free_s, False
        wake_s = self._wake_s(now_s) if asleep else 0.0
        if wake_s > 0:
            self._waking = True
            self.at(now_s + wake_s, self._woken)
        else:
            self._decide(now_s)

    def _woken(self, now_s: float) -> None:
        self._waking = self._news = False
        self._decide(now_s)

    def _decide(self, now_s: float) -> None:
        decision = self.scheduler.next_batch(now_s)
        if isinstance(decision, Wait):
            self._wake_at(decision.until_s)
            return
        batch = decision
        self._busy = True
        self._sizes[len(batch.frames)] += 1
        self.desk.batch_started(
            batch,
            lambda frame: self.scheduler.still_in_time(frame, self._bucket(frame.camera), now_s),
        )
        end_s = now_s + self._service_s(now_s, batch.bucket, len(batch.frames))
        self.at(end_s, lambda end: self._finish(batch, end))

    def _finish(self, batch: Batch, now_s: float) -> None:
        self._busy = False
        self._free_s = now_s
        self._busy_s += now_s - batch.started_s
        self.scheduler.finished(batch, now_s)
        back_s = self._hand_back_s(now_s)
        if back_s > 0:
            self.at(now_s + back_s, lambda _: self._apply(batch, now_s))
        else:
            self._apply(batch, now_s)

    def _apply(self, batch: Batch, done_s: float) -> None:
        for frame in batch.frames:
            self._applied[frame.camera].append(frame.captured_s)
            self._latencies_s.append(done_s - frame.captured_s)
            if self.desk.detected(frame):
                self._in_time[frame.camera] += 1
            else:
                self._late += 1

    def _settle(self, now_s: float) -> None:
        for frame, detected in self.desk.take_ready(now_s):
            if detected:
                self._detected += 1
            else:
                self._tracked += 1
            handed_s = now_s + self.after_s(now_s)
            self._in_budget += handed_s - frame.captured_s <= self.settings.budget_s
            self._out_of_order += frame.seq <= self._answered_seq[frame.camera]
            self._answered_seq[frame.camera] = frame.seq

    def _wake_at(self, when_s: float) -> None:
        """Look again then; once is enough."""
        if math.isfinite(when_s) and when_s not in self._wakes_at:
            self._wakes_at.add(when_s)
            self.at(when_s, self._wakes_at.discard)

    def _result(self) -> Result:
        gaps_s = [
            later - earlier
            for times in self._applied.values()
            for earlier, later in itertools.pairwise(times)
        ]
        return Result(
            duration_s=self.duration_s,
            captured=self._captured,
            detected=self._detected,
            tracked=self._tracked,
            pending=len(self.desk),
            late=self._late,
            in_budget=self._in_budget / max(1, self._detected + self._tracked),
            out_of_order=self._out_of_order,
            busy_s=self._busy_s,
            per_camera_per_s=[len(self._applied[n]) / self.duration_s for n in self.names],
            in_time_per_camera_per_s=[self._in_time[n] / self.duration_s for n in self.names],
            gaps_s=gaps_s,
            latencies_s=self._latencies_s,
            batch_sizes=self._sizes,
        )


def _quantile(values: Sequence[float], quantile: float) -> float:
    return float(np.quantile(values, quantile)) if values else math.inf
