"""What an adversary found in the session: servers that count wrong, send us elsewhere, or ask."""

from __future__ import annotations

import math
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab import clips, rtp
from tests.lab.rtsp_login import Login as CameraLogin
from tests.lab.rtsp_messages import Answer, Request
from tests.lab.scripted_rtsp import Connection, ScriptedRtsp
from vidserve.capture.rtsp import rtcp, sdp
from vidserve.capture.rtsp.connection import connect_tcp
from vidserve.capture.rtsp.login import Login
from vidserve.capture.rtsp.pictures import PictureBuilder
from vidserve.capture.rtsp.reader import RtspReader
from vidserve.capture.rtsp.session import NotForThisReader
from vidserve.capture.settings import CameraSettings
from vidserve.clock import RealClock
from vidserve.errors import CaptureError, SourceUnauthorized, SourceUnreachable


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> rtp.Coded:
    """160x96, 30 fps, a key picture every 10."""
    options = {"preset": "ultrafast", "bf": "0", "g": "10", "crf": "30"}
    path: Path = tmp_path_factory.mktemp("odd") / "c.mp4"
    return rtp.coded(clips.write(path, 160, 96, frames=30, options=options))


@pytest.fixture
def server(clip: rtp.Coded) -> ScriptedRtsp:
    return ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=100))


def reader_of(server: ScriptedRtsp, **more: object) -> RtspReader:
    settings = CameraSettings("c", server.url, start_s=3.0, stall_s=1.0)
    return RtspReader(replace(settings, **more), RealClock())  # type: ignore[arg-type]


def plays(server: ScriptedRtsp, **more: object) -> None:
    reader = reader_of(server, **more)
    with server:
        reader.open()
        for _ in range(3):
            reader.read()
        reader.close()


@pytest.mark.parametrize("scheme", ["basic", "digest"])
def test_no_login_is_carried_to_another_server_unasked(server: ScriptedRtsp, scheme: str) -> None:
    first = ScriptedRtsp("", login=CameraLogin("joe", "secret", scheme))  # type: ignore[arg-type]
    elsewhere = server.url.replace("127.0.0.1", "localhost")

    def move(request: Request, connection: Connection) -> Answer:
        usual = first.usual(request, connection)
        return usual if usual.status == 401 else Answer(302, [("Location", elsewhere)])

    first.on("DESCRIBE", move)
    with first:
        reader = reader_of(first, username="joe", password="secret")
        with server:
            reader.open()
            reader.close()
    assert "authorization" in first.asked("DESCRIBE")[-1].headers
    assert all("authorization" not in one.headers for one in server.requests)


@pytest.mark.parametrize("number", ["1", "01", "99", "x"])
def test_answers_with_a_wrong_number_are_answers(server: ScriptedRtsp, number: str) -> None:
    def wrong(request: Request, connection: Connection) -> Answer:
        usual = server.usual(request, connection)
        return replace(usual, headers=[*usual.headers, ("CSeq", number)])

    for method in ("OPTIONS", "DESCRIBE", "SETUP", "PLAY"):
        server.on(method, wrong)
    plays(server)


def test_a_server_that_says_wait_is_waited_for(server: ScriptedRtsp) -> None:
    wait = b"RTSP/1.0 100 Continue\r\nCSeq: 2\r\n\r\n"
    server.on(
        "DESCRIBE",
        lambda request, one: Answer(raw=wait + server.usual(request, one).to_bytes(request)),
    )
    plays(server)


@pytest.mark.parametrize("trouble", ["no IPv6", "silent"])
def test_another_address_of_the_host_is_tried(
    server: ScriptedRtsp, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        good = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))
        bad = (
            (9999, socket.SOCK_STREAM, 6, "", ("::1", server.port))
            if trouble == "no IPv6"
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", full.getsockname())
        )
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: [bad, good])
        with server:
            one = connect_tcp("camera", server.port, 4.0, RealClock(), threading.Event())
            one.close()
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize(
    ("method", "answer", "kind"),
    [
        ("SETUP", Answer(headers=[("Transport", "RTP/AVP/TCP;interleaved=0-256")]),
         NotForThisReader),
        ("DESCRIBE", Answer(302, [("Location", "rtsp://[::1/x")]), SourceUnreachable),
        ("DESCRIBE", Answer(302, [("Location", "rtsp://h:99999/x")]), SourceUnreachable),
        ("DESCRIBE", Answer(302, [("Location", f"rtsp://{'a' * 70}.lan/x")]), SourceUnreachable),
        ("DESCRIBE", Answer(body=rtp.sdp("h264", control="rtsp://[::1/x").encode()),
         SourceUnreachable),
    ],
)  # fmt: skip
def test_nonsense_in_an_answer_is_an_error_of_ours(
    server: ScriptedRtsp, method: str, answer: Answer, kind: type[CaptureError]
) -> None:
    server.on(method, answer)
    reader = reader_of(server)
    with server, pytest.raises(kind):
        try:
            reader.open()
        finally:
            reader.close()


