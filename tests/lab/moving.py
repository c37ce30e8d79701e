"""Rendered scenes with known motion: textured boards that move before a textured wall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import cv2
import numpy as np

from vidserve.frames import ByteArray, FloatArray, Regions

MARGIN_PX = 200  # of wall beyond the picture


def texture(width: int, height: int, contrast: float, seed: int) -> FloatArray:
    """Blotches of several sizes about grey 128; ``contrast`` is their standard deviation."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width), np.float32)
    for blur_px in (1.0, 3.0, 8.0):
        noise = rng.normal(size=(height, width)).astype(np.float32)
        smooth = cv2.GaussianBlur(noise, (0, 0), blur_px)
        total += smooth / smooth.std()
    scaled: FloatArray = (128.0 + contrast * total / total.std()).astype(np.float32)
    return scaled


@dataclass(frozen=True)
class Board:
    """A flat thing of ``width`` x ``height`` pixels.

    Attributes:
        centre: Where its middle is at a time in seconds, x and y, in pixels of the wall.
        scale: How large it is at a time; 1 is ``width`` x ``height``.
        contrast: Of its texture; 0 is a plain grey.
        share: The part of its middle that is solid, 0..1: through the rest shines the wall.
    """

    width: int
    height: int
    centre: Callable[[float], tuple[float, float]]
    scale: Callable[[float], float] = lambda time_s: 1.0
    contrast: float = 35.0
    share: float = 1.0

    def box(self, time_s: float) -> tuple[float, float, float, float]:
        """x1, y1, x2, y2."""
        x, y = self.centre(time_s)
        half_x, half_y = self.width / 2 * self.scale(time_s), self.height / 2 * self.scale(time_s)
        return x - half_x, y - half_y, x + half_x, y + half_y


def still(x: float, y: float) -> Callable[[float], tuple[float, float]]:
    """A centre that stays."""
    return lambda time_s: (x, y)


def line(x: float, y: float, dx: float, dy: float) -> Callable[[float], tuple[float, float]]:
    """A centre that moves by ``dx, dy`` pixels per second."""
    return lambda time_s: (x + dx * time_s, y + dy * time_s)


@dataclass
class MovingScene:
    """What a camera sees of a wall and of boards before it; later boards are in front.

    Attributes:
        camera: Where the upper left corner of the picture is on the wall, x and y.
        noise: Standard deviation of the sensor's noise, grey levels.
    """

    boards: list[Board]
    width: int = 640
    height: int = 360
    camera: Callable[[float], tuple[float, float]] = lambda time_s: (0.0, 0.0)
    noise: float = 0.0
    seed: int = 1
    _wall: FloatArray = field(init=False, repr=False)
    _faces: list[FloatArray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = (self.width + 2 * MARGIN_PX, self.height + 2 * MARGIN_PX)
        self._wall = texture(*size, 25.0, self.seed)
        self._faces = [
            texture(board.width, board.height, board.contrast, 100 * self.seed + number)
            if board.contrast
            else np.full((board.height, board.width), 90.0, np.float32)
            for number, board in enumerate(self.boards)
        ]

    def boxes(self, time_s: float) -> FloatArray:
        """Of the boards in pixels of the picture, float32 (n, 4)."""
        x, y = self.camera(time_s)
        boxes = [np.array(board.box(time_s)) - (x, y, x, y) for board in self.boards]
        return np.array(boxes, np.float32).reshape(-1, 4)

    def grey(self, time_s: float) -> ByteArray:
        """The picture, uint8 (height, width)."""
        x, y = self.camera(time_s)
        size = (self.width, self.height)
        shift = np.array([[1, 0, -x - MARGIN_PX], [0, 1, -y - MARGIN_PX]], np.float64)
        picture = cv2.warpAffine(self._wall, shift, size, flags=cv2.INTER_LINEAR)
        for board, face, box in zip(
            self.boards, self._faces, self.boxes(time_s).tolist(), strict=True
        ):
            scale = board.scale(time_s)
            place = np.array([[scale, 0, box[0]], [0, scale, box[1]]])
            solid = np.zeros_like(face)
            margin = round((1.0 - board.share) / 2 * board.width)
            solid[:, margin : board.width - margin] = 1.0
            mask = cv2.warpAffine(solid, place, size, flags=cv2.INTER_LINEAR)
            seen = cv2.warpAffine(face, place, size, flags=cv2.INTER_LINEAR)
            picture = picture * (1.0 - mask) + seen * mask
        if self.noise:
            rng = np.random.default_rng(round(time_s * 1e4) + self.seed)
            picture = picture + rng.normal(scale=self.noise, size=picture.shape)
        return np.asarray(np.clip(np.rint(picture), 0, 255), np.uint8)

    def regions(self, seq: int, time_s: float) -> Regions:
        """The true boxes; ids are 1, 2, ..."""
        ids = np.arange(1, len(self.boards) + 1, dtype=np.int32)
        return Regions(seq, time_s, self.width, self.height, ids, self.boxes(time_s))


def overlap(boxes: FloatArray, others: FloatArray) -> FloatArray:
    """Intersection over union, row by row: (n, 4) and (n, 4) to (n,)."""
    low = np.maximum(boxes[:, :2], others[:, :2])
    high = np.minimum(boxes[:, 2:], others[:, 2:])
    both = np.prod(np.maximum(high - low, 0.0), axis=1)
    areas = [np.prod(array[:, 2:] - array[:, :2], axis=1) for array in (boxes, others)]
    shares: FloatArray = both / (areas[0] + areas[1] - both)
    return shares
