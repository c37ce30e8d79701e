"""Wires the stages of one run: capture threads -> tracking loop <-> detection loop -> outputs.

The pipeline is what capture threads talk to (``FrameSink``); it decides nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from vidserve.clock import Clock
from vidserve.detection.detector import Detector
from vidserve.detection.sweep_cache import ServiceTimeCache, service_times
from vidserve.detection_loop import DetectionLoop, wait_for
from vidserve.errors import VidserveError
from vidserve.events import Drain, Event, FramesLost
from vidserve.frames import Bucket, CameraStatus, DropReason, Frame, Letterbox
from vidserve.gate import SchedulerGate
from vidserve.publishing.messages import slugs
from vidserve.publishing.output import Output
from vidserve.scheduling.scheduler import Scheduler, SchedulerSettings
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.slots import Slot, SlotPool
from vidserve.telemetry.stats import CameraStats, RunStats, Snapshot
from vidserve.tracking_loop import CameraPolicy, TrackingLoop

logger = logging.getLogger(__name__)

_USUAL_PICTURE = (1280, 720)
_SIZES_WAIT_S = 2.0
_FASTEST_FPS, _PENDING_SLACK = 240, 56
_PENDING_OF_FAST_FILE = 8


class Pipeline:
    """One run from model to answers.

    ``load`` and ``wait_ready``, then ``begin`` (readiness: counting starts), then ``drain``.
    Capture threads may call the sink's methods at any time; before readiness and after draining
    their frames are let go uncounted.

    Args:
        settings: Of the scheduler.
        cameras: Weight and keyframe interval in frames by camera.
        make_detector: Called in the detection thread.
        outputs: Where messages go.
        clock: Tells the time.
        cache: Of service times; None: measured anew.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        cameras: Mapping[str, tuple[float, int]],
        make_detector: Callable[[], Detector],
        outputs: Sequence[Output],
        clock: Clock,
        cache: ServiceTimeCache | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._outputs = outputs
        self._cache = cache
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.scheduler = Scheduler(settings, ServiceTimes(settings.batch_max))
        for name, (weight, interval_frames) in cameras.items():
            self.scheduler.add_camera(name, weight, interval_frames)
        self._gate = SchedulerGate(self.scheduler, clock)
        self.detection = DetectionLoop(make_detector, self._measure, self._gate, self._inbox, clock)
        self.tracking: TrackingLoop | None = None
        self.stats: RunStats | None = None
        self._camera_stats: dict[str, CameraStats] = {}
        self._statuses: dict[str, CameraStatus] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._buckets: dict[tuple[int, int], Bucket] = {}
        self._pools: dict[Bucket, SlotPool] = {}
        self._lock = threading.Lock()
        self._open = False
        # More than a budget's worth of frames unanswered is no delay but a fault of ours.
        self._most_pending = _PENDING_SLACK + round(settings.budget_s * _FASTEST_FPS)

    # -- life ------------------------------------------------------------------------------

    def load(self) -> None:
        """Start loading the model in the detection thread."""
        self.detection.start()

    def wait_ready(self, limit_s: float) -> bool:
        """Wait for the model; whether it is there.

        Raises:
            VidserveError: it cannot be loaded.
        """
        if not self.detection.ready.wait(limit_s):
            return False
        if self.detection.error is not None:
            raise self.detection.error
        return True

    def begin(self, policies: Mapping[str, CameraPolicy]) -> RunStats:
        """Readiness: counters, duration and answers start now.

        Args:
            policies: By camera, for every camera; they need the model's class names.
        """
        now_s = self._clock.now()
        names = self.detection.info.names
        stats = RunStats(self.settings.budget_s, self.settings.batch_max, now_s)
        self.stats = self.detection.stats = stats
        self._camera_stats = {name: stats.camera(name) for name in policies}
        self.tracking = TrackingLoop(
            policies=policies,
            names=names,
            label_slugs=slugs(names),
            gate=self._gate,
            inbox=self._inbox,
            outputs=self._outputs,
            stats=stats,
            bucket_of=self._bucket,
            clock=self._clock,
        )
        with self._lock:
            for status in self._statuses.values():
                self._inbox.put(status)
            self._open = True
        self._gate.start(now_s)
        self.tracking.start()
        return stats

    def drain(self, limit_s: float) -> bool:
        """Take no more frames, settle all that are open, end both loops.

        Returns:
            Whether both ended within ``limit_s``.
        """
        with self._lock:
            self._open = False
        if self.stats is not None:
            self.stats.stop(self._clock.now())
        self._inbox.put(Drain())
        self.detection.request_stop()
        until_s = self._clock.now() + limit_s
        threads = [self.detection.thread]
        if self.tracking is not None:
            threads.insert(0, self.tracking.thread)
        for thread in threads:
            if thread.is_alive():
                thread.join(max(until_s - self._clock.now(), 0.0))
        return not any(thread.is_alive() for thread in threads)

    def snapshot(self) -> Snapshot:
        """The run so far, without outputs and process."""
        if self.stats is None:
            return {}
        snapshot = self.stats.snapshot(self._clock.now(), self._gate.service_ms())
        for name, interval in self._gate.intervals().items():
            if name in snapshot["cameras"]:
                snapshot["cameras"][name].update(interval)
        return snapshot

    # -- FrameSink: called by capture threads -----------------------------------------------

    def slot_for(self, camera: str, captured_s: float, width: int, height: int) -> Slot | None:
        """A free slot if this frame is to be a keyframe."""
        if not self._open:
            self._sizes[camera] = (width, height)
            return None
        if not self.scheduler.wants(camera, captured_s):
            return None
        bucket = self._bucket(width, height)
        slot = self._pool(bucket).take()
        if slot is None:
            self._camera_stats[camera].pool_was_empty()
            return None
        slot.geometry = Letterbox.fit(width, height, bucket)
        return slot

    def room_for(self, camera: str) -> bool:
        """Whether frames count, and this camera has few that are unanswered."""
        stats = self._camera_stats.get(camera)
        if not self._open or stats is None:
            return False
        return stats.ledger.pending < _PENDING_OF_FAST_FILE

    def frame(self, frame: Frame) -> None:
        """Count the frame and pass it to the tracking loop."""
        with self._lock:
            # A picture from before readiness is not of this run.
            if self._open and self.stats is not None and frame.captured_s >= self.stats.started_s:
                ledger = self._camera_stats[frame.camera].ledger
                if ledger.pending < self._most_pending:
                    ledger.capture(frame.seq, frame.captured_s)
                    self._inbox.put(frame)
                    return
                self._inbox.put(FramesLost(frame.camera, DropReason.BACKLOG, 1))
        if frame.slot is not None:
            frame.slot.release()

    def dropped(self, camera: str, captured_s: float, reason: DropReason, count: int = 1) -> None:
        """Frames that count, but will not be answered."""
        with self._lock:
            if self._open:
                # What was lost before readiness is not of this run.
                if self.stats is not None and captured_s >= self.stats.started_s:
                    self._inbox.put(FramesLost(camera, reason, count))

    def status(self, status: CameraStatus) -> None:
        """A camera's state changed."""
        with self._lock:
            self._statuses[status.camera] = status
            if self._open:
                self._inbox.put(status)

    def lag(self, camera: str, source_lag_s: float | None, reader_delay_s: float) -> None:
        """How far behind its source a camera is."""
        stats = self._camera_stats.get(camera)
        if stats is not None:
            stats.source_lag(source_lag_s, reader_delay_s)

    # -- inside ----------------------------------------------------------------------------

    def _bucket(self, width: int, height: int) -> Bucket:
        bucket = self._buckets.get((width, height))
        if bucket is None:
            detector = self.detection.detector
            if detector is None:
                raise VidserveError("the detector is not loaded yet")
            bucket = self._buckets[width, height] = detector.bucket_for(width, height)
        return bucket

    def _pool(self, bucket: Bucket) -> SlotPool:
        pool = self._pools.get(bucket)
        if pool is None:
            with self._lock:
                # A slot filling and one offered per camera, and a batch in work.
                limit = 2 * max(len(self._camera_stats), 1) + self.settings.batch_max
                pool = self._pools.setdefault(bucket, SlotPool(bucket, limit))
        return pool

    def _measure(self, detector: Detector) -> dict[Bucket, Mapping[int, float]]:
        """Sweep the shapes that the cameras need; in the detection thread, before readiness."""
        pending = [name for name in self._names_connecting() if name not in self._sizes]
        if pending:
            wait_for(
                lambda: all(name in self._sizes for name in self._names_connecting()),
                _SIZES_WAIT_S,
            )
        sizes = list(self._sizes.values()) or [_USUAL_PICTURE]
        buckets = list(dict.fromkeys(detector.bucket_for(*size) for size in sizes))
        n_max = self.settings.batch_max
        if detector.max_batch is not None:
            n_max = min(n_max, detector.max_batch)
            self.scheduler.limit_batch(n_max)
        return {
            bucket: service_times(detector, bucket, n_max, self._clock, self._cache)
            for bucket in buckets
        }

    def _names_connecting(self) -> list[str]:
        """Cameras that may yet tell their size."""
        with self._lock:
            return [
                name
                for name, status in self._statuses.items()
                if status.state.delivers or status.state.value == "connecting"
            ]
