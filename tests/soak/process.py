"""The daemon under soak, as its driver sees it: a process that answers questions."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.running import ROOT, Report


class SoakedDaemon:
    """``tests.soak.child`` with this config; a context manager. Used by one thread.

    Args:
        folder: Config and log go here.
        config: YAML.
        waits: Share of the usual waiting time between attempts.
        options: More arguments for the child.
        environ: More environment for the child.
    """

    def __init__(
        self, folder: Path, config: str, waits: float = 1.0, *options: str, **environ: str
    ) -> None:
        path = folder / "soak.yaml"
        path.write_text(config, encoding="utf-8")
        self.log = folder / "soak-daemon.txt"
        self._arguments = [str(path), "--waits", str(waits), *options]
        self._environ = environ
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    def __enter__(self) -> SoakedDaemon:
        with self.log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.child", *self._arguments],
                cwd=ROOT,
                env={**os.environ, **self._environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._listen, name="soak-answers", daemon=True).start()
        try:
            self._next("ready", 60.0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process = self._running
        process.kill()
        process.wait(20.0)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        stdout = self._running.stdout
        assert stdout is not None
        try:
            for line in stdout:
                self._answers.put(json.loads(line))
        except ValueError:
            if not stdout.closed:
                raise
        self._answers.put(None)

    def _next(self, key: str, limit_s: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=limit_s)
        except queue.Empty:
            raise AssertionError(f"no {key!r} within {limit_s} s:\n{self._end_of_log()}") from None
        assert answer is not None, f"the daemon ended:\n{self._end_of_log()}"
        assert key in answer, answer
        return answer

    def _end_of_log(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def _say(self, line: str) -> None:
        stdin = self._running.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def ask(self, question: str, key: str | None = None, limit_s: float = 20.0) -> dict[str, Any]:
        """The answer to ``snapshot``, ``threads``, ``memory`` or ``trim``."""
        self._say(question)
        return self._next(key or question, limit_s)

    def cameras(self) -> dict[str, dict[str, Any]]:
        """The cameras' part of a snapshot."""
        cameras: dict[str, dict[str, Any]] = self.ask("snapshot")["snapshot"]["cameras"]
        return cameras

    def stop(self, limit_s: float = 20.0) -> Report:
        """End the run; its report."""
        self._say("stop")
        report: Report = self._next("report", limit_s)["report"]
        code = self._running.wait(limit_s)
        assert code == 0, f"it ended with {code}:\n{self._end_of_log()}"
        return report
