"""One connection to an MQTT broker. The only import of paho.

A ``Connection`` lives from CONNECT to its end and is never used again: what paho would carry
over (its unbounded queue, its own retries) is not wanted, the outbox and its thread do that.
Everything runs in the calling thread through paho's interface for external event loops, so an
exception in a callback comes out of ``step`` instead of ending a thread unseen.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from vidserve.clock import Clock
from vidserve.errors import OutputError

CLOSED_BY_BROKER = "the connection was closed from the other side"
SILENT = "the broker stopped answering"

# The names of MQTT 3.1.1's return codes 4 and 5; which of them a wrong password gives differs
# between brokers (Mosquitto: "Not authorized").
_LOGIN_REFUSALS = ("Bad user name or password", "Not authorized")


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """Where the broker is and who we are there.

    Attributes:
        host, port: Of the broker.
        username, password: None: none is sent.
        prefix: First topic level or levels, without a slash at either end.
        client_id: None: unique for each run. Two clients of one id throw each other out.
        tls: Encrypt, and verify the broker's certificate.
        tls_ca: File of certificates to trust in place of the system's.
        tls_cert, tls_key: Our own certificate and its key, both or none.
        tls_insecure: Accept any certificate.
        keepalive_s: A link that is dead without a word is noticed within twice this time.
        connect_timeout_s: For each of connection, TLS handshake and login.
    """

    host: str = "localhost"
    port: int = 1883
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    prefix: str = "vidserve"
    client_id: str | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_insecure: bool = False
    keepalive_s: int = 15
    connect_timeout_s: float = 4.0

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS settings as a context; None without TLS.

        Raises:
            OutputError: a file is missing or no certificate; names the file.
        """
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
        except OSError as error:  # ssl.SSLError is one too
            raise OutputError(f"mqtt: tls_ca: cannot use {self.tls_ca}: {error}") from error
        if self.tls_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.tls_cert is not None:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key)
            except OSError as error:
                raise OutputError(
                    f"mqtt: tls_cert, tls_key: cannot use {self.tls_cert} with {self.tls_key}: "
                    f"{error}"
                ) from error
        return context

    def unique_client_id(self) -> str:
        """``client_id``, or a new one."""
        return self.client_id or f"vidserve-{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained and with QoS 1, when we die without a goodbye."""

    topic: str
    payload: bytes


class ConnectionFailed(Exception):
    """The connection could not be made; the text says why, without secrets."""


class ConnectionEnded(Exception):
    """The connection is gone; the text says why."""


class Wake:
    """Wakes a ``Connection.step`` from another thread."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        """Wake now, or the next step if none waits. Any thread."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass  # it was not set

    def __del__(self) -> None:
        # Not closed earlier: a ``set`` that comes late must not write to a stranger's file.
        os.close(self._fd)


class _Client(paho.Client):
    """Paho with a socket of our own making: paho's leaks when the TLS handshake fails, and for
    a daemon that retries for days that is a leak of file descriptors.
    """

    def __init__(self, client_id: str, context: ssl.SSLContext | None) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=True,
            protocol=paho.MQTTv311,
            reconnect_on_failure=False,
        )
        self._context = context

    def _create_socket(self) -> socket.socket:
        sock = socket.create_connection((self.host, self.port), self.connect_timeout)
        # Else a message waits for the acknowledgement of the one before: up to 40 ms more.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return sock
        try:
            return self._context.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise


