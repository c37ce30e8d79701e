"""What other systems do, for comparison in the simulator: plain dynamic batchers and EDF.

All ask for every K-th frame of each camera, and none gives one up for a newer one:

- ``fifo``: whatever waits goes at once, oldest first (an eager dynamic batcher);
- ``queue-limit``: the same, but a frame that waited longer than the budget is thrown away (the
  queue delay of common inference servers);
- ``edf``: earliest deadline first (Liu and Layland, 1973) in the largest batch that makes it;
  frames that cannot make it any more are thrown away.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from vidserve.frames import Batch, BatchKind, Bucket, Frame
from vidserve.scheduling.advice import Note
from vidserve.scheduling.keyframes import CameraPlan
from vidserve.scheduling.scheduler import Offer, Wait
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings, answer_time_s


class Baseline(ABC):
    """The face of ``Scheduler`` with another policy. One bucket, no weights, no control."""

    def __init__(self, settings: SchedulerSettings, service_times: ServiceTimes) -> None:
        self.settings = settings
        self.service_times = service_times
        self._after_s = 0.002
        self._plans: dict[str, CameraPlan] = {}
        self._queue: list[Frame] = []
        self._bucket = Bucket(0, 0)

    def add_camera(
        self,
        name: str,
        weight: float = 1.0,
        interval_frames: int = 5,
        period_s: float | None = None,
        adaptive: bool = False,
    ) -> CameraPlan:
        """Know a camera; these policies keep to the interval."""
        plan = self._plans[name] = CameraPlan(name, weight, interval_frames, period_s)
        return plan

    def tell_doubt(self, camera: str, doubt: float) -> None:
        """It does not count here."""
        del camera, doubt

    def set_ladder(self, camera: str, ladder: tuple[Bucket, ...]) -> None:
        """See ``Scheduler.set_ladder``."""
        self._plans[camera].ladder = ladder

    def plan(self, camera: str) -> CameraPlan:
        """The plan of a known camera."""
        return self._plans[camera]

    def withdraw(self, camera: str) -> Frame | None:
        """The camera left; these policies would still detect its frames."""
        self._plans[camera].last_s = None
        return None

    def set_after(self, after_s: float) -> None:
        """See ``Scheduler.set_after``."""
        self._after_s = after_s

    def answer_by(self, frame: Frame) -> float:
        """See ``Scheduler.answer_by``."""
        return answer_time_s(frame, self.settings, self._after_s)

    def wants(self, camera: str, captured_s: float) -> bool:
        """Every K-th frame."""
        plan = self._plans[camera]
        plan.saw(captured_s)
        if not plan.due(captured_s):
            return False
        plan.last_s = captured_s
        return True

    def offer(self, frame: Frame, bucket: Bucket, now_s: float) -> Offer:
        """Queue the frame."""
        self._bucket = bucket
        self._queue.append(frame)
        return Offer(superseded=None, in_time=True)

    def still_in_time(self, frame: Frame, bucket: Bucket, now_s: float) -> bool:
        """These policies never tell a frame that it waits in vain."""
        return True

    def every_second(self, now_s: float) -> list[Note]:
        """No control."""
        del now_s
        return []

    def next_batch(self, now_s: float) -> Batch | Wait:
        """What the idle detector should do now."""
        chosen = self.choose(now_s) if self._queue else []
        if not chosen:
            return Wait(math.inf)
        for frame in chosen:
            self._queue.remove(frame)
        expected_s = self.service_times.expected(self._bucket)[len(chosen)]
        return Batch(tuple(chosen), self._bucket, BatchKind.IN_TIME, now_s, now_s + expected_s)

    def finished(self, batch: Batch, now_s: float, failed: bool = False) -> None:
        """Learn the service time."""
        self.service_times.observe(batch.bucket, len(batch.frames), now_s - batch.started_s)

    @abstractmethod
    def choose(self, now_s: float) -> list[Frame]:
        """Frames of the queue to detect now; it may throw others away."""


class Fifo(Baseline):
    """Eager, oldest first."""

    def choose(self, now_s: float) -> list[Frame]:
        return self._queue[: self.settings.batch_max]


class QueueLimit(Baseline):
    """Eager, oldest first; who waited longer than the budget is thrown away."""

    def choose(self, now_s: float) -> list[Frame]:
        limit_s = self.settings.budget_s
        self._queue = [frame for frame in self._queue if now_s - frame.captured_s <= limit_s]
        return self._queue[: self.settings.batch_max]


class EarliestDeadline(Baseline):
    """The largest batch that makes its deadlines, earliest first; the hopeless are thrown away."""

    def choose(self, now_s: float) -> list[Frame]:
        planned = self.service_times.planned(self._bucket)
        self._queue = [f for f in self._queue if now_s + planned[1] <= self.answer_by(f)]
        self._queue.sort(key=self.answer_by)
        for n in range(min(len(self._queue), self.settings.batch_max), 0, -1):
            able = [f for f in self._queue if now_s + planned[n] <= self.answer_by(f)]
            if len(able) >= n:
                return able[:n]
        return []
