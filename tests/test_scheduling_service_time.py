"""Service times: interpolated, learnt, followed, and never moved by one outlier."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.scheduling import SMALL, TALL, WIDE, linear
from vidserve.frames import Bucket
from vidserve.scheduling.service_time import ServiceTimes

N_MAX = 8


def times(table_s: dict[int, float] | None = None, n_max: int = N_MAX) -> ServiceTimes:
    found = ServiceTimes(n_max)
    found.set_table(WIDE, table_s or linear(3, 2))
    return found


def warmed(seed: int = 1, batches: int = 300, noise: float = 0.02) -> ServiceTimes:
    """After some time of ordinary work at all batch sizes."""
    found, drawn = times(), random.Random(seed)
    for _ in range(batches):
        n = drawn.randint(1, N_MAX)
        found.observe(WIDE, n, linear(3, 2)[n] * drawn.gauss(1, noise))
    return found


def moved(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    """Largest relative change."""
    return max(abs(b / a - 1) for a, b in zip(before[1:], after[1:], strict=True))


# -- tables --------------------------------------------------------------------------------


def test_a_full_table_is_taken_as_it_is() -> None:
    assert times().expected(WIDE) == pytest.approx((0.0, *linear(3, 2).values()))


def test_sizes_in_between_are_interpolated_and_larger_ones_extrapolated() -> None:
    found = times({1: 0.010, 3: 0.020, 5: 0.024})
    expected_ms = [0, 10, 15, 20, 22, 24, 26, 28, 30]
    assert found.expected(WIDE) == pytest.approx([ms / 1000 for ms in expected_ms])


def test_one_size_alone_is_continued_by_proportion() -> None:
    assert times({1: 0.01}).expected(WIDE)[8] == pytest.approx(0.08)
    from_four = times({4: 0.04}).expected(WIDE)
    assert from_four[8] == pytest.approx(0.08)
    assert 0 < from_four[1] <= 0.04


def test_sizes_beyond_the_largest_batch_are_not_needed() -> None:
    found = times({1: 0.005, 16: 0.035}, n_max=4)
    assert len(found.expected(WIDE)) == 5
    assert found.expected(WIDE)[4] == pytest.approx(0.011)


@pytest.mark.parametrize(
    "table_s",
    [
        {},
        {0: 0.01},
        {1: 0.0},
        {1: -0.001},
        {1: math.nan},
        {1: math.inf},
        {1: 0.01, 2: math.nan},
        {1: 0.01, 4: 0.0},
    ],
)
def test_a_wrong_table_is_refused(table_s: dict[int, float]) -> None:
    found = ServiceTimes(N_MAX)
    with pytest.raises(ValueError, match="service times"):
        found.set_table(WIDE, table_s)
    assert not found.knows(WIDE)


def test_a_refused_table_leaves_the_known_one() -> None:
    found = times()
    with pytest.raises(ValueError, match="positive"):
        found.set_table(WIDE, {1: -1.0})
    assert found.expected(WIDE)[1] == pytest.approx(0.005)


def test_a_spike_in_the_sweep_does_not_make_larger_batches_quicker() -> None:
    """S(1) met a spike; S(2) to S(8) are right."""
    found = times({1: 0.5, **{n: 0.003 + 0.002 * n for n in range(2, 9)}})
    assert found.expected(WIDE)[1] <= found.expected(WIDE)[2] == pytest.approx(0.007)


table = st.dictionaries(st.integers(1, 12), st.floats(1e-4, 10.0), min_size=1)
seen = st.lists(st.tuples(st.integers(1, N_MAX), st.floats(1e-6, 100.0)), max_size=60)


@given(table_s=table, observed=seen)
@settings(max_examples=150, deadline=None)
def test_the_times_always_make_sense(
    table_s: dict[int, float], observed: list[tuple[int, float]]
) -> None:
    found = times(table_s)
    for n, took_s in observed:
        found.observe(WIDE, n, took_s)
        expected, planned = found.expected(WIDE), found.planned(WIDE)
        assert len(expected) == len(planned) == N_MAX + 1
        assert expected[0] == 0.0
        assert all(0 < s < math.inf for s in expected[1:])
        assert list(expected) == sorted(expected)
        assert list(planned) == sorted(planned)
        assert all(p >= e for e, p in zip(expected, planned, strict=True))
        assert 1 <= found.peak(WIDE) <= N_MAX


@pytest.mark.parametrize("took_s", [0.0, -1.0, math.nan, math.inf])
def test_what_cannot_be_a_duration_is_not_learnt(took_s: float) -> None:
    found = times()
    before = found.planned(WIDE)
    found.observe(WIDE, 1, took_s)
    assert found.planned(WIDE) == before


# -- learning ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 4, 8])
@pytest.mark.parametrize("times_slower", [5.0, 50.0, 1e6])
def test_one_outlier_moves_the_plan_by_a_few_percent_at_most(n: int, times_slower: float) -> None:
    found = warmed()
    expected, planned = found.expected(WIDE), found.planned(WIDE)
    found.observe(WIDE, n, linear(3, 2)[n] * times_slower)
    assert moved(expected, found.expected(WIDE)) < 0.03
    assert moved(planned, found.planned(WIDE)) < 0.08


def test_one_impossibly_quick_batch_changes_little_too() -> None:
    found = warmed()
    planned = found.planned(WIDE)
    found.observe(WIDE, 4, 1e-6)
    assert moved(planned, found.planned(WIDE)) < 0.04


def test_a_spike_in_a_hundred_is_forgotten() -> None:
    found, drawn = warmed(), random.Random(5)
    for index in range(2000):
        n = drawn.randint(1, N_MAX)
        spike = 20.0 if index % 100 == 50 else 1.0
        found.observe(WIDE, n, linear(3, 2)[n] * drawn.gauss(1, 0.02) * spike)
    truth = (0.0, *linear(3, 2).values())
    assert moved(truth, found.expected(WIDE)) < 0.06


@pytest.mark.parametrize("share", [2.0, 0.5])
def test_a_detector_that_slows_or_recovers_is_followed_within_30_batches(share: float) -> None:
    found, drawn = warmed(), random.Random(7)
    for _ in range(30):
        n = drawn.randint(1, N_MAX)
        found.observe(WIDE, n, linear(3, 2)[n] * share)
    truth = [0.0] + [s * share for s in linear(3, 2).values()]
    assert moved(tuple(truth), found.expected(WIDE)) < 0.25
    for _ in range(300):
        n = drawn.randint(1, N_MAX)
        found.observe(WIDE, n, linear(3, 2)[n] * share)
    assert moved(tuple(truth), found.expected(WIDE)) < 0.10


def test_the_shape_is_learnt_too() -> None:
    """The sweep said 3 + 2n; beside busy cameras it is 6 + 1n."""
    found, drawn = times(), random.Random(3)
    truth = linear(6, 1)
    for _ in range(3000):
        n = drawn.randint(1, N_MAX)
        found.observe(WIDE, n, truth[n] * drawn.gauss(1, 0.03))
    assert moved((0.0, *truth.values()), found.expected(WIDE)) < 0.08


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_about_one_batch_in_a_hundred_takes_longer_than_planned(seed: int) -> None:
    found, drawn = times(), random.Random(seed)
    late = 0
    for index in range(8000):
        n = drawn.randint(1, N_MAX)
        took_s = linear(3, 2)[n] * max(0.2, drawn.gauss(1, 0.05))
        late += index >= 2000 and took_s > found.planned(WIDE)[n]
        found.observe(WIDE, n, took_s)
    assert 0.003 <= late / 6000 <= 0.02
    margin = found.planned(WIDE)[4] / found.expected(WIDE)[4] - 1
    assert 0.07 <= margin <= 0.22  # two to three standard deviations, and what learning adds


def test_a_steady_detector_gets_a_small_margin_and_a_wild_one_a_bounded_one() -> None:
    steady_one, wild = times(), times()
    drawn = random.Random(4)
    for _ in range(3000):
        steady_one.observe(WIDE, 4, 0.011)
        wild.observe(WIDE, 4, 0.011 * drawn.choice([0.5, 1.0, 3.0]))

    def margin(found: ServiceTimes) -> float:
        return found.planned(WIDE)[4] / found.expected(WIDE)[4] - 1

    assert margin(steady_one) < 0.05
    assert 0.3 < margin(wild) <= 0.61


# -- the peak ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table_ms", "peak"),
    [
        ([5, 7, 9, 11, 13, 15, 17, 19], 8),  # a fixed part: the largest is the best
        ([10, 20, 30, 40, 50, 60, 70, 80], 1),  # nothing gained by batches
        ([10, 21, 33, 46, 60, 75, 91, 108], 1),  # S(n)/n rises
        ([4, 5, 6, 7, 30, 33, 36, 39], 4),  # it no longer fits a cache
        ([10, 10, 10, 10, 10, 10, 10, 10], 8),
        ([10, 12, 30, 31, 32, 33, 34, 35], 8),  # a hole in the middle
    ],
)
def test_the_peak_of_the_rate_is_found(table_ms: list[float], peak: int) -> None:
    assert times({n: ms / 1000 for n, ms in enumerate(table_ms, 1)}).peak(WIDE) == peak


def test_a_rate_that_hardly_rises_is_worth_no_larger_batch() -> None:
    table_s = {n: n * 0.010 * 0.999**n for n in range(1, 9)}
    assert times(table_s).peak(WIDE) == 1


def test_the_peak_follows_what_is_measured() -> None:
    found = times(linear(0, 10))
    assert found.peak(WIDE) == 1
    drawn = random.Random(2)
    for _ in range(3000):
        n = drawn.randint(1, N_MAX)
        found.observe(WIDE, n, linear(30, 2)[n])
    assert found.peak(WIDE) >= 6


# -- shapes not swept ----------------------------------------------------------------------


def test_an_unknown_shape_is_scaled_by_its_pixels_from_the_nearest() -> None:
    found = times()
    found.set_table(Bucket(32, 64), linear(1, 1))
    assert not found.knows(SMALL)
    assert found.expected(SMALL)[2] == pytest.approx(0.25 * 0.007)  # a quarter of WIDE
    assert found.expected(TALL) == pytest.approx(found.expected(WIDE))  # the same pixels
    assert found.knows(SMALL)


def test_a_guess_is_corrected_by_use_without_touching_the_original() -> None:
    found = times()
    for _ in range(60):
        found.observe(SMALL, 2, 0.006)
    assert found.expected(SMALL)[2] == pytest.approx(0.006, rel=0.05)
    assert found.expected(WIDE)[2] == pytest.approx(0.007)


def test_without_any_sweep_nothing_can_be_guessed() -> None:
    with pytest.raises(ValueError, match="sweep"):
        ServiceTimes(N_MAX).expected(WIDE)


def test_the_report_gives_milliseconds_by_shape_and_size() -> None:
    report = times().snapshot_ms()
    assert report == {"640x384": {str(n): 3.0 + 2.0 * n for n in range(1, 9)}}


@pytest.mark.parametrize("first_ms", [8.0, 12.0])
def test_skewed_noise_for_an_hour_does_not_drift_the_estimate(first_ms: float) -> None:
    learnt = times({n: first_ms * n / 1000 for n in range(1, 9)})
    rng = random.Random(5)
    for _ in range(60_000):
        n = 1 if rng.random() < 0.9 else 2
        factor = rng.gauss(1.0, 0.05) * (rng.uniform(1.3, 4.0) if rng.random() < 0.05 else 1.0)
        learnt.observe(WIDE, n, first_ms * n / 1000 * factor)
    for n in (1, 2, 8):
        assert learnt.expected(WIDE)[n] * 1000 == pytest.approx(first_ms * n, rel=0.12)
