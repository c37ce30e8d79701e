"""The loop of one capture thread: open, read, stamp, letterbox, hand on; then again."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Protocol

from vidserve.capture.grey import SIDE_LIMIT_PX
from vidserve.capture.lag import Overrun
from vidserve.capture.motion import MotionEstimator
from vidserve.capture.pacing import Hurry
from vidserve.capture.reader import Arrival, Picture, Reader
from vidserve.capture.settings import CameraSettings
from vidserve.capture.timing import Stamp, Timing
from vidserve.clock import Clock
from vidserve.errors import SourceUnreachable, SourceUnusable
from vidserve.frames import DropReason, MotionStep, Regions, Thinning
from vidserve.slots import Slot

ReaderFactory = Callable[[CameraSettings, Clock], Reader]

LAG_EVERY_S = 1.0
UNCONVERTIBLE = "a picture cannot be converted"
TOO_FAST = (
    "its pictures come faster than they can be decoded, so it goes on from key picture to key "
    "picture: use the camera's second stream, or let it send smaller or fewer pictures"
)
_ROOM_S = 0.005


class Phase(enum.Enum):
    """What a worker is doing; the value is what people are told if it takes too long."""

    WAIT = "waiting"
    OPEN = "no answer"
    FIRST = "no frame decoded"
    READ = "no frame"
    WORK = "the picture could not be converted"
    CLOSE = "the connection could not be closed"

    @property
    def starting(self) -> bool:
        """Before the first picture of a connection."""
        return self in (Phase.OPEN, Phase.FIRST)


class Port(Protocol):
    """What a worker needs of its camera; see ``CameraThread`` for the meaning."""

    def seen(self, worker: Worker, corrupt: bool, bad_packets: int) -> None: ...
    def slot_for(
        self, worker: Worker, captured_s: float, width: int, height: int
    ) -> Slot | None: ...
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
    ) -> None: ...
    def look_at(self, worker: Worker) -> tuple[Regions | None, Thinning] | None: ...
    def drop(
        self, worker: Worker, captured_s: float, reason: DropReason, count: int = 1
    ) -> None: ...
    def lag(self, worker: Worker, source_lag_s: float | None, reader_delay_s: float) -> None: ...
    def note(self, worker: Worker, note: str) -> None: ...
    def ended(self, worker: Worker) -> None: ...
    def room(self) -> bool: ...
    def failed(self, worker: Worker, error: Exception) -> float | None: ...
    def fault(self, what: str, error: Exception, where: str = "") -> None: ...


class Worker:
    """One capture thread, from its start to its end or until it is given up.

    Args:
        settings, clock, reader_factory: As for ``CameraThread``.
        port: The camera.
        wait_s: To wait before the first attempt.
    """

    def __init__(
        self,
        settings: CameraSettings,
        clock: Clock,
        reader_factory: ReaderFactory,
        port: Port,
        wait_s: float,
    ) -> None:
        self.settings = settings
        self.stop = threading.Event()
        self.finished = False
        self.thread = threading.Thread(
            target=self._run, args=(wait_s,), name=f"capture-{settings.name}", daemon=True
        )
        self._clock = clock
        self._reader_factory = reader_factory
        self._port = port
        self._reader: Reader | None = None
        # One tuple, so that the supervisor never sees half a change.
        self._phase: tuple[Phase, float] = (Phase.WAIT, clock.now())
        self._motion = MotionEstimator()
        self.overdue_told = False  # of this attempt, by the supervisor
        self.next_wait_s: float | None = None  # after an attempt that failed

    # Called by the supervisor.

    def request_stop(self) -> None:
        """Ask it to end, and abort what it waits for. Returns at once."""
        self.stop.set()
        self.abort()

    def abort(self) -> None:
        """Abort a blocked call of the reader, if its library can."""
        reader = self._reader
        if reader is None:
            return
        try:
            reader.abort()
        except Exception as error:
            self._port.fault("its reader cannot be aborted", error)

    def overdue(self, now_s: float) -> tuple[Phase, float]:
        """The present phase, and by how much it has passed its limit; <= 0 if all is well."""
        phase, since_s = self._phase
        if phase is Phase.WAIT:
            return phase, 0.0
        return phase, now_s - since_s - self._limit_s(phase) - self._slack_s(phase)

    def overdue_reason(self, phase: Phase) -> str:
        """What has not happened, for people."""
        return f"{phase.value} for {self._limit_s(phase):g} s"

    def _limit_s(self, phase: Phase) -> float:
        return self.settings.start_s if phase.starting else self.settings.stall_s

    def _slack_s(self, phase: Phase) -> float:
        # A reader that keeps its own time-outs knows better why nothing came: let it speak first.
        return 1.0 if phase.starting else 0.0

    # The thread.

    def _run(self, wait_s: float | None) -> None:
        while wait_s is not None and not self.stop.wait(wait_s):
            wait_s = self._attempt()
            self._enter(Phase.WAIT)
        self.finished = True

    def _enter(self, phase: Phase) -> None:
        self._phase = (phase, self._clock.now())

    def _attempt(self) -> float | None:
        """One connection, or one file to its end; seconds to the next, None: there is none."""
        self.overdue_told, self.next_wait_s = False, None
        self._motion.reset()
        self._enter(Phase.OPEN)
        try:
            self._reader = self._reader_factory(self.settings, self._clock)
            if not self.stop.is_set():
                self._reader.open()
                if self._read_all(self._reader):
                    self._port.ended(self)
        except Exception as error:
            # A dead silent thread would be the one failure that nobody sees. Told before the
            # connection is closed: that may hang.
            self.next_wait_s = self._port.failed(self, error)
        finally:
            self._close()
        return self.next_wait_s

    def _close(self) -> None:
        self._enter(Phase.CLOSE)
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            reader.close()
        except Exception as error:
            # It is over with this reader anyhow, and why has been told.
            self._port.fault("its connection could not be closed", error)

    def _read_all(self, reader: Reader) -> bool:
        """True at the end of a file; False if asked to stop."""
        timing = Timing(self.settings, reader, self._clock)
        hurry, overrun = Hurry(), Overrun()
        hurried = False
        told_s = self._clock.now()
        bad_packets = skipped = 0
        pictures = 0  # of this round through a file
        # The time for the first picture began with the attempt.
        self._phase = (Phase.FIRST, self._phase[1])
        started = False
        while not self.stop.is_set():
            if self._wait_until(timing.wake_s(self._clock.now())):
                break
            if started:
                self._enter(Phase.READ)
            arrival = reader.read()
            if arrival is None:
                self._check_end(reader, pictures)
                if not self.settings.loop:
                    return True
                reader.rewind()
                timing.restart()
                pictures = 0
                continue
            pictures += 1
            if not started:
                started = True
                self._port.note(self, reader.facts().note)
            self._enter(Phase.WORK)
            picture = arrival.picture
            self._port.seen(self, picture.corrupt, reader.bad_packets - bad_packets)
            bad_packets = reader.bad_packets
            if not reader.live and self._wait_for_room(picture, timing):
                break
            stamp = self._handle(arrival, timing, reader.skipped - skipped)
            skipped = reader.skipped
            now_s = self._clock.now()
            if overrun.grows(now_s, stamp.reason is DropReason.STALE, timing.lag_s):
                self._port.note(self, TOO_FAST)
                reader.catch_up()
            if self.settings.skip == "nonref" and hurry.on(now_s, stamp.late) is not hurried:
                hurried = not hurried
                reader.hurry(hurried)
            if now_s - told_s >= LAG_EVERY_S:
                told_s = now_s
                self._port.lag(self, timing.lag_s, reader.reader_delay_s)
        return False

    def _wait_for_room(self, picture: Picture, timing: Timing) -> bool:
        """Files can wait where cameras cannot; True if asked to stop."""
        if (timing.paced and timing.begun) or self._port.room():
            return False
        # The size is of use even now: input shapes are measured before the first frame counts.
        slot = self._port.slot_for(self, self._clock.now(), picture.width, picture.height)
        if slot is not None:
            slot.release()
        self._enter(Phase.WAIT)
        while not self._port.room():
            if self.stop.wait(_ROOM_S):
                return True
        self._enter(Phase.WORK)
        return False

    def _check_end(self, reader: Reader, pictures: int) -> None:
        if reader.live:
            raise SourceUnreachable("the source ended the stream")
        if not pictures:
            raise SourceUnusable("no frames decoded: play the file elsewhere, it may be damaged")

    def _handle(self, arrival: Arrival, timing: Timing, skipped: int) -> Stamp:
        """Stamp one picture and hand it on, ``skipped`` others before it."""
        stamp = timing.stamp(arrival, skipped)
        captured_s, reason, lost, _ = stamp
        for missing, why in ((skipped, DropReason.SKIPPED), (lost, DropReason.MISSED)):
            counted = timing.limit.count_lost(missing, captured_s) if missing > 0 else 0
            if counted:
                self._port.drop(self, captured_s, why, counted)
        if not timing.limit.lets_through(captured_s):
            return stamp
        if reason is not None:
            self._port.drop(self, captured_s, reason)
        elif not self._wait_until(captured_s):
            self._hand_on(arrival.picture, captured_s)
        return stamp

    def _hand_on(self, picture: Picture, captured_s: float) -> None:
        width, height = picture.width, picture.height
        if width <= 0 or height <= 0:
            self._port.drop(self, captured_s, DropReason.INVALID)
            return
        motion, motion_s = self._measure(picture, captured_s)
        slot = None
        if not picture.corrupt:
            slot = self._port.slot_for(self, captured_s, width, height)
            if slot is not None and not self._fill(slot, picture):
                self._port.drop(self, captured_s, DropReason.INVALID)
                return
        self._port.deliver(self, captured_s, width, height, picture.corrupt, slot, motion, motion_s)

    def _measure(self, picture: Picture, captured_s: float) -> tuple[MotionStep | None, float]:
        """What moved since the last picture that was not damaged, and what it took to see that."""
        look = None if picture.corrupt else self._port.look_at(self)
        if look is None:
            return None, 0.0
        regions, self._motion.thinning = look
        began_s = self._clock.now()
        size = (picture.width, picture.height)
        try:
            step = self._motion.step(picture.grey(SIDE_LIMIT_PX), captured_s, size, regions)
        except Exception as error:
            self._motion.reset()
            self._port.fault(UNCONVERTIBLE, error, f"{size[0]}x{size[1]}")
            return None, 0.0
        return step, self._clock.now() - began_s

    def _fill(self, slot: Slot, picture: Picture) -> bool:
        """Letterbox into the slot; on failure it goes back to its pool."""
        try:
            if slot.geometry is None:
                raise AssertionError("a slot came without its geometry")
            picture.write_letterbox(slot.pixels, slot.geometry)
        except Exception as error:
            slot.release()
            self._port.fault(UNCONVERTIBLE, error, f"{picture.width}x{picture.height}")
            return False
        return True

    def _wait_until(self, when_s: float | None) -> bool:
        """Wait for a moment; True if asked to stop."""
        if when_s is None:
            return self.stop.is_set()
        left_s = when_s - self._clock.now()
        if left_s <= 0.0:
            return self.stop.is_set()
        phase, _ = self._phase
        self._phase = (Phase.WAIT, self._clock.now())
        stopped = self.stop.wait(left_s)
        self._enter(phase)
        return stopped
