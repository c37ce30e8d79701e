"""The file output: one JSON line for each answer and each event, for those without a broker."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

from vidserve.clock import Clock
from vidserve.errors import OutputError
from vidserve.publishing.outbox import Outbox, OutboxDrop, OutboxLimits
from vidserve.publishing.output import Message, OutputStats

log = logging.getLogger(__name__)

_WRITE_EVERY_S = 0.25
_RETRY_S = 1.0
_CHUNK = 500  # messages in one write
_LINES = ("detections", "events")  # last topic levels that are written


class JsonlOutput:
    """An ``Output`` that appends to a file. Topics that end in ``detections`` or ``events`` only.

    The thread ``jsonl`` writes four times a second, straight to the operating system, so nothing
    is lost when the process dies. When a write fails (disk full) those lines are counted as
    ``write_failed``, the file is opened again and tried once a second; meanwhile the outbox
    drops the oldest. A line that was cut by a failed write is ended before the next one.

    Args:
        path: Of the file; made if it is not there, its folder is not.
        clock: Monotonic time.
        limits: Of the outbox.
    """

    def __init__(self, path: Path, clock: Clock, limits: OutboxLimits | None = None) -> None:
        self._path = path
        self._clock = clock
        self._limits = limits or OutboxLimits()
        self._outbox = Outbox(self._limits)
        self._thread: threading.Thread | None = None
        self._due = threading.Event()  # more waits than should until the next round
        self._stop = threading.Event()
        self._stop_deadline_s = 0.0
        self._fd: int | None = None
        self._in_line = False  # the file ends in the middle of a line
        self._reason = "not started"
        self._reopened = 0

    @property
    def name(self) -> str:
        return "jsonl"

    def start(self) -> None:
        """Open the file and start the thread.

        Raises:
            OutputError: the file cannot be written; says what to do.
        """
        if self._thread is not None:
            raise RuntimeError("an output is started once")
        try:
            self._open()
        except OSError as error:
            raise OutputError(f"outputs: jsonl: {self._path}: {_advice(error, self._path)}") from (
                error
            )
        self._reason = ""
        self._thread = threading.Thread(target=self._run, name="jsonl", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Queue a message; a few microseconds, whatever the disk does. Any thread."""
        if message.topic.rpartition("/")[2] not in _LINES:
            return
        waiting = self._outbox.put(message)
        if waiting == self._limits.messages // 4:
            self._due.set()

    def stop(self, flush_s: float) -> None:
        """Write what waits and close the file, within ``flush_s``."""
        self._stop_deadline_s = self._clock.now() + flush_s
        self._stop.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(flush_s + 1.0)  # more only where a write hangs (a dead disk)
        self._outbox.abandon()
        self._reason = self._reason or "stopped"

    def stats(self) -> OutputStats:
        """Frozen counters; ``connected`` is whether the last write worked. Any thread."""
        counts = self._outbox.counts()
        reason = self._reason
        thread = self._thread
        if thread is not None and not thread.is_alive() and not self._stop.is_set():
            reason = "the thread of this output has died"
        return OutputStats(
            connected=not reason,
            published=counts.sent,
            dropped=counts.dropped,
            reconnects=self._reopened,
            outbox_peak=counts.peak,
            reason=reason,
            put=counts.put,
            coalesced=counts.coalesced,
            waiting=counts.waiting + counts.in_hand,
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._fd is not None:
                self._due.wait(_WRITE_EVERY_S)
            else:
                self._stop.wait(_RETRY_S)
            self._due.clear()
            self._write_waiting()
        while len(self._outbox) and self._clock.now() < self._stop_deadline_s:
            if not self._write_waiting():
                break
        self._close()

    def _write_waiting(self) -> bool:
        """Write all that waits. Returns False if the file does not take it."""
        while chunk := self._take_chunk():
            written, failure = self._write(b"".join(m.payload + b"\n" for m in chunk))
            for message in chunk:
                written -= len(message.payload) + 1
                if written >= 0:
                    self._outbox.sent(message)
                else:
                    self._outbox.lost(message, OutboxDrop.WRITE_FAILED)
            self._tell(failure)
            if failure:
                self._close()
                return False
        return True

    def _take_chunk(self) -> list[Message]:
        chunk: list[Message] = []
        while len(chunk) < _CHUNK and (message := self._outbox.take()) is not None:
            chunk.append(message)
        return chunk

    def _write(self, data: bytes) -> tuple[int, str]:
        """Append ``data``, opening the file if need be.

        Returns:
            How many bytes the file took, and why not all; empty if it did.
        """
        written = 0
        try:
            if self._fd is None:
                self._open()
                self._reopened += 1
            assert self._fd is not None
            if self._in_line:
                os.write(self._fd, b"\n")
                self._in_line = False
            while written < len(data):
                # Takes less than asked for when the disk is about full; the next call says why.
                written += os.write(self._fd, data[written:] if written else data)
        except OSError as error:
            if written:
                self._in_line = not data[:written].endswith(b"\n")
            return written, _advice(error, self._path)
        return written, ""

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        # O_NONBLOCK: a named pipe without a reader is an error then, and does not block us.
        self._fd = os.open(self._path, flags | os.O_NONBLOCK, 0o644)

    def _close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _tell(self, reason: str) -> None:
        for drop in self._outbox.new_reasons():
            log.warning("jsonl: lines are dropped (%s): %s", drop.value, drop.sentence)
        if reason == self._reason:
            return
        self._reason = reason
        if reason:
            log.warning("jsonl: %s: %s; retrying once a second", self._path, reason)
        else:
            log.info("jsonl: %s: writing again", self._path)


def _advice(error: OSError, path: Path) -> str:
    """What is wrong and, where we know it, what to do."""
    if error.errno == errno.ENOENT:
        return f"the folder {path.parent} does not exist; make it, or name another one"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission to write ({error.strerror}); the daemon's user needs it"
    if error.errno == errno.EISDIR:
        return "this is a folder; name a file in it"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error.strerror}); make room"
    if error.errno == errno.ENXIO:
        return "this is a pipe that nobody reads; start its reader first"
    return error.strerror or str(error)
