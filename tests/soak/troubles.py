"""Cameras in every kind of trouble, each with the server that makes it so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import cv2

from tests.lab import clips
from tests.lab.servers import mjpeg_server, refusing_port, silent_server
from tests.running import synthetic
from tests.soak import streams
from tests.soak.sender import Channel, Sender

SHORT_WAITS = {"stall_s": 1.0, "start_s": 2.0}
"""For troubles that are noticed by a time-out, so that they are met often in a short run."""


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera's block in the config, as text and numbers."""

    source: str
    options: Mapping[str, object] = field(default_factory=dict)

    def line(self, name: str) -> str:
        """As YAML."""
        more = "".join(f", {key}: {value}" for key, value in self.options.items())
        return f"  {name}: {{source: '{self.source}'{more}}}\n"


def jpegs(count: int = 10) -> list[bytes]:
    """Pictures for an MJPEG server."""
    encoded = []
    for index in range(count):
        good, data = cv2.imencode(".jpg", clips.picture(index, 320, 180)[:, :, ::-1])
        assert good
        encoded.append(data.tobytes())
    return encoded


@contextlib.contextmanager
def troubles(folder: Path, stream: streams.Stream) -> Iterator[dict[str, Camera]]:
    """One camera of each kind, served until the end.

    Args:
        folder: For the files that are made.
        stream: A good one.
    """
    flapping = streams.make(folder / "flapping.ts", 8.0, ((320, 180), (480, 270), (160, 120)))
    channels = {
        "frozen": Channel(stream, freeze_after_s=2.0),
        "closes": Channel(stream, close_after_s=1.0),
        "garbage": Channel(streams.garbage(4.0)),
        "torn": Channel(streams.torn(stream)),
        "flapping": Channel(flapping),
    }
    empty = folder / "zero_bytes.webm"
    empty.touch()
    undecodable = streams.undecodable(folder / "undecodable.mp4")
    with (
        Sender(list(channels.values())),
        silent_server() as silent,
        mjpeg_server(jpegs(), user="joe", password="right") as locked,
    ):
        found = {name: Camera(one.url, SHORT_WAITS) for name, one in channels.items()}
        found |= {
            "refused": Camera(f"rtsp://127.0.0.1:{refusing_port()}/stream"),
            "silent": Camera(f"rtsp://127.0.0.1:{silent}/stream", SHORT_WAITS),
            "locked": Camera(locked, {"username": "joe", "password": "wrong"}),
            "unknown_host": Camera("rtsp://no-such-camera.invalid/stream"),
            "empty": Camera(str(empty)),
            "undecodable": Camera(str(undecodable)),
            "deaf": Camera(synthetic(320, 180, hang_after_s=1, deaf=1), SHORT_WAITS),
        }
        yield found
