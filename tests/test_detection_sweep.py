"""Service times: measured on a manual clock, kept on disk, trusted only after a look."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidserve.clock import ManualClock
from vidserve.detection.fake import FakeDetector
from vidserve.detection.sweep import batch_sizes, make_slots, sweep
from vidserve.detection.sweep_cache import ServiceTimeCache, service_times
from vidserve.errors import DetectorError
from vidserve.frames import Bucket
from vidserve.scheduling.service_time import ServiceTimes

BUCKET = Bucket(96, 160)


def approx(times_s: dict[int, float]) -> object:
    return pytest.approx(times_s)


def test_sweep_measures_each_size_up_to_eight() -> None:
    clock = ManualClock()
    times_s = sweep(FakeDetector("3+2n", clock=clock), BUCKET, 16, clock)
    sizes = [1, 2, 3, 4, 5, 6, 7, 8, 16]
    assert list(times_s) == sizes
    assert times_s == approx({n: (3 + 2 * n) / 1000 for n in sizes})


def test_a_peak_at_an_odd_size_is_found() -> None:
    """A kernel that takes pictures by sixes: 4 and 8 of them look alike, 6 is the best."""
    clock = ManualClock()
    detector = FakeDetector(lambda n: 0.012 * -(-n // 6), clock=clock)
    times_s = sweep(detector, BUCKET, 8, clock)
    times = ServiceTimes(8)
    times.set_table(BUCKET, times_s)
    assert times.peak(BUCKET) == 6


def test_a_slow_model_is_swept_in_powers_of_two_only() -> None:
    clock = ManualClock()
    times_s = sweep(FakeDetector("300+10n", clock=clock), BUCKET, 8, clock)
    assert list(times_s) == [1, 2, 4]
    assert clock.now() <= 4.0


def test_warm_up_and_a_spike_do_not_count() -> None:
    clock = ManualClock()
    calls = []

    def service(n: int) -> float:
        calls.append(n)
        if calls.count(n) == 1:
            return 0.5  # the first of each size
        return 0.2 if len(calls) == 3 else 0.01 * n

    times_s = sweep(FakeDetector(service, clock=clock), BUCKET, 2, clock)
    assert times_s == approx({1: 0.01, 2: 0.02})


def test_sweep_ends_where_a_picture_costs_more() -> None:
    clock = ManualClock()
    times_s = sweep(
        FakeDetector(lambda n: 0.01 * n if n <= 2 else 0.02 * n, clock=clock), BUCKET, 64, clock
    )
    assert times_s == approx({1: 0.01, 2: 0.02, 4: 0.08})


@pytest.mark.parametrize(
    ("service", "largest"), [("100n", 4), ("600", 2), ("900", 2), ("5000", 1), ("5n", 8)]
)
def test_sweep_keeps_its_time(service: str, largest: int) -> None:
    clock = ManualClock()
    detector = FakeDetector(service, clock=clock)
    times_s = sweep(detector, BUCKET, 8, clock, budget_s=4.0)
    assert max(times_s) == largest
    assert clock.now() <= max(4.0, 2 * times_s[1])


def test_a_failing_model_is_not_measured() -> None:
    clock = ManualClock()
    with pytest.raises(DetectorError):
        sweep(FakeDetector(clock=clock, fail_every=2), BUCKET, 8, clock)


@given(st.integers(1, 1000))
def test_batch_sizes(max_batch: int) -> None:
    sizes = batch_sizes(max_batch)
    assert sizes[0] == 1 and sizes[-1] == max_batch
    assert sizes == sorted(set(sizes))
    assert all(big <= 2 * small for small, big in itertools.pairwise(sizes))


def test_slots_are_filled_and_separate() -> None:
    first, second = make_slots(BUCKET, 2)
    assert first is not second
    assert first.geometry is not None
    assert first.pixels.std() > 1


def test_kept_times_spare_the_sweep(tmp_path: Path) -> None:
    clock = ManualClock()
    cache = ServiceTimeCache(tmp_path / "times", "1.0")
    first = FakeDetector("3+2n", clock=clock)
    measured = service_times(first, BUCKET, 8, clock, cache)

    again = FakeDetector("3+2n", clock=clock)
    assert service_times(again, BUCKET, 8, clock, cache) == approx(measured)
    assert again.calls == 4 < first.calls  # two sizes, each once to warm up

    other = FakeDetector("3+2n", clock=clock)
    service_times(other, Bucket(96, 96), 8, clock, cache)
    assert other.calls == first.calls
    assert not list((tmp_path / "times").glob(".times-*"))


def test_kept_times_that_are_no_longer_true_are_measured_again(tmp_path: Path) -> None:
    clock = ManualClock()
    cache = ServiceTimeCache(tmp_path, "1.0")
    pace = [0.01]
    detector = FakeDetector(lambda n: pace[0] * n, clock=clock)
    service_times(detector, BUCKET, 4, clock, cache)
    pace[0] = 0.03
    assert service_times(detector, BUCKET, 4, clock, cache) == approx(
        {1: 0.03, 2: 0.06, 3: 0.09, 4: 0.12}
    )
    assert cache.load(detector.info.fingerprint, BUCKET, 4) == approx(
        {1: 0.03, 2: 0.06, 3: 0.09, 4: 0.12}
    )


def test_other_versions_sizes_and_detectors_do_not_count(tmp_path: Path) -> None:
    ServiceTimeCache(tmp_path, "1.0").store("a", BUCKET, 4, {1: 0.1})
    assert ServiceTimeCache(tmp_path, "1.0").load("a", BUCKET, 4) == {1: 0.1}
    assert ServiceTimeCache(tmp_path, "1.1").load("a", BUCKET, 4) is None
    assert ServiceTimeCache(tmp_path, "1.0").load("b", BUCKET, 4) is None
    assert ServiceTimeCache(tmp_path, "1.0").load("a", BUCKET, 8) is None


GOOD = {"fingerprint": "a", "bucket": str(BUCKET), "version": "1", "max_batch": 4}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00\xff",
        "{}",
        json.dumps(GOOD),
        json.dumps(GOOD | {"seconds": {}}),
        json.dumps(GOOD | {"seconds": {"2": 0.1}}),
        json.dumps(GOOD | {"seconds": {"1": 0}}),
        json.dumps(GOOD | {"seconds": {"1": -1}}),
        json.dumps(GOOD | {"seconds": {"1": "fast"}}),
        json.dumps(GOOD | {"seconds": {"1": float("nan")}}),
        json.dumps(GOOD | {"seconds": {"1": 0.1, "9": 0.2}}),
        json.dumps(GOOD | {"seconds": [0.1]}),
        json.dumps(GOOD | {"seconds": {"1": 0.1}, "max_batch": "many"}),
        json.dumps(GOOD | {"seconds": {"1": 0.1}, "fingerprint": "b"}),
        json.dumps(GOOD | {"seconds": {"1": 0.1}, "bucket": "640x384"}),
        json.dumps(GOOD | {"seconds": {"1": 0.1}, "version": None}),
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_with_a_line(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ServiceTimeCache(tmp_path, "1")
    path = cache.path("a", BUCKET)
    path.write_text(text, encoding="latin-1")
    with caplog.at_level(logging.WARNING):
        assert cache.load("a", BUCKET, 4) is None
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    cache.store("a", BUCKET, 4, {1: 0.5})
    assert cache.load("a", BUCKET, 4) == {1: 0.5}


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    clock = ManualClock()
    detector = FakeDetector("1n", clock=clock)
    cache = ServiceTimeCache(tmp_path / "file" / "times", "1")
    with caplog.at_level(logging.WARNING):
        assert service_times(detector, BUCKET, 2, clock, cache) == approx({1: 0.001, 2: 0.002})
    assert "cannot keep service times" in caplog.text
