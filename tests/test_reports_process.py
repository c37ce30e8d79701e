"""What people reported of systems like this one, tried on vidserve: memory, secrets, stopping.

``../shared/reports.md`` has the reports; each test is named after one of its row.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote, quote_plus

import cv2
import pytest

from tests.lab import odd_files as odd
from tests.lab.http_servers import http_server, http_status, mjpeg_server
from tests.lab.leaks import descriptors
from tests.lab.sink import CollectingSink, running
from tests.lab.tcp_servers import refusing_port, silent_server
from tests.mosquitto import Mosquitto, Subscriber, wait_for
from tests.running import Command, assert_accounted, run_daemon, synthetic, write_config
from vidserve import build, pipeline
from vidserve.capture import backoff
from vidserve.capture.camera import CameraSettings
from vidserve.clock import Clock
from vidserve.config import Config
from vidserve.detection.detector import Detector
from vidserve.detection.fake import FakeDetector
from vidserve.errors import DetectorError
from vidserve.frames import CameraState, Detections
from vidserve.slots import Slot

FAKE = "detector: {model: 'fake:3+2n', image_size: 320}\n"


# -- memory ----------------------------------------------------------------------------------


def rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


@pytest.mark.parametrize("kind", ["closes after a picture", "refuses", "sends rubbish", "401"])
def test_opencv_18816_memory_does_not_grow_with_reconnects(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 connections to a camera that is lost at once: the longer form is ``make soak``."""
    monkeypatch.setattr(backoff, "FIRST_S", 0.01)
    monkeypatch.setattr(backoff, "CAP_S", 0.01)
    monkeypatch.setattr(backoff, "UNAUTHORIZED_FIRST_S", 0.01)
    monkeypatch.setattr(backoff, "UNAUTHORIZED_CAP_S", 0.01)
    jpeg = cv2.imencode(".jpg", odd.scene(0, (640, 480)))[1].tobytes()
    asked = 0

    def answer(http: BaseHTTPRequestHandler, _over: threading.Event) -> None:
        nonlocal asked
        asked += 1
        http.send_response(401 if kind == "401" else 404 if kind == "refuses" else 200)
        http.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
        http.end_headers()
        if kind == "closes after a picture":
            head = f"--next\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
            for _ in range(3):
                http.wfile.write(head.encode() + jpeg + b"\r\n")
        elif kind == "sends rubbish":
            http.wfile.write(random.Random(asked).randbytes(100_000))

    sink = CollectingSink(keyframe_every=2)
    with http_server(answer) as server:
        with running(sink, CameraSettings("c", server.url, start_s=2.0, stall_s=2.0)):
            sink.wait(lambda: asked >= 15)
            gc.collect()
            before = rss_mb(), len(descriptors()), threading.active_count()
            sink.wait(lambda: asked >= 75, 40.0)
            gc.collect()
            after = rss_mb(), len(descriptors()), threading.active_count()
    assert after[0] < before[0] + 8.0
    assert after[1] <= before[1] + 4 and after[2] <= before[2] + 4
    sink.check_accounts("c")


# -- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [79, 91])
def test_deepstream_rfdetr_4_a_model_of_80_classes_with_other_names_does_not_start(
    count: int, tmp_path: Path
) -> None:
    """The labels would be off by some: refused, whichever way."""
    import torch
    from ultralytics.nn.tasks import DetectionModel, yaml_model_load

    from vidserve.detection.ultralytics import UltralyticsDetector

    config = yaml_model_load("yolo11.yaml") | {"scale": "n"}
    config["scales"] = {"n": [0.33, 0.125, 128]}
    model = DetectionModel(config, ch=3, nc=80, verbose=False)
    for names, fine in ((80, True), (count, False)):
        model.names = {index: f"thing{index}" for index in range(names)}
        path = tmp_path / f"{names}.pt"
        torch.save({"model": model, "train_args": {}}, path)
        if fine:
            detector = UltralyticsDetector(str(path), device="cpu")
            assert list(detector.info.names.values())[-1] == "thing79"
            detector.close()
        else:
            with pytest.raises(DetectorError, match=f"80 classes .* but has {names} names"):
                UltralyticsDetector(str(path), device="cpu")


