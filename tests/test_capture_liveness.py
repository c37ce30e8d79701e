"""Threads that do not come back: given up, replaced, bounded, counted; none harms another."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from tests.lab.bad_readers import CALLS, BadReader, sleep
from tests.lab.manual import TickingClock
from tests.lab.sink import CollectingSink, running
from vidserve.capture.camera import CameraSettings, CameraThread
from vidserve.capture.reader import Arrival, Reader
from vidserve.capture.source import open_reader
from vidserve.capture.synthetic import SyntheticReader
from vidserve.capture.worker import Phase
from vidserve.clock import Clock
from vidserve.errors import SourceUnauthorized
from vidserve.frames import CameraState, CameraStatus, Frame

GOOD = CameraSettings("good", "synthetic://?fps=30")
URL = "synthetic://?fps=50"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidserve.capture.camera.GRACE_S", 0.3)


class Holder:
    """A reader that hangs until it is let go, once; it holds a descriptor, as a connection does."""

    def __init__(self, call: str) -> None:
        self.over = threading.Event()
        self.reader: BadReader | None = None
        self.hanging = 0
        self._call = call

    def _hang(self) -> None:
        self.hanging += 1
        sleep(self.over)

    def open(self, settings: CameraSettings, clock: Clock) -> Reader:
        if self.hanging or self.reader is not None:
            return open_reader(settings, clock)
        if self._call == "factory":
            self._hang()
        held = socket.socket()

        class Holding(BadReader):
            def close(self) -> None:
                super().close()
                held.close()

        self.reader = Holding(URL, clock, self._call, self._hang)
        return self.reader


def count_threads(camera: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(f"capture-{camera}")


def test_whatever_hangs_is_given_up_replaced_and_frees_its_things_when_it_returns() -> None:
    """Six cameras, each in another call, beside a good one."""
    trouble = {
        "factory": (CameraState.STALLED, "no answer for 0.4 s"),
        "open": (CameraState.STALLED, "no answer for 0.4 s"),
        "first": (CameraState.FAILED, "no frame decoded for 0.4 s"),
        "read": (CameraState.STALLED, "no frame for 0.4 s"),
        "convert": (CameraState.STALLED, "the picture could not be converted for 0.4 s"),
        "close": (CameraState.CONNECTING, "connection lost: it hung up"),
    }
    holders = {call: Holder(call) for call in CALLS}
    sink = CollectingSink(keyframe_every=1)

    def factory(settings: CameraSettings, clock: Clock) -> Reader:
        holder = holders.get(settings.name)
        return open_reader(settings, clock) if holder is None else holder.open(settings, clock)

    bad = [CameraSettings(call, URL, stall_s=0.4, start_s=0.4) for call in CALLS]
    with running(sink, *bad, GOOD, factory=factory) as cameras:
        for camera in cameras[:-1]:
            call = camera.settings.name
            sink.wait(lambda camera=camera: camera.given_up == 1)  # type: ignore[misc]
            before = len(sink.of(call))
            sink.wait(lambda call=call, n=before: len(sink.of(call)) > n + 5)  # type: ignore[misc]
            assert holders[call].hanging == 1
            assert camera.status.state is CameraState.RUNNING
            assert trouble[call] in [(s.state, s.reason) for s in sink.statuses if s.camera == call]
        sink.wait(lambda: len(sink.of("good")) > 40)
        for holder in holders.values():
            holder.over.set()
        sink.wait(lambda: all(h.reader is not None and h.reader.closed for h in holders.values()))
        sink.wait(lambda: all(count_threads(call) == 1 for call in CALLS))
        for camera in cameras[:-1]:  # what the one who came back said changed nothing
            assert camera.status.state is CameraState.RUNNING
    for name in (*CALLS, "good"):
        sink.check_accounts(name)  # also: no slot is lost


class HungWorker:
    """Stands for a worker whose thread hangs in a read until it is let back."""

    every: ClassVar[list[HungWorker]] = []
    startable = True

    def __init__(
        self, settings: CameraSettings, clock: Clock, _factory: object, _port: object, wait_s: float
    ) -> None:
        self.stop = threading.Event()
        self.thread = self  # its own thread, as far as the camera can see
        self.finished = self.overdue_told = self.back = False
        self.next_wait_s: float | None = None
        self._began_s = clock.now() + wait_s

    def start(self) -> None:
        if not HungWorker.startable:
            raise RuntimeError("can't start new thread")
        HungWorker.every.append(self)

    def is_alive(self) -> bool:
        return not self.back

    def overdue(self, now_s: float) -> tuple[Phase, float]:
        return Phase.READ, now_s - self._began_s - 5.0

    def overdue_reason(self, phase: Phase) -> str:
        return f"{phase.value} for 5 s"

    def abort(self) -> None:
        """Deaf."""


@contextmanager
def hung_camera(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CameraThread, TickingClock]]:
    monkeypatch.setattr("vidserve.capture.camera.Worker", HungWorker)
    monkeypatch.setattr(HungWorker, "every", [])
    clock = TickingClock()
    camera = CameraThread(CameraSettings("c", "x"), CollectingSink(), clock, open_reader)
    clock.ticks = [camera.tick]
    camera.start()
    yield camera, clock


def test_hanging_threads_are_bounded_reminded_of_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hung_camera(monkeypatch) as (camera, clock):
        clock.advance(7200.0)
        assert camera.given_up == len(HungWorker.every) == 3
        assert camera.status.state is CameraState.STALLED
        assert "3 readers hang" in camera.status.reason
        assert 11 <= caplog.text.count("still stalled (3 readers hang") <= 12
        HungWorker.every[1].back = True
        clock.advance(1.0)
        assert len(HungWorker.every) == 4  # that it came back is the sign to try again
        clock.advance(3600.0)
        assert camera.given_up == 4
    # A library that gives threads back late, for ever, is no flood either.
    caplog.clear()
    with hung_camera(monkeypatch) as (camera, clock):
        for _ in range(3600):
            clock.advance(2.0)
            for worker in HungWorker.every:
                worker.back = worker.stop.is_set()
        assert 150 <= camera.given_up == len(HungWorker.every) - 1 <= 600
        assert caplog.text.count("\n") <= 10 + 120 + 12


def test_a_thread_that_cannot_be_started_is_a_failure_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(HungWorker, "startable", False)
    with hung_camera(monkeypatch) as (camera, clock):
        assert camera.status.state is CameraState.FAILED
        assert "can't start new thread" in camera.status.reason
        clock.advance(600.0)
        assert camera.join(0.1) and not HungWorker.every
        assert caplog.text.count("can't start new thread") <= 2
        HungWorker.startable = True
        clock.advance(40.0)
        assert HungWorker.every


def test_a_supervisor_that_was_held_up_itself_blames_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process was stopped for a minute: the first look after it is no measure of others."""
    with hung_camera(monkeypatch) as (camera, clock):
        clock.advance(1.0)
        ticks, clock.ticks = clock.ticks, []
        clock.advance(60.0)
        camera.tick(clock.now())
        assert camera.given_up == 0 and camera.status.state is CameraState.CONNECTING
        clock.ticks = ticks
        clock.advance(0.5)  # half a second on it is the thread's own fault
        assert camera.given_up == 1
    with hung_camera(monkeypatch) as (camera, clock):
        clock.ticks = []
        for _ in range(10):  # it is late every time: then that is no excuse
            clock.advance(2.0)
            camera.tick(clock.now())
        assert camera.given_up >= 1 and camera.status.state is CameraState.STALLED


