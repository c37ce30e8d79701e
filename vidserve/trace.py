"""A trace: what one run of the scheduler met, compactly, to be replayed by ``simulate --trace``.

Format: JSON lines, compressed with gzip if the name ends in ``.gz``. The first line is an object,
all others are arrays whose first item tells the kind. Times are whole microseconds since
readiness, cameras are numbers (their place in the header's list).

```
{"format": "vidserve-trace", "schema": 1, "version": ..., "settings": {...},
 "cameras": [{"name", "weight", "interval_frames"}, ...], "adaptive": true,
 "service_s": {"640x384": {"1": s, ...}}}
["c", t, camera, ["640x384", ...]]                    its input shapes, largest first
["f", captured, arrived, handed, camera, detected, doubt]   a frame that was answered: when the
                                                      tracking loop got it and handed it over,
                                                      both since captured; detected is 1 or 0;
                                                      doubt in percent, left out where motion is
                                                      not measured
["b", started, took, back, shape, kind, late, [camera, captured, ...]]   a batch: back is the time
                                                      until the tracking loop had the detections,
                                                      kind 0 in time, 1 correction; late: how many
                                                      of its frames were answered before
["d", t, camera, reason, count]                       frames dropped
["s", t, camera, delivers]                            the camera came (1) or went (0)
["a", t, after]                                       p99 of what follows a detection, each second
["end", t, lost]                                      lost: records that the disk was too slow for
```

A run that was killed leaves a trace without its end; it reads as far as it goes.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import math
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from vidserve.errors import OutputError, VidserveError
from vidserve.frames import Batch, BatchKind, Bucket, DropReason, Frame
from vidserve.scheduling.settings import SchedulerSettings

logger = logging.getLogger(__name__)

FORMAT, SCHEMA = "vidserve-trace", 1
_WRITE_EVERY_S = 0.5
_MOST_WAITING = 200_000  # records; at 1,000 frames a second more than two minutes
_JOIN_S = 2.0

Record = list[Any]
_NO_TRACE = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError
)  # fmt: skip


class Recorder:
    """What the loops tell a trace; this one keeps nothing. All times monotonic seconds."""

    def camera(self, camera: str, ladder: Sequence[Bucket], now_s: float) -> None:
        """The input shapes of a camera, at the start and when they change. Any thread."""

    def frame(self, frame: Frame, now_s: float, doubt: float | None = None) -> None:
        """The tracking loop got a frame; the doubt holds from the camera's next one on."""

    def answered(self, frame: Frame, detected: bool, now_s: float) -> None:
        """The tracking loop handed the answer over."""

    def batch(self, batch: Batch, done_s: float, now_s: float, late: int) -> None:
        """The tracking loop got the detections of a batch."""

    def dropped(self, camera: str, reason: DropReason, count: int, now_s: float) -> None:
        """Frames will not be answered."""

    def delivers(self, camera: str, delivers: bool, now_s: float) -> None:
        """A camera came or went."""

    def after(self, after_s: float, now_s: float) -> None:
        """What follows a detection, as the scheduler is told."""

    def close(self, now_s: float) -> None:
        """The run is over."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a run began with.

    Attributes:
        version: Of the project.
        settings: Of the scheduler.
        cameras: Name, weight, keyframe interval in frames, in order.
        service_s: Seconds by shape and batch size, as measured at the start.
        adaptive: Whether doubt moved the keyframes.
    """

    version: str
    settings: SchedulerSettings
    cameras: tuple[tuple[str, float, int], ...]
    service_s: Mapping[Bucket, Mapping[int, float]]
    adaptive: bool = False


