"""One TCP connection to an RTSP server: requests, answers, and the packets between them.

Belongs to the capture thread; only ``abort`` is for others.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from vidserve import __version__
from vidserve.capture import failures
from vidserve.capture.rtsp.login import Login
from vidserve.capture.rtsp.wire import Message, Packet, Splitter
from vidserve.clock import Clock
from vidserve.errors import SourceSilent, SourceUnreachable

logger = logging.getLogger(__name__)

AGENT = f"vidserve/{__version__}"
_LONGEST_WAIT_S = 0.5
_LOOK_S = 0.2  # how often a connection that is being made looks whether it is still wanted


class Socket(Protocol):
    """What is used of a socket."""

    def settimeout(self, value: float | None, /) -> None: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def sendall(self, data: bytes, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


Connect = Callable[[str, int, float, Clock, threading.Event], Socket]
"""Host, port, seconds that it may take, clock, stop -> a connected socket. Raises OSError."""


def connect_tcp(
    host: str, port: int, limit_s: float, clock: Clock, aborted: threading.Event
) -> Socket:
    """The first address that takes the connection; all of them within ``limit_s``.

    The name server keeps its own time: the supervisor of the camera looks after that.

    Raises:
        OSError: of the last address; TimeoutError also if ``aborted`` was set meanwhile.
    """
    until_s = clock.now() + limit_s
    error: OSError = TimeoutError("timed out")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        # One that answers nothing must leave time for those after it.
        share_until_s = clock.now() + (until_s - clock.now()) / (len(found) - number)
        try:
            one = socket.socket(family, kind, protocol)
        except OSError as failure:  # IPv6 is switched off
            error = failure
            continue
        try:
            one.setblocking(False)
            code = one.connect_ex(address)
            writable = select.poll()
            writable.register(one, select.POLLOUT)
            while code == errno.EINPROGRESS:
                left_s = share_until_s - clock.now()
                if left_s <= 0.0 or aborted.is_set():
                    raise TimeoutError("timed out")
                if writable.poll(1000 * min(left_s, _LOOK_S)):
                    code = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as failure:
            one.close()
            error = failure
            continue
        return one
    raise error


class Received(NamedTuple):
    """Packets and answers that came at one moment.

    Attributes:
        when_s: Monotonic time.
        waited_s: How long that was waited for.
    """

    when_s: float
    waited_s: float


class Connection:
    """A connected server.

    Args:
        host, port: Of the server.
        until_s: The connection has to stand by then (monotonic).
        limit_s: How long that is, for people.
        login: Answers to what the server asks; kept over redirects.
        clock: Tells the time.
        connect: Makes the socket.
        aborted: Set by another thread: no more waiting.
    """

    def __init__(
        self,
        host: str,
        port: int,
        until_s: float,
        limit_s: float,
        login: Login,
        clock: Clock,
        connect: Connect,
        aborted: threading.Event,
    ) -> None:
        self.host = host
        self.place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._sending = False
        self._clock = clock
        self._limit_s = limit_s
        self._login = login
        self._aborted = aborted
        self._sequence = 0
        self.session = ""
        self.splitter = Splitter()
        self.latest = Received(clock.now(), 0.0)
        self._timeout_s = -1.0
        try:
            self._socket = connect(host, port, max(0.001, until_s - clock.now()), clock, aborted)
        except ConnectionRefusedError:
            raise failures.refused(self.place) from None
        except TimeoutError:
            raise failures.silent(self.place, limit_s) from None
        except (socket.gaierror, UnicodeError):
            raise failures.no_such_host(host) from None
        except OSError as error:
            raise failures.no_way(self.place, error.strerror or str(error)) from None

    def abort(self) -> None:
        """Wake the thread that waits for the server; it can still say good-bye. Any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR if self._sending else socket.SHUT_RD)

    def close(self) -> None:
        """Free the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        limit_s: float | None = None,
    ) -> None:
        """Send a request without waiting for its answer."""
        self._sequence += 1
        lines = [f"{method} {url} RTSP/1.0", f"CSeq: {self._sequence}", f"User-Agent: {AGENT}"]
        if self.session:
            lines.append(f"Session: {self.session}")
        authorization = self._login.header(method, url)
        if authorization is not None:
            lines.append(f"Authorization: {authorization}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send_bytes(
            ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape"), limit_s
        )

    def send_bytes(self, data: bytes, limit_s: float | None = None) -> None:
        """Send as it is.

        Raises:
            SourceSilent: the server does not take it.
            SourceUnreachable: it is gone.
        """
        try:
            self._set_timeout(self._limit_s if limit_s is None else limit_s)
            self._sending = True
            self._socket.sendall(data)
        except TimeoutError:
            raise failures.silent(self.place, self._limit_s) from None
        except OSError as error:
            raise self._lost(error) from None
        finally:
            self._sending = False

    def answer(self, until_s: float, keep: Callable[[Packet], None] | None = None) -> Message:
        """Wait for the answer to the one request that is open.

        Its number is not looked at: there are cameras that send back a wrong one.

        Args:
            until_s: It has to come by then (monotonic).
            keep: Takes the packets that come before it; None: they are thrown away.

        Raises:
            SourceSilent: it did not come in time.
            SourceUnreachable: the server is gone.
        """
        while True:
            found = self.splitter.next()
            if found is None:
                # Packets that come meanwhile are no answer: the time counts, whatever comes.
                if self._clock.now() >= until_s:
                    raise failures.silent(self.place, self._limit_s)
                self.receive(until_s)
            elif isinstance(found, Message):
                if found.method:
                    self.decline(found)
                elif not 100 <= found.status < 200:  # those say: wait
                    return found
            elif keep is not None:
                keep(found)

    def decline(self, request: Message) -> None:
        """The server asks for something: a sign of life is all that it gets."""
        known = request.method in ("OPTIONS", "GET_PARAMETER", "SET_PARAMETER")
        status = "200 OK" if known else "501 Not Implemented"
        self.send_bytes(f"RTSP/1.0 {status}\r\nCSeq: {request.header('cseq')}\r\n\r\n".encode())

    def receive(self, until_s: float) -> bool:
        """Wait for bytes; False if none came yet: look at the time. ``latest`` says when.

        Raises:
            SourceSilent: another thread wants this one to end.
            SourceUnreachable: the server closed the connection.
        """
        began_s = self._clock.now()
        left_s = until_s - began_s
        # What is there already is read even after the time is over: the thread may have been late.
        self._set_timeout(min(max(0.001, left_s), _LONGEST_WAIT_S))
        try:
            count = self._socket.recv_into(self.splitter.room())
        except TimeoutError:
            count = -1
        except OSError as error:
            raise self._lost(error) from None
        if self._aborted.is_set():
            raise SourceSilent("the source was aborted")
        if count < 0:
            return False
        if count == 0:
            raise SourceUnreachable("the camera closed the connection")
        self.splitter.received(count)
        now_s = self._clock.now()
        self.latest = Received(now_s, now_s - began_s)
        return True

    def _set_timeout(self, timeout_s: float) -> None:
        """Only if it changes: it is a system call, and there is a receive for each packet."""
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            self._socket.settimeout(timeout_s)

    def _lost(self, error: OSError) -> SourceUnreachable:
        if self._aborted.is_set():
            return SourceSilent("the source was aborted")
        return SourceUnreachable(f"reading failed: {error.strerror or type(error).__name__}")
