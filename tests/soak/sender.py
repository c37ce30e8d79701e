"""Serves transport streams over plain TCP at their pace, and knows when it sent each picture.

In a thread (``Sender``), or in a process of its own (``SenderProcess``), so that the good
cameras' server does not share an interpreter with those in trouble.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import heapq
import json
import select
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.running import ROOT
from tests.soak.streams import Stream, cut

_MOST_WAITING = 2_000_000  # bytes; a client that takes nothing for so long is hung up on
_WAKE_S = 0.1


@dataclass(slots=True, eq=False)
class _Client:
    socket: socket.socket
    since_s: float
    waiting: bytearray = field(default_factory=bytearray)
    joined: bool = False  # it was sent the first key picture


class Channel:
    """One camera: its port, and what goes wrong with each of its connections.

    Args:
        stream: Played from the start of the sender on, over and over.
        close_after_s: Hang up on each client after so long; None: never.
        freeze_after_s: Send nothing more to a client after so long; None: never.
        phase_s: Its pictures are due this much later than those of a channel at 0.
        port: A free one if 0.
    """

    def __init__(
        self,
        stream: Stream,
        close_after_s: float | None = None,
        freeze_after_s: float | None = None,
        phase_s: float = 0.0,
        port: int = 0,
    ) -> None:
        self.stream = stream
        self.phase_s = phase_s
        self.server = socket.create_server(("127.0.0.1", port), backlog=64)
        self.server.setblocking(False)
        self.port = int(self.server.getsockname()[1])
        self.sent_s: list[float] = []  # when a picture went to at least one client
        self._close_after_s = close_after_s
        self._freeze_after_s = freeze_after_s
        self._clients: list[_Client] = []

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def sent_between(self, begin_s: float, end_s: float) -> int:
        """Pictures that were sent from ``begin_s`` (monotonic) until before ``end_s``."""
        moments_s = self.sent_s
        return bisect.bisect_left(moments_s, end_s) - bisect.bisect_left(moments_s, begin_s)

    def accept(self, now_s: float) -> None:
        """Take those who knock."""
        with contextlib.suppress(BlockingIOError):
            while True:
                client = self.server.accept()[0]
                client.setblocking(False)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._clients.append(_Client(client, now_s))

    def send(self, index: int, now_s: float) -> None:
        """The next picture, to everybody who may have it."""
        number = index % len(self.stream.pictures)
        picture, key = self.stream.pictures[number], number in self.stream.keys
        reached = False
        for client in list(self._clients):
            passed_s = now_s - client.since_s
            if self._close_after_s is not None and passed_s >= self._close_after_s:
                self._hang_up(client)
                continue
            if self._freeze_after_s is not None and passed_s >= self._freeze_after_s:
                continue
            client.joined = client.joined or key
            if client.joined:
                reached = self._write(client, picture) or reached
        if reached:
            self.sent_s.append(now_s)

    def _write(self, client: _Client, data: bytes) -> bool:
        client.waiting += data
        try:
            taken = client.socket.send(client.waiting)
        except BlockingIOError:
            taken = 0
        except OSError:
            self._hang_up(client)
            return False
        del client.waiting[:taken]
        if len(client.waiting) > _MOST_WAITING:
            self._hang_up(client)
        return True

    def _hang_up(self, client: _Client) -> None:
        self._clients.remove(client)
        client.socket.close()

    def close(self) -> None:
        """Hang up on all."""
        for client in list(self._clients):
            self._hang_up(client)
        self.server.close()


class Sender:
    """Plays any number of channels in one thread; a context manager."""

    def __init__(self, channels: list[Channel]) -> None:
        self.channels = channels
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.play, name="sender", daemon=True)

    def play(self) -> None:
        """Until told to end."""
        begun_s = time.monotonic()
        due = [(begun_s + one.phase_s, at, 0) for at, one in enumerate(self.channels)]
        heapq.heapify(due)
        servers = {one.server: one for one in self.channels}
        while not self._over.is_set():
            when_s, at, index = due[0]
            wait_s = when_s - time.monotonic()
            if wait_s > 0:
                # Nobody has to be let in at once: a wait without them is one call.
                knocking, _, _ = select.select(list(servers), [], [], min(wait_s, _WAKE_S))
                for server in knocking:
                    servers[server].accept(time.monotonic())
                continue
            self.channels[at].send(index, time.monotonic())
            channel = self.channels[at]
            next_s = begun_s + channel.phase_s + (index + 1) / channel.stream.fps
            heapq.heapreplace(due, (next_s, at, index + 1))
        for channel in self.channels:
            channel.close()

    def end(self) -> None:
        """Ask the thread to end. Any thread."""
        self._over.set()

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.join(10.0)


class SenderProcess:
    """``count`` good channels of one stream in a process of its own; a context manager."""

    def __init__(self, clip: Path, fps: float, count: int) -> None:
        self._arguments = [str(clip), "--fps", str(fps), "--count", str(count)]
        self._process: subprocess.Popen[str] | None = None
        self.ports: list[int] = []

    @property
    def urls(self) -> list[str]:
        return [f"tcp://127.0.0.1:{port}" for port in self.ports]

    def __enter__(self) -> SenderProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.sender", *self._arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ports = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        process.kill()
        process.wait(20.0)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def sent_between(self, begin_s: float, end_s: float) -> list[int]:
        """For each channel, as ``Channel.sent_between``; the clock is that of the machine."""
        process = self._process
        assert process is not None and process.stdin is not None
        process.stdin.write(f"{begin_s} {end_s}\n")
        process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[int]:
        process = self._process
        assert process is not None and process.stdout is not None
        line = process.stdout.readline()
        assert line, "the sender ended"
        numbers: list[int] = json.loads(line)
        return numbers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("clip", type=Path)
    parser.add_argument("--fps", type=float, required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    stream = cut(options.clip.read_bytes(), options.fps)
    channels = [
        Channel(stream, phase_s=at / options.count / options.fps) for at in range(options.count)
    ]

    def say(numbers: list[int]) -> None:
        sys.stdout.write(json.dumps(numbers) + "\n")
        sys.stdout.flush()

    with Sender(channels):
        say([one.port for one in channels])
        for line in sys.stdin:
            begin_s, end_s = map(float, line.split())
            say([one.sent_between(begin_s, end_s) for one in channels])


if __name__ == "__main__":
    main()
