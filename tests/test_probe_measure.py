"""Reading a source for a probe: what ends it, what bounds it, and the daemon's own states."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab import clips
from tests.lab.sink import CollectingSink, running
from tests.running import synthetic
from vidserve.capture.reader import Arrival, Reader
from vidserve.capture.settings import CameraSettings
from vidserve.capture.source import open_reader
from vidserve.capture.states import state_of
from vidserve.capture.synthetic import SyntheticReader
from vidserve.capture.worker import Phase
from vidserve.clock import Clock, RealClock
from vidserve.errors import (
    CaptureError,
    SourceSilent,
    SourceUnauthorized,
    SourceUnreachable,
    SourceUnusable,
)
from vidserve.frames import CameraState
from vidserve.probe import measure
from vidserve.probe.facts import found
from vidserve.probe.measure import Course, Ending, Reading, ending, read

SETTINGS = CameraSettings("probe", "x", start_s=10.0, stall_s=5.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SLACK_S", 0.1)
    monkeypatch.setattr(measure, "GRACE_S", 0.2)
    monkeypatch.setattr(measure, "_POLITE_S", 0.2)


def course(phase: Phase = Phase.READ, **more: float) -> Course:
    return replace(Course(phase, 0.0), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "now_s", "expected"),
    [
        (course(Phase.OPEN), 10.9, None),
        (course(Phase.OPEN), 11.1, Ending.OVERDUE),
        (course(Phase.FIRST), 11.1, Ending.OVERDUE),
        (course(first_s=2.0, last_s=4.0), 4.1, None),
        (course(first_s=2.0, last_s=7.0), 7.1, Ending.OVER),
        # It fell silent just before the end: a stall, or a pause? That is waited for.
        (course(first_s=2.0, last_s=5.5, longest_s=0.04), 7.5, None),
        (course(first_s=2.0, last_s=5.5, longest_s=0.04), 10.6, Ending.OVERDUE),
        # Of a camera with a picture every second and a half that much silence says nothing.
        (course(first_s=2.0, last_s=5.5, longest_s=1.5), 7.5, Ending.OVER),
        (course(first_s=2.0, last_s=2.0), 7.1, Ending.OVERDUE),
        (course(Phase.CLOSE, first_s=2.0, last_s=2.0), 7.9, None),
        (course(Phase.CLOSE, first_s=2.0, last_s=2.0), 8.1, Ending.OVERDUE),
    ],
)
def test_what_ends_a_reading(seen: Course, now_s: float, expected: Ending | None) -> None:
    assert ending(seen, SETTINGS, 5.0, now_s) is expected


class Scripted(SyntheticReader):
    """A live camera: a picture every 10 ms; what it does at some points is given.

    Args:
        on_open, on_read, on_close: Called there; ``on_read`` before each picture, with its
            number. They may raise, wait for ``aborted``, or wait for ever.
    """

    live = True

    def __init__(
        self,
        clock: Clock,
        on_open: Callable[[Scripted], None] = lambda reader: None,
        on_read: Callable[[Scripted, int], None] = lambda reader, index: None,
        on_close: Callable[[Scripted], None] = lambda reader: None,
    ) -> None:
        super().__init__("synthetic://?fps=100", clock)
        self.aborted = threading.Event()
        self.clock = clock
        self._on_open, self._on_read, self._on_close = on_open, on_read, on_close
        self._count = 0

    def open(self) -> None:
        super().open()
        self._on_open(self)

    def read(self) -> Arrival | None:
        self._on_read(self, self._count)
        self._count += 1
        threading.Event().wait(0.01)
        arrival = super().read()
        return None if arrival is None else replace(arrival, waited_s=0.01)

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self._on_close(self)
        super().close()


def hang(reader: Scripted) -> None:
    """As a library that cannot be interrupted; longer than any test waits for it."""
    threading.Event().wait(6.0)


def hang_until_aborted(reader: Scripted) -> None:
    assert reader.aborted.wait(30.0)
    raise SourceSilent("aborted")


def at(place: int, then: Callable[[Scripted], None]) -> Callable[[Scripted, int], None]:
    """From the picture of this number on."""
    return lambda reader, index: then(reader) if index >= place else None


def fail(error: Exception) -> Callable[[Scripted], None]:
    def then(reader: Scripted) -> None:
        raise error

    return then


def scripted(
    on_open: Callable[[Scripted], None] = lambda reader: None,
    on_read: Callable[[Scripted, int], None] = lambda reader, index: None,
    on_close: Callable[[Scripted], None] = lambda reader: None,
) -> Callable[[CameraSettings, Clock], Reader]:
    return lambda settings, clock: Scripted(clock, on_open, on_read, on_close)


def probe(
    factory: Callable[[CameraSettings, Clock], Reader],
    for_s: float = 0.3,
    stop: threading.Event | None = None,
    **more: float,
) -> Reading:
    settings = replace(SETTINGS, username="joe", password="s3cret", **more)  # type: ignore[arg-type]
    return read(settings, for_s, RealClock(), factory, stop)


def test_a_good_camera_is_read_for_its_time() -> None:
    began_s = time.monotonic()
    seen = probe(scripted(), for_s=0.6)
    assert 0.6 <= time.monotonic() - began_s < 8.0
    assert seen.trouble is None and not seen.hung and not seen.whole
    assert len(seen.samples) > 5
    assert seen.picture is not None and seen.standing is not None
    assert seen.samples[-1].received_s - seen.samples[0].received_s < 4.0
    assert seen.opened_s is not None and seen.began_s <= seen.opened_s <= seen.ended_s


def test_a_file_is_read_as_fast_as_it_goes() -> None:
    began_s = time.monotonic()
    settings = CameraSettings("probe", synthetic(fps=10, duration_s=60))
    seen = read(settings, 20.0, RealClock(), open_reader)
    assert time.monotonic() - began_s < 10.0
    assert seen.whole and len(seen.samples) == 600
    assert found(seen).fps == pytest.approx(10)


def test_a_source_without_end_ends_at_a_number_of_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "MOST_PICTURES", 500)
    seen = read(CameraSettings("probe", synthetic()), 60.0, RealClock(), open_reader)
    assert len(seen.samples) == 500 and not seen.whole


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("factory", "pictures", "reason"),
    [
        (scripted(on_open=hang), False, "no answer for 0.7 s"),
        (scripted(on_read=at(0, hang)), False, "no frame decoded for 0.7 s"),
        (scripted(on_read=at(5, hang)), True, "no frame for 0.5 s"),
    ],
    ids=["open", "first", "read"],
)
def test_a_library_that_hangs_is_given_up(
    factory: Callable[[CameraSettings, Clock], Reader], pictures: bool, reason: str
) -> None:
    began_s = time.monotonic()
    seen = probe(factory, for_s=2.0, start_s=0.7, stall_s=0.5)
    assert time.monotonic() - began_s < 5.5
    assert seen.hung
    assert seen.trouble is not None
    assert (seen.trouble.state, seen.trouble.reason) == (CameraState.STALLED, reason)
    assert bool(seen.samples) is pictures  # what was seen before is not lost
    assert (seen.standing is None) == (seen.opened_s is None)


@pytest.mark.usefixtures("quick")
def test_a_hang_that_heeds_the_abort_leaves_no_thread() -> None:
    seen = probe(scripted(on_read=at(3, hang_until_aborted)), for_s=2.0, stall_s=0.5)
    assert not seen.hung
    assert seen.trouble is not None and seen.trouble.reason == "no frame for 0.5 s"


@pytest.mark.usefixtures("quick")
def test_a_close_that_hangs_costs_nothing_of_what_was_seen() -> None:
    seen = probe(scripted(on_close=hang), for_s=0.2)
    assert seen.hung and seen.trouble is None
    assert seen.samples and seen.picture is not None


@pytest.mark.usefixtures("quick")
def test_a_request_to_stop_gives_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    seen_ten = at(10, lambda reader: stop.set())
    began_s = time.monotonic()
    seen = probe(scripted(on_read=seen_ten), for_s=60.0, stop=stop)
    assert time.monotonic() - began_s < 10.0
    assert seen.interrupted and seen.trouble is None and not seen.hung
    assert len(seen.samples) >= 10


@pytest.mark.usefixtures("quick")
def test_a_request_to_stop_while_opening() -> None:
    stop = threading.Event()

    def opening(reader: Scripted) -> None:
        stop.set()
        hang_until_aborted(reader)

    seen = probe(scripted(on_open=opening), stop=stop)
    assert seen.interrupted and seen.trouble is None and not seen.hung and not seen.samples
    assert found(seen).state is CameraState.CONNECTING


def test_a_live_source_that_ends_is_a_lost_connection() -> None:
    class Ending(Scripted):
        def read(self) -> Arrival | None:
            return super().read() if self._count < 5 else None

    seen = probe(lambda settings, clock: Ending(clock))
    assert seen.trouble is not None
    assert seen.trouble.state is CameraState.CONNECTING
    assert seen.trouble.reason == "connection lost: the source ended the stream"


def test_a_file_without_a_picture_is_a_failure() -> None:
    settings = CameraSettings("probe", synthetic(duration_s=0))
    seen = read(settings, 5.0, RealClock(), open_reader)
    assert seen.trouble is not None and seen.trouble.state is CameraState.FAILED
    assert "no frames decoded" in seen.trouble.reason


def test_the_picture_kept_is_the_last_that_is_not_damaged() -> None:
    settings = CameraSettings("probe", synthetic(duration_s=1, corrupt_every=2))
    seen = read(settings, 5.0, RealClock(), open_reader)
    assert [sample.corrupt for sample in seen.samples[-2:]] == [False, True]
    assert seen.picture is not None and not seen.picture.corrupt


def test_the_log_and_the_reason_of_an_internal_error_hold_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = probe(scripted(on_read=at(2, fail(ZeroDivisionError("s3cret is odd")))))
    assert seen.trouble is not None
    assert seen.trouble.state is CameraState.FAILED
    assert seen.trouble.reason == (
        "internal error, please report it: ZeroDivisionError: *** is odd"
    )
    assert "Traceback" in caplog.text and "s3cret" not in caplog.text


@pytest.mark.parametrize("delivered", [False, True], ids=["opening", "reading"])
@pytest.mark.parametrize(
    "error",
    [
        SourceUnauthorized("a"), SourceSilent("b"), SourceUnreachable("c"), SourceUnusable("d"),
        CaptureError("e"), ZeroDivisionError("f"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_the_state_is_the_one_that_the_daemon_shows(
    error: CaptureError, delivered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the same source a camera of the daemon and a probe say the same."""
    caplog.set_level(logging.CRITICAL)
    factory = scripted(on_read=at(3, fail(error))) if delivered else scripted(fail(error))
    state, reason = state_of(error, delivered)
    sink = CollectingSink()
    with running(sink, SETTINGS, factory=factory):
        sink.wait(lambda: any(s.reason for s in sink.statuses))
    told = next(status for status in sink.statuses if status.reason)
    assert (told.state, told.reason) == (state, reason)
    seen = probe(factory, for_s=5.0)
    assert seen.trouble is not None
    assert (seen.trouble.state, seen.trouble.reason) == (state, reason)
    assert seen.trouble.error is type(error)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_the_rotation_of_a_file_is_told(tmp_path: Path, degrees: int) -> None:
    plain = clips.write(tmp_path / "plain.mp4", frames=10)
    clip = clips.rotate(plain, tmp_path / "turned.mp4", degrees) if degrees else plain
    seen = read(CameraSettings("probe", str(clip)), 5.0, RealClock(), open_reader)
    facts = found(seen)
    assert facts.rotation == degrees
    assert facts.sizes == (((180, 320) if degrees % 180 else (320, 180)),)
