"""States are true, told once, and never a flood. On a manual clock, supervised as by the daemon."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Sequence

import pytest

from tests.lab.manual import ManualCamera, ScriptedReader, Sent, TickingClock
from tests.lab.sink import CollectingSink
from vidserve.capture.camera import CameraSettings
from vidserve.capture.reader import Arrival, Reader
from vidserve.capture.states import CameraStates
from vidserve.clock import Clock, ManualClock
from vidserve.errors import (
    SourceSilent,
    SourceUnauthorized,
    SourceUnreachable,
    SourceUnusable,
)
from vidserve.frames import CameraState, CameraStatus

CONNECTING, RUNNING, STALLED = CameraState.CONNECTING, CameraState.RUNNING, CameraState.STALLED
UNAUTHORIZED, FAILED, DEGRADED = CameraState.UNAUTHORIZED, CameraState.FAILED, CameraState.DEGRADED
Attempt = Callable[[TickingClock], Reader]


class TimedSink(CollectingSink):
    """Knows when each state was told."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.told: list[tuple[float, CameraStatus]] = []

    def status(self, status: CameraStatus) -> None:
        super().status(status)
        self.told.append((self._clock.now() - 1000.0, status))

    def when(self, state: CameraState) -> float:
        return next(at_s for at_s, status in self.told if status.state is state)


class Scene:
    """One camera whose attempts go by a list; the last one repeats until the time is over."""

    def __init__(self, *attempts: Attempt, for_s: float, **settings: float) -> None:
        self.clock = TickingClock()
        self.sink = TimedSink(self.clock)
        self.attempts_s: list[float] = []
        self._attempts = attempts
        self.camera = ManualCamera(
            CameraSettings("c", "rtsp://joe:hunter2@h/x", **settings),  # type: ignore[arg-type]
            self.sink, self.clock, self._open,
        )  # fmt: skip
        self.clock.ticks = [self.camera.tick, self._watch]
        self._until_s = self.clock.now() + for_s

    def _watch(self, now_s: float) -> None:
        if now_s >= self._until_s:
            self.camera.request_stop()

    def _open(self, _settings: CameraSettings, _clock: Clock) -> Reader:
        number = min(len(self.attempts_s), len(self._attempts) - 1)
        self.attempts_s.append(self.clock.now() - 1000.0)
        return self._attempts[number](self.clock)

    def play(self) -> Scene:
        self.camera.start()
        self.camera.play()
        assert self.sink.statuses[-1] == self.camera.status  # what is retained is true
        return self

    @property
    def states(self) -> list[CameraState]:
        return self.sink.states()


def stream(
    seconds: float, fps: float, corrupt: Callable[[float], bool] = lambda _t: False
) -> Attempt:
    """Pictures for some seconds, then silence, until it is aborted."""

    def make(clock: TickingClock) -> Reader:
        now_s = clock.now()
        script = [
            Sent(now_s + (i + 1) / fps, i / fps, corrupt(i / fps))
            for i in range(round(seconds * fps))
        ]
        return ScriptedReader(clock, [*script, Sent(now_s + 1e9, None)])

    return make


class Failing(ScriptedReader):
    """Ends with an error: at once, or after its pictures."""

    def __init__(self, clock: ManualClock, error: Exception, pictures: int, takes_s: float) -> None:
        script = [Sent(clock.now() + i / 30, i / 30) for i in range(pictures)]
        super().__init__(clock, script)
        self._error = error
        self._takes_s = takes_s

    def open(self) -> None:
        self._clock.advance(self._takes_s)
        if not self._script:
            raise self._error

    def read(self) -> Arrival | None:
        if len(self.read_s) == len(self._script):
            raise self._error
        return super().read()


def failing(error: Exception, pictures: int = 0, takes_s: float = 0.1) -> Attempt:
    return lambda clock: Failing(clock, error, pictures, takes_s)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "vidserve.capture.camera"]


def test_running_begins_with_the_first_picture_and_ends_when_none_comes() -> None:
    scene = Scene(stream(10.0, 0.5), for_s=22.0, stall_s=5.0).play()
    assert scene.states[:4] == [CONNECTING, RUNNING, STALLED, RUNNING]
    assert scene.sink.when(RUNNING) == pytest.approx(2.0, abs=0.1)  # the picture, not the opening
    assert 15.0 <= scene.sink.when(STALLED) <= 15.5  # the last came at 10
    assert scene.sink.told[2][1].reason == "no frame for 5 s"


