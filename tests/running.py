"""Runs the daemon in tests: from YAML text, in this process or as a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vidserve.config import load
from vidserve.daemon import Daemon

ROOT = Path(__file__).resolve().parent.parent
Report = dict[str, Any]


def synthetic(
    width: int = 640, height: int = 360, fps: float = 30, objects: int = 3, **more: object
) -> str:
    """The URL of a synthetic camera."""
    rest = "".join(f"&{key}={value}" for key, value in more.items())
    return f"synthetic://?width={width}&height={height}&fps={fps}&objects={objects}{rest}"


def write_config(folder: Path, text: str) -> Path:
    """The text as a file."""
    path = folder / "vidserve.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def run_daemon(
    folder: Path,
    text: str,
    for_s: float,
    on_ready: Callable[[Daemon], None] | None = None,
    trace: Path | None = None,
) -> Report:
    """One whole run in this process; the report."""
    daemon = Daemon(load(write_config(folder, text), os.environ), trace=trace)
    report = daemon.run(for_s, (lambda: on_ready(daemon)) if on_ready is not None else None)
    assert not daemon.hung, "a thread did not end"
    return report


def assert_accounted(report: Report) -> None:
    """The second promise of the design, in every end-to-end run."""
    assert report["unaccounted"] == []
    for name, camera in report["cameras"].items():
        settled = camera["detected"] + camera["tracked"] + sum(camera["dropped"].values())
        assert camera["captured"] == settled + camera["pending"], name
        assert camera["pending"] == 0, name


class Command:
    """``vidserve ...`` as a process of its own."""

    module = "vidserve"

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module, *arguments],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.err = ""

    def wait_for(self, words: str, limit_s: float = 60.0) -> None:
        """Until stderr says so."""
        assert self.process.stderr is not None
        until_s = time.monotonic() + limit_s
        while words not in self.err:
            line = self.process.stderr.readline()
            assert line, f"{words!r} never came; it said:\n{self.err}"
            assert time.monotonic() < until_s, self.err
            self.err += line

    def stop(self, number: int = signal.SIGTERM, limit_s: float = 30.0) -> tuple[int, float]:
        """Signal it; exit code and how long it took."""
        started_s = time.monotonic()
        self.process.send_signal(number)
        code = self.end(limit_s)
        return code, time.monotonic() - started_s

    def end(self, limit_s: float = 60.0) -> int:
        """Wait for its end; the exit code."""
        try:
            self.out, rest = self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.err += rest
        return self.process.returncode


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The answers in a JSONL output."""
    return [line for line in _read(path) if "event" not in line]


def read_events(path: Path) -> list[dict[str, Any]]:
    """The beginnings and ends of tracks in a JSONL output."""
    return [line for line in _read(path) if "event" in line]


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
