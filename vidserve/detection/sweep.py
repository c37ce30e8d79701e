"""How long the detector takes for each batch size, measured before the first camera frame."""

from __future__ import annotations

import logging
import math
import statistics

import numpy as np

from vidserve.clock import Clock
from vidserve.detection.detector import Detector
from vidserve.frames import Bucket, Letterbox
from vidserve.slots import Slot, SlotPool

logger = logging.getLogger(__name__)

BUDGET_S = 4.0
_REPEATS = 3
_EACH_UP_TO = 8
_SLOW_S = 1.0
_RISE = 1.05  # less is noise


def make_slots(bucket: Bucket, count: int) -> list[Slot]:
    """Filled slots of a pool of their own: grey noise, so that nothing is detected."""
    pool = SlotPool(bucket, count)
    noise = np.random.default_rng(0).integers(90, 140, (bucket.height, bucket.width, 1), np.uint8)
    slots = []
    while (slot := pool.take()) is not None:
        slot.pixels[:] = noise
        slot.geometry = Letterbox.fit(bucket.width, bucket.height, bucket)
        slots.append(slot)
    return slots


def batch_sizes(max_batch: int) -> list[int]:
    """1, 2, 4 ... and ``max_batch``."""
    sizes = [1 << power for power in range(max_batch.bit_length()) if 1 << power < max_batch]
    return [*sizes, max_batch]


def time_batch(
    detector: Detector, slots: list[Slot], clock: Clock, repeats: int, until_s: float = math.inf
) -> float:
    """Median seconds of ``repeats`` runs, after one that is not counted.

    The first run of a new shape pays for kernels that are chosen or compiled then. After
    ``until_s`` no run begins but the first counted one.
    """
    took_s: list[float] = []
    for run in range(repeats + 1):
        started_s = clock.now()
        if took_s and started_s >= until_s:
            break
        detector.detect(slots)
        if run > 0:
            took_s.append(clock.now() - started_s)
    return statistics.median(took_s)


def sweep(
    detector: Detector,
    bucket: Bucket,
    max_batch: int,
    clock: Clock,
    *,
    repeats: int = _REPEATS,
    budget_s: float = BUDGET_S,
) -> dict[int, float]:
    """Measure the service time of 1, 2, 4 ... ``max_batch`` pictures.

    It stops where a picture costs more in the larger batch, or where the next size would break
    the budget. What is left of the budget goes to the sizes between, up to 8, so that a peak
    at an odd size is found; the rest is for whoever plans with the times. Called by the
    detection thread.

    Args:
        detector: Loaded.
        bucket: Input shape.
        max_batch: Largest size that may be asked for, within the detector's own limit.
        clock: Tells the time.
        repeats: Timed runs a size.
        budget_s: Seconds for the whole sweep; the first size is measured in any case,
            in two runs if it must be.

    Returns:
        Seconds by batch size, the measured sizes only: 1 and up.

    Raises:
        DetectorError: the model failed.
    """
    started_s = clock.now()
    slots = make_slots(bucket, max_batch)
    times_s: dict[int, float] = {}
    last = 0
    for n in batch_sizes(max_batch):
        runs = repeats
        if last:
            left_s = started_s + budget_s - clock.now()
            expected_s = times_s[last] * n / last
            runs = min(repeats, int(left_s / expected_s) - 1) if expected_s > 0 else repeats
            if last == 1 and times_s[1] <= _SLOW_S:
                runs = max(runs, 1)  # whether batches help a slow model must be known
            if runs < 1:
                logger.info("sweep of %s ends at a batch of %d: out of time", bucket, last)
                break
        # A quarter at most for the first size, so that a slow model's batches are seen too.
        until_s = started_s + budget_s / (4 if not last else 1)
        times_s[n] = time_batch(detector, slots[:n], clock, runs, until_s)
        if last and times_s[n] / n > _RISE * times_s[last] / last:
            break  # larger batches only cost more
        last = n
    for n in range(3, min(last, _EACH_UP_TO)):
        if n in times_s:
            continue
        larger = min(m for m in times_s if m > n)
        if clock.now() - started_s + (repeats + 1) * times_s[larger] > budget_s:
            break
        times_s[n] = time_batch(detector, slots[:n], clock, repeats)
    times_s = dict(sorted(times_s.items()))
    logger.info(
        "service times of %s: %s",
        bucket,
        ", ".join(f"{n}: {seconds * 1000:.1f} ms" for n, seconds in times_s.items()),
    )
    return times_s
