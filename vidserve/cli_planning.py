"""The commands that plan instead of run: ``simulate`` and ``plan``; thin, as ``cli`` is.

They print nothing of their errors: ``cli.main`` does.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from vidserve.errors import ConfigError, VidserveError


class Phase(StrEnum):
    """How the frames of simulated cameras lie to each other."""

    RANDOM = "random"
    SAME = "same"


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


class Policy(StrEnum):
    """The daemon's own policy, and baselines to compare it with."""

    DEADLINE = "deadline"
    FIFO = "fifo"
    QUEUE_LIMIT = "queue-limit"
    EDF = "edf"


_FOR_TRACES = {
    "trace", "interval", "policy", "batch_max", "wait_ms", "budget_ms", "control", "json",
}  # fmt: skip


def _given(context: typer.Context) -> set[str]:
    """Options that were written, and are not just their defaults."""
    return {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None
        and source.name not in ("DEFAULT", "DEFAULT_MAP")
    }


def _replay(
    path: Path,
    interval_frames: int | None,
    policy: str,
    changes: dict[str, Any],
    as_json: bool,
) -> None:
    from vidserve.replay import comparison, replay, show
    from vidserve.trace import read_trace

    trace = read_trace(path)
    settings = replace(trace.header.settings, **changes)
    result = replay(trace, settings, interval_frames, policy)
    found = comparison(trace, result)
    if as_json:
        import orjson

        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    from rich.console import Console

    title = f"{path.name}: {len(trace.names)} cameras, {trace.duration_s:.0f} s, policy {policy}"
    show(found, title, Console(highlight=False))


def simulate(
    cameras: Annotated[int, typer.Option(min=1, max=1000)] = 8,
    fps: Annotated[float, typer.Option(min=0.1, max=240)] = 30.0,
    interval: Annotated[int, typer.Option(min=1, help="Every n-th frame is a keyframe.")] = 5,
    service: Annotated[str, typer.Option(help="Milliseconds for a batch of n.")] = "3+2n",
    noise: Annotated[float, typer.Option(min=0, max=1, help="Of the service time.")] = 0.05,
    jitter_ms: Annotated[float, typer.Option(min=0, help="Frames come so much late.")] = 2.0,
    batch_max: Annotated[int, typer.Option(min=1, max=512)] = 8,
    after_ms: Annotated[float, typer.Option(min=0, help="What follows a detection.")] = 2.0,
    budget_ms: Annotated[float, typer.Option(min=1)] = 33.0,
    wait_ms: Annotated[float, typer.Option(min=0, help="Longest hold of a small batch.")] = 0.0,
    phase: Annotated[Phase, typer.Option()] = Phase.RANDOM,
    control: Annotated[Switch, typer.Option(help="Overload control.")] = Switch.OFF,
    for_s: Annotated[
        float, typer.Option("--for", min=1, max=86400, help="Simulated seconds.")
    ] = 20.0,
    seed: Annotated[int, typer.Option()] = 1,
    policy: Annotated[Policy, typer.Option()] = Policy.DEADLINE,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Replay a trace of `run --trace`; --interval, --policy, --batch-max, --wait-ms,"
            " --budget-ms and --control then replace the run's own settings."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    context: typer.Context = None,  # type: ignore[assignment]
) -> None:
    """Try a load on the daemon's own scheduler, without cameras, in a second or so."""
    if trace is not None:
        given = _given(context)
        if useless := given - _FOR_TRACES:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(useless))
            raise ConfigError(
                f"{names.replace('for-s', 'for')}: not used with --trace, which brings its own"
            )
        _replay(
            trace,
            interval if "interval" in given else None,
            policy.value,
            {
                key: value
                for option, key, value in (
                    ("batch_max", "batch_max", batch_max),
                    ("batch_max", "batch_target", min(4, batch_max)),
                    ("wait_ms", "wait_s", wait_ms / 1000),
                    ("budget_ms", "budget_s", budget_ms / 1000),
                    ("control", "control", control is Switch.ON),
                )
                if option in given
            },
            json,
        )
        return
    from vidserve.detection.service_formula import service_time
    from vidserve.scheduling.loads import Load
    from vidserve.scheduling.loads import simulate as run_load
    from vidserve.scheduling.settings import SchedulerSettings
    from vidserve.simulate import numbers, show

    try:
        service_s = service_time(service)
    except ValueError as error:
        raise ConfigError(f"--service: {error}") from None
    load = Load(
        cameras=cameras, fps=fps, interval_frames=interval, service_s=service_s, noise=noise,
        jitter_s=jitter_ms / 1000, after_s=after_ms / 1000, same_phase=phase is Phase.SAME,
        duration_s=for_s, seed=seed, policy=policy.value,
    )  # fmt: skip
    settings = SchedulerSettings(
        budget_s=budget_ms / 1000, batch_target=min(4, batch_max), batch_max=batch_max,
        wait_s=wait_ms / 1000, control=control is Switch.ON,
    )  # fmt: skip
    found = numbers(run_load(load, settings), load, batch_max)
    if json:
        import orjson

        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        from rich.console import Console

        show(found, load, Console(highlight=False))


