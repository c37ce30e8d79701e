"""The ledger of frames: each captured frame is open until it is settled, exactly once.

``pending`` is the number of frames really open, not a difference of counters, so
``captured == detected + tracked + sum(dropped) + pending`` is a check and not a definition.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from vidserve.frames import DropReason, Outcome


@dataclass(frozen=True, slots=True)
class Counts:
    """One camera's frames at one moment.

    Attributes:
        captured, detected, tracked, pending: Frames.
        dropped: Frames by reason.
        oldest_pending_s: Capture time of the oldest open frame; None if there is none.
        faults: Frames settled that were not open (twice, or never captured): must be 0.
    """

    captured: int
    detected: int
    tracked: int
    pending: int
    dropped: Mapping[str, int]
    oldest_pending_s: float | None
    faults: int

    @property
    def settled(self) -> int:
        """Frames with an outcome."""
        return self.detected + self.tracked + sum(self.dropped.values())

    @property
    def balanced(self) -> bool:
        """Whether every captured frame is accounted for."""
        return self.faults == 0 and self.captured == self.settled + self.pending


class Ledger:
    """Frames of one camera. Capture thread opens, tracking loop settles; one small lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, float] = {}
        self._captured = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._dropped: Counter[str] = Counter()
        self._faults = 0

    def capture(self, seq: int, captured_s: float) -> None:
        """A frame was captured and will be settled."""
        with self._lock:
            self._captured += 1
            self._open[seq] = captured_s

    def settle(self, seq: int, outcome: Outcome) -> None:
        """A captured frame was answered."""
        with self._lock:
            if self._open.pop(seq, None) is None:
                self._faults += 1
            self._outcomes[outcome] += 1

    def drop(self, seq: int, reason: DropReason) -> None:
        """A captured frame will not be answered."""
        with self._lock:
            if self._open.pop(seq, None) is None:
                self._faults += 1
            self._dropped[reason.value] += 1

    def capture_and_drop(self, reason: DropReason, count: int) -> None:
        """Frames that were captured by definition, but never existed as pictures."""
        with self._lock:
            self._captured += count
            self._dropped[reason.value] += count

    @property
    def pending(self) -> int:
        """Open frames. One attribute read: for bounds, any thread."""
        return len(self._open)

    def counts(self) -> Counts:
        """A consistent copy."""
        with self._lock:
            return Counts(
                captured=self._captured,
                detected=self._outcomes[Outcome.DETECTED],
                tracked=self._outcomes[Outcome.TRACKED],
                pending=len(self._open),
                dropped=dict(self._dropped),
                oldest_pending_s=min(self._open.values(), default=None),
                faults=self._faults,
            )