class Refusing(BadReader):
    """The login is refused, and then the connection cannot be closed."""

    attempts_s: ClassVar[list[float]] = []

    def read(self) -> Arrival | None:
        self.attempts_s.append(time.monotonic())
        raise SourceUnauthorized("refused: check username and password")


def test_a_refused_login_keeps_its_state_and_its_long_wait_if_closing_hangs() -> None:
    sink = CollectingSink()
    over = threading.Event()
    Refusing.attempts_s.clear()
    with running(
        sink,
        CameraSettings("c", URL, stall_s=0.3, start_s=0.3),
        factory=lambda _s, clock: Refusing(URL, clock, "close", lambda: sleep(over)),
    ) as (camera,):
        sink.wait(lambda: camera.given_up == 1)
        time.sleep(1.5)  # the ordinary waiting time is half a second
        over.set()
    assert sink.states() == [CameraState.CONNECTING, CameraState.UNAUTHORIZED]
    assert len(Refusing.attempts_s) == 1


class Closing(SyntheticReader):
    """Closing hangs, or fails."""

    over = threading.Event()
    opened = 0

    def open(self) -> None:
        super().open()
        type(self).opened += 1

    def close(self) -> None:
        super().close()
        sleep(self.over)
        raise OSError("bad file descriptor")


