"""``make soak``: 500 reconnects, cameras that come and go, and good cameras beside bad ones.

Everything runs in the daemon, in a process of its own, with the fake detector. Exits 1 where
something grows, does not come back, or costs good cameras their pictures.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.lab.servers import need_rtsp
from tests.soak import coming, isolation, reconnects
from tests.soak.measure import Bounds, Finding, Sample, judge, write_csv

# As measured on two cores with glibc 2.36: 500 reconnects grow by 1.0 MB after the warm-up (3 kB
# each, of the allocator), threads by none; 5 MB is a leak of 20 kB with each. Descriptors vary by
# who is just connected.
RECONNECT_BOUNDS = Bounds(rss_mb=5.0, threads=1, fds=3)
# A quarter's median varies by 3 MB with who is up, and by more where glibc keeps FFmpeg's 5 MB
# buffers in its arenas (``--env MALLOC_MMAP_THRESHOLD_=4194304`` shows whether that is it).
COMING_BOUNDS = Bounds(rss_mb=10.0, threads=2, fds=4)
_WARM_UP = 0.3  # share of the run


def main() -> int:
    """Run the parts that are asked for; 0 if all is as promised."""
    options = _options()
    console = Console(width=150)
    try:
        need_rtsp()
    except pytest.skip.Exception as missing:
        console.print(f"the soak {missing}: nothing was run")
        return 2
    short: list[str] = []
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts or list(PARTS):
        console.rule(part)
        with tempfile.TemporaryDirectory(prefix="vidserve-soak-") as temporary:
            try:
                problems = PARTS[part](Path(temporary), options, console)
            except AssertionError as error:  # what a run demands of the daemon while it runs
                problems = [str(error)]
        short += [f"{part}: {problem}" for problem in problems]
    for problem in short:
        console.print(f"short of the goal: {problem}", markup=False)
    if not short:
        console.print("nothing is short of the goal")
    return 1 if short else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; none: all")
    parser.add_argument("--count", type=int, default=500, help="reconnects (500)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of coming and going (10)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of an isolation run (60)")
    parser.add_argument("--repeat", type=int, default=3, help="isolation runs of each kind (3)")
    parser.add_argument("--copies", type=int, default=1, help="bad cameras of each kind (1)")
    parser.add_argument("--good", choices=("ts", "rtsp"), default="ts", help="good cameras (ts)")
    parser.add_argument("--reader", default="auto", help="of RTSP cameras, as in a config (auto)")
    parser.add_argument("--seed", type=int, default=1, help="of the storm (1)")
    parser.add_argument("--tracemalloc", action="store_true", help="show who holds memory")
    parser.add_argument(
        "--plant", choices=("fd", "thread", "memory"), help="leak with every reconnect, on purpose"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for the daemon of coming"
    )
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for CSV files")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def _bar(console: Console) -> Progress:
    done = TextColumn("{task.completed:.0f}/{task.total:.0f}")
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeElapsedColumn())
    # Where nobody watches it would only fill a log.
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _reconnects(folder: Path, options: argparse.Namespace, console: Console) -> list[str]:
    with reconnects.relays(folder, rtsp=3, mjpeg=1, ts=2) as cameras, _bar(console) as bar:
        task = bar.add_task("reconnects", total=options.count)
        result = reconnects.run(
            folder,
            options.count,
            cameras,
            options.reader,
            lambda n: bar.update(task, completed=n),
            options=() if options.plant is None else ("--plant", options.plant),
        )
    cuts = ", ".join(f"{name} {count}" for name, count in result.cuts.items())
    console.print(f"{sum(result.cuts.values())} reconnects in {result.took_s:.0f} s: {cuts}")
    write_csv(options.out / "reconnects.csv", result.samples)
    return _judge(result.samples, RECONNECT_BOUNDS, console)


def _coming(folder: Path, options: argparse.Namespace, console: Console) -> list[str]:
    storm_s = 60.0 * options.minutes
    with _bar(console) as bar:
        task = bar.add_task("cameras come and go, seconds", total=storm_s)
        result = coming.run(
            folder,
            storm_s,
            options.reader,
            options.seed,
            progress=lambda passed_s: bar.update(task, completed=passed_s),
            options=("--tracemalloc",) if options.tracemalloc else (),
            environ=dict(one.split("=", 1) for one in options.env),
        )
    done = ", ".join(f"{what} {count}" for what, count in sorted(result.done.items()))
    console.print(f"{storm_s:.0f} s, 20 cameras; done to their servers: {done}")
    for what, one in (("before", result.calm_before), ("after", result.calm_after)):
        console.print(f"calm {what}: {one.rss_mb:.1f} MB, {one.threads} threads, {one.fds} files")
    for line in result.memory:
        console.print(line, markup=False)
    write_csv(options.out / "coming.csv", result.samples)
    problems = _judge(result.samples, COMING_BOUNDS, console)
    problems += [f"{name} did not come back: {why}" for name, why in result.down.items()]
    for quantity in ("threads", "fds"):
        before, after = (getattr(one, quantity) for one in (result.calm_before, result.calm_after))
        if after - before > getattr(COMING_BOUNDS, quantity):
            problems.append(f"{quantity}: {before} in the calm before, {after} in that after")
    return problems


def _judge(samples: Sequence[Sample], bounds: Bounds, console: Console) -> list[str]:
    warm_up_s = _WARM_UP * samples[-1].at_s
    findings = judge(samples, warm_up_s, bounds)
    console.print(_table(findings, warm_up_s, samples[-1].at_s))
    return [
        f"{one.quantity} grew from {one.warm:g} to {one.end:g}" for one in findings if not one.flat
    ]


def _table(findings: Sequence[Finding], warm_up_s: float, took_s: float) -> Table:
    table = Table(title=f"{took_s:.0f} s, of them {warm_up_s:.0f} s warm-up")
    for heading in (
        "", "start", "after warm-up", "end", "slope per hour", "allowed growth", "verdict",
    ):  # fmt: skip
        table.add_column(heading)
    for one in findings:
        table.add_row(
            one.quantity, f"{one.start:.1f}", f"{one.warm:.1f}", f"{one.end:.1f}",
            f"{one.per_h:+.1f}", f"{one.allowed:g}", "flat" if one.flat else "GROWS",
        )  # fmt: skip
    return table


def _isolation(folder: Path, options: argparse.Namespace, console: Console) -> list[str]:
    how = options.reader if options.good == "rtsp" else "ts"
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        console.print(f"load {load:.1f} on {cores} cores before it began: others will be measured")
    alone: list[isolation.Run] = []
    beside: list[isolation.Run] = []
    with _bar(console) as bar:
        task = bar.add_task("isolation, seconds", total=2 * options.repeat * options.seconds)

        def wait(seconds: float) -> None:
            time.sleep(seconds)
            bar.advance(task, seconds)

        for _ in range(options.repeat):
            alone.append(isolation.run(folder, 0, options.seconds, how, wait))
            beside.append(isolation.run(folder, options.copies, options.seconds, how, wait))
    runs = [
        (f"{what} {number}", one)
        for number, pair in enumerate(zip(alone, beside, strict=True), 1)
        for what, one in zip(("alone", "beside"), pair, strict=True)
    ]
    isolation.show(runs, console)
    return isolation.short_of(alone, beside)


PARTS: dict[str, Callable[[Path, argparse.Namespace, Console], list[str]]] = {
    "reconnects": _reconnects,
    "coming": _coming,
    "isolation": _isolation,
}

if __name__ == "__main__":
    sys.exit(main())
