"""The file -> a config, or every reason why not, each with its line and column.

An error inside one camera's block makes that camera failed, and the others load. Any other
error refuses the config. So does a name that cannot be a topic level: there would be no topic
on which to say that the camera failed. Two blocks of one name make that camera failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from vidserve.config import checks
from vidserve.config.problems import Finding, Marks, Problem, dotted, is_secret, printable
from vidserve.config.problems import Path as KeyPath
from vidserve.config.schema import CameraConfig, Config, MqttConfig
from vidserve.config.sentences import findings
from vidserve.config.values import Scalar, is_null
from vidserve.config.yaml_source import MAX_BYTES, Tree, parse_bytes

NOT_YET: Mapping[str, tuple[str, ...]] = {
    "web": (),
    "history": (),
}
"""Keys that this version takes and does nothing with -> the values that need no note."""


@dataclass(frozen=True)
class LoadResult:
    """What came of a file.

    Attributes:
        file: The file as it was named.
        config: The config with the good cameras; None if it is refused.
        problems: All of them, in the order of the file.
        failed_cameras: Camera -> its problems, for cameras whose block is wrong.
        notes: Warnings: the config is good, but somebody may be surprised.
        marks: Places of keys and values, for problems that are found later.
    """

    file: str
    config: Config | None
    problems: tuple[Problem, ...]
    failed_cameras: Mapping[str, tuple[Problem, ...]]
    notes: tuple[Problem, ...]
    marks: Marks = field(repr=False, compare=False)

    def problem(self, path: KeyPath, message: str, *, key: bool = False) -> Problem:
        """A problem at ``path`` of this file; at the key instead of the value if ``key``."""
        where = self.marks.of_key(path) if key else self.marks.of_value(path)
        return _problem(self.file, Finding(path, where, message))

    def with_problems(self, more: Iterable[Problem]) -> LoadResult:
        """The same file after later checks: cameras fail, or the config is refused."""
        problems = _in_order([*self.problems, *more])
        failed = _by_camera(problems)
        config = self.config
        if config is not None and any(problem.camera is None for problem in problems):
            config = None
        if config is not None:
            good = {name: c for name, c in config.cameras.items() if name not in failed}
            config = config.with_cameras(good)
        return replace(self, config=config, problems=problems, failed_cameras=failed)


def load(path: str | Path, environ: Mapping[str, str]) -> LoadResult:
    """Load a config file. Reads it and the password files that it names, nothing else.

    Args:
        path: The file.
        environ: Environment for ``${NAME}``.

    Returns:
        The result; never raises for what is, or is not, in the file.
    """
    file = printable(str(path), 4096)
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
        tree = Tree()
        tree.add((), f"cannot be read: {reason}")
    else:
        tree = parse_bytes(content, environ)
    return build(file, tree, Path(path).absolute().parent)


def build(file: str, tree: Tree, base_dir: Path) -> LoadResult:
    """Validate a tree: each camera by itself, then all the rest."""
    marks = tree.marks
    # What stands inside a password is not to be named, not even its repeated keys.
    found = [finding for finding in tree.findings if not is_secret(finding.path[:-1])]
    data = dict(tree.data or {})
    cameras: dict[str, CameraConfig] = {}
    block = data.get("cameras")
    if isinstance(block, dict):
        found += _names(block, marks)
        data["cameras"] = {}
        for name, raw in block.items():
            camera = _camera(name, raw, base_dir, marks, found)
            if camera is not None and checks.camera_name(name) is None:
                cameras[name] = camera
    config: Config | None = None
    if tree.data is not None:
        try:
            config = Config.model_validate(data).at(base_dir).with_cameras(cameras)
        except ValidationError as error:
            found += findings(error, Config, (), marks)
        else:
            config = _with_broker_password(config, marks, found)
    unsettled = LoadResult(file, config, (), {}, (), marks)
    result = unsettled.with_problems(_problem(file, finding) for finding in found)
    notes = _notes(tree, result.config, result.failed_cameras)
    return replace(result, notes=_in_order(_problem(file, finding) for finding in notes))


def _names(block: Mapping[str, Any], marks: Marks) -> list[Finding]:
    """Names that cannot be a topic level, or that some file systems cannot tell apart."""
    result = []
    seen: dict[str, str] = {}
    for name in block:
        path = ("cameras", name)
        reason = checks.camera_name(name)
        if reason:
            # The path of the section: that is where the error is, not in the block.
            result.append(Finding(("cameras",), marks.of_key(path), f"{_quoted(name)} {reason}"))
            continue
        key = checks.name_key(name)
        if key in seen:
            first = marks.of_key(("cameras", seen[key])).line
            message = (
                f"{_quoted(name)} and {_quoted(seen[key])} (line {first}) differ only by case or "
                "by how a letter is encoded: rename one"
            )
            result.append(Finding(("cameras",), marks.of_key(path), message))
        seen.setdefault(key, name)
    return result


def _quoted(name: str) -> str:
    return f'"{printable(name)}"' if name else '""'


def _camera(
    name: str, raw: object, base_dir: Path, marks: Marks, found: list[Finding]
) -> CameraConfig | None:
    """One camera's block; what is wrong goes to ``found``."""
    path = ("cameras", name)
    try:
        camera = CameraConfig.model_validate({} if is_null(raw) else raw)
    except ValidationError as error:
        found += findings(error, CameraConfig, path, marks)
        return None
    if camera.password_file is None:
        return camera
    password = _password(base_dir / camera.password_file, path, marks, found)
    return camera.model_copy(update={"password": password})


