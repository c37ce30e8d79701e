"""The frame scheduler: which keyframes go to the detector, when, and in which batch.

Pure policy; the pipeline calls it under one lock and passes the time. It settles no frame: what
it gives up it returns, and the tracking loop decides what becomes of it.

A frame has two times. Until its *answer time* (deadline less what follows) a detection turns it
into a detected frame. A frame for which that is over, or never was possible, stays a candidate
for a *correction*: a detection that comes too late for its frame, but puts the tracker right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vidserve.frames import Batch, BatchKind, Bucket, Frame
from vidserve.scheduling.advice import FillWatch, Note, OverloadNotes
from vidserve.scheduling.choice import Candidate, best_in_time
from vidserve.scheduling.control import OverloadControl
from vidserve.scheduling.keyframes import CameraPlan, stagger
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings, answer_time_s

_RISING = 1.05
_WAIT_GAIN, _WAIT_MAX = 0.05, 30.0
_LATE_WORTH = 0.5  # a detection that is late for its frame still puts the tracker right


@dataclass(frozen=True, slots=True)
class Offer:
    """Result of ``offer``.

    Attributes:
        superseded: The camera's older undispatched keyframe, given back; or None.
        in_time: Whether the frame can still be detected in time.
    """

    superseded: Frame | None
    in_time: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to dispatch before ``until_s`` (monotonic; infinite: until the next offer)."""

    until_s: float


class _Second:
    """What happened since the last whole second, for overload control."""

    __slots__ = ("busy_s", "frames", "late", "meant_in_time", "room")

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.late = 0
        self.meant_in_time = 0
        self.frames = 0
        self.room = 0  # frames, had each batch been as large as is worth making


