"""Transport streams for soaks, cut into pictures, and what is made of them: torn, garbage."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import av
from av.video.codeccontext import VideoCodecContext

from tests.lab import clips

PACKET = 188
_NULL = b"\x47\x1f\xff\x10" + b"\xff" * (PACKET - 4)
_VIDEO_PID = 0x100  # FFmpeg's first track


@dataclass(frozen=True, slots=True)
class Stream:
    """A transport stream as its pictures, each with the tables that stand before it.

    Attributes:
        pictures: Bytes of each.
        keys: Which of them decoding can begin with.
        fps: How many a second.
    """

    pictures: tuple[bytes, ...]
    keys: frozenset[int]
    fps: float


def make(
    path: Path,
    seconds: float,
    sizes: Sequence[tuple[int, int]] = ((320, 180),),
    each_s: float = 1.0,
    fps: int = 30,
    gop: int = 15,
) -> Stream:
    """A clip whose picture size is the next of ``sizes`` every ``each_s`` seconds."""
    step = round(each_s * fps)
    frames = round(seconds * fps)
    with av.open(f"file:{path}", "w", format="mpegts") as output:
        track = None
        for first in range(0, frames, step if len(sizes) > 1 else frames):
            width, height = sizes[first // step % len(sizes)]
            encoder = _encoder(width, height, fps, gop)
            if track is None:
                track = output.add_stream("libx264", rate=fps)
                track.width, track.height, track.pix_fmt = width, height, "yuv420p"
                track.codec_context.thread_count = 1
            last = min(first + step, frames) if len(sizes) > 1 else frames
            for index in range(first, last + 1):
                frame = None
                if index < last:
                    pixels = clips.picture(index, width, height)
                    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                    frame.pts, frame.time_base = index, Fraction(1, fps)
                for packet in encoder.encode(frame):
                    packet.stream = track
                    output.mux(packet)
    return cut(path.read_bytes(), fps)


def _encoder(width: int, height: int, fps: int, gop: int) -> VideoCodecContext:
    encoder = av.CodecContext.create("libx264", "w")
    assert isinstance(encoder, VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
    encoder.time_base, encoder.framerate = Fraction(1, fps), Fraction(fps)
    encoder.thread_count = 1
    encoder.options = {"preset": "ultrafast", "tune": "zerolatency", "g": str(gop), "crf": "23"}
    return encoder


def cut(data: bytes, fps: float) -> Stream:
    """A transport stream with one video track, cut before each picture and its tables."""
    pictures: list[bytes] = []
    keys = set()
    begin = 0  # of the present picture, its tables included
    tables: int | None = None  # where the tables began that stand right before this packet
    begun = False
    for at in range(0, len(data), PACKET):
        pid = (data[at + 1] & 0x1F) << 8 | data[at + 2]
        if pid != _VIDEO_PID:
            tables = at if tables is None else tables
            continue
        if data[at + 1] & 0x40:  # a picture begins
            start = at if tables is None else tables
            if begun:
                pictures.append(data[begin:start])
            begin, begun = start, True
            if data[at + 3] & 0x20 and data[at + 4] > 0 and data[at + 5] & 0x40:
                keys.add(len(pictures))
        tables = None
    pictures.append(data[begin:])
    return Stream(tuple(pictures), frozenset(keys), fps)


def padded(stream: Stream, least: int = 16_384) -> Stream:
    """As a camera with a constant bit rate sends it: null packets up to ``least`` bytes a picture.

    FFmpeg's transport stream demuxer keeps the first 5 MB of a connection (its probe size), page
    by page as they come: for 5 minutes at the 17 kB/s of these small pictures, which looks like
    a leak (measured: RSS rose as the bytes came, and fell at 5 MB). Padded it takes 10 s.
    """
    pictures = tuple(
        one + _NULL * max(0, -((len(one) - least) // PACKET)) for one in stream.pictures
    )
    return replace(stream, pictures=pictures)


def torn(stream: Stream, seed: int = 1) -> Stream:
    """Every other picture with three wrong bytes in its data; the packets keep their headers."""
    rng = random.Random(seed)
    pictures = []
    for index, whole in enumerate(stream.pictures):
        picture = bytearray(whole)
        packets = len(picture) // PACKET
        if index % 2 and packets:
            for _ in range(3):
                at = rng.randrange(packets) * PACKET
                if (picture[at + 1] & 0x1F) << 8 | picture[at + 2] == _VIDEO_PID:
                    picture[at + rng.randrange(PACKET // 2, PACKET)] ^= 1 << rng.randrange(8)
        pictures.append(bytes(picture))
    return Stream(tuple(pictures), stream.keys, stream.fps)


def garbage(seconds: float, seed: int = 1, fps: float = 30.0, size: int = 4096) -> Stream:
    """No video at all: ``size`` random bytes, ``fps`` times a second."""
    rng = random.Random(seed)
    count = round(seconds * fps)
    return Stream(tuple(rng.randbytes(size) for _ in range(count)), frozenset(range(count)), fps)


def undecodable(path: Path) -> Path:
    """An MP4 that opens and says what it is, and of which not one picture can be decoded."""
    clips.write(path, frames=60)
    data = bytearray(path.read_bytes())
    at = data.index(b"mdat") + 4
    end = at - 8 + int.from_bytes(data[at - 8 : at - 4], "big")
    data[at:end] = bytes(end - at)
    path.write_bytes(data)
    return path
