"""A camera on a manual clock: the daemon's own classes, run by the test's own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.lab.sink import CollectingSink
from vidserve.capture.camera import CameraThread
from vidserve.capture.reader import Arrival, Reader, SourceFacts
from vidserve.capture.settings import CameraSettings
from vidserve.capture.worker import Worker
from vidserve.clock import Clock, ManualClock
from vidserve.errors import SourceSilent
from vidserve.frames import ByteArray, CameraState, DropReason, Frame, Letterbox


@dataclass(frozen=True, slots=True)
class Sent:
    """A picture of a scripted source: when it can be read, its pts, and others skipped before."""

    came_s: float
    pts_s: float | None
    corrupt: bool = False
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class BlankPicture:
    """A grey picture that knows its number."""

    index: int
    corrupt: bool = False
    width: int = 64
    height: int = 48
    rotation: int = 0

    def write_letterbox(self, pixels: ByteArray, geometry: Letterbox) -> None:
        pixels[:] = self.index % 256

    def grey(self, side_limit: int) -> ByteArray:
        return np.zeros((self.height, self.width), np.uint8)

    def to_bgr(self) -> ByteArray:
        return np.zeros((self.height, self.width, 3), np.uint8)


class TickingClock(ManualClock):
    """A manual clock that has cameras looked after as time passes, as the daemon does."""

    def __init__(self, start_s: float = 1000.0) -> None:
        super().__init__(start_s)
        self.ticks: list[Callable[[float], None]] = []

    def move_to(self, when_s: float) -> None:
        while self.now() < when_s:
            super().move_to(min(when_s, self.now() + 0.25))
            for tick in self.ticks:
                tick(self.now())


class ScriptedReader:
    """Hands out pictures at their moments; one that came while nobody read lies ready.

    Args:
        clock: Moved on by waiting and decoding.
        script: In order of arrival.
        live: Whether the source sets the pace.
        nominal_fps: What it claims.
        decode_s: What each picture costs.
        hold_s: What a read takes at least: getting the interpreter lock back.
        over: Called at the end of a live script.
    """

    reader_delay_s = 0.0
    bad_packets = 0

    def __init__(
        self,
        clock: ManualClock,
        script: Sequence[Sent],
        live: bool = True,
        nominal_fps: float | None = None,
        decode_s: float = 0.002,
        hold_s: float = 0.0,
        over: Callable[[], None] | None = None,
    ) -> None:
        self.live = live
        self.nominal_fps = nominal_fps
        self.skipped = 0
        self.hurries: list[tuple[float, bool]] = []
        self.read_s: list[float] = []  # when each was received
        self._clock = clock
        self._script = script
        self._decode_s = decode_s
        self._hold_s = hold_s
        self._over = over
        self._aborted = False

    def hurry(self, on: bool) -> None:
        self.hurries.append((self._clock.now(), on))

    def catch_up(self) -> None:
        """Every 30th picture is a key picture; what came is left out up to the next one."""
        while len(self.read_s) < len(self._script) and len(self.read_s) % 30:
            self.read_s.append(self._clock.now())
            self.skipped += 1

    def facts(self) -> SourceFacts:
        return SourceFacts("scripted", "a list")

    def open(self) -> None:
        """Nothing to connect to."""

    def expected_pts_s(self) -> float | None:
        index = len(self.read_s)
        return self._script[index].pts_s if index < len(self._script) else None

    def read(self) -> Arrival | None:
        index = len(self.read_s)
        if index == len(self._script):
            if self._over is None:
                return None
            self._over()
            raise SourceSilent("the script is over")
        sent = self._script[index]
        began_s = self._clock.now()
        while self.live and self._clock.now() < sent.came_s:
            self._clock.move_to(min(sent.came_s, self._clock.now() + 0.25))
            if self._aborted:
                raise SourceSilent("the source was aborted")
        self._clock.advance(self._hold_s)
        received_s = self._clock.now()
        self.read_s.append(received_s)
        self._clock.advance(self._decode_s)
        self.skipped += sent.skipped
        picture = BlankPicture(index, sent.corrupt)
        waited_s = received_s - began_s
        return Arrival(picture, received_s, sent.pts_s, waited_s, decode_s=self._decode_s)

    def rewind(self) -> None:
        self.read_s.clear()

    def abort(self) -> None:
        self._aborted = True

    def close(self) -> None:
        """Nothing to free."""


class ManualStop(threading.Event):
    """Waiting moves the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.longest_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if not self.is_set():
            self.longest_s = max(self.longest_s, timeout)
            self._clock.advance(max(0.0, timeout))
        return self.is_set()


