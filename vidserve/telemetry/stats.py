"""Counters and latency sketches of one run, and the snapshot that everybody reads.

Written by the tracking loop (answers) and the detection loop (batches); a snapshot may be taken
in any thread. Quantiles: DDSketch (Masson et al., 2019), relative error 1 %.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from ddsketch import DDSketch

from vidserve.frames import Batch, BatchKind, CameraState, CameraStatus, Frame, Outcome, Thinning
from vidserve.telemetry.ledger import Counts, Ledger

Snapshot = dict[str, Any]
STAGES = ("capture", "motion", "wait", "detect", "track", "answer")
_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_LIVE_WINDOW_S = 3.0


class Latency:
    """Quantiles of one stage in milliseconds. Not locked: its owner does that."""

    __slots__ = ("_max_s", "_sketch")

    def __init__(self) -> None:
        self._sketch = DDSketch(0.01)
        self._max_s = 0.0

    def add(self, took_s: float) -> None:
        """Add a duration; a clock's rounding below zero counts as zero."""
        took_s = max(took_s, 0.0)
        self._sketch.add(took_s)
        self._max_s = max(self._max_s, took_s)

    def snapshot_ms(self) -> dict[str, float | None]:
        """p50, p95, p99 and max; None without a sample."""
        if self._sketch.count == 0:
            return {**dict.fromkeys(_QUANTILES), "max": None}
        values = {
            name: round(min(float(self._sketch.get_quantile_value(q)), self._max_s) * 1000, 2)
            for name, q in _QUANTILES.items()
        }
        return {**values, "max": round(self._max_s * 1000, 2)}