def plan(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The YAML file.", show_default=False)
    ],
    service: Annotated[
        str | None,
        typer.Option(help="Milliseconds for a batch of n, such as 3+2n, instead of measuring."),
    ] = None,
    measure_s: Annotated[
        float, typer.Option("--measure-s", min=0.1, max=60, help="Seconds to read each source.")
    ] = 2.0,
    for_s: Annotated[float, typer.Option("--for", min=2, max=600, help="Simulated seconds.")] = 8.0,
    seed: Annotated[int, typer.Option()] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Draw throughput and latency into this picture.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Measure sources and detector; say whether the cameras fit, and how many more would."""
    from vidserve.config import load
    from vidserve.detection.service_formula import service_time

    try:
        service_s = None if service is None else service_time(service)
    except ValueError as error:
        raise ConfigError(f"--service: {error}") from None
    if plot is not None:
        _check_plot(plot)
    result = load(config, os.environ)
    if result.config is None:
        raise ConfigError("\n".join(map(str, result.problems)))
    from vidserve import logs
    from vidserve.libraries import check_libraries, tame_libraries

    logs.set_up("WARNING")
    check_libraries()
    tame_libraries()
    from vidserve.clock import RealClock
    from vidserve.planning.capacity import Planner, batch_curves
    from vidserve.planning.numbers import numbers
    from vidserve.planning.progress import Progress
    from vidserve.planning.survey import survey

    with Progress() as progress:
        found = survey(result, service_s, measure_s, RealClock(), progress.tell)
        try:
            planner = Planner(
                found.planned,
                found.machine,
                found.settings,
                seed=seed,
                duration_s=for_s,
                tell=progress.simulating,
            )
            verdict = planner.verdict(found.resize())
            curve = planner.latency_curve(verdict.fits) if json or plot is not None else []
        finally:
            found.close()
        curves = batch_curves(found.planned, found.machine, found.settings)
        numbered = numbers(str(config), found, verdict, curves, curve)
    if json:
        import orjson

        typer.echo(orjson.dumps(numbered, option=orjson.OPT_INDENT_2).decode())
    else:
        from rich.console import Console

        from vidserve.planning.show import show

        show(numbered, Console(highlight=False))
    if plot is not None:
        from vidserve.planning.plot import write_plot

        try:
            write_plot(numbered, plot)
        except OSError as error:
            raise VidserveError(f"--plot: cannot write {plot}: {error.strerror}") from error
    if found.hung:  # a reader hangs in a library and would hold up the end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _check_plot(path: Path) -> None:
    """Find out before the measuring, not after it."""
    from vidserve.planning.plot import check_suffix

    check_suffix(path)
    is_there = path.exists()
    try:
        path.open("ab").close()
        if not is_there:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"--plot: cannot write {path}: {error.strerror}") from None
