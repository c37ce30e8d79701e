"""Pixels of files and streams, from the decoder on, against the ffmpeg binary's own output."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.stream import VideoStream

from tests.lab import clips
from tests.lab.raw_frames import (
    difference,
    ffmpeg_bgr,
    frame_of,
    inner,
    letterboxed,
    resized,
    scene,
)
from tests.test_capture_crop import ORIENTATIONS, by_numpy, matrix_of
from vidserve.capture.pyav_picture import AvPicture
from vidserve.capture.reader import Picture
from vidserve.capture.settings import CameraSettings
from vidserve.capture.source import open_reader
from vidserve.capture.upright import Orientation
from vidserve.clock import RealClock
from vidserve.frames import Bucket

VIDEOS = Path(__file__).resolve().parents[2] / "shared" / "videos"


def pictures_of(path: Path, most: int = 100) -> list[Picture]:
    reader = open_reader(CameraSettings("c", str(path), realtime=False), RealClock())
    reader.open()
    pictures: list[Picture] = []
    try:
        while len(pictures) < most and (arrival := reader.read()) is not None:
            pictures.append(arrival.picture)
    finally:
        reader.close()
    return pictures


def check_file(path: Path, most: int = 3) -> list[Picture]:
    """Every picture is what the ffmpeg binary gives out; shrunk, it is area scaling of that."""
    pictures = pictures_of(path, most)
    assert pictures
    width, height = pictures[0].width, pictures[0].height
    theirs = ffmpeg_bgr(path, len(pictures), width, height)
    for picture, expected in zip(pictures, theirs, strict=True):
        mean, most_apart = difference(picture.to_bgr(), expected)
        assert mean <= 0.5 and most_apart <= 2
        for bucket in (Bucket(96, 160), Bucket(71, 67)):
            pixels, geometry = letterboxed(picture, bucket)
            small = resized(expected, geometry.inner_width, geometry.inner_height)[:, :, ::-1]
            assert difference(inner(pixels, geometry), small)[0] <= 2.0
    return pictures


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "width", "height"),
    [
        ("libx264", "yuv420p", 426, 240),
        ("libx264", "yuv444p", 641, 361),
        ("libx264", "yuv422p", 322, 182),
        ("libx264", "yuv420p10le", 322, 182),
        ("libx264", "yuv422p10le", 130, 98),
        ("libx264", "gray", 130, 98),
        ("libx265", "yuv420p", 256, 144),
        ("libx265", "yuv420p10le", 256, 144),
        ("libx265", "yuv420p12le", 256, 144),
        ("mpeg4", "yuv420p", 130, 98),
        ("mjpeg", "yuvj420p", 320, 180),
        ("mjpeg", "yuvj422p", 131, 97),
        ("mjpeg", "yuvj444p", 131, 97),
        ("ffv1", "bgr0", 131, 97),
        ("ffv1", "gray", 90, 70),
        ("ffv1", "yuv411p", 90, 70),
        ("ffv1", "yuv410p", 90, 70),
        ("ffv1", "gbrp12le", 90, 70),
        ("ffv1", "yuva444p", 90, 70),
        ("ffv1", "gray16le", 90, 70),
        ("png", "rgb24", 91, 71),
        ("png", "rgb48be", 91, 71),
        ("png", "monob", 91, 71),
        ("qtrle", "rgb555be", 90, 70),
        ("prores_ks", "yuv422p10le", 130, 98),
        ("dnxhd", "yuv422p", 1280, 720),
        ("huffyuv", "bgra", 90, 70),
        ("v210", "yuv422p10le", 96, 70),
        ("rawvideo", "yuyv422", 90, 70),
    ],
)
def test_what_decoders_give_equals_ffmpegs_own_output(
    tmp_path: Path, codec: str, pix_fmt: str, width: int, height: int
) -> None:
    container = {"huffyuv": "avi"} | dict.fromkeys(("qtrle", "png", "dnxhd", "v210"), "mov")
    name = f"c.{container.get(codec, 'mkv')}"
    options = {"b": "75M"} if codec == "dnxhd" else None
    path = clips.write(
        tmp_path / name, width, height, frames=2, codec=codec, pix_fmt=pix_fmt, options=options
    )
    check_file(path)


def filtered_bits(source: Path, target: Path, filters: str) -> Path:
    """A copy of a clip whose track went through FFmpeg's bit stream filters."""
    with av.open(f"file:{source}") as given, av.open(f"file:{target}", "w") as output:
        track = given.streams.video[0]
        copy = output.add_stream_from_template(track)
        chain = av.BitStreamFilterContext(filters, track)
        for packet in given.demux(track):
            for out in chain.filter(packet if packet.size else None):
                out.stream = copy
                output.mux(out)
    return target


