"""The part of a picture that a camera shows: cut without shifting colours, upright."""

from __future__ import annotations

import struct

import av
import cv2
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.raw_frames import (
    READABLE,
    difference,
    filtered,
    frame_of,
    inner,
    letterboxed,
    resized,
    scene,
)
from vidserve.capture import pyav_picture
from vidserve.capture.bgr_picture import BgrPicture
from vidserve.capture.pyav_picture import AvPicture
from vidserve.capture.upright import Crop, Orientation, box_of
from vidserve.frames import Bucket, ByteArray

ORIENTATIONS = [
    Orientation(transposed, flip_x, flip_y)
    for transposed in (False, True)
    for flip_x in (False, True)
    for flip_y in (False, True)
]


def matrix_of(orientation: Orientation, scale: int = 1 << 16) -> bytes:
    """A display matrix: x' = a x + c y, y' = b x + d y."""
    across = -scale if orientation.flip_x else scale
    down = -scale if orientation.flip_y else scale
    a, b, c, d = (0, down, across, 0) if orientation.transposed else (across, 0, 0, down)
    return struct.pack("=9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)


def by_numpy(orientation: Orientation, pixels: ByteArray) -> ByteArray:
    if orientation.transposed:
        pixels = pixels.swapaxes(0, 1)
    return pixels[:: -1 if orientation.flip_y else 1, :: -1 if orientation.flip_x else 1]


def shares(low: int = 0) -> st.SearchStrategy[Crop]:
    """Any part of a picture, in tenths of a percent."""
    side = st.lists(st.integers(low, 1000), min_size=2, max_size=2, unique=True).map(sorted)
    return st.tuples(side, side).map(
        lambda sides: (
            sides[0][0] / 1000, sides[1][0] / 1000, sides[0][1] / 1000, sides[1][1] / 1000,
        )
    )  # fmt: skip


def test_display_matrices_of_every_kind() -> None:
    for orientation in ORIENTATIONS:
        assert Orientation.of_matrix(matrix_of(orientation)) == orientation
        assert Orientation.of_matrix(matrix_of(orientation, 70)) == orientation
        pixels = scene(7, 5)
        upright = orientation.apply(pixels)
        assert (upright == by_numpy(orientation, pixels)).all()
        assert upright.shape[1::-1] == orientation.size(7, 5)
        assert (orientation.apply(pixels[..., 0]) == by_numpy(orientation, pixels[..., 0])).all()
    assert Orientation.of_matrix(bytes(36)) == Orientation()  # FFmpeg's own angle is not a number
    for degrees, nearest in ((3, 0), (44, 0), (46, 90), (170, 180), (-100, 270)):
        # Counterclockwise, y downwards.
        turn = np.deg2rad(degrees)
        across, down = round(65536 * np.cos(turn)), round(65536 * np.sin(turn))
        matrix = struct.pack("=9i", across, -down, 0, down, across, 0, 0, 0, 1 << 30)
        assert Orientation.of_matrix(matrix).degrees == nearest


@given(
    crop=shares(),
    width=st.integers(1, 5000),
    height=st.integers(1, 5000),
    grid=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1), (4, 4)]),
)
def test_a_crop_is_the_nearest_whole_pixels_on_the_grid(
    crop: Crop, width: int, height: int, grid: tuple[int, int]
) -> None:
    left, top, box_width, box_height = box_of(crop, width, height, grid)
    for first, count, size, cell, low, high in (
        (left, box_width, width, grid[0], crop[0] * width, crop[2] * width),
        (top, box_height, height, grid[1], crop[1] * height, crop[3] * height),
    ):
        last = first + count
        assert 0 <= first < last <= size
        assert first % cell == 0 and (last % cell == 0 or last == size)
        assert abs(first - low) <= cell / 2 or size - low < cell
        assert abs(last - high) <= cell / 2 or count == min(cell, size - first)
    assert box_of((0.0, 0.0, 1.0, 1.0), width, height, grid) == (0, 0, width, height)


def test_a_crop_of_the_usual_shares_has_the_size_one_expects() -> None:
    assert box_of((0.25, 0.25, 0.75, 0.75), 1920, 1080, (2, 2)) == (480, 270, 960, 540)
    assert box_of((0.0, 0.5, 1.0, 1.0), 641, 361, (2, 2)) == (0, 180, 641, 181)
    assert box_of((0.999, 0.999, 1.0, 1.0), 641, 361, (2, 2)) == (640, 360, 1, 1)
    assert box_of((0.0, 0.0, 0.001, 0.001), 640, 360, (2, 2)) == (0, 0, 2, 2)
    assert box_of((0.5, 0.5, 0.5001, 0.5001), 9, 9) == (4, 4, 1, 1)


@pytest.mark.parametrize("name", READABLE)
def test_a_cropped_picture_is_that_part_of_the_whole(name: str) -> None:
    frame = frame_of(name, scene(101, 79))
    crop = (0.21, 0.13, 0.83, 0.9)
    whole = AvPicture(frame, VideoReformatter(), False)
    part = AvPicture(frame, VideoReformatter(), False, crop)
    check_part(whole, part, crop)


def check_part(whole: AvPicture, part: AvPicture, crop: Crop) -> None:
    """All that is shown of ``part`` is that rectangle of ``whole``."""
    all_of_it = whole.to_bgr()
    # Where it lies: upright, to the pixel; a grid of at most 4 pixels moves its edges by 2.
    left, top, width, height = box_of(crop, whole.width, whole.height)
    bgr = part.to_bgr()
    assert bgr.shape == (part.height, part.width, 3)
    assert abs(part.width - width) <= 4 and abs(part.height - height) <= 4
    places = [
        (x, y)
        for y in range(max(0, top - 4), min(whole.height - part.height, top + 4) + 1)
        for x in range(max(0, left - 4), min(whole.width - part.width, left + 4) + 1)
        if (all_of_it[y : y + part.height, x : x + part.width] == bgr).all()
    ]
    assert places
    check_shrunk(part)


