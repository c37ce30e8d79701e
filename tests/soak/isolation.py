"""Good cameras beside bad ones: what the good ones lose by it, in numbers.

Two runs of the daemon, with the fake detector and the same good cameras: alone, and beside one
camera in each kind of trouble. Counted is between two moments at which all good ones have been
running for a while: pictures that the server sent, and what the daemon made of them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.lab import clips
from tests.lab.servers import RtspServer
from tests.soak import streams
from tests.soak.process import SoakedDaemon
from tests.soak.sender import SenderProcess
from tests.soak.troubles import troubles

GOOD = 8
FPS = 30.0
KEPT = 0.99
MOST_LOST_IN_BUDGET = 0.01
DETECTOR = "fake:3+1n"
_UP_LIMIT_S = 60.0
_SETTLE_S = 2.0

Wait = Callable[[float], None]
Counter = Callable[[float, float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the daemon.

    Attributes:
        sent, answered, captured: Pictures of each good camera in the window.
        in_budget: Share of the good cameras' settled frames that were answered in budget.
        dropped: Frames of the good cameras by reason.
        up_s: From readiness until all good cameras were running.
        cpu: Cores that each group of threads used: good and bad cameras' capture, and others.
        states: Of all cameras at the end.
    """

    sent: tuple[float, ...]
    answered: tuple[int, ...]
    captured: tuple[int, ...]
    in_budget: float
    dropped: Mapping[str, int]
    up_s: float
    cpu: Mapping[str, float]
    states: Mapping[str, str]

    @property
    def kept(self) -> float:
        """Answered of sent, all good cameras together."""
        return sum(self.answered) / sum(self.sent)

    @property
    def worst_kept(self) -> float:
        """The same of the worst camera."""
        return min(a / s for a, s in zip(self.answered, self.sent, strict=True))


@contextlib.contextmanager
def good_cameras(folder: Path, reader: str, window_s: float) -> Iterator[tuple[list[str], Counter]]:
    """Sources, and a function that tells how many pictures each sent between two moments.

    Args:
        folder: For the clips; one that is there already is used again.
        reader: ``ts``: plain TCP, counted by its server. Else RTSP from one GStreamer server,
            which keeps to its rate, so that time tells the number.
        window_s: The clip is long enough for it.
    """
    if reader == "ts":
        clip = folder / f"good-{window_s:g}.ts"
        if not clip.exists():
            streams.make(clip, window_s)
        with SenderProcess(clip, FPS, GOOD) as sender:
            yield sender.urls, sender.sent_between
        return
    clip = folder / "good.h264"
    if not clip.exists():
        clips.annexb(clips.write(folder / "good.mp4", frames=300), clip)
    with RtspServer(clip, FPS) as server:
        yield [server.url] * GOOD, lambda begin_s, end_s: [FPS * (end_s - begin_s)] * GOOD


def config(good: Sequence[str], reader: str, bad: Sequence[str]) -> str:
    """The daemon's config; ``bad``: lines."""
    how = "auto" if reader == "ts" else reader
    lines = [
        f"detector: {{model: '{DETECTOR}', image_size: 320}}\n",
        "outputs: [{jsonl: /dev/null}]\ncameras:\n",
    ]
    lines += [f"  good{at}: {{source: '{url}', reader: {how}}}\n" for at, url in enumerate(good)]
    return "".join([*lines, *bad])


def run(folder: Path, copies: int, window_s: float, reader: str, wait: Wait) -> Run:
    """One run of the daemon.

    Args:
        folder: For clips, config and log.
        copies: How many cameras in each kind of trouble run beside the good ones; 0: none.
        window_s: How long is counted.
        reader: As ``good_cameras``.
        wait: Waits so many seconds.
    """
    with contextlib.ExitStack() as stack:
        bad = {}
        if copies:
            stream = streams.make(folder / "trouble.ts", 20.0)
            bad = stack.enter_context(troubles(folder, stream))
        # The good one's clock begins last: what is made before costs it nothing.
        urls, sent = stack.enter_context(
            good_cameras(folder, reader, window_s + _UP_LIMIT_S + _SETTLE_S)
        )
        lines = [one.line(f"{name}{at}") for at in range(copies) for name, one in bad.items()]
        text = config(urls, reader, lines)
        daemon = stack.enter_context(SoakedDaemon(folder, text))
        up_s = _wait_until_up(daemon)
        wait(_SETTLE_S)
        begin, begin_cpu = daemon.ask("snapshot"), daemon.ask("threads")
        wait(window_s)
        end, end_cpu = daemon.ask("snapshot"), daemon.ask("threads")
        pictures = sent(begin["now_s"], end["now_s"])
        report = daemon.stop()
        assert report["unaccounted"] == [], report["unaccounted"]
    return _compare(begin, end, begin_cpu, end_cpu, pictures, up_s)


