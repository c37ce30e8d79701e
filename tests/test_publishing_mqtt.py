"""The MQTT output against a real Mosquitto that is killed, frozen and restarted."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from tests.mosquitto import (
    CLOCK,
    Mosquitto,
    Subscriber,
    adds_up,
    event,
    frame,
    running,
    settings,
    slowest_put_s,
    state,
    wait_connected,
    wait_for,
)
from vidserve.publishing.connection import Connection, MqttSettings, Will
from vidserve.publishing.mqtt import MqttOutput
from vidserve.publishing.outbox import OutboxLimits
from vidserve.publishing.output import Message, MessageKind, Output
from vidserve.publishing.watch import watch


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as running_broker:
        yield running_broker


def test_it_is_an_output() -> None:
    output: Output = MqttOutput(MqttSettings(), CLOCK)
    assert output.name == "mqtt"
    assert output.stats().reason == "not started"
    output.stop(0.0)  # never started


def test_birth_state_events_frames_and_goodbye(broker: Mosquitto) -> None:
    with Subscriber(broker.port) as early:
        output = MqttOutput(settings(broker.port), CLOCK)
        output.put(state("gate/status", b"connecting"))
        with running(output):
            wait_connected(output)
            wait_for(lambda: early.last("vidserve/gate/status"), "the state put before")
            output.put(state("gate/status", b"running"))
            for n in range(50):
                output.put(frame(n))
                output.put(event(n))
            wait_for(lambda: len(early.on("vidserve/gate/events")) == 50, "events")
            wait_for(lambda: len(early.on("vidserve/gate/detections")) == 50, "frames")
            with Subscriber(broker.port) as late:
                wait_for(lambda: len(late.messages) >= 2, "what is retained")
                assert late.last("vidserve/status") == b"online"
                assert late.last("vidserve/gate/status") == b"running"
                assert all(m.retained for m in late.messages)
                assert len(late.messages) == 2  # neither events nor frames are retained
            output.put(state("gate/count/person", b"0"))
        wait_for(lambda: early.last("vidserve/status") == b"offline", "the goodbye")
        topics = [m.topic for m in early.messages]
        assert topics[0] == "vidserve/status"  # the birth came first, the goodbye last
        assert topics[-1] == "vidserve/status"
        assert early.last("vidserve/gate/count/person") == b"0"
        assert {m.qos for m in early.on("vidserve/gate/detections")} == {0}
        assert {m.qos for m in early.on("vidserve/gate/events")} == {1}
        assert {m.qos for m in early.on("vidserve/gate/status")} == {1}
        for topic in ("vidserve/gate/detections", "vidserve/gate/events"):
            numbers = [int(m.payload.split()[0]) for m in early.on(topic)]
            assert numbers == list(range(50))
        with Subscriber(broker.port) as after:
            wait_for(lambda: after.last("vidserve/status") == b"offline", "retained offline")
    stats = output.stats()
    assert adds_up(stats)
    assert stats.waiting == 0
    assert stats.dropped == {}
    assert not stats.connected
    assert stats.reason == "stopped"


def test_a_message_does_not_wait_for_the_next_look_at_the_outbox(broker: Mosquitto) -> None:
    output = MqttOutput(settings(broker.port), CLOCK)
    with Subscriber(broker.port) as subscriber, running(output):
        wait_connected(output)
        before = time.monotonic()
        for n in range(20):
            output.put(frame(n))
            arrived = partial(subscriber.count, "vidserve/gate/detections", n + 1)
            wait_for(arrived, "a frame")
        assert time.monotonic() - before < 8.0  # 0.2 s; 20 s if put did not wake the thread


class Gated(MqttOutput):
    """Connects only while its gate is open, so that a subscriber can be there first."""

    gate: threading.Event

    def _new_connection(self) -> Connection:
        assert self.gate.wait(60)
        return super()._new_connection()


def test_the_broker_is_killed_in_mid_run_and_comes_back_empty(broker: Mosquitto) -> None:
    limits = OutboxLimits(messages=200)
    output = Gated(settings(broker.port), CLOCK, limits)
    output.gate = threading.Event()
    output.gate.set()
    slowest_s = [0.0]
    quit_feeding = threading.Event()

    def feed() -> None:  # 500 messages a second and a state that changes
        n = 0
        while not quit_feeding.wait(0.01):
            batch = [frame(n + i) for i in range(5)] + [state("gate/count/car", b"%d" % n)]
            slowest_s[0] = max(slowest_s[0], slowest_put_s(output, batch))
            n += 5

    feeder = threading.Thread(target=feed)
    with Subscriber(broker.port) as subscriber, running(output):
        wait_connected(output)
        output.put(state("gate/status", b"running"))
        feeder.start()
        try:
            wait_for(lambda: len(subscriber.on("vidserve/gate/detections")) > 50, "frames")
            broker.kill()
            wait_for(lambda: not output.stats().connected, "the loss being noticed")
            output.put(state("yard/status", b"failed"))
            for n in range(5):
                output.put(event(n))
            wait_for(lambda: output.stats().dropped.get("outbox_full", 0) > 300, "drops")
            assert output.stats().waiting <= limits.messages + 5  # and five state topics
            assert "refused the connection" in output.stats().reason
            before = len(subscriber.messages)
            output.gate.clear()
            broker.start()
            wait_for(lambda: subscriber.served == 2, "the subscriber to be back")
            output.gate.set()
            wait_connected(output)
            wait_for(lambda: len(subscriber.on("vidserve/gate/events")) == 5, "events")
            wait_for(lambda: len(subscriber.messages) > before + 50, "frames again")
        finally:
            quit_feeding.set()
            feeder.join()
        wait_for(lambda: output.stats().waiting == 0, "an empty outbox")
        with Subscriber(broker.port) as late:
            wait_for(lambda: len(late.messages) >= 4, "retained state")
            assert late.last("vidserve/status") == b"online"
            assert late.last("vidserve/gate/status") == b"running"
            assert late.last("vidserve/yard/status") == b"failed"
            assert late.last("vidserve/gate/count/car") == subscriber.last(
                "vidserve/gate/count/car"
            )
            assert all(m.retained for m in late.messages)
        stats = output.stats()
        assert stats.reconnects == 1
        assert stats.reason == ""
        assert adds_up(stats)
        numbers = [int(m.payload.split()[0]) for m in subscriber.on("vidserve/gate/detections")]
        assert numbers == sorted(set(numbers))
        assert [m.payload for m in subscriber.on("vidserve/gate/events")] == [
            b"%d" % n for n in range(5)
        ]
    assert set(output.stats().dropped) <= {"outbox_full", "connection_lost"}
    assert slowest_s[0] < 1.0


def test_state_on_its_way_when_the_broker_dies_does_not_win_over_newer(broker: Mosquitto) -> None:
    output = MqttOutput(settings(broker.port), CLOCK)
    with running(output):
        wait_connected(output)
        wait_for(lambda: output.stats().waiting == 0, "the birth")
        broker.freeze()
        output.put(state("gate/status", b"old"))  # sent, never acknowledged
        time.sleep(0.1)
        output.put(state("gate/status", b"new"))
        assert output.stats().waiting >= 1
        broker.kill()
        broker.start()
        wait_for(lambda: output.stats().reconnects == 1, "a new connection")
        wait_for(lambda: output.stats().waiting == 0, "an empty outbox")
        with Subscriber(broker.port) as late:
            wait_for(lambda: late.last("vidserve/gate/status") == b"new", "the newer state")
        assert adds_up(output.stats())


def test_a_frozen_broker_blocks_nobody_and_is_noticed(broker: Mosquitto) -> None:
    output = MqttOutput(settings(broker.port, keepalive_s=1), CLOCK, OutboxLimits(messages=100))
    output.start()
    wait_connected(output)
    broker.freeze()
    # More than the sockets hold: the rest waits in the outbox, and the oldest go.
    assert slowest_put_s(output, [frame(n, 50_000) for n in range(400)]) < 1.0
    wait_for(lambda: output.stats().reason == "the broker stopped answering", "the keep-alive")
    before = time.monotonic()
    output.stop(0.5)
    assert time.monotonic() - before < 5.0
    stats = output.stats()
    assert adds_up(stats)
    assert stats.waiting == 0
    assert stats.dropped["outbox_full"] > 100
    assert stats.dropped["stopped"] >= 1
    broker.thaw()


DAEMON = """
import sys, time
from vidserve.clock import RealClock
from vidserve.publishing.connection import MqttSettings
from vidserve.publishing.mqtt import MqttOutput
output = MqttOutput(MqttSettings(host="127.0.0.1", port=int(sys.argv[1])), RealClock())
output.start()
print("started", flush=True)
time.sleep(60)
"""


def test_the_broker_says_offline_when_the_daemon_is_killed(broker: Mosquitto) -> None:
    with Subscriber(broker.port) as subscriber:
        process = subprocess.Popen([sys.executable, "-c", DAEMON, str(broker.port)])
        try:
            wait_for(lambda: subscriber.last("vidserve/status") == b"online", "the birth")
            process.send_signal(signal.SIGKILL)
            wait_for(lambda: subscriber.last("vidserve/status") == b"offline", "the will")
        finally:
            process.kill()
            process.wait()
        with Subscriber(broker.port) as late:
            wait_for(lambda: late.messages, "the retained will")
            assert late.messages[0].payload == b"offline"
        with running(MqttOutput(settings(broker.port), CLOCK)):
            wait_for(lambda: subscriber.last("vidserve/status") == b"online", "the next birth")


class Faulty(MqttOutput):
    """Its connection fails as ``fault`` says, once."""

    def __init__(self, port: int, fault: Callable[[], None]) -> None:
        super().__init__(settings(port), CLOCK)
        self.faults = [fault]

    def _new_connection(self) -> Connection:
        outer = self

        class FaultyConnection(Connection):
            def publish(
                self, topic: str, payload: bytes, *, qos: int, retain: bool
            ) -> paho.MQTTMessageInfo:
                if outer.faults and topic.endswith("detections"):
                    outer.faults.pop()()
                return super().publish(topic, payload, qos=qos, retain=retain)

        will = Will("vidserve/status", b"offline")
        return FaultyConnection(self._settings, self._client_id, None, self._clock, will)


def test_an_error_in_the_library_does_not_end_the_output(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    def fault() -> None:
        raise RuntimeError("a bug in the library")

    output = Faulty(broker.port, fault)
    with Subscriber(broker.port) as subscriber, running(output):
        wait_connected(output)
        output.put(frame(1))
        wait_for(lambda: output.stats().reconnects == 1, "a new connection")
        output.put(frame(2))
        wait_for(lambda: subscriber.on("vidserve/gate/detections"), "the next frame")
        # Nobody is told that all is well while it is not: the broken connection left a will.
        said = [m.payload for m in subscriber.on("vidserve/status")]
        assert said == [b"online", b"offline", b"online"]
    assert "a bug in the library" in caplog.text
    assert "Traceback" in caplog.text
    assert adds_up(output.stats())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_seen(broker: Mosquitto) -> None:
    output = Faulty(broker.port, lambda: sys.exit(1))
    with running(output):
        wait_connected(output)
        output.put(frame(1))
        wait_for(lambda: "died" in output.stats().reason, "the dead thread")
        assert not output.stats().connected


def test_a_topic_that_is_none_is_dropped_alone(broker: Mosquitto) -> None:
    output = MqttOutput(settings(broker.port), CLOCK)
    with Subscriber(broker.port) as subscriber, running(output):
        for topic in ("a+b/status", "Hof #2/status", "bad \udcff/status", "gate/status"):
            output.put(state(topic, b"running"))
        wait_for(lambda: subscriber.last("vidserve/gate/status"), "the good one")
    assert output.stats().dropped == {"invalid_topic": 3}
    assert output.stats().reconnects == 0


def test_watch_prints_what_is_published(broker: Mosquitto) -> None:
    lines: list[str] = []
    stop = threading.Event()
    watcher = threading.Thread(
        target=watch, args=(settings(broker.port), lines.append, stop), kwargs={"clock": CLOCK}
    )
    output = MqttOutput(settings(broker.port), CLOCK)
    with running(output):
        watcher.start()
        wait_for(lambda: "vidserve is online" in lines, "the birth")
        for _ in range(3):
            output.put(
                Message(
                    "gate/detections",
                    b'{"time":"2025-01-01T10:11:12.345Z","source":"tracked","age_ms":20,'
                    b'"objects":[{"id":1,"label":"car","confidence":0.5}]}',
                    MessageKind.FRAME,
                )
            )
        wait_for(lambda: any("1 car" in line for line in lines), "the detection")
        broker.kill()
        wait_for(lambda: any("not connected" in line for line in lines), "the loss")
        stop.set()
        watcher.join(30)
        assert not watcher.is_alive()
        broker.start()
        wait_connected(output)
    cars = [line for line in lines if "1 car" in line]
    assert cars == ["10:11:12.345  gate  tracked    20.0 ms  1 car (0.50)"]  # only the change