class ManualThread(threading.Thread):
    """Runs where it is told to, and is alive meanwhile."""

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__(daemon=True)
        self._thread = thread
        self._runs = True

    def run(self) -> None:
        self._thread.run()
        self._runs = False

    def is_alive(self) -> bool:
        return self._runs


class ManualCamera(CameraThread):
    """The camera with its workers in the test's thread: ``start``, then ``play``."""

    def __init__(
        self,
        settings: CameraSettings,
        sink: CollectingSink,
        clock: ManualClock,
        factory: Callable[[CameraSettings, Clock], Reader],
    ) -> None:
        super().__init__(settings, sink, clock, factory)
        self.stops: list[ManualStop] = []
        self._manual_clock = clock

    def _launch(self, wait_s: float) -> None:
        worker = Worker(self.settings, self._clock, self._reader_factory, self, wait_s)
        worker.stop = ManualStop(self._manual_clock)
        worker.thread = ManualThread(worker.thread)
        self.stops.append(worker.stop)
        self._worker = worker

    def play(self) -> None:
        """Until the worker leaves, and those that take its place."""
        while self._worker is not None and self._worker.thread.is_alive():
            self._worker.thread.run()


class TakingSink(CollectingSink):
    """A sink that takes its time for each frame, on the manual clock."""

    def __init__(self, clock: ManualClock, work_s: Callable[[float], float]) -> None:
        super().__init__()
        self.numbers = 0  # taken so far
        self.wrong: list[Frame] = []  # frames whose number is not the next
        self.captured_s: list[float] = []  # of all that count, in order
        self._clock = clock
        self._work_s = work_s

    def dropped(self, camera: str, captured_s: float, reason: DropReason, count: int = 1) -> None:
        super().dropped(camera, captured_s, reason, count)
        self.numbers += count
        self.captured_s.append(captured_s)

    def frame(self, frame: Frame) -> None:
        super().frame(frame)
        if frame.seq != self.numbers:
            self.wrong.append(frame)
        self.numbers += 1
        self.captured_s.append(frame.captured_s)
        self._clock.advance(self._work_s(self._clock.now()))


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a script."""

    sink: TakingSink
    reader: ScriptedReader
    longest_wait_s: float

    @property
    def frames(self) -> list[Frame]:
        return self.sink.frames

    def dropped(self, reason: DropReason) -> int:
        return sum(count for _, _, why, count in self.sink.drops if why is reason)

    def check(self) -> None:
        """Accounts, and the order of times."""
        self.sink.check_accounts("c")
        assert not self.sink.wrong
        fine = (CameraState.CONNECTING, CameraState.RUNNING, CameraState.ENDED)
        assert set(self.sink.states()) <= set(fine)
        captured_s = self.sink.captured_s
        assert captured_s == sorted(captured_s) and all(np.isfinite(captured_s))


def play(
    script: Sequence[Sent],
    *,
    clock: ManualClock | None = None,
    work_s: Callable[[float], float] = lambda _now_s: 0.0,
    live: bool = True,
    nominal_fps: float | None = None,
    decode_s: float = 0.002,
    hold_s: float = 0.0,
    fps_limit: float | None = None,
    skip: str = "none",
) -> Played:
    """Run a camera named ``c`` through a script."""
    clock = clock or ManualClock(1000.0)
    sink = TakingSink(clock, work_s)
    settings = CameraSettings("c", "script", fps_limit=fps_limit, skip=skip)
    reader = ScriptedReader(
        clock, script, live, nominal_fps, decode_s, hold_s,
        over=(lambda: camera.request_stop()) if live else None,
    )  # fmt: skip
    camera = ManualCamera(settings, sink, clock, lambda _settings, _clock: reader)
    camera.start()
    camera.play()
    return Played(sink, reader, max(stop.longest_s for stop in camera.stops))
