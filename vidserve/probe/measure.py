"""Opens and reads a source as the daemon would, for a few seconds, and keeps what it saw.

A thread reads; the caller's thread looks after it, so that nothing a library does takes longer
than the time-outs of the camera and a grace.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from vidserve.capture.reader import Picture, Reader, SourceFacts
from vidserve.capture.redact import Redactor
from vidserve.capture.settings import CameraSettings
from vidserve.capture.states import state_of
from vidserve.capture.worker import Phase, ReaderFactory
from vidserve.clock import Clock
from vidserve.config.problems import printable
from vidserve.errors import CaptureError, SourceSilent, SourceUnreachable, SourceUnusable
from vidserve.frames import CameraState

logger = logging.getLogger(__name__)

MOST_PICTURES = 20_000  # a file is read as fast as it goes; a formula goes without end
SLACK_S = 1.0  # a reader that keeps its own time-outs knows better what is wrong: it speaks first
GRACE_S = 2.0  # what a library may take beyond its time-out, as in the daemon
_POLITE_S = 0.5  # a read that began before the end may come to its own
_PATIENCE_S = 1.0  # a silence below this is no sign of trouble
_TICK_S = 0.05
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """One picture; what ``Arrival`` says of it, and what it cost.

    Attributes:
        read_s: Monotonic time at which the reader handed it out.
        cpu_s: Of the thread, for reading and decoding it.
    """

    received_s: float
    pts_s: float | None
    waited_s: float
    key: bool
    decode_s: float
    width: int
    height: int
    rotation: int
    corrupt: bool
    read_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """What the reader says of itself and its source, at one moment."""

    facts: SourceFacts
    live: bool
    nominal_fps: float | None
    reader_delay_s: float
    bad_packets: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """How the daemon would show what went wrong.

    Attributes:
        state: Of the camera.
        reason: For people, without secrets.
        error: Its class, for what to do next.
    """

    state: CameraState
    reason: str
    error: type[Exception]


@dataclass(frozen=True, slots=True)
class Reading:
    """All that was seen of a source.

    Attributes:
        standing: The last that the reader said; None if it was never opened.
        samples: In the order of the reader.
        began_s, ended_s: Monotonic: the attempt to open, and the end of the reading.
        opened_s: When ``open`` came back; None if it did not.
        whole: A file, and it was read to its end.
        interrupted: Somebody asked to stop.
        trouble: What ended it before its time; None if nothing did.
        picture: The last that is not damaged.
        hung: The thread did not come back: end the process without waiting for it.
    """

    standing: Standing | None
    samples: tuple[Sample, ...]
    began_s: float
    ended_s: float
    opened_s: float | None
    whole: bool = False
    interrupted: bool = False
    trouble: Trouble | None = None
    picture: Picture | None = None
    hung: bool = False


@dataclass(frozen=True, slots=True)
class Course:
    """How far a reading is; what the supervision and the progress line look at.

    Attributes:
        phase: What the thread is doing.
        began_s, first_s, last_s: The attempt, the first and the last picture; None: none yet.
        longest_s: Between two pictures, so far.
        pictures: So far.
    """

    phase: Phase
    began_s: float
    first_s: float | None = None
    last_s: float | None = None
    longest_s: float = 0.0
    pictures: int = 0


class Ending(enum.Enum):
    """Why a reading is ended from outside."""

    OVER = "the time is over"
    OVERDUE = "something takes longer than it may"


def ending(course: Course, settings: CameraSettings, for_s: float, now_s: float) -> Ending | None:
    """Whether a reading is to end now. Pure.

    It ends ``for_s`` after the first picture; if it has just fallen silent then, the silence is
    waited for, so that a stall is told from a slow camera.
    """
    if course.first_s is None or course.last_s is None:
        late = now_s - course.began_s > settings.start_s + SLACK_S
        return Ending.OVERDUE if late else None
    silent_s = now_s - course.last_s
    if silent_s > settings.stall_s + (0.0 if course.phase is Phase.READ else SLACK_S):
        return Ending.OVERDUE
    if now_s - course.first_s < for_s:
        return None
    return Ending.OVER if silent_s <= max(_PATIENCE_S, 3.0 * course.longest_s) else None


class _Probing(threading.Thread):
    """Reads one source. Whatever it has seen so far can be taken at any time, also if it hangs."""

    def __init__(
        self, settings: CameraSettings, for_s: float, clock: Clock, factory: ReaderFactory
    ) -> None:
        super().__init__(name="probe", daemon=True)
        self._settings = settings
        self._for_s = for_s
        self._clock = clock
        self._factory = factory
        self._redactor = Redactor.for_source(settings.source, settings.username, settings.password)
        self._reader: Reader | None = None
        self._looked_s = float("-inf")
        self.over = threading.Event()
        self.ended = threading.Event()
        self.course = Course(Phase.OPEN, clock.now())
        self.opened_s: float | None = None
        self.ended_s: float | None = None
        self.standing: Standing | None = None
        self.samples: list[Sample] = []
        self.picture: Picture | None = None
        self.whole = False
        self.trouble: Trouble | None = None

    def run(self) -> None:
        try:
            self._play()
        except Exception as error:  # also a library's own: it is to be seen as the daemon shows it
            self.trouble = self.trouble_of(error)
            if not isinstance(error, CaptureError):
                text = "".join(traceback.format_exception(error))
                logger.error("%s", self._redactor.clean(text))
        finally:
            self.ended_s = self._clock.now()
            self.ended.set()

    def abort(self) -> None:
        """Make a blocked call return, if its library can. Any thread."""
        self.over.set()
        reader = self._reader
        if reader is not None:
            reader.abort()

    def trouble_of(self, error: Exception) -> Trouble:
        """As the daemon would show it."""
        state, reason = state_of(error, delivered=bool(self.samples))
        return Trouble(state, printable(self._redactor.clean(reason), 1000), type(error))

    def _play(self) -> None:
        reader = self._reader = self._factory(self._settings, self._clock)
        try:
            reader.open()
            self.opened_s = self._clock.now()
            self._look(reader)
            self._enter(Phase.FIRST)
            try:
                self._read(reader)
            finally:
                self._look(reader)
        finally:
            self._enter(Phase.CLOSE)
            reader.close()

    def _read(self, reader: Reader) -> None:
        while not self.over.is_set() and len(self.samples) < MOST_PICTURES:
            first_s = self.course.first_s
            if first_s is not None and self._clock.now() - first_s >= self._for_s:
                return
            before_s = time.thread_time()
            arrival = reader.read()
            cpu_s = time.thread_time() - before_s
            if arrival is None:
                self._check_end(reader)
                return
            now_s = self._clock.now()
            picture = arrival.picture
            self.samples.append(
                Sample(
                    arrival.received_s,
                    arrival.pts_s,
                    arrival.waited_s,
                    arrival.key,
                    arrival.decode_s,
                    picture.width,
                    picture.height,
                    picture.rotation,
                    picture.corrupt,
                    now_s,
                    cpu_s,
                )
            )
            if not picture.corrupt and min(picture.width, picture.height) > 0:
                self.picture = picture
            self._step(now_s)
            if now_s - self._looked_s >= _LOOK_EVERY_S:
                self._look(reader)

    def _check_end(self, reader: Reader) -> None:
        if reader.live:
            raise SourceUnreachable("the source ended the stream")
        if not self.samples:
            raise SourceUnusable("no frames decoded: play the file elsewhere, it may be damaged")
        self.whole = True

    def _look(self, reader: Reader) -> None:
        self._looked_s = self._clock.now()
        self.standing = Standing(
            reader.facts(),
            reader.live,
            reader.nominal_fps,
            reader.reader_delay_s,
            reader.bad_packets,
            reader.skipped,
        )

    def _enter(self, phase: Phase) -> None:
        self.course = replace(self.course, phase=phase)

    def _step(self, now_s: float) -> None:
        # A new one each time, so that the supervisor never sees half a change.
        course = self.course
        self.course = Course(
            Phase.READ,
            course.began_s,
            first_s=now_s if course.first_s is None else course.first_s,
            last_s=now_s,
            longest_s=max(course.longest_s, now_s - (course.last_s or now_s)),
            pictures=course.pictures + 1,
        )


def read(
    settings: CameraSettings,
    for_s: float,
    clock: Clock,
    factory: ReaderFactory,
    stop: threading.Event | None = None,
    tell: Callable[[Course, float], None] | None = None,
) -> Reading:
    """Open a source and read it for ``for_s`` seconds from its first picture on.

    A file is read as fast as it decodes. Takes at most ``start_s + for_s + stall_s`` and a few
    seconds, whatever the library does.

    Args:
        settings: As the daemon would have them.
        for_s: Seconds; less if a file ends or has very many pictures.
        clock: The real one.
        factory: Makes the reader.
        stop: Set to end it early; what was seen until then is the result.
        tell: Called now and then with the course and the time. In the caller's thread.
    """
    stop = stop or threading.Event()
    probing = _Probing(settings, for_s, clock, factory)
    probing.start()
    trouble: Trouble | None = None
    interrupted = False
    while not probing.ended.wait(_TICK_S):
        now_s = clock.now()
        course = probing.course
        if tell is not None:
            tell(course, now_s)
        interrupted = stop.is_set()
        over = None if interrupted else ending(course, settings, for_s, now_s)
        if over is Ending.OVERDUE:
            limit_s = settings.stall_s if course.pictures else settings.start_s
            trouble = probing.trouble_of(SourceSilent(f"{course.phase.value} for {limit_s:g} s"))
        if interrupted or over is not None:
            break
    probing.over.set()
    if trouble is None and probing.course.pictures:
        probing.ended.wait(_POLITE_S)
    if not probing.ended.is_set():
        cut_s = clock.now()
        probing.abort()
        hung = not probing.ended.wait(GRACE_S)
    else:
        cut_s, hung = probing.ended_s or clock.now(), False
        # What the reader itself found out at the last moment, unless we have asked it to end.
        if not interrupted:
            trouble = trouble or probing.trouble
    return Reading(
        standing=probing.standing,
        samples=tuple(probing.samples),
        began_s=probing.course.began_s,
        ended_s=cut_s,
        opened_s=probing.opened_s,
        whole=probing.whole,
        interrupted=interrupted,
        trouble=trouble,
        picture=probing.picture,
        hung=hung,
    )
