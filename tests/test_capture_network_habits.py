"""RTSP cameras with odd habits that do no harm: all of them simply play.

They run at the same time (``tests.lab.together``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab import clips, rtp
from tests.lab.scripted_rtsp import Answer, Connection, Request, ScriptedRtsp
from tests.lab.servers import RTSP_READERS
from tests.lab.sink import CollectingSink
from tests.lab.together import Failures, Run, Scenario, run_together
from vidserve.capture.camera import CameraSettings
from vidserve.frames import CameraState

HABITS: dict[str, Callable[[ScriptedRtsp, rtp.Coded], None]] = {}
METHODS = ("OPTIONS", "DESCRIBE", "SETUP", "PLAY", "GET_PARAMETER", "TEARDOWN")


def habit(function: Callable[[ScriptedRtsp, rtp.Coded], None]) -> None:
    """Changes a good server, which plays the clip."""
    HABITS[function.__name__] = function


def rewrite(server: ScriptedRtsp, change: Callable[[bytes], bytes], *methods: str) -> None:
    """Change the bytes of the usual answers."""

    def changed(request: Request, connection: Connection) -> Answer:
        return Answer(raw=change(server.usual(request, connection).to_bytes(request)))

    for method in methods or METHODS:
        server.on(method, changed)


@habit
def lines_end_with_a_line_feed_alone(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    def change(answer: bytes) -> bytes:
        head, _, body = answer.partition(b"\r\n\r\n")
        return head.replace(b"\r\n", b"\n") + b"\n\n" + body

    rewrite(server, change)


@habit
def header_names_are_in_small_letters(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    def change(answer: bytes) -> bytes:
        head, _, body = answer.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        pairs = [line.split(b": ", 1) for line in lines]
        return b"\r\n".join([first, *(a.lower() + b":" + b for a, b in pairs), b"", body])

    rewrite(server, change)


@habit
def there_is_no_reason_phrase(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    rewrite(server, lambda answer: answer.replace(b"200 OK", b"200", 1))


@habit
def answers_come_in_small_pieces(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    def cut(request: Request, connection: Connection) -> Answer:
        return replace(server.usual(request, connection), cuts=range(0, 400, 7))

    for method in METHODS:
        server.on(method, cut)


@habit
def options_is_not_known(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.on("OPTIONS", Answer(501))


@habit
def signs_of_life_are_refused(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.session_timeout_s = 2
    server.on("GET_PARAMETER", Answer(501))
    server.on("OPTIONS", None, Answer(501))


@habit
def the_session_has_spaces_and_no_timeout(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.session, server.session_timeout_s = "abc-DEF_12.3$+", None
    rewrite(server, lambda one: one.replace(b"Session: ", b"Session:   "), "SETUP", "PLAY")


@habit
def other_channels_than_asked_for(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    def others(request: Request, connection: Connection) -> Answer:
        usual = server.usual(request, connection)
        connection.channels[0] = (8, 9)
        told = ("Transport", "RTP/AVP/TCP;unicast;interleaved=8-9")
        return replace(usual, headers=[told, *usual.headers[1:]])

    server.on("SETUP", others)


@habit
def controls_are_absolute(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.sdp = server.sdp.replace("a=control:trackID=0", f"a=control:{server.url}/video?a=1&b=2")


@habit
def there_is_no_control_of_the_session(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.sdp = server.sdp.replace("a=control:*\r\n", "")


@habit
def there_is_no_content_base(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    def without(request: Request, connection: Connection) -> Answer:
        usual = server.usual(request, connection)
        return replace(usual, headers=[one for one in usual.headers if one[0] != "Content-Base"])

    server.on("DESCRIBE", without)


@habit
def audio_comes_first(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.sdp = rtp.sdp(clip.codec, rtp.parameter_sets(clip.codec, clip.units), audio=True)


@habit
def parameter_sets_come_in_band_only(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.sdp = rtp.sdp_for(clip, in_band_only=True)


@habit
def parameter_sets_of_the_description_are_wrong(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.sdp = rtp.sdp("h264", [b"\x67\x42\x00\x0a\xff\xff", b"\x68\xff"])


@habit
def the_frame_rate_is_absurd(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.sdp = rtp.sdp("h264", rtp.parameter_sets("h264", clip.units), fps=90_000)


@habit
def the_frame_rate_is_nought(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.sdp = rtp.sdp("h264", rtp.parameter_sets("h264", clip.units), fps=0)


@habit
def it_asks_us_something(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    def asks(connection: Connection) -> None:
        connection.play(clip, pictures=15)
        connection.send(b"OPTIONS * RTSP/1.0\r\nCSeq: 77\r\n\r\n")
        connection.play(clip, rtp.Packetiser("h264", seq=900), first_timestamp=0xFFFF_0000 + 45_000)

    server.on_play = asks


@habit
def packets_are_small_and_none_holds_two(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    packetiser = rtp.Packetiser("h264", limit=60, aggregate=False)
    server.on_play = lambda one: one.play(clip, packetiser)


@habit
def packets_are_huge(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.on_play = lambda one: one.play(clip, rtp.Packetiser("h264", limit=65_000))


@habit
def there_are_no_sender_reports(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    server.on_play = lambda one: one.play(clip, reports=False)


@habit
def its_clock_is_a_century_off(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    def play(connection: Connection) -> None:
        for years in (-70, 60):
            away_s = time.time() + years * 365.25 * 86400
            connection.send_rtcp(rtp.sender_report(away_s, 0xFFFF_0000))
        connection.play(clip, reports=False)

    server.on_play = play


@habit
def its_timestamps_jump_forth_and_back(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    def play(connection: Connection) -> None:
        packetiser = rtp.Packetiser("h264")
        for first in (0, 5000 * rtp.CLOCK_HZ, 45_000, 400_000):
            connection.play(clip, packetiser, 15, first, reports=False)
        connection.play(clip, packetiser)

    server.on_play = play


def scenario(reader: str, name: str, clip: rtp.Coded) -> Scenario:
    sink = CollectingSink(keyframe_every=5)
    server = ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip))
    HABITS[name](server, clip)
    with server:
        settings = CameraSettings(name, server.url, reader=reader, start_s=4.0, stall_s=2.0)
        yield Run(sink, [settings], lambda: len(sink.frames) > 45)
    assert sink.states() == [CameraState.CONNECTING, CameraState.RUNNING]
    assert len(server.connections) == 1
    assert [one.url for one in server.asked("SETUP")][1:] == []  # of the video alone
    assert not any(frame.corrupt for frame in sink.frames)
    assert all(0.0 <= frame.ready_s - frame.captured_s < 1.0 for frame in sink.frames)
    # At 30 fps, whatever it says of itself.
    seen_s = sink.frames[-1].captured_s - sink.frames[0].captured_s
    lost = sum(count for _, _, _, count in sink.drops)
    assert seen_s == pytest.approx((len(sink.frames) + lost) / 30, abs=1.0)
    assert all(lag_s is None or 0.0 <= lag_s < 1.0 for _, lag_s, _ in sink.lags)
    sink.check_accounts(name)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> rtp.Coded:
    """30 fps, two key pictures a second."""
    options = {"preset": "ultrafast", "bf": "0", "g": "15", "crf": "20"}
    path: Path = tmp_path_factory.mktemp("habits") / "clip.mp4"
    return rtp.coded(clips.write(path, 192, 108, frames=30, options=options))


# FFmpeg wants an answer to OPTIONS.
CASES = [
    (reader, name)
    for reader in RTSP_READERS
    for name in HABITS
    if (reader, name) != ("pyav", "options_is_not_known")
]


@pytest.fixture(scope="module")
def failures(clip: rtp.Coded) -> Failures[tuple[str, str]]:
    return run_together({case: scenario(*case, clip) for case in CASES})


@pytest.mark.parametrize(("reader", "name"), CASES)
def test_habit(failures: Failures[tuple[str, str]], reader: str, name: str) -> None:
    failure = failures[reader, name]
    if failure is not None:
        raise failure
