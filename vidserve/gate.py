"""The scheduler behind its one lock: where the tracking and the detection loop meet."""

from __future__ import annotations

import math
import threading

from vidserve.clock import Clock
from vidserve.frames import Batch, Bucket, Frame
from vidserve.scheduling.advice import Note
from vidserve.scheduling.scheduler import Offer, Scheduler, Wait


class SchedulerGate:
    """Serialises calls to a ``Scheduler`` and lets the detection loop sleep until it matters.

    Args:
        scheduler: Not to be used by anybody else, but for ``wants`` (capture threads).
        clock: Tells the time.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False

    def offer(self, frame: Frame, bucket: Bucket, now_s: float) -> Offer:
        """See ``Scheduler.offer``; wakes the detection loop."""
        with self._changed:
            offer = self.scheduler.offer(frame, bucket, now_s)
            self._changed.notify()
            return offer

    def withdraw(self, camera: str) -> Frame | None:
        """See ``Scheduler.withdraw``."""
        with self._changed:
            return self.scheduler.withdraw(camera)

    def still_in_time(self, frame: Frame, bucket: Bucket, now_s: float) -> bool:
        """See ``Scheduler.still_in_time``."""
        with self._changed:
            return self.scheduler.still_in_time(frame, bucket, now_s)

    def every_second(self, now_s: float, after_s: float) -> list[Note]:
        """Learn what follows a detection; then see ``Scheduler.every_second``."""
        with self._changed:
            self.scheduler.set_after(after_s)
            return self.scheduler.every_second(now_s)

    def set_ladder(self, camera: str, ladder: tuple[Bucket, ...]) -> None:
        """See ``Scheduler.set_ladder``."""
        with self._changed:
            self.scheduler.set_ladder(camera, ladder)

    def start(self, now_s: float) -> None:
        """Spread the keyframes of the cameras whose rate is known."""
        with self._changed:
            self.scheduler.stagger(now_s)

    def service_ms(self) -> dict[str, dict[str, float]]:
        """Expected service times for reports."""
        with self._changed:
            return self.scheduler.service_times.snapshot_ms()

    def intervals(self) -> dict[str, dict[str, object]]:
        """Present keyframe interval and input shape by camera, and what overload changed."""
        with self._changed:
            return {
                plan.name: {
                    "keyframe_interval_s": round(plan.interval_s, 3),
                    "keyframe_interval": round(plan.interval_s / plan.period_s, 1),
                    "stretch": round(plan.stretch, 3),
                    "bucket": None if plan.bucket is None else str(plan.bucket),
                    "overload": plan.overload,
                }
                for plan in self.scheduler.plans()
            }

    def finished(self, batch: Batch, now_s: float, failed: bool) -> None:
        """See ``Scheduler.finished``."""
        with self._changed:
            self.scheduler.finished(batch, now_s, failed)

    def next_batch(self, idle_s: float) -> Batch | None:
        """Wait for a batch, at most ``idle_s``; None: nothing to do yet, or closed."""
        until_s = self._clock.now() + idle_s
        with self._changed:
            while not self._closed:
                now_s = self._clock.now()
                decision = self.scheduler.next_batch(now_s)
                if not isinstance(decision, Wait):
                    return decision
                wake_s = min(decision.until_s, until_s)
                if now_s >= until_s:
                    return None
                self._changed.wait(None if math.isinf(wake_s) else max(wake_s - now_s, 0.0))
        return None

    def close(self) -> None:
        """No more batches; wakes the detection loop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
