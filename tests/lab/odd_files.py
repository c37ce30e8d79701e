"""Odd and broken video files, made by PyAV and by hand: what ``test_capture_files`` plays.

Every picture is ``scene``: a grey ramp with one red square that moves, so that the fake detector
finds exactly one object in it, whatever the codec did to the rest.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.video.stream import VideoStream

from vidserve.frames import ByteArray

Size = tuple[int, int]
Packet: TypeAlias = "av.Packet[Any]"
X264 = {"preset": "ultrafast", "bf": "0", "g": "6", "crf": "18"}
X265 = {"preset": "ultrafast", "x265-params": "log-level=none:keyint=6:bframes=0"}
VPX = {"deadline": "realtime", "cpu-used": "8", "b": "1M"}
SVT = {"preset": "10", "crf": "1", "svtav1-params": "keyint=6:pred-struct=1"}
MPEG = {"b": "4M"}
OPTIONS = {
    "libx264": X264,
    "libx265": X265,
    "libvpx": VPX,
    "libvpx-vp9": VPX,
    "libsvtav1": SVT,
    **dict.fromkeys(("mpeg4", "mpeg2video", "wmv2", "flv", "h263"), MPEG),
}
TS_PACKET = 188


def square(index: int, size: Size) -> tuple[int, int, int]:
    """Left, top and side of the red square of frame ``index``, pixels."""
    width, height = size
    side = max(1, min(width, height) // 3)
    left = (width // 8 + index * max(1, width // 40)) % max(1, width - side)
    return left, max(0, height // 4), side


def scene(index: int, size: Size) -> ByteArray:
    """Frame ``index``: uint8 (height, width, 3) RGB."""
    width, height = size
    ramp = np.linspace(50, 120, width, dtype=np.float32).astype(np.uint8)
    pixels: ByteArray = np.repeat(np.tile(ramp, (height, 1))[:, :, None], 3, axis=2)
    left, top, side = square(index, size)
    pixels[top : top + side, left : left + side] = (220, 30, 30)
    return pixels


def still(_index: int, size: Size) -> ByteArray:
    """The same picture every time."""
    return scene(0, size)


def black(_index: int, size: Size) -> ByteArray:
    """Nothing at all."""
    return np.zeros((size[1], size[0], 3), np.uint8)


def add_track(
    output: OutputContainer,
    codec: str,
    size: Size,
    fps: Fraction | int,
    pix_fmt: str,
    **options: str,
) -> VideoStream:
    """A video track of a file that is being written."""
    stream = output.add_stream(codec, rate=fps, options={**OPTIONS.get(codec, {}), **options})
    assert isinstance(stream, VideoStream)
    stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
    stream.codec_context.thread_count = 1
    return stream


def pictures(
    count: int,
    size: Size,
    draw: Callable[[int, Size], ByteArray] = scene,
    first: int = 0,
) -> Iterator[av.VideoFrame]:
    """Frames to encode, numbered from 0."""
    for index in range(count):
        frame = av.VideoFrame.from_ndarray(draw(first + index, size), format="rgb24")
        frame.pts = index
        yield frame


def encode(
    path: Path,
    codec: str = "libx264",
    size: Size = (96, 64),
    frames: int = 12,
    fps: Fraction | int = 10,
    pix_fmt: str = "yuv420p",
    draw: Callable[[int, Size], ByteArray] = scene,
    container: str | None = None,
    muxer: dict[str, str] | None = None,
    pts_ms: Sequence[int] | None = None,
    first: int = 0,
    interlaced: bool = False,
    **options: str,
) -> Path:
    """Write a clip of ``scene``; ``pts_ms`` makes the rate variable. Returns the path."""
    with av.open(f"file:{path}", "w", format=container, options=muxer or {}) as output:
        stream = add_track(output, codec, size, fps, pix_fmt, **options)
        if pts_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index, frame in enumerate(pictures(frames, size, draw, first)):
            frame.time_base = 1 / Fraction(fps)
            if pts_ms is not None:
                frame.pts, frame.time_base = pts_ms[index], Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def remux(
    source: Path,
    target: Path,
    change: Callable[[int, Packet], Packet | None] = lambda _index, packet: packet,
    container: str | None = None,
    muxer: dict[str, str] | None = None,
    bits: str | None = None,
    degrees: int = 0,
) -> Path:
    """Copy the packets of a clip, each as ``change`` leaves it, through a bitstream filter."""
    with (
        av.open(f"file:{source}") as given,
        av.open(f"file:{target}", "w", format=container, options=muxer or {}) as output,
    ):
        track = given.streams.video[0]
        copy = output.add_stream_from_template(track)
        if degrees:
            copy.set_display_rotation(degrees)
        chain = av.BitStreamFilterContext(bits, track) if bits else None
        index = 0
        for packet in given.demux(track):
            if not packet.size:
                continue
            for one in chain.filter(packet) if chain is not None else [packet]:
                changed = change(index, one)
                index += 1
                if changed is not None:
                    changed.stream = copy
                    output.mux(changed)
    return target


def joined(path: Path, *parts: Path) -> Path:
    """The bytes of all parts, one after the other."""
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def cut(source: Path, target: Path, share: float) -> Path:
    """The first ``share`` of a file's bytes."""
    data = source.read_bytes()
    target.write_bytes(data[: round(len(data) * share)])
    return target