class CameraStats:
    """Numbers of one camera. One lock per camera, so that a snapshot never stops the others."""

    def __init__(self, name: str, budget_s: float, started_s: float) -> None:
        self.name = name
        self.ledger = Ledger()
        self.status: CameraStatus | None = None
        self._budget_s = budget_s
        self._lock = threading.Lock()
        self._latency = {stage: Latency() for stage in STAGES}
        self._in_budget = 0
        self._late = 0
        self._applied = 0
        self._last_detection_s = self._last_frame_s = started_s
        self._max_gap_s = 0.0
        self._source_lag_s: float | None = None
        self._reader_delay_s = 0.0
        self._pool_empty = 0
        self._boxes = self._boxes_trusted = 0
        self.thinning: Thinning | None = None  # None: motion is not measured
        self._recent: deque[tuple[float, bool]] = deque()
        self._recent_detections: deque[float] = deque()

    def answered(self, frame: Frame, detected: bool, handed_s: float, track_s: float) -> None:
        """A frame was handed over: settle it."""
        outcome = Outcome.DETECTED if detected else Outcome.TRACKED
        in_budget = handed_s - frame.captured_s <= self._budget_s
        with self._lock:
            self.ledger.settle(frame.seq, outcome)
            self._in_budget += in_budget
            self._last_frame_s = max(self._last_frame_s, frame.captured_s)
            self._latency["capture"].add(frame.ready_s - frame.captured_s)
            self._latency["track"].add(track_s)
            self._latency["answer"].add(handed_s - frame.captured_s)
            self._recent.append((handed_s, in_budget))
            while self._recent[0][0] < handed_s - _LIVE_WINDOW_S:
                self._recent.popleft()

    def detection(self, frame: Frame, batch: Batch, done_s: float, late: bool) -> None:
        """A detection was applied, in time or late."""
        with self._lock:
            self._applied += 1
            self._late += late
            self._recent_detections.append(done_s)
            while self._recent_detections[0] < done_s - _LIVE_WINDOW_S:
                self._recent_detections.popleft()
            self._latency["wait"].add(batch.started_s - frame.ready_s)
            self._latency["detect"].add(done_s - batch.started_s)
            self._max_gap_s = max(self._max_gap_s, frame.captured_s - self._last_detection_s)
            self._last_detection_s = max(self._last_detection_s, frame.captured_s)

    def source_lag(self, lag_s: float | None, reader_delay_s: float) -> None:
        """The capture thread's word on how far behind its source it is."""
        self._source_lag_s, self._reader_delay_s = lag_s, reader_delay_s

    def moved(self, frame: Frame) -> None:
        """What the measuring of motion took and brought for a frame."""
        if frame.motion is None:
            return
        with self._lock:
            self._latency["motion"].add(frame.motion_s)
            self._boxes += len(frame.motion.ids)
            self._boxes_trusted += int(np.count_nonzero(frame.motion.trusted))

    def pool_was_empty(self) -> None:
        """A keyframe was due, but no input slot was free: the frame is tracked."""
        with self._lock:
            self._pool_empty += 1

    def counts(self) -> Counts:
        """The camera's frames."""
        return self.ledger.counts()

    def snapshot(self, now_s: float, duration_s: float) -> Snapshot:
        """This camera's part of the report."""
        with self._lock:
            counts = self.ledger.counts()
            settled = counts.captured - counts.pending
            seen_s = max(duration_s, 1e-9)
            # A camera that is over is not waiting for a detection any more.
            delivers = self.status is None or self.status.state.delivers
            since_s = (now_s if delivers else self._last_frame_s) - self._last_detection_s
            live_s = max(min(duration_s, _LIVE_WINDOW_S), 1e-9)
            recent = [r for r in self._recent if r[0] >= now_s - live_s]
            lag_s = self._source_lag_s
            status = self.status
            answered = counts.detected + counts.tracked
            age_s = max(0.0, now_s - self._last_frame_s)
            return {
                "state": (CameraState.CONNECTING if status is None else status.state).value,
                "reason": "" if status is None else status.reason,
                "captured": counts.captured,
                "detected": counts.detected,
                "tracked": counts.tracked,
                "dropped": dict(counts.dropped),
                "pending": counts.pending,
                "detections_late": self._late,
                "answered_in_budget": _share(self._in_budget, settled),
                "fps": round(counts.captured / seen_s, 2),
                "detections_per_s": round(self._applied / seen_s, 2),
                "max_detection_gap_s": (
                    None
                    if counts.captured == self._applied == 0
                    else round(max(self._max_gap_s, since_s), 3)
                ),
                "source_lag_ms": None if lag_s is None else round(lag_s * 1000, 1),
                "reader_delay_ms": round(self._reader_delay_s * 1000, 1),
                "slots_empty": self._pool_empty,
                "motion": {
                    "thinning": None if self.thinning is None else self.thinning.name.lower(),
                    "boxes_trusted": _share(self._boxes_trusted, self._boxes),
                },
                "latency_ms": {
                    stage: latency.snapshot_ms() for stage, latency in self._latency.items()
                },
                "live": {
                    "fps": round(len(recent) / live_s, 1),
                    "detections_per_s": round(
                        sum(done_s >= now_s - live_s for done_s in self._recent_detections)
                        / live_s,
                        1,
                    ),
                    "answered_in_budget": _share(sum(r[1] for r in recent), len(recent)),
                    # How long ago the last answered frame was captured: a source that is dead
                    # shows, whatever its state says.
                    "last_frame_age_s": round(age_s, 2) if answered else None,
                },
                "balanced": counts.balanced,
            }


