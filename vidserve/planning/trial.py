"""Some cameras on some machine, and what becomes of them. Pure.

The daemon's own scheduler runs on a manual clock. Overload control is off: what is asked for has
to fit without it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vidserve.frames import Bucket
from vidserve.planning.need import (
    CPU_MOST,
    Limit,
    Machine,
    Miss,
    Need,
    PlannedCamera,
    cpu_miss,
    need,
    plain_misses,
    times_of,
)
from vidserve.scheduling.scheduler import Scheduler
from vidserve.scheduling.settings import SchedulerSettings
from vidserve.scheduling.simulator import Arrival, Result, SimulatedCamera, Simulation

SERVED_LEAST = 0.99
LATE_MOST = 0.01
GAP_MOST = 1.5
_WORST_LEAST = 0.9  # of its own detections, for the camera that fares worst
_JITTER_S = 0.002
_AFTER_S = 0.002
_LONGEST_S = 30.0
_ENOUGH = 500
_CHANCE_LATE = 2  # so many late detections are no share


@dataclass(frozen=True, slots=True)
class Trial:
    """What becomes of some cameras. Shares 0..1, times in seconds, rates per second.

    Attributes:
        cameras: How many.
        needed: By arithmetic.
        cores: Of the machine.
        detector_cores: CPU that the detector takes, in cores.
        use: Share of its time that the detector is busy.
        served_share: Of the detections asked for, late ones included.
        worst_served_share: The same for the camera that fares worst.
        in_time_share: Of the detections asked for, those in time for their frame.
        late_share: Of all detections.
        gap_p50_s, gap_p99_s: Between detections of a camera; infinite: there were none.
        latency_p50_s, latency_p95_s: From capture to the end of the batch; likewise.
        mean_batch: Frames.
        misses: What is not kept; empty: it fits.
    """

    cameras: int
    needed: Need
    cores: float
    detector_cores: float
    use: float
    served_share: float
    worst_served_share: float
    in_time_share: float
    late_share: float
    gap_p50_s: float
    gap_p99_s: float
    latency_p50_s: float
    latency_p95_s: float
    mean_batch: float
    misses: tuple[Miss, ...]

    @property
    def fits(self) -> bool:
        return not self.misses

    @property
    def cpu_use(self) -> float:
        """Share of all cores."""
        return (self.needed.camera_cores + self.detector_cores) / self.cores


def try_out(
    cameras: Sequence[PlannedCamera],
    machine: Machine,
    settings: SchedulerSettings,
    *,
    seed: int = 1,
    duration_s: float = 8.0,
    late_most: float = LATE_MOST,
) -> Trial:
    """Simulate some cameras. Deterministic in the seed.

    Args:
        cameras: At least one.
        machine: What they share.
        settings: Of the scheduler; ``control`` is taken to be off.
        seed: Of phases, jitter and noise.
        duration_s: Simulated; made longer where detections are few.
        late_most: Share of late detections that is still good.
    """
    settings = replace(settings, control=False)
    needed = need(cameras, machine, settings)
    longest_s = max(
        (c.interval_s(settings.max_gap_s) for c in cameras if c.weight > 0), default=0.0
    )
    # Enough detections that one in a hundred means something.
    wanted_s = max(5 * longest_s, _ENOUGH / needed.asked_per_s if needed.asked_per_s else 0.0)
    duration_s = max(duration_s, min(wanted_s, _LONGEST_S))
    result = _run(cameras, machine, needed.slower, settings, seed, duration_s)
    served = _served(result, cameras, settings.max_gap_s)
    asked_per_s = needed.asked_per_s
    served_share = sum(per_s for per_s, _ in served) / asked_per_s if served else 1.0
    worst_share = min((per_s / asked for per_s, asked in served), default=1.0)
    use = min(result.busy_s / duration_s, 1.0)
    detector_cores = use * machine.detector_cores / needed.slower
    misses = plain_misses(needed, machine, settings.max_gap_s)
    if all(miss.limit is not Limit.CPU for miss in misses):
        if needed.camera_cores + detector_cores > CPU_MOST * machine.cores:
            misses.append(cpu_miss(needed.camera_cores, detector_cores, machine.cores))
    gap_p99_s = result.gap_s(0.99)
    if served:
        most_s = _largest_good_gap_s(cameras, settings.max_gap_s)
        found = _broken(served_share, worst_share, result.late_share, gap_p99_s, most_s, late_most)
        if result.late_share > max(late_most, 0.5):
            found = [_hopeless(cameras, machine, needed.slower, settings) or found[0]]
        slowness = f" (its service times x{needed.slower:.1f}: the cameras go first)"
        misses += [
            Miss(Limit.DETECTOR, text + (slowness if needed.slower > 1.05 else ""))
            for text in found
        ]
    return Trial(
        cameras=len(cameras),
        needed=needed,
        cores=machine.cores,
        detector_cores=detector_cores,
        use=use,
        served_share=served_share,
        worst_served_share=worst_share,
        in_time_share=served_share * (1 - result.late_share),
        late_share=result.late_share,
        gap_p50_s=result.gap_s(0.5),
        gap_p99_s=gap_p99_s,
        latency_p50_s=result.latency_s(0.5),
        latency_p95_s=result.latency_s(0.95),
        mean_batch=result.mean_batch,
        misses=tuple(misses),
    )


def _broken(
    served_share: float,
    worst_share: float,
    late_share: float,
    gap_p99_s: float,
    most_s: float,
    late_most: float,
) -> list[str]:
    """The detector's promises that are not kept, the plainest one only."""
    if late_share > late_most:
        return [f"{late_share:.1%} of the detections come late for their frame"]
    if served_share < SERVED_LEAST:
        return [f"only {served_share:.1%} of the detections asked for are made"]
    if worst_share < _WORST_LEAST:
        return [f"one camera gets only {worst_share:.0%} of the detections it asks for"]
    if gap_p99_s > most_s:
        return [f"gaps between detections grow to {gap_p99_s:.2f} s (p99)"]
    return []