def part(path: Path, name: str) -> Path:
    """A file to make something of, beside the one that is played."""
    folder = path.parent / "parts"
    folder.mkdir(exist_ok=True)
    return folder / f"{path.stem}-{name}"


def lossy_ts(source: Path, target: Path, every: int, first: int = 20) -> Path:
    """A transport stream without every so-many-th packet."""
    data = source.read_bytes()
    packets = [data[at : at + TS_PACKET] for at in range(0, len(data), TS_PACKET)]
    kept = [one for i, one in enumerate(packets) if i < first or (i - first) % every]
    target.write_bytes(b"".join(kept))
    return target


def audio_track(output: OutputContainer, codec: str = "aac") -> AudioStream:
    stream = output.add_stream(codec, rate=48000 if codec == "libopus" else 44100)
    assert isinstance(stream, AudioStream)
    return stream


def sound(stream: AudioStream, seconds: float) -> Iterator[av.Packet[Any]]:
    """Silence, encoded."""
    rate = stream.codec_context.sample_rate
    count = round(rate * seconds)
    frame = av.AudioFrame.from_ndarray(np.zeros((1, count), np.float32), "fltp", "mono")
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    yield from stream.encode(frame)
    yield from stream.encode()


def drop_atoms(source: Path, target: Path, *names: bytes) -> Path:
    """An MP4 without some of its top-level boxes."""
    data, out, at = source.read_bytes(), io.BytesIO(), 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big") or len(data) - at
        if data[at + 4 : at + 8] not in names:
            out.write(data[at : at + size])
        at += size
    target.write_bytes(out.getvalue())
    return target


def two_tracks(
    path: Path, sizes: Sequence[Size], counts: Sequence[int], default: int | None = None
) -> Path:
    """Several video tracks, with so many pictures each; one may be the default."""
    with av.open(f"file:{path}", "w") as output:
        tracks = [add_track(output, "libx264", size, 10, "yuv420p") for size in sizes]
        if default is not None:
            for index, track in enumerate(tracks):
                flag = av.stream.Disposition.default if index == default else 0
                track.disposition = flag  # type: ignore[assignment]
        every = [pictures(n, size) for n, size in zip(counts, sizes, strict=True)]
        for index in range(max(counts)):
            for track, frames, count in zip(tracks, every, counts, strict=True):
                if index < count:
                    frame = next(frames)
                    frame.time_base = Fraction(1, 10)
                    output.mux(track.encode(frame))
        for track in tracks:
            output.mux(track.encode())
    return path


def without_headers(source: Path, target: Path, keep_sets: bool) -> Path:
    """H.264 or HEVC in a byte stream that begins after its key picture.

    Args:
        source: Byte stream (``.h264``, ``.hevc``).
        keep_sets: The parameter sets stay, as those of RTSP's SDP would.
    """
    data = source.read_bytes()
    hevc = source.suffix == ".hevc"
    units = data.split(b"\x00\x00\x01")[1:]
    kept = []
    for unit in units:
        kind = (unit[0] >> 1) & 63 if hevc else unit[0] & 31
        is_set = kind in ((32, 33, 34) if hevc else (7, 8))
        is_key = 16 <= kind <= 21 if hevc else kind == 5
        if is_key or (is_set and not keep_sets):
            continue
        kept.append(unit)
    target.write_bytes(b"".join(b"\x00\x00\x01" + unit for unit in kept))
    return target


def moved(milliseconds: int) -> Callable[[int, Packet], Packet]:
    """For ``remux``: all timestamps later by so much."""

    def change(_index: int, packet: Packet) -> Packet:
        assert packet.pts is not None and packet.dts is not None
        by = int(Fraction(milliseconds, 1000) / packet.time_base)
        packet.pts, packet.dts = packet.pts + by, packet.dts + by
        return packet

    return change