@pytest.mark.parametrize("crop", [(0, 6, 0, 2), (6, 4, 2, 6), (2, 0, 0, 0), (64, 8, 32, 30)])
def test_a_stream_that_crops_its_own_pictures(
    tmp_path: Path, crop: tuple[int, int, int, int]
) -> None:
    left, right, top, bottom = crop
    source = clips.write(tmp_path / "w.mp4", 320, 192, frames=2)
    path = filtered_bits(
        source,
        tmp_path / "c.h264",
        f"h264_mp4toannexb,h264_metadata=crop_left={left}:crop_right={right}"
        f":crop_top={top}:crop_bottom={bottom}",
    )
    first, *_ = check_file(path)
    # FFmpeg, asked for fast memory, leaves out of a crop on the left what is not aligned.
    assert first.width in (320 - left - right, 320 - right)
    assert first.height == 192 - top - bottom


@pytest.mark.parametrize(("matrix", "full"), [(1, 0), (1, 1), (9, 0), (6, 1), (7, 0), (2, 0)])
def test_the_colours_that_a_stream_claims(tmp_path: Path, matrix: int, full: int) -> None:
    source = clips.write(tmp_path / "w.mp4", 320, 192, frames=2)
    path = filtered_bits(
        source,
        tmp_path / "c.h264",
        f"h264_mp4toannexb,h264_metadata=matrix_coefficients={matrix}:video_full_range_flag={full}",
    )
    first, *_ = check_file(path)
    plain = pictures_of(source)[0]
    apart, _ = difference(first.to_bgr(), plain.to_bgr())
    assert (apart > 1.0) == ((matrix, full) != (2, 0) and (matrix, full) != (6, 0))
    assert (first.grey(640) == plain.grey(640)).all()  # luma as it is


@pytest.mark.parametrize("matrix", [3, 8, 10, 14])
def test_colours_that_swscale_does_not_know_are_taken_as_usual(tmp_path: Path, matrix: int) -> None:
    """A camera that claims YCgCo, ICtCp or a reserved number was refused as unconvertible."""
    source = clips.write(tmp_path / "w.mp4", 320, 192, frames=2)
    path = filtered_bits(
        source,
        tmp_path / "c.h264",
        f"h264_mp4toannexb,h264_metadata=matrix_coefficients={matrix}",
    )
    if matrix == 10:
        twin = filtered_bits(
            source, tmp_path / "t.h264", "h264_mp4toannexb,h264_metadata=matrix_coefficients=9"
        )
    else:
        twin = source
    ours, usual = pictures_of(path)[0], pictures_of(twin)[0]
    assert (ours.to_bgr() == usual.to_bgr()).all()
    assert (letterboxed(ours, Bucket(64, 64))[0] == letterboxed(usual, Bucket(64, 64))[0]).all()


