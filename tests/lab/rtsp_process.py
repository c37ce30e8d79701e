"""GStreamer's RTSP server in a process of its own, as tests use it."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.lab import rtp
from tests.lab.unit_files import write_units

SYSTEM_PYTHON = "/usr/bin/python3"
_ROOT = Path(__file__).parents[2]
_PROBE = "import gi; gi.require_version('GstRtspServer', '1.0'); gi.require_version('Gst', '1.0')"
_ANSWER_S = 30.0


def need_rtsp() -> None:
    """Skip the test, by name, where GStreamer's RTSP server is missing."""
    try:
        probe = subprocess.run([SYSTEM_PYTHON, "-c", _PROBE], capture_output=True, timeout=60)
    except OSError:
        pytest.skip(f"needs {SYSTEM_PYTHON}")
    if probe.returncode != 0:
        pytest.skip("needs Debian's gir1.2-gst-rtsp-server-1.0 and python3-gi")


@dataclass(frozen=True)
class ServerStats:
    """Clients now; connections so far; RTP packets that were sent, lost, sent out of order."""

    clients: int
    connections: int
    sent: int
    lost: int
    late: int


class RtspServer:
    """The server; a context manager. Over TCP and UDP, as the client asks.

    Args:
        clip: What to play, over and over: H.264 or HEVC in any file, or what ``clips.annexb``
            makes. Several of one codec: ``play_clip`` chooses. None: a test picture with a
            clock in it that ``clock_picture.read`` reads.
        fps: Of a clip from ``clips.annexb``, or of the test picture.
        user, password, digest: Ask for a login.
        port: A free one if 0.
        codec, size, b_frames: Of the test picture; ``size`` in pixels, even.
        mounts: Serve ``/stream0`` .. , each with a pipeline of its own.
        close_after_s: Close every connection after so long.
    """

    def __init__(
        self,
        clip: Path | Sequence[Path] | None = None,
        fps: float = 30.0,
        user: str | None = None,
        password: str = "",
        digest: bool = False,
        port: int = 0,
        codec: rtp.Codec = "h264",
        size: tuple[int, int] = (320, 180),
        b_frames: int = 0,
        mounts: int = 1,
        close_after_s: float | None = None,
    ) -> None:
        self._clips = [clip] if isinstance(clip, Path) else list(clip or [])
        self._arguments = ["--fps", str(fps), "--codec", codec, "--mounts", str(mounts)]
        self._arguments += ["--width", str(size[0]), "--height", str(size[1])]
        self._arguments += ["--b-frames", str(b_frames)]
        if user is not None:
            self._arguments += ["--user", user, f"--password={password}"]
        if digest:
            self._arguments.append("--digest")
        if close_after_s is not None:
            self._arguments += ["--close-after-s", str(close_after_s)]
        self.port = port
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._complaints: IO[bytes] | None = None

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self.port}/stream"

    def url_of(self, mount: int) -> str:
        """Of one of several mounts."""
        return f"{self.url}{mount}"

    def start(self) -> None:
        """Serve; after ``kill`` on the same port."""
        self._complaints = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [
                SYSTEM_PYTHON, "-m", "tests.lab.rtsp_server",
                *self._arguments, *self._clip_arguments(), "--port", str(self.port),
            ],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )  # fmt: skip
        try:
            self.port = int(self._line())
        except BaseException:
            self.kill()
            raise

    def _clip_arguments(self) -> list[str]:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="vidserve-lab-")
        arguments = []
        for number, clip in enumerate(self._clips):
            path = clip
            if clip.suffix != ".h264":
                path = Path(self._folder.name, f"{number}.units")
                if not path.exists():
                    source = rtp.coded(clip)
                    units = zip(source.pts_s, map(rtp.annexb, source.units), strict=True)
                    write_units(path, source.codec, source.fps, units)
            arguments += ["--clip", str(path.absolute())]
        return arguments

    def mute(self, on: bool = True, mount: int | None = None) -> None:
        """Send nothing, with the sessions open; or go on with what is on by then."""
        self._command(do="mute", on=on, mount=mount)

    def disturb(self, loss: float = 0.0, reorder: float = 0.0, mount: int | None = None) -> None:
        """From now on lose this share of the packets, and send this share out of order."""
        self._command(do="disturb", loss=loss, reorder=reorder, mount=mount)

    def play_clip(self, index: int, mount: int | None = None) -> None:
        """Go on with another clip, from its first picture, in the same sessions."""
        self._command(do="clip", index=index, mount=mount)

    def close_connections(self) -> None:
        """Close all of them; new ones are taken."""
        self._command(do="close")

    def stats(self, mount: int | None = None) -> ServerStats:
        """What the server counts."""
        return self._command(do="stats", mount=mount)

    def kill(self) -> None:
        """As a power cut; ``start`` brings it back on the same port."""
        process = self._process
        if process is None:
            return
        self._process = None
        process.kill()
        process.wait(20.0)
        for pipe in (process.stdin, process.stdout, self._complaints):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> RtspServer:
        with contextlib.ExitStack() as stack:
            stack.callback(self.__exit__)
            self.start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _command(self, **asked: object) -> ServerStats:
        process = self._process
        if process is None or process.stdin is None:
            raise AssertionError("the RTSP server does not run")
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return ServerStats(**json.loads(self._line()))

    def _line(self) -> str:
        """One line of the process; it answers every command with exactly one."""
        process = self._process
        assert process is not None and process.stdout is not None
        if select.select([process.stdout], [], [], _ANSWER_S)[0]:
            line = process.stdout.readline()
            if line.strip():
                return line
        assert self._complaints is not None
        self._complaints.seek(0)
        raise AssertionError(
            f"the RTSP server gives no answer: {self._complaints.read()[-2000:].decode()}"
        )
