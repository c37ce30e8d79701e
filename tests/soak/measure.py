"""What a process holds on to, sampled from /proc, and whether that is flat. The verdict is pure."""

from __future__ import annotations

import csv
import os
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process.

    Attributes:
        at_s: Since the soak began.
        rss_mb: Resident memory, files included.
        threads, fds: How many.
    """

    at_s: float
    rss_mb: float
    threads: int
    fds: int


def sample(pid: int, at_s: float) -> Sample:
    """How it is now."""
    process = Path(f"/proc/{pid}")
    resident_pages = int((process / "statm").read_text(encoding="ascii").split()[1])
    return Sample(
        at_s=round(at_s, 2),
        rss_mb=round(resident_pages * _PAGE_BYTES / 1e6, 2),
        threads=len(os.listdir(process / "task")),
        fds=len(os.listdir(process / "fd")),
    )


def write_csv(path: Path, samples: Sequence[Sample]) -> None:
    """All samples, for a plot."""
    with path.open("w", encoding="ascii", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Sample)])
        writer.writerows(astuple(one) for one in samples)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much more of each may be held at the end than after the warm-up."""

    rss_mb: float
    threads: float
    fds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one quantity.

    Attributes:
        quantity: ``rss_mb``, ``threads`` or ``fds``.
        start: The first sample.
        warm: Median of the first quarter after the warm-up.
        end: Median of the last quarter.
        per_h: Slope of the least-squares line after the warm-up.
        allowed: Most that ``end`` may be above ``warm``.
    """

    quantity: str
    start: float
    warm: float
    end: float
    per_h: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.end - self.warm <= self.allowed


def slope_per_h(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Slope of the least-squares line, in units an hour; 0 where there is no line."""
    if len(set(times_s)) < 2:
        return 0.0
    return statistics.linear_regression(times_s, values).slope * 3600.0


def judge(samples: Sequence[Sample], warm_up_s: float, bounds: Bounds) -> list[Finding]:
    """Whether everything is flat after the warm-up.

    A quarter is judged by its median: a camera that is just opening has a socket and a few MB
    more than one that waits, and a single sample catches any number of them.

    Raises:
        ValueError: fewer than eight samples after the warm-up: nothing could be said.
    """
    warm = [one for one in samples if one.at_s >= warm_up_s]
    if len(warm) < 8:
        raise ValueError(f"only {len(warm)} samples after a warm-up of {warm_up_s:g} s")
    quarter = len(warm) // 4
    findings = []
    for quantity in ("rss_mb", "threads", "fds"):
        values = [float(getattr(one, quantity)) for one in warm]
        findings.append(
            Finding(
                quantity,
                start=float(getattr(samples[0], quantity)),
                warm=statistics.median(values[:quarter]),
                end=statistics.median(values[-quarter:]),
                per_h=slope_per_h([one.at_s for one in warm], values),
                allowed=getattr(bounds, quantity),
            )
        )
    return findings