@pytest.mark.parametrize(("fps", "stall_s"), [(1.0, 5.0), (0.1, 15.0), (0.25, 4.5), (1.0, 1.2)])
def test_a_slow_camera_or_a_still_picture_is_no_stall(fps: float, stall_s: float) -> None:
    scene = Scene(stream(300.0, fps), for_s=250.0, stall_s=stall_s, start_s=15.0).play()
    assert scene.states == [CONNECTING, RUNNING]
    assert len(scene.sink.frames) >= 240 * fps


class Swallowing(ScriptedReader):
    """Data comes on, but nothing in it decodes any more, and nobody says so."""

    def read(self) -> Arrival | None:
        if len(self.read_s) == 30:
            while not self._aborted:
                self._clock.advance(0.04)
            raise SourceSilent("the source was aborted")
        return super().read()


def test_packets_without_pictures_are_a_stall() -> None:
    def attempt(clock: TickingClock) -> Reader:
        return Swallowing(clock, [Sent(clock.now() + i / 30, i / 30) for i in range(31)])

    scene = Scene(attempt, for_s=8.0, stall_s=3.0).play()
    assert scene.states == [CONNECTING, RUNNING, STALLED, RUNNING]
    assert scene.sink.told[2][1].reason == "no frame for 3 s"


def test_no_picture_in_start_s_is_a_failure_however_the_time_was_spent() -> None:
    """Eight seconds for the connection and silence after it: not start_s for each of them."""

    class Slow(ScriptedReader):
        def open(self) -> None:
            self._clock.advance(8.0)

    scene = Scene(lambda clock: Slow(clock, [Sent(clock.now() + 1e9, None)]), for_s=14.0).play()
    assert scene.states == [CONNECTING, FAILED]
    assert 10.0 <= scene.sink.when(FAILED) <= 11.5
    assert scene.sink.told[1][1].reason == "no frame decoded for 10 s"


def test_no_video_track_is_a_failure_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    error = SourceUnusable("x has no video track that can be decoded")
    scene = Scene(failing(error), for_s=500.0).play()
    assert scene.states == [CONNECTING, FAILED]
    assert scene.sink.told[1][1].reason == "x has no video track that can be decoded"
    assert len(lines(caplog)) == 1  # the attempts are no news
    assert 15 <= len(scene.attempts_s) <= 40


def test_a_refused_login_is_tried_a_few_times_an_hour_whatever_comes_between() -> None:
    refused = failing(SourceUnauthorized("refused"))
    scene = Scene(refused, for_s=3600.0).play()
    assert len(scene.attempts_s) <= 12
    assert scene.states == [CONNECTING, UNAUTHORIZED]
    mixed = Scene(
        *[refused, failing(SourceUnreachable("gone")), failing(SourceSilent("silent"))] * 5,
        for_s=3600.0,
    ).play()
    logins_s = mixed.attempts_s[0:15:3]
    assert all(b - a >= 45.0 for a, b in itertools.pairwise(logins_s))
    assert mixed.states[:4] == [CONNECTING, UNAUTHORIZED, FAILED, STALLED]


def test_damage_is_told_and_so_is_its_end() -> None:
    scene = Scene(stream(60.0, 30.0, lambda t: 10 < t < 20 and t % 1 < 0.2), for_s=50.0).play()
    assert scene.states == [CONNECTING, RUNNING, DEGRADED, RUNNING]
    assert 10.0 < scene.sink.when(DEGRADED) < 11.0
    assert 29.0 < scene.sink.told[3][0] < 31.0
    assert "% of the last pictures are damaged" in scene.sink.told[2][1].reason


def test_joined_between_key_pictures_it_is_not_running_before_a_whole_picture() -> None:
    grey = Scene(stream(20.0, 30.0, lambda t: t < 1.5), for_s=10.0).play()
    assert grey.states == [CONNECTING, RUNNING]
    assert grey.sink.when(RUNNING) == pytest.approx(1.5, abs=0.1)
    never = Scene(stream(20.0, 30.0, lambda _t: True), for_s=10.0).play()
    assert never.states == [CONNECTING, DEGRADED]
    assert never.sink.when(DEGRADED) == pytest.approx(2.0, abs=0.2)
    assert "only damaged pictures" in never.sink.told[1][1].reason
    # A stall ends with a whole picture too.
    again = Scene(
        stream(2.0, 30.0), stream(9.0, 30.0, lambda t: t < 1.5), for_s=12.0, stall_s=2.0
    ).play()
    assert again.states == [CONNECTING, RUNNING, STALLED, RUNNING]
    assert again.sink.told[3][0] - again.attempts_s[1] == pytest.approx(1.5, abs=0.1)


