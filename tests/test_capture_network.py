"""Network cameras in the laboratory: RTSP, HTTP, silent, refusing, frozen, locked."""

from __future__ import annotations

import base64
import itertools
import logging
import time
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np
import pytest

from tests.lab import clips
from tests.lab.servers import (
    Relay,
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
from vidserve.clock import RealClock
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


def test_rtsp_plays_and_times_rise(stream_clip: Path) -> None:
    sink = CollectingSink(keyframe_every=5)
    with RtspServer(stream_clip) as server, running(sink, CameraSettings("c", server.url)):
        sink.wait(lambda: len(sink.frames) > 40)
        sink.wait(lambda: len(sink.lags) >= 1)
    assert sink.states() == [CameraState.CONNECTING, CameraState.RUNNING]
    frames = sink.of("c")
    neighbours = [(a, b) for a, b in itertools.pairwise(frames) if b.seq == a.seq + 1]
    gaps = [b.captured_s - a.captured_s for a, b in neighbours]
    assert np.median(gaps) == pytest.approx(1 / 30, abs=0.02)
    sink.check_accounts("c")
    _, lag_s, delay_s = sink.lags[-1]
    assert lag_s is not None and 0.0 <= lag_s < 0.5
    assert delay_s == pytest.approx(1 / 30, abs=0.01)


def test_rtsp_server_dies_and_comes_back(stream_clip: Path) -> None:
    sink = CollectingSink()
    with RtspServer(stream_clip) as server, running(sink, CameraSettings("c", server.url)):
        sink.wait_state(CameraState.RUNNING)
        server.kill()
        sink.wait_state(CameraState.FAILED)  # refused, after it was lost
        server.start()
        sink.wait(lambda: sink.states().count(CameraState.RUNNING) >= 2)
    states = sink.states()
    assert states[:4] == [
        CameraState.CONNECTING,
        CameraState.RUNNING,
        CameraState.CONNECTING,
        CameraState.FAILED,
    ]
    assert "connection lost" in sink.statuses[2].reason
    assert "refuses the connection" in sink.statuses[3].reason
    sink.check_accounts("c")


def test_rtsp_server_that_freezes_is_a_stall(stream_clip: Path) -> None:
    sink = CollectingSink()
    with RtspServer(stream_clip) as server, Relay(server.port) as relay:
        url = server.url.replace(str(server.port), str(relay.port))
        settings = CameraSettings("c", url, stall_s=1.0, start_s=4.0)
        with running(sink, settings):
            sink.wait_state(CameraState.RUNNING)
            relay.frozen.set()
            frozen_s = time.monotonic()
            status = sink.wait_state(CameraState.STALLED)
            assert time.monotonic() - frozen_s < 10.0
            relay.frozen.clear()
            sink.wait(lambda: sink.states().count(CameraState.RUNNING) >= 2, 30.0)
    assert status.reason == "no frame for 1 s"
    assert set(sink.states()) == {
        CameraState.CONNECTING,
        CameraState.RUNNING,
        CameraState.STALLED,
    }


@pytest.mark.parametrize("digest", [False, True])
def test_rtsp_login(stream_clip: Path, digest: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sink = CollectingSink()
    with RtspServer(stream_clip, user="joe", password=PASSWORD, digest=digest) as server:
        settings = CameraSettings("c", server.url, username="joe", password=PASSWORD)
        with running(sink, settings):
            sink.wait_state(CameraState.RUNNING)
    assert_no_secret([caplog.text, repr(settings), *(status.reason for status in sink.statuses)])


def test_rtsp_wrong_password_is_unauthorized_and_stays_secret(
    stream_clip: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = CollectingSink()
    with RtspServer(stream_clip, user="joe", password="right") as server:
        settings = CameraSettings("c", server.url, username="joe", password=PASSWORD)
        with running(sink, settings):
            status = sink.wait_state(CameraState.UNAUTHORIZED)
        in_url = server.url.replace("://", f"://joe:{quote(PASSWORD, safe='')}@")
        other = CollectingSink()
        with running(other, CameraSettings("d", in_url)):
            other.wait_state(CameraState.UNAUTHORIZED)
        with pytest.raises(SourceUnauthorized) as caught:
            PyAvReader(settings, RealClock()).open()
    assert "check username and password" in status.reason
    captured = capfd.readouterr()
    texts = [caplog.text, captured.err, captured.out, repr(settings), str(caught.value)]
    texts += [repr(caught.value), repr(caught.value.__context__), repr(caught.value.__cause__)]
    texts += [status.reason for status in (*sink.statuses, *other.statuses)]
    assert_no_secret(texts)


def test_unknown_path_is_a_failure_with_a_reason(stream_clip: Path) -> None:
    sink = CollectingSink()
    with RtspServer(stream_clip) as server:
        url = server.url.replace("/stream", "/nothing")
        with running(sink, CameraSettings("c", url)):
            status = sink.wait_state(CameraState.FAILED)
    assert "404" in status.reason


@pytest.mark.parametrize("scheme", ["rtsp", "http"])
def test_a_silent_server_is_a_stall_and_bounded(scheme: str) -> None:
    sink = CollectingSink()
    began_s = time.monotonic()
    with silent_server() as port:
        settings = CameraSettings("c", f"{scheme}://127.0.0.1:{port}/x", start_s=2.0, stall_s=1.0)
        with running(sink, settings):
            status = sink.wait_state(CameraState.STALLED)
            assert time.monotonic() - began_s < 15.0
    assert f"127.0.0.1:{port} gave no answer" in status.reason
    assert CameraState.RUNNING not in sink.states()


def test_a_refusing_port_fails_once_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    sink = CollectingSink()
    with running(sink, CameraSettings("c", f"rtsp://127.0.0.1:{refusing_port()}/x")):
        status = sink.wait_state(CameraState.FAILED)
        time.sleep(1.4)  # some attempts more
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


def test_three_dead_cameras_do_not_delay_a_good_one(stream_clip: Path) -> None:
    def start_alone(server: RtspServer) -> float:
        sink = CollectingSink()
        began_s = time.monotonic()
        with running(sink, CameraSettings("good", server.url)):
            sink.wait_state(CameraState.RUNNING, "good")
            return time.monotonic() - began_s

    with RtspServer(stream_clip) as server, silent_server() as port:
        alone_s = start_alone(server)
        silent = f"rtsp://127.0.0.1:{port}/x"
        dead = [CameraSettings(f"dead{i}", silent, start_s=2.0) for i in range(3)]
        sink = CollectingSink()
        began_s = time.monotonic()
        with running(sink, *dead, CameraSettings("good", server.url)):
            sink.wait_state(CameraState.RUNNING, "good")
            assert time.monotonic() - began_s < alone_s + 2.0
            sink.wait(lambda: len(sink.of("good")) > 15)


def test_http_mjpeg_is_live_and_its_silence_is_a_stall(jpegs: list[bytes]) -> None:
    sink = CollectingSink(keyframe_every=4)
    with mjpeg_server(jpegs, stop_after=20) as url:
        settings = CameraSettings("c", url, stall_s=1.0, start_s=6.0)
        with running(sink, settings):
            sink.wait_state(CameraState.RUNNING)
            status = sink.wait_state(CameraState.STALLED)
    assert status.reason == "no frame for 1 s"
    assert sink.sizes == [(320, 180)]
    assert all(lag_s is None for _, lag_s, _ in sink.lags)  # its timestamps are FFmpeg's invention
    sink.check_accounts("c")


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


def test_a_request_to_stop_does_not_wait_for_a_silent_server() -> None:
    sink = CollectingSink()
    with silent_server() as port:
        settings = CameraSettings("c", f"rtsp://127.0.0.1:{port}/x", start_s=2.0)
        with running(sink, settings) as (camera,):
            time.sleep(0.3)
            began_s = time.monotonic()
            camera.request_stop()
            assert time.monotonic() - began_s < 0.5
            assert camera.join(15.0)
