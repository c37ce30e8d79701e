"""Latency sketches and the rolling quantile."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.telemetry.quantile import RollingQuantile
from vidserve.telemetry.stats import Latency


@pytest.mark.parametrize(
    "values_s",
    [
        list(np.random.default_rng(1).lognormal(-4.5, 0.6, 20_000)),
        list(np.random.default_rng(2).uniform(0.0005, 0.2, 20_000)),
        [0.005] * 9_000 + [0.4] * 1_000,
        list(np.random.default_rng(3).exponential(0.01, 20_000)),
    ],
    ids=["lognormal", "uniform", "two-humps", "exponential"],
)
def test_quantiles_are_within_two_percent(values_s: Sequence[float]) -> None:
    latency = Latency()
    for value_s in values_s:
        latency.add(float(value_s))
    snapshot = latency.snapshot_ms()
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        truth_ms = float(np.quantile(values_s, q)) * 1000
        assert snapshot[name] == pytest.approx(truth_ms, rel=0.02, abs=0.006)
    assert snapshot["max"] == pytest.approx(max(values_s) * 1000, abs=0.006)


def test_without_a_sample_every_quantile_is_null() -> None:
    assert Latency().snapshot_ms() == {"p50": None, "p95": None, "p99": None, "max": None}


@given(st.lists(st.floats(-0.1, 1000.0), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_quantiles_are_ordered_and_bounded_by_the_largest(values_s: list[float]) -> None:
    latency = Latency()
    for value_s in values_s:
        latency.add(value_s)
    found = latency.snapshot_ms()
    values = [found["p50"], found["p95"], found["p99"], found["max"]]
    numbers = [v for v in values if v is not None]
    assert len(numbers) == 4
    assert numbers == sorted(numbers)
    assert numbers[0] >= 0.0
    assert numbers[3] == pytest.approx(max(0.0, *values_s) * 1000, abs=0.006)


def test_a_single_sample_is_all_its_quantiles() -> None:
    latency = Latency()
    latency.add(0.0123)
    assert [latency.snapshot_ms()[k] for k in ("p50", "p99", "max")] == pytest.approx(
        [12.3] * 3, rel=0.02
    )


def test_a_rolling_quantile_forgets_what_is_old() -> None:
    rolling = RollingQuantile(0.99, 100)
    for _ in range(100):
        rolling.add(1.0)
    assert rolling.value(default=-1.0) == 1.0
    for _ in range(100):
        rolling.add(0.001)
    assert rolling.value(default=-1.0) == 0.001


def test_a_rolling_quantile_needs_some_values_before_it_is_believed() -> None:
    rolling = RollingQuantile(0.5, 100)
    for k in range(19):
        rolling.add(float(k))
        assert rolling.value(default=7.5) == 7.5
    rolling.add(19.0)
    assert rolling.value(default=7.5) == 10.0


@given(st.lists(st.floats(0, 10), min_size=20, max_size=300), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_a_rolling_quantile_is_one_of_the_newest_values(values: list[float], q: float) -> None:
    rolling = RollingQuantile(q, 50)
    for value in values:
        rolling.add(value)
    found = rolling.value(default=math.nan)
    newest = values[-50:]
    assert found in newest
    assert sum(v < found for v in newest) <= q * len(newest) + 1e-9
    assert sum(v <= found for v in newest) >= q * len(newest) - 1e-9
