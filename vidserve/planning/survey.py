"""From a config to what can be planned with: cameras with their costs, the machine, the limits."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vidserve import build
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock
from vidserve.config import Config, LoadResult, check_labels
from vidserve.detection.service_formula import ServiceTime
from vidserve.errors import ConfigError, SourceUnreachable
from vidserve.frames import Bucket
from vidserve.planning.capacity import Resize
from vidserve.planning.detector import DetectorBench
from vidserve.planning.live import beside_cameras
from vidserve.planning.measure import (
    SourceCost,
    SourceJob,
    Unread,
    answer_cost,
    read_sources,
)
from vidserve.planning.need import Machine, PlannedCamera
from vidserve.scheduling.buckets import STRIDE, Buckets, in_order
from vidserve.scheduling.settings import SchedulerSettings

ASSUMED_SIZE = (1280, 720)
ASSUMED_FPS = 30.0
_SWEEP_SMALLER_S = 1.5
_WAITED, _AGREE = 0.2, 1.3
_NOISE, _NOISE_MOST = 0.05, 0.3

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One camera of the config and how its numbers were found.

    Attributes:
        planned: What it costs.
        source: For people; no credentials.
        image_sizes: Long sides of the input, largest first.
        unread: Why its source was not measured; None: it was.
        frames: How many of its pictures were measured.
        note: What else people should know of it; may be empty.
    """

    planned: PlannedCamera
    source: str
    image_sizes: tuple[int, ...]
    unread: str | None
    frames: int
    note: str = ""


@dataclass(slots=True)
class Survey:
    """All that a plan starts from. ``close`` it.

    Attributes:
        cameras: Those that would run.
        left_out: Camera -> why it is not planned for.
        notes: What people should know of the measurement.
        machine: What they share.
        settings: Of the scheduler, within what the model takes.
        detector: Model, backend and device, for people.
        measured: Service times were measured, not given.
        hung: A reader did not come back: leave the process without waiting for it.
    """

    cameras: tuple[Surveyed, ...]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]
    machine: Machine
    settings: SchedulerSettings
    detector: str
    measured: bool
    hung: bool
    _buckets: Callable[[], Buckets] = field(repr=False)
    _service: Callable[[Bucket], Mapping[int, float]] = field(repr=False)
    _bench: DetectorBench | None = field(repr=False)
    _fixed: bool = False

    @property
    def planned(self) -> tuple[PlannedCamera, ...]:
        """The cameras for the planner."""
        return tuple(camera.planned for camera in self.cameras)

    def resize(self) -> Resize:
        """How to make the input smaller, for ``Planner.verdict``; its times are found then."""

        def smaller(side: int) -> tuple[tuple[PlannedCamera, ...], Machine] | None:
            if self._fixed:
                return None
            sizes = {c.planned.name: (min(side, c.image_sizes[0]),) for c in self.cameras}
            sources = {c.planned.name: (c.planned.width, c.planned.height) for c in self.cameras}
            ladders = _ladders(self._buckets(), sources, sizes)
            cameras = tuple(
                replace(camera, ladder=ladders[camera.name][:1]) for camera in self.planned
            )
            if all(
                c.ladder[0] == old.ladder[0] for c, old in zip(cameras, self.planned, strict=True)
            ):
                return None
            tables = dict(self.machine.tables_s)
            for camera in cameras:
                bucket = camera.ladder[0]
                if bucket not in tables:
                    tables[bucket] = self._service(bucket)
            return cameras, replace(self.machine, tables_s=tables)

        return smaller

    def close(self) -> None:
        """Free the detector."""
        if self._bench is not None:
            self._bench.close()


def survey(
    result: LoadResult,
    service: ServiceTime | None,
    measure_s: float,
    clock: Clock,
    tell: Tell,
) -> Survey:
    """Load and time the detector, read the sources, time an answer.

    Args:
        result: A loaded config file that is not refused.
        service: Seconds by batch size, for every input shape: no detector is loaded then.
        measure_s: How long each source is read.
        clock: The real one.
        tell: Told what goes on, in a few words.

    Raises:
        ConfigError: there is nothing to plan, or the model refuses the config.
        SourceUnreachable: no source answers.
        DetectorError: the detector cannot be loaded, or fails.
    """
    _check_any(result)
    bench: DetectorBench | None = None
    if service is None:
        assert result.config is not None, "the caller has a good config"
        make = build.detector_factory(result.config, clock)
        tell(f"loading {result.config.detector.model}")
        bench = DetectorBench(make, clock, build.service_time_cache(result.config))
    try:
        if bench is not None:
            result = result.with_problems(check_labels(result, bench.info.names.values()))
            _check_any(result)
        return _survey(result, service, bench, measure_s, clock, tell)
    except BaseException:
        if bench is not None:
            bench.close()
        raise


