"""An RTSP server on plain sockets that answers as a test says, and keeps what it was asked.

::

    clip = rtp.coded(path)                              # H.264 or H.265
    with ScriptedRtsp(rtp.sdp_for(clip)) as server:
        server.on("OPTIONS", Answer(501), None)         # the first is refused, then as usual
        server.on_play = lambda one: one.play(clip)     # in real time, over and over
        ...                                             # a client of server.url
        server.wait_request("PLAY")
        server.connections[0].send(b"$garbage")

Everything runs on loopback; sockets and threads are gone when the ``with`` block is left.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.lab import rtp
from tests.lab.rtsp_login import Login
from tests.lab.rtsp_messages import SILENT, Answer, Request

__all__ = ["SILENT", "Answer", "Connection", "Request", "ScriptedRtsp"]

_METHODS = "OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, GET_PARAMETER, SET_PARAMETER, TEARDOWN"
Script = Answer | Callable[[Request, "Connection"], Answer | None] | None


class Connection:
    """One connection of a client. ``send``, ``play`` and the like may be called by any thread.

    Attributes:
        channels: Of RTP and RTCP, per track in the order of SETUP.
        received: Interleaved packets of the client (RTCP), channel and payload.
        over: Set when the connection is closed, by either side, or after TEARDOWN.
        silent: While it is set ``play`` sends nothing and lets the pictures pass.
        rtp_sent: How many interleaved RTP packets were sent by ``send_rtp``.
    """

    def __init__(self, server: ScriptedRtsp, index: int, peer: socket.socket) -> None:
        self.server = server
        self.index = index
        self.channels: list[tuple[int, int]] = []
        self.received: list[tuple[int, bytes]] = []
        self.over = threading.Event()
        self.silent = threading.Event()
        self.rtp_sent = 0
        self._peer = peer
        self._lock = threading.Lock()
        self._buffer = b""
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes, cuts: Iterable[int] = (), pause_s: float = 0.0) -> None:
        """Send bytes as they are, in separate writes at ``cuts``.

        Loopback may join writes that follow each other; ``pause_s`` between them keeps them
        apart for a client that reads quickly.

        Raises:
            OSError: the client has gone.
        """
        places = sorted({0, len(data), *(cut for cut in cuts if 0 < cut < len(data))})
        with self._lock:
            for start, end in itertools.pairwise(places):
                if start and pause_s:
                    self.over.wait(pause_s)
                self._peer.sendall(data[start:end])

    def send_rtp(self, packet: bytes, channel: int | None = None, cuts: Iterable[int] = ()) -> None:
        """One interleaved packet; by default on the RTP channel of the first track."""
        if channel is None:
            channel = self.channels[0][0] if self.channels else 0
        self.send(struct.pack("!BBH", 0x24, channel, len(packet)) + packet, cuts)
        self.rtp_sent += 1

    def send_rtcp(self, packet: bytes) -> None:
        """One interleaved packet on the RTCP channel of the first track."""
        channel = self.channels[0][1] if self.channels else 1
        self.send(struct.pack("!BBH", 0x24, channel, len(packet)) + packet)

    def wait(self, seconds: float) -> bool:
        """Wait as long as the connection stands; True if it is over."""
        return self.over.wait(max(0.0, seconds))

    def play(
        self,
        clip: rtp.Coded,
        packetiser: rtp.Packetiser | None = None,
        pictures: int | None = None,
        first_timestamp: int = 0xFFFF_0000,  # wraps after 0.7 s
        reports: bool = True,
        lose: Callable[[int], bool] = lambda packet: False,
        fps: float | None = None,
    ) -> int:
        """Send a clip in real time, over and over, until the connection is over.

        Args:
            clip: What to send.
            packetiser: As wanted; a usual one by default.
            pictures: Stop after so many, and leave the connection open.
            first_timestamp: Of the RTP clock.
            reports: Send an RTCP sender report every second.
            lose: Given the number of a packet: whether it is left out.
            fps: Another pace than the clip's; ``math.inf`` for as fast as the client reads.

        Returns:
            How many pictures were sent, or passed in silence.
        """
        packetiser = packetiser or rtp.Packetiser(clip.codec)
        began_s = time.monotonic()
        pace = (clip.fps / fps) if fps else 1.0
        loop_s = len(clip.units) / clip.fps
        sent = number = 0
        with contextlib.suppress(OSError):
            while pictures is None or sent < pictures:
                loop, index = divmod(sent, len(clip.units))
                due_s = began_s + pace * sent / clip.fps
                if self.wait(due_s - time.monotonic()):
                    break
                if self.silent.is_set():
                    sent += 1
                    continue
                stamp = first_timestamp + round((loop * loop_s + clip.pts_s[index]) * rtp.CLOCK_HZ)
                if reports and sent % max(1, round(clip.fps)) == 0:
                    self.send_rtcp(rtp.sender_report(time.time(), stamp, ssrc=packetiser.ssrc))
                for packet in packetiser.pack(clip.units[index], stamp):
                    if not lose(number):
                        self.send_rtp(packet)
                    number += 1
                sent += 1
        return sent

    def hang_up(self, reset: bool = False) -> None:
        """Close it now; ``reset``: with a RST, as a camera that loses power does."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            with contextlib.suppress(OSError):
                self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.over.set()
                self._peer.shutdown(socket.SHUT_RD)  # wakes the reader, which closes it
            return
        self.over.set()
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    # The connection's own thread.

    def serve(self) -> None:
        """Answer until either side closes. For ``ScriptedRtsp``."""
        try:
            with self._peer, contextlib.suppress(OSError):
                for request in self._requests():
                    self.server._answer(request, self)
        finally:
            self.over.set()
            self.server._changed()

    def _requests(self) -> Iterator[Request]:
        while self._fill(1):
            if self._buffer[:1] == b"$":
                if not self._fill(4):
                    return
                _, channel, length = struct.unpack("!BBH", self._buffer[:4])
                if not self._fill(4 + length):
                    return
                self.received.append((channel, self._buffer[4 : 4 + length]))
                self._buffer = self._buffer[4 + length :]
                self.server._changed()
                continue
            while b"\r\n\r\n" not in self._buffer:
                if not self._fill(len(self._buffer) + 1):
                    return
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            lines = head.decode("utf-8", "replace").lstrip("\r\n").split("\r\n")
            method, url, _ = (*lines[0].split(" ", 2), "", "")[:3]
            pairs = [line.partition(":") for line in lines[1:]]
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            length = int(headers.get("content-length", "0"))
            if not self._fill(length):
                return
            body, self._buffer = self._buffer[:length], self._buffer[length:]
            yield Request(method, url, headers, body, self.index, time.monotonic())

    def _fill(self, count: int) -> bool:
        """Read on until so many bytes are there; False if the client closed before."""
        while len(self._buffer) < count:
            data = self._peer.recv(65536)
            if not data:
                return False
            self._buffer += data
        return True


