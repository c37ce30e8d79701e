"""The commands; thin. Heavy imports happen inside them, so that ``--help`` is quick."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from vidserve import __version__, cli_planning
from vidserve.cli_evaluate import evaluate
from vidserve.cli_probe import probe
from vidserve.errors import ConfigError, VidserveError

if TYPE_CHECKING:
    from vidserve.publishing.connection import MqttSettings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its boxes can show the values of local variables
    help="Real-time video analytics: cameras in, tracked detections out over MQTT, in time.",
)

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", help="The YAML file.", show_default=False)
]


_IMPATIENT_S = 1.0


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def main() -> None:
    """Entry point: errors of ours are one line on stderr and exit code 1 (config: 2)."""
    try:
        app()
    except ConfigError as error:
        _fail(str(error), 2)
    except VidserveError as error:
        _fail(str(error), 1)


def _say(text: str) -> None:
    typer.echo(text)


def _fail(text: str, code: int) -> NoReturn:
    typer.echo(f"vidserve: {text}", err=True)
    raise SystemExit(code)


def _version(wanted: bool) -> None:
    if wanted:
        _say(f"vidserve {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Real-time video analytics: cameras in, tracked detections out over MQTT, in time."""


@app.command()
def check(config: ConfigFile) -> None:
    """Check a config: exit 0 and a summary, or exit 2 and every error with its place."""
    from vidserve.config import check as check_file

    code, text = check_file(config, os.environ)
    _say(text)
    raise typer.Exit(code)


@app.command()
def run(
    config: ConfigFile,
    for_s: Annotated[
        float | None, typer.Option("--for", min=0.1, help="Stop after so many seconds.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the final numbers to this JSON file.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Record frames and batches in this file (.gz), for `simulate --trace`."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(case_sensitive=False)] = LogLevel.INFO,
) -> None:
    """Run the daemon until SIGTERM or SIGINT."""
    stop = threading.Event()
    _stop_on_signals(stop.set)
    from vidserve import logs
    from vidserve.config import load, verdict
    from vidserve.libraries import check_libraries

    logs.set_up(log_level.value)
    result = load(config, os.environ)
    if result.config is None:  # else the daemon tells of the cameras that fail
        for problem in result.problems:
            typer.echo(str(problem), err=True)
        _fail(verdict(result), 2)
    check_libraries()
    for option, path in (("--report", report), ("--trace", trace)):
        if path is not None:
            _check_writable(option, path)
    from vidserve.daemon import Daemon, exit_code

    daemon = Daemon(result, stop=stop, trace=trace)
    try:
        numbers = daemon.run(for_s)
    except ConfigError as error:
        _leave(str(error), 2, daemon.hung)
    except VidserveError as error:
        _leave(str(error), 1, daemon.hung)
    if report is not None:
        _write_report(report, numbers)
    _leave("", exit_code(numbers), daemon.hung)


@app.command()
def watch(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Take the broker from this config.")
    ] = None,
    host: Annotated[str, typer.Option(help="Broker.")] = "localhost",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="For an embedded broker see the log of `run`.")
    ] = 1883,
    prefix: Annotated[str, typer.Option(help="First topic level.")] = "vidserve",
    username: Annotated[str | None, typer.Option()] = None,
    password_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the password.")
    ] = None,
    every: Annotated[bool, typer.Option(help="Every message, not only changes.")] = False,
) -> None:
    """Subscribe, and print what the cameras see, readably."""
    from vidserve.config import checks
    from vidserve.publishing.connection import MqttSettings
    from vidserve.publishing.watch import watch as watch_broker

    password = None
    if password_env is not None:
        password = os.environ.get(password_env)
        if password is None:
            _fail(f"--password-env: the environment variable {password_env} is not set", 2)
    for option, value, check_value in (
        ("--prefix", prefix, checks.prefix),
        ("--host", host, checks.host),
    ):
        if not value:
            _fail(f"{option}: must not be empty", 2)
        try:
            check_value(value)
        except ValueError as error:
            _fail(f"{option}: {error}", 2)
    stop = threading.Event()
    _stop_on_signals(stop.set)
    if config is not None:
        settings = _broker_of(config, port)
    else:
        settings = MqttSettings(
            host=host, port=port, username=username, password=password, prefix=prefix
        )
    watch_broker(settings, _say, stop, every=every)


