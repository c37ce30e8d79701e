"""Network cameras in the laboratory: logins and secrets, silence, refusals, odd streams."""

from __future__ import annotations

import base64
import contextlib
import logging
import time
from pathlib import Path
from urllib.parse import quote

import cv2
import pytest

from tests.lab import clips
from tests.lab.scripted_rtsp import SILENT, ScriptedRtsp
from tests.lab.servers import (
    RTSP_READERS,
    RtspServer,
    mjpeg_server,
    need_rtsp,
    refusing_port,
    silent_server,
    tcp_stream,
)
from tests.lab.sink import CollectingSink, running
from vidserve.capture.camera import CameraSettings
from vidserve.capture.pyav import PyAvReader
from vidserve.capture.reader import Reader
from vidserve.capture.source import open_reader
from vidserve.clock import Clock, RealClock
from vidserve.errors import SourceUnauthorized
from vidserve.frames import CameraState

PASSWORD = "p@ss w:rd/ü%41"


@pytest.fixture(scope="module")
def stream_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte stream for the RTSP server: 320x180, 30 fps, a key picture a second."""
    need_rtsp()
    folder = tmp_path_factory.mktemp("rtsp")
    return clips.annexb(clips.write(folder / "clip.mp4", frames=90), folder / "clip.h264")


@pytest.fixture(scope="module")
def jpegs() -> list[bytes]:
    pictures = []
    for index in range(10):
        good, data = cv2.imencode(".jpg", clips.picture(index, 320, 180)[:, :, ::-1])
        assert good
        pictures.append(data.tobytes())
    return pictures


def forms(password: str, user: str) -> list[str]:
    """Everything that would give the password away."""
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    return [password, quote(password, safe=""), quote(password), basic]


def assert_no_secret(texts: list[str], password: str = PASSWORD, user: str = "joe") -> None:
    for text in texts:
        for form in forms(password, user):
            assert form not in text


@pytest.mark.parametrize("reader", RTSP_READERS)
@pytest.mark.parametrize("digest", [False, True])
def test_rtsp_login(
    stream_clip: Path, digest: bool, reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = CollectingSink()
    with RtspServer(stream_clip, user="joe", password=PASSWORD, digest=digest) as server:
        settings = CameraSettings("c", server.url, username="joe", password=PASSWORD, reader=reader)
        with running(sink, settings):
            sink.wait_state(CameraState.RUNNING)
    assert_no_secret([caplog.text, repr(settings), *(status.reason for status in sink.statuses)])


@pytest.mark.parametrize("reader", RTSP_READERS)
def test_rtsp_wrong_password_is_unauthorized_and_stays_secret(
    stream_clip: Path,
    reader: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = CollectingSink()
    with RtspServer(stream_clip, user="joe", password="right") as server:
        settings = CameraSettings("c", server.url, username="joe", password=PASSWORD, reader=reader)
        with running(sink, settings):
            status = sink.wait_state(CameraState.UNAUTHORIZED)
        in_url = server.url.replace("://", f"://joe:{quote(PASSWORD, safe='')}@")
        other = CollectingSink()
        with running(other, CameraSettings("d", in_url, reader=reader)):
            other.wait_state(CameraState.UNAUTHORIZED)
        opened = open_reader(settings, RealClock())
        with contextlib.closing(opened), pytest.raises(SourceUnauthorized) as caught:
            opened.open()
    assert "check username and password" in status.reason
    captured = capfd.readouterr()
    texts = [caplog.text, captured.err, captured.out, repr(settings), str(caught.value)]
    texts += [repr(caught.value), repr(caught.value.__context__), repr(caught.value.__cause__)]
    texts += [status.reason for status in (*sink.statuses, *other.statuses)]
    assert_no_secret(texts)


@pytest.mark.parametrize(
    ("scheme", "reader"), [("http", "auto"), *(("rtsp", reader) for reader in RTSP_READERS)]
)
def test_a_silent_server_is_a_stall_and_bounded(scheme: str, reader: str) -> None:
    sink = CollectingSink()
    began_s = time.monotonic()
    with silent_server() as port:
        url = f"{scheme}://127.0.0.1:{port}/x"
        settings = CameraSettings("c", url, reader=reader, start_s=2.0, stall_s=1.0)
        with running(sink, settings):
            status = sink.wait_state(CameraState.STALLED)
            assert time.monotonic() - began_s < 15.0
    assert f"127.0.0.1:{port} gave no answer" in status.reason
    assert CameraState.RUNNING not in sink.states()


@pytest.mark.parametrize("reader", RTSP_READERS)
def test_a_refusing_port_fails_once_and_is_tried_again(
    reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = CollectingSink()
    opened: list[Reader] = []

    def counting(settings: CameraSettings, clock: Clock) -> Reader:
        opened.append(open_reader(settings, clock))
        return opened[-1]

    settings = CameraSettings("c", f"rtsp://127.0.0.1:{refusing_port()}/x", reader=reader)
    with running(sink, settings, factory=counting):
        status = sink.wait_state(CameraState.FAILED)
        sink.wait(lambda: len(opened) >= 3)
    assert "refuses the connection" in status.reason
    assert caplog.text.count("refuses") == 1
    assert len(sink.statuses) == 2


def test_an_unknown_host_and_an_unknown_scheme() -> None:
    sink = CollectingSink()
    with running(
        sink,
        CameraSettings("host", "rtsp://no-such-host.invalid/x"),
        CameraSettings("scheme", "gopherx://127.0.0.1/x"),
    ):
        host = sink.wait_state(CameraState.FAILED, "host")
        scheme = sink.wait_state(CameraState.FAILED, "scheme")
    assert "no such host" in host.reason
    assert "GOPHERX" in scheme.reason


@pytest.mark.parametrize("reader", RTSP_READERS)
def test_three_dead_cameras_do_not_delay_a_good_one(stream_clip: Path, reader: str) -> None:
    def start_alone(server: RtspServer) -> float:
        sink = CollectingSink()
        began_s = time.monotonic()
        with running(sink, CameraSettings("good", server.url, reader=reader)):
            sink.wait_state(CameraState.RUNNING, "good")
            return time.monotonic() - began_s

    with RtspServer(stream_clip) as server, silent_server() as port:
        alone_s = start_alone(server)
        silent = f"rtsp://127.0.0.1:{port}/x"
        dead = [CameraSettings(f"dead{i}", silent, reader=reader, start_s=2.0) for i in range(3)]
        sink = CollectingSink()
        began_s = time.monotonic()
        with running(sink, *dead, CameraSettings("good", server.url, reader=reader)):
            sink.wait_state(CameraState.RUNNING, "good")
            assert time.monotonic() - began_s < alone_s + 2.0
            sink.wait(lambda: len(sink.of("good")) > 15)


def test_reordered_pictures_of_a_live_stream_keep_their_arrival(tmp_path: Path) -> None:
    options = {"preset": "veryfast", "bf": "2", "g": "30", "crf": "20"}
    path = clips.write(tmp_path / "b.ts", frames=120, options=options)
    with tcp_stream(path, 4.0) as url:
        reader = PyAvReader(CameraSettings("c", url), RealClock())
        reader.open()
        assert reader.live
        arrivals = []
        for _ in range(45):
            arrival = reader.read()
            assert arrival is not None and arrival.pts_s is not None
            arrivals.append((arrival.pts_s, arrival.received_s, RealClock().now()))
        reader.close()
    times = [pts_s for pts_s, _, _ in arrivals]
    assert times == sorted(times)
    # A picture that others depend on was received before those that are shown before it: its
    # stamp is that of its own packet, so stamps are not in the order of the pictures.
    stamps = [received_s for _, received_s, _ in arrivals]
    assert stamps != sorted(stamps)
    assert all(received_s <= now_s for _, received_s, now_s in arrivals)


def test_a_live_stream_that_changes_its_size_and_its_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "both.ts"
    sizes = [(320, 180), (256, 144)]
    parts = [clips.write(tmp_path / f"{w}.ts", w, h, frames=30) for w, h in sizes]
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    sink = CollectingSink(keyframe_every=3)
    with tcp_stream(path, 2.0) as url, running(sink, CameraSettings("c", url)):
        sink.wait(lambda: "ended the stream" in sink.statuses[-1].reason)
    assert sink.sizes[:2] == sizes
    # The second clip's timestamps begin again: no frame gets an absurd age.
    assert all(0.0 <= frame.ready_s - frame.captured_s < 1.0 for frame in sink.frames)
    sink.check_accounts("c")


def test_http_login(jpegs: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good, bad = CollectingSink(), CollectingSink()
    with mjpeg_server(jpegs, user="joe", password=PASSWORD) as url:
        with running(good, CameraSettings("c", url, username="joe", password=PASSWORD)):
            good.wait_state(CameraState.RUNNING)
        wrong = PASSWORD + "x"
        with running(bad, CameraSettings("c", url, username="joe", password=wrong)):
            status = bad.wait_state(CameraState.UNAUTHORIZED)
    assert "(401)" in status.reason
    assert_no_secret([caplog.text, status.reason])


@pytest.mark.parametrize("reader", RTSP_READERS)
def test_a_request_to_stop_does_not_wait_for_a_silent_server(reader: str) -> None:
    sink = CollectingSink()
    with ScriptedRtsp() as server:
        server.on("OPTIONS", SILENT)
        server.on("DESCRIBE", SILENT)
        with running(sink, CameraSettings("c", server.url, reader=reader, start_s=2.0)) as (
            camera,
        ):
            server.wait(lambda: bool(server.requests))
            began_s = time.monotonic()
            camera.request_stop()
            assert time.monotonic() - began_s < 0.5
            assert camera.join(15.0)
