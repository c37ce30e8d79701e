"""Frames as decoders give them, in any pixel format, and what FFmpeg itself makes of them."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from pathlib import Path

import av
import av.filter
import cv2
import numpy as np
import pytest
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import Interpolation, VideoReformatter

from vidserve.capture.reader import Picture
from vidserve.frames import Bucket, ByteArray, Letterbox

HARDWARE = frozenset(
    "amf cuda d3d11 d3d11va_vld d3d12 drm_prime dxva2_vld mediacodec mmal ohcodec opencl qsv vaapi "
    "vdpau videotoolbox_vld vulkan".split()
)
# swscale 9.5 reads none of these; the last two end the process.
UNREADABLE = frozenset(
    "bgr4 rgb4 gbrap32be gbrap32le gray32be gray32le rgb96be rgb96le rgba128be rgba128le "
    "rgbaf32be rgbaf32le v30xbe x2bgr10be x2rgb10be xv30be y210be y212be y216be "
    "yaf32be yaf32le".split()
)
_ALL: set[str] = av.video.format.names  # type: ignore[attr-defined]
READABLE = sorted(_ALL - HARDWARE - UNREADABLE)


def scene(width: int, height: int, seed: int = 0) -> ByteArray:
    """uint8 (height, width, 3) RGB: fine texture in brightness, soft colours, as cameras see."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    pixels = np.stack(
        [
            60 + 120 * x / max(1, width - 1),
            70 + 110 * y / max(1, height - 1),
            110 + 45 * np.sin(x / 21 + seed) * np.cos(y / 17),
        ],
        axis=-1,
    )
    texture = np.random.default_rng(seed).normal(0.0, 9.0, (height, width, 1))
    return np.asarray(np.clip(pixels + texture, 0, 255), np.uint8)


def frame_of(name: str, rgb: ByteArray) -> av.VideoFrame:
    """A frame of a pixel format: ``rgb``, or if swscale cannot write that, something smooth."""
    height, width = rgb.shape[:2]
    if name.startswith("bayer"):
        return _mosaic(name, rgb)
    if name[:-2] in ("rgb555", "rgb565", "bgr555", "bgr565") and name.endswith("be"):
        frame = av.VideoFrame(width, height, name)  # swscale does not swap their bytes
        words = np.frombuffer(bytes(frame_of(f"{name[:-2]}le", rgb).planes[0]), "<u2")
        frame.planes[0].update(words.astype(">u2").tobytes())
        return frame
    flags = Interpolation.BICUBIC | Interpolation.ACCURATE_RND
    source = av.VideoFrame.from_ndarray(rgb, format="rgb24")
    try:
        return VideoReformatter().reformat(
            source, width, height, name, interpolation=flags, threads=1
        )
    except OSError:
        return _smooth(name, width, height)


