"""What cameras ask for, by arithmetic. Pure.

CPU time adds up; the detector's time does at its best batch size. What queues and deadlines do
with it is for a trial to find out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from vidserve.frames import Bucket
from vidserve.scheduling.scheduler import Scheduler
from vidserve.scheduling.service_time import ServiceTimes
from vidserve.scheduling.settings import SchedulerSettings

CPU_MOST = 0.85
"""Share of the cores that may be used: frames that queue for a core are late."""
_SLOWEST = 20.0


@dataclass(frozen=True, slots=True)
class PlannedCamera:
    """One camera with what it costs. CPU seconds are those of one core.

    Attributes:
        name: Unique.
        width, height: Of its pictures, pixels.
        source_fps: Pictures a second that are decoded.
        fps: Those of them that are captured (``fps`` of the config).
        interval_frames: Keyframe interval K.
        weight: Against the other cameras'; 0: never detected.
        ladder: Input shapes, largest first.
        decode_s: CPU seconds to read and decode a picture.
        letterbox_s: CPU seconds to bring one into the input shape.
        motion_s: CPU seconds to measure motion in a captured one; 0 if it is not measured.
    """

    name: str
    width: int
    height: int
    source_fps: float
    fps: float
    interval_frames: int
    weight: float
    ladder: tuple[Bucket, ...]
    decode_s: float
    letterbox_s: float
    motion_s: float = 0.0

    def interval_s(self, max_gap_s: float) -> float:
        """From keyframe to keyframe; ``max_gap_s`` shortens a longer K."""
        return min(self.interval_frames / self.fps, max(max_gap_s, 1 / self.fps))

    def asked_per_s(self, max_gap_s: float) -> float:
        """Detections a second that it asks for."""
        return 1 / self.interval_s(max_gap_s) if self.weight > 0 else 0.0

    def thread_use(self, max_gap_s: float) -> float:
        """Share of a second that its capture thread works; over 1 it falls behind."""
        converted = self.asked_per_s(max_gap_s) * self.letterbox_s
        return self.source_fps * self.decode_s + self.fps * self.motion_s + converted

    @property
    def capture_s(self) -> float:
        """CPU seconds from the arrival of a keyframe to its offer."""
        return self.decode_s + self.motion_s + self.letterbox_s


@dataclass(frozen=True, slots=True)
class Machine:
    """What the cameras share.

    Attributes:
        cores: Available to the process.
        frame_s: CPU seconds to answer a frame: tracker and message.
        detection_s: CPU seconds to apply a detection to a tracker.
        tables_s: Service times by input shape and batch size, on an idle machine.
        noise: Standard deviation of service times, as a share.
        detector_cores: CPU seconds that a second of the detector's work takes.
        detector_yields: It runs on the same cores, after the cameras (nice 19).
    """

    cores: float
    frame_s: float
    detection_s: float
    tables_s: Mapping[Bucket, Mapping[int, float]]
    noise: float = 0.05
    detector_cores: float = 0.0
    detector_yields: bool = False


class Limit(StrEnum):
    """The part that has no more room."""

    DECODE = "decode"
    CPU = "cpu"
    DETECTOR = "detector"


@dataclass(frozen=True, slots=True)
class Miss:
    """A promise that would not be kept, in a sentence for people."""

    limit: Limit
    sentence: str


@dataclass(frozen=True, slots=True)
class Need:
    """What cameras ask for, without a simulation.

    Attributes:
        too_slow: Cameras whose own capture thread cannot keep up.
        camera_cores: CPU that capture and answers need, in cores.
        asked_per_s: Detections.
        detector_s: Detector seconds a second that they take at its best batch size, alone.
        slower: By how much service times grow because the cameras go first; >= 1.
    """

    too_slow: tuple[PlannedCamera, ...]
    camera_cores: float
    asked_per_s: float
    detector_s: float
    slower: float

    @property
    def asked_use(self) -> float:
        """Share of the detector's time that is asked for, beside the cameras; may exceed 1."""
        return self.detector_s * self.slower


def need(cameras: Sequence[PlannedCamera], machine: Machine, settings: SchedulerSettings) -> Need:
    """Add up what the cameras ask for."""
    gap_s = settings.max_gap_s
    scheduler = Scheduler(settings, times_of(machine.tables_s, settings.batch_max))
    camera_cores = asked_per_s = detector_s = 0.0
    for camera in cameras:
        asked = camera.asked_per_s(gap_s)
        asked_per_s += asked
        camera_cores += camera.thread_use(gap_s)
        camera_cores += camera.fps * machine.frame_s + asked * machine.detection_s
        bucket = camera.ladder[0]
        n = scheduler.largest_batch(bucket)
        detector_s += asked * scheduler.service_times.expected(bucket)[n] / n
    slower = 1.0
    if machine.detector_yields and machine.detector_cores > 0:
        free = machine.cores - camera_cores
        wanted = machine.detector_cores
        slower = max(1.0, wanted / free) if free * _SLOWEST > wanted else _SLOWEST
    too_slow = tuple(camera for camera in cameras if camera.thread_use(gap_s) > 1.0)
    return Need(too_slow, camera_cores, asked_per_s, detector_s, slower)


def plain_misses(needed: Need, machine: Machine, max_gap_s: float) -> list[Miss]:
    """What arithmetic alone shows not to fit; most of it is told apart from the rest anyhow."""
    misses = []
    for camera in {c.name.partition("#")[0]: c for c in needed.too_slow}.values():
        per_frame_ms = 1000 * camera.thread_use(max_gap_s) / camera.source_fps
        misses.append(
            Miss(
                Limit.DECODE,
                f"camera {camera.name}: reading and decoding takes {per_frame_ms:.1f} ms a frame"
                f" in its one thread, and a frame comes every {1000 / camera.source_fps:.1f} ms",
            )
        )
    detector_cores = needed.detector_s * machine.detector_cores
    if needed.camera_cores + detector_cores > CPU_MOST * machine.cores:
        misses.append(cpu_miss(needed.camera_cores, detector_cores, machine.cores))
    if needed.asked_use > 1.0:
        misses.append(
            Miss(
                Limit.DETECTOR,
                f"{needed.asked_per_s:.1f} detections/s are asked for, which take"
                f" {needed.asked_use:.0%} of the detector's time",
            )
        )
    return misses


def cpu_miss(camera_cores: float, detector_cores: float, cores: float) -> Miss:
    """Says that the cores do not suffice."""
    total = camera_cores + detector_cores
    shared = f", {detector_cores:.2f} of them the detector" if detector_cores >= 0.005 else ""
    return Miss(
        Limit.CPU,
        f"{total:.2f} cores of {cores:g} are needed ({total / cores:.1%}{shared}); with more than"
        f" {CPU_MOST:.0%} in use frames wait for a core",
    )


def mix(cameras: Sequence[PlannedCamera], count: int) -> tuple[PlannedCamera, ...]:
    """``count`` cameras: those given, and copies of them in turn (``gate#2`` ...)."""
    found = []
    for index in range(count):
        lap, place = divmod(index, len(cameras))
        camera = cameras[place]
        found.append(camera if lap == 0 else replace(camera, name=f"{camera.name}#{lap + 1}"))
    return tuple(found)


def times_of(tables_s: Mapping[Bucket, Mapping[int, float]], n_max: int) -> ServiceTimes:
    """Service times for batches of 1..n_max, from measured tables."""
    times = ServiceTimes(n_max)
    for bucket, table_s in tables_s.items():
        times.set_table(bucket, table_s)
    return times