def _check_any(result: LoadResult) -> None:
    """Whether there is anything to plan."""
    if result.config is None:
        raise ConfigError("\n".join(map(str, result.problems)))
    if not _running(result.config):
        why = _left_out(result)
        reasons = "".join(f"\n  camera {name}: {reason}" for name, reason in why.items())
        raise ConfigError(f"{result.file}: there is no camera to plan for{reasons}")


def _running(config: Config) -> list[str]:
    return [name for name, camera in config.cameras.items() if camera.enabled]


def _left_out(result: LoadResult) -> dict[str, str]:
    assert result.config is not None
    found = {
        name: "enabled: false"
        for name, camera in result.config.cameras.items()
        if not camera.enabled
    }
    for name, problems in result.failed_cameras.items():
        found[name] = "; ".join(map(str, problems))
    return found


def _survey(
    result: LoadResult,
    service: ServiceTime | None,
    bench: DetectorBench | None,
    measure_s: float,
    clock: Clock,
    tell: Tell,
) -> Survey:
    config = result.config
    assert config is not None
    settings = build.scheduler_settings(config)
    if bench is not None and bench.max_batch is not None:
        most = min(settings.batch_max, bench.max_batch)
        settings = replace(settings, batch_max=most, batch_target=min(settings.batch_target, most))
    fixed = [bench.info.fixed_bucket] if bench is not None and bench.info.fixed_bucket else []
    shapes = fixed or list(config.detector.buckets)
    stride = STRIDE if bench is None else bench.info.stride

    def buckets() -> Buckets:
        return Buckets(shapes, stride, settings.max_pixels)

    costs, hung = _read(config, buckets, measure_s, clock, tell)
    cameras = _cameras(config, costs, buckets())

    def times(bucket: Bucket, budget_s: float | None = None) -> Mapping[int, float]:
        if service is not None:
            return {n: service(n) for n in range(1, settings.batch_max + 1)}
        assert bench is not None, "measured or given"
        tell(f"timing the detector at {bucket}")
        if budget_s is None:
            return bench.times(bucket, settings.batch_max)
        return bench.times(bucket, settings.batch_max, budget_s)

    def smaller(bucket: Bucket) -> Mapping[int, float]:
        if service is None:
            return times(bucket, _SWEEP_SMALLER_S)
        # The formula holds for the configured size: fewer pixels take so much less.
        usual = max(camera.planned.ladder[0].pixels for camera in cameras)
        share = bucket.pixels / usual
        return {n: seconds * share for n, seconds in times(bucket).items()}

    used = list(dict.fromkeys(camera.planned.ladder[0] for camera in cameras))
    tables = {bucket: times(bucket) for bucket in used}
    tell("timing an answer")
    answer = answer_cost()
    cores = len(os.sched_getaffinity(0))
    single = None if bench is None else bench.single(used[0])
    notes = []
    if bench is not None and single is not None:
        ratio = single.wall_s / tables[used[0]][1]
        if single.waited > _WAITED:
            notes.append(
                "the machine is busy with other things now: the detector waits for a core"
                f" {single.waited:.0%} of its time. Plan again when it is quiet"
            )
        elif not 1 / _AGREE < ratio < _AGREE:
            # The daemon takes cached times that are right within a factor of two, and learns.
            tell("the cached service times are old: timing the detector again")
            tables = {bucket: bench.times_anew(bucket, settings.batch_max) for bucket in used}
    alone_s = tables[used[0]][1]
    on_cpu = bench is not None and bench.info.device == "cpu"
    if bench is not None and on_cpu and bench.info.backend != "fake":
        tell("timing the detector beside the cameras")
        live = beside_cameras(result)
        if all(bucket in live for bucket in used):
            tables = {bucket: live[bucket] for bucket in used}
            notes.append(
                f"beside these cameras a picture of {used[0]} takes the detector"
                f" {1000 * tables[used[0]][1]:.1f} ms, alone {1000 * alone_s:.1f} ms: they share"
                " the cores"
            )
    machine = Machine(
        cores=cores,
        frame_s=answer.frame_s,
        detection_s=answer.detection_s,
        tables_s=tables,
        noise=_NOISE if single is None else min(max(single.noise, _NOISE), _NOISE_MOST),
        # The time of the table, which may be from the cache: that of a quiet machine.
        detector_cores=0.0 if single is None else single.cpu_s / alone_s,
        detector_yields=on_cpu,
    )
    what = "detector as given" if bench is None else _describe(config, bench)
    return Survey(
        cameras=cameras,
        left_out=_left_out(result),
        notes=tuple(notes),
        machine=machine,
        settings=settings,
        detector=what,
        measured=bench is not None,
        hung=hung,
        _buckets=buckets,
        _service=smaller,
        _bench=bench,
        _fixed=bool(shapes),
    )


