"""Traces: what a run met, written while it runs, and replayed to the same shares."""

from __future__ import annotations

import gzip
import json
import logging
import os
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.lab.scheduling import SMALL, WIDE, frame, linear
from tests.running import Command, run_daemon, synthetic
from vidserve import __version__
from vidserve.cli import app
from vidserve.errors import OutputError, VidserveError
from vidserve.frames import Batch, BatchKind, DropReason
from vidserve.replay import comparison, replay
from vidserve.scheduling.settings import SchedulerSettings
from vidserve.trace import FileRecorder, Header, Recorder, Trace, read_trace

RECORDED = Path(__file__).parent / "data" / "seven-cameras.trace.gz"
"""Ten seconds of a live run: cameras of 30, 15 and 10 fps and two shapes, one of which ends."""

HEADER = Header(
    version="1",
    settings=SchedulerSettings(wait_s=0.01, max_pixels=10**6),
    cameras=(("gate", 2.0, 5), ("yard", 1.0, 3)),
    service_s={WIDE: linear(3, 2, 4), SMALL: {1: 0.002}},
)


def record(path: Path) -> None:
    recorder = FileRecorder(path, HEADER, 100.0)
    recorder.camera("gate", (WIDE, SMALL), 100.0)
    recorder.delivers("gate", True, 100.001)
    one, two = frame("gate", 0, 100.01), frame("yard", 0, 100.02)
    recorder.frame(one, 100.012)
    recorder.frame(two, 100.023)
    recorder.batch(Batch((one,), WIDE, BatchKind.IN_TIME, 100.013, 100.02), 100.019, 100.0195, 0)
    recorder.answered(one, True, 100.02)
    recorder.answered(two, False, 100.024)
    recorder.dropped("yard", DropReason.STALE, 3, 100.5)
    recorder.after(0.0021, 101.0)
    recorder.delivers("gate", False, 101.5)
    recorder.close(102.0)


@pytest.mark.parametrize("name", ["run.trace", "run.trace.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    record(tmp_path / name)
    trace = read_trace(tmp_path / name)
    assert trace.header == HEADER
    assert trace.ladders == {"gate": (WIDE, SMALL)}
    first, second = trace.frames
    assert (first.camera, first.detected, second.detected) == ("gate", True, False)
    assert (first.captured_s, first.arrived_s, first.handed_s) == pytest.approx((0.01, 0.012, 0.02))
    (batch,) = trace.batches
    assert (batch.started_s, batch.took_s, batch.back_s) == pytest.approx((0.013, 0.006, 0.0005))
    assert (batch.bucket, batch.correction, batch.late) == (WIDE, False, 0)
    assert [(name, round(at_s, 6)) for name, at_s in batch.frames] == [("gate", 0.01)]
    assert trace.dropped == [(0.5, "yard", "stale", 3)]
    assert [(name, on) for _, name, on in trace.deliveries] == [("gate", True), ("gate", False)]
    assert trace.after_s == [(1.0, 0.0021)]
    assert (trace.end_s, trace.lost) == (2.0, 0)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_trace_that_was_cut_off_reads_as_far_as_it_goes(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / ("run.gz" if compressed else "run")
    record(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-25] if compressed else whole[:-12])
    trace = read_trace(path)
    assert trace.header == HEADER
    assert trace.end_s is None
    if not compressed:
        assert len(trace.frames) == 2
        assert trace.duration_s == pytest.approx(0.024)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty"),
        ("hello\n", ":1: is no trace"),
        ("{}\n", ":1: is no trace"),
        ('{"format": "vidserve-trace", "schema": 9}\n', "schema 9"),
        ("[1]\n", ":1: is no trace"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(VidserveError, match=told):
        read_trace(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VidserveError, match="cannot be read as a trace"):
        read_trace(path)
    path.rename(tmp_path / "x.gz")
    with pytest.raises(VidserveError, match="cannot be read as a trace"):
        read_trace(tmp_path / "x.gz")


@pytest.mark.parametrize(
    "line", ['["f", 1]', '["?", 1]', '["f", 1, 1, 1, 7, 0]', '["b", 1, 1, 1, "wide", 0, 0, []]']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run"
    record(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], line + "\n", *lines[2:]]))
    with pytest.raises(VidserveError, match=f"{path}:3: is no trace"):
        read_trace(path)


def mutated(data: bytes, drawn: random.Random) -> bytes:
    """The bytes of a trace with some of them changed, left out or repeated."""
    changed = bytearray(data)
    for _ in range(drawn.randint(1, 4)):
        place = drawn.randrange(len(changed))
        kind = drawn.randrange(3)
        if kind == 0:
            changed[place] = drawn.randrange(256)
        elif kind == 1:
            del changed[place : place + drawn.randint(1, 9)]
        else:
            changed[place:place] = changed[place : place + drawn.randint(1, 9)]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(150))