def test_a_range_that_changes_in_mid_stream(tmp_path: Path) -> None:
    source = clips.write(tmp_path / "w.mp4", 320, 192, frames=2)
    whole = tmp_path / "c.h264"
    expected = []
    for full in (0, 1, 0):
        part = filtered_bits(
            source,
            tmp_path / f"{full}.h264",
            f"h264_mp4toannexb,h264_metadata=video_full_range_flag={full}",
        )
        with whole.open("ab") as out:
            out.write(part.read_bytes())
        expected += [(p.to_bgr(), letterboxed(p, Bucket(64, 64))[0]) for p in pictures_of(part)]
    found = pictures_of(whole)
    assert len(found) == len(expected) == 6
    for picture, (bgr, small) in zip(found, expected, strict=True):
        assert (picture.to_bgr() == bgr).all()
        assert (letterboxed(picture, Bucket(64, 64))[0] == small).all()
    assert difference(expected[0][0], expected[2][0])[0] > 3.0


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_turned_and_mirrored_files_are_shown_upright(
    tmp_path: Path, orientation: Orientation
) -> None:
    """All eight ways in which a display matrix can lay a picture, by its bytes in the file."""
    plain = clips.write(tmp_path / "p.mp4", 320, 180, frames=2)
    data = bytearray(plain.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    little = np.frombuffer(matrix_of(orientation), "=i4")
    data[at : at + 36] = little.astype(">i4").tobytes()
    path = tmp_path / "t.mp4"
    path.write_bytes(data)
    first, *_ = check_file(path)
    assert (first.width, first.height) == orientation.size(320, 180)
    assert first.rotation == orientation.degrees
    coded = pictures_of(plain)[0]
    assert (first.to_bgr() == by_numpy(orientation, coded.to_bgr())).all()
    assert (first.grey(640) == by_numpy(orientation, coded.grey(640))).all()


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_turned_pictures_say_by_how_much(tmp_path: Path, degrees: int) -> None:
    clip = clips.write(tmp_path / "p.mp4", 320, 180, frames=2)
    path = clips.rotate(clip, tmp_path / "r.mp4", degrees if degrees < 270 else -90)
    first, *_ = check_file(path)
    assert first.rotation == degrees


def test_raw_pictures_that_lie_bottom_up(tmp_path: Path) -> None:
    """As AVI has them. The decoder gives rows of negative length."""
    path = clips.write(tmp_path / "c.avi", 66, 42, frames=2, codec="rawvideo", pix_fmt="bgr24")
    upright = [picture.to_bgr() for picture in pictures_of(path)]
    data = bytearray(path.read_bytes())
    at = data.index(b"strf") + 16
    assert struct.unpack_from("<i", data, at) == (-42,)  # top down
    struct.pack_into("<i", data, at, 42)
    path.write_bytes(data)
    with av.open(str(path)) as given:
        assert next(given.decode(video=0)).planes[0].line_size < 0
    pictures = check_file(path)
    for picture, other in zip(pictures, upright, strict=True):
        assert (picture.to_bgr() == other[::-1]).all()


@pytest.mark.parametrize("codec", ["mpeg2video", "libx264"])
def test_interlaced_streams_are_shown_as_they_lie(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "c.ts"
    options = {"flags": "+ildct+ilme", "b": "8M", "top": "1"}
    if codec == "libx264":
        options = {"flags": "+ildct+ilme", "preset": "ultrafast", "x264-params": "tff=1"}
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=25, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 320, 192, "yuv420p"
        for index in range(3):
            woven = scene(320, 192, seed=index)
            woven[1::2] = np.roll(woven[1::2], 9, axis=1)
            output.mux(stream.encode(frame_of("yuv420p", woven)))
        output.mux(stream.encode())
    with av.open(str(path)) as given:
        assert next(given.decode(video=0)).interlaced_frame
    check_file(path)


def test_pixels_that_are_not_square_stay_as_coded(tmp_path: Path) -> None:
    source = clips.write(tmp_path / "w.mp4", 320, 192, frames=2)
    path = filtered_bits(
        source,
        tmp_path / "c.h264",
        "h264_mp4toannexb,h264_metadata=sample_aspect_ratio=64/45",
    )
    first, *_ = check_file(path)
    assert (first.width, first.height) == (320, 192)


@pytest.mark.real
@pytest.mark.parametrize(
    "name",
    ["rotated_90.mov", "rot90_metadata.mp4", "h264_10bit.mp4", "highway_osd_320x240.avi",
     "made/odd_641x361_yuv444.mp4", "made/portrait_1080x1920.mp4", "made/mjpeg_768x576.avi",
     "made/interlaced_tff_25i.ts", "av1_video.mkv", "no_duration.webm"],
)  # fmt: skip
def test_shared_videos_equal_ffmpegs_own_output(name: str) -> None:
    path = VIDEOS / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    pictures = check_file(path)
    assert all(isinstance(picture, AvPicture) for picture in pictures)
