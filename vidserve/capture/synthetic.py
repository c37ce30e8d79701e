"""A camera that is a formula: bright rectangles that move by a known law, and faults on order.

``synthetic://?width=640&height=360&fps=30&objects=3&seed=1`` plus, for tests:

- ``duration_s``: the source ends there (else it is endless)
- ``fail_after_s``: the connection is lost there
- ``hang_after_s``: ``read`` blocks there until ``abort``; with ``deaf=1`` it ignores ``abort``,
  for ``hang_s`` seconds (an hour by default)
- ``corrupt_every=n``: every n-th picture is marked as damaged
"""

from __future__ import annotations

import colorsys
import random
import threading
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

import cv2
import numpy as np

from vidserve.capture.bgr_picture import framed
from vidserve.capture.grey import shrunk_size
from vidserve.capture.reader import Arrival, SourceFacts
from vidserve.clock import Clock
from vidserve.errors import SourceSilent, SourceUnreachable, SourceUnusable
from vidserve.frames import ByteArray, FloatArray, Letterbox

SCHEME = "synthetic"
BACKGROUND = 24
GREY = 114
_LOW, _HIGH = 30, 250


@dataclass(frozen=True, slots=True)
class SyntheticOptions:
    """What the URL says; see the module."""

    width: int = 640
    height: int = 360
    fps: float = 30.0
    objects: int = 3
    seed: int = 1
    duration_s: float | None = None
    fail_after_s: float | None = None
    hang_after_s: float | None = None
    hang_s: float = 3600.0
    deaf: bool = False
    corrupt_every: int = 0

    @classmethod
    def parse(cls, url: str) -> SyntheticOptions:
        """From a URL.

        Raises:
            SourceUnusable: names the option that is unknown or out of range.
        """
        parts = urlsplit(url)
        # "synthetic:?a" and "synthetic://?a" are both fine.
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        values: dict[str, int | float | bool] = {}
        for key, text in given.items():
            kind = _KINDS.get(key)
            if kind is None:
                raise SourceUnusable(
                    f"synthetic source: unknown option {key!r}; known: {', '.join(_KINDS)}"
                )
            try:
                values[key] = bool(int(text)) if kind is bool else kind(text)
            except ValueError:
                raise SourceUnusable(
                    f"synthetic source: {key} has to be a number, not {text!r}"
                ) from None
        options = cls(**values)  # type: ignore[arg-type]
        if not (1 <= options.width <= 16384 and 1 <= options.height <= 16384):
            raise SourceUnusable("synthetic source: width and height have to be 1 to 16384")
        if not (0.0 < options.fps <= 1000.0 and 0 <= options.objects <= 100):
            raise SourceUnusable("synthetic source: fps up to 1000, objects up to 100")
        return options


_KINDS: dict[str, type[int] | type[float] | type[bool]] = {
    "width": int,
    "height": int,
    "fps": float,
    "objects": int,
    "seed": int,
    "duration_s": float,
    "fail_after_s": float,
    "hang_after_s": float,
    "hang_s": float,
    "deaf": bool,
    "corrupt_every": int,
}


class SyntheticScene:
    """Where the rectangles are at any time. Each keeps to a lane of its own: none overlap.

    Attributes:
        colours: uint8 (n, 3) RGB, saturated: one channel at least 96, max - min over 80.
    """

    def __init__(self, width: int, height: int, objects: int, seed: int) -> None:
        rng = random.Random(seed)
        self.width = width
        self.height = height
        lane_px = height / max(1, objects)
        # Columns, one an object: size, room to move in, speed, phase; horizontally, vertically.
        size_y = np.array([lane_px * rng.uniform(0.5, 0.75) for _ in range(objects)])
        size_x = np.array([size * rng.uniform(0.6, 1.8) for size in size_y])
        size_x = np.minimum(size_x, 0.6 * width)
        self._size = np.stack([size_x, size_y], axis=1).reshape(objects, 2)
        self._room = np.stack([width - size_x, lane_px - size_y], axis=1).reshape(objects, 2)
        self._origin = np.zeros((objects, 2))
        self._origin[:, 1] = lane_px * np.arange(objects)
        speed_x = [width * rng.uniform(0.05, 0.25) * rng.choice((-1, 1)) for _ in range(objects)]
        speed_y = [lane_px * rng.uniform(0.0, 0.1) for _ in range(objects)]
        self._speed = np.stack([speed_x, speed_y], axis=1).reshape(objects, 2)
        self._start = self._room * np.array(
            [[rng.random(), rng.random()] for _ in range(objects)]
        ).reshape(objects, 2)
        first = rng.random()
        rgb = [
            colorsys.hsv_to_rgb((first + i / max(1, objects)) % 1.0, 1.0, 1.0)
            for i in range(objects)
        ]
        scaled = _LOW + np.array(rgb).reshape(objects, 3) * (_HIGH - _LOW)
        self.colours: ByteArray = scaled.astype(np.uint8)

    def truth(self, pts_s: float) -> FloatArray:
        """Boxes at a time of the source: float32 (n, 4), x1 y1 x2 y2, pixels."""
        # A triangle wave: there and back within the room.
        position = self._start + self._speed * pts_s
        phase = np.mod(position, 2.0 * self._room)
        low = self._origin + np.minimum(phase, 2.0 * self._room - phase)
        return np.concatenate([low, low + self._size], axis=1).astype(np.float32)

    def paint(self, pixels: ByteArray, boxes: FloatArray, colours: ByteArray) -> None:
        """Fill ``pixels``, uint8 (h, w, 3), with the background and ``boxes`` in its pixels."""
        pixels[:] = BACKGROUND
        for (x1, y1, x2, y2), colour in zip(
            np.rint(boxes).astype(np.int64).tolist(), colours, strict=True
        ):
            pixels[max(0, y1) : max(0, y2), max(0, x1) : max(0, x2)] = colour


