"""The embedded broker: a child process that carries messages and never outlives its parent."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.mosquitto import Subscriber, wait_for
from vidserve.clock import RealClock
from vidserve.errors import OutputError
from vidserve.publishing.broker import HOST, EmbeddedBroker
from vidserve.publishing.connection import MqttSettings
from vidserve.publishing.mqtt import MqttOutput
from vidserve.publishing.output import Message, MessageKind


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    if importlib.util.find_spec("amqtt") is None:
        pytest.skip("needs the Python package amqtt: pip install 'vidserve[demo]'")
    embedded = EmbeddedBroker()
    yield embedded
    embedded.stop()


def listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except OSError:
        return False
    return True


def runs(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_carries_messages_to_subscribers_early_and_late(
    broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    port = broker.start()
    with Subscriber(port) as early:
        output = MqttOutput(MqttSettings(host=HOST, port=port), RealClock())
        output.start()
        wait_for(lambda: output.stats().connected, "a connection")
        output.put(Message("gate/status", b"running", MessageKind.STATE))
        for n in range(300):
            output.put(Message("gate/detections", b"%04d" % n + b"x" * 2000, MessageKind.FRAME))
        wait_for(lambda: len(early.on("vidserve/gate/detections")) == 300, "300 frames")
        numbers = [int(m.payload[:4]) for m in early.on("vidserve/gate/detections")]
        assert numbers == list(range(300))
        with Subscriber(port) as late:
            wait_for(lambda: late.last("vidserve/gate/status") == b"running", "retained state")
            assert late.last("vidserve/status") == b"online"
            assert late.on("vidserve/gate/detections") == []
        output.stop(5.0)
        wait_for(lambda: early.last("vidserve/status") == b"offline", "the goodbye")
    broker.stop()
    assert not listens(port)
    assert capfd.readouterr() == ("", "")


def test_the_will_of_a_client_that_vanished(broker: EmbeddedBroker) -> None:
    port = broker.start()
    program = (
        "import time; from vidserve.clock import RealClock;"
        "from vidserve.publishing.mqtt import MqttOutput, MqttSettings;"
        f"MqttOutput(MqttSettings(host='{HOST}', port={port}), RealClock()).start();"
        "time.sleep(60)"
    )
    with Subscriber(port) as subscriber:
        process = subprocess.Popen([sys.executable, "-c", program])
        try:
            wait_for(lambda: subscriber.last("vidserve/status") == b"online", "the birth")
        finally:
            process.kill()
            process.wait()
        wait_for(lambda: subscriber.last("vidserve/status") == b"offline", "the will")


def test_signals_meant_for_the_daemon_do_not_end_it(broker: EmbeddedBroker) -> None:
    port = broker.start()
    assert broker.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(broker.pid, number)
    time.sleep(0.2)
    assert broker.alive
    assert listens(port)
    assert os.getsid(broker.pid) != os.getsid(0)
    pid = broker.pid
    broker.stop()
    broker.stop()
    assert not runs(pid)


PARENT = """
import os, sys, time
from vidserve.publishing.broker import EmbeddedBroker
broker = EmbeddedBroker()
port = broker.start()
if sys.argv[1] == "fork":  # a relative that keeps the parent's end of the pipe open
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
print(port, broker.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("relative", ["alone", "fork"])
def test_it_dies_with_its_parent(broker: EmbeddedBroker, relative: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, relative], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        port, pid = map(int, parent.stdout.readline().split())
        assert runs(pid) and listens(port)
        parent.send_signal(signal.SIGKILL)
        wait_for(lambda: not runs(pid), "the end of the broker")
        # Its first thread may be gone a moment before the others, and the socket with the last.
        wait_for(lambda: not listens(port), "the end of its socket")
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def test_a_port_that_is_taken(broker: EmbeddedBroker) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OutputError, match=f"port {port} .* cannot be used"):
            EmbeddedBroker(port).start()


def test_the_port_that_was_asked_for(broker: EmbeddedBroker) -> None:
    port = broker.start()
    broker.stop()
    again = EmbeddedBroker(port)
    try:
        assert again.start() == port
    finally:
        again.stop()


def test_without_amqtt_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OutputError, match=r"pip install 'vidserve\[demo\]'"):
        EmbeddedBroker().start()


def test_a_child_that_does_not_come_up_says_why(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OutputError, match="did not start"):
        EmbeddedBroker().start()
