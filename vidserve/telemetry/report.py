"""The report: the snapshot of the stages, with the outputs and what the process costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vidserve.publishing.output import Output
from vidserve.telemetry.process import process_snapshot
from vidserve.telemetry.stats import Snapshot


def complete(stages: Snapshot, outputs: Sequence[Output]) -> Snapshot:
    """The snapshot of the stages with ``mqtt`` (always), ``jsonl`` (if there) and ``process``."""
    report = {**stages, "mqtt": _NO_OUTPUT}
    for output in outputs:
        report[output.name] = _numbers(output)
    report["process"] = process_snapshot()
    return report


def as_it_stood(report: Snapshot, before: Snapshot) -> None:
    """Put in how cameras and outputs stood before draining, not how they were put away."""
    for name, camera in before["cameras"].items():
        report["cameras"][name].update(
            {key: camera[key] for key in _OF_A_RUNNING_CAMERA if key in camera}
        )
    for name in ("mqtt", "jsonl"):
        if name in before:
            connected, reason = before[name]["connected"], before[name]["reason"]
            report[name] = {**report[name], "connected": connected, "reason": reason}


def one_line(numbers: Snapshot) -> str:
    """The frames of a run and what became of them."""
    cameras = numbers["cameras"].values()
    detected, tracked, captured = (
        sum(c[key] for c in cameras) for key in ("detected", "tracked", "captured")
    )
    dropped: Counter[str] = Counter()
    for camera in cameras:
        dropped.update(camera["dropped"])
    why = f" ({', '.join(f'{n} {reason}' for reason, n in dropped.items())})" if dropped else ""
    share = numbers["answered_in_budget"]
    in_budget = "" if share is None else f"; {share:.2%} answered in budget"
    return (
        f"{captured} frames captured = {detected} detected + {tracked} tracked"
        f" + {dropped.total()} dropped{why}{in_budget}"
    )


def _numbers(output: Output) -> Snapshot:
    stats = output.stats()
    return {
        "connected": stats.connected,
        "published": stats.published,
        "dropped": dict(stats.dropped),
        "reconnects": stats.reconnects,
        "outbox_peak": stats.outbox_peak,
        "reason": stats.reason,
    }


_OF_A_RUNNING_CAMERA = (
    "state", "reason", "keyframe_interval_s", "keyframe_interval", "stretch", "bucket", "overload",
)  # fmt: skip

_NO_OUTPUT: Snapshot = {
    "connected": False,
    "published": 0,
    "dropped": {},
    "reconnects": 0,
    "outbox_peak": 0,
    "reason": "not configured",
}
