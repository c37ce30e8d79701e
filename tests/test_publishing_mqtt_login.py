"""Getting in: wrong passwords, absent hosts, silent servers, twins, TLS."""

from __future__ import annotations

import logging
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mosquitto import (
    CLOCK,
    Mosquitto,
    adds_up,
    event,
    find,
    frame,
    free_port,
    running,
    settings,
    slowest_put_s,
    wait_connected,
    wait_for,
)
from vidserve.errors import OutputError
from vidserve.publishing.connection import MqttSettings
from vidserve.publishing.mqtt import RETRY_MAX_S, MqttOutput, retry_delay_s

SECRET = "pass/wörd ☃"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as running_broker:
        yield running_broker


def test_a_wrong_password_is_named_and_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Mosquitto(tmp_path, users={"vidserve": "right"}) as broker:
        wrong = settings(broker.port, username="vidserve", password=SECRET)
        output = MqttOutput(wrong, CLOCK)
        with running(output, flush_s=1.0):
            wait_for(lambda: "refused the login" in output.stats().reason, "the reason")
            time.sleep(1.5)  # several tries
            assert not output.stats().connected
            assert slowest_put_s(output, [frame(n) for n in range(3000)]) < 1.0
            assert output.stats().dropped["outbox_full"] == 1000
        lines = [r for r in caplog.records if "refused the login" in r.getMessage()]
        assert len(lines) == 1  # of several tries
        assert SECRET not in caplog.text + repr(wrong) + output.stats().reason
        right = MqttOutput(settings(broker.port, username="vidserve", password="right"), CLOCK)
        with running(right):
            wait_connected(right)


def test_a_port_without_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    output = MqttOutput(settings(free_port()), CLOCK)
    with running(output, flush_s=1.0):
        wait_for(lambda: "refused the connection" in output.stats().reason, "the reason")
        assert slowest_put_s(output, [frame(n) for n in range(1000)]) < 1.0
        time.sleep(1.0)
        before = time.monotonic()
    assert time.monotonic() - before < 5.0
    assert len([r for r in caplog.records if "refused" in r.getMessage()]) == 1
    assert adds_up(output.stats())


def test_an_unknown_host() -> None:
    output = MqttOutput(MqttSettings(host="no-such-host.invalid"), CLOCK)
    with running(output, flush_s=0.2):
        wait_for(lambda: "unknown host" in output.stats().reason, "the reason", limit_s=60)


def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        output = MqttOutput(settings(port, connect_timeout_s=0.2), CLOCK)
        with running(output, flush_s=0.2):
            wait_for(lambda: "does not speak MQTT" in output.stats().reason, "the reason")


def test_a_second_client_of_the_same_id_is_named(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    twin = settings(broker.port, client_id="vidserve-twin")
    first, second = MqttOutput(twin, CLOCK), MqttOutput(twin, CLOCK)
    with running(first, 1.0), running(second, 1.0):
        wait_for(lambda: "client id vidserve-twin" in caplog.text, "the suspicion in the log")
        time.sleep(2.0)
    assert caplog.text.count("does another client use") <= 2  # one line each, however often
    assert caplog.text.count("connected to") <= 4


def test_client_ids_are_unique_unless_configured() -> None:
    made = {MqttOutput(MqttSettings(), CLOCK).client_id for _ in range(20)}
    assert len(made) == 20
    assert MqttOutput(MqttSettings(client_id="x"), CLOCK).client_id == "x"


def test_tls(tmp_path: Path) -> None:
    openssl = find("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    with Mosquitto(tmp_path, lines=(f"certfile {certificate}", f"keyfile {key}")) as broker:
        stranger = MqttOutput(settings(broker.port, tls=True), CLOCK)
        with running(stranger, 0.5):
            wait_for(lambda: "certificate is not accepted" in stranger.stats().reason, "reason")
        plain = MqttOutput(settings(broker.port), CLOCK)
        with running(plain, 0.5):
            wait_for(lambda: "closed the connection at login" in plain.stats().reason, "reason")
        for more in ({"tls_ca": certificate}, {"tls_insecure": True}):
            output = MqttOutput(settings(broker.port, tls=True, **more), CLOCK)
            with running(output):
                wait_connected(output)
                for n in range(50):
                    output.put(frame(n))
                    output.put(event(n))
            assert output.stats().published == 102
            assert output.stats().dropped == {}


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    for more in ({"tls_ca": missing}, {"tls_cert": missing, "tls_key": missing}):
        with pytest.raises(OutputError, match=r"mqtt: tls_.*missing\.pem"):
            MqttOutput(settings(1, tls=True, **more), CLOCK).start()


def test_retries_are_at_most_five_seconds_apart() -> None:
    delays = [retry_delay_s(failures, 0.0) for failures in range(1, 5000)]
    assert delays[0] == 0.25
    assert delays == sorted(delays)
    assert max(delays) == RETRY_MAX_S == 5.0
    assert all(0.8 * d <= retry_delay_s(i + 1, 1.0) <= d for i, d in enumerate(delays))
