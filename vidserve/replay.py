"""``vidserve simulate --trace``: a recorded run once more, on the scheduler's own clock.

The frames come as they came, a batch takes as long as the recorded one nearest in time, and all
that is decided is decided anew: with the settings of the run, which shows how true the simulator
is, or with others, which shows what they would have changed.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from vidserve.errors import VidserveError
from vidserve.frames import Bucket
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings
from vidserve.scheduling.simulator import USUAL, Arrival, Result, SimulatedCamera, Simulation
from vidserve.trace import Trace, TracedBatch

_SAME_SIZE_WITHIN_S = 5.0
_AFTER_START_S = 0.002


def replay(
    trace: Trace,
    settings: SchedulerSettings | None = None,
    interval_frames: int | None = None,
    policy: str = "deadline",
) -> Result:
    """Simulate the frames of a trace.

    Args:
        trace: Of a run with at least one frame.
        settings: Others than those of the run.
        interval_frames: Another keyframe interval, for all cameras.
        policy: Of the simulator.

    Raises:
        VidserveError: nothing to replay.
    """
    if not trace.frames:
        raise VidserveError("the trace holds no frames: was any camera running?")
    settings = settings or trace.header.settings
    names = {frame.camera for frame in trace.frames}
    cameras = [
        SimulatedCamera(
            name,
            weight,
            interval_frames or interval,
            None,
            trace.ladders.get(name, (USUAL,)),
            trace.header.adaptive,
        )
        for name, weight, interval in trace.header.cameras
        if name in names
    ]
    tables_s = trace.header.service_s or {USUAL: {1: _mean_took_s(trace.batches)}}
    batches = _Recorded(trace.batches, tables_s, settings.batch_max)
    simulation = Simulation(
        cameras,
        {camera.name: _arrivals(trace, camera.name) for camera in cameras},
        settings,
        tables_s,
        batches.service_s,
        duration_s=trace.duration_s,
        after_s=_steps(trace.after_s, _AFTER_START_S),
        hand_back_s=batches.back_s,
        policy=policy,
        wake_s=_wakes(trace),
        seconds_s=[when_s for when_s, _ in trace.after_s],
    )
    for when_s, name, delivers in trace.deliveries:
        if not delivers and name in names and when_s < trace.duration_s:
            simulation.at(when_s, _withdraw(simulation, name))
    return simulation.run()


def comparison(trace: Trace, result: Result) -> dict[str, Any]:
    """Recorded and simulated side by side, shares 0..1, and how far apart in points."""
    recorded, simulated = _recorded_shares(trace), _simulated_shares(result)
    keys = ("detected", "late", "answered_in_budget")
    sizes = sorted({*recorded["batch_sizes"], *simulated["batch_sizes"]}, key=int)
    points: dict[str, Any] = {key: _points(recorded[key], simulated[key]) for key in keys}
    points["batch_sizes"] = {
        n: _points(recorded["batch_sizes"].get(n, 0.0), simulated["batch_sizes"].get(n, 0.0))
        for n in sizes
    }
    return {"recorded": recorded, "simulated": simulated, "points_apart": points}


def show(found: dict[str, Any], title: str, console: Console) -> None:
    """The comparison as a table."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("", "recorded", "simulated", "apart"):
        table.add_column(column, justify="left" if not column else "right")
    recorded, simulated, points = (found[k] for k in ("recorded", "simulated", "points_apart"))
    for key, text in (
        ("captured", "frames answered"),
        ("dropped", "frames dropped before"),
        ("detections_per_s", "detections/s"),
        ("mean_batch", "mean batch"),
    ):
        table.add_row(text, f"{recorded[key]:g}", f"{simulated[key]:g}", "")
    for key, text in (
        ("detected", "detected in time, of frames"),
        ("late", "late, of detections"),
        ("answered_in_budget", "answered in budget"),
    ):
        apart = f"{points[key]:+.2f} points"
        table.add_row(text, f"{recorded[key]:.2%}", f"{simulated[key]:.2%}", apart)
    for n, apart in points["batch_sizes"].items():
        a, b = (side["batch_sizes"].get(n, 0.0) for side in (recorded, simulated))
        table.add_row(f"batches of {n}", f"{a:.1%}", f"{b:.1%}", f"{apart:+.2f} points")
    console.print(table)


def _recorded_shares(trace: Trace) -> dict[str, Any]:
    frames, batches = trace.frames, trace.batches
    budget_s = trace.header.settings.budget_s
    detected = sum(frame.detected for frame in frames)
    images = sum(len(batch.frames) for batch in batches)
    dropped = sum(count for _, _, _, count in trace.dropped)
    in_budget = sum(frame.handed_s - frame.captured_s <= budget_s for frame in frames)
    return {
        "captured": len(frames),
        "dropped": dropped,
        "detections_per_s": round(images / max(trace.duration_s, 1e-9), 2),
        "mean_batch": round(images / max(len(batches), 1), 3),
        "detected": round(detected / max(len(frames), 1), 5),
        "late": round(sum(batch.late for batch in batches) / max(images, 1), 5),
        "answered_in_budget": round(in_budget / max(len(frames), 1), 5),
        "batch_sizes": _sizes(Counter(len(batch.frames) for batch in batches)),
    }


