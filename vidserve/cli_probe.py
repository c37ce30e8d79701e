"""The command ``probe``: what a source is. Options in, words out; heavy imports happen inside."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vidserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vidserve.capture.settings import CameraSettings

PASSWORD_VARIABLE = "VIDSERVE_PASSWORD"
SUFFIXES = (".jpg", ".jpeg", ".png")
_IN_THE_URL = (
    "the password stands in the command line, where others on this machine can see it and the"
    f" shell keeps it: better --username with {PASSWORD_VARIABLE} or --ask-password"
)


class ReaderName(StrEnum):
    """Who reads the source."""

    AUTO = "auto"
    RTSP = "rtsp"
    PYAV = "pyav"
    OPENCV = "opencv"
    SYNTHETIC = "synthetic"


class Transport(StrEnum):
    """How RTSP comes."""

    TCP = "tcp"
    UDP = "udp"


class Decoder(StrEnum):
    """Where it is decoded."""

    CPU = "cpu"
    CUDA = "cuda"


def probe(
    source: Annotated[
        str | None,
        typer.Argument(help="URL, file, /dev/videoN or a device number.", show_default=False),
    ] = None,
    for_s: Annotated[
        float,
        typer.Option("--for", min=0.1, max=600, help="Seconds to read, from the first picture."),
    ] = 5.0,
    save: Annotated[
        Path | None, typer.Option(help="Save a picture: a file that ends in .jpg or .png.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a picture that is there.")
    ] = False,
    username: Annotated[
        str | None,
        typer.Option(help=f"Of the login; the password is taken from {PASSWORD_VARIABLE}."),
    ] = None,
    ask_password: Annotated[
        bool, typer.Option("--ask-password", help="Ask for the password on the terminal.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Probe a camera of this config instead.")
    ] = None,
    camera: Annotated[str | None, typer.Option(help="Its name in the config.")] = None,
    reader: Annotated[ReaderName, typer.Option(help="As in the config.")] = ReaderName.AUTO,
    transport: Annotated[Transport, typer.Option(help="For RTSP.")] = Transport.TCP,
    decoder: Annotated[Decoder, typer.Option(help="As in the config.")] = Decoder.CPU,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    context: typer.Context = None,  # type: ignore[assignment]
) -> None:
    """Open a source as the daemon would, and say what it is, what it costs and what to mend."""
    stop = threading.Event()
    _stop_on_signals(stop)
    if save is not None:
        _check_save(save, force)
    options: dict[str, str] | None = None
    if config is not None:
        useless = _given(context) & {"username", "ask_password", "reader", "transport", "decoder"}
        if useless:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(useless))
            raise ConfigError(f"{names}: not with --config, which says it")
        if source is not None:
            raise ConfigError("SOURCE and --config: give one of them")
        settings, shown = _from_config(config, camera)
    elif source is None:
        raise ConfigError(
            "name a source, such as rtsp://10.0.0.5/stream1, or --config and --camera"
        )
    elif camera is not None:
        raise ConfigError("--camera: its --config is missing")
    else:
        chosen = {"reader": reader, "transport": transport, "decoder": decoder}
        options = {key: value.value for key, value in chosen.items() if key in _given(context)}
        settings, shown = _from_arguments(source, username, ask_password, options)
    from vidserve import logs
    from vidserve.libraries import check_libraries, tame_libraries

    logs.set_up("WARNING")
    check_libraries(("cv2", "av"))
    tame_libraries()
    from vidserve.capture.source import open_reader
    from vidserve.clock import RealClock
    from vidserve.config.problems import printable
    from vidserve.errors import VidserveError
    from vidserve.probe.measure import read
    from vidserve.probe.report import numbers, report
    from vidserve.probe.save import save_picture
    from vidserve.probe.show import Progress, show

    with Progress(shown, for_s) as progress:
        reading = read(settings, for_s, RealClock(), open_reader, stop, progress.tell)
    told = report(reading, settings, shown, options)
    code, unsaved = int(told.failed), ""
    if save is not None:
        try:
            if reading.picture is None:
                raise VidserveError("--save: there was no undamaged picture to save")
            save_picture(reading.picture, save, force)
            told = replace(told, saved=printable(str(save), 4096))
        except VidserveError as error:
            code, unsaved = 1, str(error)
    if json:
        import orjson

        typer.echo(orjson.dumps(numbers(told), option=orjson.OPT_INDENT_2).decode())
    else:
        from rich.console import Console

        show(told, Console(highlight=False))
    if unsaved:
        typer.echo(f"vidserve: {unsaved}", err=True)
    if reading.hung:  # its thread would hold up the end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)


def _from_arguments(
    text: str, username: str | None, ask_password: bool, options: Mapping[str, str]
) -> tuple[CameraSettings, str]:
    """The settings of a camera whose block holds these, and the source as shown."""
    from pydantic import ValidationError

    from vidserve import build
    from vidserve.config.problems import START, Marks
    from vidserve.config.schema import CameraConfig, Config
    from vidserve.config.sentences import findings
    from vidserve.config.source import Source

    try:
        source = Source.parse(int(text) if text.isascii() and text.isdecimal() else text)
    except ValueError as error:
        # It shows nothing of the input; `from None`: its cause might.
        raise ConfigError(f"SOURCE: {_message(error)}") from None
    user = username if username is not None else source.username
    password = source.password.get_secret_value() if source.password is not None else None
    if password:
        typer.echo(f"vidserve: note: {_IN_THE_URL}", err=True)
    if ask_password:
        if user is None:
            raise ConfigError("--ask-password: --username is missing")
        password = _ask(user)
    elif password is None and user is not None:
        password = os.environ.get(PASSWORD_VARIABLE)
    block: dict[str, Any] = {"source": replace(source, username=None, password=None), **options}
    block |= {} if user is None else {"username": user}
    block |= {} if not password else {"password": password}
    try:
        camera = CameraConfig.model_validate(block)
    except ValidationError as error:
        marks = Marks(values=dict.fromkeys([(key,) for key in block], START))
        found = findings(error, CameraConfig, (), marks)
        lines = [f"{_option(one.path)}: {one.message}" for one in found]
        raise ConfigError("\n".join(lines)) from None
    config = Config().at(Path.cwd()).with_cameras({"probe": camera})
    return build.camera_settings(config, "probe"), source.shown


def _option(path: tuple[Any, ...]) -> str:
    """The name of a key of a camera's block on the command line."""
    key = str(path[0]) if path else "source"
    return {"source": "SOURCE", "password": "password"}.get(key, f"--{key}")