def _mosaic(name: str, rgb: ByteArray) -> av.VideoFrame:
    height, width = rgb.shape[:2]
    frame = av.VideoFrame(width, height, name)
    order = name.split("_")[1][:4]
    cells = np.zeros((height, width), np.uint8)
    for place, colour in enumerate(order):
        rows, columns = slice(place // 2, None, 2), slice(place % 2, None, 2)
        cells[rows, columns] = rgb[rows, columns, "rgb".index(colour)]
    deep: np.ndarray[tuple[int, ...], np.dtype[np.uint8 | np.uint16]] = cells
    if "16" in name:
        deep = (cells.astype(np.uint16) * 257).astype("<u2" if name.endswith("le") else ">u2")
    _fill(frame, 0, deep.view(np.uint8).reshape(height, -1))
    return frame


def _smooth(name: str, width: int, height: int) -> av.VideoFrame:
    """Every plane rises from left to right, in numbers of the format's own kind."""
    frame = av.VideoFrame(width, height, name)
    kind = "u1"
    for text, code in (("f16", "f2"), ("f32", "f4")):
        if text in name:
            kind = (">" if name.endswith("be") else "<") + code
    for index, plane in enumerate(frame.planes):
        row_bytes = plane.line_size or plane.buffer_size
        ramp = np.linspace(0.1, 0.8, row_bytes // np.dtype(kind).itemsize)
        row = (ramp if kind != "u1" else 255 * ramp).astype(kind).view(np.uint8)
        _fill(frame, index, np.tile(row, (plane.buffer_size // row_bytes, 1)))
    return frame


def _fill(frame: av.VideoFrame, index: int, rows: ByteArray) -> None:
    plane = frame.planes[index]
    row_bytes = plane.line_size or plane.buffer_size
    whole = np.zeros((plane.buffer_size // row_bytes, row_bytes), np.uint8)
    whole[: rows.shape[0], : rows.shape[1]] = rows
    plane.update(whole.tobytes())


def filtered(frame: av.VideoFrame, *filters: tuple[str, str]) -> av.VideoFrame:
    """What a chain of FFmpeg's filters makes of a frame."""
    graph = av.filter.Graph()
    graph.threads = 1
    size = f"video_size={frame.width}x{frame.height}"
    facts = f"pix_fmt={frame.format.name}:colorspace={frame.colorspace}:range={frame.color_range}"
    nodes = [graph.add("buffer", f"{size}:{facts}:time_base=1/1000")]
    nodes += [graph.add(name, arguments or None) for name, arguments in filters]
    graph.link_nodes(*nodes, graph.add("buffersink")).configure()
    graph.vpush(frame)
    return graph.vpull()


def filtered_bgr(frame: av.VideoFrame) -> ByteArray:
    """uint8 (h, w, 3): FFmpeg's own conversion, by the filter graph that its tool would build."""
    chain = (("setparams", "field_mode=prog"), ("format", "bgr24"))
    return filtered(frame, *chain).to_ndarray().astype(np.uint8, copy=False)


def raw_bytes(frame: av.VideoFrame) -> bytes:
    """The planes without padding, as ``-f rawvideo`` reads them."""
    encoder = av.CodecContext.create("rawvideo", "w")
    assert isinstance(encoder, VideoCodecContext)
    encoder.width, encoder.height = frame.width, frame.height
    encoder.pix_fmt, encoder.time_base = frame.format.name, Fraction(1, 25)
    frame.pts = 0
    return b"".join(bytes(packet) for packet in encoder.encode(frame))


def ffmpeg(*arguments: str) -> bytes:
    """Run Debian's ffmpeg; what it writes to its standard output."""
    try:
        command = ["ffmpeg", "-v", "error", "-y", *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    except FileNotFoundError:
        pytest.skip("needs Debian's ffmpeg")


def ffmpeg_bgr(path: Path, count: int, width: int, height: int) -> ByteArray:
    """The first pictures of a file as FFmpeg gives them out: uint8 (count, height, width, 3)."""
    raw = ffmpeg(
        "-i", f"file:{path}", "-frames:v", str(count), "-f", "rawvideo", "-pix_fmt", "bgr24", "-"
    )
    return np.frombuffer(raw, np.uint8).reshape(count, height, width, 3)


def letterboxed(picture: Picture, bucket: Bucket) -> tuple[ByteArray, Letterbox]:
    """A picture in a slot of a bucket that something else was in before."""
    geometry = Letterbox.fit(picture.width, picture.height, bucket)
    pixels = np.full((bucket.height, bucket.width, 3), 7, np.uint8)
    picture.write_letterbox(pixels, geometry)
    return pixels, geometry


def inner(pixels: ByteArray, geometry: Letterbox) -> ByteArray:
    """The place of the picture in a slot."""
    top, left = geometry.pad_top, geometry.pad_left
    return pixels[top : top + geometry.inner_height, left : left + geometry.inner_width]


def resized(pixels: ByteArray, width: int, height: int) -> ByteArray:
    """Area scaling, or bilinear where both sides grow."""
    smaller = width < pixels.shape[1] or height < pixels.shape[0]
    way = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=way), np.uint8)


def difference(one: ByteArray, other: ByteArray) -> tuple[float, int]:
    """Mean and largest difference, in levels; the shapes have to be equal."""
    assert one.shape == other.shape
    apart = np.abs(one.astype(np.int16) - other)
    return float(apart.mean()), int(apart.max())
