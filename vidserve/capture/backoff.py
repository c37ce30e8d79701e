"""How long to wait before the next attempt: capped exponential backoff with jitter. Pure."""

from __future__ import annotations

import random

FIRST_S = 0.5
CAP_S = 30.0
UNAUTHORIZED_FIRST_S = 60.0  # cameras lock accounts after a few wrong logins
UNAUTHORIZED_CAP_S = 600.0
GOOD_AFTER_S = 60.0
_JITTER = 0.25


class Backoff:
    """Waiting times of one camera. Not locked: its owner calls it from one thread at a time.

    Attempts wait ``FIRST_S``, doubled each time up to ``CAP_S``, each spread by a quarter up
    or down so that cameras behind one switch do not come back in step. Only a minute of good
    running forgets the failures: a camera that plays for a second and breaks is still failing.

    Args:
        rng: Source of the jitter; seeded in tests.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0
        self._refusals = 0
        self._good_since_s: float | None = None

    def frame(self, now_s: float) -> None:
        """A frame was decoded."""
        if self._good_since_s is None:
            self._good_since_s = now_s
        elif now_s - self._good_since_s >= GOOD_AFTER_S:
            self._failures = 0
            self._refusals = 0

    def failed(self, unauthorized: bool = False) -> float:
        """The attempt or the connection failed; returns the seconds to wait."""
        self._good_since_s = None
        if unauthorized:
            first_s, cap_s, before = UNAUTHORIZED_FIRST_S, UNAUTHORIZED_CAP_S, self._refusals
            self._refusals += 1
        else:
            first_s, cap_s, before = FIRST_S, CAP_S, self._failures
            self._failures += 1
        wait_s = min(cap_s, first_s * 2.0 ** min(before, 32))
        return min(cap_s, wait_s * self._rng.uniform(1.0 - _JITTER, 1.0 + _JITTER))