def _message(error: ValueError) -> str:
    message = getattr(error, "message", None)
    return str(message()) if callable(message) else str(error)


def _ask(user: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(f"--ask-password: this is no terminal; set {PASSWORD_VARIABLE} instead")
    import getpass

    try:
        return getpass.getpass(f"password of {user}: ")
    except EOFError:
        raise ConfigError("--ask-password: no password was given") from None


def _from_config(path: Path, name: str | None) -> tuple[CameraSettings, str]:
    """The settings that the daemon would make, and the source as shown."""
    from vidserve import build
    from vidserve.config import load
    from vidserve.config.problems import did_you_mean, printable

    result = load(path, os.environ)
    if result.config is None:
        raise ConfigError("\n".join(map(str, result.problems)))
    names = [*result.config.cameras, *result.failed_cameras]
    if name is None:
        if len(names) != 1:
            known = ", ".join(map(printable, names)) or "none"
            raise ConfigError(f"--camera: name one of the cameras of {path}: {known}")
        name = names[0]
    if name in result.failed_cameras:
        raise ConfigError("\n".join(map(str, result.failed_cameras[name])))
    if name not in result.config.cameras:
        hint = did_you_mean(name, names) or f": it has {', '.join(map(printable, names))}"
        raise ConfigError(f"--camera: {path} has no camera {printable(name)}{hint}")
    shown = result.config.camera(name).shown_source
    return build.camera_settings(result.config, name), f"{printable(name)}, {shown}"


def _given(context: typer.Context) -> set[str]:
    """Options that were written, and are not just their defaults."""
    return {
        name
        for name in context.params
        if (origin := context.get_parameter_source(name)) is not None
        and origin.name not in ("DEFAULT", "DEFAULT_MAP")
    }


def _check_save(path: Path, force: bool) -> None:
    """Find out before the reading, not after it."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--save: {path} has to end in .jpg or .png")
    if path.exists() and not path.is_file():
        raise ConfigError(f"--save: {path} is not a file")
    if path.exists() and not force:
        raise ConfigError(f"--save: {path} is there already: choose another name, or add --force")
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"--save: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"--save: {path} may not be written")


def _stop_on_signals(stop: threading.Event) -> None:
    """The first SIGINT or SIGTERM asks for what is known so far; the next ends at once."""

    def handle(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