def _broker_of(config: Path, port: int) -> MqttSettings:
    from vidserve import build
    from vidserve.config import load

    result = load(config, os.environ)
    if result.config is None:
        _fail("\n".join(map(str, result.problems)), 2)
    mqtt = result.config.mqtt
    if mqtt is None:
        _fail(f"{config}: there is no mqtt section", 2)
    embedded = (mqtt.embedded_port or port) if mqtt.embedded else None
    # A client of its own: the daemon's id would throw the daemon out.
    return replace(build.mqtt_settings(result.config, embedded), client_id=None)


@app.command()
def demo(
    source: Annotated[
        list[str] | None, typer.Option(help="URL or file of your own; may be given several times.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of your own, such as yolo11n.pt.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(envvar="DEMO_SECONDS", min=1, help="How long it runs.")
    ] = 20.0,
    image_size: Annotated[int, typer.Option(min=32, help="Long side of the model's input.")] = 320,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Show the run of this config instead.")
    ] = None,
) -> None:
    """Run sample cameras (or your own) with an embedded broker and a live table."""
    from vidserve.libraries import check_libraries

    check_libraries()
    from vidserve.demo import Demo, demo_config

    try:
        made = demo_config(source or [], model, image_size, config)
    except ConfigError as error:
        _fail(str(error), 2)
    show = Demo(made, seconds)
    _stop_on_signals(show.request_stop)
    try:
        code = show.run()
    except ConfigError as error:
        _leave(str(error), 2, show.hung)
    except VidserveError as error:
        _leave(str(error), 1, show.hung)
    _leave("", code, show.hung)


app.command()(cli_planning.simulate)
app.command()(cli_planning.plan)
app.command()(probe)


@app.command("fetch-model")
def fetch_model(
    name: Annotated[str, typer.Argument(help="Such as yolo26n.pt.")],
) -> None:
    """Download a model by name into the state folder: the only command that uses the net."""
    from vidserve.detection.models import fetch_model as fetch

    path = fetch(name)
    _say(f"{name} is in {path}")


app.command()(evaluate)


def _stop_on_signals(stop: Callable[[], None]) -> None:
    """SIGTERM and SIGINT ask for an orderly end; an impatient second one ends at once.

    Within a second it is the same wish: timeout(1), or Ctrl-C under make, signals twice. SIGHUP
    (a reload, one day) is taken and does nothing, instead of ending the process.
    """
    asked_s = math.inf

    def handle(number: int, _frame: Any) -> None:
        nonlocal asked_s
        now_s = time.monotonic()
        if now_s - asked_s > _IMPATIENT_S:
            os._exit(128 + number)
        if math.isinf(asked_s):
            asked_s = now_s
            stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _check_writable(option: str, path: Path) -> None:
    """Find out before the run, not after it."""
    if path.is_fifo():
        _fail(f"{option}: {path} is a pipe: it would wait for a reader; name a file", 2)
    try:
        path.open("ab").close()
    except OSError as error:
        _fail(f"{option}: cannot write {path}: {error.strerror}", 2)


def _write_report(path: Path, numbers: dict[str, Any]) -> None:
    import orjson

    try:
        path.write_bytes(orjson.dumps(numbers, option=orjson.OPT_INDENT_2))
    except OSError as error:
        _fail(f"--report: cannot write {path}: {error.strerror}", 1)


def _leave(text: str, code: int, hung: bool) -> NoReturn:
    """End the process; at once if a thread hangs in a library and would hold it up."""
    # The end has begun: a late signal must not change the exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if text:
        typer.echo(f"vidserve: {text}", err=True)
    if hung:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