class Scheduler:
    """Chooses batches by worth, within deadlines.

    Args:
        settings: Limits.
        service_times: Swept before the first offer; ``finished`` keeps it current.
    """

    def __init__(self, settings: SchedulerSettings, service_times: ServiceTimes) -> None:
        self.settings = settings
        self.service_times = service_times
        self._plans: dict[str, CameraPlan] = {}
        self._waiting: dict[str, Candidate] = {}
        self._after_s = 0.002
        self._detector_max: int | None = None
        self._free_at_s = -math.inf
        self._usual_wait = 1.0
        self._control = OverloadControl(settings.max_gap_s) if settings.control else None
        self._second = _Second()
        self._overload = OverloadNotes()
        self._fill = FillWatch()

    # -- cameras ---------------------------------------------------------------------------

    def add_camera(
        self,
        name: str,
        weight: float = 1.0,
        interval_frames: int = 5,
        period_s: float | None = None,
        adaptive: bool = False,
    ) -> CameraPlan:
        """Know a camera; its first frame is due at once."""
        plan = CameraPlan(name, weight, interval_frames, period_s, adaptive)
        self._plans[name] = plan
        return plan

    def tell_doubt(self, camera: str, doubt: float) -> None:
        """How badly a camera needs a detection, 0..1. Any thread: one attribute is written."""
        plan = self._plans.get(camera)
        if plan is not None:
            plan.doubt = doubt

    def set_ladder(self, camera: str, ladder: tuple[Bucket, ...]) -> None:
        """Tell the shapes for a camera's pictures, largest first; at least one."""
        plan = self._plans.get(camera)
        if plan is not None:
            plan.ladder = ladder
            plan.level = min(plan.level, len(ladder) - 1)

    def withdraw(self, camera: str) -> Frame | None:
        """Forget what the camera offered (it died or left); the frame is given back."""
        candidate = self._waiting.pop(camera, None)
        plan = self._plans.get(camera)
        if plan is not None:
            plan.last_s = plan.gap_from_s = plan.offered_s = None
            plan.stretch, plan.level, plan.rare_s = 1.0, 0, None
        return None if candidate is None else candidate.frame

    def remove_camera(self, camera: str) -> Frame | None:
        """Forget the camera; what it offered is given back."""
        frame = self.withdraw(camera)
        self._plans.pop(camera, None)
        return frame

    def plan(self, camera: str) -> CameraPlan:
        """The plan of a known camera."""
        return self._plans[camera]

    def plans(self) -> Iterable[CameraPlan]:
        """All plans."""
        return self._plans.values()

    def stagger(self, now_s: float) -> None:
        """Spread the keyframes of all cameras whose rate is known; at start and on change."""
        stagger((p for p in self._plans.values() if p.measured), self._group_size, now_s)

    def _group_size(self, bucket: Bucket | None) -> int:
        """How many cameras share a turn: as many as a batch may hold, if batches are worth it.

        The measured peak wavers between neighbours (7 or 8), and a group size that is no
        multiple of the target leaves batches of 1 (16 cameras, hold 15 ms: mean 2.7, not 4.0).
        """
        if bucket is None:
            return self.settings.batch_max
        worth = self.largest_batch(bucket)
        allowed = self._allowed_batch(bucket)
        return allowed if worth >= min(self.settings.batch_target, allowed) else worth

    def every_second(self, now_s: float) -> list[Note]:
        """Overload control, and new phases where cameras or rates changed.

        Returns:
            What people should know of it, to be logged.
        """
        second, self._second = self._second, _Second()
        notes: list[Note] = []
        if self._control is not None:
            known = [plan for plan in self._plans.values() if plan.gap_from_s is not None]
            late_share = second.late / max(second.meant_in_time, 1)
            asked_use = self._asked_use(known)
            self._control.every_second(
                now_s, known, lambda: self._asked_use(known), min(second.busy_s, 1.0), late_share
            )
            notes = self._overload.notes(known, asked_use)
        self._fill.add(second.busy_s, second.frames, second.room)
        notes += self._fill.notes(now_s, self.settings.wait_s)
        self._restagger_if_changed(now_s)
        return notes

    def _asked_use(self, plans: Iterable[CameraPlan]) -> float:
        """Share of the detector's time that the intervals ask for, at its best batch size."""
        use = 0.0
        for plan in plans:
            bucket = plan.bucket
            if plan.weight > 0 and bucket is not None:
                n = self.largest_batch(bucket)
                longest_s = plan.largest_gap_s(self.settings.max_gap_s)
                # More often than asked is paid for by what was saved before.
                interval_s = max(plan.wanted_s(longest_s), plan.whole_interval_s)
                use += self.service_times.expected(bucket)[n] / n / interval_s
        return use

    def _restagger_if_changed(self, now_s: float) -> None:
        """Spread again if a measured camera is new or its interval moved by over a fifth."""
        for plan in self._plans.values():
            known_s = plan.staggered_interval_s
            if plan.measured and (
                known_s is None or abs(math.log(plan.interval_s / known_s)) > 0.2
            ):
                self.stagger(now_s)
                return

    # -- frames ----------------------------------------------------------------------------

    def limit_batch(self, largest: int) -> None:
        """Tell the largest batch that the model takes."""
        self._detector_max = largest

    def set_after(self, after_s: float) -> None:
        """Tell the p99 of what follows a detection: tracking, serialising, hand-over."""
        self._after_s = after_s

    def answer_by(self, frame: Frame) -> float:
        """Answer time e(f): the last moment at which the frame may still wait."""
        return answer_time_s(frame, self.settings, self._after_s)

    def wants(self, camera: str, captured_s: float) -> bool:
        """Whether a frame captured then should be converted and offered. Capture threads."""
        plan = self._plans.get(camera)
        if plan is None or plan.weight <= 0:
            return False
        plan.saw(captured_s)
        if plan.due(captured_s, plan.largest_gap_s(self.settings.max_gap_s)):
            return True
        # New phases or a stretched interval must not break the promise of the largest gap.
        gap_from_s = plan.gap_from_s
        if gap_from_s is None:
            return False
        largest_gap_s = plan.largest_gap_s(self.settings.max_gap_s)
        return captured_s - gap_from_s >= largest_gap_s - 0.5 * plan.period_s

    def offer(self, frame: Frame, bucket: Bucket, now_s: float) -> Offer:
        """Offer a keyframe; the camera's older undispatched one is given back.

        The frame of a camera that has left meanwhile is given back itself.
        """
        old = self._waiting.pop(frame.camera, None)
        plan = self._plans.get(frame.camera)
        if plan is None:
            return Offer(superseded=frame, in_time=False)
        if not plan.ladder:
            plan.ladder = (bucket,)
        if plan.gap_from_s is None:
            plan.gap_from_s = frame.captured_s
        if plan.offered_s is None:
            plan.offered_s = frame.captured_s
        candidate = Candidate(frame, bucket, plan, self.answer_by(frame), now_s)
        first_s = self.service_times.planned(bucket)[1]
        candidate.never_in_time = now_s + first_s > candidate.answer_by_s
        self._waiting[frame.camera] = candidate
        start_s = max(now_s, self._free_at_s)
        return Offer(
            superseded=None if old is None else old.frame,
            in_time=self._may_be_in_time(bucket, candidate.answer_by_s, start_s),
        )

    def still_in_time(self, frame: Frame, bucket: Bucket, now_s: float) -> bool:
        """Whether an undispatched frame can still be detected before its answer time."""
        start_s = max(now_s, self._free_at_s)
        return self._may_be_in_time(bucket, self.answer_by(frame), start_s)

    def _may_be_in_time(self, bucket: Bucket, answer_by_s: float, start_s: float) -> bool:
        """Whether waiting for it is worth while: the frame is answered in its budget anyhow.

        Without the margin that a batch in time is planned with. Where one picture takes about as
        long as there is time, as on a CPU, the frame would else be answered without the detection
        that an idle detector makes for it, most often in time.
        """
        return start_s + self.service_times.expected(bucket)[1] <= answer_by_s

    def next_batch(self, now_s: float) -> Batch | Wait:
        """What the idle detector should do now."""
        candidates = list(self._waiting.values())
        if not candidates:
            return Wait(math.inf)
        for candidate in candidates:
            candidate.value = candidate.plan.value(
                candidate.frame.captured_s, self.settings.max_gap_s
            )
        chosen = best_in_time(candidates, now_s, self.service_times.planned, self.largest_batch)
        starving = self._corrections(candidates, now_s, only_starving=True)
        if starving and not any(c in starving for c in chosen):
            end_s = now_s + self.service_times.planned(starving[0].bucket)[len(starving)]
            in_time = all(c.answer_by_s >= end_s for c in starving)
            kind = BatchKind.IN_TIME if in_time else BatchKind.CORRECTION
            return self._dispatch(starving, kind, now_s)
        late = self._corrections(candidates, now_s, only_starving=False)
        if chosen and not self._worth_more(late, chosen):
            hold_until_s = self._hold_until(chosen, now_s)
            if hold_until_s > now_s:
                return Wait(hold_until_s)
            return self._dispatch(chosen, BatchKind.IN_TIME, now_s)
        if late:
            end_s = now_s + self.service_times.expected(late[0].bucket)[len(late)]
            likely = all(end_s <= c.answer_by_s for c in late)
            return self._dispatch(late, BatchKind.LIKELY if likely else BatchKind.CORRECTION, now_s)
        return Wait(self._neglected_at(candidates))

    def finished(self, batch: Batch, now_s: float, failed: bool = False) -> None:
        """The detector is done with a batch, or has failed on it (no time is learnt then)."""
        self._free_at_s = now_s
        self._second.busy_s += now_s - batch.started_s
        self._second.frames += len(batch.frames)
        self._second.room += self.largest_batch(batch.bucket)
        if batch.kind is BatchKind.IN_TIME:
            self._second.meant_in_time += len(batch.frames)
            self._second.late += sum(now_s > self.answer_by(frame) for frame in batch.frames)
        if not failed:
            self.service_times.observe(batch.bucket, len(batch.frames), now_s - batch.started_s)

    # -- the choice ------------------------------------------------------------------------

    def largest_batch(self, bucket: Bucket) -> int:
        """Largest batch worth making in a bucket: by the config, its pixels and the peak."""
        return min(self._allowed_batch(bucket), self.service_times.peak(bucket))

    def _allowed_batch(self, bucket: Bucket) -> int:
        n_max = self.settings.batch_max
        if self._detector_max is not None:
            n_max = min(n_max, self._detector_max)
        if self.settings.max_pixels is not None:
            n_max = min(n_max, self.settings.max_pixels // bucket.pixels)
        return max(1, n_max)

    def _hold_until(self, chosen: list[Candidate], now_s: float) -> float:
        """Until when a small batch waits for more frames; now or earlier: go."""
        settings, n, bucket = self.settings, len(chosen), chosen[0].bucket
        if settings.wait_s <= 0 or n >= min(settings.batch_target, self.largest_batch(bucket)):
            return now_s
        expected = self.service_times.expected(bucket)
        if (n + 1) / expected[n + 1] < _RISING * n / expected[n]:
            return now_s
        until_s = min(
            min(c.offered_s for c in chosen) + settings.wait_s,
            min(c.answer_by_s for c in chosen) - self.service_times.planned(bucket)[n + 1],
        )
        # Waiting for a camera that is not due before then would only cost time.
        for plan in self._plans.values():
            if plan.name in self._waiting or plan.weight <= 0 or plan.last_s is None:
                continue
            if plan.bucket not in (bucket, None):
                continue
            wanted_s = plan.wanted_s(plan.largest_gap_s(settings.max_gap_s))
            if plan.last_s + wanted_s - 0.5 * plan.period_s <= until_s:
                return until_s
        return now_s

    def _corrections(
        self, candidates: list[Candidate], now_s: float, only_starving: bool
    ) -> list[Candidate]:
        """Frames to detect too late: starving, neglected, or such that never were in time."""
        starving = [c for c in candidates if now_s >= self._starves_from_s(c)]
        if only_starving and not starving:
            return []
        late = [
            c
            for c in candidates
            if c.never_in_time or c in starving or now_s >= self._neglected_from_s(c)
        ]
        if not late:
            return []
        # Starving ones first, whatever the weights: worth alone would leave a light camera out.
        late.sort(key=lambda c: (c in starving, c.value), reverse=True)
        bucket = late[0].bucket
        return [c for c in late if c.bucket == bucket][: self.largest_batch(bucket)]

    def _worth_more(self, late: list[Candidate], chosen: list[Candidate]) -> bool:
        """Whether corrections are worth more detector time than a batch in time.

        A camera whose frames always fall into another's batch (30 and 10 fps in step, measured:
        no detection for 1.1 s at K = 1) would else have to wait for ``max_gap_s``.
        """
        if not late or any(c in chosen for c in late):
            return False
        return _LATE_WORTH * self._worth_per_s(late) > self._worth_per_s(chosen)

    def _worth_per_s(self, batch: list[Candidate]) -> float:
        expected_s = self.service_times.expected(batch[0].bucket)[len(batch)]
        return sum(c.value for c in batch) / expected_s

    def _neglected_from_s(self, candidate: Candidate) -> float:
        """From when on its camera has waited twice as many intervals as cameras do now.

        Its frames lose every race, such as one of two cameras in the same phase of which a batch
        of one fits into the budget: an idle detector then serves it late rather than not at all.
        Measured against what the others wait: where all of them get every second of their
        keyframes in time, a late one for each would cost more in time than it brings.
        """
        plan = candidate.plan
        if plan.offered_s is None:
            return math.inf
        return plan.offered_s + (2.0 * self._usual_wait - 1.0) * plan.interval_s

    def _starves_from_s(self, candidate: Candidate) -> float:
        """From when on the gap of its camera is too long."""
        gap_from_s = candidate.plan.gap_from_s
        begun_s = candidate.frame.captured_s if gap_from_s is None else gap_from_s
        return begun_s + candidate.plan.largest_gap_s(self.settings.max_gap_s)

    def _neglected_at(self, candidates: list[Candidate]) -> float:
        """When the idle detector should take the first of them, in time or not."""
        return min(min(self._starves_from_s(c), self._neglected_from_s(c)) for c in candidates)

    def _learn_wait(self, candidate: Candidate) -> None:
        """Mean over the last dispatched frames: what their cameras waited, in intervals."""
        plan = candidate.plan
        if plan.offered_s is None:
            return
        waited = 1.0 + max(candidate.frame.captured_s - plan.offered_s, 0.0) / plan.interval_s
        waited = min(waited, _WAIT_MAX)
        self._usual_wait += _WAIT_GAIN * (waited - self._usual_wait)

    def _dispatch(self, chosen: list[Candidate], kind: BatchKind, now_s: float) -> Batch:
        bucket = chosen[0].bucket
        for candidate in chosen:
            del self._waiting[candidate.frame.camera]
            self._learn_wait(candidate)
            candidate.plan.went(candidate.frame.captured_s)
        expected_s = self.service_times.expected(bucket)[len(chosen)]
        self._free_at_s = now_s + expected_s
        return Batch(
            frames=tuple(c.frame for c in chosen),
            bucket=bucket,
            kind=kind,
            started_s=now_s,
            expected_finish_s=now_s + expected_s,
        )
