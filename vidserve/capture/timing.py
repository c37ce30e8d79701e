"""The capture time of each picture, by the rule for its kind of source. Pure but for the clock."""

from __future__ import annotations

import math
from typing import NamedTuple

from vidserve.capture.lag import LONG_WAIT_S, PAUSE_S, Reads, SourceLag, StandingLag
from vidserve.capture.pacing import FpsLimit, Pacer
from vidserve.capture.reader import Arrival, Reader
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock
from vidserve.frames import DropReason

SETTLE_S = 2.0


class Stamp(NamedTuple):
    """The verdict on one picture.

    Attributes:
        captured_s: Its capture time (monotonic). Only that of a file may lie ahead.
        reason: Why it is dropped; None: it is not.
        lost: How many other frames were due before it, but never produced.
        late: Our thread is behind its source.
    """

    captured_s: float
    reason: DropReason | None = None
    lost: int = 0
    late: bool = False


class Timing:
    """Stamps the pictures of one connection.

    Args:
        settings: Of the camera.
        reader: An open one; its ``live`` decides.
        clock: Tells the time.
    """

    def __init__(self, settings: CameraSettings, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._pacer: Pacer | None = None
        if not reader.live and settings.realtime:
            self._pacer = Pacer(settings.budget_s, reader.nominal_fps)
        self._live = LiveTiming(settings.budget_s) if reader.live else None
        self.limit = FpsLimit(settings.fps_limit)
        self.begun = False

    @property
    def paced(self) -> bool:
        """Whether this is a file that is played in real time."""
        return self._pacer is not None

    @property
    def lag_s(self) -> float | None:
        """Of the last picture of a live source, if its timestamps say it."""
        return self._live.lag_s if self._live is not None else None

    def wake_s(self, now_s: float) -> float | None:
        """When to begin with the next picture; None: at once."""
        if self._pacer is None:
            return None
        return self._pacer.wake_s(self._reader.expected_pts_s(), now_s)

    def restart(self) -> None:
        """The file begins again."""
        if self._pacer is not None:
            self._pacer.restart()

    def stamp(self, arrival: Arrival, skipped: int = 0) -> Stamp:
        """One picture, just read; ``skipped`` others before it were not decoded."""
        self.begun = True
        now_s = self._clock.now()
        if self._pacer is not None:
            due = self._pacer.picture(arrival.pts_s, now_s, skipped)
            reason = DropReason.MISSED if due.missed else None
            return Stamp(due.due_s, reason, due.lost, due.missed or due.lost > 0)
        if self._live is not None:
            received_s = min(arrival.received_s, now_s)
            read_s = max(received_s, now_s - arrival.decode_s)
            return self._live.stamp(arrival.pts_s, received_s, arrival.waited_s, read_s)
        # A file at full speed is captured when it is handed on: it may have waited for room.
        return Stamp(now_s)


class LiveTiming:
    """The rule for sources that set the pace themselves.

    A picture is captured when it was received, or, where its pts show that it lay in a buffer
    meanwhile, when it can have come at the earliest. What is older than the budget then is
    stale, as long as newer ones wait.

    Args:
        budget_s: What is older on arrival is stale.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._lag = SourceLag()
        self._standing = StandingLag()
        self._reads = Reads(budget_s)
        self._began_s: float | None = None
        self._settled = False  # what lay ready when the stream was opened is read away
        self._captured_s = -math.inf
        self.lag_s: float | None = None

    def stamp(
        self, pts_s: float | None, received_s: float, waited_s: float, read_s: float
    ) -> Stamp:
        """One picture, in order of their reading.

        Args:
            pts_s: Its presentation time, if it has one.
            received_s: When its last packet was read; not in the future.
            waited_s: How long that read took.
            read_s: When the picture came out of the reader, less its decoding. The lag is that
                of this moment: a reader may hold pictures that came together with an earlier
                one, and a decoder gives reordered ones out later than they came, but evenly.
        """
        waited, lay_ready = self._reads.picture(read_s, waited_s)
        if self._began_s is None:
            self._began_s = received_s
        if waited or received_s - self._began_s > SETTLE_S:
            self._settled = True
        sample = self._lag.sample(pts_s, read_s, waited)
        self.lag_s = None if sample is None else sample.lag_s
        captured_s, stale, late = received_s, False, False
        if not self._settled:
            stale = True
        elif sample is None:
            stale = late = lay_ready
        elif not _awaited(read_s, waited_s, sample.earliest_s):
            # The packet lay in a buffer: it came when its pts says, not when we looked.
            captured_s = min(sample.earliest_s, received_s)
            stale = sample.lag_s > self._budget_s
            late = sample.lag_s > self._budget_s / 2
            if stale and self._standing.stands(read_s, sample.lag_s, waited_s):
                self._lag.accept()
                captured_s, stale, late = received_s, False, False
        if not stale:
            self._standing.over()
        self._captured_s = max(captured_s, self._captured_s)
        return Stamp(self._captured_s, DropReason.STALE if stale else None, late=late)


def _awaited(read_s: float, waited_s: float, earliest_s: float) -> bool:
    """Whether the packet came while we were waiting for it, so that we saw it come.

    If we began to wait before it can have come at the earliest, the network was late, not we.
    If we began later, only a wait that is too long for anything else proves it: taking the
    interpreter lock back takes a switch interval (5 ms) for each thread in the way.
    """
    return waited_s > LONG_WAIT_S or read_s - waited_s <= earliest_s + PAUSE_S
