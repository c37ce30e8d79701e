"""From samples to facts: rates, gaps, key pictures, B-frames, lag. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.probing import FACTS, reading, sample, steady
from vidserve.frames import CameraState
from vidserve.probe.facts import KeyPictures, Spread, found, key_pictures, reordered, timestamps

FPS = st.floats(1.0, 120.0)
MOMENTS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(0, 9).map(float))


def test_a_steady_camera() -> None:
    facts = found(reading(steady()))
    assert (facts.state, facts.reason) == (CameraState.RUNNING, "")
    assert facts.fps == pytest.approx(30)
    assert facts.gaps is not None and facts.gaps.most == pytest.approx(1 / 30)
    assert facts.lag is not None and facts.lag.most == pytest.approx(0, abs=1e-9)
    assert facts.keys == KeyPictures(5, 30, 30, False)
    assert facts.key_usual_s == pytest.approx(1)
    assert facts.open_s == pytest.approx(0.5)
    assert facts.first_s == pytest.approx(1.004)
    assert facts.decode is not None and facts.decode.p99 == pytest.approx(0.003)
    assert facts.core_share == pytest.approx(0.12)
    assert (facts.reorder, facts.corrupt, facts.refused) == (0, 0, 0)
    assert facts.sizes == ((1280, 720),)


@settings(deadline=None)
@given(FPS, st.lists(st.floats(0.0, 0.4), min_size=30, max_size=30))
def test_the_rate_of_a_camera_is_that_of_its_arrivals(fps: float, jitter: list[float]) -> None:
    """Whatever it claims, and however unevenly the network brings them."""
    moments = [101.0 + (index + late) / fps for index, late in enumerate(jitter)]
    facts = found(reading([sample(moment, None) for moment in moments]))
    if facts.fps is None:
        assert moments[-1] - moments[0] < 0.6
    else:
        assert facts.fps == pytest.approx(fps, rel=0.03)
    assert facts.gaps is not None and facts.gaps.most <= 1.4 / fps + 1e-6


def test_what_lay_ready_at_the_start_is_no_rate() -> None:
    """FFmpeg looks at a stream before it hands it out: those pictures come all at once."""
    ready = [sample(101.0 + index * 1e-4, index / 30, waited_s=0.0) for index in range(12)]
    later = [sample(101.1 + index / 30, (12 + index) / 30) for index in range(60)]
    facts = found(reading([*ready, *later]))
    assert facts.pictures == 72
    assert facts.fps == pytest.approx(30)
    assert facts.lag is not None and facts.lag.most == pytest.approx(0, abs=1e-9)


def test_a_source_that_never_pauses_is_measured_all_the_same() -> None:
    samples = [sample(101.0 + index / 100, index / 100, waited_s=0.0) for index in range(500)]
    assert found(reading(samples)).fps == pytest.approx(100)


def test_the_rate_of_a_file_is_that_of_its_timestamps_not_of_its_reading() -> None:
    samples = [sample(101.0 + index / 900, index / 12.5, waited_s=0.0) for index in range(100)]
    facts = found(reading(samples, live=False, whole=True))
    assert facts.fps == pytest.approx(12.5)
    assert facts.measured_s == pytest.approx(99 / 12.5)
    assert facts.lag is None
    assert facts.core_share == pytest.approx(0.004 * 12.5)


@settings(deadline=None)
@given(st.lists(MOMENTS, max_size=60))
def test_timestamps_of_any_kind_give_sane_numbers(pts_s: list[float | None]) -> None:
    stamps = timestamps(pts_s)
    known = sum(pts is not None for pts in pts_s)
    assert stamps.missing == len(pts_s) - known
    assert stamps.fps is None or 0.0 < stamps.fps <= 1000.0
    assert 0.0 <= stamps.uneven <= 1.0
    assert stamps.backward + stamps.jumps <= max(known - 1, 0)
    assert stamps.steps is None or 0.0 < stamps.steps.p50 <= stamps.steps.p99 <= stamps.steps.most


@pytest.mark.parametrize(
    "pts_s", [[-2e-311, 0.0], [0.0, 0.1, 0.0, 0.1, 0.0], [5.0] * 9, [1e300, 0]]
)
def test_timestamps_that_say_nothing_give_no_rate(pts_s: list[float | None]) -> None:
    assert timestamps(pts_s).fps is None


@settings(deadline=None)
@given(FPS, st.integers(1, 48), st.floats(6.0, 1e5), st.booleans())
def test_a_jump_of_the_timestamps_is_no_rate(
    fps: float, place: int, jump_s: float, back: bool
) -> None:
    jump_s += 20.0  # beyond what a slow camera or reordering can make
    pts_s: list[float | None] = [
        index / fps + (0.0 if index < place else -jump_s if back else jump_s) for index in range(50)
    ]
    stamps = timestamps(pts_s)
    assert stamps.jumps == 1
    assert stamps.fps == pytest.approx(fps, rel=1e-3)


def test_timestamps_out_of_order_do_not_halve_the_rate() -> None:
    """``highway_osd_320x240.avi``: PyAV gives 1, 4, 6, 5, 7, 9, 8 ... twenty-fifths."""
    order = [1, *(3 * k + step for k in range(1, 80) for step in (1, 3, 2))]
    stamps = timestamps([moment / 25 for moment in order])
    assert stamps.fps == pytest.approx(25, rel=0.01)
    assert stamps.backward == 79
    assert stamps.jumps == 0


def test_a_picture_every_ten_seconds_is_a_rate() -> None:
    stamps = timestamps([10.0 * index for index in range(6)])
    assert stamps.fps == pytest.approx(0.1)
    assert stamps.jumps == 0


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), max_size=20), st.integers(0, 60), st.integers(1, 60))
def test_key_pictures_are_found_wherever_they_lie(
    between: list[int], before: int, after: int
) -> None:
    """``before`` pictures, then a key picture at each step, then ``after`` with the last."""
    keys = [False] * before
    for length in between:
        keys += [True] + [False] * (length - 1)
    keys += [True] + [False] * (after - 1)
    told = key_pictures(keys)
    assert told is not None
    assert told.seen == len(between) + 1
    assert (told.usual is None) == (not between)
    assert told.usual is None or min(between) <= told.usual <= max(between)
    assert told.longest == max([*between, before, after])
    assert told.unfinished == (max(before, after) > max(between, default=0))
    whole = key_pictures(keys, whole=True)
    assert whole is not None and not whole.unfinished


def test_a_reader_that_names_no_key_picture_says_nothing() -> None:
    assert key_pictures([False] * 100) is None
    assert key_pictures([]) is None


@settings(deadline=None)
@given(st.permutations(range(12)))
def test_reordering_is_what_its_definition_says(decoded: list[int]) -> None:
    """``decoded[i]``: the place in the stream of the picture that is shown as the i-th."""
    moments = [float(place) for place in decoded]
    assert reordered(moments) == [
        sum(other < moment for other in moments[index + 1 :])
        for index, moment in enumerate(moments)
    ]


@pytest.mark.parametrize(
    ("pattern", "depth"),
    [([0], 0), ([0, 2, 1], 1), ([0, 2, 3, 1], 1), ([0, 3, 2, 4, 1], 2)],
    ids=["IP", "IBP", "IBBP", "IBBBP with a pyramid"],
)
def test_b_frames_are_seen_in_the_order_of_the_packets(pattern: list[int], depth: int) -> None:
    """Also where the decoder's word for it is only yes or no, as PyAV's ``has_b_frames`` is."""
    size = len(pattern)
    shown = [
        sample(101.0 + (group * size + place) / 30, (group * size + index) / 30)
        for group in range(20)
        for index, place in enumerate(pattern)
    ]
    facts = found(reading(shown))
    assert facts.reorder == depth
    assert facts.reorder_s == pytest.approx(depth / 30, rel=0.05)
    # What reordering costs is no lag of the network.
    assert facts.lag is not None and facts.lag.most == pytest.approx(0, abs=1e-9)


def test_one_odd_stamp_is_no_b_frame() -> None:
    samples = steady()
    samples[50] = replace(samples[50], received_s=samples[55].received_s + 0.001)
    assert found(reading(samples)).reorder == 0


def test_the_decoders_word_for_reordering_counts_too() -> None:
    told = reading(steady(), facts=replace(FACTS, reorder=2))
    assert found(told).reorder == 2


def test_a_backlog_shows_as_lag() -> None:
    samples = steady()
    for index in range(60, 70):
        samples[index] = replace(samples[index], received_s=samples[70].received_s)
    facts = found(reading(samples))
    assert facts.lag is not None
    assert facts.lag.p50 == pytest.approx(0, abs=1e-9)
    assert facts.lag.most == pytest.approx(10 / 30, rel=0.01)


def test_damage_is_the_state_that_the_daemon_shows() -> None:
    samples = [replace(one, corrupt=index % 20 == 0) for index, one in enumerate(steady())]
    facts = found(reading(samples))
    assert (facts.state, facts.corrupt) == (CameraState.DEGRADED, 8)
    assert "5% of the pictures are damaged" in facts.reason
    refused = found(reading(steady(), bad_packets=10))
    assert (refused.state, refused.refused) == (CameraState.DEGRADED, 10)
    assert found(reading(steady(), bad_packets=1)).state is CameraState.RUNNING


def test_a_change_of_size_is_kept_in_order() -> None:
    samples = [*steady(), *steady(width=640, height=360), *steady()]
    assert found(reading(samples)).sizes == ((1280, 720), (640, 360))


def test_nothing_at_all() -> None:
    facts = found(reading([]))
    assert facts.state is CameraState.CONNECTING
    assert (facts.fps, facts.gaps, facts.keys, facts.lag, facts.decode) == (None,) * 5
    assert facts.step_s == pytest.approx(1 / 30)  # as claimed
    assert found(reading([], nominal_fps=None)).step_s is None


def test_one_picture() -> None:
    facts = found(reading([sample(101.0, 0.0, key=True)]))
    assert (facts.pictures, facts.fps, facts.cpu_s) == (1, None, None)
    assert facts.keys == KeyPictures(1, None, 1, True)


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 100.0), min_size=1))
def test_a_spread_lies_within_its_values(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None
    assert min(values) <= spread.p50 <= spread.p99 <= spread.most == max(values)
    assert Spread.of([]) is None
