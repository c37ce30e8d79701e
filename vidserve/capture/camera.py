"""One camera: its thread, its numbers, its state, and the supervision of a thread that hangs."""

from __future__ import annotations

import logging
import random
import threading
import traceback
from typing import Protocol

from vidserve.capture.backoff import Backoff
from vidserve.capture.redact import Redactor
from vidserve.capture.settings import CameraSettings
from vidserve.capture.states import CameraStates, LineGate
from vidserve.capture.worker import ReaderFactory, Worker
from vidserve.clock import Clock
from vidserve.errors import CaptureError, SourceSilent, SourceUnauthorized, SourceUnreachable
from vidserve.frames import (
    CameraState,
    CameraStatus,
    DropReason,
    Frame,
    MotionStep,
    Regions,
    Thinning,
)
from vidserve.slots import Slot

__all__ = ["CameraSettings", "CameraThread", "FrameSink"]

logger = logging.getLogger(__name__)

GRACE_S = 2.0  # what a library may take beyond its own time-out
MOST_GIVEN_UP = 3


class FrameSink(Protocol):
    """Where frames go. Called from capture threads, for one camera by one at a time.

    No method blocks, and none calls back into the camera: they run under its lock.
    """

    def slot_for(self, camera: str, captured_s: float, width: int, height: int) -> Slot | None:
        """A free slot with ``geometry`` set if this frame is to be a keyframe, else None."""
        ...

    def look_at(self, camera: str) -> tuple[Regions | None, Thinning] | None:
        """Where to measure motion in the next picture, and how much of it; None: not at all."""
        ...

    def room_for(self, camera: str) -> bool:
        """Whether a frame would be taken and counted now.

        Cameras do not ask. A file waits for it at its first picture, and one that is not played
        in real time before each.
        """
        ...

    def frame(self, frame: Frame) -> None:
        """Takes over the frame, and its slot."""
        ...

    def dropped(self, camera: str, captured_s: float, reason: DropReason, count: int = 1) -> None:
        """``count`` frames were captured, and will not be answered."""
        ...

    def status(self, status: CameraStatus) -> None:
        """The camera's state or its reason changed."""
        ...

    def lag(self, camera: str, source_lag_s: float | None, reader_delay_s: float) -> None:
        """At most once a second."""
        ...