class FileRecorder(Recorder):
    """Writes a trace in a thread of its own; what the disk is too slow for is lost and counted.

    Args:
        path: Written anew.
        header: Of this run.
        started_s: Readiness (monotonic): time zero of the trace.

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Header, started_s: float) -> None:
        self._path = path
        self._started_s = started_s
        self._numbers = {name: number for number, (name, _, _) in enumerate(header.cameras)}
        self._arrived: dict[tuple[str, int], tuple[float, float | None]] = {}
        self._waiting: deque[Record] = deque()
        self._lost = 0
        self._stop = threading.Event()
        try:
            self._file = _open(path)
            try:
                self._write([_header_line(header)])
            except OSError:
                self._give_up_file()
                raise
        except OSError as error:
            raise OutputError(f"--trace: cannot write {path}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def camera(self, camera: str, ladder: Sequence[Bucket], now_s: float) -> None:
        self._put(["c", self._us(now_s), self._numbers[camera], [str(b) for b in ladder]])

    def frame(self, frame: Frame, now_s: float, doubt: float | None = None) -> None:
        self._arrived[frame.camera, frame.seq] = (now_s, doubt)

    def answered(self, frame: Frame, detected: bool, now_s: float) -> None:
        arrived_s, doubt = self._arrived.pop((frame.camera, frame.seq), (now_s, None))
        captured_s = frame.captured_s
        self._put(
            [
                "f", self._us(captured_s), _us(arrived_s - captured_s), _us(now_s - captured_s),
                self._numbers[frame.camera], int(detected),
                *([] if doubt is None else [round(100 * doubt)]),
            ]
        )  # fmt: skip

    def batch(self, batch: Batch, done_s: float, now_s: float, late: int) -> None:
        frames: list[int] = []
        for frame in batch.frames:
            frames += (self._numbers[frame.camera], self._us(frame.captured_s))
        self._put(
            [
                "b", self._us(batch.started_s), _us(done_s - batch.started_s),
                _us(now_s - done_s), str(batch.bucket),
                int(batch.kind is BatchKind.CORRECTION), late, frames,
            ]
        )  # fmt: skip

    def dropped(self, camera: str, reason: DropReason, count: int, now_s: float) -> None:
        self._put(["d", self._us(now_s), self._numbers[camera], reason.value, count])

    def delivers(self, camera: str, delivers: bool, now_s: float) -> None:
        self._put(["s", self._us(now_s), self._numbers[camera], int(delivers)])

    def after(self, after_s: float, now_s: float) -> None:
        self._put(["a", self._us(now_s), _us(after_s)])

    def close(self, now_s: float) -> None:
        """Write what waits, within two seconds."""
        self._waiting.append(["end", self._us(now_s), self._lost])
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _us(self, when_s: float) -> int:
        return _us(when_s - self._started_s)

    def _put(self, record: Record) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._lost += 1
            return
        self._waiting.append(record)

    def _run(self) -> None:
        try:
            while not self._stop.wait(_WRITE_EVERY_S):
                self._write_waiting()
            self._write_waiting()
            self._file.close()
        except OSError as error:
            # The run matters more than its trace.
            logger.error("the trace %s ends here: %s", self._path, error.strerror)
            self._put = self._let_go  # type: ignore[method-assign]
            self._waiting.clear()
            self._give_up_file()

    def _give_up_file(self) -> None:
        with contextlib.suppress(OSError):  # it would write what it could not write before
            self._file.close()

    def _let_go(self, record: Record) -> None:
        """After a failed write: nobody would empty the queue."""

    def _write_waiting(self) -> None:
        lines = []
        while self._waiting:
            lines.append(json.dumps(self._waiting.popleft(), separators=(",", ":")))
        self._write(lines)

    def _write(self, lines: Sequence[str]) -> None:
        if lines:
            self._file.write(("\n".join(lines) + "\n").encode())
            self._file.flush()


@dataclass(frozen=True, slots=True)
class TracedFrame:
    """One answered frame; seconds since readiness."""

    camera: str
    captured_s: float
    arrived_s: float
    handed_s: float
    detected: bool
    doubt: float | None = None


@dataclass(frozen=True, slots=True)
class TracedBatch:
    """One batch; seconds since readiness. ``back_s``: until the tracking loop had it."""

    started_s: float
    took_s: float
    back_s: float
    bucket: Bucket
    correction: bool
    late: int
    frames: tuple[tuple[str, float], ...]


@dataclass(slots=True)
class Trace:
    """A trace in memory, each kind of record in the order of the file.

    Attributes:
        header: Of the run.
        ladders: Input shapes by camera, the last ones told.
        frames: Answered frames.
        batches: Of the detector.
        dropped: When, camera, reason, count.
        deliveries: When, camera, whether it delivers from then on.
        after_s: When, and what follows a detection.
        end_s: Of the run; None if it was cut off.
        lost: Records that were not written.
    """

    header: Header
    ladders: dict[str, tuple[Bucket, ...]] = field(default_factory=dict)
    frames: list[TracedFrame] = field(default_factory=list)
    batches: list[TracedBatch] = field(default_factory=list)
    dropped: list[tuple[float, str, str, int]] = field(default_factory=list)
    deliveries: list[tuple[float, str, bool]] = field(default_factory=list)
    after_s: list[tuple[float, float]] = field(default_factory=list)
    end_s: float | None = None
    lost: int = 0
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [name for name, _, _ in self.header.cameras]

    @property
    def duration_s(self) -> float:
        """Of the run, as far as it was recorded."""
        last_s = max((frame.handed_s for frame in self.frames), default=0.0)
        return last_s if self.end_s is None else self.end_s


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        VidserveError: it cannot be read, or a line is none of a trace; says which.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
            lines = _whole_lines(stream)
            trace: Trace | None = None
            for number, line in lines:
                try:
                    if trace is None:
                        trace = Trace(_header(json.loads(line)))
                    else:
                        _take(trace, json.loads(line))
                except _NO_TRACE as error:
                    raise VidserveError(
                        f"{path}:{number}: is no trace of vidserve ({error!r})"
                    ) from error
    except (OSError, UnicodeDecodeError, zlib.error) as error:
        raise VidserveError(f"{path}: cannot be read as a trace: {error}") from error
    if trace is None:
        raise VidserveError(f"{path}: is empty")
    return trace


def _whole_lines(stream: IO[str]) -> Iterator[tuple[int, str]]:
    """Numbered lines; the last one of a run that was killed may be cut, and is left out."""
    number = 0
    try:
        for number, line in enumerate(stream, 1):
            if line.endswith("\n"):
                yield number, line
    except EOFError:
        logger.warning("the trace ends after line %d: its run was cut off", number)


def _take(trace: Trace, record: Record) -> None:
    names = trace.names
    if not all(map(_whole, record[1:])):
        raise ValueError(f"unknown record {str(record)[:60]}")
    match record:
        case ["f", captured, arrived, handed, camera, detected, *more]:
            at_s = captured / 1e6
            trace.frames.append(
                TracedFrame(
                    names[camera],
                    at_s,
                    at_s + arrived / 1e6,
                    at_s + handed / 1e6,
                    bool(detected),
                    min(max(more[0] / 100, 0.0), 1.0) if more else None,
                )
            )
        case ["b", started, took, back, shape, kind, late, frames]:
            pairs = zip(frames[::2], frames[1::2], strict=True)
            trace.batches.append(
                TracedBatch(
                    started / 1e6, took / 1e6, back / 1e6, Bucket.parse(shape), bool(kind), late,
                    tuple((names[camera], captured / 1e6) for camera, captured in pairs),
                )
            )  # fmt: skip
        case ["c", _, camera, shapes]:
            trace.ladders[names[camera]] = tuple(Bucket.parse(shape) for shape in shapes)
        case ["d", when, camera, reason, count]:
            trace.dropped.append((when / 1e6, names[camera], reason, count))
        case ["s", when, camera, delivers]:
            trace.deliveries.append((when / 1e6, names[camera], bool(delivers)))
        case ["a", when, after]:
            trace.after_s.append((when / 1e6, after / 1e6))
        case ["end", when, lost]:
            trace.end_s, trace.lost = when / 1e6, lost
        case _:
            raise ValueError(f"unknown record {str(record)[:60]}")


def _header_line(header: Header) -> str:
    return json.dumps(
        {
            "format": FORMAT,
            "schema": SCHEMA,
            "version": header.version,
            "settings": asdict(header.settings),
            "adaptive": header.adaptive,
            "cameras": [
                {"name": name, "weight": weight, "interval_frames": interval}
                for name, weight, interval in header.cameras
            ],
            "service_s": {
                str(bucket): {str(n): round(seconds, 7) for n, seconds in table_s.items()}
                for bucket, table_s in header.service_s.items()
            },
        }
    )


def _header(line: Mapping[str, Any]) -> Header:
    if line["format"] != FORMAT or line["schema"] != SCHEMA:
        raise ValueError(f"format {line['format']}, schema {line['schema']}; {SCHEMA} is known")
    settings = SchedulerSettings(**line["settings"])
    for name, value in asdict(settings).items():
        if value is not None and not (_number(value) and value >= 0):
            raise ValueError(f"settings.{name} is {value!r}")
    if min(settings.budget_s, settings.batch_max, settings.batch_target) <= 0:
        raise ValueError("settings: budget and batches must be more than 0")
    for camera in line["cameras"]:
        if not (_number(camera["weight"]) and camera["interval_frames"] >= 1):
            raise ValueError(f"a camera of weight {camera['weight']!r}")
    for table_s in line["service_s"].values():
        if not table_s or not all(_number(s) and s > 0 for s in table_s.values()):
            raise ValueError("service times must be more than 0")
    return Header(
        version=line["version"],
        settings=settings,
        cameras=tuple(
            (camera["name"], float(camera["weight"]), int(camera["interval_frames"]))
            for camera in line["cameras"]
        ),
        service_s={
            Bucket.parse(shape): {int(n): float(seconds) for n, seconds in table_s.items()}
            for shape, table_s in line["service_s"].items()
        },
        adaptive=bool(line.get("adaptive", False)),
    )


def _whole(value: object) -> bool:
    """A whole number of a size that can be, or something else that is looked at elsewhere."""
    return not isinstance(value, float) and not (isinstance(value, int) and abs(value) > 2**53)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "wb", compresslevel=6)
    return path.open("wb", buffering=0)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
