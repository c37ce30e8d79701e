"""``vidserve probe`` as people call it: files, streams, configs, failures, signals."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cv2
import numpy as np
import pytest

from tests.lab import clips
from tests.lab.servers import (
    RtspServer,
    mjpeg_server,
    need_rtsp,
    refusing_port,
)
from tests.running import ROOT, Command, synthetic, write_config
from vidserve import cli

SHARED = ROOT.parent / "shared" / "videos"
PASSWORD = "p@ss w:rd/ü%41"


@pytest.fixture(autouse=True)
def _own_process() -> Iterator[None]:
    """The command sets up logging and signals of its process, which here is that of all tests."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 pictures, 30 a second, a key picture a second."""
    return clips.write(tmp_path_factory.mktemp("probe") / "clip.mp4")


class Probe:
    """Calls the command in this process and keeps what it said."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capfd, self._monkeypatch = capfd, monkeypatch
        self.out = self.err = ""

    def __call__(self, *arguments: str | Path) -> int:
        """The exit code."""
        self._monkeypatch.setattr("sys.argv", ["vidserve", "probe", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        self.out, self.err = self._capfd.readouterr()
        assert "Traceback" not in self.err
        assert left.value.code is None or isinstance(left.value.code, int)
        return left.value.code or 0

    @property
    def words(self) -> str:
        """What it printed, without its line breaks."""
        return " ".join(self.out.split())

    def json(self, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        assert self(*arguments, "--json") == code, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def probe(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Probe:
    monkeypatch.delenv("VIDSERVE_PASSWORD", raising=False)

    def leave(code: int) -> None:
        raise AssertionError("its thread hangs: it would have ended the process of all tests")

    monkeypatch.setattr(os, "_exit", leave)
    return Probe(capfd, monkeypatch)


def test_a_file_for_people(probe: Probe, clip: Path) -> None:
    assert probe(clip) == 0
    assert probe.out.startswith(f"{clip}: running\n")
    assert "H.264 Constrained Baseline, 320x180, yuv420p" in probe.words
    assert "30 fps by timestamps, as claimed (60 pictures in 2 s, the whole file)" in probe.words
    assert probe.out.endswith(f"cameras:\n  camera:\n    source: {clip}\n")
    assert probe.err == ""  # no progress in a pipe


def test_a_file_for_programs(probe: Probe, clip: Path) -> None:
    found = probe.json(clip)
    expected = {
        "state": "running", "reader": "pyav", "live": False, "codec": "h264", "fps": 30.0,
        "width_px": 320, "height_px": 180, "rotation_deg": 0, "pictures": 60,
        "whole_file": True, "gap_ms": {"p50": 33.33, "p99": 33.33, "max": 33.33},
        "reorder_pictures": 0, "corrupt_pictures": 0, "warnings": [], "saved": None,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert 0.0 < found["core_share"] < 1.0
    assert found["first_picture_ms"] >= found["open_ms"] > 0.0


def test_b_frames_of_a_file_are_counted(probe: Probe, tmp_path: Path) -> None:
    options = {"preset": "veryfast", "bf": "3", "b-pyramid": "normal", "b-adapt": "0", "g": "60"}
    found = probe.json(clips.write(tmp_path / "b.mp4", frames=60, options=options))
    assert found["reorder_pictures"] == 2
    assert found["reorder_ms"] == pytest.approx(66.7, abs=0.1)


def test_a_picture_to_look_at(probe: Probe, clip: Path, tmp_path: Path) -> None:
    for suffix in (".jpg", ".png", ".JPEG"):
        target = tmp_path / f"größe{suffix}"
        assert probe.json(clip, "--save", target)["saved"] == str(target)
        pixels = cv2.imdecode(np.fromfile(target, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        last = clips.picture(59, 320, 180)[:, :, ::-1]
        assert np.abs(pixels.astype(int) - last).mean() < 6
    before = target.read_bytes()
    assert probe(clip, "--save", target) == 2
    assert "is there already" in probe.err and target.read_bytes() == before
    assert probe(clip, "--save", target, "--force") == 0
    assert f"saved to {target}" in probe.words


def test_without_a_good_picture_nothing_is_saved(probe: Probe, tmp_path: Path) -> None:
    target = tmp_path / "x.jpg"
    source = synthetic(duration_s=1, corrupt_every=1)
    assert probe(source, "--save", target) == 1
    assert "no undamaged picture" in probe.err
    assert "degraded" in probe.out and not target.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a source"),
        (["x.mp4", "--config", "y"], "give one of them"),
        (["x.mp4", "--camera", "y"], "--config is missing"),
        (["rtps://10.0.0.5/a"], "did you mean rtsps?"),
        (["joe:geheim@10.0.0.5/a"], "looks like a URL without scheme"),
        (["rtsp://joe:geheim/x@10.0.0.5/a"], "is not a port number"),
        (["rtsp://joe:geheim%ff@10.0.0.5/a"], "is not UTF-8"),
        (["x.mp4", "--save", "x.doc"], "has to end in .jpg or .png"),
        (["x.mp4", "--save", "no/such/folder/x.jpg"], "there is no folder"),
        (["rtsp://10.0.0.5/a", "--ask-password"], "--username is missing"),
        (["rtsp://10.0.0.5/a", "--ask-password", "--username", "a"], "this is no terminal"),
        (["x.mp4", "--reader", "rtsp"], "--reader: rtsp reads rtsp:// over tcp only"),
        (["x.mp4", "--reader", "opencv"], "--reader: opencv reads local devices only"),
        (["x.mp4", "--reader", "synthetic"], "--reader: synthetic cannot read this source"),
        (["0", "--decoder", "cuda"], "--decoder: is for files and URLs"),
        (["--config", "nowhere.yaml"], "cannot be read"),
        (["--config", "x.yaml", "--username", "joe"], "--username: not with --config"),
    ],
)
def test_wrong_arguments_are_said_in_a_sentence(
    arguments: list[str], words: str, probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        assert probe(*arguments) == 2
    assert words in probe.err
    assert probe.out == ""
    assert "geheim" not in probe.err


@pytest.mark.parametrize(
    ("arguments", "state", "words"),
    [
        (["nowhere.mp4"], "failed", "no such file"),
        ([f"rtsp://127.0.0.1:{refusing_port()}/x"], "failed", "refuses the connection"),
        (["rtsp://no-such-host.invalid/x"], "failed", "no such host"),
        ([synthetic(duration_s=0)], "failed", "no frames decoded"),
        ([synthetic(colour=1)], "failed", "unknown option"),
        ([synthetic(fail_after_s=1)], "connecting", "connection lost"),
        (["9999"], "failed", "no device /dev/video9999"),
    ],
)
def test_a_failure_is_a_state_a_reason_and_a_way_out(
    arguments: list[str], state: str, words: str, probe: Probe
) -> None:
    assert probe(*arguments) == 1
    assert f": {state}\n" in probe.out
    assert words in probe.words and "what to do: " in probe.words
    found = probe.json(*arguments, code=1)
    assert found["state"] == state and words in found["reason"] and found["next_step"]


def test_a_broken_file_fails_and_a_cut_one_plays(probe: Probe, clip: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.mp4"
    empty.touch()
    assert "empty file" in probe.json(empty, code=1)["reason"]
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(clip.read_bytes()[:2000])
    assert probe.json(broken, code=1)["state"] == "failed"
    whole = clips.write(tmp_path / "whole.mkv", frames=60)
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    found = probe.json(cut)
    assert found["state"] in ("running", "degraded") and 10 < found["pictures"] < 60


def test_a_name_that_is_no_text(probe: Probe, tmp_path: Path, clip: Path) -> None:
    """File names are bytes."""
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.mp4")
    assert "no such file" in probe.json(name, code=1)["reason"]
    os.link(clip, name)
    assert probe(name) == 0
    assert "caf\\udce9.mp4: running" in probe.out
    assert probe.json(name, "--save", f"{name}.jpg")["pictures"] == 60
    assert os.path.exists(f"{name}.jpg")


def test_a_camera_of_a_config(probe: Probe, clip: Path, tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        "detector: {model: 'fake:3'}\ncameras:\n"
        f"  gate: {{source: {clip}}}\n"
        f"  dead: {{source: 'rtsp://127.0.0.1:{refusing_port()}/x', username: me,"
        " password: geheim}\n"
        f"  off: {{source: '{synthetic(duration_s=1)}', enabled: false}}\n"
        "  wrong: {source: x.mp4, weight: many}\n",
    )
    found = probe.json("-c", config, "--camera", "gate")
    assert found["pictures"] == 60 and found["config"] is None
    assert found["source"] == f"gate, {clip}"
    assert probe("-c", config, "--camera", "dead") == 1
    assert "geheim" not in probe.out + probe.err
    assert probe("-c", config, "--camera", "off") == 0
    assert "for the config" not in probe.out
    for arguments, words in (
        (("--camera", "wrong"), "weight"),
        (("--camera", "gat"), "did you mean gate?"),
        ((), "name one of the cameras"),
    ):
        assert probe("-c", config, *arguments) == 2
        assert words in probe.err
    only = write_config(tmp_path, f"cameras: {{gate: {{source: '{synthetic(duration_s=1)}'}}}}\n")
    assert probe("-c", only) == 0


def test_rtsp_with_a_login_in_every_way(
    probe: Probe, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_rtsp()
    with RtspServer(clip, user="joe", password=PASSWORD) as server:
        monkeypatch.setenv("VIDSERVE_PASSWORD", PASSWORD)
        found = probe.json(server.url, "--username", "joe", "--for", "0.3")
        assert found["live"] and found["codec"] == "h264"
        assert found["pictures"] > 1 and found["lag_ms"]["p50"] < 200
        assert "password: \"${CAMERA_PASSWORD}\"" in found["config"]  # fmt: skip
        monkeypatch.setenv("VIDSERVE_PASSWORD", "wrong")
        refused = probe.json(server.url, "--username", "joe", code=1)
        assert refused["state"] == "unauthorized" and "lock accounts" in refused["next_step"]
        # What stands in the URL comes before the environment.
        with_login = server.url.replace("://", f"://joe:{quote(PASSWORD, safe='')}@")
        assert probe(with_login, "--for", "0.2") == 0
        assert "the password stands in the command line" in probe.err
        for text in (probe.out, probe.err):
            assert PASSWORD not in text and quote(PASSWORD, safe="") not in text
        monkeypatch.delenv("VIDSERVE_PASSWORD")
        nobody = probe.json(server.url, code=1)
        assert nobody["state"] == "unauthorized" and "--username" in nobody["next_step"]


class Terminal:
    """A terminal that a process can be given; what it prints there is kept."""

    def __init__(self) -> None:
        self._main, self.side = pty.openpty()
        self._heard = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # the last process that had it is gone
            while data := os.read(self._main, 4096):
                self._heard += data

    def wait_for(self, words: bytes, limit_s: float = 60.0) -> None:
        until_s = time.monotonic() + limit_s
        while words not in self._heard:
            assert time.monotonic() < until_s, f"{words!r} never came: {bytes(self._heard)!r}"
            time.sleep(0.02)

    def type(self, text: str) -> None:
        os.write(self._main, text.encode() + b"\n")

    def all(self) -> bytes:
        """After the process has ended."""
        os.close(self.side)
        self._listener.join(10.0)
        os.close(self._main)
        return bytes(self._heard)


def test_a_password_asked_for_on_the_terminal(clip: Path) -> None:
    need_rtsp()
    terminal = Terminal()
    with RtspServer(clip, user="joe", password=PASSWORD) as server:
        arguments = ["probe", server.url, "--username", "joe", "--ask-password", "--for", "0.6"]
        process = subprocess.Popen(
            [sys.executable, "-m", "vidserve", *arguments],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm"},
            stdin=terminal.side,
            stdout=subprocess.PIPE,
            stderr=terminal.side,
            text=True,
            start_new_session=True,
        )
        try:
            terminal.wait_for(b"password of joe: ")
            terminal.type(PASSWORD)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    seen = terminal.all()
    assert process.returncode == 0, out
    assert ": running" in out and PASSWORD not in out
    assert PASSWORD.encode() not in seen  # not echoed
    assert server.url.encode() in seen and b" left, " in seen  # how far it is


def test_http_mjpeg_has_no_timestamps(probe: Probe) -> None:
    with mjpeg_server(jpegs()) as url:
        found = probe.json(url, "--for", "1")
    assert [warning["about"] for warning in found["warnings"]].count("no_timestamps") == 1
    assert found["codec"] == "mjpeg" and found["lag_ms"] is None
    assert found["fps"] == pytest.approx(20, rel=0.3)


def jpegs() -> list[bytes]:
    return [
        cv2.imencode(".jpg", clips.picture(index, 320, 180)[:, :, ::-1])[1].tobytes()
        for index in range(5)
    ]


class Watched(list[bytes]):
    """Pictures of a server that does something when the n-th is sent."""

    def __init__(self, pictures: list[bytes], number: int, then: Any) -> None:
        super().__init__(pictures)
        self._left, self._then = number, then

    def __getitem__(self, index: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self._then()
        return super().__getitem__(index)


def test_ctrl_c_shows_what_was_measured_so_far(probe: Probe) -> None:
    pictures = Watched(jpegs(), 15, lambda: os.kill(os.getpid(), signal.SIGINT))
    began_s = time.monotonic()
    with mjpeg_server(pictures) as url:
        found = probe.json(url, "--for", "120")
    assert time.monotonic() - began_s < 30
    assert found["interrupted"] and found["state"] == "running"
    assert 3 < found["pictures"] < 200


def test_ctrl_c_before_the_first_picture() -> None:
    """In a process of its own: the reader's thread may be left behind in its library."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60.0)
        command = Command("probe", f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x")
        with silent.accept()[0]:  # it is opening
            code, took_s = command.stop(signal.SIGINT, 30.0)
    assert code == 1
    assert "connecting" in command.out and "interrupted before its first picture" in command.out
    assert took_s < 15


def test_a_library_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    source = synthetic(hang_after_s=0.5, deaf=1, hang_s=120)
    config = write_config(
        tmp_path,
        f"detector: {{model: 'fake:3'}}\ncameras: {{gate: {{source: '{source}', stall_s: 0.5}}}}\n",
    )
    began_s = time.monotonic()
    command = Command("probe", "-c", str(config))
    assert command.end(60.0) == 1
    assert time.monotonic() - began_s < 40.0
    text = " ".join(command.out.split())
    assert "gate, synthetic" in text and ": stalled" in text
    assert "no frame for 0.5 s" in text and "does not come back" in text
    assert "15 pictures" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rotated_90.mov", {"rotation_deg": 270, "width_px": 320, "height_px": 568}),
        ("bottle-detection.mp4", {"reorder_pictures": 2, "fps": pytest.approx(29.83, abs=0.01)}),
        ("made/packet_loss_1pct.ts", {"state": "degraded", "pictures": 196}),
        ("res_change_midstream.h264", {"sizes_px": [[848, 464], [424, 232]]}),
        ("made/one_fps.mp4", {"fps": pytest.approx(1.0)}),
        ("highway_osd_320x240.avi", {"fps": pytest.approx(25, rel=0.01), "timestamp_jumps": 0}),
        ("made/pts_jump_fwd_5000s_then_back.ts", {"fps": pytest.approx(10, rel=0.02)}),
    ],
)
def test_odd_files_that_others_recorded(name: str, expected: dict[str, Any], probe: Probe) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs ../shared/videos/{name}")
    found = probe.json(path)
    assert {key: found[key] for key in expected} == expected
