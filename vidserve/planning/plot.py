"""Two curves of a plan as a picture. The only import of matplotlib."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vidserve.errors import ConfigError
from vidserve.planning.numbers import Numbers

_COLOURS = ("#2563a8", "#c8651b", "#3d8a5f", "#8a4fa3", "#7a6a2f", "#5b6b7a")
_INK, _QUIET, _BAD, _GOOD = "#22272e", "#8a929c", "#c0392b", "#2e7d4f"
_DPI = 130


def check_suffix(path: Path) -> None:
    """Before anything is measured.

    Raises:
        ConfigError: matplotlib cannot write such a file.
    """
    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        raise ConfigError(
            f"--plot: {path}: the name has to end in one of .{', .'.join(sorted(known))}"
        )


def write_plot(plan: Numbers, path: Path) -> Figure:
    """Draw and write; the format is that of the suffix."""
    figure = draw(plan)
    figure.savefig(path, dpi=_DPI)
    return figure


def draw(plan: Numbers) -> Figure:
    """Throughput against batch size on the left, latency against arrival rate on the right."""
    figure = Figure(figsize=(11.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _throughput(left, plan)
    _latency(right, plan)
    name = plan["detector"]["name"]
    fit = plan["fit"]
    more = " or more" if fit["or_more"] else ""
    figure.suptitle(
        f"{Path(plan['config']).name}: {name}, {fit['configured']} configured,"
        f" {fit['cameras']}{more} such cameras fit",
        color=_INK,
        fontsize=12,
    )
    return figure


def _throughput(axes: Axes, plan: Numbers) -> None:
    highest = 0.0
    for index, (shape, found) in enumerate(plan["detector"]["shapes"].items()):
        colour = _COLOURS[index % len(_COLOURS)]
        sizes = [int(n) for n in found["detections_per_s"]]
        rates = list(found["detections_per_s"].values())
        highest = max(highest, *rates)
        axes.plot(sizes, rates, "o-", color=colour, markersize=4, label=f"input {shape}")
        peak, best = found["largest_batch"], found["detections_per_s"][str(found["largest_batch"])]
        axes.plot([peak], [best], "o", color=colour, markersize=11, fillstyle="none", mew=1.8)
        at_edge = peak > 0.7 * sizes[-1]
        axes.annotate(
            f"{best:.0f}/s with {peak}",
            (peak, best),
            xytext=(-6 if at_edge else 6, 10),
            textcoords="offset points",
            ha="right" if at_edge else "left",
            color=colour,
        )
    asked = plan["now"]["asked_per_s"]
    axes.axhline(asked, color=_QUIET, linestyle="--", linewidth=1)
    first = min(int(n) for s in plan["detector"]["shapes"].values() for n in s["service_ms"])
    axes.annotate(
        f"asked for: {asked:.1f}/s",
        (first, asked),
        xytext=(0, 4),
        textcoords="offset points",
        color=_QUIET,
    )
    axes.set_ylim(0, 1.3 * max(highest, asked))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _dress(axes, "Detector alone", "frames in a batch", "detections per second")
    axes.legend(loc="upper left", frameon=False, ncols=3)


def _latency(axes: Axes, plan: Numbers) -> None:
    curve = [t for t in plan["latency_curve"] if t["latency_ms"]["p95"] is not None]
    now, budget_ms = plan["now"], plan["budget_ms"]
    rates = [t["asked_per_s"] for t in curve]
    p95 = [t["latency_ms"]["p95"] for t in curve]
    axes.plot(rates, p95, "-", color=_COLOURS[0], zorder=2)
    for fits, colour, label in ((True, _GOOD, "fits"), (False, _BAD, "does not fit")):
        points = [t for t in curve if t["fits"] is fits]
        axes.plot(
            [t["asked_per_s"] for t in points],
            [t["latency_ms"]["p95"] for t in points],
            "o",
            color=colour,
            markersize=5,
            label=label if points else None,
            zorder=3,
        )
    heights = [*p95, budget_ms]
    axes.axhline(budget_ms, color=_BAD, linestyle=":", linewidth=1.2, label="budget")
    if now["latency_ms"]["p95"] is not None:
        axes.plot(
            [now["asked_per_s"]],
            [now["latency_ms"]["p95"]],
            "o",
            color=_INK,
            markersize=13,
            fillstyle="none",
            mew=1.8,
            label=f"as configured: {_count(now['cameras'])}",
            zorder=4,
        )
    at_limit = plan["fit"]["at_the_limit"]
    if at_limit is not None and not plan["fit"]["or_more"]:
        rate = at_limit["asked_per_s"]
        axes.axvline(rate, ymax=0.78, color=_QUIET, linestyle="--", linewidth=1)  # not the legend
        axes.annotate(
            f"{_count(at_limit['cameras'])} fit ",
            (rate, 0),
            xytext=(-3, 6),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=_QUIET,
        )
    axes.set_ylim(0, 1.5 * max(heights))  # room for the legend
    axes.set_xlim(left=0)
    _dress(
        axes,
        "With the scheduler, simulated",
        "detections asked for per second",
        "latency of detections, p95 (ms)",
    )
    axes.legend(loc="upper left", frameon=False, ncols=2)


def _dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, color=_INK, fontsize=11, loc="left")
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)
    axes.grid(True, color="#e6e9ed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _count(number: int) -> str:
    return f"{number} camera{'' if number == 1 else 's'}"
