"""The daemon and a real Mosquitto: topics, truth after a broker's death, the embedded broker."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.mosquitto import Mosquitto, Subscriber, wait_for
from tests.running import Command, assert_accounted, synthetic, write_config
from vidserve.config import load
from vidserve.daemon import Daemon

FAKE = "detector: {model: 'fake:3+2n', image_size: 320}\n"


class Running:
    """A daemon in a thread of this process. Use as a context manager; ``report`` at the end."""

    def __init__(self, folder: Path, text: str) -> None:
        self.daemon = Daemon(load(write_config(folder, text), os.environ))
        self.report: dict[str, Any] = {}
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.report = self.daemon.run(None, self.ready.set)

    def __enter__(self) -> Running:
        self._thread.start()
        assert self.ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.request_stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


def config(port: int, cameras: str) -> str:
    return (
        FAKE
        + f"mqtt: {{host: 127.0.0.1, port: {port}}}\nstats: {{interval_s: 0.5}}\n"
        + f"cameras:\n{cameras}"
    )


@pytest.fixture
def camera() -> str:
    return f"  yard: {{source: '{synthetic(objects=2)}', classes: [object]}}\n"


def test_topics_and_their_content(tmp_path: Path, camera: str) -> None:
    with Mosquitto(tmp_path) as broker, Subscriber(broker.port) as seen:
        cameras = camera + "  dead: {source: 'rtsp://127.0.0.1:1/x'}\n"
        with Running(tmp_path, config(broker.port, cameras)) as running:
            wait_for(lambda: seen.last("vidserve/yard/count/object") == b"2", "the count")
            wait_for(lambda: seen.count("vidserve/stats", 2), "stats")
            wait_for(lambda: seen.count("vidserve/yard/detections", 60), "answers")
            with Subscriber(broker.port) as late:  # what is retained
                wait_for(lambda: late.last("vidserve/yard/count/object"), "retained counts")
                wait_for(lambda: late.last("vidserve/info"), "retained info")
                assert late.last("vidserve/status") == b"online"
                assert all(
                    m.retained and m.qos == 1
                    for m in late.messages
                    if m.topic.endswith(("status", "info", "count/object"))
                    and m is late.on(m.topic)[0]
                )
        assert_accounted(running.report)
        wait_for(lambda: seen.last("vidserve/status") == b"offline", "the goodbye")
        wait_for(lambda: seen.last("vidserve/yard/count/object") == b"0", "counts at zero")
        info = json.loads(seen.last("vidserve/info") or b"")
        assert info["schema"] == 1 and info["model"] == "fake" and info["backend"] == "fake"
        assert info["labels"] == {"object": "object"}
        assert set(info["cameras"]) == {"yard", "dead"}
        dead = [json.loads(m.payload) for m in seen.on("vidserve/dead/status")]
        assert any(d["state"] == "failed" and "refuses" in d["reason"] for d in dead)
        yard = [json.loads(m.payload)["state"] for m in seen.on("vidserve/yard/status")]
        assert "running" in yard and yard[-1] == "disabled"
        answers = [json.loads(m.payload) for m in seen.on("vidserve/yard/detections")]
        assert [a["seq"] for a in answers] == sorted({a["seq"] for a in answers})
        settled = running.report["cameras"]["yard"]
        assert len(answers) == settled["detected"] + settled["tracked"]
        for answer in answers:
            assert {
                "schema", "camera", "seq", "time", "age_ms", "source", "detection_age_ms",
                "width", "height", "objects",
            } == set(answer)  # fmt: skip
            for thing in answer["objects"]:
                x1, y1, x2, y2 = thing["box"]
                assert 0 <= x1 < x2 <= answer["width"] and 0 <= y1 < y2 <= answer["height"]
                assert set(thing) == {"id", "label", "confidence", "box", "velocity", "age_s"}
        stats = json.loads(seen.last("vidserve/stats") or b"")
        assert stats["cameras"]["yard"]["captured"] > 0
        assert json.loads(seen.last("vidserve/yard/stats") or b"")["state"] == "running"


def test_the_broker_dies_in_mid_run_and_comes_back(tmp_path: Path, camera: str) -> None:
    with Mosquitto(tmp_path) as broker:
        with Running(tmp_path, config(broker.port, camera)) as running:
            with Subscriber(broker.port) as seen:
                wait_for(lambda: seen.last("vidserve/yard/count/object") == b"2", "the count")
            broker.kill()
            before = running.daemon.snapshot()
            wait_for(
                lambda: (
                    running.daemon.snapshot()["cameras"]["yard"]["captured"]
                    > before["cameras"]["yard"]["captured"] + 60
                ),
                "frames without a broker",
            )
            assert not running.daemon.snapshot()["mqtt"]["connected"]
            broker.start()  # it has forgotten everything
            with Subscriber(broker.port) as seen:
                wait_for(lambda: seen.last("vidserve/status") == b"online", "the birth")
                wait_for(lambda: seen.last("vidserve/yard/count/object") == b"2", "the count")
                wait_for(lambda: seen.last("vidserve/yard/status"), "the camera's state")
                wait_for(lambda: seen.last("vidserve/info"), "info")
                wait_for(lambda: seen.count("vidserve/yard/detections", 5), "answers")
        mqtt = running.report["mqtt"]
        assert_accounted(running.report)
        assert mqtt["connected"] and mqtt["reason"] == ""  # before it was put away
        assert mqtt["reconnects"] == 1
        assert mqtt["outbox_peak"] >= 50


def test_kill_9_leaves_offline(tmp_path: Path, camera: str) -> None:
    with Mosquitto(tmp_path) as broker, Subscriber(broker.port) as seen:
        file = write_config(tmp_path, config(broker.port, camera))
        command = Command("run", "-c", str(file))
        command.wait_for("ready:")
        wait_for(lambda: seen.last("vidserve/status") == b"online", "the birth")
        command.stop(signal.SIGKILL)
        wait_for(lambda: seen.last("vidserve/status") == b"offline", "the will")


def test_counts_go_to_zero_when_the_camera_dies(tmp_path: Path) -> None:
    dying = f"  yard: {{source: '{synthetic(objects=2, hang_after_s=2)}', stall_s: 1}}\n"
    with Mosquitto(tmp_path) as broker, Subscriber(broker.port) as seen:
        with Running(tmp_path, config(broker.port, dying)):
            wait_for(lambda: seen.last("vidserve/yard/count/object") == b"2", "the count")
            wait_for(lambda: seen.last("vidserve/yard/count/object") == b"0", "zero")
            states = [json.loads(m.payload)["state"] for m in seen.on("vidserve/yard/status")]
            assert "stalled" in states


def test_publish_rate_and_change(tmp_path: Path) -> None:
    still = synthetic(objects=0)
    cameras = (
        f"  few: {{source: '{synthetic(seed=1)}', publish: {{max_per_s: 2}}}}\n"
        f"  quiet: {{source: '{still}', publish: on_change}}\n"
        f"  every: {{source: '{synthetic(seed=3)}'}}\n"
    )
    with Mosquitto(tmp_path) as broker, Subscriber(broker.port) as seen:
        with Running(tmp_path, config(broker.port, cameras)) as running:
            wait_for(lambda: seen.count("vidserve/every/detections", 90), "answers")
        assert_accounted(running.report)
        assert 2 <= len(seen.on("vidserve/few/detections")) <= 30
        assert len(seen.on("vidserve/quiet/detections")) <= 1


def test_the_embedded_broker_carries_a_run(tmp_path: Path, camera: str) -> None:
    pytest.importorskip("amqtt", reason="needs the extra demo: pip install 'vidserve[demo]'")
    text = FAKE + f"mqtt: {{embedded: true}}\ncameras:\n{camera}"
    with Running(tmp_path, text) as running:
        assert running.daemon.mqtt_port is not None
        with Subscriber(running.daemon.mqtt_port) as seen:
            wait_for(lambda: seen.last("vidserve/yard/count/object") == b"2", "the count")
            wait_for(lambda: seen.count("vidserve/yard/detections", 20), "answers")
    assert_accounted(running.report)
    assert running.report["mqtt"]["published"] > 20
