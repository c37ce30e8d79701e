"""A plan for people: a table of the cameras, the detector, and the verdict in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vidserve.planning.numbers import Numbers

_GOOD, _BAD, _WARN = "green", "red", "yellow"
_PARTS = {"decode": "decoding", "cpu": "the CPU", "detector": "the detector"}
_WAYS_OUT = {
    "decode": "a smaller stream of that camera (many have a second one)",
    "cpu": "smaller streams of the cameras (many have a second one)",
    "detector": "a smaller model",
}


def show(plan: Numbers, console: Console) -> None:
    """Print a plan."""
    _title(console, f"{plan['config']}: {_count(len(plan['cameras']))}")
    console.print(_cameras(plan))
    for camera in plan["cameras"]:
        if camera["reason"] is not None:
            _line(
                console,
                f"camera {camera['name']} was not measured: {camera['reason']}; assumed:"
                f" {camera['width']}x{camera['height']} at {camera['fps']:g} fps, at the mean cost"
                " of the others",
                _WARN,
            )
        if camera["note"] is not None:
            _line(console, f"camera {camera['name']}: {camera['note']}", _WARN)
    for left in plan["left_out"]:
        _line(console, f"camera {left['camera']} is left out: {left['reason']}", _WARN)
    name = plan["detector"]["name"]
    how = " (measured)" if plan["detector"]["measured"] else ""
    _title(console, f"{name}: milliseconds by batch size{how}")
    console.print(_detector(plan))
    for note in plan["notes"]:
        _line(console, note, _WARN)
    _title(console, "As configured, simulated")
    console.print(_now(plan))
    for text, style in verdict(plan):
        _line(console, text, style)


def verdict(plan: Numbers) -> Iterator[tuple[str, str]]:
    """The verdict: sentences and their style."""
    fit, now = plan["fit"], plan["now"]
    asked, fits = fit["configured"], fit["cameras"]
    if now["fits"]:
        yield f"{_count(asked)} of the config: {'it fits' if asked == 1 else 'all fit'}.", _GOOD
        if fit["or_more"]:
            yield f"At least {fit['more']} more such cameras fit: {fits} in all were tried.", _GOOD
        elif fit["more"]:
            verb = "fits" if fit["more"] == 1 else "fit"
            yield f"{_count(fit['more'], 'more such ')} {verb}: {fits} in all.", _GOOD
        else:
            yield "Not one more such camera fits.", _WARN
    elif asked == 1:
        yield "The camera does not fit.", _BAD
    elif not fits:
        yield f"None of the {asked} cameras fits.", _BAD
    else:
        yield f"Already too many: {fits} of {asked} cameras fit.", _BAD
    said: set[str] = set()
    if fit["limit"] is not None:
        where = "" if not now["fits"] and fits + 1 == asked else f" at {_count(fits + 1)}"
        reason = fit["reasons"][0]["reason"]
        said.add(reason)
        yield f"The limit is {_PARTS[fit['limit']]}{where}: {reason}.", ""
    if not now["fits"]:
        for reason in _one_each(now["misses"]):
            if reason not in said:
                yield f"With {'it' if asked == 1 else f'all {asked}'}: {reason}.", ""
    late = fit["accepting_late"]
    if late is not None:
        more = " or more" if late >= 256 else ""
        yield (
            "Late detections still put the trackers right, and every frame is answered in its"
            f" budget all the same: if that is good enough, {_count(late)}{more}"
            f" {'fits' if late == 1 else 'fit'}.",
            "",
        )
    if plan["help"]:
        yield f"What would make all {asked} fit:" if asked > 1 else "What would help:", ""
        for change in plan["help"]:
            yield f"  - {change['text']}", ""
    elif not now["fits"]:
        yield (
            "Neither a longer keyframe_interval nor a smaller image_size makes"
            f" {'it' if asked == 1 else 'them'} fit: {_WAYS_OUT[fit['limit']]}, or a faster"
            " machine, would.",
            "",
        )


def _one_each(misses: list[dict[str, str]]) -> list[str]:
    """The first miss of each part: what follows from it need not be said."""
    return list({miss["limit"]: miss["reason"] for miss in reversed(misses)}.values())[::-1]


def _cameras(plan: Numbers) -> Table:
    table = _table()
    table.add_column("camera", no_wrap=True, overflow="ellipsis", max_width=24)
    for name in (
        "size", "fps", "K", "asked\n/s", "input", "decode\nms", "letterbox\nms", "motion\nms",
        "cores",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    total = 0.0
    for camera in plan["cameras"]:
        total += camera["cores"]
        sure = "" if camera["measured"] else "~"
        fps = f"{camera['fps']:.1f}".removesuffix(".0")
        if camera["fps"] < camera["source_fps"]:
            fps += f" of {camera['source_fps']:.1f}".removesuffix(".0")
        table.add_row(
            camera["name"],
            f"{sure}{camera['width']}x{camera['height']}",
            sure + fps,
            str(camera["keyframe_interval"]),
            f"{camera['detections_per_s']:.1f}",
            camera["input"],
            f"{sure}{camera['decode_ms']:.2f}",
            f"{sure}{camera['letterbox_ms']:.2f}",
            f"{sure}{camera['motion_ms']:.2f}",
            f"{sure}{camera['cores']:.3f}",
        )
    if len(plan["cameras"]) > 1:
        asked = plan["now"]["asked_per_s"]
        table.add_section()
        table.add_row("all", "", "", "", f"{asked:.1f}", "", "", "", "", f"{total:.3f}")
    return table


def _detector(plan: Numbers) -> Table:
    detector = plan["detector"]
    table = _table()
    sizes = sorted({int(n) for shape in detector["shapes"].values() for n in shape["service_ms"]})
    shown = [n for n in sizes if n <= 8 or n == sizes[-1]]
    table.add_column("input", no_wrap=True)
    for n in shown:
        table.add_column(str(n), justify="right", no_wrap=True)
    table.add_column("best", justify="right", no_wrap=True)
    for shape, found in detector["shapes"].items():
        best = found["detections_per_s"][str(found["largest_batch"])]
        times = [f"{found['service_ms'][str(n)]:.1f}" for n in shown]
        table.add_row(shape, *times, f"{best:.0f}/s at {found['largest_batch']}")
    return table


def _now(plan: Numbers) -> Table:
    now = plan["now"]
    table = _table()
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column()
    slower = now["detector_slower"]
    beside = f", its times x{slower:.2f} because the cameras go first" if slower > 1.02 else ""
    cpu = now["cpu"]
    gap, latency = now["gap_ms"], now["latency_ms"]
    table.add_row(
        "detector",
        f"busy {now['detector_use']:.0%} of the time{beside}; batches of {now['mean_batch']:.1f}",
    )
    table.add_row(
        "CPU",
        f"{cpu['camera_cores'] + cpu['detector_cores']:.2f} of {plan['cores']:g} cores"
        f" ({cpu['use']:.0%}): cameras {cpu['camera_cores']:.2f},"
        f" detector {cpu['detector_cores']:.2f}",
    )
    table.add_row(
        "detections",
        f"{now['in_time_share']:.1%} of {now['asked_per_s']:.1f}/s asked for are in time,"
        f" {now['late_share']:.1%} of those made are late",
    )
    table.add_row("gap between them", f"p50 {_ms(gap['p50'])}, p99 {_ms(gap['p99'])}")
    table.add_row(
        "latency of them",
        f"p50 {_ms(latency['p50'])}, p95 {_ms(latency['p95'])}; the budget is"
        f" {plan['budget_ms']:g} ms",
    )
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _title(console: Console, text: str) -> None:
    console.print(Text(text, style="bold"))


def _line(console: Console, text: str, style: str) -> None:
    # Text, not markup: a reason may hold brackets.
    indent = 2 if text.startswith("  ") else 0
    console.print(Padding(Text(text.lstrip(), style=style), (0, 0, 0, indent)))


def _count(number: int, which: str = "") -> str:
    return f"{number} {which}camera{'' if number == 1 else 's'}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
