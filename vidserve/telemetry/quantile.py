"""A quantile of the newest values, for decisions rather than for reports."""

from __future__ import annotations

from collections import deque


class RollingQuantile:
    """Quantile over the last ``size`` values. For one thread; sorting happens on request.

    Args:
        quantile: 0..1.
        size: How many values are kept.
    """

    def __init__(self, quantile: float, size: int) -> None:
        self._quantile = quantile
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        """Take a value in; the oldest leaves."""
        self._values.append(value)

    def value(self, default: float, least: int = 20) -> float:
        """The quantile; ``default`` while fewer than ``least`` values are known."""
        if len(self._values) < least:
            return default
        ordered = sorted(self._values)
        return ordered[min(int(self._quantile * len(ordered)), len(ordered) - 1)]
