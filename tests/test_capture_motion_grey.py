"""The small grey pictures that readers offer for measuring motion."""

from __future__ import annotations

from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from tests.lab import clips
from tests.lab.moving import texture
from vidserve.capture.bgr_picture import BgrPicture
from vidserve.capture.grey import shrink, shrunk_size
from vidserve.capture.pyav import PyAvReader
from vidserve.capture.pyav_picture import AvPicture
from vidserve.capture.settings import CameraSettings
from vidserve.capture.synthetic import SyntheticPicture, scene_of
from vidserve.clock import RealClock
from vidserve.frames import ByteArray


def wall(width: int, height: int) -> ByteArray:
    """Coloured blotches, uint8 (height, width, 3) BGR."""
    planes = [texture(width, height, 30.0, seed) for seed in (1, 2, 3)]
    return np.asarray(np.clip(np.stack(planes, axis=-1), 0, 255), np.uint8)


def first_picture(path: Path) -> AvPicture:
    reader = PyAvReader(CameraSettings("c", str(path)), RealClock())
    reader.open()
    arrival = reader.read()
    reader.close()
    assert arrival is not None and isinstance(arrival.picture, AvPicture)
    return arrival.picture


@pytest.mark.parametrize(
    ("size", "small"),
    [
        ((640, 360), (640, 360)),
        ((641, 361), (320, 180)),
        ((1280, 720), (640, 360)),
        ((1920, 1080), (480, 270)),
        ((1080, 1920), (270, 480)),
        ((3, 3000), (1, 375)),
        ((1, 1), (1, 1)),
    ],
)
def test_pictures_are_halved_until_they_fit(size: tuple[int, int], small: tuple[int, int]) -> None:
    assert shrunk_size(*size, 640) == small
    grey = np.full((size[1], size[0]), 77, np.uint8)
    found = shrink(grey, 640)
    assert found.shape == (small[1], small[0]) and (found == 77).all()


def test_halving_is_the_mean_of_four_and_leaves_the_source_alone() -> None:
    whole = wall(322, 180)[..., 0]
    padded = np.zeros((180, 400), np.uint8)
    padded[:, :322] = whole
    halved = shrink(padded[:, :322], 200)
    means = whole.reshape(90, 2, 161, 2).mean(axis=(1, 3))
    assert np.abs(halved - means).max() <= 0.5
    assert (padded[:, :322] == whole).all()


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuvj420p", "nv12", "yuv444p", "gray"])
def test_the_luma_plane_is_the_grey_picture(pixel_format: str) -> None:
    frame = av.VideoFrame.from_ndarray(wall(322, 180), "bgr24").reformat(format=pixel_format)
    picture = AvPicture(frame, VideoReformatter(), corrupt=False)
    plane = frame.planes[0]
    luma = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[:180, :322]
    whole, halved = picture.grey(640), picture.grey(200)
    assert (whole == luma).all() and (halved == shrink(luma, 200)).all()
    assert whole.flags.c_contiguous and not np.shares_memory(whole, luma)


@pytest.mark.parametrize("pixel_format", ["yuv420p10le", "yuyv422", "rgb24", "gbrp", "gray10le"])
def test_other_formats_are_converted_at_the_small_size(pixel_format: str) -> None:
    bgr = wall(322, 180)
    frame = av.VideoFrame.from_ndarray(bgr, "bgr24").reformat(format=pixel_format)
    small = AvPicture(frame, VideoReformatter(), corrupt=False).grey(200)
    assert small.shape == (90, 161) and small.dtype == np.uint8
    full = shrink(np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY), np.uint8), 200)
    # Limited or full range: the same picture but for a factor and an offset.
    assert np.corrcoef(small.ravel(), full.ravel())[0, 1] > 0.98


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotated_pictures_are_grey_upright(tmp_path: Path, degrees: int) -> None:
    clip = clips.write(tmp_path / "clip.mp4", frames=3)
    upright = first_picture(clip).grey(200)
    turned = clips.rotate(clip, tmp_path / "r.mp4", degrees if degrees < 270 else -90)
    picture = first_picture(turned)
    grey = picture.grey(200)
    assert grey.shape == (picture.height // 2, picture.width // 2)
    assert (grey == np.rot90(upright, degrees // 90)).all() and grey.flags.c_contiguous


def test_a_device_gives_grey() -> None:
    bgr = wall(1280, 720)
    whole = np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY), np.float32)
    grey = BgrPicture(bgr).grey(640)
    assert grey.shape == (360, 640) and grey.dtype == np.uint8
    assert np.abs(grey - whole.reshape(360, 2, 640, 2).mean(axis=(1, 3))).max() <= 2.0


def test_the_formula_gives_grey() -> None:
    scene = scene_of("synthetic://?width=1280&height=720&objects=3")
    picture = SyntheticPicture(scene, 0.5, corrupt=False)
    grey = picture.grey(640)
    whole = np.asarray(cv2.cvtColor(picture.to_bgr(), cv2.COLOR_BGR2GRAY), np.uint8)
    assert grey.shape == (360, 640)
    # Edges fall on whole pixels of either size: a pixel's difference along them.
    assert np.mean(np.abs(grey.astype(int) - shrink(whole)) > 2) < 0.02
