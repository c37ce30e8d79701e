"""What reading a source costs, and what answering a frame costs: measured on this machine.

CPU time of the thread, not wall time: a live stream sets its own pace, and other processes may
be busy.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vidserve.capture.grey import SIDE_LIMIT_PX
from vidserve.capture.motion import MotionEstimator
from vidserve.capture.pacing import DEFAULT_FPS, GAP_S
from vidserve.capture.reader import Reader
from vidserve.capture.redact import Redactor
from vidserve.capture.settings import CameraSettings
from vidserve.capture.source import open_reader
from vidserve.clock import Clock
from vidserve.errors import CaptureError, SourceUnreachable, SourceUnusable
from vidserve.frames import Answer, Bucket, Detections, Frame, Letterbox, Regions
from vidserve.publishing.messages import answer_message
from vidserve.slots import SlotPool
from vidserve.tracking.tracker import Tracker, TrackerSettings

ANSWER_S = 5.0
"""A source that has shown no picture after this does not answer."""
_SLACK_S = 2.0
_AT_ONCE = 8
_MOST_FRAMES = 500  # a file is read as fast as it goes
_LETTERBOX_EVERY = 3
_OBJECTS = 10
_CALIBRATION_FRAMES, _WARM_UP_FRAMES = 200, 30
_PAUSE_S = 0.001
_SIZE = (1280, 720)

BucketOf = Callable[[int, int], Bucket]
"""The input shape for pictures of a width and height."""


@dataclass(frozen=True, slots=True)
class SourceCost:
    """What one source is and costs. CPU seconds of one core.

    Attributes:
        width, height: Of its pictures as shown, pixels.
        fps: Pictures a second.
        decode_s: To read and decode a picture.
        letterbox_s: To bring a picture into the input shape.
        frames: How many were measured.
        motion_s: To measure motion in a picture with ten boxes.
    """

    width: int
    height: int
    fps: float
    decode_s: float
    letterbox_s: float
    frames: int
    motion_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unread:
    """A source that did not answer, and why; no credentials in it."""

    reason: str


@dataclass(frozen=True, slots=True)
class SourceJob:
    """A source to be read.

    Attributes:
        settings: How to open it.
        bucket_of: For the letterbox.
        flow: Motion is measured.
    """

    settings: CameraSettings
    bucket_of: BucketOf
    flow: bool = False


class _Reading(threading.Thread):
    """One source, read for a while. Its numbers are whole at any time, also if it hangs."""

    def __init__(self, job: SourceJob, measure_s: float, clock: Clock) -> None:
        super().__init__(name=f"plan-{job.settings.name}", daemon=True)
        settings = job.settings
        self._settings = replace(
            settings,
            start_s=min(settings.start_s, ANSWER_S),
            stall_s=min(settings.stall_s, max(measure_s, 1.0)),
        )
        self._bucket_of = job.bucket_of
        self._eye = MotionEstimator() if job.flow else None
        self._motion_s: list[float] = []
        self._measure_s = measure_s
        self._clock = clock
        self._redactor = Redactor.for_source(settings.source, settings.username, settings.password)
        self._reader: Reader | None = None
        self._ended = threading.Event()
        self._size = (0, 0)
        self._read_s: list[float] = []
        self._letterbox_s: list[float] = []
        self._steps_s: list[float] = []
        self._arrivals_s: list[float] = []
        self._nominal_fps: float | None = None
        self._reason = ""

    def run(self) -> None:
        try:
            self._reader = reader = open_reader(self._settings, self._clock)
            try:
                reader.open()
                self._nominal_fps = reader.nominal_fps
                self._read(reader)
            finally:
                reader.close()
        except CaptureError as error:
            self._reason = self._redactor.clean(str(error))
        except Exception as error:  # any library's own: it is one camera's trouble
            text = self._redactor.clean(f"{type(error).__name__}: {error}")
            self._reason = f"internal error, please report it: {text}"

    def give_up(self) -> None:
        """Ask it to end, if its library can be interrupted."""
        self._ended.set()
        if self._reader is not None:
            self._reader.abort()

    def result(self) -> SourceCost | Unread:
        """What was measured so far."""
        if not self._read_s or self._size == (0, 0):
            waited_s = self._settings.start_s
            return Unread(self._reason or f"no picture in {waited_s:g} s")
        # The first picture pays for the start: files of one picture have nothing else.
        reads_s = list(self._read_s)
        decode_s = statistics.fmean(reads_s[1:] or reads_s)
        letterbox_s = statistics.fmean(self._letterbox_s) if self._letterbox_s else 0.0
        motion_s = statistics.fmean(self._motion_s) if self._motion_s else 0.0
        return SourceCost(*self._size, self._fps(), decode_s, letterbox_s, len(reads_s), motion_s)

    def _fps(self) -> float:
        """By timestamps, else what the source claims, else as they came."""
        if self._steps_s:
            return 1 / statistics.fmean(self._steps_s)
        if self._nominal_fps is not None:
            return self._nominal_fps
        took_s = self._arrivals_s[-1] - self._arrivals_s[0]
        live = self._reader is not None and self._reader.live
        return (len(self._arrivals_s) - 1) / took_s if live and took_s > 0 else DEFAULT_FPS

    def _read(self, reader: Reader) -> None:
        until_s: float | None = None
        pts_s: float | None = None
        pool: SlotPool | None = None
        while not self._ended.is_set() and len(self._read_s) < _MOST_FRAMES:
            if until_s is not None and self._clock.now() >= until_s:
                return
            before_s = time.thread_time()
            arrival = reader.read()
            took_s = time.thread_time() - before_s
            if arrival is None:
                if not self._read_s:
                    raise SourceUnusable("no frames decoded")
                if reader.live:
                    raise SourceUnreachable("the source ended the stream")
                return
            if until_s is None:
                until_s = self._clock.now() + self._measure_s
            picture = arrival.picture
            if arrival.pts_s is not None:
                if pts_s is not None and 0 < arrival.pts_s - pts_s <= GAP_S:
                    self._steps_s.append(arrival.pts_s - pts_s)
                pts_s = arrival.pts_s
            self._arrivals_s.append(arrival.received_s)
            self._size = (picture.width, picture.height)
            self._read_s.append(took_s)
            if min(self._size) <= 0 or picture.corrupt:
                continue
            if self._eye is not None:
                before_s = time.thread_time()
                grey = picture.grey(SIDE_LIMIT_PX)
                self._eye.step(grey, self._clock.now(), self._size, _regions(*self._size))
                self._motion_s.append(time.thread_time() - before_s)
            if len(self._read_s) % _LETTERBOX_EVERY == 1:
                bucket = self._bucket_of(*self._size)
                if pool is None or pool.bucket != bucket:
                    pool = SlotPool(bucket, 1)
                slot = pool.take()
                assert slot is not None, "the only slot is given back each time"
                before_s = time.thread_time()
                picture.write_letterbox(slot.pixels, Letterbox.fit(*self._size, bucket))
                self._letterbox_s.append(time.thread_time() - before_s)
                slot.release()


def _regions(width: int, height: int) -> Regions:
    """Ten boxes of a usual size, spread over the picture."""
    x, y = np.meshgrid(np.arange(5) / 5 + 0.05, np.array([0.1, 0.55]))
    low = np.stack((x.ravel() * width, y.ravel() * height), axis=1)
    size = np.array([0.1 * width, 0.35 * height])
    boxes = np.concatenate((low, low + size), axis=1)
    ids = np.arange(1, 11, dtype=np.int32)
    return Regions(1, 0.0, width, height, ids, boxes.astype(np.float32))


@dataclass(frozen=True, slots=True)
class Readings:
    """What came of all sources, in the order of the jobs.

    Attributes:
        results: By job.
        hung: A reader did not come back from its library: end the process without waiting.
    """

    results: tuple[SourceCost | Unread, ...]
    hung: bool


def read_sources(jobs: Sequence[SourceJob], measure_s: float, clock: Clock) -> Readings:
    """Read each source for a while with its own reader, eight at once.

    Args:
        jobs: Distinct sources.
        measure_s: From the first picture on; less where a file ends or 500 pictures are read.
        clock: The real one.
    """
    results: list[SourceCost | Unread] = []
    hung = False
    for first in range(0, len(jobs), _AT_ONCE):
        readings = [_Reading(job, measure_s, clock) for job in jobs[first : first + _AT_ONCE]]
        for reading in readings:
            reading.start()
        until_s = clock.now() + ANSWER_S + measure_s + _SLACK_S
        for reading in readings:
            reading.join(max(until_s - clock.now(), 0.0))
        late = [reading for reading in readings if reading.is_alive()]
        for reading in late:
            reading.give_up()
        for reading in late:
            reading.join(_SLACK_S / len(late))
        hung = hung or any(reading.is_alive() for reading in readings)
        results += [reading.result() for reading in readings]
    return Readings(tuple(results), hung)


@dataclass(frozen=True, slots=True)
class AnswerCost:
    """CPU seconds beside reading and detecting.

    Attributes:
        frame_s: To wake up for a frame, hand it to the tracking thread, carry the boxes on to
            it and make its message.
        detection_s: To apply the detections of a picture to a tracker.
    """

    frame_s: float
    detection_s: float


def answer_cost(frames: int = _CALIBRATION_FRAMES, objects: int = _OBJECTS) -> AnswerCost:
    """Measure a usual scene with two threads, every fifth frame detected; some 0.4 s.

    By the CPU time of the process, since waking a thread costs about as much as its work:
    nothing else of the process may be at work meanwhile.
    """
    inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    desk = _Desk(objects)

    def answer() -> None:
        for _ in range(frames):
            desk.answer(inbox.get(timeout=_SLACK_S))

    for index in range(_WARM_UP_FRAMES):  # the first calls of NumPy and SciPy are no measure
        desk.answer(_frame(index - _WARM_UP_FRAMES))
    desk.detections_s.clear()
    thread = threading.Thread(target=answer, name="plan-answers", daemon=True)
    pause = threading.Event()
    before_s = time.process_time()
    thread.start()
    for index in range(frames):
        pause.wait(_PAUSE_S)
        inbox.put(_frame(index))
    thread.join(_SLACK_S)
    took_s = time.process_time() - before_s - sum(desk.detections_s)
    return AnswerCost(max(took_s, 0.0) / frames, statistics.median(desk.detections_s))


def _frame(index: int) -> Frame:
    captured_s = (index + _WARM_UP_FRAMES) / 30
    return Frame("camera", index, captured_s, captured_s, captured_s, *_SIZE)


class _Desk:
    """What the tracking thread does for one camera."""

    def __init__(self, objects: int) -> None:
        self.detections_s: list[float] = []
        self._tracker = Tracker(TrackerSettings())
        drawn = np.random.default_rng(0)
        self._corner = drawn.uniform(50, 500, (objects, 2))
        self._speed = drawn.uniform(-90, 90, (objects, 2))
        self._scores = np.full(objects, 0.9, np.float32)
        self._classes = np.zeros(objects, np.int32)

    def answer(self, frame: Frame) -> None:
        now_s = frame.captured_s
        detected = frame.seq % 5 == 0
        if detected:
            low = self._corner + self._speed * now_s
            boxes = np.concatenate([low, low + 80], axis=1).astype(np.float32)
            before_s = time.thread_time()
            self._tracker.apply(now_s, Detections(boxes, self._scores, self._classes), _SIZE, now_s)
            self.detections_s.append(time.thread_time() - before_s)
        answer = Answer(frame, detected, 0.1, self._tracker.at(now_s, _SIZE), 0.01)
        answer_message(answer, {0: "object"}, 10.0)