def counted(said: Sequence[str]) -> int:
    """Changes that the lines tell of, written or left out."""
    left_out = sum(int(n) for line in said for n in re.findall(r"\[(\d+) changes before", line))
    return left_out + sum(": still " not in line and ": now " not in line for line in said)


def test_a_camera_that_flaps_for_an_hour_is_bounded_by_its_waiting_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene(failing(SourceUnreachable("it hung up"), pictures=5), for_s=3600.0).play()
    assert 100 <= len(scene.sink.told) <= 2 * (8 + 3600 / 20)
    assert len(lines(caplog)) <= 10 + 60
    assert scene.states[1:5] == [RUNNING, CONNECTING, RUNNING, CONNECTING]


def test_a_thousand_changes_a_minute_are_a_few_lines_that_count_the_rest(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting times, as if a library made good every break by itself."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("vidserve.capture.backoff.FIRST_S", 0.01)
    monkeypatch.setattr("vidserve.capture.backoff.CAP_S", 0.01)
    flaps = [failing(SourceUnreachable("it hung up"), pictures=1, takes_s=0.1)] * 5000
    scene = Scene(*flaps, stream(1e4, 1.0), for_s=900.0).play()
    flapped_s = scene.attempts_s[-1]
    assert len(scene.sink.told) / flapped_s > 1000 / 60
    said = lines(caplog)
    assert len(said) <= 10 + flapped_s / 60 + 3
    # Each change is in a line or in the number of those left out, and the last line is true.
    assert counted(said) == len(scene.sink.told) - 1
    assert "now running [" in said[-1]
    assert scene.camera.status.state is RUNNING


def test_lasting_trouble_is_said_again_every_ten_minutes_and_nothing_else_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for attempt, words in (
        (failing(SourceUnreachable("refused")), "still failed (refused)"),
        (failing(SourceUnauthorized("wrong")), "still unauthorized (wrong)"),
        (lambda clock: ScriptedReader(clock, [Sent(1e9, None)]), "still failed (no frame"),
        (stream(1e5, 2.0, lambda _t: True), "still degraded (only"),
        (stream(1e5, 2.0), "still"),
    ):
        caplog.clear()
        scene = Scene(attempt, for_s=3650.0).play()
        said = lines(caplog)
        healthy = scene.states == [CONNECTING, RUNNING]
        assert sum(words in line for line in said) == (0 if healthy else 6)
        assert len(said) == (1 if healthy else 7)


def test_no_secret_in_any_line_or_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    scene = Scene(
        failing(ZeroDivisionError("at rtsp://joe:hunter2@h/x")),
        failing(SourceUnusable("rtsp://joe:hunter2@h/x and hunter2")),
        for_s=30.0,
    ).play()
    texts = [*lines(caplog), *(status.reason for status in scene.sink.statuses)]
    assert len(texts) >= 5 and "Traceback" in caplog.text
    assert "hunter2" not in "".join(texts) + caplog.text


def test_tracebacks_are_no_flood_even_if_no_two_are_alike(
    caplog: pytest.LogCaptureFixture,
) -> None:
    numbers = itertools.count()

    def attempt(clock: TickingClock) -> Reader:
        return Failing(clock, KeyError(next(numbers)), 0, 0.1)

    scene = Scene(attempt, for_s=3600.0).play()
    assert len(scene.attempts_s) > 120
    assert caplog.text.count("Traceback") <= 10 + 60


def test_a_change_of_reason_alone_keeps_since() -> None:
    clock = ManualClock(1000.0)
    states = CameraStates("c", clock)
    first = states.failed("refused")
    clock.advance(60.0)
    second = states.failed("no such host")
    assert first is not None and second is not None
    assert second.since_wall_s == first.since_wall_s
    assert states.failed("no such host") is None