def test_a_file_that_is_over_stays_over_whatever_closing_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = "synthetic://?fps=50&duration_s=0.2"
    sink = CollectingSink()
    Closing.over.clear()
    with running(
        sink, CameraSettings("c", url, stall_s=0.2), factory=lambda _s, clock: Closing(url, clock)
    ) as (camera,):
        sink.wait_state(CameraState.ENDED)
        time.sleep(1.0)  # past every limit
        Closing.over.set()
        sink.wait(lambda: "could not be closed" in caplog.text)
        assert camera.given_up == 0
    assert sink.states()[-1] is CameraState.ENDED and Closing.opened == 1


class FaultySink(CollectingSink):
    """Refuses states and frames of one camera for a while."""

    faults = 5

    def _fault(self, camera: str) -> None:
        if camera == "c" and self.faults:
            self.faults -= 1
            raise RuntimeError("the sink is full of hunter2")

    def status(self, status: CameraStatus) -> None:
        self._fault(status.camera)
        super().status(status)

    def frame(self, frame: Frame) -> None:
        self._fault(frame.camera)
        super().frame(frame)


def test_a_sink_that_raises_harms_neither_supervision_nor_others_and_learns_the_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = FaultySink()
    settings = CameraSettings("c", URL, username="joe", password="hunter2")
    with running(sink, settings, GOOD) as (camera, _):
        sink.wait(lambda: len(sink.of("c")) > 20 and len(sink.of("good")) > 20)
        sink.wait(lambda: sink.states("c")[-1:] == [camera.status.state])
    assert sink.faults == 0
    assert "state could not be handed on" in caplog.text and "hunter2" not in caplog.text


class Dying(SyntheticReader):
    """Ends its thread in a way that nobody can catch, then plays; cannot be aborted."""

    lives = 0

    def read(self) -> Arrival | None:
        type(self).lives += 1
        if self.lives == 1:
            raise SystemExit(1)
        if self.lives == 2:
            time.sleep(0.6)
        return super().read()

    def abort(self) -> None:
        raise ValueError("nothing to abort")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_replaced_and_a_failing_abort_kills_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Dying.lives = 0
    sink = CollectingSink()
    settings = CameraSettings("c", URL, stall_s=0.2, start_s=0.2)
    with running(
        sink, settings, GOOD,
        factory=lambda s, clock: open_reader(s, clock) if s.name == "good" else Dying(URL, clock),
    ):  # fmt: skip
        sink.wait(lambda: len(sink.of("c")) > 5 and len(sink.of("good")) > 20)
    died = [status.reason for status in sink.statuses if status.state is CameraState.FAILED]
    assert "the capture thread died; see the log" in died
    assert caplog.text.count("cannot be aborted") <= 1


def test_a_factory_that_raises_is_a_failure_and_tried_again() -> None:
    sink = CollectingSink()
    left = [ImportError("no such library")]

    def factory(settings: CameraSettings, clock: Clock) -> Reader:
        if left:
            raise left.pop()
        return open_reader(settings, clock)

    with running(sink, CameraSettings("c", URL), factory=factory):
        sink.wait(lambda: len(sink.of("c")) > 5)
    assert sink.states() == [CameraState.CONNECTING, CameraState.FAILED, CameraState.RUNNING]
    assert "ImportError: no such library" in sink.statuses[1].reason