@dataclass
class ScriptedRtsp:
    """The server; a context manager. Its attributes may be changed at any time.

    Attributes:
        sdp: What DESCRIBE answers.
        login: Asked for at every request but OPTIONS; None: none.
        session: The session's id.
        session_timeout_s: Told with SETUP; None: not told.
        on_play: Called in a thread of its own after PLAY was answered, with the connection.
        requests: All that was asked, in order, of all connections.
        connections: In the order in which they came.
        errors: Exceptions of ``on_play`` and of scripts; leaving the block raises the first.
        port: Bound at once, so that the URL is known before the server starts.
    """

    sdp: str = ""
    login: Login | None = None
    session: str = "lab-4711"
    session_timeout_s: int | None = 60
    on_play: Callable[[Connection], object] | None = None
    requests: list[Request] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scripts: dict[str, deque[Script]] = {}
        self._threads: list[threading.Thread] = []
        self._condition = threading.Condition()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self.port}/stream"

    def on(self, method: str, *scripts: Script) -> None:
        """What to answer to this method: one script a request, the last for ever.

        A script is an ``Answer``, a function of request and connection that returns one, or
        None (also as the function's result): as usual, login included.
        """
        self._scripts[method] = deque(scripts or (None,))

    def usual(self, request: Request, connection: Connection) -> Answer:
        """What a well-behaved server answers; to be altered with ``dataclasses.replace``."""
        method = request.method
        login = self.login
        if login is not None and method != "OPTIONS":
            if not login.accepts(request.headers.get("authorization"), method):
                return Answer(401, [("WWW-Authenticate", one) for one in login.challenges()])
        session = ("Session", self.session)
        if method == "OPTIONS":
            return Answer(headers=[("Public", _METHODS)])
        if method == "DESCRIBE":
            base = request.url.rstrip("/") + "/"
            kind = ("Content-Type", "application/sdp")
            return Answer(headers=[("Content-Base", base), kind], body=self.sdp.encode())
        if method == "SETUP":
            return self._usual_setup(request, connection)
        if method == "PLAY":
            return Answer(headers=[session, ("Range", "npt=0.000-")])
        if method in ("GET_PARAMETER", "SET_PARAMETER", "PAUSE", "TEARDOWN"):
            return Answer(headers=[session])
        return Answer(501)

    def _usual_setup(self, request: Request, connection: Connection) -> Answer:
        for transport in request.headers.get("transport", "").split(","):
            if "/TCP" not in transport.upper():
                continue
            first = 2 * len(connection.channels)
            pair = (first, first + 1)
            for part in transport.split(";"):
                name, _, value = part.strip().partition("=")
                if name.lower() == "interleaved":
                    low, _, high = value.partition("-")
                    pair = (int(low), int(high or int(low) + 1))
            connection.channels.append(pair)
            timeout_s = self.session_timeout_s
            session = self.session + (f";timeout={timeout_s}" if timeout_s is not None else "")
            told = f"RTP/AVP/TCP;unicast;interleaved={pair[0]}-{pair[1]};ssrc=1234ABCD"
            return Answer(headers=[("Transport", told), ("Session", session)])
        return Answer(461)

    def asked(self, method: str) -> list[Request]:
        """All requests of this method so far."""
        with self._condition:
            return [one for one in self.requests if one.method == method]

    def wait(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Until the condition holds; looked at whenever a client does something."""
        with self._condition:
            until_s = time.monotonic() + timeout_s
            while not condition():
                left_s = until_s - time.monotonic()
                if left_s <= 0.0:
                    asked = [one.method for one in self.requests]
                    raise AssertionError(f"not within {timeout_s} s; asked: {asked}")
                self._condition.wait(min(0.1, left_s))

    def wait_request(self, method: str, count: int = 1, timeout_s: float = 20.0) -> Request:
        """Until it was asked so often; returns the last of these."""
        self.wait(lambda: len(self.asked(method)) >= count, timeout_s)
        return self.asked(method)[count - 1]

    def __enter__(self) -> ScriptedRtsp:
        self._start(self._accept, "scripted-rtsp")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for connection in list(self.connections):
            connection.hang_up()
        while self._threads:  # a thread may still start another
            thread = self._threads.pop()
            thread.join(10.0)
            assert not thread.is_alive(), f"{thread.name} did not end"
        self._listener.close()
        if kind is None and self.errors:
            raise self.errors[0]

    def _start(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                peer = self._listener.accept()[0]
            except OSError:
                return
            connection = Connection(self, len(self.connections), peer)
            with self._condition:
                self.connections.append(connection)
                self._condition.notify_all()
            if self._over.is_set():
                connection.hang_up()
            self._start(connection.serve, f"scripted-rtsp-{connection.index}")

    def _changed(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _answer(self, request: Request, connection: Connection) -> None:
        with self._condition:
            self.requests.append(request)
            self._condition.notify_all()
        scripts = self._scripts.get(request.method, deque([None]))
        script = scripts.popleft() if len(scripts) > 1 else scripts[0]
        try:
            answer = script(request, connection) if callable(script) else script
        except Exception as error:
            self.errors.append(error)
            connection.hang_up()
            return
        answer = answer or self.usual(request, connection)
        if request.method == "TEARDOWN":
            connection.over.set()
        if not answer.silent:
            connection.send(answer.to_bytes(request), answer.cuts, pause_s=0.002)
        if answer.hang_up:
            connection.hang_up()
        if request.method == "PLAY" and answer.status == 200 and self.on_play is not None:
            self._start(lambda: self._play(connection), f"scripted-rtsp-play-{connection.index}")

    def _play(self, connection: Connection) -> None:
        if self.on_play is None:
            return
        try:
            self.on_play(connection)
        except OSError:
            pass  # the client has gone
        except Exception as error:
            self.errors.append(error)