def check_shrunk(part: AvPicture | BgrPicture) -> None:
    bgr = part.to_bgr()
    for bucket in (Bucket(40, 40), Bucket(19, 33), Bucket(96, 128)):
        pixels, geometry = letterboxed(part, bucket)
        expected = resized(bgr, geometry.inner_width, geometry.inner_height)[:, :, ::-1]
        assert difference(inner(pixels, geometry), expected)[0] <= 2.0
        inner(pixels, geometry)[:] = 114
        assert (pixels == 114).all()


@given(
    crop=shares(),
    orientation=st.sampled_from(ORIENTATIONS),
    name=st.sampled_from(["yuv420p", "nv12", "p010le", "yuv422p", "yuv410p", "bgr24", "yuyv422"]),
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    interlaced=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_crop_of_any_picture_lying_any_way(
    crop: Crop, orientation: Orientation, name: str, size: tuple[int, int], interlaced: bool
) -> None:
    frame = frame_of(name, scene(*size))
    if interlaced:
        frame = filtered(frame, ("setfield", "bff"))
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(pyav_picture, "_orientation", lambda _: orientation)
        whole = AvPicture(frame, VideoReformatter(), False)
        part = AvPicture(frame, VideoReformatter(), False, crop)
    assert (whole.width, whole.height) == orientation.size(*size)
    plain = AvPicture(frame, VideoReformatter(), False).to_bgr()
    assert (whole.to_bgr() == by_numpy(orientation, plain)).all()
    check_part(whole, part, crop)
    for limit in (9, 640):
        grey = part.grey(limit)
        assert grey.flags.owndata and max(grey.shape) <= max(1, limit)
        if limit == 640:
            assert grey.shape == (part.height, part.width)


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010le", "gray", "yuv444p10le", "gbrp"])
def test_what_lies_outside_of_a_crop_is_not_seen(name: str) -> None:
    """Whoever crops a neighbour's window away does so for a reason."""
    seen = []
    for outside in (0, 255):
        rgb = scene(160, 120)
        covered = np.full_like(rgb, outside)
        covered[30:90, 40:120] = rgb[30:90, 40:120]
        frame = frame_of("gbrp", covered)
        if name != "gbrp":
            frame = VideoReformatter().reformat(
                frame, 160, 120, name, interpolation="POINT", threads=1
            )
        picture = AvPicture(frame, VideoReformatter(), False, (0.25, 0.25, 0.75, 0.75))
        small, _ = letterboxed(picture, Bucket(33, 44))
        seen.append((small, picture.grey(64), picture.grey(640)))
    for one, other in zip(*seen, strict=True):
        assert (one == other).all()


def test_a_cut_moves_pointers_and_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frame_of("yuv420p", scene(128, 96))
    box = box_of((0.25, 0.25, 0.75, 0.75), 128, 96, (2, 2))
    cut = pyav_picture._cut(frame, box)
    assert (cut.width, cut.height) == (64, 48)
    for plane, part, (x, y) in zip(
        frame.planes, cut.planes, ((32, 24), (16, 12), (16, 12)), strict=True
    ):
        assert part.line_size == plane.line_size
        assert part.buffer_ptr == plane.buffer_ptr + y * plane.line_size + x


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010le", "yuyv422", "y210le"])
def test_the_colours_of_a_cut_follow_the_stream_in_mid_stream(name: str) -> None:
    """The graph that cuts was made for the first frame's colours, and lives longer."""
    reformatter = VideoReformatter()
    crop = (0.5, 0.0, 1.0, 1.0)
    for space, color_range in ((2, 0), (1, 1), (9, 2), (6, 2), (2, 1)):
        frame = frame_of(name, scene(128, 96))
        frame.colorspace, frame.color_range = space, color_range
        check_shrunk(AvPicture(frame, reformatter, False, crop))


def test_cameras_of_many_sizes_in_one_thread_do_not_gather_graphs() -> None:
    for width in range(64, 84, 2):
        frame = frame_of("yuv420p", scene(width, 48))
        check_shrunk(AvPicture(frame, VideoReformatter(), False, (0.0, 0.0, 0.5, 1.0)))
    assert len(pyav_picture._graphs.made) <= 4


@given(crop=shares(), size=st.tuples(st.integers(1, 60), st.integers(1, 60)))
@settings(max_examples=50, deadline=None)
def test_pictures_of_devices_are_cut_the_same_way(crop: Crop, size: tuple[int, int]) -> None:
    bgr = np.ascontiguousarray(scene(*size)[..., ::-1])
    picture = BgrPicture(bgr, corrupt=True, crop=crop)
    left, top, width, height = box_of(crop, *size)
    assert (picture.width, picture.height, picture.corrupt) == (width, height, True)
    expected = bgr[top : top + height, left : left + width]
    assert (picture.to_bgr() == expected).all()
    check_shrunk(picture)
    grey = cv2.cvtColor(np.ascontiguousarray(expected), cv2.COLOR_BGR2GRAY)
    assert (picture.grey(640) == grey).all()
    assert BgrPicture(bgr).corrupt is False


def test_a_crop_of_a_hardware_format_is_no_crash() -> None:
    """Such frames are downloaded before; if not, converting says so, not making the picture."""
    for name in ("cuda", "vaapi", "drm_prime"):
        assert not av.VideoFormat(name, 2, 2).components
        assert pyav_picture._traits(name) == (False, 0, 1.0, (1, 1))
