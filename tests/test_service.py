"""Under systemd: the unit file, and the datagrams on a real socket."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.running import ROOT, Command, synthetic, write_config
from vidserve import build
from vidserve.config import load
from vidserve.daemon import Daemon
from vidserve.detection.fake import FakeDetector
from vidserve.systemd import Notifier

FAKE = "detector: {model: 'fake:3+2n', image_size: 320}\n"


class NotifySocket:
    """What systemd listens on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.messages: list[str] = []

    def wait_for(self, words: str, limit_s: float = 60.0) -> str:
        """The first message from now on that says so."""
        until_s = time.monotonic() + limit_s
        while True:
            self._socket.settimeout(max(until_s - time.monotonic(), 0.01))
            try:
                message = self._socket.recv(4096).decode()
            except TimeoutError:
                raise AssertionError(f"{words!r} never came: {self.messages}") from None
            self.messages.append(message)
            if words in message:
                return message

    def drain(self, for_s: float) -> list[str]:
        """All messages of a time."""
        until_s = time.monotonic() + for_s
        messages = []
        while (left_s := until_s - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                messages.append(self._socket.recv(4096).decode())
            except TimeoutError:
                break
        return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def notify(tmp_path: Path) -> NotifySocket:
    return NotifySocket(tmp_path / "notify")


def test_ready_watchdog_status_stopping(tmp_path: Path, notify: NotifySocket) -> None:
    config = write_config(
        tmp_path,
        FAKE + f"stats: {{interval_s: 0.5}}\ncameras: {{a: {{source: '{synthetic()}'}}}}\n",
    )
    command = Command(
        "run", "-c", str(config), NOTIFY_SOCKET=str(notify.path), WATCHDOG_USEC="4000000"
    )
    assert "EXTEND_TIMEOUT_USEC=" in notify.wait_for("EXTEND_TIMEOUT_USEC")
    assert "STATUS=" in notify.wait_for("READY=1")
    notify.wait_for("WATCHDOG=1")
    assert "1 of 1 cameras up" in notify.wait_for("STATUS=")
    code, _ = command.stop()
    notify.wait_for("STOPPING=1")
    assert code == 0, command.err
    notify.close()


def test_a_dead_camera_feeds_the_watchdog_a_hung_detector_does_not(
    tmp_path: Path, notify: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()
    monkeypatch.setattr(
        build,
        "detector_factory",
        lambda _config, clock: lambda: FakeDetector("3+2n", clock=clock, hang=hang),
    )
    text = f"""
cameras:
  dead: {{source: "rtsp://127.0.0.1:1/x"}}
  good: {{source: "{synthetic()}"}}
"""
    result = load(write_config(tmp_path, text), {})
    environ = {"NOTIFY_SOCKET": str(notify.path), "WATCHDOG_USEC": "2000000"}
    notifier = Notifier(environ)
    daemon = Daemon(result, notifier=notifier)
    runner = threading.Thread(target=daemon.run)
    runner.start()
    notify.wait_for("READY=1")
    for _ in range(4):
        notify.wait_for("WATCHDOG=1", 10)
    hang.set()
    time.sleep(1.5)  # progress may be half the watchdog time old before it is missed
    notify.drain(0.5)
    assert not [m for m in notify.drain(2.0) if "WATCHDOG=1" in m]
    hang.clear()
    notify.wait_for("WATCHDOG=1", 10)
    daemon.request_stop()
    runner.join(20)
    assert not runner.is_alive()
    notifier.close()
    notify.close()


def test_without_systemd_nothing_is_sent() -> None:
    notifier = Notifier({})
    notifier.ready("x")
    notifier.watchdog()
    assert notifier.watchdog_s is None


def test_abstract_sockets(tmp_path: Path) -> None:
    name = f"\0vidserve-test-{tmp_path.name}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(name)
    notifier = Notifier({"NOTIFY_SOCKET": "@" + name[1:], "WATCHDOG_USEC": "30000000"})
    notifier.stopping()
    notifier.close()
    assert listening.recv(100) == b"STOPPING=1"
    listening.close()


def test_the_unit_passes_systemd_analyze_verify(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian package systemd)")
    text = (ROOT / "systemd" / "vidserve.service").read_text()
    command = "/opt/vidserve/.venv/bin/vidserve"
    assert command in text
    unit = tmp_path / "vidserve.service"
    unit.write_text(text.replace(command, "/bin/true"))  # where it is to be installed, later
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "vidserve.service" not in done.stderr, done.stderr
