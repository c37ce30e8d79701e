"""What ``vidserve check`` says, and the check of labels once the model's own are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from vidserve.config.effective import CameraSettings
from vidserve.config.load import LoadResult, load
from vidserve.config.problems import Path as KeyPath
from vidserve.config.problems import Problem, did_you_mean, printable
from vidserve.config.schema import CameraConfig, Config, JsonlOutput, MqttConfig
from vidserve.detection.models import resolve_model
from vidserve.errors import ModelNotFoundError

_SHOWN_ELSEWHERE = {"source", "username", "password", "password_file", "enabled"}


def check(path: str | Path, environ: Mapping[str, str]) -> tuple[int, str]:
    """Check a file.

    Returns:
        Exit code and text. 0: a summary, then warnings. 2: every problem on a line of its own,
        and a last line with what ``run`` would still start. No secrets in either.
    """
    result = load(path, environ)
    if result.problems:
        return 2, "\n".join([*map(str, result.problems), verdict(result)])
    return 0, "\n".join([summary(result), *(f"warning: {note}" for note in warnings(result))])


def verdict(result: LoadResult) -> str:
    """One line: how many problems there are, and what would run in spite of them."""
    count = len(result.problems)
    start = "1 problem" if count == 1 else f"{count} problems"
    if result.config is None:
        return f"{start}: the config is refused, nothing would run"
    running = [name for name, camera in result.config.cameras.items() if camera.enabled]
    failed = ", ".join(printable(name) for name in result.failed_cameras)
    total = len(result.config.cameras) + len(result.failed_cameras)
    names = f": {', '.join(running)}" if running else ""
    return f"{start}: {failed} would be failed; {len(running)} of {total} cameras would run{names}"


def warnings(result: LoadResult) -> list[Problem]:
    """The notes of loading, and source files that are not there (now)."""
    notes = list(result.notes)
    if (config := result.config) is not None:
        notes.extend(_model_notes(result, config))
        for name in config.cameras:
            camera = config.camera(name)
            if camera.kind in ("file", "device") and isinstance(camera.source, str):
                if not _exists(camera.source):
                    where = config.path(camera.shown_source)
                    message = f"there is no such file now: {printable(str(where), 200)}"
                    notes.append(result.problem(("cameras", name, "source"), message))
    return sorted(notes, key=lambda note: (note.line, note.column))


def _model_notes(result: LoadResult, config: Config) -> list[Problem]:
    if config.detector.model.startswith("fake:"):
        return []
    try:
        resolve_model(config.detector.model, folders=[config.base_dir])
    except ModelNotFoundError as error:
        message = str(error).removeprefix("detector.model: ")
        return [result.problem(("detector", "model"), message)]
    return []


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name too long, a folder that may not be looked into
        return False


def summary(result: LoadResult) -> str:
    """A good file in a few lines: what will run, and what differs from the defaults."""
    config = result.config
    if config is None:
        return f"{result.file}: refused"
    count = len(config.cameras)
    lines = [f"{result.file}: good, {count} camera{'' if count == 1 else 's'}"]
    detector = config.detector
    lines.append(
        _row(
            "detector",
            f"{printable(detector.model)} on {detector.device}",
            f"image_size {_value(detector.image_size)}",
            f"confidence {_value(detector.confidence)}",
            f"classes {_value(detector.classes) if detector.classes else 'all'}",
            *([f"backend {detector.backend}"] if detector.backend != "auto" else []),
        )
    )
    scheduling = config.scheduling
    lines.append(
        _row(
            "scheduling",
            f"budget {_value(scheduling.budget_ms)} ms",
            f"a detection every {scheduling.keyframe_interval} frames",
            *_differences(scheduling, {"budget_ms", "keyframe_interval"}),
        )
    )
    for section in ("tracking", "stats"):
        if changed := _differences(getattr(config, section)):
            lines.append(_row(section, *changed))
    if config.mqtt is not None:
        lines.append(_row("mqtt", *_broker(config.mqtt)))
    outputs = [
        f"jsonl {config.path(output.jsonl)}" if isinstance(output, JsonlOutput) else output
        for output in config.outputs
    ]
    lines.append(_row("outputs", *(outputs or ["none"])))
    if config.cameras:
        lines.append("cameras")
        width = min(24, max(map(len, config.cameras)))
        for name in config.cameras:
            lines.append(f"  {name:<{width}}  {', '.join(_camera(config.camera(name), config))}")
    return "\n".join(lines)


def _row(title: str, *parts: str) -> str:
    return f"{title:<11} {', '.join(parts)}"


def _camera(camera: CameraSettings, config: Config) -> list[str]:
    own = camera.own
    reader = "rtsp, else pyav" if camera.reader == "auto" else camera.reader
    parts = [f"{camera.shown_source} ({reader})"]
    parts += _login(camera.username, camera.password, own.password_file)
    if not own.enabled:
        parts.append("disabled")
    parts += _differences(own, _SHOWN_ELSEWHERE)
    if own.keyframe_interval == config.scheduling.keyframe_interval:
        parts = [part for part in parts if not part.startswith("keyframe_interval ")]
    return parts


def _broker(mqtt: MqttConfig) -> list[str]:
    if mqtt.embedded:
        parts = [f"embedded, port {mqtt.embedded_port or 'any free one'}"]
    else:
        host = f"[{mqtt.host}]" if ":" in mqtt.host else mqtt.host
        parts = [f"{host}:{mqtt.port}", *_login(mqtt.username, mqtt.password, mqtt.password_file)]
    if mqtt.tls is not None:
        parts.append("TLS, the name not checked" if mqtt.tls.insecure else "TLS")
    parts.append(f"prefix {mqtt.prefix}")
    if mqtt.client_id:
        parts.append(f"client_id {mqtt.client_id}")
    return parts


def _login(username: str | None, password: SecretStr | None, file: str | None) -> list[str]:
    if not username:
        return []
    if password is None:
        return [f"as {username} without a password"]
    return [f"as {username} with a password" + (f" from {printable(file)}" if file else "")]


def _differences(model: BaseModel, leave_out: Iterable[str] = ()) -> list[str]:
    """``key value`` for everything that is not as it would be by default."""
    default = (
        CameraConfig.model_validate({"source": "x"})
        if isinstance(model, CameraConfig)
        else type(model)()
    )
    parts = []
    for key in type(model).model_fields:
        value = getattr(model, key)
        if key in leave_out or value == getattr(default, key):
            continue
        if key == "ignore":
            parts.append(f"ignore {len(value)} polygon{'' if len(value) == 1 else 's'}")
        elif isinstance(value, BaseModel):
            parts += [f"{key}.{part}" for part in _every(value, getattr(default, key))]
        else:
            parts.append(f"{key} {_value(value)}")
    return parts


def _every(model: BaseModel, default: Any) -> list[str]:
    if type(default) is type(model):
        return _differences(model)
    return [f"{key} {_value(getattr(model, key))}" for key in type(model).model_fields]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return " ".join(f"{printable(key)} {_value(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return printable(str(value))


def check_labels(result: LoadResult, names: Iterable[str]) -> list[Problem]:
    """Labels of the config that the model does not have.

    Args:
        result: A loaded file.
        names: The model's class names.

    Returns:
        Problems, for ``LoadResult.with_problems``: in a camera's block they make that camera
        failed, in the detector section they refuse the config.
    """
    config = result.config
    if config is None:
        return []
    known = list(dict.fromkeys(names))
    problems = _labels(result, ("detector",), config.detector, known)
    for name, camera in config.cameras.items():
        problems += _labels(result, ("cameras", name), camera, known)
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _labels(result: LoadResult, path: KeyPath, block: Any, known: list[str]) -> list[Problem]:
    message = "the model has no such label"
    problems = []
    for index, label in enumerate(block.classes or ()):
        if label not in known:
            text = f"{printable(label, 40)}: {message}{_nearest(label, known)}"
            problems.append(result.problem((*path, "classes", index), text))
    if isinstance(block.confidence, dict):
        for label in block.confidence:
            if label not in known:
                where = (*path, "confidence", label)
                problems.append(result.problem(where, message + _nearest(label, known), key=True))
    return problems


def _nearest(label: str, known: list[str]) -> str:
    hint = did_you_mean(label, known)
    if hint or not known:
        return hint
    some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return f" (it has {printable(some, 200)})"
