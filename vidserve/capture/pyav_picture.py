"""A decoded picture of PyAV: scaled in its own planes, turned upright at the small size."""

from __future__ import annotations

from functools import lru_cache

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter

from vidserve.capture.grey import shrink, shrunk_size
from vidserve.frames import ByteArray, Letterbox

GREY = 114
# Area averaging: 1.1 ms at 1080p to 640x360, bilinear 1.6 ms, and nearer to cv2's INTER_AREA
# (mean difference 0.8 of 255, bilinear 1.1). Enlarging, swscale makes it bilinear by itself.
_SCALE = Interpolation.AREA


class AvPicture:
    """Picture over a ``VideoFrame``; any pixel format, bit depth and range that swscale reads.

    Args:
        frame: As decoded, not rotated.
        reformatter: Of the reader: it keeps its tables while the sizes stay the same.
        corrupt: The picture is damaged.
    """

    __slots__ = ("_frame", "_quarters", "_reformatter", "corrupt")

    def __init__(self, frame: av.VideoFrame, reformatter: VideoReformatter, corrupt: bool) -> None:
        self._frame = frame
        self._reformatter = reformatter
        self.corrupt = corrupt
        # PyAV: degrees counterclockwise that bring the picture upright, -180..180.
        self._quarters = round(frame.rotation / 90) % 4

    @property
    def width(self) -> int:
        return self._frame.height if self._quarters % 2 else self._frame.width

    @property
    def height(self) -> int:
        return self._frame.width if self._quarters % 2 else self._frame.height

    def write_letterbox(self, pixels: ByteArray, geometry: Letterbox) -> None:
        """Scale and convert in one step (swscale, without the interpreter lock), then copy."""
        width, height = geometry.inner_width, geometry.inner_height
        if self._quarters % 2:
            width, height = height, width
        small = self._reformatter.reformat(
            self._frame, width, height, "rgb24", interpolation=_SCALE, threads=1
        )
        picture = _rows(small, 3 * width, height).reshape(height, width, 3)
        top, left = geometry.pad_top, geometry.pad_left
        bottom, right = top + geometry.inner_height, left + geometry.inner_width
        pixels[:top] = GREY
        pixels[bottom:] = GREY
        pixels[top:bottom, :left] = GREY
        pixels[top:bottom, right:] = GREY
        pixels[top:bottom, left:right] = np.rot90(picture, self._quarters)

    def grey(self, side_limit: int) -> ByteArray:
        """The luma plane, shrunk, as it is: no colours are converted, limited range stays.

        Formats that have none of 8 bits in a plane of its own are converted at the small size.
        """
        width, height = self._frame.width, self._frame.height
        if _has_luma_plane(self._frame.format.name):
            small = shrink(_rows(self._frame, width, height), side_limit)
        else:
            width, height = shrunk_size(width, height, side_limit)
            converted = self._reformatter.reformat(
                self._frame, width, height, "gray", interpolation=_SCALE, threads=1
            )
            small = _rows(converted, width, height)
        # A copy at any rate: what is kept of it must not keep the decoder's picture.
        return np.array(np.rot90(small, self._quarters), order="C")

    def to_bgr(self) -> ByteArray:
        """The whole picture, upright: uint8 (height, width, 3) BGR."""
        # Bicubic, as FFmpeg's own conversion is: it matters where chroma is enlarged.
        whole = self._frame.to_ndarray(
            format="bgr24", interpolation=Interpolation.BICUBIC, threads=1
        ).astype(np.uint8, copy=False)
        return np.ascontiguousarray(np.rot90(whole, self._quarters))


def _rows(frame: av.VideoFrame, row_bytes: int, height: int) -> ByteArray:
    """The first plane without the padding of its rows, uint8 (height, row_bytes), not copied."""
    plane = frame.planes[0]
    padded = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    return padded[:height, :row_bytes]


@lru_cache(maxsize=64)
def _has_luma_plane(pixel_format: str) -> bool:
    """Whether the first plane is luma of 8 bits and nothing else."""
    described = av.VideoFormat(pixel_format, 2, 2)
    luma, *others = described.components
    return (
        luma.is_luma
        and luma.bits == 8
        and not described.has_palette
        and all(other.plane != luma.plane for other in others)
    )
