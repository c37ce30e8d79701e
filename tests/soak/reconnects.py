"""Hundreds of reconnects: connections that are cut as soon as a frame of them was decoded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import clips
from tests.lab.servers import Relay, RtspServer, mjpeg_server
from tests.soak import streams
from tests.soak.measure import Sample, sample
from tests.soak.process import SoakedDaemon
from tests.soak.sender import Channel, Sender
from tests.soak.troubles import Camera, jpegs

WAITS = 0.02  # 10 ms before the first attempt, 0.6 s at most
_LOOK_S = 0.02
_SAMPLE_S = 1.0
_STUCK_S = 60.0

Progress = Callable[[int], None]


@dataclass(slots=True)
class _Cutter:
    """Cuts one camera's connection whenever it has brought a frame."""

    relay: Relay
    connections: int = 0  # when it was cut last
    captured: int | None = None  # when the present connection was seen first
    cuts: int = 0
    cut_s: float = field(default_factory=time.monotonic)

    def look(self, captured: int) -> bool:
        """Whether it was cut now; ``captured``: frames so far."""
        if self.relay.connections <= self.connections:
            return False
        if self.captured is None:
            self.captured = captured
            return False
        if captured <= self.captured:
            return False
        self.connections, self.captured = self.relay.connections, None
        self.relay.cut()
        self.cuts += 1
        self.cut_s = time.monotonic()
        return True


@contextlib.contextmanager
def relays(folder: Path, rtsp: int, mjpeg: int, ts: int) -> Iterator[dict[str, tuple[Relay, str]]]:
    """Cameras behind a relay each: name -> relay and URL.

    Args:
        folder: For clips.
        rtsp, mjpeg, ts: How many of each: GStreamer's server, HTTP, transport stream over TCP.
    """
    stream = streams.make(folder / "cut.ts", 30.0, gop=5)
    channel = Channel(stream)
    with contextlib.ExitStack() as stack:
        stack.enter_context(Sender([channel]))
        found: dict[str, tuple[Relay, str]] = {}
        if rtsp:
            options = {"preset": "ultrafast", "bf": "0", "g": "5", "crf": "23"}
            clip = clips.write(folder / "cut.mp4", frames=150, options=options)
            server = RtspServer(clips.annexb(clip, folder / "cut.h264"))
            stack.enter_context(server)
            for at in range(rtsp):
                relay = stack.enter_context(Relay(server.port))
                found[f"rtsp{at}"] = relay, f"rtsp://127.0.0.1:{relay.port}/stream"
        if mjpeg:
            url = stack.enter_context(mjpeg_server(jpegs()))
            port = int(url.split(":")[2].split("/")[0])
            for at in range(mjpeg):
                relay = stack.enter_context(Relay(port))
                found[f"mjpeg{at}"] = relay, f"http://127.0.0.1:{relay.port}/video"
        for at in range(ts):
            relay = stack.enter_context(Relay(channel.port))
            found[f"ts{at}"] = relay, f"tcp://127.0.0.1:{relay.port}"
        yield found


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it.

    Attributes:
        cuts: By camera.
        samples: About one a second.
        took_s: In all.
    """

    cuts: dict[str, int]
    samples: list[Sample]
    took_s: float


def run(
    folder: Path,
    count: int,
    cameras: dict[str, tuple[Relay, str]],
    reader: str = "auto",
    progress: Progress = lambda cuts: None,
    options: tuple[str, ...] = (),
) -> Result:
    """Cut ``count`` connections, one after the other of each camera, all cameras at once.

    Args:
        folder: For config and log.
        count: In all.
        cameras: From ``relays``.
        reader: Of the RTSP cameras.
        progress: Is told the cuts so far.
        options: For the child.

    Raises:
        AssertionError: a camera did not come back within a minute.
    """
    lines = []
    for name, (_, url) in cameras.items():
        more: dict[str, object] = {"reader": reader} if name.startswith("rtsp") else {}
        lines.append(Camera(url, more).line(name))
    text = "detector: {model: 'fake:3+1n', image_size: 320}\n"
    text += "outputs: [{jsonl: /dev/null}]\ncameras:\n" + "".join(lines)
    cutters = {name: _Cutter(relay) for name, (relay, _) in cameras.items()}
    samples: list[Sample] = []
    with SoakedDaemon(folder, text, WAITS, *options) as daemon:
        begun_s = time.monotonic()
        cuts = 0
        while cuts < count:
            now_s = time.monotonic()
            if not samples or now_s - begun_s - samples[-1].at_s >= _SAMPLE_S:
                samples.append(sample(daemon.pid, now_s - begun_s))
            seen = daemon.cameras()
            for name, cutter in cutters.items():
                cuts += cutter.look(seen[name]["captured"])
                if now_s - cutter.cut_s > _STUCK_S:
                    raise AssertionError(f"{name} does not come back: {seen[name]['reason']}")
            progress(cuts)
            time.sleep(_LOOK_S)
        took_s = time.monotonic() - begun_s
        samples.append(sample(daemon.pid, took_s))
        report = daemon.stop()
    assert report["unaccounted"] == [], report["unaccounted"]
    return Result({name: one.cuts for name, one in cutters.items()}, samples, took_s)
