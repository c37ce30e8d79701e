"""The embedded broker: amqtt in a child process, on loopback. For the demo and small set-ups.

Not in our own process, where it would share the interpreter lock with the cameras.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from vidserve.clock import Clock, RealClock
from vidserve.errors import OutputError
from vidserve.publishing.connection import Connection, ConnectionFailed, MqttSettings

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_START_S = 20.0  # a second or so on an idle machine
_STOP_S = 2.0


class EmbeddedBroker:
    """A broker without users, persistence or MQTT 5 that ends when this process does.

    Start it from a thread that lives as long as it is needed (the main thread): the kernel ends
    it together with the *thread* that started it.

    Args:
        port: On loopback; None: a free one.
    """

    def __init__(self, port: int | None = None, clock: Clock | None = None) -> None:
        self._wanted_port = port
        self._clock = clock or RealClock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the child process; None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> int:
        """Start it and wait until it takes a client.

        Returns:
            The port.

        Raises:
            OutputError: amqtt is not installed, the port is taken, or it does not come up.
        """
        if self._process is not None:
            raise RuntimeError("the broker runs already")
        if importlib.util.find_spec("amqtt") is None:
            raise OutputError(
                "mqtt: embedded: the broker needs the package amqtt: pip install 'vidserve[demo]' "
                "(or name the host of a broker)"
            )
        with self._listen() as listening, tempfile.TemporaryFile() as errors:
            port: int = listening.getsockname()[1]
            self._process = self._spawn(listening, errors)
            # From here on only the child listens: when it is gone, clients are refused.
            listening.close()
            self._wait_until_ready(port, errors)
        log.info("mqtt: the embedded broker listens on %s:%d", HOST, port)
        return port

    def stop(self) -> None:
        """End it. Clients are cut off; say goodbye first. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _listen(self) -> socket.socket:
        try:
            return socket.create_server((HOST, self._wanted_port or 0), backlog=100)
        except OSError as error:
            raise OutputError(
                f"mqtt: embedded: port {self._wanted_port} on {HOST} cannot be used "
                f"({error.strerror}): name another one, or leave it out for a free one"
            ) from error

    def _spawn(self, listening: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        fd = listening.fileno()
        program = Path(__file__).with_name("broker_child.py")
        # -P: the folder of that file is no place to import from.
        return subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(program), str(fd), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(fd,),
            start_new_session=True,
        )

    def _wait_until_ready(self, port: int, errors: IO[bytes]) -> None:
        assert self._process is not None
        settings = MqttSettings(host=HOST, port=port)
        deadline_s = self._clock.now() + _START_S
        while True:
            connection = Connection(settings, settings.unique_client_id(), None, self._clock)
            why = ""
            try:
                connection.open(1.0)
                return
            except ConnectionFailed as error:
                why = str(error)
            finally:
                connection.close()
            code = self._process.poll()
            if code is not None or self._clock.now() > deadline_s:
                self.stop()
                errors.seek(0)
                last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise OutputError(f"mqtt: embedded: the broker did not start: {last or why}")
            self._clock.sleep_until(self._clock.now() + 0.05)
