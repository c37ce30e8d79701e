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
from vidserve.capture.states import CameraStates, LineGate, state_of
from vidserve.capture.worker import Phase, ReaderFactory, Worker
from vidserve.clock import Clock
from vidserve.errors import CaptureError, SourceSilent, SourceUnauthorized
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
LATE_TICK_S = 1.0  # the supervisor itself was held up: what it measured says nothing of others


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
        self._launch_s = 0.0  # not before, if there is no worker
        self._ticked_s = clock.now()
        self._held_up = False
        self._told: CameraStatus | None = None  # what the sink knows
        self._faults_told: set[str] = set()
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
            self._ticked_s = self._clock.now()
            self._publish()
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
        """Look after the thread; about four times a second, from the main thread.

        Never raises: others are looked after by the same thread.
        """
        try:
            with self._lock:
                abort = self._supervise(now_s)
        except Exception as error:
            self.fault("looking after its thread failed", error)
            return
        if abort is not None:
            abort.abort()

    def _supervise(self, now_s: float) -> Worker | None:
        """Under the lock. Returns a worker whose blocked call is to be aborted."""
        if self._stopping:
            return None
        # Once: a main thread that is always late has to look after its threads all the same.
        self._held_up = not self._held_up and now_s - self._ticked_s > LATE_TICK_S
        self._ticked_s = now_s
        self._given_up = [worker for worker in self._given_up if worker.thread.is_alive()]
        if self._told is not self._states.status:
            self._publish()
        self._remind(now_s)
        worker = self._worker
        if worker is None:
            if now_s >= self._launch_s and len(self._given_up) < MOST_GIVEN_UP:
                self._launch(0.0)
            return None
        if worker.finished or self._states.status.state is CameraState.ENDED:
            return None  # if closing a file that is over hangs, nobody waits for it
        if not worker.thread.is_alive():
            self._tell(self._states.failed("the capture thread died; see the log"))
            self._launch(self._backoff.failed())
            return None
        phase, overdue_s = worker.overdue(now_s)
        if overdue_s <= 0.0 or self._held_up:
            return None
        if phase is not Phase.CLOSE:  # why it is closed has been told
            worker.overdue_told = True
            reason = worker.overdue_reason(phase)
            first = phase is Phase.FIRST
            self._tell(self._states.failed(reason) if first else self._states.stalled(reason))
        if overdue_s > GRACE_S:
            self._give_up(worker)
        return worker

    def _give_up(self, worker: Worker) -> None:
        worker.stop.set()
        self._given_up.append(worker)
        self._given_up_count += 1
        self._worker = None
        self._say(
            logging.WARNING,
            f"its reader does not come back; thread given up ({self._given_up_count} so far)",
        )
        waits_s = worker.next_wait_s
        waits_s = self._backoff.failed() if waits_s is None else waits_s
        if len(self._given_up) < MOST_GIVEN_UP:
            self._launch(waits_s)
            return
        self._launch_s = self._clock.now() + waits_s
        self._tell(
            self._states.stalled(
                f"{MOST_GIVEN_UP} readers hang; it is tried again when one comes back"
            )
        )

    def _launch(self, wait_s: float) -> None:
        worker = Worker(self.settings, self._clock, self._reader_factory, self, wait_s)
        try:
            worker.thread.start()
        except RuntimeError as error:
            # The process may have no more threads, or no memory for one, for a while.
            self._worker = None
            self._launch_s = self._clock.now() + self._backoff.failed()
            self._tell(self._states.failed(f"no thread to read it with: {error}"))
            return
        self._worker = worker

    def _workers(self) -> list[Worker]:
        return [*self._given_up, *([self._worker] if self._worker is not None else [])]

    # What the worker calls. Each is a no-op for a worker that was given up.

    def seen(self, worker: Worker, corrupt: bool, bad_packets: int) -> None:
        """A picture was decoded (whether it counts or not), after so many bad packets."""
        with self._lock:
            if worker is not self._worker or self._stopping:
                return
            if bad_packets > 0:
                self._states.bad_packets(bad_packets)
            self._backoff.frame(self._clock.now())
            self._tell(self._states.frame(corrupt))

    def note(self, worker: Worker, note: str) -> None:
        """Why the source is not read or decoded as the config asks; told once. "": it is."""
        with self._lock:
            if note and worker is self._worker and note not in self._faults_told:
                self._faults_told.add(note)
                logger.warning("camera %s: %s", self.settings.name, self._redactor.clean(note))

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
            unauthorized = isinstance(error, SourceUnauthorized)
            wait_s = self._backoff.failed(unauthorized)
            if isinstance(error, SourceSilent) and worker.overdue_told:
                return wait_s  # the supervisor has said so, in its own words
            state, reason = state_of(error, self._states.status.state.delivers)
            told = self._tell(self._states.become(state, self._redactor.clean(reason)))
            if told and not isinstance(error, CaptureError):
                self._log_traceback(error)
            return wait_s

    def fault(self, what: str, error: Exception, where: str = "") -> None:
        """Something broke that does not end the connection; told once a camera. Any thread."""
        if what not in self._faults_told:
            self._faults_told.add(what)
            at = f" ({where})" if where else ""
            logger.error("camera %s: %s%s (told once)", self.settings.name, what, at)
            self._log_traceback(error)

    def _log_traceback(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        logger.error("camera %s: %s", self.settings.name, self._redactor.clean(text))

    # What is told. Under the lock.

    def _tell(self, change: CameraStatus | None) -> bool:
        """Tell a change of state to the sink, and to people; whether it was logged."""
        if change is None:
            return False
        self._publish()
        return self._say(_level(change), _words(change))

    def _publish(self) -> None:
        """Every change at once, however many: what is retained has to be true.

        The waiting times between attempts bound them: a camera that flaps has two in half a
        minute.
        """
        status = self._states.status
        try:
            self._sink.status(status)
        except Exception as error:
            self.fault("its state could not be handed on; it is tried again", error)
        else:
            self._told = status

    def _say(self, level: int, words: str) -> bool:
        """One line in the log, unless there were too many."""
        if not self._gate.news(self._clock.now()):
            return False
        left_out, self._gate.left_out = self._gate.left_out, 0
        silence = f" [{left_out} changes before this not logged]" if left_out else ""
        logger.log(level, "camera %s: %s%s", self.settings.name, words, silence)
        return True

    def _remind(self, now_s: float) -> None:
        """Trouble that lasts is said again, rarely; so is how it stands after a silence."""
        status = self._states.status
        if self._gate.left_out and self._gate.has_room(now_s):
            self._say(_level(status), f"now {_words(status)}")
        elif status.state in _TROUBLES and self._gate.reminder(now_s):
            logger.warning("camera %s: still %s", self.settings.name, _words(status))


_TROUBLES = (
    CameraState.STALLED, CameraState.UNAUTHORIZED, CameraState.FAILED, CameraState.DEGRADED,
)  # fmt: skip


def _level(status: CameraStatus) -> int:
    lost = status.state is CameraState.CONNECTING and status.reason
    return logging.WARNING if lost or status.state in _TROUBLES else logging.INFO


def _words(status: CameraStatus) -> str:
    return f"{status.state.value} ({status.reason})" if status.reason else status.state.value