def _with_broker_password(config: Config, marks: Marks, found: list[Finding]) -> Config:
    mqtt: MqttConfig | None = config.mqtt
    if mqtt is None or mqtt.password_file is None:
        return config
    password = _password(config.path(mqtt.password_file), ("mqtt",), marks, found)
    mqtt = mqtt.model_copy(update={"password": password})
    return config.model_copy(update={"mqtt": mqtt})


def _password(file: Path, path: KeyPath, marks: Marks, found: list[Finding]) -> SecretStr | None:
    """The first line of a password file; a problem if there is none."""
    path = (*path, "password_file")
    try:
        with open(file, "rb") as stream:
            line = stream.read(4097).split(b"\n", 1)[0].removesuffix(b"\r")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
        found.append(Finding(path, marks.of_value(path), f"cannot be read: {reason}"))
        return None
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = ""
    if not text or len(line) > 4096 or "\0" in text:
        message = "its first line is empty, too long or not UTF-8: no password"
        found.append(Finding(path, marks.of_value(path), message))
        return None
    return SecretStr(text)


def _notes(
    tree: Tree, config: Config | None, failed: Mapping[str, tuple[Problem, ...]]
) -> Iterable[Finding]:
    """What is allowed, but may surprise."""
    if config is None or tree.data is None:
        return
    marks = tree.marks
    if not any(camera.enabled for camera in config.cameras.values()):
        why = "none is usable" if failed else "all are disabled" if config.cameras else "none given"
        yield Finding(("cameras",), marks.of_key(("cameras",)), f"no camera will run: {why}")
    if not config.outputs:
        yield Finding(("outputs",), marks.of_key(("outputs",)), "nothing will be published")
    if config.mqtt is not None and "mqtt" not in config.outputs:
        where = marks.of_key(("mqtt",))
        yield Finding(("mqtt",), where, "is not used: outputs does not list mqtt")
    for path in marks.keys:
        pattern = dotted(("cameras", "*", *path[2:])) if path[0] == "cameras" else dotted(path)
        if pattern not in NOT_YET or (path[0] == "cameras" and path[1] in failed):
            continue
        value = _value_at(tree.data, path)
        if isinstance(value, Scalar) and (value.is_null or value.text in NOT_YET[pattern]):
            continue
        yield Finding(path, marks.of_key(path), "is not acted upon in this version")


def _value_at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _problem(file: str, finding: Finding) -> Problem:
    path = finding.path
    camera = str(path[1]) if len(path) > 1 and path[0] == "cameras" else None
    key = dotted(path)
    return Problem(
        file, finding.position.line, finding.position.column, key, finding.message, camera
    )


def _in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(
        sorted(dict.fromkeys(problems), key=lambda p: (p.line, p.column, p.key, p.message))
    )


def _by_camera(problems: Iterable[Problem]) -> dict[str, tuple[Problem, ...]]:
    result: dict[str, list[Problem]] = {}
    for problem in problems:
        if problem.camera is not None:
            result.setdefault(problem.camera, []).append(problem)
    return {name: tuple(items) for name, items in result.items()}