def stamped(pts: int | None) -> Callable[[int, Packet], Packet]:
    """For ``remux``: the same timestamp for all, or none."""

    def change(_index: int, packet: Packet) -> Packet:
        packet.pts = packet.dts = pts
        return packet

    return change


def scrambled(
    which: Callable[[int], bool] = lambda _index: True,
) -> Callable[[int, Packet], Packet]:
    """For ``remux``: random bytes in place of some packets."""
    rng = np.random.default_rng(1)

    def change(index: int, packet: Packet) -> Packet:
        if not which(index):
            return packet
        junk = av.Packet(rng.bytes(max(50, packet.size)))
        junk.pts, junk.dts, junk.time_base = packet.pts, packet.dts, packet.time_base
        junk.is_keyframe = packet.is_keyframe
        return junk

    return change


def with_sound(path: Path, codec: str = "aac", broken: bool = False, video: bool = True) -> Path:
    """A clip with an audio track, whose packets may be random bytes; or that track alone."""
    rng = np.random.default_rng(2)
    with av.open(f"file:{path}", "w") as output:
        voice = audio_track(output, codec)
        track = add_track(output, "libx264", (96, 64), 10, "yuv420p") if video else None
        for packet in sound(voice, 1.0):
            one = av.Packet(rng.bytes(packet.size)) if broken else packet
            one.pts, one.dts, one.time_base = packet.pts, packet.dts, packet.time_base
            one.stream = voice
            output.mux(one)
        if track is not None:
            for frame in pictures(12, (96, 64)):
                frame.time_base = Fraction(1, 10)
                output.mux(track.encode(frame))
            output.mux(track.encode())
    return path


def with_cover(path: Path, video: bool) -> Path:
    """An audio file with a cover picture, and perhaps a video track after it."""
    with av.open(f"file:{path}", "w") as output:
        voice = audio_track(output)
        cover = add_track(output, "mjpeg", (64, 64), 1, "yuvj420p")
        cover.disposition = av.stream.Disposition.attached_pic
        track = add_track(output, "libx264", (96, 64), 10, "yuv420p") if video else None
        for frame in pictures(1, (64, 64)):
            frame.time_base = Fraction(1, 1)
            output.mux(cover.encode(frame))
        output.mux(cover.encode())
        for packet in sound(voice, 1.0):
            output.mux(packet)
        if track is not None:
            for frame in pictures(12, (96, 64)):
                frame.time_base = Fraction(1, 10)
                output.mux(track.encode(frame))
            output.mux(track.encode())
    return path


def resized_vp9(path: Path) -> Path:
    """VP9 that changes its size in mid-stream, in one IVF file."""
    parts = [
        encode(part(path, f"{size[0]}.ivf"), "libvpx-vp9", size=size)
        for size in ((96, 64), (64, 48))
    ]
    with av.open(f"file:{path}", "w", format="ivf") as output:
        track = add_track(output, "libvpx-vp9", (96, 64), 10, "yuv420p")
        number = 0
        for one in parts:
            with av.open(f"file:{one}") as given:
                for packet in given.demux():
                    if packet.size:
                        copy = av.Packet(bytes(packet))
                        copy.pts = copy.dts = number
                        copy.time_base, copy.stream = Fraction(1, 10), track
                        number += 1
                        output.mux(copy)
    return path


def with_junk(source: Path, target: Path, every: int, before: int = 0) -> Path:
    """A transport stream with random bytes between its packets."""
    rng, data = np.random.default_rng(3), source.read_bytes()
    step = TS_PACKET * every
    pieces = [data[at : at + step] + rng.bytes(37) for at in range(0, len(data), step)]
    target.write_bytes(rng.bytes(before) + b"".join(pieces))
    return target


def subtitled(path: Path) -> Path:
    """Matroska whose first track is text."""
    with av.open(f"file:{path}", "w") as output:
        text = output.add_mux_stream("subrip")
        track = add_track(output, "libx264", (96, 64), 10, "yuv420p")
        word = av.Packet(b"hello")
        word.pts = word.dts = 0
        word.time_base, word.duration, word.stream = Fraction(1, 1000), 500, text
        output.mux(word)
        for frame in pictures(12, (96, 64)):
            frame.time_base = Fraction(1, 10)
            output.mux(track.encode(frame))
        output.mux(track.encode())
    return path
