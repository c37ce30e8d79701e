"""Letterbox: the pixels and the geometry of Ultralytics' rectangular inference."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.detection.letterbox import to_bucket, to_source, write_letterbox_array
from vidserve.frames import Bucket, ByteArray, Letterbox
from vidserve.scheduling.buckets import rectangle

sides = st.integers(min_value=8, max_value=3000)


def picture(width: int, height: int, seed: int = 0) -> ByteArray:
    """A smooth picture with every channel different, BGR."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    big: ByteArray = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    return big


def letterboxed(bgr: ByteArray, image_size: int) -> tuple[ByteArray, Letterbox]:
    height, width = bgr.shape[:2]
    bucket = rectangle(width, height, image_size)
    geometry = Letterbox.fit(width, height, bucket)
    pixels = np.full((bucket.height, bucket.width, 3), 7, np.uint8)
    write_letterbox_array(bgr, pixels, geometry)
    return pixels, geometry


@pytest.mark.parametrize(
    ("width", "height", "image_size", "expected"),
    [
        (1280, 720, 640, Bucket(384, 640)),
        (1280, 720, 320, Bucket(192, 320)),
        (810, 1080, 640, Bucket(640, 480)),
        (768, 432, 320, Bucket(192, 320)),
        (704, 576, 640, Bucket(544, 640)),
        (640, 640, 640, Bucket(640, 640)),
        (1000, 551, 639, Bucket(352 + 32, 640)),
    ],
)
def test_bucket(width: int, height: int, image_size: int, expected: Bucket) -> None:
    assert rectangle(width, height, image_size) == expected


@given(width=sides, height=sides, image_size=st.sampled_from([160, 320, 416, 640]))
@settings(max_examples=300, deadline=None)
def test_geometry_fits_and_keeps_the_long_side(width: int, height: int, image_size: int) -> None:
    bucket = rectangle(width, height, image_size)
    geometry = Letterbox.fit(width, height, bucket)

    assert bucket.height % 32 == bucket.width % 32 == 0
    assert max(bucket) == image_size
    assert max(geometry.inner_width, geometry.inner_height) == image_size
    assert 0 <= geometry.pad_left and geometry.pad_left + geometry.inner_width <= bucket.width
    assert 0 <= geometry.pad_top and geometry.pad_top + geometry.inner_height <= bucket.height
    assert bucket.width - geometry.inner_width < 32
    assert bucket.height - geometry.inner_height < 32


@given(width=sides, height=sides, x=st.floats(0, 1), y=st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_boxes_return_to_where_they_came_from(width: int, height: int, x: float, y: float) -> None:
    geometry = Letterbox.fit(width, height, rectangle(width, height, 320))
    inner = np.array([[0.0, 0.0, x, y]]) * ([geometry.inner_width, geometry.inner_height] * 2)
    pad = np.array([geometry.pad_left, geometry.pad_top] * 2)

    boxes = to_source((inner + pad).astype(np.float32), geometry)

    assert boxes.dtype == np.float32
    assert np.allclose(boxes, [[0.0, 0.0, x * width, y * height]], atol=0.002 * max(width, height))


def test_boxes_are_clipped_to_the_picture() -> None:
    geometry = Letterbox.fit(1280, 720, Bucket(384, 640))
    boxes = to_source(np.array([[-50, -50, 9999, 9999]], np.float32), geometry)
    assert boxes.tolist() == [[0, 0, 1280, 720]]
    assert to_source(np.empty((0, 4), np.float32), geometry).shape == (0, 4)


def test_every_pixel_is_written_and_colours_are_swapped() -> None:
    blue = np.zeros((720, 1280, 3), np.uint8)
    blue[..., 0] = 255
    pixels, geometry = letterboxed(blue, 320)

    assert pixels.shape == (192, 320, 3)
    assert (pixels[: geometry.pad_top] == 114).all()
    assert (pixels[geometry.pad_top + geometry.inner_height :] == 114).all()
    inner = pixels[geometry.pad_top : geometry.pad_top + geometry.inner_height]
    assert (inner == [0, 0, 255]).all()


def test_a_picture_of_another_size_is_refused() -> None:
    geometry = Letterbox.fit(1280, 720, Bucket(192, 320))
    with pytest.raises(ValueError, match="640x480"):
        write_letterbox_array(picture(640, 480), np.empty((192, 320, 3), np.uint8), geometry)


@pytest.mark.parametrize(
    "size",
    [
        (1280, 720),
        (810, 1080),
        (704, 576),
        (641, 355),
        (320, 180),
        (333, 500),
        (100, 55),
        (97, 640),
    ],
)
@pytest.mark.parametrize("image_size", [320, 640])
def test_pixels_equal_ultralytics(size: tuple[int, int], image_size: int) -> None:
    augment = pytest.importorskip("ultralytics.data.augment")
    bgr = picture(*size)
    pixels, _ = letterboxed(bgr, image_size)

    theirs = augment.LetterBox((image_size, image_size), auto=True, stride=32)(image=bgr)

    assert pixels.shape == theirs.shape
    assert np.array_equal(pixels, theirs[..., ::-1])


@given(width=sides, height=sides, x=st.floats(0, 1), y=st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_boxes_go_to_the_bucket_and_back(width: int, height: int, x: float, y: float) -> None:
    geometry = Letterbox.fit(width, height, rectangle(width, height, 320))
    box = np.array([[0.0, 0.0, x * width, y * height]], np.float32)
    back = to_source(to_bucket(box, geometry), geometry)
    assert np.allclose(back, box, atol=0.002 * max(width, height))
