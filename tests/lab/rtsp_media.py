"""What the RTSP server plays, and what goes wrong on the way. Run by the system's python3.

GStreamer calls these from its streaming threads; the commands come from the main thread and set
single attributes.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gi  # type: ignore[import-not-found,import-untyped,unused-ignore]

from tests.lab import clock_picture
from tests.lab.unit_files import read_units

gi.require_version("Gst", "1.0")
from gi.repository import Gst  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: E402

DELIMITER = b"\x00\x00\x00\x01\x09"


@dataclass(frozen=True)
class Clip:
    """Coded pictures in decoding order: when each is shown (seconds from 0), and its bytes."""

    codec: str
    fps: float
    units: list[tuple[float, bytes]]

    @property
    def delay_s(self) -> float:
        """By how much pictures must be shown later, so that none is shown before it is sent."""
        return max(number / self.fps - shown_s for number, (shown_s, _) in enumerate(self.units))


def load(path: Path, fps: float) -> Clip:
    """A ``.units`` file, or a byte stream of H.264 with an access unit delimiter a picture."""
    if path.suffix == ".units":
        return Clip(*read_units(path))
    parts = path.read_bytes().split(DELIMITER)[1:]
    units = [(number / fps, DELIMITER + part) for number, part in enumerate(parts)]
    return Clip("h264", fps, units)


class ClipFeeder:
    """Pushes coded pictures into one client pipeline, as it asks for them, over and over.

    Attributes:
        wanted: The index of the clip to play: it begins with the next picture.
    """

    def __init__(self, clips: list[Clip], wanted: int) -> None:
        self.clips = clips
        self.wanted = wanted
        self._playing = wanted
        self._index = 0
        self._base_s = 0.0

    def feed(self, source: Any, _length: int) -> None:
        """Called by appsrc when it wants data."""
        clip = self.clips[self._playing]
        if self._index == len(clip.units) or self.wanted != self._playing:
            self._base_s += self._index / clip.fps
            self._index, self._playing = 0, self.wanted
            clip = self.clips[self._playing]
        shown_s, data = clip.units[self._index]
        buffer = Gst.Buffer.new_wrapped(data)
        buffer.dts = round((self._base_s + self._index / clip.fps) * Gst.SECOND)
        buffer.pts = round((self._base_s + shown_s + clip.delay_s) * Gst.SECOND)
        buffer.duration = round(Gst.SECOND / clip.fps)
        self._index += 1
        source.emit("push-buffer", buffer)


class PictureFeeder:
    """Draws a test picture with a clock when it is due, and pushes it raw."""

    def __init__(self, width: int, height: int, fps: float) -> None:
        self.wanted = 0
        self._size = (width, height)
        self._period_s = 1.0 / fps
        self._count = 0
        self._began_s: float | None = None

    def feed(self, source: Any, _length: int) -> None:
        """Called by appsrc, which stamps the picture with the moment it comes."""
        if self._began_s is None:
            self._began_s = time.monotonic()
        due_s = self._began_s + self._count * self._period_s
        time.sleep(max(0.0, due_s - time.monotonic()))  # this is what paces the camera
        picture = clock_picture.draw(*self._size, time.monotonic(), self._count)
        self._count += 1
        source.emit("push-buffer", Gst.Buffer.new_wrapped(picture))


class Disturbance:
    """Loses, reorders or holds back the RTP packets of one mount.

    Attributes:
        loss: Share of packets that is dropped, 0..1.
        reorder: Share of packets that is sent after its successor, 0..1.
        muted: Nothing is sent; the pictures pass.
        sent, lost, late: Packets so far.
    """

    def __init__(self, seed: int = 1) -> None:
        self.loss = 0.0
        self.reorder = 0.0
        self.muted = False
        self.sent = self.lost = self.late = 0
        self._random = random.Random(seed)
        self._held: Any = None
        self._passing = False

    def attach(self, pad: Any) -> None:
        """Watch the packets that leave a payloader."""
        kinds = Gst.PadProbeType.BUFFER | Gst.PadProbeType.BUFFER_LIST
        pad.add_probe(kinds, self._probe)

    def _probe(self, pad: Any, info: Any) -> Any:
        if self._passing:
            return Gst.PadProbeReturn.OK
        if not (self.loss or self.reorder or self.muted or self._held is not None):
            self.sent += 1
            return Gst.PadProbeReturn.OK
        # The packets of a fragmented picture come as a list: each has its own fate.
        if info.type & Gst.PadProbeType.BUFFER_LIST:
            whole = info.get_buffer_list()
            packets = [whole.get(index) for index in range(whole.length())]
        else:
            packets = [info.get_buffer()]
        going: list[Any] = []
        for packet in packets:
            if self.muted or self._random.random() < self.loss:
                self.lost += 1
            elif self._held is None and self._random.random() < self.reorder:
                self._held = packet
                self.late += 1
            else:
                going.append(packet)
                if self._held is not None:
                    going.append(self._held)
                    self._held = None
        self._passing = True  # the same thread, and the pad's lock is held
        try:
            for packet in going:
                self.sent += 1
                pad.push(packet)
        finally:
            self._passing = False
        return Gst.PadProbeReturn.DROP
