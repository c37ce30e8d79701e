"""Servers for tests: RTSP, silent, refusing, a relay that can be frozen, HTTP with MJPEG."""

from __future__ import annotations

import base64
import contextlib
import http.server
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SYSTEM_PYTHON = "/usr/bin/python3"
_PROBE = "import gi; gi.require_version('GstRtspServer', '1.0'); gi.require_version('Gst', '1.0')"


def need_rtsp() -> None:
    """Skip the test, by name, where GStreamer's RTSP server is missing."""
    try:
        probe = subprocess.run([SYSTEM_PYTHON, "-c", _PROBE], capture_output=True, timeout=60)
    except OSError:
        pytest.skip(f"needs {SYSTEM_PYTHON}")
    if probe.returncode != 0:
        pytest.skip("needs Debian's gir1.2-gst-rtsp-server-1.0 and python3-gi")


class RtspServer:
    """GStreamer's RTSP server in a process of its own; a context manager.

    Args:
        clip: From ``clips.annexb``.
        fps: Of the clip.
        user, password, digest: Ask for a login.
        port: A free one if 0.
    """

    def __init__(
        self,
        clip: Path,
        fps: float = 30.0,
        user: str | None = None,
        password: str = "",
        digest: bool = False,
        port: int = 0,
    ) -> None:
        self._arguments = ["--clip", str(clip), "--fps", str(fps)]
        if user is not None:
            self._arguments += ["--user", user, f"--password={password}"]
        if digest:
            self._arguments.append("--digest")
        self.port = port
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self.port}/stream"

    def start(self) -> None:
        script = Path(__file__).with_name("rtsp_server.py")
        self._process = subprocess.Popen(
            [SYSTEM_PYTHON, str(script), *self._arguments, "--port", str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip():
            raise AssertionError("the RTSP server did not start")
        self.port = int(line)

    def kill(self) -> None:
        """As a power cut; ``start`` brings it back on the same port."""
        process = self._process
        if process is None:
            return
        self._process = None
        process.kill()
        process.wait(20.0)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> RtspServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Accepts every connection and says nothing. Yields its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        kept: list[socket.socket] = []
        server.settimeout(0.1)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    kept.append(server.accept()[0])

        thread = threading.Thread(target=accept, name="silent-server", daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join(5.0)
            for connection in kept:
                connection.close()


def refusing_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Relay:
    """A TCP relay that can be frozen (sockets stay open) or cut; a context manager."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._server.settimeout(0.1)
        self.port = int(self._server.getsockname()[1])
        self.frozen = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.connections = 0

    def cut(self) -> None:
        """Close all connections; new ones are taken."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client = self._server.accept()[0]
            except TimeoutError:
                continue
            try:
                target = socket.create_connection(("127.0.0.1", self._target_port), 5.0)
            except OSError:
                client.close()
                continue
            self.connections += 1
            with self._lock:
                self._sockets += [client, target]
            for a, b in ((client, target), (target, client)):
                thread = threading.Thread(target=self._carry, args=(a, b), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        source.settimeout(0.1)
        with contextlib.suppress(OSError), source:
            while not self._over.is_set():
                try:
                    data = source.recv(65536)
                except TimeoutError:
                    continue
                while self.frozen.is_set() and not self._over.is_set():
                    time.sleep(0.02)
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)

    def __enter__(self) -> Relay:
        thread = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._threads.append(thread)
        thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.cut()
        for thread in list(self._threads):
            thread.join(5.0)
        self._server.close()


@contextlib.contextmanager
def mjpeg_server(
    pictures: list[bytes],
    fps: float = 20.0,
    user: str | None = None,
    password: str = "",
    stop_after: int | None = None,
) -> Iterator[str]:
    """HTTP with ``multipart/x-mixed-replace``; after ``stop_after`` pictures the connection
    stays open and silent. Yields the URL."""
    over = threading.Event()
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if user is not None and self.headers.get("Authorization") != wanted:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="camera"')
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
            self.end_headers()
            sent = 0
            with contextlib.suppress(OSError):
                while not over.is_set():
                    if stop_after is not None and sent >= stop_after:
                        over.wait(0.1)
                        continue
                    body = pictures[sent % len(pictures)]
                    head = f"--next\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}"
                    self.wfile.write(head.encode() + b"\r\n\r\n" + body + b"\r\n")
                    sent += 1
                    over.wait(1.0 / fps)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/video"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join(5.0)


@contextlib.contextmanager
def tcp_stream(path: Path, seconds: float) -> Iterator[str]:
    """Sends a transport stream over plain TCP, spread evenly over ``seconds``, then hangs up.

    One client at a time, each from the beginning. Yields the URL.
    """
    data = path.read_bytes()
    over = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.1)

    def serve() -> None:
        while not over.is_set():
            try:
                client = server.accept()[0]
            except TimeoutError:
                continue
            with client, contextlib.suppress(OSError):
                began_s = time.monotonic()
                sent = 0
                while sent < len(data) and not over.wait(0.005):
                    due = round(len(data) * min(1.0, (time.monotonic() - began_s) / seconds))
                    due -= due % 188
                    due = len(data) if due + 188 > len(data) else due
                    client.sendall(data[sent:due])
                    sent = max(sent, due)

    thread = threading.Thread(target=serve, name="tcp-stream", daemon=True)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        over.set()
        thread.join(5.0)
        server.close()
