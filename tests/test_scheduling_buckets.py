"""Input shapes: few, with little margin, within the pixel budget."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.scheduling import Bench, Camera, linear, scheduler, steady
from vidserve.errors import ConfigError
from vidserve.frames import Bucket, Letterbox
from vidserve.scheduling.buckets import MAX_PADDING, Buckets, in_order, padding, rectangle
from vidserve.scheduling.settings import SchedulerSettings

sides = st.integers(16, 8000)


@pytest.mark.parametrize(
    ("width", "height", "side", "expected"),
    [
        (1920, 1080, 640, "640x384"),  # as Ultralytics' rectangular inference
        (3840, 2160, 640, "640x384"),
        (1080, 1920, 640, "384x640"),
        (640, 480, 640, "640x480"),
        (704, 576, 640, "640x544"),
        (1000, 1000, 320, "320x320"),
        (1920, 1080, 320, "320x192"),
        (3840, 1080, 320, "320x96"),
        (1000, 340, 320, "288x96"),  # 320x109 would be 15 % margin in 320x128
    ],
)
def test_the_shape_of_one_camera(width: int, height: int, side: int, expected: str) -> None:
    (bucket,) = Buckets().ladder(width, height, [side])
    assert str(bucket) == expected


@given(sides, sides, st.sampled_from([160, 320, 416, 640, 960, 1280]))
@settings(max_examples=300, deadline=None)
def test_any_picture_has_little_margin_and_stays_large(width: int, height: int, side: int) -> None:
    (bucket,) = Buckets().ladder(width, height, [side])
    assert bucket.height % 32 == bucket.width % 32 == 0
    assert max(bucket) <= side
    long_px, short_px = max(width, height), min(width, height)
    if short_px * side / long_px >= 64 and side >= 320:  # of two strides or more
        assert padding(width, height, bucket) < MAX_PADDING
    usual = Letterbox.fit(width, height, rectangle(width, height, side))
    inner = Letterbox.fit(width, height, bucket)
    if padding(width, height, rectangle(width, height, side)) < MAX_PADDING:
        assert inner == usual  # nothing is given away where nothing has to be
    assert max(inner.inner_width, inner.inner_height) >= 0.5 * side - 32


def test_cameras_share_shapes() -> None:
    """Nine kinds of cameras as they are sold: three shapes, none of them with much margin."""
    sizes = [
        (1920, 1080), (2560, 1440), (3840, 2160), (1280, 720), (640, 360),
        (640, 480), (1600, 1200), (704, 576), (2592, 1944),
    ]  # fmt: skip
    buckets = Buckets()
    used = {size: buckets.ladder(*size, [640])[0] for size in in_order(sizes)}
    assert len(set(used.values())) <= 3
    assert all(padding(*size, bucket) < MAX_PADDING for size, bucket in used.items())


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_however_many_sizes_come_the_shapes_stay_few(sizes: list[tuple[int, int]]) -> None:
    buckets = Buckets()
    used = {bucket for size in sizes for bucket in buckets.ladder(*size, [640, 320])}
    assert len(used) <= 12
    again = {bucket for size in sizes for bucket in buckets.ladder(*size, [640, 320])}
    assert again <= used


def test_a_ladder_falls() -> None:
    ladder = Buckets().ladder(1920, 1080, [640, 480, 320])
    assert list(map(str, ladder)) == ["640x384", "480x288", "320x192"]


@given(sides, sides, st.integers(1024, 2_000_000))
@settings(max_examples=200, deadline=None)
def test_the_pixel_budget_holds_for_one_picture(width: int, height: int, limit: int) -> None:
    ladder = Buckets(max_pixels=limit).ladder(width, height, [1280, 640])
    assert ladder
    assert all(bucket.pixels <= limit for bucket in ladder)
    assert all(b.pixels < a.pixels for a, b in itertools.pairwise(ladder))


def test_a_picture_over_the_budget_gets_the_largest_shape_that_is_not() -> None:
    assert Buckets(max_pixels=200_000).ladder(3840, 2160, [1280, 640]) == (Bucket(320, 544),)
    assert Buckets(max_pixels=250_000).ladder(3840, 2160, [1280, 640]) == (Bucket(384, 640),)


def test_fixed_shapes_are_the_only_ones() -> None:
    wide, tall, small = Bucket(384, 640), Bucket(640, 384), Bucket(192, 320)
    buckets = Buckets([wide, tall, small])
    assert buckets.ladder(1920, 1080, [1280]) == (wide, small)
    assert buckets.ladder(1080, 1920, [1280]) == (tall,)
    assert Buckets([Bucket(640, 640)]).ladder(1920, 1080, [320]) == (Bucket(640, 640),)
    assert Buckets([wide, small], max_pixels=100_000).ladder(1920, 1080, [640]) == (small,)


def test_a_fixed_shape_over_the_budget_is_refused_with_its_numbers() -> None:
    with pytest.raises(ConfigError, match=r"100000 .* 640x640 \(409600 pixels\)"):
        Buckets([Bucket(640, 640)], max_pixels=100_000)


@pytest.mark.parametrize("text", ["", "640", "640x", "x384", "640x384x3", "6 40x384", "-64x64"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match="width x height"):
        Bucket.parse(text)
    assert Bucket.parse("640x384") == Bucket(384, 640)
    assert Bucket.parse(str(Bucket(96, 288))) == Bucket(96, 288)


def test_a_4k_camera_among_small_ones() -> None:
    """Its input is 16 times theirs: batches never mix, keep the cap, and nobody starves."""
    large, small = Bucket(736, 1280), Bucket(192, 320)
    tables = {large: linear(4, 18), small: linear(2, 1)}
    sched = scheduler(SchedulerSettings(wait_s=0.015, max_pixels=1_000_000), tables)
    cameras: list[Camera] = [
        steady(f"small{k}", 30, 10.0, 0.004 * k, bucket=small) for k in range(7)
    ]
    cameras.append(steady("wide", 30, 10.0, 0.002, bucket=large))
    record = Bench(sched, cameras, until_s=10.0).run()  # asserts the promises at every step
    assert {len(b.frames) for b in record.batches if b.bucket == large} == {1}
    assert max(len(b.frames) for b in record.batches if b.bucket == small) > 1
    for camera in cameras:
        detected = [f for b in record.batches for f in b.frames if f.camera == camera.name]
        assert len(detected) >= 0.9 * 60, camera.name
