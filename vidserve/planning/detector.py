"""The configured detector on the bench: loaded and timed as the daemon does it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vidserve.clock import Clock
from vidserve.detection.detector import Detector, DetectorInfo
from vidserve.detection.sweep import BUDGET_S, make_slots, sweep
from vidserve.detection.sweep_cache import ServiceTimeCache, service_times
from vidserve.errors import DetectorError, VidserveError
from vidserve.frames import Bucket

_CLOSER_S = 0.5
_MAD_TO_SIGMA = 1.4826  # of a normal distribution

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SingleCost:
    """What a batch of one takes now.

    Attributes:
        cpu_s: CPU seconds; hardly other on a busy machine.
        wall_s: Seconds, the median; longer on a busy machine than a cached service time says.
        noise: Standard deviation of the time, as a share; robust.
        waited: Share of the time that its thread was ready and got no core; 0 if not known.
    """

    cpu_s: float
    wall_s: float
    noise: float
    waited: float


class DetectorBench:
    """One detector in one thread of its own: loading it may lower that thread's priority.

    Every method blocks the caller until that thread is done.

    Args:
        make_detector: Called in that thread.
        clock: The real one.
        cache: Of service times; None: measured anew.

    Raises:
        VidserveError: the detector cannot be loaded.
    """

    def __init__(
        self, make_detector: Callable[[], Detector], clock: Clock, cache: ServiceTimeCache | None
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="detection")
        try:
            self._detector = self._do(make_detector)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    @property
    def info(self) -> DetectorInfo:
        """Of the loaded detector."""
        return self._detector.info

    @property
    def max_batch(self) -> int | None:
        """Largest batch that the model takes; None: any."""
        return self._detector.max_batch

    def times(self, bucket: Bucket, n_max: int, budget_s: float = BUDGET_S) -> dict[int, float]:
        """Seconds by batch size, from the cache or a sweep.

        Raises:
            DetectorError: the model failed.
        """
        return self._do(
            lambda: service_times(
                self._detector, bucket, n_max, self._clock, self._cache, budget_s=budget_s
            )
        )

    def times_anew(self, bucket: Bucket, n_max: int) -> dict[int, float]:
        """Likewise from a sweep in any case; it takes the place of what the cache holds."""
        times_s = self._do(lambda: sweep(self._detector, bucket, n_max, self._clock))
        if self._cache is not None:
            self._cache.store(self.info.fingerprint, bucket, n_max, times_s)
        return times_s

    def single(self, bucket: Bucket) -> SingleCost:
        """Look closer at batches of one, for half a second.

        Nothing else of the process may be at work meanwhile: its whole CPU time is counted, the
        library's own threads included.
        """
        return self._do(lambda: self._single(bucket))

    def _single(self, bucket: Bucket) -> SingleCost:
        slots = make_slots(bucket, 1)
        self._detector.detect(slots)
        took_s: list[float] = []
        before_s, delay_s = time.process_time(), _run_delay_s()
        while sum(took_s) < _CLOSER_S:
            started_s = self._clock.now()
            self._detector.detect(slots)
            took_s.append(self._clock.now() - started_s)
        cpu_s = (time.process_time() - before_s) / len(took_s)
        usual_s = statistics.median(took_s)
        spread_s = statistics.median(abs(seconds - usual_s) for seconds in took_s)
        waited = (_run_delay_s() - delay_s) / sum(took_s)
        return SingleCost(cpu_s, usual_s, _MAD_TO_SIGMA * spread_s / usual_s, waited)

    def close(self) -> None:
        """Free the detector, end the thread."""
        try:
            self._do(self._detector.close)
        finally:
            self._thread.shutdown(wait=False)

    def _do(self, task: Callable[[], T]) -> T:
        try:
            return self._thread.submit(task).result()
        except VidserveError:
            raise
        except Exception as error:  # any library's own error
            raise DetectorError(f"the detector cannot be measured: {error}") from error


def _run_delay_s() -> float:
    """How long the calling thread has waited for a core, ever; 0 where Linux does not tell."""
    try:
        fields = Path("/proc/thread-self/schedstat").read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) / 1e9 if len(fields) == 3 else 0.0
