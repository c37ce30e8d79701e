"""How long the detector takes for a batch: S(bucket, n), kept current while it works.

A sweep at start gives the shape of the curve; while running, each batch corrects one scale per
bucket (a median, so that one spike changes nothing) and, slowly, the shape. The margin that
planning adds follows the share of batches that took longer than planned: a stochastic
approximation of a quantile (Robbins and Monro, 1951).

Pure: no clock, no threads. The scheduler calls it under its lock.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping

from vidserve.frames import Bucket

_RECENT = 31
_SHAPE_GAIN, _SHAPE_STEP = 0.1, 0.22
_SETTLED = 1.15
_MARGIN_GAIN = 0.05
_MARGIN_START, _MARGIN_MIN, _MARGIN_MAX = 0.12, 0.02, 0.6
_RATIO_MIN, _RATIO_MAX = 0.05, 20.0


class _Curve:
    """S(n) of one bucket: ``table[n - 1]`` seconds times ``scale``."""

    def __init__(self, table_s: Mapping[int, float], n_max: int) -> None:
        self.table_s = _filled(table_s, n_max)  # as swept: what ratios refer to, never changed
        self.shape = [0.0] * len(self.table_s)  # log of what each size is off the scaled table
        # The sweep counts as some batches: a spike at the start must not be the median.
        self.ratios: deque[float] = deque([1.0] * 5, maxlen=_RECENT)
        self.scale = 1.0
        self.margin = _MARGIN_START
        self.expected: tuple[float, ...] = ()
        self.planned: tuple[float, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        expected = [0.0]
        for value_s, shape in zip(self.table_s, self.shape, strict=True):
            expected.append(max(expected[-1], value_s * self.scale * math.exp(shape)))
        self.expected = tuple(expected)
        self.planned = tuple(value_s * (1.0 + self.margin) for value_s in expected)

    def observe(self, n: int, took_s: float, late_share: float) -> None:
        late = took_s > self.planned[n]
        self.margin += _MARGIN_GAIN * ((1.0 - late_share) if late else -late_share)
        self.margin = min(max(self.margin, _MARGIN_MIN), _MARGIN_MAX)
        ratio = min(max(took_s / self.table_s[n - 1], _RATIO_MIN), _RATIO_MAX)
        self.ratios.append(ratio)
        self.scale = statistics.median(self.ratios)
        # While the whole detector becomes slower or faster, the median lags: that is no shape.
        newest = statistics.median(itertools.islice(self.ratios, len(self.ratios) - 5, None))
        if 1 / _SETTLED < newest / self.scale < _SETTLED:
            # A (bounded) mean, not a sum: summed up, the skew of the noise drifts without bound.
            off = math.log(ratio / self.scale) - self.shape[n - 1]
            self.shape[n - 1] += _SHAPE_GAIN * min(max(off, -_SHAPE_STEP), _SHAPE_STEP)
        self.refresh()


class ServiceTimes:
    """The service times of all buckets.

    Args:
        n_max: Largest batch size that will be asked for, >= 1.
        late_share: Share of batches that may take longer than planned.
    """

    def __init__(self, n_max: int, late_share: float = 0.01) -> None:
        self._n_max = n_max
        self._late_share = late_share
        self._curves: dict[Bucket, _Curve] = {}

    def set_table(self, bucket: Bucket, table_s: Mapping[int, float]) -> None:
        """Take the result of a sweep: seconds by batch size, at least one, all > 0.

        Sizes in between are interpolated, larger ones extrapolated.

        Raises:
            ValueError: nothing measured, or a time that is not positive and finite.
        """
        self._curves[bucket] = _Curve(table_s, self._n_max)

    def knows(self, bucket: Bucket) -> bool:
        """Whether the bucket was swept or seen."""
        return bucket in self._curves

    def expected(self, bucket: Bucket) -> tuple[float, ...]:
        """Seconds by batch size; index 0 is 0, then 1..n_max. Never falls with n."""
        return self._curve(bucket).expected

    def planned(self, bucket: Bucket) -> tuple[float, ...]:
        """Like ``expected`` with the margin: what a deadline is held against."""
        return self._curve(bucket).planned

    def peak(self, bucket: Bucket) -> int:
        """The smallest batch size whose rate n / S(n) is within 2 % of the best."""
        expected = self.expected(bucket)
        rates = [n / expected[n] for n in range(1, self._n_max + 1)]
        best = max(rates)
        return next(n for n, rate in enumerate(rates, 1) if rate >= 0.98 * best)

    def observe(self, bucket: Bucket, n: int, took_s: float) -> None:
        """Learn from one finished batch of ``n`` frames that took ``took_s`` > 0 seconds."""
        if took_s > 0 and math.isfinite(took_s):
            self._curve(bucket).observe(n, took_s, self._late_share)

    def snapshot_ms(self) -> dict[str, dict[str, float]]:
        """Expected milliseconds by bucket and batch size, for reports."""
        return {
            str(bucket): {
                str(n): round(curve.expected[n] * 1000, 2) for n in range(1, self._n_max + 1)
            }
            for bucket, curve in self._curves.items()
        }

    def _curve(self, bucket: Bucket) -> _Curve:
        curve = self._curves.get(bucket)
        if curve is None:
            curve = self._curves[bucket] = self._guess(bucket)
        return curve

    def _guess(self, bucket: Bucket) -> _Curve:
        """A bucket not swept: scaled by its pixels from the nearest one; use corrects it."""
        if not self._curves:
            raise ValueError("no service time is known yet: sweep at least one bucket first")
        near = min(self._curves, key=lambda known: abs(math.log(known.pixels / bucket.pixels)))
        factor = bucket.pixels / near.pixels
        expected = self._curves[near].expected
        table_s = {n: expected[n] * factor for n in range(1, self._n_max + 1)}
        return _Curve(table_s, self._n_max)


def _filled(table_s: Mapping[int, float], n_max: int) -> list[float]:
    """Seconds for 1..n_max: linear between the measured sizes and beyond the last."""
    known = sorted((n, s) for n, s in table_s.items() if n >= 1)
    if not known:
        raise ValueError("a table of service times needs at least one batch size")
    if any(not math.isfinite(s) or s <= 0 for _, s in known):
        raise ValueError(f"service times must be positive and finite: {dict(known)}")
    # A larger batch never takes less time: where it seems so, the smaller one met a spike.
    lowest_s = math.inf
    for index in range(len(known) - 1, -1, -1):
        lowest_s = min(lowest_s, known[index][1])
        known[index] = (known[index][0], lowest_s)
    filled: list[float] = []
    for n in range(1, n_max + 1):
        below = [(m, s) for m, s in known if m <= n]
        above = [(m, s) for m, s in known if m >= n]
        if below and above:
            (m0, s0), (m1, s1) = below[-1], above[0]
            filled.append(s0 if m1 == m0 else s0 + (s1 - s0) * (n - m0) / (m1 - m0))
        elif below:
            filled.append(_beyond(known, n))
        else:
            filled.append(above[0][1])
    return filled


def _beyond(known: list[tuple[int, float]], n: int) -> float:
    """Extrapolate past the last measured size by the last slope, or by proportion if alone."""
    last_n, last_s = known[-1]
    if len(known) == 1:
        return last_s * n / last_n
    before_n, before_s = known[-2]
    slope_s = max(0.0, (last_s - before_s) / (last_n - before_n))
    return last_s + slope_s * (n - last_n)
