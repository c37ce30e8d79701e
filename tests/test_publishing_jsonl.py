"""The file output: whole lines, bounded waiting, and a full disk that stops nobody."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.mosquitto import CLOCK, adds_up, wait_for
from vidserve.errors import OutputError
from vidserve.publishing.jsonl import JsonlOutput
from vidserve.publishing.outbox import OutboxLimits
from vidserve.publishing.output import Message, MessageKind, Output


def frame(n: int) -> Message:
    return Message("gate/detections", b'{"seq":%d}' % n, MessageKind.FRAME)


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["seq"] for line in path.read_text().splitlines()]


def test_one_line_for_each_answer_and_event_appended(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"seq":-1}\n')
    output: Output = JsonlOutput(path, CLOCK)
    assert output.name == "jsonl"
    output.start()
    for n in range(1000):
        output.put(frame(n))
    output.put(Message("gate/events", b'{"seq":1000}', MessageKind.EVENT))
    output.put(Message("gate/status", b'{"state":"running"}', MessageKind.STATE))
    output.put(Message("stats", b"{}", MessageKind.FRAME))
    wait_for(lambda: len(numbers(path)) == 1002, "the lines, without a stop")
    output.put(frame(1001))
    output.stop(5.0)
    assert numbers(path) == list(range(-1, 1002))
    stats = output.stats()
    assert (stats.published, stats.put, stats.waiting, stats.dropped) == (1002, 1002, 0, {})
    assert not stats.connected


@pytest.mark.parametrize(
    ("name", "advice"),
    [("no/such/folder/out.jsonl", "does not exist"), (".", "this is a folder"), ("pipe", "a pipe")],
)
def test_a_path_that_cannot_be_used(tmp_path: Path, name: str, advice: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match=f"outputs: jsonl: .*{advice}"):
        JsonlOutput(tmp_path / name, CLOCK).start()


def test_a_full_disk_is_counted_and_told_once_and_got_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "out.jsonl"
    path.symlink_to("/dev/full")
    output = JsonlOutput(path, CLOCK, OutboxLimits(messages=100))
    output.start()
    slowest_s = 0.0
    for n in range(500):
        before = time.perf_counter()
        output.put(frame(n))
        slowest_s = max(slowest_s, time.perf_counter() - before)
    assert slowest_s < 1.0
    wait_for(lambda: output.stats().dropped.get("write_failed"), "failed writes")
    assert not output.stats().connected
    assert "disk is full" in output.stats().reason
    for n in range(500):
        output.put(frame(n))
    assert output.stats().dropped["outbox_full"] > 0
    failed = output.stats().dropped["write_failed"]
    wait_for(lambda: output.stats().dropped["write_failed"] > failed, "another try")
    path.unlink()
    path.symlink_to(tmp_path / "real.jsonl")
    output.put(frame(1000))
    wait_for(lambda: output.stats().connected, "a write that works")
    output.put(frame(1001))
    output.stop(5.0)
    assert numbers(path)[-1] == 1001
    assert adds_up(output.stats())
    assert output.stats().reconnects >= 1
    told = [r.getMessage() for r in caplog.records if r.name.endswith("jsonl")]
    assert sum("is full" in line for line in told) == 1, told
    assert sum("writing again" in line for line in told) == 1, told
    assert sum("dropped" in line for line in told) == 2, told  # one for each reason
    assert len(told) == 4, told


CUT = """
import resource, sys, time
from pathlib import Path
from vidserve.clock import RealClock
from vidserve.publishing.jsonl import JsonlOutput
from vidserve.publishing.output import Message, MessageKind
path = Path(sys.argv[1])
output = JsonlOutput(path, RealClock())
output.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))
def line(n):
    payload = b'{"seq":%d,"pad":"%s"}' % (n, b"x" * 280)
    return Message("a/detections", payload, MessageKind.FRAME)
for n in range(5):
    output.put(line(n))
while sum(output.stats().dropped.values()) < 2:
    time.sleep(0.01)
first = output.stats()
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
output.put(line(5))
while not output.stats().connected:
    time.sleep(0.01)
output.stop(5)
print(first.published, dict(first.dropped), output.stats().published)
"""


def test_a_line_that_was_cut_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "3 {'write_failed': 2} 4\n", done.stderr
    lines = path.read_text().splitlines()
    assert len(lines) == 5
    assert len(lines[3]) == 1000 - sum(len(line) + 1 for line in lines[:3])  # the cut one
    assert [json.loads(lines[n])["seq"] for n in (0, 1, 2, 4)] == [0, 1, 2, 5]


def test_stop_without_start(tmp_path: Path) -> None:
    output = JsonlOutput(tmp_path / "out.jsonl", CLOCK)
    output.put(frame(1))
    output.stop(0.0)
    assert output.stats().dropped == {"stopped": 1}
