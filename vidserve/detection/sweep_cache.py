"""Service times kept on disk, so that a restart need not measure them again."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
from pathlib import Path

from vidserve.clock import Clock
from vidserve.detection.detector import Detector
from vidserve.detection.sweep import BUDGET_S, make_slots, sweep, time_batch
from vidserve.frames import Bucket

logger = logging.getLogger(__name__)

_AGREE = 2.0


class ServiceTimeCache:
    """One small JSON file for each detector, bucket and version of the project.

    A file that is missing, damaged or meant for something else is as good as none.

    Args:
        folder: Made when something is stored.
        version: Of the project: another version may do other work for a batch.
    """

    def __init__(self, folder: Path, version: str) -> None:
        self._folder = folder
        self._version = version

    def path(self, fingerprint: str, bucket: Bucket) -> Path:
        """Where the times of this detector and bucket are kept."""
        key = f"{fingerprint}\n{bucket}\n{self._version}"
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"

    def load(self, fingerprint: str, bucket: Bucket, max_batch: int) -> dict[int, float] | None:
        """Seconds by batch size of a sweep up to ``max_batch``, or None."""
        path = self.path(fingerprint, bucket)
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("ignoring service times in %s: %s", path, error)
            return None
        try:
            kept = json.loads(text)
            meant = (kept["fingerprint"], kept["bucket"], kept["version"])
            if meant != (fingerprint, str(bucket), self._version):
                raise ValueError("it is of another detector, bucket or version")
            asked = int(kept["max_batch"])
            times_s = {int(n): float(seconds) for n, seconds in kept["seconds"].items()}
            good = all(n >= 1 and s > 0 and math.isfinite(s) for n, s in times_s.items())
            if 1 not in times_s or not good or max(times_s) > asked:
                raise ValueError("its times make no sense")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            logger.warning("ignoring service times in %s: %s", path, error)
            return None
        # A sweep for another size has other points, and may have ended early for its own reasons.
        return times_s if asked == max_batch else None

    def store(
        self, fingerprint: str, bucket: Bucket, max_batch: int, times_s: dict[int, float]
    ) -> None:
        """Write atomically; a folder that cannot be written costs a sweep at the next start."""
        path = self.path(fingerprint, bucket)
        kept = {
            "fingerprint": fingerprint,
            "bucket": str(bucket),
            "version": self._version,
            "max_batch": max_batch,
            "seconds": {str(n): seconds for n, seconds in times_s.items()},
        }
        part: str | None = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(prefix=".times-", dir=self._folder)
            with os.fdopen(handle, "w") as stream:
                json.dump(kept, stream)
            os.replace(part, path)
        except OSError as error:
            logger.warning("cannot keep service times in %s: %s", path, error)
            if part is not None:
                Path(part).unlink(missing_ok=True)


def service_times(
    detector: Detector,
    bucket: Bucket,
    max_batch: int,
    clock: Clock,
    cache: ServiceTimeCache | None,
    *,
    budget_s: float = BUDGET_S,
) -> dict[int, float]:
    """Service times from the cache if a spot check agrees, else from a sweep, which is kept.

    The spot check is a timed batch of 1 and one of the largest size: a machine that is busy
    now, or was then, is off by more than a factor of 2. Called by the detection thread.

    Args, returns and errors as ``sweep``; ``cache`` None: always sweep.
    """
    fingerprint = detector.info.fingerprint
    kept = cache.load(fingerprint, bucket, max_batch) if cache is not None else None
    if kept is not None:
        slots = make_slots(bucket, max(kept))
        now = {n: time_batch(detector, slots[:n], clock, 1) for n in sorted({1, max(kept)})}
        if all(kept[n] / _AGREE <= seconds <= kept[n] * _AGREE for n, seconds in now.items()):
            logger.info("service times of %s: from the cache", bucket)
            return kept
        logger.info("service times of %s changed by more than twice: measuring again", bucket)
    times_s = sweep(detector, bucket, max_batch, clock, budget_s=budget_s)
    if cache is not None:
        cache.store(fingerprint, bucket, max_batch, times_s)
    return times_s
