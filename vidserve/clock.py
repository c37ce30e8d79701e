"""The two clocks: a real one for threads, a manual one for tests and the simulator.

Durations and deadlines are monotonic seconds; wall time appears in messages only.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What every part that needs the time is given."""

    def now(self) -> float:
        """Monotonic seconds; comparable only with other values of this clock."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for messages. May step."""
        ...

    def sleep_until(self, when_s: float) -> None:
        """Return at ``when_s`` (monotonic) or at once if that has passed."""
        ...


class RealClock:
    """The machine's clocks. Safe in any thread."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep_until(self, when_s: float) -> None:
        left_s = when_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)


class ManualClock:
    """A clock that only moves when told to. For one thread.

    Args:
        start_s: First value of ``now()``.
        wall_offset_s: ``wall() - now()``.
    """

    def __init__(self, start_s: float = 0.0, wall_offset_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._wall_offset_s = wall_offset_s

    def now(self) -> float:
        return self._now_s

    def wall(self) -> float:
        return self._now_s + self._wall_offset_s

    def sleep_until(self, when_s: float) -> None:
        self.move_to(when_s)

    def advance(self, by_s: float) -> None:
        """Move forward by ``by_s`` >= 0 seconds."""
        self.move_to(self._now_s + by_s)

    def move_to(self, when_s: float) -> None:
        """Move forward to ``when_s``; a moment in the past leaves the clock where it is."""
        self._now_s = max(self._now_s, when_s)
