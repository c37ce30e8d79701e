"""Loads for the simulator: cameras of steady rates on a detector of a known service time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from vidserve.frames import Bucket
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings
from vidserve.scheduling.simulator import USUAL, Arrival, Result, SimulatedCamera, Simulation


@dataclass(frozen=True, slots=True)
class Load:
    """What is simulated.

    Attributes:
        cameras: How many cameras alike, or each by itself.
        fps: Of each of the cameras alike.
        interval_frames: Their keyframe interval K.
        service_s: Seconds by batch size.
        tables_s: The same by shape, instead; for cameras of several shapes.
        noise: Standard deviation of the service time, as a share.
        jitter_s: Frames arrive up to this much late.
        after_s: What follows a detection.
        same_phase: All cameras' frames come at the same moments.
        duration_s: Simulated time.
        seed: Of everything random.
        policy: Key of ``POLICIES``.
    """

    cameras: int | tuple[SimulatedCamera, ...] = 8
    fps: float = 30.0
    interval_frames: int = 5
    service_s: Callable[[int], float] = field(default=lambda n: 0.003 + 0.002 * n)
    tables_s: Mapping[Bucket, Mapping[int, float]] | None = None
    noise: float = 0.05
    jitter_s: float = 0.002
    after_s: float = 0.002
    same_phase: bool = False
    duration_s: float = 20.0
    seed: int = 1
    policy: str = "deadline"

    def each(self) -> tuple[SimulatedCamera, ...]:
        """The cameras one by one."""
        if isinstance(self.cameras, tuple):
            return self.cameras
        return tuple(
            SimulatedCamera(f"camera{k:03d}", 1.0, self.interval_frames, self.fps)
            for k in range(self.cameras)
        )

    def asked_per_s(self) -> float:
        """Detections that the keyframe intervals ask for."""
        return sum((c.fps or 0.0) / c.interval_frames for c in self.each() if c.weight > 0)

    def tables(self, n_max: int) -> Mapping[Bucket, Mapping[int, float]]:
        """Service times by shape and batch size."""
        if self.tables_s is not None:
            return self.tables_s
        return {USUAL: {n: self.service_s(n) for n in range(1, n_max + 1)}}


def simulate(load: Load, settings: SchedulerSettings | None = None) -> Result:
    """Run one load through the scheduler. Deterministic in the load's seed."""
    settings = settings or SchedulerSettings(wait_s=0.0)
    drawn = random.Random(load.seed)
    tables_s = load.tables(settings.batch_max)
    real = ServiceTimes(settings.batch_max)  # knows the sizes between those of the tables
    for bucket, table_s in tables_s.items():
        real.set_table(bucket, table_s)

    def service_s(_now_s: float, bucket: Bucket, n: int) -> float:
        return real.expected(bucket)[n] * max(0.2, drawn.gauss(1.0, load.noise))

    def steady(camera: SimulatedCamera) -> Iterator[Arrival]:
        period_s = 1 / (camera.fps or load.fps)
        ideal_s = 0.0 if load.same_phase else drawn.uniform(0, period_s)
        while ideal_s < load.duration_s:
            arrives_s = ideal_s + drawn.uniform(0, load.jitter_s)
            yield Arrival(arrives_s, arrives_s)
            ideal_s += period_s

    cameras = load.each()
    return Simulation(
        cameras,
        {camera.name: steady(camera) for camera in cameras},
        settings,
        tables_s,
        service_s,
        duration_s=load.duration_s,
        after_s=lambda now_s: load.after_s,
        policy=load.policy,
    ).run()
