"""``vidserve simulate``: what a load would become under the daemon's own scheduler."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from vidserve.scheduling.loads import Load
from vidserve.scheduling.simulator import Result


def numbers(result: Result, load: Load, batch_max: int) -> dict[str, Any]:
    """The result as plain data for ``--json``; milliseconds, rates per second, shares 0..1."""
    mean = result.mean_batch
    return {
        "policy": load.policy,
        "in_time_per_s": round(result.in_time_per_s, 2),
        "worst_camera_per_s": round(min(result.in_time_per_camera_per_s, default=0.0), 2),
        "late_per_s": round(result.late / load.duration_s, 2),
        "late_share": round(result.late_share, 5),
        "gap_ms": {
            "p50": _ms(result.gap_s(0.50)) if result.gaps_s else None,
            "p99": _ms(result.gap_s(0.99)) if result.gaps_s else None,
        },
        "batches": {
            "mean_size": round(mean, 3),
            "fill_ratio": round(mean / batch_max, 3),
            "sizes": {str(n): result.batch_sizes[n] for n in sorted(result.batch_sizes)},
        },
        "jain": round(result.jain, 4),
        "answered_in_budget": round(result.in_budget, 5),
        "outcomes": {
            "captured": result.captured,
            "detected": result.detected,
            "tracked": result.tracked,
            "dropped": result.captured - result.detected - result.tracked - result.pending,
            "pending": result.pending,
        },
    }


def show(found: dict[str, Any], load: Load, console: Console) -> None:
    """The numbers as a table."""
    title = (
        f"{load.cameras} cameras at {load.fps:g} fps, every {load.interval_frames}. frame,"
        f" {load.duration_s:g} s, policy {load.policy}"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    asked = load.asked_per_s()
    batches, outcomes = found["batches"], found["outcomes"]
    sizes = ", ".join(f"{n}: {count}" for n, count in batches["sizes"].items())
    for name, value in (
        ("detections in time", f"{found['in_time_per_s']}/s of {asked:g}/s asked"),
        ("  worst camera", f"{found['worst_camera_per_s']}/s"),
        ("  fairness (Jain)", f"{found['jain']}"),
        ("detections late", f"{found['late_per_s']}/s, {found['late_share']:.2%} of all"),
        ("gap between detections", f"p50 {_text(found, 'p50')}, p99 {_text(found, 'p99')}"),
        ("batches", f"mean {batches['mean_size']}, filled {batches['fill_ratio']:.0%} ({sizes})"),
        (
            "frames",
            f"{outcomes['captured']} captured = {outcomes['detected']} detected"
            f" + {outcomes['tracked']} tracked + {outcomes['dropped']} dropped"
            f" + {outcomes['pending']} pending",
        ),
        ("answered in budget", f"{found['answered_in_budget']:.2%}"),
    ):
        table.add_row(name, value)
    console.print(table)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _text(found: dict[str, Any], quantile: str) -> str:
    value = found["gap_ms"][quantile]
    return "-" if value is None else f"{value:g} ms"