def _largest_good_gap_s(cameras: Sequence[PlannedCamera], max_gap_s: float) -> float:
    """Half as long again as the longest interval, or a frame longer; never beyond the promise.

    Gaps are whole numbers of frames: a single slip at K = 1 doubles one.
    """
    weighed = [camera for camera in cameras if camera.weight > 0]
    slip_s = max(
        max(GAP_MOST * c.interval_s(max_gap_s), c.interval_s(max_gap_s) + 1 / c.fps)
        for c in weighed
    )
    return min(slip_s, max_gap_s + max(1 / c.fps for c in weighed)) + _JITTER_S


def _hopeless(
    cameras: Sequence[PlannedCamera],
    machine: Machine,
    slower: float,
    settings: SchedulerSettings,
) -> str:
    """Says so if no detection of some camera can be in time, however idle the detector is."""
    times = times_of(machine.tables_s, settings.batch_max)
    for camera in cameras:
        alone_s = times.expected(camera.ladder[0])[1] * slower
        left_s = settings.budget_s - camera.capture_s - _AFTER_S
        if alone_s > 0.9 * left_s:
            return (
                f"a single picture of {camera.ladder[0]} takes the detector"
                f" {1000 * alone_s:.1f} ms, and the budget of {1000 * settings.budget_s:g} ms"
                f" leaves {1000 * max(left_s, 0.0):.1f} ms for it, so that detections come late"
            )
    return ""


def _served(
    result: Result, cameras: Sequence[PlannedCamera], max_gap_s: float
) -> list[tuple[float, float]]:
    """Detections a second got (at most what was asked) and asked, by camera with a weight.

    Counted from the first to the last detection of a camera, so that it does not matter where
    the simulated time cuts its intervals.
    """
    found = []
    gaps_s = iter(result.gaps_s)
    for camera, per_s in zip(cameras, result.per_camera_per_s, strict=True):
        count = round(per_s * result.duration_s)
        took_s = sum(itertools.islice(gaps_s, max(count - 1, 0)))
        if camera.weight <= 0:
            continue
        asked = camera.asked_per_s(max_gap_s)
        got = (count - 1) / took_s if took_s > 0 else count / result.duration_s
        # A rate of gaps alone would overlook a camera that starves for most of the time.
        fewest = (result.duration_s * asked - 2) / (result.duration_s * asked)
        if per_s < asked * fewest:
            got = min(got, per_s)
        # Within one frame in a hundred intervals it is what was asked: timestamps jitter.
        found.append((asked if got > 0.998 * asked else got, asked))
    return found


def _run(
    cameras: Sequence[PlannedCamera],
    machine: Machine,
    slower: float,
    settings: SchedulerSettings,
    seed: int,
    duration_s: float,
) -> Result:
    tables_s = {
        bucket: {n: seconds * slower for n, seconds in table_s.items()}
        for bucket, table_s in machine.tables_s.items()
    }
    real = times_of(tables_s, settings.batch_max)
    drawn = random.Random(seed)
    phases = random.Random(seed)  # of its own: the first cameras stay the same when more come

    def service_s(_now_s: float, bucket: Bucket, n: int) -> float:
        return real.expected(bucket)[n] * max(0.2, drawn.gauss(1.0, machine.noise))

    def frames(camera: PlannedCamera, first_s: float) -> Iterator[Arrival]:
        ready_s = camera.capture_s
        for k in itertools.count():
            captured_s = first_s + k / camera.fps
            if captured_s >= duration_s:
                return
            captured_s += drawn.uniform(0, _JITTER_S)
            yield Arrival(captured_s, captured_s + ready_s)

    arrivals: dict[str, Iterator[Arrival]] = {}
    firsts_s: dict[str, float] = {}
    for camera in cameras:
        firsts_s[camera.name] = phases.uniform(0, 1 / camera.fps)
        arrivals[camera.name] = frames(camera, firsts_s[camera.name])
    simulation = Simulation(
        [SimulatedCamera(c.name, c.weight, c.interval_frames, c.fps, c.ladder) for c in cameras],
        arrivals,
        settings,
        tables_s,
        service_s,
        duration_s=duration_s,
        after_s=lambda now_s: _AFTER_S,
    )
    scheduler = simulation.scheduler
    assert isinstance(scheduler, Scheduler), "the policy is the daemon's own"
    # A steady state is asked for, not a start: phases are known and spread before the first frame.
    for camera in cameras:
        scheduler.plan(camera.name).saw(firsts_s[camera.name] - 1 / camera.fps)
    scheduler.stagger(0.0)
    return simulation.run()