# -- a detector that is gone -----------------------------------------------------------------


def test_nvidia_48_a_detector_that_is_gone_shows_and_every_frame_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a GPU that vanishes: every call raises from some moment on, for ever."""

    class Gone(FakeDetector):
        calls = 0

        def detect(self, slots: Sequence[Slot]) -> list[Detections]:
            Gone.calls += 1
            if Gone.calls > 5:
                raise RuntimeError("CUDA error: unspecified launch failure")
            return super().detect(slots)

    def factory(_config: Config, clock: Clock) -> Callable[[], Detector]:
        return lambda: Gone("3+2n", clock=clock)

    monkeypatch.setattr(build, "detector_factory", factory)
    monkeypatch.setattr(pipeline, "service_times", lambda *_a, **_m: {1: 0.005, 8: 0.019})
    report = run_daemon(tmp_path, f"cameras: {{a: {{source: '{synthetic()}'}}}}\n", 2)
    assert_accounted(report)
    assert "the detector failed" in report["detector"]["degraded"]
    assert report["cameras"]["a"]["tracked"] > 50
    assert caplog.text.count("unspecified launch failure") <= 4  # told, and no flood
    assert "the detector failed" in caplog.text


# -- secrets ---------------------------------------------------------------------------------

SECRET = 'p@ss:w/rd%41 ü"\\x'
USER = "jo@e"


def forms() -> list[str]:
    """All that would give the secret away."""
    login = f"{USER}:{SECRET}".encode()
    return [
        SECRET,
        quote(SECRET, safe=""),
        quote(SECRET),
        quote_plus(SECRET),
        repr(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        base64.b64encode(login).decode(),
        base64.urlsafe_b64encode(login).decode(),
        "p@ss:w",
        "p%40ss%3Aw",
    ]


def test_frigate_1431_no_form_of_a_password_is_said_anywhere(tmp_path: Path) -> None:
    """Real cameras that refuse the login, with the password in five places; at DEBUG."""
    encoded = quote(SECRET, safe="")
    with (
        http_status(401) as locked,
        http_status(404) as lost,
        silent_server() as silent,
        Mosquitto(tmp_path) as broker,
        Subscriber(broker.port) as seen,
    ):
        login = f"{quote(USER)}:{encoded}"
        http = locked.url.removeprefix("http://")
        cameras = {
            "key": f"{{source: '{locked.url}', username: '{USER}', password: '${{CAM}}'}}",
            "url": f"{{source: 'http://{login}@{http}'}}",
            "query": f"{{source: '{lost.url}?user=joe&password={encoded}&x=1'}}",
            "path": f"{{source: '{lost.url}/user=joe_password={encoded}_channel=1.sdp'}}",
            "file": f"{{source: 'rtsp://127.0.0.1:{refusing_port()}/x', password_file: cam.txt, "
            f"username: '{USER}'}}",
            "mute": f"{{source: 'rtsp://{login}@127.0.0.1:{silent}/x', start_s: 1}}",
            "wrong": f"{{source: 'http://{login}@h:port/', sorce: x}}",
        }
        (tmp_path / "cam.txt").write_text(SECRET + "\n", encoding="utf-8")
        (tmp_path / "cam.txt").chmod(0o600)
        config = write_config(
            tmp_path,
            FAKE
            + f"mqtt: {{host: 127.0.0.1, port: {broker.port}, username: me, "
            + "password: '${CAM}'}\n"
            + "outputs: [mqtt, {jsonl: out.jsonl}]\nstats: {interval_s: 0.5}\ncameras:\n"
            + "".join(f"  {name}: {block}\n" for name, block in cameras.items()),
        )
        report = tmp_path / "report.json"
        run = Command(
            "run", "-c", str(config), "--report", str(report), "--log-level", "DEBUG", CAM=SECRET
        )
        run.wait_for("ready:")
        wait_for(lambda: len(locked.paths) >= 2 and len(lost.paths) >= 2, "all to be asked")
        wait_for(lambda: "stalled" in str(seen.last("vidserve/mute/status")), "the silent one")
        command_line = Path(f"/proc/{run.process.pid}/cmdline").read_text()
        code, _ = run.stop()
        assert code == 0, run.err
        check = Command("check", "-c", str(config), CAM=SECRET)
        check.end()
        published = "".join(f"{m.topic} {m.payload!r} {m.payload.decode()}" for m in seen.messages)
    said = {
        "log": run.err,
        "output": run.out,
        "report": report.read_text(),
        "jsonl": (tmp_path / "out.jsonl").read_text(),
        "mqtt": published,
        "command line": command_line,
        "check": check.out + check.err,
    }
    assert "unauthorized" in said["log"] and "unauthorized" in said["mqtt"]
    assert "vidserve/info" in published and "Traceback" not in run.err
    for place, text in said.items():
        for form in forms():
            assert form not in text, (place, form)


def test_frigate_5798_an_internal_error_shows_no_password_in_its_traceback(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever a library raises, with the whole URL in it, and in the chain of its causes."""
    from vidserve.capture.synthetic import SyntheticReader

    url = f"rtsp://{quote(USER)}:{quote(SECRET, safe='')}@h/x"

    class Chatty(SyntheticReader):
        def __init__(self, _settings: CameraSettings, clock: Clock) -> None:
            super().__init__(synthetic(), clock)

        def open(self) -> None:
            try:
                raise OSError(f"cannot open {url}")
            except OSError as error:
                raise RuntimeError({"url": url, "password": SECRET}) from error

    caplog.set_level("DEBUG")
    sink = CollectingSink()
    settings = CameraSettings("c", url, username=USER, password=SECRET)
    with running(sink, settings, factory=Chatty):
        status = sink.wait_state(CameraState.FAILED)
    output = capfd.readouterr()
    for text in (caplog.text, status.reason, repr(settings), output.out, output.err):
        for form in forms():
            assert form not in text
    assert "please report it" in status.reason