class RunStats:
    """Numbers of a whole run from readiness on.

    Args:
        budget_s: From capture to hand-over.
        batch_max: For the fill ratio.
        started_s: When the daemon was ready (monotonic).
    """

    def __init__(self, budget_s: float, batch_max: int, started_s: float) -> None:
        self.started_s = started_s
        self.budget_s = budget_s
        self._batch_max = batch_max
        self._cameras: dict[str, CameraStats] = {}
        self._lock = threading.Lock()
        self._sizes: Counter[int] = Counter()
        self._kinds: Counter[BatchKind] = Counter()
        self._failed = 0
        self._busy_s = 0.0
        self._pixels = self._padding_px = 0
        self._stopped_s: float | None = None

    def camera(self, name: str) -> CameraStats:
        """The camera's numbers; made at first use. Any thread."""
        with self._lock:
            stats = self._cameras.get(name)
            if stats is None:
                stats = self._cameras[name] = CameraStats(name, self.budget_s, self.started_s)
            return stats

    def cameras(self) -> list[CameraStats]:
        """All cameras in order of appearance."""
        with self._lock:
            return list(self._cameras.values())

    def batch(self, batch: Batch, took_s: float, failed: bool) -> None:
        """A batch is through; its slots are not free yet. Called by the detection loop."""
        inner_px = sum(
            frame.slot.geometry.inner_width * frame.slot.geometry.inner_height
            for frame in batch.frames
            if frame.slot is not None and frame.slot.geometry is not None
        )
        with self._lock:
            self._pixels += len(batch.frames) * batch.bucket.pixels
            self._padding_px += len(batch.frames) * batch.bucket.pixels - inner_px
            self._busy_s += took_s
            if failed:
                self._failed += 1
            else:
                self._sizes[len(batch.frames)] += 1
                self._kinds[batch.kind] += 1

    def stop(self, now_s: float) -> None:
        """Draining starts: the duration ends here."""
        self._stopped_s = now_s

    def duration_s(self, now_s: float) -> float:
        """From readiness to now, or to the start of draining."""
        end_s = now_s if self._stopped_s is None else self._stopped_s
        return max(end_s - self.started_s, 0.0)

    def unbalanced(self, now_s: float, lost_after_s: float = 5.0) -> list[str]:
        """What breaks the promise that no frame is unaccounted for; empty if all is well."""
        problems = []
        for stats in self.cameras():
            counts = stats.counts()
            if not counts.balanced:
                problems.append(
                    f"camera {stats.name}: captured {counts.captured} != detected"
                    f" {counts.detected} + tracked {counts.tracked} + dropped"
                    f" {sum(counts.dropped.values())} + pending {counts.pending}"
                    f" ({counts.faults} settled twice)"
                )
            oldest_s = counts.oldest_pending_s
            if oldest_s is not None and now_s - oldest_s > lost_after_s:
                problems.append(
                    f"camera {stats.name}: a frame has been pending for {now_s - oldest_s:.1f} s"
                )
        return problems

    def snapshot(
        self, now_s: float, service_ms: Mapping[str, Mapping[str, float]] | None = None
    ) -> Snapshot:
        """The run so far: ``duration_s``, ``answered_in_budget``, ``cameras``, ``batches`` ..."""
        duration_s = self.duration_s(now_s)
        end_s = now_s if self._stopped_s is None else self._stopped_s
        cameras = {stats.name: stats.snapshot(end_s, duration_s) for stats in self.cameras()}
        settled = {name: c["captured"] - c["pending"] for name, c in cameras.items()}
        in_budget = sum(
            settled[name] * (c["answered_in_budget"] or 0.0) for name, c in cameras.items()
        )
        with self._lock:
            count = sum(self._sizes.values())
            images = sum(n * k for n, k in self._sizes.items())
            mean = images / count if count else None
            seen_s = max(duration_s, 1e-9)
            return {
                "duration_s": round(duration_s, 3),
                "answered_in_budget": _share(in_budget, sum(settled.values())),
                "cameras": cameras,
                "batches": {
                    "count": count,
                    "mean_size": None if mean is None else round(mean, 3),
                    "fill_ratio": None if mean is None else round(mean / self._batch_max, 3),
                    "sizes": {str(n): self._sizes[n] for n in sorted(self._sizes)},
                    "corrections": self._kinds[BatchKind.CORRECTION],
                    "failed": self._failed,
                    "padding": _share(self._padding_px, self._pixels),
                },
                "detector": {
                    "use": round(min(self._busy_s / seen_s, 1.0), 4),
                    "images_per_s": round(images / seen_s, 2),
                    "service_ms": {b: dict(t) for b, t in (service_ms or {}).items()},
                },
            }


def _share(part: float, whole: float) -> float | None:
    return None if whole == 0 else round(part / whole, 5)
