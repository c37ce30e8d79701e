"""Pixels of decoded pictures: every format, size, range, colour space and orientation."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from tests.lab.raw_frames import (
    READABLE,
    UNREADABLE,
    difference,
    ffmpeg,
    filtered,
    filtered_bgr,
    frame_of,
    inner,
    letterboxed,
    raw_bytes,
    resized,
    scene,
)
from tests.lab.sink import CollectingSink, running
from vidserve.capture.bgr_picture import BgrPicture
from vidserve.capture.camera import CameraSettings
from vidserve.capture.pyav_picture import AvPicture
from vidserve.capture.reader import Arrival
from vidserve.capture.synthetic import SyntheticReader
from vidserve.clock import RealClock
from vidserve.errors import SourceUnusable
from vidserve.frames import Bucket, ByteArray, CameraState, DropReason

# What cameras and hardware decoders give: never converted whole on the way to the detector.
OF_CAMERAS = [
    "yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p", "yuv440p", "yuv411p",
    "yuv410p", "nv12", "nv21", "nv16", "nv24", "yuv420p9le", "yuv420p10le", "yuv422p10le",
    "yuv444p10le", "yuv420p12le", "yuv420p10be", "p010le", "p010be", "p012le", "p016le", "p210le",
    "p410le", "y210le", "yuyv422", "uyvy422", "yvyu422", "gray", "gray10le", "gray16be", "gbrp",
    "gbrp10le", "rgb24", "bgr24", "bgr0", "rgba",
]  # fmt: skip


def picture_of(frame: av.VideoFrame) -> AvPicture:
    return AvPicture(frame, VideoReformatter(), corrupt=False)


def check_letterbox(picture: AvPicture | BgrPicture, bucket: Bucket) -> None:
    """Within two levels, on average, of area scaling of the whole; grey around it."""
    pixels, geometry = letterboxed(picture, bucket)
    expected = resized(picture.to_bgr(), geometry.inner_width, geometry.inner_height)
    mean, _ = difference(inner(pixels, geometry), expected[:, :, ::-1])
    assert mean <= 2.0, (bucket, geometry)
    inner(pixels, geometry)[:] = 114
    assert (pixels == 114).all()


def luma_of(bgr: ByteArray, full: bool) -> ByteArray:
    grey = np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY), np.float32)
    return np.asarray(np.rint(grey if full else 16 + grey * 219 / 255), np.uint8)


def is_full_range(name: str) -> bool:
    return "yuvj" in name or not name.startswith(
        ("yuv", "yuyv", "yvyu", "uyv", "nv", "p0", "p2", "p4", "y2", "ayuv", "v30", "xv", "vuy",
         "vyu")
    )  # fmt: skip


@pytest.mark.parametrize("name", READABLE)
def test_every_pixel_format_equals_ffmpegs_own_conversion(name: str) -> None:
    for width, height in ((96, 72), (67, 41)):
        frame = frame_of(name, scene(width, height))
        picture = picture_of(frame)
        ours = picture.to_bgr()
        if name[:-2] in ("rgb555", "rgb565", "bgr555", "bgr565") and name.endswith("be"):
            twin = frame_of(f"{name[:-2]}le", scene(width, height))  # FFmpeg 8.1 has it wrong
            mean, most = difference(ours, filtered_bgr(twin))
        else:
            mean, most = difference(ours, filtered_bgr(frame))
        assert mean <= 0.5 and most <= 2
        for bucket in (Bucket(48, 48), Bucket(33, 45)):
            check_letterbox(picture, bucket)
        grey = picture.grey(50)
        whole = luma_of(ours, is_full_range(name))
        # An odd last row or column may be left out or not.
        even = whole[: height // 2 * 2, : width // 2 * 2]
        apart = [difference(grey, resized(w, grey.shape[1], grey.shape[0])) for w in (whole, even)]
        assert min(apart)[0] <= 2.0


def test_every_pixel_format_equals_the_ffmpeg_binary(tmp_path: Path) -> None:
    """Another version of FFmpeg, in one run for all formats that it knows too."""
    listed = [line.split() for line in ffmpeg("-pix_fmts").decode().splitlines()]
    known = {words[1] for words in listed if len(words) > 2 and words[0].startswith("I")}
    names = [name for name in READABLE if name in known]
    assert len(names) > 150
    for width, height in ((64, 48), (33, 17)):
        inputs: list[str] = []
        outputs: list[str] = []
        ours = {}
        # The two versions fill in the odd edge of bayer differently.
        names = [name for name in names if width % 2 == 0 or not name.startswith("bayer")]
        for index, name in enumerate(names):
            frame = frame_of(name, scene(width, height))
            (tmp_path / name).write_bytes(raw_bytes(frame))
            inputs += ["-f", "rawvideo", "-pix_fmt", name, "-s", f"{width}x{height}"]
            inputs += ["-i", f"file:{tmp_path / name}"]
            outputs += ["-map", str(index), "-frames:v", "1", "-f", "rawvideo"]
            outputs += ["-pix_fmt", "bgr24", f"file:{tmp_path / name}.bgr"]
            ours[name] = picture_of(frame).to_bgr()
        ffmpeg(*inputs, *outputs)
        for name in names:
            raw = np.frombuffer((tmp_path / f"{name}.bgr").read_bytes(), np.uint8)
            mean, most = difference(ours[name], raw.reshape(height, width, 3))
            assert mean <= 0.5 and most <= 2, (name, width)


@pytest.mark.parametrize("name", OF_CAMERAS)
def test_pictures_of_cameras_are_never_converted_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: AvPicture) -> ByteArray:
        raise AssertionError("a whole colour picture was made")

    monkeypatch.setattr(AvPicture, "to_bgr", refuse)
    picture = picture_of(frame_of(name, scene(96, 72)))
    letterboxed(picture, Bucket(48, 48))
    picture.grey(50)


@pytest.mark.parametrize("name", [*sorted(UNREADABLE), "bayer_rggb8"])
def test_a_format_that_cannot_be_converted_is_said_and_kills_nothing(name: str) -> None:
    """swscale ends the process on yaf32 and on a single row of bayer, unless that is refused."""
    width, height = (13, 1) if name.startswith("bayer") else (16, 16)
    picture = picture_of(av.VideoFrame(width, height, name))
    for attempt in (
        picture.to_bgr,
        lambda: picture.grey(8),
        lambda: letterboxed(picture, Bucket(8, 8)),
    ):
        with pytest.raises(SourceUnusable, match=f"format {name}, {width}x{height}, cannot"):
            attempt()


def test_frames_of_such_a_format_are_counted_as_invalid() -> None:
    class Reader(SyntheticReader):
        def read(self) -> Arrival | None:
            arrival = super().read()
            if arrival is None:
                return None
            picture = picture_of(av.VideoFrame(32, 16, "y210be"))
            return Arrival(picture, arrival.received_s, arrival.pts_s, 0.0)

    sink = CollectingSink(keyframe_every=2)
    url = "synthetic://?fps=100&duration_s=0.1"
    settings = CameraSettings("c", url, realtime=False)
    with running(sink, settings, factory=lambda _, clock: Reader(url, RealClock())):
        sink.wait_state(CameraState.ENDED)
    assert [drop[2] for drop in sink.drops] == [DropReason.INVALID] * 5
    assert len(sink.frames) == 5
    sink.check_accounts("c")


SIZES = [
    (1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (1, 97), (97, 1), (17, 31), (127, 131), (641, 361),
    (426, 240), (176, 144), (1080, 1920), (4098, 2), (3, 4098), (4098, 34),
]  # fmt: skip


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010le", "yuv422p", "yuv410p", "rgb24"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_any_size_is_shrunk_and_enlarged_as_it_should(name: str, width: int, height: int) -> None:
    frame = frame_of(name, scene(width, height))
    picture = picture_of(frame)
    assert (picture.width, picture.height) == (width, height)
    mean, most = difference(picture.to_bgr(), filtered_bgr(frame))
    assert mean <= 0.5 and most <= 2
    for bucket in (Bucket(640, 640), Bucket(192, 320), Bucket(320, 192), Bucket(37, 71)):
        check_letterbox(picture, bucket)
    for limit in (1, 40, 640):
        grey = picture.grey(limit)
        assert grey.dtype == np.uint8 and max(grey.shape) <= limit and grey.flags.owndata


@pytest.mark.parametrize("name", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p", "nv12", "p010le"])
def test_no_column_is_left_unwritten_at_any_width(name: str) -> None:
    """Unscaled into planes, swscale 9.5 leaves the last width % 32 columns as they were."""
    for width in range(1, 98):
        height = 34 + width % 3
        frame = frame_of(name, np.full((height, width, 3), 255, np.uint8))
        picture = picture_of(frame)
        assert picture.to_bgr().min() >= 250
        for bucket in (Bucket(height, width), Bucket(20, 60), Bucket(70, 90)):
            pixels, geometry = letterboxed(picture, bucket)
            assert inner(pixels, geometry).min() >= 250
        assert picture.grey(640).min() >= 234 and picture.grey(20).min() >= 234


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010le", "yuv420p10be", "yuyv422", "gray"])
def test_what_lies_in_the_padding_of_rows_is_not_seen(name: str) -> None:
    described = av.VideoFormat(name, 67, 41)
    results = []
    for poison in (0, 255):
        frame = frame_of(name, scene(67, 41))
        for index, plane in enumerate(frame.planes):
            rows = np.frombuffer(bytes(plane), np.uint8).reshape(-1, plane.line_size).copy()
            parts = [part for part in described.components if part.plane == index]
            sample_bytes = (parts[0].bits + 7) // 8
            used = sample_bytes * sum(part.width for part in parts)
            used += used % 2 if name == "yuyv422" else 0
            rows[:, used:] = poison
            assert used < plane.line_size
            plane.update(rows.tobytes())
        picture = picture_of(frame)
        small, _ = letterboxed(picture, Bucket(30, 31))
        results.append((picture.to_bgr(), picture.grey(40), picture.grey(80), small))
    for one, other in zip(*results, strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("name", ["yuv420p", "bgr24", "gray", "nv12", "p010le", "rgb555le"])
def test_rows_that_lie_bottom_up_in_memory_are_read_so(name: str) -> None:
    frame = frame_of(name, scene(66, 42))
    upside_down = filtered(frame, ("vflip", ""))
    assert upside_down.planes[0].line_size < 0
    plain, turned = picture_of(frame), picture_of(upside_down)
    mean, most = difference(plain.to_bgr()[::-1], turned.to_bgr())
    assert mean <= 1.0 and most <= 12  # chroma rows between others are not quite symmetrical
    assert difference(plain.grey(80)[::-1], turned.grey(80))[0] <= 0.5
    assert difference(plain.grey(40)[::-1], turned.grey(40))[0] <= 0.5
    check_letterbox(turned, Bucket(31, 33))


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010le", "yuv422p", "yuyv422"])
def test_interlaced_pictures_are_scaled_as_one_picture(name: str) -> None:
    """PyAV alone scales each field for itself: up to 140 levels beside the truth."""
    woven = scene(128, 96)
    woven[1::2] = scene(128, 96, seed=3)[1::2] // 2
    frame = filtered(frame_of(name, woven), ("setfield", "tff"))
    if name == "yuyv422":
        assert frame.format.name == name
    assert frame.interlaced_frame
    picture = picture_of(frame)
    mean, most = difference(picture.to_bgr(), filtered_bgr(frame))
    assert mean <= 0.5 and most <= 2
    for bucket in (Bucket(48, 64), Bucket(31, 77), Bucket(33, 33)):
        check_letterbox(picture, bucket)
    assert frame.interlaced_frame  # the decoder's own is left as it was


def flat(name: str, y: int, u: int, v: int) -> av.VideoFrame:
    whole = av.VideoFrame(32, 32, "yuv444p")
    for plane, value in zip(whole.planes, (y, u, v), strict=True):
        plane.update(bytes([value]) * plane.buffer_size)
    return VideoReformatter().reformat(whole, 32, 32, name, threads=1)


# Of AVCOL_SPC_*: the weights of red and blue in luma.
MATRICES = {
    0: (0.299, 0.114), 1: (0.2126, 0.0722), 2: (0.299, 0.114), 3: (0.299, 0.114),
    4: (0.30, 0.11), 5: (0.299, 0.114), 6: (0.299, 0.114), 7: (0.212, 0.087),
    8: (0.299, 0.114), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593), 11: (0.299, 0.114),
    12: (0.299, 0.114), 13: (0.299, 0.114), 14: (0.299, 0.114),
}  # fmt: skip


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010le", "yuv444p", "yuyv422"])
@pytest.mark.parametrize("space", MATRICES)
def test_colours_follow_the_streams_own_matrix_and_range(name: str, space: int) -> None:
    """Also in mid-stream: one reformatter, as a reader has it, for every frame."""
    red_weight, blue_weight = MATRICES[space]
    reformatter = VideoReformatter()
    for y, u, v in ((126, 128, 128), (110, 110, 150), (170, 140, 100)):
        for color_range in (0, 2, 1):
            full = color_range == 2
            frame = flat(name, y, u, v)
            frame.colorspace, frame.color_range = space, color_range
            luma = y if full else (y - 16) * 255 / 219
            blue, red = (np.array([u, v]) - 128.0) * (1.0 if full else 255 / 224)
            red = luma + 2 * (1 - red_weight) * red
            blue = luma + 2 * (1 - blue_weight) * blue
            green = (luma - red_weight * red - blue_weight * blue) / (1 - red_weight - blue_weight)
            picture = AvPicture(frame, reformatter, corrupt=False)
            # FFmpeg's fast conversions of 4:2:0 round down several times.
            assert np.abs(picture.to_bgr() - np.array([blue, green, red])).max() <= 4.0
            pixels, _ = letterboxed(picture, Bucket(16, 16))
            assert np.abs(pixels - np.array([red, green, blue])).max() <= 1.5
            assert np.abs(picture.grey(16).astype(int) - y).max() <= 1
            assert (frame.colorspace, frame.color_range) == (space, color_range)


def test_nothing_that_is_kept_of_a_picture_keeps_the_decoders_frame() -> None:
    """Decoders have a bounded number of frames to give out."""
    for crop in (None, (0.25, 0.25, 0.75, 0.75)):
        memory = np.ascontiguousarray(scene(64, 48)[..., 0])
        before = sys.getrefcount(memory)
        frame = av.VideoFrame.from_numpy_buffer(memory, format="gray")
        picture = AvPicture(frame, VideoReformatter(), False, crop)
        kept = [picture.grey(640), picture.grey(20), picture.to_bgr()]
        kept.append(letterboxed(picture, Bucket(20, 20))[0])
        assert sys.getrefcount(memory) > before
        del picture, frame
        assert sys.getrefcount(memory) == before
        assert len(kept) == 4


def test_threads_may_look_at_pictures_of_one_reader_at_the_same_time() -> None:
    frame = frame_of("yuv420p", scene(128, 96))
    crop = (0.0, 0.0, 0.5, 0.5)
    whole = AvPicture(frame, VideoReformatter(), False, crop).to_bgr()
    reformatter = VideoReformatter()
    bad: list[str] = []

    def look() -> None:
        for _ in range(100):
            if (AvPicture(frame, reformatter, False, crop).to_bgr() != whole).any():
                bad.append("other pixels")

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    first, _ = letterboxed(AvPicture(frame, reformatter, False, crop), Bucket(32, 32))
    for _ in range(100):
        again, _ = letterboxed(AvPicture(frame, reformatter, False, crop), Bucket(32, 32))
        assert (again == first).all()
    for thread in threads:
        thread.join()
    assert not bad
