"""How coded pictures become the pictures that are shown: turned, mirrored, cut."""

from __future__ import annotations

from typing import NamedTuple, Self

import cv2
import numpy as np

from vidserve.frames import ByteArray

Crop = tuple[float, float, float, float]  # x1, y1, x2, y2 in shares of the upright picture
_FLIPS = {(True, False): 1, (False, True): 0, (True, True): -1}


class Box(NamedTuple):
    """A part of a picture in whole pixels."""

    left: int
    top: int
    width: int
    height: int


class Orientation(NamedTuple):
    """How a coded picture lies: first columns become rows (``transposed``), then it is mirrored."""

    transposed: bool = False
    flip_x: bool = False
    flip_y: bool = False

    @classmethod
    def of_matrix(cls, matrix: bytes) -> Self:
        """From a display matrix: nine 32-bit numbers of this machine, as FFmpeg hands it out.

        Mirrored pictures are set right too. Where FFmpeg would turn by any angle, the nearest
        quarter is taken: boxes are upright.
        """
        # x' = a x + c y, y' = b x + d y. Only signs and sizes count, not the scale.
        a, b, _, c, d, *_ = np.frombuffer(matrix, np.int32).tolist()
        if abs(b) + abs(c) > abs(a) + abs(d):
            return cls(True, c < 0, b < 0)
        return cls(False, a < 0, d < 0)

    @classmethod
    def of_degrees(cls, degrees: int) -> Self:
        """From degrees counterclockwise, as ``VideoFrame.rotation`` counts them."""
        quarters = round(degrees / 90) % 4
        return cls(quarters % 2 == 1, quarters in (2, 3), quarters in (1, 2))

    @property
    def degrees(self) -> int:
        """Degrees counterclockwise, 0, 90, 180 or 270, as ``VideoFrame.rotation`` counts them."""
        if self.transposed:
            return 90 if self.flip_y else 270
        return 180 if self.flip_x else 0

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height as shown of a size as coded, and the other way round."""
        return (height, width) if self.transposed else (width, height)

    def apply(self, picture: ByteArray) -> ByteArray:
        """A coded picture, uint8 (h, w) or (h, w, channels), upright; itself if it was.

        OpenCV turns 640 x 360 pixels in 0.09 ms; a copy of NumPy's ``rot90`` takes 1.05.
        """
        if self.transposed:
            picture = np.asarray(cv2.transpose(picture), np.uint8)
        flip = _FLIPS.get((self.flip_x, self.flip_y))
        if flip is not None:
            picture = np.asarray(cv2.flip(picture, flip), np.uint8)
        return picture

    def coded(self, crop: Crop) -> Crop:
        """The same part of the picture as it is coded."""
        x1, y1, x2, y2 = crop
        if self.flip_x:
            x1, x2 = 1.0 - x2, 1.0 - x1
        if self.flip_y:
            y1, y2 = 1.0 - y2, 1.0 - y1
        return (y1, x1, y2, x2) if self.transposed else (x1, y1, x2, y2)


def box_of(crop: Crop, width: int, height: int, grid: tuple[int, int] = (1, 1)) -> Box:
    """The part of a picture in whole pixels: the nearest that begins and ends on a grid.

    Args:
        crop: In shares of this picture.
        width, height: Of this picture, in pixels.
        grid: Pixels that share their colour, across and down (2 x 2 for 4:2:0). Cut there, no
            colour shifts; the right and the lower edge of the picture count as on the grid.

    Returns:
        At least one cell of the grid, or what the edge of the picture leaves of it.
    """
    x1, y1, x2, y2 = crop
    left, right = _bounds(x1 * width, x2 * width, width, grid[0])
    top, bottom = _bounds(y1 * height, y2 * height, height, grid[1])
    return Box(left, top, right - left, bottom - top)


def _bounds(low: float, high: float, size: int, cell: int) -> tuple[int, int]:
    first = min(max(0, round(low / cell) * cell), (size - 1) // cell * cell)
    last = round(high / cell) * cell
    if last > size or size - high <= abs(last - high):
        last = size
    return first, max(last, min(first + cell, size))
