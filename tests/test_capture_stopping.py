"""SIGTERM while cameras hang in every call: the process ends within five seconds, and says so."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.lab import clips
from tests.lab.servers import Relay, refusing_port, silent_server, tcp_stream
from tests.mosquitto import Mosquitto, Subscriber, need_mosquitto, wait_for
from tests.running import Command, assert_accounted, read_lines, write_config

LIMIT_S = 5.0
FAKE = "detector: {model: 'fake:3+2n', image_size: 320}\nstats: {interval_s: 0.5}\n"


class BadCommand(Command):
    """``vidserve`` with readers that hang."""

    module = "tests.lab.bad_readers"


def cameras(*names: str, **sources: str) -> str:
    every = {**dict.fromkeys(names, "synthetic://"), **sources}
    return "cameras:\n" + "".join(
        f"  {name}: {{source: '{source}', stall_s: 1, start_s: 1}}\n"
        for name, source in every.items()
    )


def test_sigterm_during_open_read_decode_close_and_backoff_ends_in_time_with_goodbyes(
    tmp_path: Path,
) -> None:
    need_mosquitto()
    clip = clips.write(tmp_path / "clip.ts", frames=300)
    with (
        Mosquitto(tmp_path) as broker,
        Subscriber(broker.port) as seen,
        silent_server() as silent,
        tcp_stream(clip, 10.0) as sending,
        Relay(int(sending.rpartition(":")[2])) as relay,
    ):
        text = FAKE + f"mqtt: {{host: 127.0.0.1, port: {broker.port}}}\n"
        text += "outputs: [mqtt, {jsonl: out.jsonl}]\n" + cameras(
            "open_sleep", "first_sleep", "read_sleep", "read_burn", "convert_spin", "close_sleep",
            silent=f"rtsp://127.0.0.1:{silent}/x",
            frozen=f"tcp://127.0.0.1:{relay.port}",
            refusing=f"rtsp://127.0.0.1:{refusing_port()}/x",
            good="synthetic://?fps=30",
        )  # fmt: skip
        report = tmp_path / "report.json"
        command = BadCommand(
            "run", "-c", str(write_config(tmp_path, text)), "--report", str(report)
        )
        command.wait_for("ready: ")

        def cameras_now() -> dict[str, dict[str, object]]:
            told = json.loads(seen.last("vidserve/stats") or b"{}")
            return dict(told.get("cameras", {}))

        wait_for(lambda: cameras_now().get("frozen", {}).get("state") == "running", "the stream")
        relay.frozen.set()
        hanging = {"open_sleep", "first_sleep", "read_sleep", "read_burn", "convert_spin"}
        wait_for(
            lambda: hanging <= {n for n, c in cameras_now().items() if c["threads_given_up"]},
            "threads to be given up, and counted in the stats",
        )
        wait_for(lambda: cameras_now()["frozen"]["state"] == "stalled", "the stall")
        code, took_s = command.stop()
        assert (code, took_s < LIMIT_S) == (0, True), f"{took_s:.1f} s\n{command.err}"
        names = [*hanging, "close_sleep", "silent", "frozen", "refusing", "good"]
        wait_for(lambda: seen.last("vidserve/status") == b"offline", "the goodbye")
        for name in names:
            last = json.loads(seen.last(f"vidserve/{name}/status") or b"")
            assert (last["state"], last["reason"]) == ("disabled", "vidserve is stopped")
    answers = read_lines(tmp_path / "out.jsonl")
    assert {message["camera"] for message in answers} >= {"good", "frozen", "read_sleep"}
    numbers = json.loads(report.read_text())
    assert_accounted(numbers)
    assert numbers["cameras"]["open_sleep"]["threads_given_up"] >= 1
    assert numbers["cameras"]["silent"]["state"] == "stalled"
    assert numbers["cameras"]["good"]["captured"] > 30


def test_sigterm_before_readiness_while_every_camera_hangs(tmp_path: Path) -> None:
    text = FAKE + "outputs: [{jsonl: out.jsonl}]\n" + cameras("open_sleep", "factory_spin")
    command = BadCommand("run", "-c", str(write_config(tmp_path, text)))
    until_s = time.monotonic() + 30.0
    while not (tmp_path / "out.jsonl").exists():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    time.sleep(0.3)  # the cameras have begun
    code, took_s = command.stop()
    assert (code, took_s < LIMIT_S) == (0, True), f"{took_s:.1f} s\n{command.err}"
