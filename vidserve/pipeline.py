"""Wires the stages of one run: capture threads -> tracking loop <-> detection loop -> outputs.

The pipeline is what capture threads talk to (``FrameSink``); it decides nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vidserve import __version__
from vidserve.clock import Clock
from vidserve.detection.detector import Detector
from vidserve.detection.sweep_cache import ServiceTimeCache, service_times
from vidserve.detection_loop import DetectionLoop, wait_for
from vidserve.events import Drain, Event, FramesLost
from vidserve.frames import (
    Bucket,
    CameraStatus,
    DropReason,
    Frame,
    Letterbox,
    Regions,
    Thinning,
)
from vidserve.gate import SchedulerGate
from vidserve.publishing.messages import slugs
from vidserve.publishing.output import Output
from vidserve.scheduling.buckets import MAX_PADDING, Buckets, in_order, padding, rectangle
from vidserve.scheduling.scheduler import Scheduler
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings
from vidserve.slots import Slot, SlotPool
from vidserve.telemetry.stats import CameraStats, RunStats, Snapshot
from vidserve.trace import FileRecorder, Header, Recorder
from vidserve.tracking_loop import CameraPolicy, TrackingLoop

logger = logging.getLogger(__name__)

_USUAL_PICTURE = (1280, 720)
_SIZES_WAIT_S = 2.0
_FASTEST_FPS, _PENDING_SLACK = 240, 56
_PENDING_OF_FAST_FILE = 8


@dataclass(frozen=True, slots=True)
class CameraPlace:
    """What one camera asks of the detector.

    Attributes:
        weight: Share of its time relative to the other cameras; 0: none.
        interval_frames: Every so manyth frame is a keyframe.
        image_sizes: Long sides of the input, pixels, largest first; smaller ones for overload.
    """

    weight: float
    interval_frames: int
    image_sizes: tuple[int, ...] = (640,)


class Pipeline:
    """One run from model to answers.

    ``load`` and ``wait_ready``, then ``begin`` (readiness: counting starts), then ``drain``.
    Capture threads may call the sink's methods at any time; before readiness and after draining
    their frames are let go uncounted.

    Args:
        settings: Of the scheduler.
        cameras: What each camera asks of the detector.
        make_detector: Called in the detection thread.
        outputs: Where messages go.
        clock: Tells the time.
        cache: Of service times; None: measured anew.
        trace: File to record a trace in; None: none.
        flow: Measure motion between frames, and let it decide how often a camera needs detection.
        shapes: The only input shapes to use, if the model does not fix one itself; empty: any.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        cameras: Mapping[str, CameraPlace],
        make_detector: Callable[[], Detector],
        outputs: Sequence[Output],
        clock: Clock,
        cache: ServiceTimeCache | None = None,
        shapes: Sequence[Bucket] = (),
        trace: Path | None = None,
        flow: bool = False,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._outputs = outputs
        self._cache = cache
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.scheduler = Scheduler(settings, ServiceTimes(settings.batch_max))
        self._places = cameras
        for name, place in cameras.items():
            self.scheduler.add_camera(name, place.weight, place.interval_frames, adaptive=flow)
        self._gate = SchedulerGate(self.scheduler, clock)
        self.detection = DetectionLoop(make_detector, self._measure, self._gate, self._inbox, clock)
        self.tracking: TrackingLoop | None = None
        self.stats: RunStats | None = None
        self._camera_stats: dict[str, CameraStats] = {}
        self._statuses: dict[str, CameraStatus] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._shapes = shapes
        self._trace = trace
        self._eyes: dict[str, tuple[Regions | None, Thinning]] | None = {} if flow else None
        self._recorder = Recorder()
        self._buckets = Buckets()
        self._shaped: dict[str, tuple[int, int]] = {}  # picture size that the ladder is for
        self._pools: dict[Bucket, SlotPool] = {}
        self._batch_max = settings.batch_max
        self._swept_s: dict[Bucket, Mapping[int, float]] = {}
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
        if self._trace is not None:
            self._recorder = self._start_trace(self._trace, policies, now_s)
        self.tracking = TrackingLoop(
            policies=policies,
            names=names,
            label_slugs=slugs(names),
            gate=self._gate,
            inbox=self._inbox,
            outputs=self._outputs,
            stats=stats,
            clock=self._clock,
            recorder=self._recorder,
            eyes=self._eyes,
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
        self._recorder.close(self._clock.now())
        return not any(thread.is_alive() for thread in threads)

    def snapshot(self) -> Snapshot:
        """The run so far, without outputs and process."""
        if self.stats is None:
            return {}
        snapshot = self.stats.snapshot(self._clock.now(), self._gate.service_ms())
        for name, numbers in self._gate.intervals().items():
            if name in snapshot["cameras"]:
                bucket, size = self.scheduler.plan(name).bucket, self._shaped.get(name)
                padded = None if bucket is None or size is None else padding(*size, bucket)
                numbers["padding"] = None if padded is None else round(padded, 3)
                snapshot["cameras"][name].update(numbers)
        return snapshot

    # -- FrameSink: called by capture threads -----------------------------------------------

    def slot_for(self, camera: str, captured_s: float, width: int, height: int) -> Slot | None:
        """A free slot if this frame is to be a keyframe."""
        if not self._open:
            self._sizes[camera] = (width, height)
            return None
        if not self.scheduler.wants(camera, captured_s):
            return None
        bucket = self._bucket(camera, width, height)
        slot = self._pool(bucket).take()
        if slot is None:
            self._camera_stats[camera].pool_was_empty()
            return None
        slot.geometry = Letterbox.fit(width, height, bucket)
        return slot

    def look_at(self, camera: str) -> tuple[Regions | None, Thinning] | None:
        """Where to measure motion; None: it is not to be measured."""
        if self._eyes is None or not self._open:
            return None
        return self._eyes.get(camera, (None, Thinning.FULL))

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

    def _bucket(self, camera: str, width: int, height: int) -> Bucket:
        """The shape for a camera's picture now; a new size gets new shapes."""
        if self._shaped.get(camera) != (width, height):
            self._set_ladder(camera, width, height)
        bucket = self.scheduler.plan(camera).bucket
        assert bucket is not None, "a ladder has at least one shape"
        return bucket

    def _set_ladder(self, camera: str, width: int, height: int) -> tuple[Bucket, ...]:
        place = self._places[camera]
        with self._lock:
            ladder = self._buckets.ladder(width, height, place.image_sizes)
        self._gate.set_ladder(camera, ladder)
        self._recorder.camera(camera, ladder, self._clock.now())
        known, self._shaped[camera] = self._shaped.get(camera), (width, height)
        if known is None:
            self._tell_shape(camera, width, height, ladder[0])
        return ladder

    def _tell_shape(self, camera: str, width: int, height: int, bucket: Bucket) -> None:
        """Once a camera: what the detector will see of it, and why if that is less than asked."""
        limit = self.settings.max_pixels
        wanted = rectangle(width, height, self._places[camera].image_sizes[0])
        if limit is not None and wanted.pixels > limit:
            logger.warning(
                "camera %s: pictures of %dx%d at %s are %d pixels, scheduling.batch.max_pixels"
                " allows %d: they go to the detector as %s",
                camera, width, height, wanted, wanted.pixels, limit, bucket,
            )  # fmt: skip
            return
        padded = padding(width, height, bucket)
        level = logging.WARNING if padded > MAX_PADDING else logging.INFO
        logger.log(
            level,
            "camera %s: pictures of %dx%d go to the detector as %s, %.0f %% of it margin",
            camera, width, height, bucket, 100 * padded,
        )  # fmt: skip

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
        self._buckets = Buckets(
            [detector.info.fixed_bucket] if detector.info.fixed_bucket else self._shapes,
            detector.info.stride,
            self.settings.max_pixels,
        )
        buckets = self._wanted_buckets(dict(self._sizes))
        n_max = self.settings.batch_max
        if detector.max_batch is not None:
            n_max = min(n_max, detector.max_batch)
            self.scheduler.limit_batch(n_max)
        self._batch_max = n_max
        self._swept_s = {
            bucket: service_times(
                detector, bucket, self._most_of(bucket, n_max), self._clock, self._cache
            )
            for bucket in buckets
        }
        return self._swept_s

    def _start_trace(self, path: Path, cameras: Iterable[str], now_s: float) -> Recorder:
        """Record from now on; cameras whose block was wrong ask for nothing."""
        nothing = CameraPlace(0.0, 1)
        places = ((name, self._places.get(name, nothing)) for name in cameras)
        header = Header(
            version=__version__,
            settings=replace(self.settings, batch_max=self._batch_max),
            cameras=tuple((name, p.weight, p.interval_frames) for name, p in places),
            service_s=self._swept_s,
            adaptive=self._eyes is not None,
        )
        recorder = FileRecorder(path, header, now_s)
        for plan in self.scheduler.plans():
            if plan.ladder:
                recorder.camera(plan.name, plan.ladder, now_s)
        return recorder

    def _most_of(self, bucket: Bucket, n_max: int) -> int:
        """The largest batch that will be asked for."""
        limit = self.settings.max_pixels
        return n_max if limit is None else max(1, min(n_max, limit // bucket.pixels))

    def _wanted_buckets(self, sizes: Mapping[str, tuple[int, int]]) -> list[Bucket]:
        """All shapes of the cameras whose size is known; of a usual picture if there is none."""
        if not sizes:
            sides = max((p.image_sizes for p in self._places.values()), default=(640,))
            return list(self._buckets.ladder(*_USUAL_PICTURE, sides))
        found: dict[Bucket, None] = {}
        for size in in_order(sizes.values()):
            for name in (name for name, its_size in sizes.items() if its_size == size):
                found.update(dict.fromkeys(self._set_ladder(name, *size)))
        return list(found)

    def _names_connecting(self) -> list[str]:
        """Cameras that may yet tell their size."""
        with self._lock:
            return [
                name
                for name, status in self._statuses.items()
                if status.state.delivers or status.state.value == "connecting"
            ]
