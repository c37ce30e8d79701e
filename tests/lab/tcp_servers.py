"""Plain TCP on loopback: servers that are silent, babble or refuse, and a relay."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Handler = Callable[[socket.socket, threading.Event], None]
_LOOK_S = 0.1  # how often a thread looks whether all is over


@contextlib.contextmanager
def serving(handler: Handler, name: str) -> Iterator[int]:
    """Run ``handler`` for each connection, in a thread of its own; yields the port.

    A handler gets the socket, with a short time-out, and an event that is set when all is over;
    its socket is closed when it returns.
    """
    over = threading.Event()
    threads: list[threading.Thread] = []

    def handle(client: socket.socket) -> None:
        client.settimeout(_LOOK_S)
        with client, contextlib.suppress(OSError):
            handler(client, over)

    def accept() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                client = server.accept()[0]
                thread = threading.Thread(target=handle, args=(client,), name=name, daemon=True)
                threads.append(thread)
                thread.start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.settimeout(_LOOK_S)
        accepting = threading.Thread(target=accept, name=name, daemon=True)
        accepting.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            over.set()
            accepting.join(5.0)
            for thread in threads:
                thread.join(5.0)
                assert not thread.is_alive(), f"{name} did not end"


def send_all(client: socket.socket, data: bytes, over: threading.Event) -> bool:
    """Send to a client that may read slowly or not at all; False if all is over."""
    view = memoryview(data)
    while view and not over.is_set():
        with contextlib.suppress(TimeoutError):
            view = view[client.send(view) :]
    return not over.is_set()


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Accepts every connection and says nothing. Yields its port."""

    def handle(client: socket.socket, over: threading.Event) -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                if not client.recv(65536):
                    return

    with serving(handle, "silent-server") as port:
        yield port


@contextlib.contextmanager
def babbling_server(head: bytes = b"", block: bytes | None = None) -> Iterator[int]:
    """Sends ``head`` and then ``block`` for ever, whatever it is asked; yields its port.

    By default it is noise. About 6 MB/s, so that it does not take the whole machine.
    """
    noise = block if block is not None else random.Random(1).randbytes(65536)

    def handle(client: socket.socket, over: threading.Event) -> None:
        going = send_all(client, head, over)
        while going and not over.wait(0.01):
            going = send_all(client, noise, over)

    with serving(handle, "babbling-server") as port:
        yield port


@contextlib.contextmanager
def endless_header_server(scheme: str = "RTSP") -> Iterator[int]:
    """Begins an answer with a header line that never ends; yields its port."""
    with babbling_server(f"{scheme}/1.0 200 OK\r\nServer: ".encode(), b"x" * 65536) as port:
        yield port


@contextlib.contextmanager
def endless_headers_server(scheme: str = "RTSP") -> Iterator[int]:
    """Begins an answer with header lines that never end; yields its port."""
    lines = b"X-Camera: 1\r\n" * 4096
    with babbling_server(f"{scheme}/1.0 200 OK\r\nCSeq: 1\r\n".encode(), lines) as port:
        yield port


@contextlib.contextmanager
def hanging_up_server() -> Iterator[int]:
    """Accepts every connection and closes it at once. Yields its port."""
    with serving(lambda _client, _over: None, "hanging-up-server") as port:
        yield port


def refusing_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def tcp_stream(path: Path, seconds: float) -> Iterator[str]:
    """Sends a transport stream over plain TCP, spread evenly over ``seconds``, then hangs up.

    Each client from the beginning. Yields the URL.
    """
    data = path.read_bytes()

    def handle(client: socket.socket, over: threading.Event) -> None:
        send_paced(client, data, seconds, over)

    with serving(handle, "tcp-stream") as port:
        yield f"tcp://127.0.0.1:{port}"


def send_paced(
    client: socket.socket, data: bytes, seconds: float, over: threading.Event, step: int = 188
) -> None:
    """Send ``data`` spread evenly over ``seconds``, in whole steps of so many bytes."""
    began_s = time.monotonic()
    sent = 0
    while sent < len(data) and not over.wait(0.005):
        due = round(len(data) * min(1.0, (time.monotonic() - began_s) / seconds))
        due -= due % step
        due = len(data) if due + step > len(data) else due
        send_all(client, data[sent:due], over)
        sent = max(sent, due)


class Relay:
    """A TCP relay that can be frozen (sockets stay open) or cut; a context manager.

    Attributes:
        port: To connect to.
        frozen: While it is set nothing is carried.
        connections: How many came through.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._server.settimeout(_LOOK_S)
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
        source.settimeout(_LOOK_S)
        with contextlib.suppress(OSError), source:
            while not self._over.is_set():
                try:
                    data = source.recv(65536)
                except TimeoutError:
                    continue
                while self.frozen.is_set() and not self._over.wait(0.02):
                    pass
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
