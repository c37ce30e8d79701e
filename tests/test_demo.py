"""``vidserve demo``: as `make demo` runs it, with the samples, and with one's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.running import ROOT, Command, synthetic, write_config

pytest.importorskip("amqtt", reason="needs the extra demo: pip install 'vidserve[demo]'")


def test_the_demo_shows_a_run_and_sums_it_up(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        f"""
detector: {{model: "fake:3+2n", image_size: 320}}
mqtt: {{embedded: true}}
stats: {{interval_s: 0.5}}
cameras:
  plaza: {{source: "{synthetic(objects=2)}"}}
  street: {{source: "{synthetic(960, 540, 25)}"}}
""",
    )
    command = Command("demo", "-c", str(config), "--seconds", "7")
    assert command.end() == 0, command.err
    said = command.out
    assert re.search(r"vidserve demo: \d+ s left, \d+ messages", said)  # the live table, plain
    assert re.search(r"plaza +running +\d+\.\d +\d+ +\d+", said)
    assert "2\u00a0object" in said
    total = re.search(
        r"(\d+) frames captured = (\d+) detected \+ (\d+) tracked \+ (\d+) dropped", said
    )
    assert total is not None, said
    captured, detected, tracked, dropped = map(int, total.groups())
    assert captured == detected + tracked + dropped
    assert captured > 100
    assert "our own subscriber saw" in said
    assert "Traceback" not in command.err


def test_a_camera_of_which_nothing_is_seen_fails_the_demo(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        "detector: {model: 'fake:3+2n'}\nmqtt: {embedded: true}\n"
        "cameras: {gone: {source: no-such-file.mp4}}\n",
    )
    command = Command("demo", "-c", str(config), "--seconds", "2")
    assert command.end() == 1
    assert "camera gone: nothing was seen of it" in command.out
    assert "no-such-file.mp4" in command.out


def test_another_broker_is_refused_with_the_way_out(tmp_path: Path) -> None:
    config = write_config(tmp_path, "mqtt: {host: localhost}\n")
    command = Command("demo", "-c", str(config))
    assert command.end() == 2
    assert "vidserve watch" in command.err


def test_the_samples_run(tmp_path: Path) -> None:
    """The main job: three clips, the sample model, everything real."""
    assert (ROOT / "samples" / "vidserve-sample.pt").is_file()
    command = Command("demo", "--seconds", "6", STATE_DIRECTORY=str(tmp_path))
    assert command.end(120) == 0, command.out + command.err
    for name in ("plaza", "street", "gate"):
        assert re.search(rf"{name} +running", command.out), command.out
    assert "person" in command.out and "car" in command.out
