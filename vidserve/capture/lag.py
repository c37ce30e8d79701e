"""Source lag: how much later than at best a packet reached us. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW_S = 60.0
JUMP_S = 1.0
CHECK_S = 10.0
RATE_TOLERANCE = 0.02


class LagSample(NamedTuple):
    """Attributes: the lag in seconds (>= 0), and the earliest moment the packet can have come."""

    lag_s: float
    earliest_s: float


class SourceLag:
    """(arrival - pts) less its minimum over the last minute.

    A backlog shows as a lag: the packets come out of it at the speed of the reader, their pts
    say when they could have come. The minimum forgets after a minute, so that two clocks that
    drift apart do no harm.

    It starts anew when the pts have no more to do with those before: none, a step back, or a
    step forward of over a second more than the time that passed. An arrival that is late by
    more than a second is none of these: that is lag. Pts that do not run with the time at all
    (invented by a server, or in a wrong unit) say nothing, and are not believed while that lasts.
    """

    def __init__(self) -> None:
        # (arrival, arrival - pts), offsets rising: the first is the minimum of the window.
        self._offsets: deque[tuple[float, float]] = deque()
        self._last: tuple[float, float] | None = None
        self._check_from: tuple[float, float] | None = None
        self._believed = True

    def restart(self) -> None:
        """Forget everything but whether the pts are believed."""
        self._offsets.clear()
        self._last = None
        self._check_from = None

    def sample(self, pts_s: float | None, received_s: float, waited: bool) -> LagSample | None:
        """One arrival, in order of arrival; None if its pts say nothing.

        Args:
            pts_s: Of the packet, if it has one.
            received_s: When it was read (monotonic).
            waited: Whether the read had to wait for it. Only such arrivals tell at what rate
                the source really sends: without waiting we see our own speed.
        """
        if pts_s is None:
            self.restart()
            return None
        if self._last is not None:
            pts_step_s = pts_s - self._last[1]
            arrival_step_s = received_s - self._last[0]
            if pts_step_s < 0.0 or pts_step_s - arrival_step_s > JUMP_S:
                self.restart()
        self._last = (received_s, pts_s)
        if waited:
            self._check_rate(pts_s, received_s)
        if not self._believed:
            return None
        offset_s = received_s - pts_s
        while self._offsets and self._offsets[0][0] < received_s - WINDOW_S:
            self._offsets.popleft()
        while self._offsets and self._offsets[-1][1] >= offset_s:
            self._offsets.pop()
        self._offsets.append((received_s, offset_s))
        minimum_s = self._offsets[0][1]
        return LagSample(offset_s - minimum_s, pts_s + minimum_s)

    def _check_rate(self, pts_s: float, received_s: float) -> None:
        if self._check_from is None:
            self._check_from = (received_s, pts_s)
            return
        passed_s = received_s - self._check_from[0]
        if passed_s < CHECK_S:
            return
        rate = (pts_s - self._check_from[1]) / passed_s
        self._check_from = (received_s, pts_s)
        believed = abs(rate - 1.0) <= RATE_TOLERANCE
        if believed is not self._believed:
            self._believed = believed
            self._offsets.clear()
