"""The session with servers of every temper, scripted on plain sockets."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.lab import clips, rtp
from tests.lab.rtsp_login import Login
from tests.lab.scripted_rtsp import SILENT, Answer, Connection, Request, ScriptedRtsp
from vidserve.capture.reader import Arrival
from vidserve.capture.rtsp.reader import RtspReader
from vidserve.capture.rtsp.session import NotForThisReader
from vidserve.capture.settings import CameraSettings
from vidserve.clock import RealClock
from vidserve.errors import (
    CaptureError,
    SourceSilent,
    SourceUnauthorized,
    SourceUnreachable,
    SourceUnusable,
)

PASSWORD = "p@ss w:rd/ü"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> rtp.Coded:
    """160x96, 30 fps, a key picture every 10."""
    options = {"preset": "ultrafast", "bf": "0", "g": "10", "crf": "30"}
    path = tmp_path_factory.mktemp("session") / "c.mp4"
    return rtp.coded(clips.write(path, 160, 96, frames=30, options=options))


@pytest.fixture
def server(clip: rtp.Coded) -> ScriptedRtsp:
    """Plays the clip as fast as it is read; to be started."""
    return ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=200))


def reader_of(server: ScriptedRtsp, **more: object) -> RtspReader:
    settings = CameraSettings("c", server.url, start_s=3.0, stall_s=1.0)
    return RtspReader(replace(settings, **more), RealClock())  # type: ignore[arg-type]


def read(reader: RtspReader, count: int) -> list[Arrival]:
    arrivals = []
    for _ in range(count):
        arrival = reader.read()
        assert arrival is not None
        arrivals.append(arrival)
    return arrivals


def open_error(server: ScriptedRtsp, **more: object) -> CaptureError:
    reader = reader_of(server, **more)
    with server, pytest.raises(CaptureError) as caught:
        try:
            reader.open()
        finally:
            reader.close()
    return caught.value


def test_the_usual_conversation(server: ScriptedRtsp) -> None:
    with server:
        reader = reader_of(server)
        reader.open()
        arrivals = read(reader, 40)
        facts = reader.facts()
        reader.close()
        reader.close()
        server.wait_request("TEARDOWN")
        methods = [one.method for one in server.requests]
        assert methods == ["OPTIONS", "DESCRIBE", "SETUP", "PLAY", "TEARDOWN"]
        assert server.requests[-1].headers["session"] == "lab-4711"
        assert [int(one.headers["cseq"]) for one in server.requests] == [1, 2, 3, 4, 5]
        assert server.asked("SETUP")[0].url == server.url + "/trackID=0"
    assert arrivals[0].key and all(one.picture.width == 160 for one in arrivals)
    steps = [b.pts_s - a.pts_s for a, b in itertools.pairwise(arrivals)]  # type: ignore[operator]
    assert steps == pytest.approx([1 / 30] * 39, abs=0.001)  # over the wrap of the RTP clock
    assert not any(one.picture.corrupt for one in arrivals)
    assert facts.reader == "rtsp" and facts.codec == "h264" and reader.bad_packets == 0
    assert facts.clock_ahead_s == pytest.approx(0.0, abs=1.0)
    assert reader.reader_delay_s == 0.0


@pytest.mark.parametrize(
    "login",
    [
        Login("joe", PASSWORD, "basic"),
        Login("joe", PASSWORD, "digest"),
        Login("joe", PASSWORD, "digest", qop=True, algorithm="SHA-256", opaque="o"),
        Login("joe", PASSWORD, "both"),
    ],
)
def test_logins(server: ScriptedRtsp, login: Login) -> None:
    server.login = login
    with server:
        reader = reader_of(server, username="joe", password=PASSWORD)
        reader.open()
        read(reader, 3)
        reader.close()
    assert len(server.asked("DESCRIBE")) == 2 and len(server.asked("PLAY")) == 1


@pytest.mark.parametrize("known", [False, True])
def test_a_refused_login_is_told_once_and_tried_once(server: ScriptedRtsp, known: bool) -> None:
    server.login = Login("joe", "right")
    more = {"username": "joe", "password": PASSWORD} if known else {}
    error = open_error(server, **more)
    assert isinstance(error, SourceUnauthorized)
    words = "check username and password" if known else "none is given: set username"
    assert words in str(error) and PASSWORD not in repr(error)
    assert len(server.asked("DESCRIBE")) == 1 + known  # cameras lock accounts


def test_a_login_of_an_unknown_kind(server: ScriptedRtsp) -> None:
    server.on("DESCRIBE", Answer(401, [("WWW-Authenticate", "Negotiate")]))
    error = open_error(server, username="a", password="b")
    assert isinstance(error, SourceUnauthorized) and "Basic or Digest" in str(error)


@pytest.mark.parametrize(
    ("method", "answer", "kind", "words"),
    [
        ("DESCRIBE", Answer(404), SourceUnreachable, "no such stream (404)"),
        ("DESCRIBE", Answer(403), SourceUnauthorized, "asks for a login (403)"),
        ("DESCRIBE", Answer(503), SourceUnreachable, "503 Service Unavailable"),
        ("SETUP", Answer(461), NotForThisReader, "461"),
        ("SETUP", Answer(453, reason="Not Enough Bandwidth"), SourceUnreachable, "453 Not Enough"),
        ("SETUP", Answer(headers=[("Transport", "RTP/AVP;unicast;client_port=1-2")]),
         NotForThisReader, "does not send over this connection"),
        ("PLAY", Answer(500), SourceUnreachable, "500"),
        ("DESCRIBE", Answer(body=b"v=0"), NotForThisReader, "no video track"),
        ("DESCRIBE", Answer(body=b"m=video 0 RTP/AVP 26"), NotForThisReader, "sends JPEG"),
        ("DESCRIBE", Answer(raw=b"RTSP/1.0\r\n\r\n"), SourceUnreachable, "no sensible answer"),
        ("OPTIONS", Answer(raw=b"HTTP/1.1 400 Bad\r\n\r\n" * 70_000), SourceUnreachable, "garbage"),
        ("OPTIONS", Answer(hang_up=True, silent=True), SourceUnreachable, "closed the connection"),
        ("DESCRIBE", Answer(302), SourceUnreachable, "302"),
    ],
)  # fmt: skip
def test_answers_that_end_the_attempt(
    server: ScriptedRtsp, method: str, answer: Answer, kind: type[CaptureError], words: str
) -> None:
    server.on(method, answer)
    error = open_error(server)
    assert type(error) is kind, error
    assert words in str(error)


@pytest.mark.parametrize("method", ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"])
def test_silence_at_any_step_is_bounded(server: ScriptedRtsp, method: str) -> None:
    server.on(method, SILENT)
    began_s = time.monotonic()
    error = open_error(server, start_s=0.6)
    assert isinstance(error, SourceSilent) and "gave no answer for 0.6 s" in str(error)
    assert time.monotonic() - began_s < 5.0


@pytest.mark.parametrize("method", ["PLAY", "TEARDOWN"])
def test_pictures_are_no_answer(server: ScriptedRtsp, clip: rtp.Coded, method: str) -> None:
    """A server that sends and sends, and never answers: the time counts, whatever comes."""

    def flood(request: Request, connection: Connection) -> Answer:
        if method == "PLAY":
            threading.Thread(target=connection.play, args=(clip,), daemon=True).start()
        return SILENT

    server.on(method, flood)
    began_s = time.monotonic()
    with server:
        reader = reader_of(server, start_s=1.0)
        if method == "PLAY":
            with pytest.raises(SourceSilent):
                reader.open()
        else:
            reader.open()
            read(reader, 2)
        reader.close()
    assert time.monotonic() - began_s < 6.0


@pytest.mark.parametrize("place", ["OPTIONS", "DESCRIBE"])
def test_redirects_are_followed(server: ScriptedRtsp, clip: rtp.Coded, place: str) -> None:
    first = ScriptedRtsp("")
    first.on(place, Answer(302, [("Location", server.url)]))
    server.login = Login("joe", PASSWORD, "basic")
    with server, first:
        reader = reader_of(first, username="joe", password=PASSWORD)
        reader.open()
        read(reader, 2)
        reader.close()


def test_a_password_in_the_clear_is_not_carried_to_another_host(server: ScriptedRtsp) -> None:
    first = ScriptedRtsp("")
    first.on("DESCRIBE", Answer(301, [("Location", server.url.replace("127.0.0.1", "localhost"))]))
    server.login = Login("joe", PASSWORD, "basic")
    with server:
        error = open_error(first, username="joe", password=PASSWORD)
    assert isinstance(error, SourceUnauthorized) and "write its URL into the config" in str(error)
    assert all("authorization" not in one.headers for one in server.requests)


def test_redirects_in_a_circle(server: ScriptedRtsp) -> None:
    server.on("DESCRIBE", Answer(302, [("Location", server.url)]))
    error = open_error(server)
    assert "in circles" in str(error) and len(server.connections) == 6


def test_a_redirect_to_what_is_not_rtsp(server: ScriptedRtsp) -> None:
    server.on("DESCRIBE", Answer(302, [("Location", "rtsps://127.0.0.1/x")]))
    assert isinstance(open_error(server), NotForThisReader)


@pytest.mark.parametrize("offered", ["OPTIONS, GET_PARAMETER", "OPTIONS, PLAY"])
def test_signs_of_life_and_receiver_reports(
    server: ScriptedRtsp, offered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vidserve.capture.rtsp.session.REPORT_EVERY_S", 0.3)
    server.session_timeout_s = 2
    server.on("OPTIONS", Answer(headers=[("Public", offered)]), None)
    alive = "GET_PARAMETER" if "GET" in offered else "OPTIONS"
    with server:
        reader = reader_of(server)
        reader.open()
        until_s = time.monotonic() + 10.0
        count = 2 if alive == "GET_PARAMETER" else 3
        while len(server.asked(alive)) < count and time.monotonic() < until_s:
            reader.read()
        server.wait_request(alive, count)
        assert server.asked(alive)[-1].headers["session"] == "lab-4711"
        assert server.connections[0].received[0][0] == 1
        assert server.connections[0].received[0][1][1] == 201
        reader.close()


def test_a_nonce_that_grows_old(server: ScriptedRtsp) -> None:
    server.session_timeout_s = 2
    server.login = Login("joe", PASSWORD)
    stale = 'Digest realm="r", nonce="new", stale=true'
    server.on("GET_PARAMETER", Answer(401, [("WWW-Authenticate", stale)]), Answer())
    with server:
        reader = reader_of(server, username="joe", password=PASSWORD)
        reader.open()
        until_s = time.monotonic() + 10.0
        while len(server.asked("GET_PARAMETER")) < 2 and time.monotonic() < until_s:
            reader.read()
        second = server.wait_request("GET_PARAMETER", 2)
        assert 'nonce="new"' in second.headers["authorization"]
        reader.close()


def ends(server: ScriptedRtsp, act: Callable[[Connection], None], **more: object) -> CaptureError:
    """Play some pictures, then ``act``; the error that ``read`` ends with."""
    with server:
        reader = reader_of(server, **more)
        reader.open()
        read(reader, 3)
        act(server.connections[0])
        with pytest.raises(CaptureError) as caught:
            while True:
                reader.read()
        reader.close()
    return caught.value


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (lambda one: one.silent.set(), SourceSilent, "no frame for 1 s"),
        (lambda one: one.hang_up(), SourceUnreachable, "closed the connection"),
        (lambda one: one.hang_up(reset=True), SourceUnreachable, "reading failed"),
        (lambda one: one.send_rtcp(rtp.goodbye()), SourceUnreachable, "ended the stream"),
        (lambda one: one.send(b"TEARDOWN rtsp://x RTSP/1.0\r\nCSeq: 1\r\n\r\n"),
         SourceUnreachable, "TEARDOWN"),
        (lambda one: one.send(b"RTSP/1.0 454 Session Not Found\r\nCSeq: 9\r\n\r\n"),
         SourceUnreachable, "454"),
    ],
)  # fmt: skip
def test_how_a_stream_ends(
    server: ScriptedRtsp,
    act: Callable[[Connection], None],
    kind: type[CaptureError],
    words: str,
) -> None:
    error = ends(server, act)
    assert type(error) is kind, error
    assert words in str(error)


def test_sender_reports_alone_are_no_pictures(server: ScriptedRtsp) -> None:
    def reports(one: Connection) -> None:
        while not one.wait(0.05):
            one.send_rtcp(rtp.sender_report(time.time(), 0))

    server.on_play = reports
    with server:
        reader = reader_of(server)
        reader.open()
        began_s = time.monotonic()
        with pytest.raises(SourceSilent, match="no frame for 1 s"):
            reader.read()
        assert 0.9 < time.monotonic() - began_s < 5.0
        reader.close()


def test_what_the_server_asks_is_answered(server: ScriptedRtsp) -> None:
    seen = threading.Event()

    def answered(request: Request, connection: Connection) -> Answer | None:
        seen.set()
        return None

    server.on("RTSP/1.0", answered)  # an answer looks like a request of that method
    with server:
        reader = reader_of(server)
        reader.open()
        read(reader, 2)
        server.connections[0].send(b"GET_PARAMETER rtsp://x RTSP/1.0\r\nCSeq: 88\r\n\r\n")
        until_s = time.monotonic() + 5.0
        while not seen.is_set() and time.monotonic() < until_s:
            reader.read()
        reader.close()
    assert seen.is_set()
    (answer,) = server.asked("RTSP/1.0")
    assert answer.url == "200" and answer.headers["cseq"] == "88"


def test_data_without_a_picture_fails_within_the_start_limit(clip: rtp.Coded) -> None:
    """Joined in a stream that never sends a key picture."""
    tail = replace(clip, units=clip.units[1:9], pts_s=clip.pts_s[1:9])
    server = ScriptedRtsp(
        rtp.sdp_for(tail, in_band_only=True), on_play=lambda one: one.play(tail, fps=60)
    )
    with server:
        reader = reader_of(server, start_s=1.0)
        reader.open()
        with pytest.raises(SourceUnusable, match="no frames decoded in 1 s"):
            reader.read()
        reader.close()


def test_pictures_before_the_first_key_picture_count_as_nothing(clip: rtp.Coded) -> None:
    late = replace(clip, units=clip.units[5:], pts_s=clip.pts_s[5:])
    server = ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(late, fps=100))
    with server:
        reader = reader_of(server)
        reader.open()
        (first, *rest) = read(reader, 8)
        reader.close()
    assert first.key and first.pts_s is not None
    assert reader.bad_packets == 0 and not any(one.picture.corrupt for one in (first, *rest))


def test_lost_packets_mark_pictures_until_the_next_key_picture(clip: rtp.Coded) -> None:
    server = ScriptedRtsp(
        rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=100, lose=lambda n: n == 4)
    )
    with server:
        reader = reader_of(server)
        reader.open()
        arrivals = read(reader, 25)
        reader.close()
    corrupt = [one.picture.corrupt for one in arrivals]
    assert 1 <= sum(corrupt) <= 10
    assert not any(corrupt[12:])


@pytest.mark.parametrize("where", ["silent", "connect"])
def test_abort_ends_a_blocked_call_at_once(server: ScriptedRtsp, where: str) -> None:
    server.on_play = None
    if where == "connect":
        server.on("DESCRIBE", SILENT)
    with server:
        reader = reader_of(server, start_s=30.0, stall_s=30.0)
        if where == "silent":
            reader.open()
        timer = threading.Timer(0.2, reader.abort)
        timer.start()
        began_s = time.monotonic()
        with pytest.raises(SourceSilent, match="aborted"):
            if where == "connect":
                reader.open()
            else:
                reader.read()
        assert time.monotonic() - began_s < 5.0
        reader.close()
        timer.join()
        if where == "silent":
            server.wait_request("TEARDOWN")  # the camera learns of it all the same


@pytest.mark.parametrize(
    ("place", "words"),
    [("127.0.0.1:1", "refuses the connection"), ("no-such-host.invalid", "no such host"),
     ("127.0.0.1:99999", "Port out of range")],
)  # fmt: skip
def test_nobody_there(place: str, words: str) -> None:
    reader = RtspReader(CameraSettings("c", f"rtsp://{place}/x", start_s=2.0), RealClock())
    with pytest.raises(SourceUnreachable, match=words):
        reader.open()
    reader.close()


def test_many_sessions_leave_nothing_behind(server: ScriptedRtsp) -> None:
    import os

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with server:
        before = 0
        for turn in range(12):
            reader = reader_of(server)
            reader.open()
            read(reader, 2)
            reader.close()
            server.wait(lambda: all(one.over.is_set() for one in server.connections))
            if turn == 2:
                before = open_files()
        server.wait(lambda: open_files() <= before, 10.0)


def test_a_server_that_stops_reading_does_not_hold_us() -> None:
    """Requests that nobody takes off the wire: bounded by the start limit."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"rtsp://127.0.0.1:{listener.getsockname()[1]}/x"
        reader = RtspReader(CameraSettings("c", url, start_s=0.5), RealClock())
        began_s = time.monotonic()
        with pytest.raises(SourceSilent):
            reader.open()
        reader.close()
        assert time.monotonic() - began_s < 5.0


def test_abort_while_the_connection_is_made() -> None:
    """A host that answers nothing, not even a refusal: the queue of its port is full."""
    with socket.socket() as listener, contextlib.ExitStack() as held:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        reader = RtspReader(
            CameraSettings("c", f"rtsp://127.0.0.1:{address[1]}/x", start_s=20.0), RealClock()
        )
        timer = threading.Timer(0.3, reader.abort)
        timer.start()
        began_s = time.monotonic()
        with pytest.raises(SourceSilent):
            reader.open()
        timer.join()
        reader.close()
    assert time.monotonic() - began_s < 5.0


def test_an_endless_flood_of_packets_is_read_at_the_readers_pace(clip: rtp.Coded) -> None:
    """As fast as the client reads: the server waits, nothing of ours grows."""
    server = ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=math.inf))
    with server:
        reader = reader_of(server)
        reader.open()
        read(reader, 300)
        assert len(reader._session._units) < 300
        reader.close()