def _describe(config: Config, bench: DetectorBench) -> str:
    info = bench.info
    model = config.detector.model
    name = model if model.startswith(build.FAKE_PREFIX) else Path(model).name
    return f"{name} on {info.device} ({info.backend})"


def _read(
    config: Config, buckets: Callable[[], Buckets], measure_s: float, clock: Clock, tell: Tell
) -> tuple[dict[str, SourceCost | Unread], bool]:
    """What the source of each camera costs; a source of several cameras is read once."""
    jobs: dict[Hashable, SourceJob] = {}
    of_camera: dict[str, Hashable] = {}
    for name in _running(config):
        camera, settings = config.camera(name), build.camera_settings(config, name)
        key = _source_key(settings, camera.image_size)
        of_camera[name] = key
        sides = camera.image_size

        def bucket_of(width: int, height: int, sides: tuple[int, ...] = sides) -> Bucket:
            return buckets().ladder(width, height, sides)[0]

        jobs.setdefault(key, SourceJob(settings, bucket_of, config.tracking.flow))
    count = len(jobs)
    tell(f"reading {count} source{'' if count == 1 else 's'}")
    readings = read_sources(list(jobs.values()), measure_s, clock)
    by_key = dict(zip(jobs, readings.results, strict=True))
    costs = {name: by_key[key] for name, key in of_camera.items()}
    if not any(isinstance(cost, SourceCost) for cost in costs.values()):
        reasons = "".join(
            f"\n  camera {name}: {cost.reason}"
            for name, cost in costs.items()
            if isinstance(cost, Unread)
        )
        raise SourceUnreachable(f"no source answers, so there is nothing to measure:{reasons}")
    return costs, readings.hung


def _source_key(settings: CameraSettings, sides: tuple[int, ...]) -> Hashable:
    return (
        settings.source,
        settings.username,
        settings.password,
        settings.reader,
        settings.transport,
        settings.decoder,
        settings.crop,
        sides,
    )


def _cameras(
    config: Config, costs: Mapping[str, SourceCost | Unread], buckets: Buckets
) -> tuple[Surveyed, ...]:
    known = [cost for cost in costs.values() if isinstance(cost, SourceCost)]
    # Sizes that are not known are those of a usual camera, at the mean price of the others.
    usual = SourceCost(
        *ASSUMED_SIZE,
        fps=ASSUMED_FPS,
        decode_s=statistics.fmean(cost.decode_s for cost in known),
        letterbox_s=statistics.fmean(cost.letterbox_s for cost in known),
        frames=0,
        motion_s=statistics.fmean(cost.motion_s for cost in known),
    )
    real = {name: usual if isinstance(cost, Unread) else cost for name, cost in costs.items()}
    ladders = _ladders(
        buckets,
        {name: (cost.width, cost.height) for name, cost in real.items()},
        {name: config.camera(name).image_size for name in real},
    )
    found = []
    for name, cost in real.items():
        camera, read = config.camera(name), costs[name]
        limit = camera.own.fps
        planned = PlannedCamera(
            name=name,
            width=cost.width,
            height=cost.height,
            source_fps=cost.fps,
            fps=cost.fps if limit is None else min(limit, cost.fps),
            interval_frames=camera.keyframe_interval,
            weight=camera.own.weight,
            ladder=ladders[name],
            decode_s=cost.decode_s,
            letterbox_s=cost.letterbox_s,
            motion_s=cost.motion_s,
        )
        note = "" if camera.own.realtime else "realtime: false: planned at the pace of its file"
        found.append(
            Surveyed(
                planned=planned,
                source=camera.shown_source,
                image_sizes=camera.image_size,
                unread=read.reason if isinstance(read, Unread) else None,
                frames=cost.frames,
                note=note,
            )
        )
    return tuple(found)


def _ladders(
    buckets: Buckets,
    sizes: Mapping[str, tuple[int, int]],
    sides: Mapping[str, tuple[int, ...]],
) -> dict[str, tuple[Bucket, ...]]:
    """Input shapes by camera, asked for in the order of the daemon."""
    found: dict[str, tuple[Bucket, ...]] = {}
    for size in in_order(sizes.values()):
        for name in (name for name, its_size in sizes.items() if its_size == size):
            found[name] = buckets.ladder(*size, sides[name])
    return found