class CameraThread:
    """The capture of one camera.

    ``start``, ``tick``, ``request_stop`` and ``join`` are for the daemon's main thread. The
    thread that reads is a ``Worker``; one that hangs in a library is given up and replaced.
    Whatever a given-up worker still does has no effect: only the current one is listened to.

    Args:
        settings: Of this camera.
        sink: Where frames, drops and states go.
        clock: Real in the daemon.
        reader_factory: Makes an unopened reader.
        seed: Of the jitter between attempts.
    """

    def __init__(
        self,
        settings: CameraSettings,
        sink: FrameSink,
        clock: Clock,
        reader_factory: ReaderFactory,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self._sink = sink
        self._clock = clock
        self._reader_factory = reader_factory
        self._redactor = Redactor.for_source(settings.source, settings.username, settings.password)
        self._lock = threading.Lock()
        self._states = CameraStates(settings.name, clock)
        self._gate = LineGate()
        self._backoff = Backoff(random.Random(seed))
        self._worker: Worker | None = None
        self._given_up: list[Worker] = []
        self._given_up_count = 0
        self._seq = 0
        self._stopping = False

    @property
    def status(self) -> CameraStatus:
        """The present state. Any thread."""
        return self._states.status

    @property
    def given_up(self) -> int:
        """How many threads were given up because they did not come back from a library."""
        return self._given_up_count

    def start(self) -> None:
        """Begin. To be called once."""
        with self._lock:
            self._sink.status(self._states.status)
            self._launch(0.0)

    def request_stop(self) -> None:
        """Ask the thread to end, and abort what it waits for. Returns at once."""
        with self._lock:
            self._stopping = True
            workers = self._workers()
        for worker in workers:
            worker.request_stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread (also given-up ones); whether all have ended."""
        until_s = self._clock.now() + timeout_s
        with self._lock:
            workers = self._workers()
        for worker in workers:
            worker.thread.join(max(0.0, until_s - self._clock.now()))
        return not any(worker.thread.is_alive() for worker in workers)

    def tick(self, now_s: float) -> None:
        """Look after the thread; about four times a second, from the main thread."""
        with self._lock:
            abort = self._supervise(now_s)
        if abort is not None:
            abort.abort()

    def _supervise(self, now_s: float) -> Worker | None:
        """Under the lock. Returns a worker whose blocked call is to be aborted."""
        if self._stopping:
            return None
        self._given_up = [worker for worker in self._given_up if worker.thread.is_alive()]
        worker = self._worker
        if worker is None:
            if self._given_up_count and len(self._given_up) < MOST_GIVEN_UP:
                self._launch(self._backoff.failed())
            return None
        if worker.finished:
            return None
        if not worker.thread.is_alive():
            self._tell(self._states.failed("the capture thread died; see the log"))
            self._launch(self._backoff.failed())
            return None
        overdue_s = worker.overdue_s(now_s)
        if overdue_s <= 0.0:
            return None
        self._tell(self._states.stalled(worker.overdue_reason()))
        if overdue_s > GRACE_S:
            self._give_up(worker)
        return worker

    def _give_up(self, worker: Worker) -> None:
        worker.stop.set()
        self._given_up.append(worker)
        self._given_up_count += 1
        self._worker = None
        logger.warning(
            "camera %s: its reader does not come back; thread given up (%d so far)",
            self.settings.name,
            self._given_up_count,
        )
        if len(self._given_up) < MOST_GIVEN_UP:
            self._launch(self._backoff.failed())
        else:
            self._tell(
                self._states.stalled(
                    f"{MOST_GIVEN_UP} readers hang; it is tried again when one comes back"
                )
            )

    def _launch(self, wait_s: float) -> None:
        self._worker = Worker(self.settings, self._clock, self._reader_factory, self, wait_s)
        self._worker.thread.start()

    def _workers(self) -> list[Worker]:
        return [*self._given_up, *([self._worker] if self._worker is not None else [])]

    # What the worker calls. Each is a no-op for a worker that was given up.

    def seen(self, worker: Worker, corrupt: bool, bad_packets: int) -> None:
        """A picture was decoded (whether it counts or not), after so many bad packets."""
        with self._lock:
            if worker is not self._worker or self._stopping:
                return
            if bad_packets:
                self._states.bad_packets(bad_packets)
            self._backoff.frame(self._clock.now())
            self._tell(self._states.frame(corrupt))

    def room(self) -> bool:
        """Whether the sink would take a frame now."""
        return self._sink.room_for(self.settings.name)

    def slot_for(self, worker: Worker, captured_s: float, width: int, height: int) -> Slot | None:
        """A slot if the frame is to be a keyframe."""
        with self._lock:
            if worker is not self._worker:
                return None
            return self._sink.slot_for(self.settings.name, captured_s, width, height)

    def look_at(self, worker: Worker) -> tuple[Regions | None, Thinning] | None:
        """Where to measure motion; None: nowhere."""
        return self._sink.look_at(self.settings.name) if worker is self._worker else None

    def deliver(
        self,
        worker: Worker,
        captured_s: float,
        width: int,
        height: int,
        corrupt: bool,
        slot: Slot | None,
        motion: MotionStep | None,
        motion_s: float,
    ) -> None:
        """Number the frame and hand it on; a given-up worker's slot goes back."""
        with self._lock:
            if worker is not self._worker or self._stopping:
                if slot is not None:
                    slot.release()
                return
            now_s = self._clock.now()
            frame = Frame(
                camera=self.settings.name,
                seq=self._seq,
                captured_s=captured_s,
                wall_s=self._clock.wall() - (now_s - captured_s),
                ready_s=now_s,
                width=width,
                height=height,
                corrupt=corrupt,
                slot=slot,
                motion=motion,
                motion_s=motion_s,
            )
            self._seq += 1
            self._sink.frame(frame)

    def drop(self, worker: Worker, captured_s: float, reason: DropReason, count: int = 1) -> None:
        """Frames that take their numbers, but are not handed on."""
        with self._lock:
            if worker is self._worker and not self._stopping:
                self._seq += count
                self._sink.dropped(self.settings.name, captured_s, reason, count)

    def lag(self, worker: Worker, source_lag_s: float | None, reader_delay_s: float) -> None:
        """Once a second."""
        with self._lock:
            if worker is self._worker:
                self._sink.lag(self.settings.name, source_lag_s, reader_delay_s)

    def ended(self, worker: Worker) -> None:
        """A file is over."""
        with self._lock:
            if worker is self._worker and not self._stopping:
                self._tell(self._states.ended())

    def failed(self, worker: Worker, error: Exception) -> float | None:
        """An attempt or a connection is over. Seconds to the next attempt; None: leave."""
        with self._lock:
            if worker is not self._worker or self._stopping:
                return None
            before = self._states.status
            reason = self._redactor.clean(str(error))
            if not isinstance(error, CaptureError):
                reason = f"internal error, please report it: {type(error).__name__}: {reason}"
                if before.reason != reason:
                    text = "".join(traceback.format_exception(error))
                    logger.error("camera %s: %s", self.settings.name, self._redactor.clean(text))
                change = self._states.failed(reason)
            elif isinstance(error, SourceUnauthorized):
                change = self._states.unauthorized(reason)
            elif isinstance(error, SourceSilent):
                # The supervisor may have said so already, in its own words.
                stalled = before.state is CameraState.STALLED
                change = None if stalled else self._states.stalled(reason)
            elif isinstance(error, SourceUnreachable) and before.state.delivers:
                change = self._states.connecting(f"connection lost: {reason}")
            else:
                change = self._states.failed(reason)
            wait_s = self._backoff.failed(isinstance(error, SourceUnauthorized))
            if change is not None:
                self._tell(change)
            elif self._gate.reminder(self._clock.now()):
                logger.warning(
                    "camera %s: still %s: %s", self.settings.name, before.state.value, before.reason
                )
            return wait_s

    def _tell(self, change: CameraStatus | None) -> None:
        if change is None:
            return
        self._sink.status(change)
        if not self._gate.news(self._clock.now()):
            return
        left_out, self._gate.left_out = self._gate.left_out, 0
        quiet = change.state.delivers or change.state in (
            CameraState.CONNECTING,
            CameraState.ENDED,
            CameraState.DISABLED,
        )
        logger.log(
            logging.INFO if quiet else logging.WARNING,
            "camera %s: %s%s%s",
            change.camera,
            change.state.value,
            f" ({change.reason})" if change.reason else "",
            f" [{left_out} changes before this not logged]" if left_out else "",
        )
