"""RTSP cameras in every kind of trouble: what state they show, what is asked of them.

The scenarios of a group run at the same time (``tests.lab.together``).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import clips, rtp
from tests.lab.rtsp_login import Login
from tests.lab.scripted_rtsp import SILENT, Answer, Connection, ScriptedRtsp
from tests.lab.servers import RTSP_READERS
from tests.lab.sink import CollectingSink
from tests.lab.together import Failures, Run, Scenario, run_together
from vidserve.capture.camera import CameraSettings
from vidserve.frames import CameraState

CONNECTING, RUNNING = CameraState.CONNECTING, CameraState.RUNNING
FAILED, STALLED = CameraState.FAILED, CameraState.STALLED
UNAUTHORIZED, DEGRADED = CameraState.UNAUTHORIZED, CameraState.DEGRADED
LIVING = {RUNNING, DEGRADED}


def coded(
    path: Path, width: int = 192, height: int = 108, library: str = "libx264", frames: int = 30
) -> rtp.Coded:
    """30 fps, two key pictures a second."""
    options = {"preset": "ultrafast", "bf": "0", "g": "15", "crf": "20"}
    if library == "libx265":
        options = {"preset": "ultrafast", "x265-params": "bframes=0:keyint=15:log-level=none"}
    return rtp.coded(
        clips.write(path, width, height, frames=frames, codec=library, options=options)
    )


def playing(clip: rtp.Coded, login: Login | None = None) -> ScriptedRtsp:
    """A server that plays the clip to everybody, over and over."""
    return ScriptedRtsp(rtp.sdp_for(clip), login, on_play=lambda one: one.play(clip))


def camera(name: str, url: str, reader: str, login: tuple[str, str] = ("", "")) -> CameraSettings:
    """Impatient, so that tests are short."""
    user, password = login
    return CameraSettings(
        name, url, username=user, password=password, reader=reader, start_s=2.0, stall_s=1.0
    )


class Scenarios:
    """Every method that is not private is a scenario.

    Args:
        reader: Of the cameras.
        clip: To play.
        folder: For clips of their own.
    """

    def __init__(self, reader: str, clip: rtp.Coded, folder: Path) -> None:
        self._reader = reader
        self._clip = clip
        self._folder = folder

    def _camera(self, server: ScriptedRtsp, name: str = "c") -> CameraSettings:
        return camera(name, server.url, self._reader)

    def it_plays_asks_in_order_and_says_goodbye(self) -> Scenario:
        sink = CollectingSink(keyframe_every=5)
        with playing(self._clip) as server:
            # Past the wrap of the timestamps and of the sequence numbers, too.
            yield Run(sink, [self._camera(server)], lambda: len(sink.frames) > 50)
            server.wait_request("TEARDOWN")
        methods = [one.method for one in server.requests]
        steps = [one for one in methods if one not in ("OPTIONS", "GET_PARAMETER")]
        assert steps == ["DESCRIBE", "SETUP", "PLAY", "TEARDOWN"]
        assert len(server.connections) == 1
        assert server.asked("PLAY")[0].headers["session"] == "lab-4711"
        assert sink.states() == [CONNECTING, RUNNING]
        assert not any(frame.corrupt for frame in sink.frames)
        assert all(0.0 <= frame.ready_s - frame.captured_s < 1.0 for frame in sink.frames)
        sink.check_accounts("c")

    def the_session_is_kept_alive(self) -> Scenario:
        sink = CollectingSink()
        with playing(self._clip) as server:
            server.session_timeout_s = 2

            def kept_alive() -> bool:
                asked = server.asked("GET_PARAMETER") + server.asked("OPTIONS")
                played = server.asked("PLAY")
                return bool(played) and any(one.at_s > played[0].at_s for one in asked)

            yield Run(sink, [self._camera(server)], kept_alive)
        assert len(server.connections) == 1
        assert sink.states() == [CONNECTING, RUNNING]

    def silence_at_any_request_is_a_stall(self) -> Scenario:
        sink = CollectingSink()
        methods = ("OPTIONS", "DESCRIBE", "SETUP", "PLAY", "no packet")
        with contextlib.ExitStack() as stack:
            servers = {name: stack.enter_context(playing(self._clip)) for name in methods}
            for method in methods[:-1]:
                servers[method].on(method, SILENT)
            servers["no packet"].on_play = None
            settings = [self._camera(server, name) for name, server in servers.items()]
            yield Run(sink, settings, lambda: all(STALLED in sink.states(name) for name in methods))
        assert not LIVING & set(sink.states())
        for status in sink.statuses:
            assert status.state is CONNECTING or "no " in status.reason

    def silence_after_pictures_is_a_stall_until_they_come_again(self) -> Scenario:
        sink = CollectingSink()
        with playing(self._clip) as server:
            server.on_play = lambda one: one.play(
                self._clip, pictures=20 if one.index == 0 else None
            )
            yield Run(sink, [self._camera(server)], lambda: sink.states().count(RUNNING) >= 2)
        assert sink.states() == [CONNECTING, RUNNING, STALLED, RUNNING]
        assert sink.statuses[2].reason == "no frame for 1 s"
        sink.check_accounts("c")

    def a_connection_that_closes_is_made_again(self) -> Scenario:
        yield from self._closes(reset=False)

    def a_connection_that_is_reset_is_made_again(self) -> Scenario:
        yield from self._closes(reset=True)

    def _closes(self, reset: bool) -> Scenario:
        sink = CollectingSink()

        def first_hangs_up(connection: Connection) -> None:
            connection.play(self._clip, pictures=20 if connection.index == 0 else None)
            connection.hang_up(reset)

        with playing(self._clip) as server:
            server.on_play = first_hangs_up
            yield Run(sink, [self._camera(server)], lambda: sink.states().count(RUNNING) >= 2)
        assert sink.states() == [CONNECTING, RUNNING, CONNECTING, RUNNING]
        assert "connection lost" in sink.statuses[2].reason
        sink.check_accounts("c")

    def a_refusal_is_a_state_with_a_reason(self) -> Scenario:
        sink = CollectingSink()
        right = {
            ("DESCRIBE", 401): (UNAUTHORIZED, "401"),
            ("DESCRIBE", 403): (UNAUTHORIZED, "403"),
            ("DESCRIBE", 404): (FAILED, "404"),
            ("DESCRIBE", 500): (FAILED, ""),
            ("DESCRIBE", 503): (FAILED, ""),
            ("SETUP", 401): (UNAUTHORIZED, "401"),
            ("SETUP", 461): (FAILED, ""),
            ("PLAY", 454): (FAILED, ""),
        }
        with contextlib.ExitStack() as stack:
            servers = {one: stack.enter_context(playing(self._clip)) for one in right}
            for (method, status), server in servers.items():
                server.on(method, Answer(status))
            settings = [self._camera(server, str(one)) for one, server in servers.items()]
            yield Run(
                sink,
                settings,
                lambda: all(state in sink.states(str(one)) for one, (state, _) in right.items()),
            )
        for one, (state, text) in right.items():
            assert sink.states(str(one)) == [CONNECTING, state], one
            told = next(s for s in sink.statuses if s.camera == str(one) and s.state is state)
            assert len(told.reason) > 10 and text in told.reason, one

    def refused_logins_are_tried_once_and_then_slowly(self) -> Scenario:
        sink = CollectingSink()
        began_s = time.monotonic()
        logins = {
            "basic": Login("joe", "right", "basic"),
            "digest": Login("joe", "right", "digest", qop=True),
            "both": Login("joe", "right", "both"),
            "bare": Login("joe", "right", "digest"),
        }
        with contextlib.ExitStack() as stack:
            servers = {
                name: stack.enter_context(playing(self._clip, login))
                for name, login in logins.items()
            }
            settings = [
                camera(
                    name,
                    server.url,
                    self._reader,
                    ("", "") if name == "bare" else ("joe", "wrong"),
                )
                for name, server in servers.items()
            ]
            yield Run(
                sink,
                settings,
                lambda: (
                    sink.states().count(UNAUTHORIZED) == len(logins)
                    and time.monotonic() - began_s > 3.0
                ),
            )
        for name, server in servers.items():
            tried = [one for one in server.requests if "authorization" in one.headers]
            # An account is locked after a few of these.
            assert len(tried) == (0 if name == "bare" else 1), name
            assert len(server.connections) == 1, name

    def a_right_login_plays(self) -> Scenario:
        sink = CollectingSink()
        user, password = "joe", "pä ss:w/1"
        logins = {
            "basic": Login(user, password, "basic"),
            "digest": Login(user, password, "digest"),
            "qop": Login(user, password, "digest", qop=True, algorithm="MD5", opaque="abc"),
            "both": Login(user, password, "both"),
        }
        with contextlib.ExitStack() as stack:
            servers = {
                name: stack.enter_context(playing(self._clip, login))
                for name, login in logins.items()
            }
            settings = [
                camera(name, server.url, self._reader, (user, password))
                for name, server in servers.items()
            ]
            yield Run(sink, settings, lambda: sink.states().count(RUNNING) == len(logins))
        for name, server in servers.items():
            assert len(server.connections) == 1, name
            assert all("authorization" in one.headers for one in server.asked("PLAY")), name

    def a_redirect_is_followed(self) -> Scenario:
        sink = CollectingSink()
        with playing(self._clip) as there, playing(self._clip) as one, playing(self._clip) as two:
            one.on("DESCRIBE", Answer(301, [("Location", there.url)]))
            two.on("DESCRIBE", Answer(302, [("Location", there.url)]))
            yield Run(
                sink,
                [self._camera(one, "301"), self._camera(two, "302")],
                lambda: sink.states().count(RUNNING) == 2,
            )
        assert len(there.asked("PLAY")) == 2
        for server in (one, two):
            assert len(server.asked("DESCRIBE")) == 1 and not server.asked("PLAY")

    def a_change_of_size_is_told_once_each(self) -> Scenario:
        yield from self._changes_size("libx264")

    def a_change_of_size_of_h265_is_told_once_each(self) -> Scenario:
        yield from self._changes_size("libx265")

    def _changes_size(self, library: str) -> Scenario:
        sizes = [(192, 108), (256, 144)]
        first, second = (
            coded(self._folder / f"{library}{size[0]}.mp4", *size, library, 20) for size in sizes
        )
        sink = CollectingSink(keyframe_every=3)
        with playing(first + second) as server:
            yield Run(sink, [self._camera(server)], lambda: len(sink.sizes) >= 3)
        assert sink.sizes[:3] == [*sizes, sizes[0]]
        assert sink.states() == [CONNECTING, RUNNING]
        assert not any(frame.corrupt for frame in sink.frames)
        sink.check_accounts("c")

    def a_description_without_a_readable_video_is_a_failure(self) -> Scenario:
        sink = CollectingSink()
        audio = rtp.sdp("h264").replace("m=video", "m=audio").replace("H264/90000", "PCMU/8000")
        wrong = {
            "empty": "",
            "text": "no description at all",
            "noise": "\0\xff" * 5000,
            "audio": audio,
            "unknown": rtp.sdp("h264").replace("H264/90000", "X-UNKNOWN/90000"),
        }
        with contextlib.ExitStack() as stack:
            settings = [
                self._camera(stack.enter_context(ScriptedRtsp(sdp)), name)
                for name, sdp in wrong.items()
            ]
            yield Run(sink, settings, lambda: all(FAILED in sink.states(name) for name in wrong))
        for name in wrong:
            assert sink.states(name)[:2] == [CONNECTING, FAILED], name
            assert not LIVING & set(sink.states(name)), name

    def pictures_without_a_key_picture_never_run(self) -> Scenario:
        sink = CollectingSink()
        rest = rtp.Coded("h264", self._clip.units[1:15], self._clip.pts_s[1:15], self._clip.fps)
        with playing(self._clip) as server:
            server.on_play = lambda one: one.play(rest)
            yield Run(sink, [self._camera(server)], lambda: len(sink.states()) > 1)
        assert sink.states()[1] in (FAILED, STALLED)
        assert "no frame" in sink.statuses[1].reason
        assert not LIVING & set(sink.states())

    def lost_packets_are_damage_and_no_end(self) -> Scenario:
        sink = CollectingSink(keyframe_every=2)
        with playing(self._clip) as server:
            server.on_play = lambda one: one.play(
                self._clip,
                rtp.Packetiser("h264", limit=200),  # so that parts of pictures are lost
                lose=lambda number: number % 23 == 7,
            )
            yield Run(sink, [self._camera(server)], lambda: DEGRADED in sink.states())
        assert sink.states() == [CONNECTING, RUNNING, DEGRADED]
        assert "damaged" in sink.statuses[2].reason
        assert len(server.connections) == 1
        assert any(frame.corrupt for frame in sink.frames)
        assert all(frame.slot is None for frame in sink.frames if frame.corrupt)
        sink.check_accounts("c")

    def junk_between_packets_is_read_over_or_made_good(self) -> Scenario:
        sink = CollectingSink()
        junk = {
            "lines": b"\r\n\r\n",
            "zeros": bytes(700),
            "channel": b"$\x07\x00\x0dhello, camera",
            "short": b"$\x07\x00\x05hello",
            "nothing": b"$\x00\x00\x00",
            "letters": b"x" * 70_000,
        }

        def after(data: bytes) -> Callable[[Connection], None]:
            def play(connection: Connection) -> None:
                connection.play(self._clip, pictures=15)
                if connection.index == 0:
                    connection.send(data)
                packetiser = rtp.Packetiser("h264", seq=9)
                connection.play(self._clip, packetiser, first_timestamp=0xFFFF_0000 + 45_000)

            return play

        with contextlib.ExitStack() as stack:
            servers = {name: stack.enter_context(playing(self._clip)) for name in junk}
            for name, server in servers.items():
                server.on_play = after(junk[name])
            settings = [self._camera(server, name) for name, server in servers.items()]
            yield Run(sink, settings, lambda: all(len(sink.of(name)) > 60 for name in junk))
        for name in junk:
            assert sink.states(name)[-1] in LIVING, name
        for name in ("lines", "channel"):  # these are no faults
            assert sink.states(name) == [CONNECTING, RUNNING], name

    def wrong_marks_at_the_ends_of_pictures_do_no_harm(self) -> Scenario:
        sink = CollectingSink()
        markers: tuple[rtp.Marker, rtp.Marker] = ("never", "always")

        def marking(marker: rtp.Marker) -> Callable[[Connection], int]:
            return lambda one: one.play(
                self._clip, rtp.Packetiser("h264", limit=200, marker=marker)
            )

        with contextlib.ExitStack() as stack:
            servers = {marker: stack.enter_context(playing(self._clip)) for marker in markers}
            for marker, server in servers.items():
                server.on_play = marking(marker)
            settings = [self._camera(server, marker) for marker, server in servers.items()]
            yield Run(sink, settings, lambda: all(len(sink.of(marker)) > 30 for marker in markers))
        for marker in markers:
            assert sink.states(marker) == [CONNECTING, RUNNING], marker
            assert not any(frame.corrupt for frame in sink.of(marker)), marker
            pairs = itertools.pairwise(sink.of(marker))
            assert any(b.seq == a.seq + 1 for a, b in pairs), marker


NAMES = [name for name in vars(Scenarios) if not name.startswith("_")]


@pytest.fixture(scope="module", params=RTSP_READERS)
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Failures[str]:
    folder = tmp_path_factory.mktemp("rtsp")
    scenarios = Scenarios(request.param, coded(folder / "clip.mp4"), folder)
    return run_together({name: getattr(scenarios, name)() for name in NAMES})


@pytest.mark.parametrize("name", NAMES)
def test_rtsp(failures: Failures[str], name: str) -> None:
    failure = failures[name]
    if failure is not None:
        raise failure