def test_a_damaged_trace_is_read_or_refused_in_words(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    path = tmp_path / ("x.gz" if seed % 2 else "x")
    record(path)
    path.write_bytes(mutated(path.read_bytes(), drawn))
    try:
        trace = read_trace(path)
        comparison(trace, replay(trace))
    except VidserveError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"budget_s": 0.033', '"budget_s": "much"'),
        ('"budget_s": 0.033', '"budget_s": NaN'),
        ('"interval_frames": 5', '"interval_frames": 0'),
        ('"weight": 2.0', '"weight": Infinity'),
        ('"1": 0.002}', '"1": -1}'),
        ('["a",1000000,2100]', '["a",1000000,1e400]'),
        ('["a",1000000,2100]', '["a",1000000,' + "9" * 400 + "]"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "x"
    record(path)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(VidserveError, match="is no trace"):
        read_trace(path)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "site.yaml").write_text("detector: {model: 'fake:3+2n'}\n")
    command = Command("run", "-c", str(tmp_path / "site.yaml"), "--trace", str(tmp_path / "pipe"))
    assert command.end(60) == 2
    assert "is a pipe" in command.err


def test_options_that_a_trace_brings_itself_are_refused() -> None:
    given = ["simulate", "--trace", str(RECORDED), "--cameras", "4", "--for", "9"]
    command = Command(*given)
    assert command.end(60) == 2
    assert "--cameras, --for: not used with --trace" in command.err


def test_a_place_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="--trace: cannot write"):
        FileRecorder(tmp_path / "no" / "run.gz", HEADER, 0.0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_at_the_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left"):
        FileRecorder(tmp_path / "full", HEADER, 0.0)


def test_a_disk_that_fills_up_ends_the_trace_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = FileRecorder(tmp_path / "run", HEADER, 0.0)

    def full(data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder._file, "write", full, raising=False)
    with caplog.at_level(logging.ERROR):
        for second in range(5):
            recorder.after(0.002, float(second))
        recorder.close(5.0)
    assert caplog.text.count("the trace") == 1
    recorder.after(0.002, 6.0)
    recorder.close(7.0)


def test_a_slow_disk_loses_records_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vidserve.trace._MOST_WAITING", 10)
    monkeypatch.setattr("vidserve.trace._WRITE_EVERY_S", 60.0)
    recorder = FileRecorder(tmp_path / "run", HEADER, 0.0)
    for second in range(25):
        recorder.after(0.002, float(second))
    recorder.close(25.0)
    trace = read_trace(tmp_path / "run")
    assert len(trace.after_s) == 10
    assert trace.lost == 15


def test_nobody_asked_for_a_trace() -> None:
    recorder = Recorder()
    recorder.frame(frame("gate", 0, 1.0), 1.0)
    recorder.close(2.0)


def assert_near(trace: Trace, most_points: float) -> None:
    """Simulated shares against the recorded ones, in percentage points."""
    found = comparison(trace, replay(trace))
    points = found["points_apart"]
    for key in ("detected", "late", "answered_in_budget"):
        assert abs(points[key]) <= most_points, (key, found)
    for n, apart in points["batch_sizes"].items():
        assert abs(apart) <= most_points, (n, found)


def test_a_recorded_run_comes_out_the_same() -> None:
    trace = read_trace(RECORDED)
    assert len(trace.frames) > 1500
    assert any(not delivers for _, _, delivers in trace.deliveries)
    assert len({batch.bucket for batch in trace.batches}) == 2
    assert_near(trace, 5.0)


def test_a_replay_repeats_to_the_last_digit() -> None:
    trace = read_trace(RECORDED)
    assert replay(trace) == replay(read_trace(RECORDED))


def test_other_settings_show_what_they_would_change() -> None:
    trace = read_trace(RECORDED)
    as_it_was = replay(trace)
    every_frame = replay(trace, interval_frames=1)
    assert every_frame.detected > 1.5 * as_it_was.detected
    fifo = replay(trace, interval_frames=1, policy="fifo")
    assert fifo.late_share > every_frame.late_share + 0.05
    alone = replay(trace, SchedulerSettings(batch_max=1, batch_target=1, wait_s=0.0))
    assert set(alone.batch_sizes) == {1}


def test_a_trace_without_frames_says_so() -> None:
    with pytest.raises(VidserveError, match="no frames"):
        replay(Trace(HEADER))


def test_a_run_is_recorded_and_replayed_by_command(tmp_path: Path) -> None:
    path = tmp_path / "run.trace.gz"
    text = f"""
detector: {{model: "fake:3+2n"}}
scheduling: {{keyframe_interval: 2}}
cameras:
  one: {{source: "{synthetic(fps=30)}"}}
  two: {{source: "{synthetic(fps=15)}"}}
"""
    numbers = run_daemon(tmp_path, text, 3.0, trace=path)
    trace = read_trace(path)
    assert trace.header.version == __version__
    assert trace.end_s == pytest.approx(numbers["duration_s"], abs=1.0)
    settled = sum(c["detected"] + c["tracked"] for c in numbers["cameras"].values())
    assert len(trace.frames) == settled
    assert sum(f.detected for f in trace.frames) == sum(
        c["detected"] for c in numbers["cameras"].values()
    )
    assert sum(len(b.frames) for b in trace.batches) == sum(
        int(n) * count for n, count in numbers["batches"]["sizes"].items()
    )
    assert path.stat().st_size < 40 * len(trace.frames)
    with gzip.open(path, "rt") as stream:
        assert json.loads(next(iter(stream)))["format"] == "vidserve-trace"

    shown = CliRunner().invoke(app, ["simulate", "--trace", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "detected in time, of frames" in shown.output
    more = ["--interval", "1", "--policy", "edf", "--json"]
    changed = CliRunner().invoke(app, ["simulate", "--trace", str(path), *more])
    found = json.loads(changed.output)
    assert found["simulated"]["detected"] > 1.3 * found["recorded"]["detected"]
