"""Clips for tests, made by PyAV: a square that moves over a gradient, in any size and format."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.frame import PictureType
from av.video.stream import VideoStream

from vidserve.frames import ByteArray


def picture(index: int, width: int, height: int) -> ByteArray:
    """Frame ``index``: uint8 (height, width, 3) RGB; smooth, so that coding changes little."""
    x = np.linspace(0, 200, width, dtype=np.float32)[None, :]
    y = np.linspace(0, 200, height, dtype=np.float32)[:, None]
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[..., 0] = np.broadcast_to(x, (height, width))
    pixels[..., 1] = np.broadcast_to(y, (height, width))
    pixels[..., 2] = 60
    side = max(2, min(width, height) // 5)
    left = (index * max(1, width // 60)) % max(1, width - side)
    top = (height - side) // 2
    pixels[top : top + side, left : left + side] = (230, 40, 40)
    return pixels


def write(
    path: Path,
    width: int = 320,
    height: int = 180,
    fps: int = 30,
    frames: int = 60,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    pts: list[int] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write a clip; ``pts`` in units of 1/1000 s for a variable rate. Returns the path."""
    if options is None:
        quick = {"preset": "ultrafast", "bf": "0", "g": "30", "crf": "18"}
        options = quick if codec == "libx264" else {}
    with av.open(f"file:{path}", "w", options=container_options or {}) as output:
        stream = output.add_stream(codec, rate=fps, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.codec_context.thread_count = 1
        if pts is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(index, width, height), format="rgb24")
            if pts is not None:
                frame.pts, frame.time_base = pts[index], Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def annexb(source: Path, target: Path) -> Path:
    """The H.264 track as a byte stream with an access unit delimiter before each picture."""
    with av.open(f"file:{source}") as container, target.open("wb") as out:
        stream = container.streams.video[0]
        chain = "h264_mp4toannexb,h264_metadata=aud=insert"
        to_units = av.BitStreamFilterContext(chain, stream)
        for packet in container.demux(stream):
            if packet.size == 0:
                continue
            for unit in to_units.filter(packet):
                out.write(bytes(unit))
    return target


def for_rtsp(source: Path, folder: Path) -> tuple[Path, float]:
    """Any clip as ``annexb`` wants it: as it is if that can be, else encoded anew.

    Returns:
        The byte stream, and its frames a second.
    """
    with av.open(f"file:{source}") as given:
        track = given.streams.video[0]
        rate = Fraction(track.average_rate or 25)
        context = track.codec_context
        fit = context.name == "h264" and not context.has_b_frames
        if not fit:
            plain = folder / f"{source.stem}.plain.mp4"
            with av.open(f"file:{plain}", "w") as output:
                options = {"preset": "veryfast", "bf": "0", "g": str(round(2 * rate)), "crf": "22"}
                stream = output.add_stream("libx264", rate=rate, options=options)
                assert isinstance(stream, VideoStream)
                stream.width, stream.height = context.width, context.height
                stream.pix_fmt = "yuv420p"
                for index, frame in enumerate(given.decode(track)):
                    frame.pts, frame.time_base = index, 1 / rate
                    frame.pict_type = PictureType.NONE
                    output.mux(stream.encode(frame))
                output.mux(stream.encode())
            source = plain
    return annexb(source, folder / f"{source.stem}.h264"), float(rate)


def rotate(source: Path, target: Path, degrees: int) -> Path:
    """Copy a clip and give it a display matrix of this rotation (counterclockwise)."""
    with av.open(f"file:{source}") as given, av.open(f"file:{target}", "w") as output:
        track = given.streams.video[0]
        copy = output.add_stream_from_template(track)
        copy.set_display_rotation(degrees)
        for packet in given.demux(track):
            if packet.size:
                packet.stream = copy
                output.mux(packet)
    return target
