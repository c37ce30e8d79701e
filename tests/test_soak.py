"""The short form of ``make soak``: reconnects leave nothing open, and its verdicts are right."""

from __future__ import annotations

import random
from pathlib import Path

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.servers import need_rtsp
from tests.soak import coming, reconnects, streams
from tests.soak.measure import Bounds, Sample, judge, slope_per_h, write_csv

BOUNDS = Bounds(rss_mb=10.0, threads=1, fds=3)


def series(
    count: int = 200,
    rss_per_h: float = 0.0,
    threads_every_s: float | None = None,
    fds_every_s: float | None = None,
    noise_mb: float = 2.0,
) -> list[Sample]:
    """Ten minutes of a process that warms up for one, and then leaks as told."""
    rng = random.Random(1)
    samples = []
    for at in range(count):
        at_s = at * 600.0 / count
        warming_mb = 50.0 * min(at_s / 60.0, 1.0)
        samples.append(
            Sample(
                at_s,
                150.0 + warming_mb + rng.gauss(0.0, noise_mb) + rss_per_h * at_s / 3600.0,
                20 + (0 if threads_every_s is None else int(at_s / threads_every_s)),
                14 + rng.randint(-3, 3) + (0 if fds_every_s is None else int(at_s / fds_every_s)),
            )
        )
    return samples


def verdicts(samples: list[Sample]) -> dict[str, bool]:
    return {one.quantity: one.flat for one in judge(samples, 60.0, BOUNDS)}


def test_a_process_that_only_warms_up_is_flat() -> None:
    assert verdicts(series()) == {"rss_mb": True, "threads": True, "fds": True}
    assert verdicts(series(rss_per_h=-60.0))["rss_mb"], "less is no growth"


def test_what_grows_is_found_and_nothing_else_is_blamed() -> None:
    assert verdicts(series(rss_per_h=120.0)) == {"rss_mb": False, "threads": True, "fds": True}
    assert verdicts(series(threads_every_s=120.0)) == {
        "rss_mb": True, "threads": False, "fds": True,
    }  # fmt: skip
    assert verdicts(series(fds_every_s=60.0)) == {"rss_mb": True, "threads": True, "fds": False}


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="only 7 samples"):
        judge(series()[-7:], 60.0, BOUNDS)


@given(
    per_h=st.floats(-1e4, 1e4),
    at_zero=st.floats(-1e4, 1e4),
    times_s=st.lists(st.integers(0, 36_000), min_size=2, max_size=50, unique=True),
)
def test_the_slope_of_a_line_is_the_line(per_h: float, at_zero: float, times_s: list[int]) -> None:
    values = [at_zero + per_h * at_s / 3600.0 for at_s in times_s]
    assert slope_per_h(times_s, values) == pytest.approx(per_h, rel=1e-3, abs=1e-3)


def test_samples_are_written_for_a_plot(tmp_path: Path) -> None:
    write_csv(tmp_path / "soak.csv", [Sample(0.5, 150.25, 20, 14)])
    lines = (tmp_path / "soak.csv").read_text(encoding="ascii").splitlines()
    assert lines == ["at_s,rss_mb,threads,fds", "0.5,150.25,20,14"]


def decoded(path: Path) -> tuple[list[int], int]:
    """Widths in order of appearance, and how many pictures."""
    widths: list[int] = []
    count = 0
    with av.open(f"file:{path}") as container:
        for packet in container.demux(video=0):
            try:
                pictures = packet.decode()
            except av.error.FFmpegError:
                continue
            for picture in pictures:
                assert isinstance(picture, av.VideoFrame)
                count += 1
                if not widths or widths[-1] != picture.width:
                    widths.append(picture.width)
    return widths, count


def test_streams_are_cut_picture_by_picture_and_torn(tmp_path: Path) -> None:
    path = tmp_path / "sizes.ts"
    stream = streams.make(path, 3.0, ((320, 180), (160, 120)), gop=10)
    assert len(stream.pictures) == 90
    assert {0, 30, 60} <= stream.keys
    assert b"".join(stream.pictures) == path.read_bytes()
    assert decoded(path) == ([320, 160, 320], 90)
    # Joined at any key picture it plays at once: tables and parameter sets come with it.
    path.write_bytes(b"".join(stream.pictures[10:]))
    assert decoded(path)[1] == 80
    padded = streams.padded(stream, 3000)
    assert all(3000 <= len(one) and len(one) % 188 == 0 for one in padded.pictures)
    path.write_bytes(b"".join(padded.pictures))
    assert decoded(path) == ([320, 160, 320], 90)
    torn = streams.torn(stream)
    assert [len(one) for one in torn.pictures] == [len(one) for one in stream.pictures]
    assert sum(a != b for a, b in zip(torn.pictures, stream.pictures, strict=True)) > 30
    assert decoded(streams.undecodable(tmp_path / "nothing.mp4")) == ([], 0)


def test_reconnects_of_every_kind_leave_no_thread_and_no_file_open(tmp_path: Path) -> None:
    need_rtsp()
    with reconnects.relays(tmp_path, rtsp=2, mjpeg=1, ts=1) as cameras:
        result = reconnects.run(tmp_path, 28, cameras)
    assert min(result.cuts.values()) >= 3, result.cuts
    first, last = result.samples[0], result.samples[-1]
    # A leak of one with each of the 28 connections would be 28.
    assert last.threads <= first.threads + 4, result.samples
    assert last.fds <= first.fds + 8, result.samples


def test_twenty_cameras_that_come_and_go_all_come_back(tmp_path: Path) -> None:
    need_rtsp()
    result = coming.run(tmp_path, 4.0, seed=2, calm_s=1.0, every_s=0.5)
    assert result.down == {}
    assert sum(result.done.values()) >= 3
    assert result.calm_after.threads <= result.calm_before.threads + 8, result
    assert result.calm_after.fds <= result.calm_before.fds + 16, result
