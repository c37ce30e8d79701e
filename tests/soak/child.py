"""The daemon in a process of its own, asked on stdin and answering in JSON lines on stdout.

``python -m tests.soak.child CONFIG [--waits 0.04] [--plant fd] [--tracemalloc]``: a line on
stdin is a question (``snapshot``, ``threads``, ``memory``) or ``stop``; the end of stdin stops it
too. It says ``ready`` by itself, and the report at the end. Its log goes to stderr.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

from vidserve import logs
from vidserve.capture import backoff
from vidserve.capture.pyav import PyAvReader
from vidserve.config import load
from vidserve.daemon import Daemon

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MOST_LINES = 12


def shorten_waits(factor: float) -> None:
    """Wait only this share of the usual time between attempts; the doubling stays as it is.

    In this process alone, and only here: 500 reconnects would take four hours of waiting.
    """
    for name in ("FIRST_S", "CAP_S", "UNAUTHORIZED_FIRST_S", "UNAUTHORIZED_CAP_S"):
        setattr(backoff, name, factor * getattr(backoff, name))


def plant(kind: str) -> None:
    """A leak with every connection that is closed, to see that a soak finds it."""
    close = PyAvReader.close
    kept: list[object] = []
    idle = threading.Event()

    def leak(reader: PyAvReader) -> None:
        close(reader)
        if kind == "fd":
            kept.append(os.open("/dev/null", os.O_RDONLY))
        elif kind == "thread":
            threading.Thread(target=idle.wait, daemon=True).start()
        else:
            kept.append(bytearray(os.urandom(60_000)))

    setattr(PyAvReader, "close", leak)  # noqa: B010


def cpu_by_thread() -> dict[str, float]:
    """CPU seconds so far, by the name that Python gives a thread; ``native``: those it has not.

    Threads that are over are not in it.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    spent: defaultdict[str, float] = defaultdict(float)
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "stat").read_text(encoding="utf-8")
        except FileNotFoundError:
            continue  # it ended just now
        fields = text.rpartition(")")[2].split()
        spent[names.get(int(task.name), "native")] += (
            int(fields[11]) + int(fields[12])
        ) / _TICKS_PER_S  # utime, stime
    return dict(spent)


class Memory:
    """The lines of Python that hold more memory than at the first look (``--tracemalloc``)."""

    def __init__(self) -> None:
        self._first: tracemalloc.Snapshot | None = None

    def look(self) -> dict[str, Any]:
        """Most growth first; nothing at the first look."""
        if not tracemalloc.is_tracing():
            return {"lines": []}
        gc.collect()
        now = tracemalloc.take_snapshot()
        if self._first is None:
            self._first = now
            return {"lines": []}
        growth = now.compare_to(self._first, "lineno")
        growth.sort(key=lambda line: line.size_diff, reverse=True)
        return {"lines": [str(line) for line in growth[:_MOST_LINES]]}


def trim() -> dict[str, Any]:
    """Have glibc give free memory back: what remains is in use, or in shreds."""
    return {"trimmed": ctypes.CDLL(None).malloc_trim(0)}


class Control:
    """Answers questions, in a thread of its own."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._memory = Memory()
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._answer_all, name="soak-control", daemon=True)

    def say(self, **answer: object) -> None:
        """One line. Any thread."""
        with self._lock:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    def _answer_all(self) -> None:
        for line in sys.stdin:
            match line.strip():
                case "snapshot":
                    now_s = time.monotonic()
                    self.say(now_s=now_s, snapshot=self._daemon.snapshot())
                case "threads":
                    self.say(now_s=time.monotonic(), threads=cpu_by_thread())
                case "memory":
                    self.say(**self._memory.look())
                case "trim":
                    self.say(**trim())
                case "stop":
                    break
                case unknown:
                    self.say(error=f"unknown question: {unknown}")
        self._daemon.request_stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--waits", type=float, default=1.0)
    parser.add_argument("--plant", choices=("fd", "thread", "memory"))
    parser.add_argument("--tracemalloc", action="store_true")
    options = parser.parse_args()
    shorten_waits(options.waits)
    if options.plant is not None:
        plant(options.plant)
    if options.tracemalloc:
        tracemalloc.start()
    logs.set_up("INFO")
    daemon = Daemon(load(options.config, os.environ))
    control = Control(daemon)
    control.thread.start()
    report = daemon.run(on_ready=lambda: control.say(ready=time.monotonic()))
    control.say(report=report)
    os._exit(0)  # a deaf reader's thread would keep the process


if __name__ == "__main__":
    main()
