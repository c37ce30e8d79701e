"""A decoded picture of PyAV: scaled in its own planes, turned upright at the small size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import lru_cache
from typing import Any, NamedTuple

import av
import av.error
import av.filter
import cv2
import numpy as np
import numpy.typing as npt
from av.sidedata.sidedata import SideData, SideDataContainer
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from vidserve.capture.bgr_picture import BgrPicture, framed
from vidserve.capture.grey import shrink, shrunk_size
from vidserve.capture.upright import Box, Crop, Orientation, box_of
from vidserve.errors import SourceUnusable
from vidserve.frames import ByteArray, Letterbox

# Area averaging into planes of red, green and blue: 0.7 ms at 1080p to 640x360, and nearest to
# the truth (mean difference 0.8 of 255). Into rgb24, which is what a slot holds, swscale takes
# 1.05 ms, halves the colours' width and is 2 levels too dark; bilinear it takes 1.7 ms.
# Enlarging, swscale makes it bilinear by itself.
_SCALE = Interpolation.AREA
# As FFmpeg's own conversion: it matters where chroma is enlarged.
_WHOLE = Interpolation.BICUBIC
_UPRIGHT = Orientation()
_MOST_GRAPHS = 4
# Of sides smaller than this swscale leaves pixels out instead of averaging them (of 2 rows it
# takes one), and few samples of colour are spread otherwise than at full size. Such pictures, and
# such crops (of 1080p 0.7 to 3.5 ms), are converted whole.
_TINY_PX = 32

# What a stream may claim of its colours and swscale 9 knows no matrix for: it would refuse the
# picture. FFmpeg took BT.601 for all of them until then, and BT.2020 for its second form.
_KNOWN_SPACES = frozenset({0, 1, 2, 4, 5, 6, 7, 9})  # AVCOL_SPC_*
_BT2020_CL = 10

# swscale 9.5 ends the whole process on these (an assertion).
_DEADLY = frozenset({"yaf32be", "yaf32le"})
# It does not swap their bytes on the way to bgr24 (a mean error of 73 levels).
_UNSWAPPED = frozenset({"rgb555be", "rgb565be", "bgr555be", "bgr565be"})


class AvPicture:
    """Picture over a ``VideoFrame``; any pixel format, bit depth and range that swscale reads.

    The colours are those that ``ffmpeg -pix_fmt bgr24`` makes: the stream's own matrix and
    range, BT.601 and limited range where it names none. Pixels stay as coded where they are not
    square, and the two fields of an interlaced picture as they lie, row by row: what is shown
    is what was coded.

    Args:
        frame: As decoded, not rotated, in main memory.
        reformatter: Of the reader: it keeps its tables while the sizes stay the same.
        corrupt: The picture is damaged.
        crop: x1, y1, x2, y2 in shares of the upright picture: the picture is only this part, to
            the nearest pixels that do not cut a colour sample in two (even ones for 4:2:0).
    """

    __slots__ = ("_box", "_frame", "_orientation", "_reformatter", "corrupt")

    def __init__(
        self,
        frame: av.VideoFrame,
        reformatter: VideoReformatter,
        corrupt: bool,
        crop: Crop | None = None,
    ) -> None:
        self._frame = frame
        self._reformatter = reformatter
        self.corrupt = corrupt
        self._orientation = _orientation(frame)
        self._box: Box | None = None  # as coded
        if crop is not None:
            grid = _traits(frame.format.name).grid
            self._box = box_of(self._orientation.coded(crop), frame.width, frame.height, grid)

    @property
    def rotation(self) -> int:
        return self._orientation.degrees

    @property
    def width(self) -> int:
        return self._orientation.size(*self._coded_size())[0]

    @property
    def height(self) -> int:
        return self._orientation.size(*self._coded_size())[1]

    def write_letterbox(self, pixels: ByteArray, geometry: Letterbox) -> None:
        """Scale and convert in one step (swscale, without the interpreter lock), then copy.

        Raises:
            SourceUnusable: pictures of this format cannot be converted.
        """
        if not self._scales:
            BgrPicture(self.to_bgr()).write_letterbox(pixels, geometry)
            return
        width, height = self._orientation.size(geometry.inner_width, geometry.inner_height)
        frame = _cut(self._frame, self._box)
        slot = framed(pixels, geometry)
        if (width, height) == (frame.width, frame.height):
            # Of 4:2:0 to planes, not scaled, swscale 9.5 leaves up to 31 columns at the right
            # unwritten.
            same = _convert(self._reformatter, frame, width, height, "rgb24", _WHOLE)
            rgb = _rows(same, 3 * width, height).reshape(height, width, 3)
            slot[:] = self._orientation.apply(rgb)
            return
        small = _convert(self._reformatter, frame, width, height, "gbrp", _SCALE)
        green, blue, red = (
            self._orientation.apply(_rows(small, width, height, plane)) for plane in range(3)
        )
        cv2.merge((red, green, blue), dst=slot)

    def grey(self, side_limit: int) -> ByteArray:
        """The luma plane, shrunk, as it is: no colours are converted, limited range stays.

        Formats that have none in a plane of its own are converted at the small size.

        Raises:
            SourceUnusable: pictures of this format cannot be converted.
        """
        traits = _traits(self._frame.format.name)
        width, height = self._coded_size()
        if traits.luma_bytes:
            luma = _rows(self._frame, self._frame.width * traits.luma_bytes, self._frame.height)
            if traits.luma_bytes == 1:
                small = shrink(_part(luma, self._box), side_limit)
            else:
                deep = shrink(_part(luma.view("<u2"), self._box), side_limit)
                small = np.asarray(cv2.convertScaleAbs(deep, alpha=traits.luma_scale), np.uint8)
        elif self._scales:
            width, height = shrunk_size(width, height, side_limit)
            frame = _cut(self._frame, self._box)
            # The same range and matrix on both sides, whatever they are: luma stays as it is.
            converted = _convert(
                self._reformatter, frame, width, height, "gray", _SCALE,
                Colorspace.ITU601, ColorRange.JPEG,
            )  # fmt: skip
            small = _rows(converted, width, height)
        else:
            return BgrPicture(self.to_bgr()).grey(side_limit)
        # A copy at any rate: what is kept of it must not keep the decoder's picture.
        return np.array(self._orientation.apply(small), order="C")

    def to_bgr(self) -> ByteArray:
        """The whole picture, upright: uint8 (height, width, 3) BGR. Any thread.

        Raises:
            SourceUnusable: pictures of this format cannot be converted.
        """
        # Converted whole, then cut: at its edges a picture's colours depend on what is beyond.
        bgr = _part(_bgr(_cut(self._frame, None)), self._box)
        return np.array(self._orientation.apply(bgr), order="C")

    @property
    def _scales(self) -> bool:
        return _traits(self._frame.format.name).scales and min(self._coded_size()) >= _TINY_PX

    def _coded_size(self) -> tuple[int, int]:
        box = self._box
        return (self._frame.width, self._frame.height) if box is None else (box.width, box.height)


def _orientation(frame: av.VideoFrame) -> Orientation:
    # frame.side_data would be kept by the frame, and the frame by it: the decoder's memory then
    # waits for the garbage collector.
    try:
        side_data = SideDataContainer(frame)  # type: ignore[call-arg]
    except ValueError:
        # PyAV 18 does not know every kind that FFmpeg 8 has (EXIF, as telephones and some JPEG
        # cameras send it, is number 31): the angle has to do, mirrored pictures stay so.
        return Orientation.of_degrees(frame.rotation)
    matrix = side_data.get("DISPLAYMATRIX")
    return Orientation.of_matrix(bytes(matrix)) if isinstance(matrix, SideData) else _UPRIGHT


class _Traits(NamedTuple):
    """What has to be known of a pixel format.

    Attributes:
        scales: swscale shrinks it well. Others (bayer, palettes, bits, floats, 4 and 5 bits a
            colour) it does not, or by up to 6 levels differently: they are converted whole.
        luma_bytes: Bytes a pixel of the first plane, if that is luma and nothing else; or 0.
        luma_scale: What brings its values to 8 bits.
        grid: Pixels that share a colour sample, across and down.
    """

    scales: bool
    luma_bytes: int
    luma_scale: float
    grid: tuple[int, int]


@lru_cache(maxsize=512)
def _traits(name: str) -> _Traits:
    described = av.VideoFormat(name, 16, 16)
    components = described.components
    if not components:  # of hardware: in main memory there is none of it
        return _Traits(False, 0, 1.0, (1, 1))
    bits = [component.bits for component in components]
    floats = "f16" in name or "f32" in name
    regular = not (described.has_palette or described.is_bit_stream or described.is_bayer or floats)
    scales = regular and min(bits) >= 8 and max(bits) <= 16 and name != "uyyvyy411"
    luma, *others = components
    alone = scales and luma.is_luma and all(other.plane != luma.plane for other in others)
    luma_bytes = 1 if luma.bits == 8 else 2
    if luma_bytes == 2 and described.is_big_endian:
        alone = False
    # p010 and its kin, and those that say so, have their bits at the upper end of the word.
    high = name.startswith("p") or "msb" in name
    grid = (16 // described.chroma_width(16), 16 // described.chroma_height(16))
    return _Traits(
        scales,
        luma_bytes if alone else 0,
        1 / 256 if high else 2.0 ** (8 - luma.bits),
        (2, 2) if described.is_bayer else grid,
    )


def _convert(
    reformatter: VideoReformatter,
    frame: av.VideoFrame,
    width: int,
    height: int,
    pixel_format: str,
    interpolation: Interpolation,
    space: Colorspace | None = None,
    color_range: ColorRange | None = None,
) -> av.VideoFrame:
    """``frame`` in another size and format; itself if that is what it has.

    ``space`` and ``color_range`` take the place of what frame and result have.
    """
    name = frame.format.name
    failure = f"pictures of format {name}, {frame.width}x{frame.height}, cannot be converted"
    # Of a single row of bayer no colours can be made; swscale ends the process.
    if name in _DEADLY or (frame.format.is_bayer and frame.height < 2):
        raise SourceUnusable(failure)
    if space is None and frame.colorspace not in _KNOWN_SPACES:
        space = Colorspace.BT2020 if frame.colorspace == _BT2020_CL else Colorspace.ITU601
    try:
        return reformatter.reformat(
            frame,
            width,
            height,
            pixel_format,
            src_colorspace=space,
            dst_colorspace=space,
            interpolation=interpolation,
            src_color_range=color_range,
            dst_color_range=color_range,
            threads=1,
        )
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise SourceUnusable(f"{failure}: {error}") from error


def _bgr(frame: av.VideoFrame) -> ByteArray:
    """A frame at its full size, as it is coded; uint8 (h, w, 3), perhaps its own memory."""
    width, height, name = frame.width, frame.height, frame.format.name
    reformatter = VideoReformatter()  # the reader's is made for another size
    if name in _UNSWAPPED:
        frame = _convert(reformatter, frame, width, height, f"{name[:-2]}le", _WHOLE)
    converted = _convert(reformatter, frame, width, height, "bgr24", _WHOLE)
    return _rows(converted, 3 * width, height).reshape(height, width, 3)


class _Graphs(threading.local):
    """Filter graphs of this thread, the latest used last. Made in 0.4 ms, used in 5 us.

    A thread's, not a reader's: pictures may be looked at by others than their capture thread.
    """

    def __init__(self) -> None:
        self.made: OrderedDict[tuple[str, int, int, Box | None], av.filter.Graph] = OrderedDict()


_graphs = _Graphs()


def _cut(frame: av.VideoFrame, box: Box | None) -> av.VideoFrame:
    """The part of a frame, over the same memory, with what FFmpeg's tool does not look at unsaid.

    PyAV's reformatter scales the fields of an interlaced picture each for itself, which leaves
    a comb in the small picture: a mean difference of 3.8 levels from area scaling, at most 140.
    And it moves colours to where the stream says they were taken, the tool does not.
    """
    name = frame.format.name
    key = (name, frame.width, frame.height, box)
    try:
        graph = _graphs.made.pop(key, None) or _graph(*key)
        graph.vpush(frame)
        part = graph.vpull()
    except (av.error.FFmpegError, OSError) as error:
        raise SourceUnusable(f"pictures of format {name} cannot be cut: {error}") from error
    _graphs.made[key] = graph
    if len(_graphs.made) > _MOST_GRAPHS:
        _graphs.made.popitem(last=False)
    return part


def _graph(name: str, width: int, height: int, box: Box | None) -> av.filter.Graph:
    graph = av.filter.Graph()
    graph.threads = 1  # or it would start as many as there are cores
    nodes = [graph.add("buffer", f"video_size={width}x{height}:pix_fmt={name}:time_base=1/1000")]
    if box is not None:
        # Moves the pointers to the planes; no pixel is copied.
        nodes.append(graph.add("crop", f"{box.width}:{box.height}:{box.left}:{box.top}:exact=1"))
    nodes.append(graph.add("setparams", "field_mode=prog:chroma_location=unspecified"))
    nodes.append(graph.add("buffersink"))
    graph.link_nodes(*nodes)
    graph.configure()
    return graph


def _part(rows: npt.NDArray[Any], box: Box | None) -> npt.NDArray[Any]:
    if box is None:
        return rows
    return rows[box.top : box.top + box.height, box.left : box.left + box.width]


def _rows(frame: av.VideoFrame, row_bytes: int, height: int, index: int = 0) -> ByteArray:
    """A plane without the padding of its rows, uint8 (height, row_bytes), not copied.

    Copied where it lies bottom up in memory (raw video in AVI): OpenCV reads rows downwards.
    """
    plane = frame.planes[index]
    padded = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, abs(plane.line_size))
    if plane.line_size < 0:
        return np.ascontiguousarray(padded[::-1][:height, :row_bytes])
    return padded[:height, :row_bytes]
