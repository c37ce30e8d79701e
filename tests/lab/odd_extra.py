"""More kinds of odd files, found by trying; see ``odd_kinds``."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.lab.odd_files import TS_PACKET, encode, part, remux
from tests.lab.odd_kinds import JPEG, ONE, SIZE, TALL, X265_30, Make, Right, made

SECOND_BEST = {"deadline": "good", "cpu-used": "4", "auto-alt-ref": "1", "lag-in-frames": "16"}
CENC = {
    "encryption_scheme": "cenc-aes-ctr",
    "encryption_key": "76a6c65c5ea762046bd749a2e632ccbb",
    "encryption_kid": "a7e61c373e219033c21091fa607bf3b8",
}


def _renamed(suffix: str, **more: Any) -> Make:
    """A byte stream without a suffix that tells what it is."""
    return lambda path: encode(part(path, f"a.{suffix}"), **more).rename(path)


def _without_index(path: Path) -> None:
    data = encode(part(path, "a.avi"), codec="mpeg4").read_bytes()
    path.write_bytes(data[: data.index(b"idx1")])


def _begun_fragments(path: Path) -> None:
    """Fragments without what comes before the first: a segment of a stream, alone."""
    movflags = {"movflags": "frag_keyframe+empty_moov"}
    data = encode(part(path, "a.mp4"), frames=24, muxer=movflags).read_bytes()
    path.write_bytes(data[data.index(b"moof") - 4 :])


def _turned_by_exif(path: Path) -> None:
    """A photograph of a telephone: orientation 6, to be turned clockwise."""
    data = encode(part(path, "a.jpg"), **JPEG, **ONE).read_bytes()
    entry = struct.pack("<HHHIII", 1, 0x112, 3, 1, 6, 0)
    tag = b"Exif\0\0II*\0" + struct.pack("<I", 8) + entry
    path.write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(tag) + 2) + tag + data[2:])


def _ts_packets(path: Path, **more: Any) -> list[bytes]:
    data = encode(part(path, "a.ts"), frames=60, crf="5", **more).read_bytes()
    return [data[at : at + TS_PACKET] for at in range(0, len(data), TS_PACKET)]


def _out_of_order(path: Path) -> None:
    """Some packets after their next one, as the network brings them."""
    packets = _ts_packets(path)
    for at in range(20, len(packets) - 1, 17):
        packets[at], packets[at + 1] = packets[at + 1], packets[at]
    path.write_bytes(b"".join(packets))


def _without_tables(path: Path) -> None:
    """No table says what is in the stream."""
    tables = (0, 17, 4096)
    kept = [p for p in _ts_packets(path) if ((p[1] & 31) << 8 | p[2]) not in tables]
    path.write_bytes(b"".join(kept))


def _lost(at: int, **more: Any) -> Make:
    """One whole picture of 48 is not there; a key picture comes every 24."""
    return lambda path: remux(
        encode(part(path, f"a{path.suffix}"), **{"frames": 48, "g": "24", **more}),
        path,
        lambda index, packet: None if index == at else packet,
    )


MORE_PLAY: dict[str, tuple[Make, Right]] = {
    "one.avif": (made("libsvtav1", frames=1), Right(1)),
    "animated.avif": (made("libsvtav1"), Right(12)),
    "disc.m2ts": (made(container="mpegts", muxer={"mpegts_m2ts_mode": "1"}), Right(12)),
    "tape.dv": (made("dvvideo", size=(720, 576), fps=25, frames=5), Right(5, [(720, 576)])),
    "disc.vob": (made("mpeg2video", fps=25), Right(12, usual_s=0.04)),
    "no_index.avi": (_without_index, Right(12)),
    "no_facts.flv": (made(muxer={"flvflags": "no_metadata"}), Right(12)),
    "bare_h264": (_renamed("h264"), Right(12)),
    "bare_hevc": (_renamed("hevc", codec="libx265"), Right(12)),
    "bare_jpegs": (_renamed("mjpeg", **JPEG), Right(12)),
    "slices.h264": (made(**{"x264-params": "slices=4"}), Right(12)),
    "16_b_frames.mkv": (
        made(preset="fast", bf="16", g="60", frames=60, **{"x264-params": "ref=16"}),
        Right(60, usual_s=0.1, most_s=0.11, lasts_s=5.9),
    ),
    "lossless.mp4": (made(pix_fmt="yuv444p", crf="0"), Right(12)),
    "422.mp4": (made(pix_fmt="yuv422p"), Right(12)),
    "gbr.mp4": (made("libx265", pix_fmt="gbrp"), Right(12)),
    "hidden_pictures.webm": (made("libvpx-vp9", frames=60, **SECOND_BEST), Right(60, lasts_s=5.9)),
    "ntsc.mp4": (made(fps=Fraction(30000, 1001)), Right(12, usual_s=0.0334)),
    "no_tables.ts": (_without_tables, Right(60)),
}

MORE_PARTLY: dict[str, tuple[Make, Right]] = {
    "turned.jpg": (_turned_by_exif, Right(1, [TALL])),
    "16384x16.mkv": (made("ffv1", size=(16384, 16), frames=2), Right(2, [(16384, 16)])),
    "out_of_order.ts": (_out_of_order, Right(60, [SIZE], damaged=5, degraded=True)),
    "lost_one.ts": (_lost(5), Right(47, damaged=10, degraded=True)),
    "lost_one.mp4": (_lost(5), Right(47, damaged=10, degraded=True)),
    "lost_one_hevc.ts": (_lost(5, codec="libx265", **X265_30), Right(degraded=True)),
    "lost_key.ts": (_lost(24), Right(damaged=10, degraded=True)),
}

MORE_FAIL: dict[str, tuple[Make, str]] = {
    "segment.mp4": (_begun_fragments, "cut short"),
    "locked.mp4": (made(muxer=CENC), "no frames decoded"),
}

# What is wrong with each today; see the files' patch. A mended one makes its test fail.
NOT_YET = {
    "lost_one.ts": "FFmpeg does not say that a whole picture is missing",
    "lost_one.mp4": "FFmpeg does not say that a whole picture is missing",
    "lost_key.ts": "FFmpeg does not say that a whole picture is missing",
}