def test_a_content_base_that_is_none_does_no_harm(server: ScriptedRtsp) -> None:
    server.on(
        "DESCRIBE",
        lambda request, one: Answer(
            headers=[("Content-Base", "rtsp://[::1/x")], body=server.sdp.encode()
        ),
    )
    plays(server)


def test_a_server_that_asks_and_asks_is_left(server: ScriptedRtsp) -> None:
    def ask(one: Connection) -> None:
        while not one.over.is_set():
            one.send(b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n" * 20)

    server.on_play = ask
    reader = reader_of(server, stall_s=20.0)
    began_s = time.monotonic()
    with server:
        reader.open()
        with pytest.raises(SourceUnreachable, match="asks and asks"):
            reader.read()
        reader.close()
    assert time.monotonic() - began_s < 10.0


def test_what_comes_before_the_answer_to_play_counts(server: ScriptedRtsp, clip: rtp.Coded) -> None:
    """The only key picture comes first."""
    packets = rtp.Packetiser("h264").pack_all(clip)

    def early(request: Request, one: Connection) -> Answer | None:
        for packet in packets[0]:
            one.send_rtp(packet)
        return None

    server.on("PLAY", early)

    def rest(one: Connection) -> None:
        for packet in [packet for picture in packets[1:6] for packet in picture]:
            one.send_rtp(packet)

    server.on_play = rest
    with server:
        reader = reader_of(server)
        reader.open()
        arrivals = [reader.read() for _ in range(5)]
        reader.close()
    assert arrivals[0] is not None and arrivals[0].key
    assert not any(one.picture.corrupt for one in arrivals if one is not None)


def test_a_sender_without_a_clock_and_one_beyond_2036() -> None:
    assert rtcp.parse(rtp.sender_report(-2_208_988_800.0, 5)).ssrc is None
    late_s = 2_085_978_496.0 + 1000.0  # the seconds since 1900 began anew
    assert rtcp.parse(rtp.sender_report(late_s, 5)).sender_wall_s == pytest.approx(late_s)


def test_a_realm_with_quotes_and_a_digest_of_an_unknown_kind() -> None:
    login = Login("joe", "x")
    assert login.challenge([r'Digest realm="a\"b\\c", nonce="1"'])
    assert r'realm="a\"b\\c"' in (login.header("PLAY", "u") or "")
    assert not login.challenge(['Digest realm="a", nonce="1", qop="auth-int"'])


def test_a_refused_kind_of_login_costs_no_attempt(server: ScriptedRtsp) -> None:
    asked = 'Digest realm="a", nonce="1", qop="auth-int"'
    server.on("DESCRIBE", Answer(401, [("WWW-Authenticate", asked)]))
    reader = reader_of(server, username="joe", password="x")
    with server, pytest.raises(SourceUnauthorized, match="kind that is not known"):
        try:
            reader.open()
        finally:
            reader.close()
    assert len(server.asked("DESCRIBE")) == 1


def test_markers_everywhere_and_a_timestamp_that_stands_still() -> None:
    media = sdp.VideoMedia("H264", "h264", 96, 90_000, "", b"", None, False)
    builder = PictureBuilder(media)
    found = []
    for number in range(8):
        for part, unit in enumerate((b"\x41\x80a", b"\x41\x40b")):  # two slices
            packet = rtp.rtp_packet(unit, 2 * number + part, 7, True)
            found += builder.add(memoryview(packet))
    assert len(found) >= 6
    assert bytes(found[-1].data) == b"\0\0\0\1\x41\x80a\0\0\0\1\x41\x40b"


def test_absurd_clocks_in_the_description() -> None:
    for clock in ("0", "9" * 5000, "-1", "x"):
        _, (media,) = sdp.parse(f"m=video 0 RTP/AVP 96\na=rtpmap:96 H264/{clock}\n")
        assert media.clock_hz == 90_000 and math.isfinite(media.clock_hz)


def test_addresses_of_six_groups_are_written_with_brackets() -> None:
    reader = RtspReader(CameraSettings("c", "rtsp://[::1]:1/x", start_s=1.0), RealClock())
    with pytest.raises(CaptureError) as caught:
        reader.open()
    assert "[::1]:1" in str(caught.value)