# -- stopping --------------------------------------------------------------------------------


def test_savant_423_sigterm_ends_in_time_whatever_it_waits_for(tmp_path: Path) -> None:
    """Open, read, decode, back-off and inference at the same moment, by one process."""
    clip = odd.encode(tmp_path / "c.mp4", size=(640, 480), fps=30, frames=60)
    jpeg = cv2.imencode(".jpg", odd.scene(0, (160, 120)))[1].tobytes()
    with (
        silent_server() as silent,
        mjpeg_server([jpeg], stop_after=3) as mute,
        Mosquitto(tmp_path) as broker,
        Subscriber(broker.port) as seen,
    ):
        cameras = {
            "opens": f"{{source: 'rtsp://127.0.0.1:{silent}/x', start_s: 30, stall_s: 30}}",
            "reads": f"{{source: '{mute}', stall_s: 60}}",
            "hangs": f"{{source: '{synthetic(hang_after_s=0.1, deaf=1)}', stall_s: 60}}",
            "waits": f"{{source: 'rtsp://127.0.0.1:{refusing_port()}/x'}}",
            "decodes": f"{{source: {clip}, loop: true, realtime: false}}",
            "due": f"{{source: '{synthetic(fps=0.05)}', stall_s: 60}}",
        }
        config = write_config(
            tmp_path,
            "detector: {model: 'fake:300+0n', image_size: 320}\n"
            + f"mqtt: {{host: 127.0.0.1, port: {broker.port}}}\n"
            + "scheduling: {keyframe_interval: 1, batch: {max: 1}}\ncameras:\n"
            + "".join(f"  {name}: {block}\n" for name, block in cameras.items()),
        )
        report = tmp_path / "report.json"
        run = Command("run", "-c", str(config), "--report", str(report))
        run.wait_for("camera waits: failed")
        run.wait_for("ready:")
        time.sleep(1.0)  # until a batch runs and the deaf camera hangs
        code, took_s = run.stop(signal.SIGTERM)
        assert code == 0, run.err
        assert took_s < 8.0  # 5 s are promised; the machine of a test may be very busy
        wait_for(lambda: seen.last("vidserve/status") == b"offline", "the goodbye")
        states = {name: seen.last(f"vidserve/{name}/status") or b"" for name in cameras}
        assert all(b"vidserve is stopped" in state for state in states.values()), states
    assert_accounted(json.loads(report.read_text()))
    assert "Traceback" not in run.err
