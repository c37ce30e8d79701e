"""The detection thread: it makes the model, measures it, and runs what the scheduler chooses."""

from __future__ import annotations

import gc
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from vidserve.clock import Clock
from vidserve.detection.detector import Detector, DetectorInfo
from vidserve.detection.letterbox import to_bucket
from vidserve.errors import DetectorError, VidserveError
from vidserve.events import BatchDone, BatchStarted, Event
from vidserve.frames import Batch, Bucket, Detections, Frame
from vidserve.gate import SchedulerGate
from vidserve.telemetry.stats import RunStats
from vidserve.tracking.appearance import looks

logger = logging.getLogger(__name__)

IDLE_S = 0.25
_PAUSE_MAX_S = 5.0
_TOLD_EVERY_S = 30.0


class DetectionLoop:
    """Owns the detector: made, called and closed in this thread alone.

    Args:
        make_detector: Loads the model; may take long.
        measure: Service times of a loaded detector by bucket: seconds by batch size.
        gate: Batches come from here.
        inbox: Of the tracking loop.
        clock: Tells the time.
    """

    def __init__(
        self,
        make_detector: Callable[[], Detector],
        measure: Callable[[Detector], Mapping[Bucket, Mapping[int, float]]],
        gate: SchedulerGate,
        inbox: queue.SimpleQueue[Event],
        clock: Clock,
    ) -> None:
        self._make_detector = make_detector
        self._measure = measure
        self._gate = gate
        self._inbox = inbox
        self._clock = clock
        self._stop = threading.Event()
        self.ready = threading.Event()
        self.error: VidserveError | None = None
        self.detector: Detector | None = None
        self.stats: RunStats | None = None
        self.progress_s = clock.now()
        self.failures_in_a_row = 0
        self._told_s = -math.inf
        self.thread = threading.Thread(target=self._run, name="detection", daemon=True)

    @property
    def info(self) -> DetectorInfo:
        """Of the loaded detector."""
        if self.detector is None:
            raise DetectorError("the detector is not loaded yet")
        return self.detector.info

    @property
    def degraded(self) -> str:
        """Why detections cannot be relied on now; empty if they can."""
        count = self.failures_in_a_row
        return f"the detector failed {count} times in a row" if count else ""

    def start(self) -> None:
        """Load in the background; ``ready`` is set when loaded, or when ``error`` is."""
        self.thread.start()

    def request_stop(self) -> None:
        """Finish the batch in hand and end."""
        self._stop.set()
        self._gate.close()

    def _run(self) -> None:
        try:
            self.detector = self._make_detector()
            # All that a model brings lives to the end: it is looked at once more, which stops
            # every thread for some 0.2 s with PyTorch, and never again. Before the measuring,
            # so that no camera is behind when frames begin to count.
            gc.collect()
            gc.freeze()
            for bucket, table_s in self._measure(self.detector).items():
                self._gate.scheduler.service_times.set_table(bucket, table_s)
        except VidserveError as error:
            self.error = error
        except Exception as error:  # any library's own error: the daemon has to know and stop
            logger.exception("the detector cannot be started")
            self.error = DetectorError(f"the detector cannot be started: {error}")
        self.ready.set()
        if self.error is not None or self.detector is None:
            return
        while not self._stop.is_set():
            batch = self._gate.next_batch(IDLE_S)
            if batch is not None:
                self._detect(self.detector, batch)
            self.progress_s = self._clock.now()
        self.detector.close()

    def _detect(self, detector: Detector, batch: Batch) -> None:
        self._inbox.put(BatchStarted(batch))
        detections: list[Detections] | None = None
        try:
            detections = detector.detect([f.slot for f in batch.frames if f.slot is not None])
        except Exception as error:  # a library may raise anything; frames are answered as tracked
            self._failed(error)
        done_s = self._clock.now()
        if detections is not None:
            pairs = zip(batch.frames, detections, strict=True)
            detections = [_with_looks(frame, found) for frame, found in pairs]
        failed = detections is None
        if self.stats is not None:
            self.stats.batch(batch, done_s - batch.started_s, failed)
        for frame in batch.frames:
            if frame.slot is not None:
                frame.slot.release()
        self._gate.finished(batch, done_s, failed)
        self._inbox.put(BatchDone(batch, detections, done_s))
        if failed:
            self._stop.wait(min(0.05 * 2 ** min(self.failures_in_a_row, 8), _PAUSE_MAX_S))
        else:
            self.failures_in_a_row = 0

    def _failed(self, error: Exception) -> None:
        self.failures_in_a_row += 1
        now_s = self._clock.now()
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            logger.error(
                "the detector failed (%d in a row); frames are answered by the tracker: %s",
                self.failures_in_a_row,
                error,
                exc_info=not isinstance(error, DetectorError),
            )


def _with_looks(frame: Frame, detections: Detections) -> Detections:
    """The same with what each looks like, as long as the frame's picture is there."""
    slot = frame.slot
    if slot is None or slot.geometry is None or not len(detections):
        return detections
    seen = looks(slot.pixels, to_bucket(detections.boxes, slot.geometry))
    return replace(detections, looks=seen)


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll a condition of other threads at start; whether it came true in time."""
    until_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= until_s:
            return False
        time.sleep(0.02)
    return True
