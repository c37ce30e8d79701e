"""A bench for the scheduler: what the two loops do, on a clock of its own, with everything checked.

Unlike the simulator of ``vidserve`` it knows cameras of different shapes that come and go, a
detector that fails, any service time, and it asserts the promises at every step.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from vidserve.frames import Batch, BatchKind, Bucket, Frame
from vidserve.scheduling.answering import AnswerDesk
from vidserve.scheduling.scheduler import Scheduler, Wait
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings

WIDE = Bucket(384, 640)
TALL = Bucket(640, 384)
SMALL = Bucket(192, 320)
PERIOD_S = 1 / 30
EPSILON_S = 1e-9


def frame(camera: str, seq: int, captured_s: float) -> Frame:
    """A frame without pixels."""
    return Frame(camera, seq, captured_s, captured_s, captured_s, 1280, 720)


def linear(fixed_ms: float, each_ms: float, n_max: int = 8) -> dict[int, float]:
    """A table of service times: ``fixed + each * n``, in seconds."""
    return {n: (fixed_ms + each_ms * n) / 1000 for n in range(1, n_max + 1)}


def scheduler(
    settings: SchedulerSettings | None = None,
    tables: Mapping[Bucket, Mapping[int, float]] | None = None,
) -> Scheduler:
    """A scheduler that knows its service times (3 + 2n ms in every shape unless told)."""
    settings = settings or SchedulerSettings(wait_s=0.0)
    times = ServiceTimes(settings.batch_max)
    for bucket, table_s in (tables or {WIDE: linear(3, 2), TALL: linear(3, 2)}).items():
        times.set_table(bucket, table_s)
    return Scheduler(settings, times)


def dispatched(sched: Scheduler, now_s: float) -> Batch:
    """The batch that goes now."""
    decision = sched.next_batch(now_s)
    assert isinstance(decision, Batch), decision
    return decision


def waits(sched: Scheduler, now_s: float) -> float:
    """Nothing goes now: until when not."""
    decision = sched.next_batch(now_s)
    assert isinstance(decision, Wait), decision
    assert decision.until_s > now_s
    return decision.until_s


def names(batch: Batch) -> list[str]:
    """The cameras of a batch."""
    return [f.camera for f in batch.frames]


def with_cameras(sched: Scheduler, *cameras: str, weight: float = 1.0) -> Scheduler:
    """Cameras at 30 fps, a keyframe every fifth frame."""
    for camera in cameras:
        sched.add_camera(camera, weight, 5, PERIOD_S)
    return sched


@dataclass(frozen=True, slots=True)
class Camera:
    """One camera of a bench.

    Attributes:
        name: Of the camera.
        arrivals_s: When its frames arrive, in order.
        delay_s: From capture to arrival.
        comes_s, leaves_s: It is withdrawn and removed then; frames outside are not captured.
    """

    name: str
    arrivals_s: Sequence[float]
    bucket: Bucket = WIDE
    weight: float = 1.0
    interval_frames: int = 5
    period_s: float | None = 1 / 30
    delay_s: float = 0.0
    comes_s: float = 0.0
    leaves_s: float = math.inf


def steady(name: str, fps: float, until_s: float, phase_s: float = 0.0, **kwargs: object) -> Camera:
    """A camera of constant rate."""
    count = math.ceil((until_s - phase_s) * fps)
    arrivals_s = [phase_s + k / fps for k in range(count)]
    return Camera(name, arrivals_s, period_s=1 / fps, **kwargs)  # type: ignore[arg-type]


@dataclass(slots=True)
class Answered:
    """One settled frame."""

    seq: int
    at_s: float
    detected: bool


@dataclass(slots=True)
class Record:
    """What came of a run."""

    captured: dict[str, list[Frame]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[str, list[Answered]] = field(default_factory=lambda: defaultdict(list))
    batches: list[Batch] = field(default_factory=list)
    asked: int = 0
    most_unanswered: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def detections_s(self, camera: str) -> list[float]:
        """Capture times of the frames of a camera that went through the detector."""
        return [f.captured_s for b in self.batches for f in b.frames if f.camera == camera]

    def longest_gap_s(self, camera: str, start_s: float, end_s: float) -> float:
        """Longest time without a detection, the ends included."""
        times = [start_s, *(t for t in self.detections_s(camera) if start_s < t < end_s), end_s]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class Bench:
    """Runs cameras through a scheduler and an answer desk. One use.

    Args:
        sched: Under test.
        cameras: All that ever come.
        takes_s: Real service time of a batch.
        fails: Whether the detector fails on the batch of that number.
        seconds: Called each whole second with the time, after ``every_second``.
        until_s: How long ``every_second`` is called.
    """

    def __init__(
        self,
        sched: Scheduler,
        cameras: Iterable[Camera],
        takes_s: Callable[[Batch], float] | None = None,
        fails: Callable[[int], bool] = lambda number: False,
        seconds: Callable[[float], None] = lambda now_s: None,
        until_s: float = 10.0,
    ) -> None:
        self.sched = sched
        self.cameras = {camera.name: camera for camera in cameras}
        self.desk = AnswerDesk()
        self.record = Record()
        self._takes_s = takes_s or (
            lambda batch: sched.service_times.expected(batch.bucket)[len(batch.frames)]
        )
        self._fails = fails
        self._seconds = seconds
        self._until_s = until_s
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._busy = False
        self._wakes_s: set[float] = set()
        self._slots: set[tuple[str, int]] = set()
        self._open: dict[tuple[str, int], float] = {}
        self._answer_by_s: dict[tuple[str, int], float] = {}

    # -- events ----------------------------------------------------------------------------

    def _at(self, when_s: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), action))

    def _wake_at(self, when_s: float) -> None:
        if math.isfinite(when_s) and when_s not in self._wakes_s:
            self._wakes_s.add(when_s)
            self._at(when_s, self._wakes_s.discard)

    def run(self) -> Record:
        """Until nothing happens any more; then nothing may be left over."""
        for camera in self.cameras.values():
            self._at(camera.comes_s, partial(self._comes, camera))
            if math.isfinite(camera.leaves_s):
                self._at(camera.leaves_s, partial(self._leaves, camera))
            for seq, arrival_s in enumerate(camera.arrivals_s):
                if camera.comes_s <= arrival_s < camera.leaves_s:
                    self._at(arrival_s, partial(self._arrives, camera, seq))
        for second in range(1, math.floor(self._until_s) + 1):
            self._at(float(second), self._second)
        while self._events:
            now_s, _, action = heapq.heappop(self._events)
            action(now_s)
            self._settle(self.desk.take_ready(now_s), now_s)
            self._ask(now_s)
            self._wake_at(self.desk.next_wake_s())
        assert not self._open, f"never settled: {sorted(self._open)[:5]}"
        assert len(self.desk) == 0
        for name in self.cameras:
            self._given_back(self.sched.remove_camera(name))
        assert not self._slots, f"slots never given back: {self._slots}"
        return self.record

    def withdraw(self, camera: str) -> None:
        """The camera's connection broke; it goes on with its next frame."""
        self._given_back(self.sched.withdraw(camera))

    def _second(self, now_s: float) -> None:
        self.sched.every_second(now_s)
        self._seconds(now_s)

    def _comes(self, camera: Camera, _now_s: float) -> None:
        self.sched.add_camera(camera.name, camera.weight, camera.interval_frames, camera.period_s)

    def _leaves(self, camera: Camera, _now_s: float) -> None:
        self._given_back(self.sched.remove_camera(camera.name))
        assert not self.sched.wants(camera.name, camera.leaves_s)

    def _arrives(self, camera: Camera, seq: int, now_s: float) -> None:
        captured_s = now_s - camera.delay_s
        new = frame(camera.name, seq, captured_s)
        key = (camera.name, seq)
        self.record.captured[camera.name].append(new)
        self._open[key] = captured_s
        in_time = False
        if self.sched.wants(camera.name, captured_s):
            assert camera.weight > 0
            offer = self.sched.offer(new, camera.bucket, now_s)
            in_time = offer.in_time
            self._slots.add(key)
            self._given_back(offer.superseded)
            waiting = [k for k in self._slots if k[0] == camera.name and not self._in_batch(k)]
            assert waiting == [key], "at most one undispatched keyframe a camera"
        self._answer_by_s[key] = self.sched.answer_by(new)
        self.desk.add(new, self._answer_by_s[key], in_time)

    def _in_batch(self, key: tuple[str, int]) -> bool:
        if not self._busy:
            return False
        return any((f.camera, f.seq) == key for f in self.record.batches[-1].frames)

    def _given_back(self, old: Frame | None) -> None:
        if old is not None:
            self._slots.remove((old.camera, old.seq))
            self.desk.give_up(old)

    # -- the detector ----------------------------------------------------------------------

    def _ask(self, now_s: float) -> None:
        if self._busy:
            return
        planned = {
            camera.bucket: self.sched.service_times.planned(camera.bucket)
            for camera in self.cameras.values()
        }
        largest = {bucket: self.sched.largest_batch(bucket) for bucket in planned}
        self.record.asked += 1
        decision = self.sched.next_batch(now_s)
        if isinstance(decision, Wait):
            assert decision.until_s > now_s, "the detection loop would spin"
            self._wake_at(decision.until_s)
            return
        batch, n = decision, len(decision.frames)
        settings = self.sched.settings
        assert 1 <= n <= min(largest[batch.bucket], settings.batch_max)
        if settings.max_pixels is not None:
            assert n == 1 or n * batch.bucket.pixels <= settings.max_pixels
        assert {self.cameras[f.camera].bucket for f in batch.frames} == {batch.bucket}
        assert len({f.camera for f in batch.frames}) == n
        assert all((f.camera, f.seq) in self._slots for f in batch.frames)
        assert batch.started_s == now_s < batch.expected_finish_s
        if batch.kind is BatchKind.IN_TIME:
            end_s = now_s + planned[batch.bucket][n]
            assert all(self.sched.answer_by(f) >= end_s for f in batch.frames)
        self._busy = True
        self.record.batches.append(batch)
        self.desk.batch_started(
            batch,
            lambda f: self.sched.still_in_time(f, self.cameras[f.camera].bucket, now_s),
        )
        number = len(self.record.batches) - 1
        self._at(now_s + self._takes_s(batch), partial(self._done, batch, number))

    def _done(self, batch: Batch, number: int, now_s: float) -> None:
        failed = self._fails(number)
        self._busy = False
        for f in batch.frames:
            self._slots.remove((f.camera, f.seq))
            if failed:
                self.desk.give_up(f)
            else:
                waited = (f.camera, f.seq) in self._open
                assert self.desk.detected(f) == waited
        self.sched.finished(batch, now_s, failed)

    # -- answers ---------------------------------------------------------------------------

    def _settle(self, ready: list[tuple[Frame, bool]], now_s: float) -> None:
        for done, detected in ready:
            key = (done.camera, done.seq)
            captured_s = self._open.pop(key)  # KeyError: settled twice
            answers = self.record.answers[done.camera]
            assert not answers or answers[-1].seq < done.seq, "out of order"
            arrived_s = captured_s + self.cameras[done.camera].delay_s
            latest_s = max(self._answer_by_s[key], arrived_s)
            assert now_s <= latest_s + EPSILON_S, f"{key} {now_s - latest_s:.4f} s too late"
            answers.append(Answered(done.seq, now_s, detected))
        unanswered: dict[str, deque[float]] = defaultdict(deque)
        for (name, _), captured_s in self._open.items():
            unanswered[name].append(captured_s)
        for name, frames in unanswered.items():
            most = self.record.most_unanswered
            most[name] = max(most[name], len(frames))