class SyntheticPicture:
    """A picture that is painted only when asked for, at the size asked for."""

    __slots__ = ("_pts_s", "_scene", "corrupt")

    rotation = 0

    def __init__(self, scene: SyntheticScene, pts_s: float, corrupt: bool) -> None:
        self._scene = scene
        self._pts_s = pts_s
        self.corrupt = corrupt

    @property
    def width(self) -> int:
        return self._scene.width

    @property
    def height(self) -> int:
        return self._scene.height

    def write_letterbox(self, pixels: ByteArray, geometry: Letterbox) -> None:
        """Paint at the size of the slot: see ``Picture``."""
        scale_x = geometry.inner_width / geometry.width
        scale_y = geometry.inner_height / geometry.height
        boxes = self._scene.truth(self._pts_s) * np.array(
            [scale_x, scale_y, scale_x, scale_y], np.float32
        )
        self._scene.paint(framed(pixels, geometry), boxes, self._scene.colours)

    def grey(self, side_limit: int) -> ByteArray:
        """Painted at the small size: see ``Picture``."""
        width, height = shrunk_size(self.width, self.height, side_limit)
        pixels = np.empty((height, width, 3), np.uint8)
        scale = np.array([width / self.width, height / self.height] * 2, np.float32)
        self._scene.paint(pixels, self._scene.truth(self._pts_s) * scale, self._scene.colours)
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)

    def to_bgr(self) -> ByteArray:
        """At full size: see ``Picture``."""
        pixels = np.empty((self.height, self.width, 3), np.uint8)
        self._scene.paint(pixels, self._scene.truth(self._pts_s), self._scene.colours[:, ::-1])
        return pixels


class SyntheticReader:
    """Reader of a ``synthetic://`` source; paced like a file."""

    live = False
    reader_delay_s = 0.0
    bad_packets = 0
    skipped = 0

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._options = SyntheticOptions()
        self._scene: SyntheticScene | None = None
        self._index = 0
        self._aborted = threading.Event()

    @property
    def nominal_fps(self) -> float | None:
        return self._options.fps

    @property
    def scene(self) -> SyntheticScene:
        """Valid after ``open``."""
        if self._scene is None:
            raise AssertionError("the synthetic source is not open")
        return self._scene

    def open(self) -> None:
        self._options = SyntheticOptions.parse(self._url)
        self._scene = scene_of(self._url)
        self._index = 0

    def expected_pts_s(self) -> float | None:
        return self._index / self._options.fps

    def read(self) -> Arrival | None:
        options = self._options
        pts_s = self._index / options.fps
        if options.duration_s is not None and pts_s >= options.duration_s:
            return None
        if options.fail_after_s is not None and pts_s >= options.fail_after_s:
            raise SourceUnreachable("the synthetic source failed, as its URL asks")
        if self._aborted.is_set():
            raise SourceSilent("the synthetic source was aborted")
        if options.hang_after_s is not None and pts_s >= options.hang_after_s:
            self._hang()
        corrupt = options.corrupt_every > 0 and (self._index + 1) % options.corrupt_every == 0
        self._index += 1
        picture = SyntheticPicture(self.scene, pts_s, corrupt)
        return Arrival(picture, self._clock.now(), pts_s, waited_s=0.0, key=True)

    def hurry(self, on: bool) -> None:
        """Nothing is decoded here."""

    def catch_up(self) -> None:
        """Nothing waits here."""

    def facts(self) -> SourceFacts:
        return SourceFacts("synthetic", "a formula")

    def _hang(self) -> None:
        if not self._options.deaf:
            self._aborted.wait(self._options.hang_s)
            raise SourceSilent("the synthetic source was aborted")
        threading.Event().wait(self._options.hang_s)

    def rewind(self) -> None:
        self._index = 0

    def abort(self) -> None:
        self._aborted.set()

    def close(self) -> None:
        self._scene = None


def scene_of(url: str) -> SyntheticScene:
    """The scene that a URL describes; tests compare with its ``truth``."""
    options = SyntheticOptions.parse(url)
    return SyntheticScene(options.width, options.height, options.objects, options.seed)
