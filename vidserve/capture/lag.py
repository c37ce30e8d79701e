"""Whether what we read lay in a buffer meanwhile, and newer pictures wait behind it. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW_S = 60.0
JUMP_S = 1.0
CHECK_S = 2.0
TRUST_S = 20.0
DRIFT = 0.005  # a clock worse than this is none; crystals are off by less than 0.0002
SLACK_S = 0.1
_MOST_PTS_S = 1e11  # beyond, the steps of a float are longer than the pictures apart
PAUSE_S = 0.003  # a read that took longer had to wait
LONG_WAIT_S = 0.015  # this is too long for anything else
REST_S = 1.0
STANDS_S = 1.0
OVERRUN_S = 2.0
AGAIN_S = 0.3
_PAUSE_SHARE = 0.2
_RECENT = 256
_STANDS_SHARE = 0.05
_WAITED_SHARE = 0.15


class LagSample(NamedTuple):
    """Attributes: the lag in seconds (>= 0), and the earliest moment the packet can have come."""

    lag_s: float
    earliest_s: float


class SourceLag:
    """(arrival - pts) less its minimum over the last minute.

    A backlog shows as a lag: the packets come out of it at the speed of the reader, their pts
    say when they could have come. The minimum forgets after a minute, and it may rise by
    ``DRIFT`` of the time in which we had to wait for the packets, so that two clocks that drift
    apart do no harm: 0.1 % would be 60 ms in the minute. In the time in which we do not wait it
    stays, or a thread that is a little too slow would not see its backlog grow.

    It starts anew when the pts have no more to do with those before: a step back, or a step
    forward of over a second more than the time that passed. An arrival that is late by more
    than a second is neither: that is lag. Then it says nothing until a read had to wait: in the
    middle of a backlog the first offset is no minimum. A pts that is missing or repeats says
    nothing. Pts that do not run with the time at all (invented by a server, or in a wrong unit)
    say nothing either, and are not believed until they do for ``TRUST_S``.
    """

    def __init__(self) -> None:
        # (arrival, arrival - pts less what was allowed by then), rising: the first is the least.
        self._offsets: deque[tuple[float, float]] = deque()
        self._allowed_s = 0.0
        self._last: tuple[float, float] | None = None
        self._believed = True
        self._proven = False  # a read had to wait since the offsets began
        # When it began, then arrival and offset of the earliest packet in it.
        self._stretch: tuple[float, float, float] | None = None
        self._reference: tuple[float, float] | None = None

    def restart(self) -> None:
        """Forget everything but whether the pts are believed."""
        self.accept()
        self._proven = False
        self._last = None
        self._stretch = None
        self._reference = None

    def accept(self) -> None:
        """What comes next comes as it should: the lag begins at zero."""
        self._offsets.clear()

    def sample(self, pts_s: float | None, received_s: float, waited: bool) -> LagSample | None:
        """One arrival, in order of arrival; None if its pts say nothing.

        Args:
            pts_s: Of the packet, if it has one.
            received_s: When it was read (monotonic); never less than the one before.
            waited: Whether the read had to wait for it. Only such arrivals tell at what rate
                the source really sends: without waiting we see our own speed.
        """
        if pts_s is None or not abs(pts_s) < _MOST_PTS_S:  # nor is it NaN
            return None
        if self._last is not None:
            pts_step_s = pts_s - self._last[1]
            arrival_step_s = received_s - self._last[0]
            if pts_step_s == 0.0:
                return None
            if pts_step_s < 0.0 or pts_step_s - arrival_step_s > JUMP_S:
                self.restart()
            elif waited:
                self._allowed_s += DRIFT * arrival_step_s
        self._last = (received_s, pts_s)
        offset_s = received_s - pts_s
        if waited:
            self._proven = True
            self._check_rate(offset_s, received_s)
        if not self._believed:
            return None
        while self._offsets and self._offsets[0][0] < received_s - WINDOW_S:
            self._offsets.popleft()
        while self._offsets and self._offsets[-1][1] >= offset_s - self._allowed_s:
            self._offsets.pop()
        self._offsets.append((received_s, offset_s - self._allowed_s))
        if not self._proven:
            return None
        least_s = min(offset_s, self._offsets[0][1] + self._allowed_s)
        return LagSample(offset_s - least_s, pts_s + least_s)

    def _check_rate(self, offset_s: float, received_s: float) -> None:
        """Every ``CHECK_S``: how the earliest arrivals moved against their pts since a while."""
        if self._stretch is None:
            self._stretch = (received_s, received_s, offset_s)
            return
        began_s, at_s, least_s = self._stretch
        if offset_s < least_s:
            at_s, least_s = received_s, offset_s
        if received_s - began_s < CHECK_S:
            self._stretch = (began_s, at_s, least_s)
            return
        self._stretch = None
        if self._reference is None:
            self._reference = (at_s, least_s)
            return
        passed_s = at_s - self._reference[0]
        if abs(least_s - self._reference[1]) > SLACK_S + DRIFT * passed_s:
            self._believed = False
            self._reference = (at_s, least_s)
            self.accept()
        elif passed_s >= TRUST_S:
            self._believed = True
            self._reference = (at_s, least_s)


class StandingLag:
    """Tells a lag that stands from a backlog that is being read away.

    A network that takes another, longer way makes every packet late for good; so does a clock
    that was set. Nothing waits behind such packets: we wait for each, and the lag neither grows
    nor shrinks, as that of a backlog would. A thread that works for most of the time waits too
    little to see one packet come; over a second it sees that.
    """

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None  # moment, lag
        self._waited_s = 0.0

    def stands(self, now_s: float, lag_s: float, waited_s: float) -> bool:
        """One more packet that seems to come out of a backlog; True: it does not.

        Args:
            now_s: When it was read.
            lag_s: Its lag.
            waited_s: How long we waited for it.
        """
        if self._began is None:
            self._began, self._waited_s = (now_s, lag_s), 0.0
            return False
        self._waited_s += waited_s
        passed_s = now_s - self._began[0]
        if passed_s < STANDS_S:
            return False
        stands = (
            abs(lag_s - self._began[1]) <= _STANDS_SHARE * passed_s
            and self._waited_s >= _WAITED_SHARE * passed_s
        )
        self.over()
        return stands

    def over(self) -> None:
        """A packet came as it should."""
        self._began = None


class Overrun:
    """Tells a backlog that is not read away: pictures come faster than they are decoded.

    Every one of them would be stale, for ever. After a stall a backlog shrinks instead. Once
    it was found out, little is needed to find it again, and a picture that is still stale after
    the way to the next key picture goes on to the one after it.
    """

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None  # moment, lag
        self._found_s = float("-inf")
        self._leaping = False

    def grows(self, now_s: float, stale: bool, lag_s: float | None) -> bool:
        """One more picture; True: leave out what waits, up to the next key picture."""
        if not stale or lag_s is None:
            self._began, self._leaping = None, False
            return False
        if self._leaping:
            return True
        if self._began is None:
            self._began = (now_s, lag_s)
        began_s, before_s = self._began
        known = now_s - self._found_s < WINDOW_S
        if now_s - began_s < (AGAIN_S if known else OVERRUN_S):
            return False
        self._began = (now_s, lag_s)
        self._leaping = lag_s > before_s - _STANDS_SHARE * (now_s - began_s)
        if self._leaping:
            self._found_s = now_s
        return self._leaping


class Reads:
    """What the reads alone tell, of pictures whose timestamps say nothing.

    One that was read without waiting can be as old as the time since the buffer was last seen
    empty, and is taken to be if that is over the budget. After a pause that swallowed several
    pictures (ours or the network's) the buffer was not empty, though we waited: then the next
    read that waits ends it. One picture a second passes all the same: a source may send so fast
    that the thread never waits, and it is better to see it late than never.

    Args:
        budget_s: What may be older is taken for a part of a backlog.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._empty_s = float("-inf")
        self._passed_s = float("-inf")
        self._recent_s: deque[float] = deque(maxlen=_RECENT)

    def picture(self, received_s: float, waited_s: float) -> tuple[bool, bool]:
        """One picture, in order of their reading.

        Args:
            received_s: When its last packet was read.
            waited_s: How long that read took.

        Returns:
            Whether the read had to wait for it; whether it lay ready for too long.
        """
        self._recent_s.append(received_s)
        usual_s = (received_s - self._recent_s[0]) / max(1, len(self._recent_s) - 1)
        # A share of the usual time: behind a busy thread the interpreter lock alone takes 5 ms.
        waited = waited_s > min(max(PAUSE_S, _PAUSE_SHARE * usual_s), LONG_WAIT_S)
        if waited:
            gap = waited_s > max(REST_S, 3.0 * usual_s)
            self._empty_s = float("-inf") if gap else received_s
        fresh = waited or received_s - self._empty_s <= self._budget_s
        if fresh or received_s - self._passed_s > REST_S:
            self._passed_s = received_s
            return waited, False
        return waited, True
