"""A real Mosquitto on a free loopback port, to be killed and restarted by tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from vidserve.clock import RealClock
from vidserve.publishing.connection import MqttSettings
from vidserve.publishing.mqtt import MqttOutput
from vidserve.publishing.output import Message, MessageKind, OutputStats

CLOCK = RealClock()


def find(name: str) -> str | None:
    """Path of a program; Debian puts the broker in a folder that users do not search."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def need_mosquitto() -> None:
    """Skip the test, by name, where there is no Mosquitto."""
    if find("mosquitto") is None:
        pytest.skip("needs the Debian package mosquitto")


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 30.0) -> None:
    """Return when ``condition()`` is true; fail with ``what`` after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain for {what}"
        time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a subscriber got it; ``retained``: it was there before the subscription."""

    topic: str
    payload: bytes
    qos: int
    retained: bool


class Subscriber:
    """An independent client that remembers all that is published. Use as a context manager."""

    def __init__(self, port: int, pattern: str = "vidserve/#") -> None:
        self._port = port
        self._pattern = pattern
        self._lock = threading.Lock()
        self._messages: list[Received] = []
        self.served = 0  # times that the broker took our subscription
        self._client = client = paho.Client(CallbackAPIVersion.VERSION2)
        client.reconnect_delay_set(1, 1)
        client.on_connect = self._connected
        client.on_subscribe = self._subscribed
        client.on_message = self._received

    @property
    def messages(self) -> list[Received]:
        with self._lock:
            return list(self._messages)

    def on(self, topic: str) -> list[Received]:
        """The messages of one topic, in order."""
        return [m for m in self.messages if m.topic == topic]

    def count(self, topic: str, wanted: int) -> bool:
        """Whether that many messages of a topic have come."""
        return len(self.on(topic)) >= wanted

    def last(self, topic: str) -> bytes | None:
        """The newest payload of a topic."""
        got = self.on(topic)
        return got[-1].payload if got else None

    def _connected(self, client: paho.Client, *_: object) -> None:
        client.subscribe(self._pattern, 2)

    def _subscribed(self, *_: object) -> None:
        self.served += 1

    def _received(self, _client: paho.Client, _data: object, m: paho.MQTTMessage) -> None:
        with self._lock:
            self._messages.append(Received(m.topic, bytes(m.payload), m.qos, m.retain))

    def __enter__(self) -> Subscriber:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        wait_for(lambda: self.served, "the subscription")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Mosquitto:
    """One broker without persistence. Use as a context manager.

    Args:
        folder: For its config; a test's ``tmp_path``.
        users: Names and passwords; None: everybody may connect.
        lines: More lines for its config.
    """

    def __init__(
        self,
        folder: Path,
        users: dict[str, str] | None = None,
        lines: tuple[str, ...] = (),
        port: int | None = None,
    ) -> None:
        need_mosquitto()
        self.port = port or free_port()
        self._config = folder / f"mosquitto-{self.port}.conf"
        self._process: subprocess.Popen[bytes] | None = None
        config = [
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {'true' if users is None else 'false'}",
            "persistence false",
            "log_dest none",
            *lines,
        ]
        if os.geteuid() == 0:
            config.append("user root")  # it would drop to a user who cannot read the folder
        if users is not None:
            passwd = find("mosquitto_passwd")
            if passwd is None:
                pytest.skip("needs mosquitto_passwd of the Debian package mosquitto")
            file = folder / f"passwords-{self.port}"
            file.touch(mode=0o600)
            for name, password in users.items():
                subprocess.run(
                    [passwd, "-b", str(file), name, password], check=True, capture_output=True
                )
            config.append(f"password_file {file}")
        self._config.write_text("\n".join(config) + "\n")

    def start(self) -> None:
        """Start, or start again on the same port; returns when it takes connections."""
        binary = find("mosquitto")
        assert binary is not None
        self._process = subprocess.Popen(
            [binary, "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
                return
            except OSError:
                code = self._process.poll()
                if code is not None or time.monotonic() > deadline:
                    said = self._end().decode(errors="replace")
                    raise AssertionError(f"mosquitto did not start ({code}): {said}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """``kill -9``: it says nothing to anybody and forgets all that was retained."""
        assert self._process is not None
        self._process.kill()
        self._end()

    def freeze(self) -> None:
        """It keeps its connections and reads nothing any more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self) -> bytes:
        process, self._process = self._process, None
        if process is None:
            return b""
        process.kill()
        _, said = process.communicate(timeout=20)
        return said

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


# --- short words for tests of outputs


def state(topic: str, payload: bytes) -> Message:
    return Message(topic, payload, MessageKind.STATE)


def frame(n: int, size: int = 1000) -> Message:
    return Message("gate/detections", (b"%d " % n).ljust(size, b"."), MessageKind.FRAME)


def event(n: int) -> Message:
    return Message("gate/events", b"%d" % n, MessageKind.EVENT)


def settings(port: int, **more: object) -> MqttSettings:
    return MqttSettings(host="127.0.0.1", port=port, **more)  # type: ignore[arg-type]


@contextmanager
def running(output: MqttOutput, flush_s: float = 5.0) -> Iterator[MqttOutput]:
    output.start()
    try:
        yield output
    finally:
        output.stop(flush_s)


def wait_connected(output: MqttOutput) -> None:
    wait_for(lambda: output.stats().connected, "a connection")


def adds_up(stats: OutputStats) -> bool:
    ends = stats.published + sum(stats.dropped.values()) + stats.coalesced + stats.waiting
    return stats.put == ends


def slowest_put_s(output: MqttOutput, messages: list[Message]) -> float:
    slowest = 0.0
    for message in messages:
        before = time.perf_counter()
        output.put(message)
        slowest = max(slowest, time.perf_counter() - before)
    return slowest
