"""HTTP cameras on loopback: MJPEG, a live transport stream, and refusals."""

from __future__ import annotations

import base64
import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.lab.tcp_servers import send_paced


@dataclass
class HttpRequests:
    """What an HTTP server was asked.

    Attributes:
        url: To ask for.
        paths: Of all requests, in order.
        logins: What stood in ``Authorization`` of those that had one, in order.
    """

    url: str
    paths: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)


Respond = Callable[[http.server.BaseHTTPRequestHandler, threading.Event], None]


@contextlib.contextmanager
def http_server(respond: Respond, path: str = "/video") -> Iterator[HttpRequests]:
    """``respond`` answers each GET, in a thread of its own; it returns when the event is set."""
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 2.0  # a client that does not read must not hold the end up

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.paths.append(self.path)
            asked.logins += self.headers.get_all("Authorization", [])
            with contextlib.suppress(OSError):
                respond(self, over)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = False  # so that ``server_close`` waits for them

        def handle_error(self, *_: object) -> None:
            pass  # a client that went away while it was answered

    server = Server(("127.0.0.1", 0), Handler)
    asked = HttpRequests(f"http://127.0.0.1:{server.server_port}{path}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="http", daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join(5.0)


@contextlib.contextmanager
def mjpeg_server(
    pictures: list[bytes],
    fps: float = 20.0,
    user: str | None = None,
    password: str = "",
    stop_after: int | None = None,
    then: Literal["silence", "close"] = "silence",
) -> Iterator[str]:
    """HTTP with ``multipart/x-mixed-replace``; after ``stop_after`` pictures the connection
    stays open and silent, or is closed. Yields the URL."""
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def respond(handler: http.server.BaseHTTPRequestHandler, over: threading.Event) -> None:
        if user is not None and handler.headers.get("Authorization") != wanted:
            handler.send_response(401)
            handler.send_header("WWW-Authenticate", 'Basic realm="camera"')
            handler.end_headers()
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
        handler.end_headers()
        sent = 0
        while not over.is_set():
            if stop_after is not None and sent >= stop_after:
                if then == "close":
                    return
                over.wait()
                return
            body = pictures[sent % len(pictures)]
            head = f"--next\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}"
            handler.wfile.write(head.encode() + b"\r\n\r\n" + body + b"\r\n")
            sent += 1
            over.wait(1.0 / fps)

    with http_server(respond) as asked:
        yield asked.url


@contextlib.contextmanager
def http_status(status: int, location: str = "") -> Iterator[HttpRequests]:
    """Answers every request with this status; with ``location`` for 301 and its like."""

    def respond(handler: http.server.BaseHTTPRequestHandler, _over: threading.Event) -> None:
        handler.send_response(status)
        if status == 401:
            handler.send_header("WWW-Authenticate", 'Basic realm="camera"')
        if location:
            handler.send_header("Location", location)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with http_server(respond) as asked:
        yield asked


@contextlib.contextmanager
def mpegts_server(
    clip: Path, seconds: float, then: Literal["silence", "close"] = "silence"
) -> Iterator[HttpRequests]:
    """A transport stream over HTTP without a length, in real time, as an encoder sends it.

    Args:
        clip: The transport stream.
        seconds: How long it lasts.
        then: What happens at its end: the connection stays open and silent, or is closed.
    """
    data = clip.read_bytes()

    def respond(handler: http.server.BaseHTTPRequestHandler, over: threading.Event) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "video/mp2t")
        handler.end_headers()
        handler.wfile.flush()
        send_paced(handler.connection, data, seconds, over)
        if then == "silence":
            over.wait()

    with http_server(respond, "/live.ts") as asked:
        yield asked
