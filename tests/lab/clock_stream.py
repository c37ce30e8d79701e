"""A live stream with a clock in its pictures, and a process that reads it and tells their age."""

from __future__ import annotations

import contextlib
import io
import queue
import socket
import subprocess
import sys
import threading
import time
from fractions import Fraction
from typing import NamedTuple

import av
import numpy as np
from av.video.stream import VideoStream

from tests.lab import clock_picture
from tests.lab.sink import CollectingSink, running
from vidserve.capture.camera import CameraSettings
from vidserve.frames import ByteArray, DropReason, Frame

WIDTH, HEIGHT, FPS = 320, 180, 30
_WRAP_S = 2**32 / 1000


class ClockStream:
    """A camera that draws the time, encodes, and sends over plain TCP to one client at a time.

    It never waits for its client: what cannot be sent yet is kept and sent later, as a network
    or a camera with a large buffer would. A context manager.

    Args:
        container: ``mpegts``, or ``h264`` for a stream without timestamps.
    """

    def __init__(self, container: str = "mpegts") -> None:
        self._container = container
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(0.1)
        self.url = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.frozen = threading.Event()  # it goes on, but nothing arrives
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._serve, name="clock-stream", daemon=True)]

    def _serve(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                client = self._server.accept()[0]
                parts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
                gone = threading.Event()
                film = threading.Thread(target=self._film, args=(parts, gone), daemon=True)
                film.start()
                with client:
                    client.settimeout(1.0)
                    self._send(client, parts)
                gone.set()
                film.join(5.0)

    def _film(self, parts: queue.SimpleQueue[bytes], gone: threading.Event) -> None:
        memory = io.BytesIO()
        with av.open(memory, "w", format=self._container, buffer_size=188 * 7) as output:
            options = {"preset": "ultrafast", "tune": "zerolatency", "g": "30", "crf": "20"}
            stream = output.add_stream("libx264", rate=FPS, options=options)
            assert isinstance(stream, VideoStream)
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            stream.codec_context.thread_count = 1
            began_s = time.monotonic()
            number = 0
            while not gone.wait(max(0.0, began_s + number / FPS - time.monotonic())):
                if self._over.is_set():
                    return
                now_s = time.monotonic()
                planes = np.frombuffer(
                    clock_picture.draw(WIDTH, HEIGHT, now_s, number), np.uint8
                ).reshape(HEIGHT * 3 // 2, WIDTH)
                frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
                frame.pts, frame.time_base = number, Fraction(1, FPS)
                output.mux(stream.encode(frame))
                parts.put(memory.getvalue())
                memory.seek(0)
                memory.truncate()
                number += 1

    def _send(self, client: socket.socket, parts: queue.SimpleQueue[bytes]) -> None:
        while not self._over.is_set():
            try:
                view = memoryview(parts.get(timeout=0.1))
            except queue.Empty:
                continue
            while view and not self._over.is_set():
                if self.frozen.is_set():
                    time.sleep(0.005)
                    continue
                with contextlib.suppress(TimeoutError):
                    view = view[client.send(view) :]

    def __enter__(self) -> ClockStream:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(5.0)
        self._server.close()


class Shown(NamedTuple):
    """A picture that was answered: when (monotonic), and how old it truly was then, seconds."""

    ready_s: float
    age_s: float


class ReaderProcess:
    """Reads a clock stream as a camera of the daemon does, in a process of its own.

    A context manager; ``ask`` makes trouble in it, ``finish`` ends it.
    """

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.clock_stream", url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self.shown: list[Shown] = []
        self.accounts: dict[str, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *rest = line.split()
            if word == "shown":
                self.shown.append(Shown(*map(float, rest)))
            else:
                self.accounts[word] = int(rest[0])

    def ask(self, what: str, seconds: float) -> None:
        """``slow``: each picture takes 100 ms; ``hog``: a thread keeps the interpreter lock."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {seconds}\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(20.0) == 0
        self._listener.join(5.0)

    def __enter__(self) -> ReaderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(20.0)
        self._listener.join(5.0)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class _ClockSink(CollectingSink):
    """Reads the clock of every picture, and is slow when asked to."""

    def __init__(self) -> None:
        super().__init__(keyframe_every=1)
        self.slow_until_s = 0.0
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def frame(self, frame: Frame) -> None:
        drawn_s = None if frame.slot is None else read_clock(frame.slot.pixels)
        super().frame(frame)
        if drawn_s is not None:
            age_s = (frame.ready_s - drawn_s) % _WRAP_S
            self.lines.put(f"shown {frame.ready_s} {age_s}")
        if time.monotonic() < self.slow_until_s:
            time.sleep(0.1)


def read_clock(pixels: ByteArray) -> float | None:
    """From a slot of 192 x 320 RGB with a picture of 320 x 180 in it."""
    top = (pixels.shape[0] - HEIGHT) // 2
    return clock_picture.read(pixels[top : top + HEIGHT, :, 1].tolist())


def _hog(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        sum(range(1000))


def _main() -> None:
    sink = _ClockSink()
    settings = CameraSettings("c", sys.argv[1], stall_s=8.0)
    over = threading.Event()

    def tell() -> None:
        while not over.is_set() or not sink.lines.empty():
            with contextlib.suppress(queue.Empty):
                sys.stdout.write(sink.lines.get(timeout=0.1) + "\n")
                sys.stdout.flush()

    teller = threading.Thread(target=tell)
    teller.start()
    with running(sink, settings):
        for line in sys.stdin:
            what, seconds = line.split()
            if what == "slow":
                sink.slow_until_s = time.monotonic() + float(seconds)
            else:
                threading.Thread(target=_hog, args=(float(seconds),), daemon=True).start()
    sink.check_accounts("c")
    stale = sum(count for _, _, reason, count in sink.drops if reason is DropReason.STALE)
    sink.lines.put(f"frames {len(sink.frames)}")
    sink.lines.put(f"stale {stale}")
    sink.lines.put(f"dropped {sum(drop[3] for drop in sink.drops)}")
    sink.lines.put(f"last {sink.frames[-1].seq}")
    sink.lines.put(f"connections {len(sink.statuses)}")
    over.set()
    teller.join()


if __name__ == "__main__":
    _main()
