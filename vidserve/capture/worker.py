"""The loop of one capture thread: open, read, stamp, letterbox, hand on; then again."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from vidserve.capture.grey import SIDE_LIMIT_PX
from vidserve.capture.lag import SourceLag
from vidserve.capture.motion import MotionEstimator
from vidserve.capture.pacing import FpsLimit, Pacer
from vidserve.capture.reader import Arrival, Picture, Reader
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock
from vidserve.errors import SourceUnreachable, SourceUnusable
from vidserve.frames import DropReason, MotionStep, Regions, Thinning
from vidserve.slots import Slot

ReaderFactory = Callable[[CameraSettings, Clock], Reader]

logger = logging.getLogger(__name__)

LAG_EVERY_S = 1.0
_ROOM_S = 0.005
SETTLE_S = 2.0
PAUSE_S = 0.003  # a read that took longer had to wait
LONG_WAIT_S = 0.015


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
    def ended(self, worker: Worker) -> None: ...
    def room(self) -> bool: ...
    def failed(self, worker: Worker, error: Exception) -> float | None: ...


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
        self._conversion_told = False
        self._motion = MotionEstimator()

    # Called by the supervisor.

    def request_stop(self) -> None:
        """Ask it to end, and abort what it waits for. Returns at once."""
        self.stop.set()
        self.abort()

    def abort(self) -> None:
        """Abort a blocked call of the reader, if its library can."""
        reader = self._reader
        if reader is not None:
            reader.abort()

    def overdue_s(self, now_s: float) -> float:
        """By how much the present phase has passed its limit; <= 0 if all is well."""
        phase, since_s = self._phase
        if phase is Phase.WAIT:
            return 0.0
        return now_s - since_s - self._limit_s(phase) - self._slack_s(phase)

    def overdue_reason(self) -> str:
        """What has not happened, for people."""
        phase, _ = self._phase
        return f"{phase.value} for {self._limit_s(phase):g} s"

    def _limit_s(self, phase: Phase) -> float:
        return self.settings.start_s if phase.starting else self.settings.stall_s

    def _slack_s(self, phase: Phase) -> float:
        # A reader that keeps its own time-outs knows better why nothing came: let it speak first.
        return 1.0 if phase.starting else 0.0

    # The thread.

    def _run(self, wait_s: float | None) -> None:
        while wait_s is not None and not self.stop.wait(wait_s):
            try:
                self._play()
            except Exception as error:
                # A dead silent thread would be the one failure that nobody sees.
                wait_s = self._port.failed(self, error)
            else:
                wait_s = None
            self._enter(Phase.WAIT)
        self.finished = True

    def _enter(self, phase: Phase) -> None:
        self._phase = (phase, self._clock.now())

    def _play(self) -> None:
        """One connection, or one file to its end."""
        reader = self._reader_factory(self.settings, self._clock)
        self._reader = reader
        self._motion.reset()
        try:
            if self.stop.is_set():
                return
            self._enter(Phase.OPEN)
            reader.open()
            if self._read_all(reader):
                self._port.ended(self)
        finally:
            self._enter(Phase.CLOSE)
            self._reader = None
            reader.close()

    def _read_all(self, reader: Reader) -> bool:
        """True at the end of a file; False if asked to stop."""
        timing = _Timing(self.settings, reader, self._clock)
        told_s = self._clock.now()
        bad_packets = 0
        pictures = 0  # of this round through a file
        self._enter(Phase.FIRST)
        started = False
        while not self.stop.is_set():
            if self._wait_until(timing.wake_s(self._clock.now())):
                break
            self._enter(Phase.READ if started else Phase.FIRST)
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
            started = True
            self._enter(Phase.WORK)
            picture = arrival.picture
            self._port.seen(self, picture.corrupt, reader.bad_packets - bad_packets)
            bad_packets = reader.bad_packets
            if not reader.live and self._wait_for_room(picture, timing):
                break
            self._handle(arrival, timing)
            now_s = self._clock.now()
            if now_s - told_s >= LAG_EVERY_S:
                told_s = now_s
                self._port.lag(self, timing.lag_s, reader.reader_delay_s)
        return False

    def _wait_for_room(self, picture: Picture, timing: _Timing) -> bool:
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

    def _handle(self, arrival: Arrival, timing: _Timing) -> None:
        """Stamp one picture and hand it on."""
        captured_s, reason, lost = timing.stamp(arrival)
        if lost:
            self._port.drop(self, captured_s, DropReason.MISSED, lost)
        if not timing.limit.lets_through(captured_s):
            return
        if reason is not None:
            self._port.drop(self, captured_s, reason)
            return
        if self._wait_until(captured_s):
            return
        picture = arrival.picture
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
        except Exception:
            self._motion.reset()
            self._tell_conversion(picture)
            return None, 0.0
        return step, self._clock.now() - began_s

    def _fill(self, slot: Slot, picture: Picture) -> bool:
        """Letterbox into the slot; on failure it goes back to its pool."""
        try:
            if slot.geometry is None:
                raise AssertionError("a slot came without its geometry")
            picture.write_letterbox(slot.pixels, slot.geometry)
        except Exception:
            slot.release()
            self._tell_conversion(picture)
            return False
        return True

    def _tell_conversion(self, picture: Picture) -> None:
        """Log the present exception, once a camera."""
        if not self._conversion_told:
            self._conversion_told = True
            logger.exception(
                "camera %s: a picture of %dx%d cannot be converted (told once)",
                self.settings.name, picture.width, picture.height,
            )  # fmt: skip

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


class _Timing:
    """The capture time of each picture, by the rule for its kind of source."""

    def __init__(self, settings: CameraSettings, reader: Reader, clock: Clock) -> None:
        self._settings = settings
        self._reader = reader
        self._clock = clock
        self._pacer: Pacer | None = None
        if not reader.live and settings.realtime:
            self._pacer = Pacer(settings.budget_s, reader.nominal_fps)
        self._source_lag = SourceLag() if reader.live else None
        self._last_captured_s = float("-inf")
        self._began_s: float | None = None
        self._settled = False  # a read had to wait: what FFmpeg gathered while probing is read
        self.limit = FpsLimit(settings.fps_limit)
        self.lag_s: float | None = None
        self.begun = False

    @property
    def paced(self) -> bool:
        """Whether this is a file that is played in real time."""
        return self._pacer is not None

    def wake_s(self, now_s: float) -> float | None:
        """When to begin with the next picture; None: at once."""
        if self._pacer is None:
            return None
        return self._pacer.wake_s(self._reader.expected_pts_s(), now_s)

    def restart(self) -> None:
        """The file begins again."""
        if self._pacer is not None:
            self._pacer.restart()

    def stamp(self, arrival: Arrival) -> tuple[float, DropReason | None, int]:
        """Capture time, why it is dropped (None: it is not), how many others were lost."""
        self.begun = True
        if self._pacer is not None:
            due = self._pacer.picture(arrival.pts_s, self._clock.now())
            lost = due.lost
            if lost and self._settings.fps_limit:
                # Frames beyond the limit would not have been captured.
                share = self._settings.fps_limit * self._pacer.usual_step_s
                lost = max(1, round(lost * min(1.0, share)))
            return due.due_s, DropReason.MISSED if due.missed else None, lost
        # A file at full speed is captured when it is handed on: it may have waited for room.
        captured_s = arrival.received_s if self._reader.live else self._clock.now()
        reason = None
        if self._source_lag is not None:
            paused = arrival.waited_s > PAUSE_S
            sample = self._source_lag.sample(arrival.pts_s, arrival.received_s, paused)
            self.lag_s = sample.lag_s if sample is not None else None
            if not self._settle(arrival, paused):
                reason = DropReason.STALE
            if sample is not None and not self._awaited(arrival, sample.earliest_s):
                # The packet lay in a buffer: it came when its pts says, not when we looked.
                captured_s = min(sample.earliest_s, arrival.received_s)
                if sample.lag_s > self._settings.budget_s:
                    reason = DropReason.STALE
        captured_s = max(captured_s, self._last_captured_s)
        self._last_captured_s = captured_s
        return captured_s, reason, 0

    def _awaited(self, arrival: Arrival, earliest_s: float) -> bool:
        """Whether the packet came while we were waiting for it, so that we saw it come.

        If we began to wait before it can have come at the earliest, the network was late, not
        we. If we began later, only a wait that is too long for anything else proves it: taking
        the interpreter lock back takes a switch interval (5 ms) for each thread in the way.
        """
        began_s = arrival.received_s - arrival.waited_s
        return arrival.waited_s > LONG_WAIT_S or began_s <= earliest_s + PAUSE_S

    def _settle(self, arrival: Arrival, paused: bool) -> bool:
        """Whether the pictures that lay ready when the stream was opened are read away."""
        if self._began_s is None:
            self._began_s = arrival.received_s
        late = arrival.received_s - self._began_s > SETTLE_S  # a source without any pause
        self._settled = self._settled or paused or late
        return self._settled
