"""A picture that is an array already, and how any picture is put into an input slot."""

from __future__ import annotations

import cv2
import numpy as np

from vidserve.capture.grey import shrink
from vidserve.capture.upright import Crop, box_of
from vidserve.frames import ByteArray, Letterbox

GREY = 114


class BgrPicture:
    """Picture over an array, upright.

    Args:
        bgr: uint8 (height, width, 3) BGR; rows may be padded.
        corrupt: The picture is damaged.
        crop: x1, y1, x2, y2 in shares: the picture is only this part, to the nearest pixels.
    """

    __slots__ = ("_bgr", "corrupt")

    rotation = 0

    def __init__(self, bgr: ByteArray, corrupt: bool = False, crop: Crop | None = None) -> None:
        if crop is not None:
            left, top, width, height = box_of(crop, bgr.shape[1], bgr.shape[0])
            bgr = bgr[top : top + height, left : left + width]
        self._bgr = bgr
        self.corrupt = corrupt

    @property
    def width(self) -> int:
        return int(self._bgr.shape[1])

    @property
    def height(self) -> int:
        return int(self._bgr.shape[0])

    def write_letterbox(self, pixels: ByteArray, geometry: Letterbox) -> None:
        """Shrink first (by areas; enlarge bilinearly), then swap the colours into the slot."""
        size = (geometry.inner_width, geometry.inner_height)
        smaller = size[0] < self.width or size[1] < self.height
        small = cv2.resize(
            self._bgr, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
        )
        framed(pixels, geometry)[:] = small[:, :, ::-1]

    def grey(self, side_limit: int) -> ByteArray:
        """Shrunk in colour, then made grey: see ``Picture``."""
        return np.asarray(cv2.cvtColor(shrink(self._bgr, side_limit), cv2.COLOR_BGR2GRAY), np.uint8)

    def to_bgr(self) -> ByteArray:
        """A copy of the picture."""
        return self._bgr.copy()


def framed(pixels: ByteArray, geometry: Letterbox) -> ByteArray:
    """The place of the picture in ``pixels``, a view; all around it is made grey.

    Args:
        pixels: uint8 (bucket height, bucket width, 3).
        geometry: Where the picture lies in it.
    """
    top, left = geometry.pad_top, geometry.pad_left
    bottom, right = top + geometry.inner_height, left + geometry.inner_width
    # A slot is used again by cameras of another aspect ratio: the grey is written each time.
    pixels[:top] = GREY
    pixels[bottom:] = GREY
    pixels[top:bottom, :left] = GREY
    pixels[top:bottom, right:] = GREY
    return pixels[top:bottom, left:right]