class Connection:
    """See the module. For one thread.

    Args:
        settings: Where and who.
        client_id: Who, settled for the run.
        context: From ``settings.tls_context()``.
        clock: For the time limits.
        will: What the broker says when we die; None: nothing.
        on_message: Called in ``step`` with topic, payload and the retained flag.
    """

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        context: ssl.SSLContext | None,
        clock: Clock,
        will: Will | None = None,
        on_message: Callable[[str, bytes, bool], None] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._refusal: str | None = None  # empty: accepted
        self._end: str | None = None
        self._on_message = on_message
        self._poll = select.poll()
        self._client = client = _Client(client_id, context)
        client.max_inflight_messages = 0  # no limit of paho's: our window is the caller's
        if settings.username is not None:
            client.username_pw_set(settings.username, settings.password)
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1, retain=True)
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        if on_message is not None:
            client.on_message = self._message

    def open(self, timeout_s: float) -> None:
        """Connect and log in.

        Args:
            timeout_s: For each of connection, TLS handshake and login. The resolver of host
                names has limits of its own.

        Raises:
            ConnectionFailed: with the reason.
        """
        where = f"{self._settings.host}:{self._settings.port}"
        self._client.connect_timeout = timeout_s
        try:
            self._client.connect(
                self._settings.host, self._settings.port, self._settings.keepalive_s
            )
        except OSError as error:
            raise ConnectionFailed(_why_not_connected(error, where, timeout_s)) from error
        except UnicodeError as error:
            raise ConnectionFailed(f"{where}: this is no name of a host") from error
        deadline_s = self._clock.now() + timeout_s
        while self._refusal is None:
            left_s = deadline_s - self._clock.now()
            if left_s <= 0:
                raise ConnectionFailed(f"{where} accepts connections but does not speak MQTT")
            try:
                self.step(left_s)
            except ConnectionEnded as error:
                if self._refusal is None:  # else the broker has said why
                    raise ConnectionFailed(f"{where} closed the connection at login") from error
        if self._refusal:
            raise ConnectionFailed(f"{where} {self._refusal}")

    def step(self, timeout_s: float, wake: Wake | None = None) -> None:
        """Wait for the network, ``wake`` or the time-out, and do what is to be done.

        Raises:
            ConnectionEnded: with the reason.
        """
        sock = self._client.socket()
        if sock is None:
            raise ConnectionEnded(self._end or CLOSED_BY_BROKER)
        fd = sock.fileno()
        writable = select.POLLOUT if self._client.want_write() else 0
        self._poll.register(fd, select.POLLIN | writable)
        if wake is not None:
            self._poll.register(wake.fileno(), select.POLLIN)
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            timeout_s = 0.0  # decrypted bytes wait already, which poll cannot see
            self._client.loop_read()
        ready = self._poll.poll(max(0.0, timeout_s) * 1000.0)
        self._poll.unregister(fd)
        for ready_fd, events in ready:
            if wake is not None and ready_fd == wake.fileno():
                wake.clear()
                continue
            if events & select.POLLOUT:
                self._client.loop_write()
            if events & ~select.POLLOUT:
                self._client.loop_read()
        self._client.loop_misc()
        if self._client.socket() is None:
            raise ConnectionEnded(self._end or CLOSED_BY_BROKER)

    def backed_up(self) -> bool:
        """Whether bytes wait because the socket takes no more."""
        return self._client.want_write()

    def publish(
        self, topic: str, payload: bytes, *, qos: int, retain: bool
    ) -> paho.MQTTMessageInfo:
        """Write a message to the socket, as far as that takes it (see ``backed_up``).

        Returns:
            Paho's handle: ``is_published()`` is True once a QoS 1 message is acknowledged.
        """
        return self._client.publish(topic, payload, qos, retain)

    def subscribe(self, pattern: str, qos: int = 0) -> None:
        """Ask for messages; they come to ``on_message``."""
        self._client.subscribe(pattern, qos)

    def close(self, *, goodbye: bool = True) -> None:
        """Close. Safe to call twice.

        Args:
            goodbye: False leaves without a word, so the broker publishes the will.
        """
        if goodbye:
            self._client.disconnect()
        sock = self._client.socket()
        if sock is not None:  # no goodbye, or one that did not fit into the socket
            sock.close()

    def _connected(
        self,
        _client: paho.Client,
        _userdata: object,
        _flags: paho.ConnectFlags,
        code: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if not code.is_failure:
            self._refusal = ""
        elif str(code) in _LOGIN_REFUSALS:
            self._refusal = f"refused the login ({code}): check username and password"
        else:
            self._refusal = f"refused the connection ({code})"

    def _message(self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        if self._on_message is not None:
            self._on_message(message.topic, bytes(message.payload), message.retain)

    def _disconnected(
        self,
        _client: paho.Client,
        _userdata: object,
        _flags: paho.DisconnectFlags,
        code: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if self._end is None:  # paho may call twice
            silent = str(code) == "Keep alive timeout"
            self._end = SILENT if silent else CLOSED_BY_BROKER


def _why_not_connected(error: OSError, where: str, limit_s: float) -> str:
    if isinstance(error, socket.gaierror):
        return f"{where}: unknown host ({error.strerror})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{where}: its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"{where}: no TLS connection: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return f"{where} did not answer within {limit_s:g} s"
    if isinstance(error, ConnectionRefusedError):
        return f"{where} refused the connection: no broker is listening there"
    return f"{where}: {error.strerror or error}"
