"""``make bench-real``: four real clips as cameras, one of them over RTSP, on this machine's CPU.

Needs ``../shared`` (clips and weights), and GStreamer's RTSP server. Prints the numbers, and
exits 1 where one is short of the goal: this is a benchmark, so it does judge shares and times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.lab.clips import for_rtsp
from tests.lab.servers import RtspServer
from tests.running import ROOT, Command, read_lines

SHARED = ROOT.parent / "shared"
CLIPS = {
    "people": "people.mp4",
    "cars": "car-detection.mp4",
    "walkers": "one-by-one-person-detection.mp4",
    "bottles": "bottle-detection.mp4",
}
OVER_RTSP = "people"
EXPECTED = {"people": "person", "cars": "car", "walkers": "person", "bottles": "bottle"}
IN_BUDGET, PER_S, GROWTH = 0.95, 1.5, 1.05
_EARLY_S = 20.0


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


def config(rtsp_url: str, folder: Path, model: Path, interval: int, backend: str) -> Path:
    """The run's config file."""
    lines = [
        f"detector: {{model: '{model}', image_size: 320, backend: {backend}}}",
        f"scheduling: {{keyframe_interval: {interval}}}",
        "mqtt: {embedded: true}",
        "outputs: [mqtt, {jsonl: answers.jsonl}]",
        "cameras:",
    ]
    for name, clip in CLIPS.items():
        source = rtsp_url if name == OVER_RTSP else str(SHARED / "videos" / clip)
        lines.append(f"  {name}: {{source: '{source}', loop: true}}")
    path = folder / "real.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(for_s: float, interval: int, backend: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run; the report and what was measured from outside."""
    model = SHARED / "models" / "yolo11n.pt"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stream, fps = for_rtsp(SHARED / "videos" / CLIPS[OVER_RTSP], folder)
        with RtspServer(stream, fps) as server:
            path = config(server.url, folder, model, interval, backend)
            report = folder / "report.json"
            command = Command("run", "-c", str(path), "--for", str(for_s), "--report", str(report))
            command.wait_for("ready:")
            pid = command.process.pid
            outside: dict[str, Any] = {}
            started_s = time.monotonic()
            columns = (TextColumn("running {task.completed:.0f}/{task.total:.0f} s"),)
            with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
                task = bar.add_task("run", total=for_s)
                while (passed_s := time.monotonic() - started_s) < for_s - 1.0:
                    if passed_s >= min(_EARLY_S, for_s / 3) and "early_mb" not in outside:
                        outside["early_mb"] = rss_mb(pid)
                    bar.update(task, completed=passed_s)
                    time.sleep(0.25)
            outside["late_mb"] = rss_mb(pid)
            code = command.end(60)
            if code != 0:
                raise SystemExit(f"vidserve run ended with {code}:\n{command.err}")
            labels: dict[str, Counter[str]] = {}
            for line in read_lines(folder / "answers.jsonl"):
                seen = {thing["label"] for thing in line["objects"]}
                labels.setdefault(line["camera"], Counter()).update(seen)
            outside["labels"] = {name: c.most_common(4) for name, c in labels.items()}
            return json.loads(report.read_text()), outside


def judge(report: dict[str, Any], outside: dict[str, Any]) -> list[str]:
    """What is short of the goal."""
    short = list(report["unaccounted"])
    if report["answered_in_budget"] < IN_BUDGET:
        short.append(f"only {report['answered_in_budget']:.2%} answered in budget")
    for name, camera in report["cameras"].items():
        if camera["detections_per_s"] < PER_S:
            short.append(f"{name}: only {camera['detections_per_s']} detections/s")
        if EXPECTED[name] not in dict(outside["labels"].get(name, [])):
            short.append(f"{name}: no {EXPECTED[name]} seen")
    if outside["late_mb"] > GROWTH * outside["early_mb"]:
        short.append(f"memory grew from {outside['early_mb']:.0f} to {outside['late_mb']:.0f} MB")
    return short


def show(report: dict[str, Any], outside: dict[str, Any], console: Console) -> None:
    """The table."""
    table = Table(title=f"{report['duration_s']:.0f} s, yolo11n at 320 on the CPU")
    for heading in (
        "camera", "fps", "captured", "detected", "tracked", "dropped", "late", "in budget",
        "detections/s", "gap s", "p50 ms", "p99 ms", "labels",
    ):  # fmt: skip
        table.add_column(heading)
    for name, c in report["cameras"].items():
        answer = c["latency_ms"]["answer"]
        table.add_row(
            f"{name}{' (RTSP)' if name == OVER_RTSP else ''}",
            f"{c['fps']:.1f}", str(c["captured"]), str(c["detected"]), str(c["tracked"]),
            str(c["dropped"] or "-"), str(c["detections_late"]), f"{c['answered_in_budget']:.2%}",
            f"{c['detections_per_s']:.1f}", f"{c['max_detection_gap_s']:.2f}",
            f"{answer['p50']:.1f}", f"{answer['p99']:.1f}",
            ", ".join(f"{label} {n}" for label, n in outside["labels"].get(name, [])),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"answered in budget {report['answered_in_budget']:.2%}; batches {report['batches']};"
        f" detector use {report['detector']['use']:.0%},"
        f" {report['detector']['images_per_s']:.1f} pictures/s; RSS {outside['early_mb']:.0f} ->"
        f" {outside['late_mb']:.0f} MB; CPU {report['process']['cpu_s']:.0f} s"
    )


def main() -> int:
    """Run it; 0 if every goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="for_s", type=float, default=60.0)
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", type=Path, help="write report and measurements here")
    options = parser.parse_args()
    console = Console(width=170)
    if not (SHARED / "models" / "yolo11n.pt").exists():
        console.print("bench-real needs the clips and weights of ../shared: nothing was run")
        return 2
    try:
        report, outside = run(options.for_s, options.interval, options.backend)
    except subprocess.TimeoutExpired:
        console.print("the run did not end")
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps({"report": report, "outside": outside}, indent=1))
    show(report, outside, console)
    short = judge(report, outside)
    for problem in short:
        console.print(f"short of the goal: {problem}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