def _simulated_shares(result: Result) -> dict[str, Any]:
    images = sum(n * count for n, count in result.batch_sizes.items())
    return {
        "captured": result.captured,
        "dropped": 0,
        "detections_per_s": round(images / max(result.duration_s, 1e-9), 2),
        "mean_batch": round(result.mean_batch, 3),
        "detected": round(result.detected / max(result.captured, 1), 5),
        "late": round(result.late_share, 5),
        "answered_in_budget": round(result.in_budget, 5),
        "batch_sizes": _sizes(result.batch_sizes),
    }


def _sizes(counted: Counter[int]) -> dict[str, float]:
    return {str(n): round(counted[n] / counted.total(), 4) for n in sorted(counted)}


def _points(recorded: float, simulated: float) -> float:
    return round(100 * (simulated - recorded), 2)


class _Recorded:
    """What the detector took, by the time, shape and size."""

    def __init__(
        self,
        batches: Sequence[TracedBatch],
        tables_s: Mapping[Bucket, Mapping[int, float]],
        n_max: int,
    ) -> None:
        self._times = ServiceTimes(n_max)
        for bucket, table_s in tables_s.items():
            self._times.set_table(bucket, table_s)
        by_size: dict[tuple[Bucket, int], list[tuple[float, float]]] = defaultdict(list)
        ratios: list[tuple[float, float]] = []
        for batch in batches:
            n = len(batch.frames)
            by_size[batch.bucket, n].append((batch.started_s, batch.took_s))
            if n <= n_max:
                swept_s = self._times.expected(batch.bucket)[n]
                ratios.append((batch.started_s, batch.took_s / swept_s))
        self._by_size = {key: _Nearest(values) for key, values in by_size.items()}
        self._ratios = _Nearest(ratios)
        self._back = _Nearest([(batch.started_s, batch.back_s) for batch in batches])

    def service_s(self, now_s: float, bucket: Bucket, n: int) -> float:
        """Of a batch of that size near in time; else the swept time by the detector's pace then."""
        same = self._by_size.get((bucket, n))
        if same is not None and same.distance_s(now_s) <= _SAME_SIZE_WITHIN_S:
            return same.value(now_s)
        return self._times.expected(bucket)[n] * self._ratios.value(now_s, 1.0)

    def back_s(self, now_s: float) -> float:
        """From the end of a batch until the tracking loop had it."""
        return self._back.value(now_s, 0.0)


class _Nearest:
    """Values by time; looked up by the nearest time."""

    def __init__(self, pairs: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(pairs)
        self._times_s = [pair[0] for pair in ordered]
        self._values = [pair[1] for pair in ordered]

    def _place(self, when_s: float) -> int:
        after = bisect.bisect(self._times_s, when_s)
        near = [k for k in (after - 1, after) if 0 <= k < len(self._times_s)]
        return min(near, key=lambda k: abs(self._times_s[k] - when_s))

    def distance_s(self, when_s: float) -> float:
        """How far away in time the nearest value is; infinite without any."""
        if not self._times_s:
            return math.inf
        return abs(self._times_s[self._place(when_s)] - when_s)

    def value(self, when_s: float, default: float = 0.0) -> float:
        """The nearest value; the default if there is none."""
        return self._values[self._place(when_s)] if self._values else default


def _arrivals(trace: Trace, name: str) -> Iterator[Arrival]:
    frames = sorted(
        (frame for frame in trace.frames if frame.camera == name), key=lambda f: f.arrived_s
    )
    return (Arrival(frame.captured_s, frame.arrived_s, frame.doubt) for frame in frames)


def _steps(pairs: Sequence[tuple[float, float]], before: float) -> Callable[[float], float]:
    """The last value told at a time."""
    times_s = [pair[0] for pair in pairs]
    values = [before, *(pair[1] for pair in pairs)]
    return lambda now_s: values[bisect.bisect(times_s, now_s)]


def _wakes(trace: Trace) -> Callable[[float], float]:
    """How long the idle detection thread took to wake, by the time.

    Seen where a batch reached its target: from the arrival that filled it to its start.
    """
    arrived_s = {(f.camera, round(f.captured_s * 1e6)): f.arrived_s for f in trace.frames}
    target = trace.header.settings.batch_target
    seen: list[tuple[float, float]] = []
    free_s = -math.inf
    for batch in trace.batches:
        came_s = sorted(
            arrived_s.get((camera, round(captured_s * 1e6)), math.inf)
            for camera, captured_s in batch.frames
        )
        if len(came_s) >= target and came_s[target - 1] > free_s:
            seen.append((batch.started_s, max(batch.started_s - came_s[target - 1], 0.0)))
        free_s = batch.started_s + batch.took_s
    return _Nearest(seen).value


def _withdraw(simulation: Simulation, name: str) -> Callable[[float], None]:
    return lambda _now_s: simulation.withdraw(name)


def _mean_took_s(batches: Sequence[TracedBatch]) -> float:
    took = list(itertools.chain((batch.took_s for batch in batches), [] if batches else [0.01]))
    return sum(took) / len(took)