def _wait_until_up(daemon: SoakedDaemon) -> float:
    begun_s = time.monotonic()
    while True:
        cameras = daemon.cameras()
        down = {
            name: camera["reason"]
            for name, camera in cameras.items()
            if name.startswith("good") and camera["state"] != "running"
        }
        if not down:
            return time.monotonic() - begun_s
        assert time.monotonic() < begun_s + _UP_LIMIT_S, f"good cameras that do not run: {down}"
        time.sleep(0.05)


def _compare(
    begin: dict[str, Any],
    end: dict[str, Any],
    begin_cpu: dict[str, Any],
    end_cpu: dict[str, Any],
    sent: Sequence[float],
    up_s: float,
) -> Run:
    before, after = begin["snapshot"]["cameras"], end["snapshot"]["cameras"]
    good = [f"good{at}" for at in range(GOOD)]
    dropped: dict[str, int] = {}
    for name in good:
        for reason, count in after[name]["dropped"].items():
            more = count - before[name]["dropped"].get(reason, 0)
            dropped[reason] = dropped.get(reason, 0) + more
    settled = sum(_settled(after[name]) - _settled(before[name]) for name in good)
    in_time = sum(_in_budget(after[name]) - _in_budget(before[name]) for name in good)
    seconds = end_cpu["now_s"] - begin_cpu["now_s"]
    cpu: dict[str, float] = {}
    for thread, spent_s in end_cpu["threads"].items():
        used_s = spent_s - begin_cpu["threads"].get(thread, 0.0)
        cpu[_group(thread)] = cpu.get(_group(thread), 0.0) + used_s / seconds
    return Run(
        sent=tuple(sent),
        answered=tuple(_answered(after[name]) - _answered(before[name]) for name in good),
        captured=tuple(after[name]["captured"] - before[name]["captured"] for name in good),
        in_budget=in_time / max(settled, 1),
        dropped={reason: count for reason, count in dropped.items() if count},
        up_s=up_s,
        cpu=cpu,
        states={name: camera["state"] for name, camera in after.items()},
    )


def _answered(camera: Mapping[str, Any]) -> int:
    return int(camera["detected"] + camera["tracked"])


def _settled(camera: Mapping[str, Any]) -> int:
    return int(camera["captured"] - camera["pending"])


def _in_budget(camera: Mapping[str, Any]) -> float:
    return _settled(camera) * (camera["answered_in_budget"] or 0.0)


def _group(thread: str) -> str:
    if thread.startswith("capture-good"):
        return "good cameras"
    return thread.replace("capture-", "bad: ").rstrip("0123456789")


def short_of(alone: Sequence[Run], beside: Sequence[Run]) -> list[str]:
    """What is not as promised; medians count.

    Args:
        alone, beside: In pairs, one run right after the other: what else the machine does
            changes less within a pair than between them.
    """
    short = []
    for what, runs in (("alone", alone), ("beside the bad ones", beside)):
        kept = statistics.median(one.worst_kept for one in runs)
        if kept < KEPT:
            short.append(f"{what}, the worst good camera kept only {kept:.2%} of its pictures")
    pairs = zip(alone, beside, strict=True)
    lost = statistics.median(one.in_budget - other.in_budget for one, other in pairs)
    if lost > MOST_LOST_IN_BUDGET:
        short.append(f"{100 * lost:.2f} points less in budget beside the bad ones")
    return short


def show(runs: Sequence[tuple[str, Run]], console: Console) -> None:
    """The tables: the good cameras run by run, and who used the processor."""
    table = Table(title=f"{GOOD} good cameras of {FPS:g} fps")
    for heading in (
        "run", "all up after s", "sent", "captured", "answered", "kept", "worst camera",
        "in budget", "dropped",
    ):  # fmt: skip
        table.add_column(heading)
    for what, one in runs:
        table.add_row(
            what, f"{one.up_s:.2f}", f"{sum(one.sent):.0f}", str(sum(one.captured)),
            str(sum(one.answered)), f"{one.kept:.2%}", f"{one.worst_kept:.2%}",
            f"{one.in_budget:.2%}", ", ".join(f"{n} {why}" for why, n in one.dropped.items()),
        )  # fmt: skip
    console.print(table)
    table = Table(title="cores used by thread")
    table.add_column("thread")
    for what, _ in runs:
        table.add_column(what)
    threads = dict.fromkeys(thread for _, one in runs for thread in sorted(one.cpu))
    for thread in threads:
        used = [one.cpu.get(thread) for _, one in runs]
        if max(share or 0.0 for share in used) >= 0.001:
            table.add_row(thread, *("" if one is None else f"{one:.3f}" for one in used))
    console.print(table)
    states = {name: state for name, state in runs[-1][1].states.items() if "good" not in name}
    console.print(f"the bad ones at the end: {states}")
