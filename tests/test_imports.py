"""Which room may know which: read from the sources, and from a fresh process."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vidserve

PACKAGE = Path(vidserve.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
ROOMS = ("capture", "scheduling", "detection", "tracking", "publishing", "telemetry", "config")
STAGES = tuple(room for room in ROOMS if room != "config")
ABOVE = (
    "cli",
    "cli_planning",
    "cli_probe",
    "planning",
    "probe",
    "daemon",
    "pipeline",
    "build",
    "demo",
    "detection_loop",
    "tracking_loop",
    "__main__",
)
LEAVES = ("frames", "clock", "errors", "slots")


def module_name(path: Path) -> str:
    parts = ["vidserve", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules that a source imports anywhere, and whether only for type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for_types.update(inner for statement in node.body for inner in ast.walk(statement))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node in for_types
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module, node in for_types
            for name in node.names:  # "from vidserve import daemon" names a module too
                yield f"{node.module}.{name.name}", node in for_types


def own_imports(path: Path, types_too: bool = True) -> set[str]:
    return {
        name
        for name, for_types in imported(path)
        if name.startswith("vidserve.") and (types_too or not for_types)
    }


def within(name: str, part: str) -> bool:
    return name == f"vidserve.{part}" or name.startswith(f"vidserve.{part}.")


def sources_of(room: str) -> list[Path]:
    found = sorted((PACKAGE / room).rglob("*.py"))
    assert found, f"no room {room}"
    return found


def loaded_after(statements: str) -> set[str]:
    """Modules in a fresh interpreter after some imports."""
    script = f"{statements}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()} | set(done.stdout.split())


def test_the_reader_of_imports_sees_what_it_should() -> None:
    """It would be no test if it overlooked imports inside functions."""
    assert any(within(name, "daemon") for name in own_imports(PACKAGE / "cli.py"))
    assert any(within(name, "pipeline") for name in own_imports(PACKAGE / "daemon.py"))
    ultralytics = PACKAGE / "detection" / "ultralytics.py"
    assert any(name.split(".")[0] == "ultralytics" for name, _ in imported(ultralytics))


def test_scheduling_needs_no_torch_no_opencv_no_av_no_paho() -> None:
    modules = [module_name(path) for path in sources_of("scheduling")]
    assert "vidserve.scheduling.simulator" in modules
    loaded = loaded_after("\n".join(f"import {module}" for module in modules))
    assert set(modules) <= loaded
    assert not loaded & {"torch", "torchvision", "cv2", "av", "paho", "ultralytics", "pydantic"}


@pytest.mark.parametrize("module", ["telemetry.ledger", "telemetry.quantile", "gate", "events"])
def test_what_the_loops_share_is_light_too(module: str) -> None:
    loaded = loaded_after(f"import vidserve.{module}")
    assert not loaded & {"torch", "cv2", "av", "paho", "ultralytics"}


def test_the_command_line_answers_before_heavy_imports() -> None:
    heavy = {"torch", "ultralytics", "av", "cv2", "matplotlib", "numpy"}
    assert not loaded_after("import vidserve.cli") & heavy


def test_ultralytics_is_imported_in_one_file_only() -> None:
    importers = [
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if any(name.split(".")[0] == "ultralytics" for name, _ in imported(path))
    ]
    assert importers == ["detection/ultralytics.py"]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_do_not_know_what_wires_them(room: str) -> None:
    for path in sources_of(room):
        above = [n for n in own_imports(path) if any(within(n, part) for part in ABOVE)]
        assert above == [], f"{path} imports {above}"


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_know_no_room(leaf: str) -> None:
    names = own_imports(PACKAGE / f"{leaf}.py", types_too=False)
    assert not [n for n in names if any(within(n, part) for part in (*ROOMS, *ABOVE))]


def test_the_verdict_of_a_plan_is_pure() -> None:
    """Trials and capacity know the scheduler and the words, no clock, no source, no config."""
    allowed = ("frames", "errors", "scheduling", "planning.need", "planning.trial")
    for module in ("need", "trial", "capacity"):
        path = PACKAGE / "planning" / f"{module}.py"
        for name in own_imports(path):
            assert any(within(name, part) for part in allowed), f"{path} imports {name}"
        names = {name.split(".")[0] for name, _ in imported(path)}
        assert not names & {"time", "threading", "datetime", "queue"}, path


def test_matplotlib_is_imported_in_one_file_only() -> None:
    importers = [
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if any(name.split(".")[0] == "matplotlib" for name, _ in imported(path))
    ]
    assert importers == ["planning/plot.py"]


def test_scheduling_knows_only_the_words_of_the_project() -> None:
    allowed = ("frames", "clock", "errors", "scheduling")
    for path in sources_of("scheduling"):
        for name in own_imports(path):
            assert any(within(name, part) for part in allowed), f"{path} imports {name}"


def test_stages_do_not_know_the_config_file() -> None:
    for stage in STAGES:
        for path in sources_of(stage):
            assert not [n for n in own_imports(path) if within(n, "config")], path


def test_policy_reads_no_clock() -> None:
    """Scheduling is pure: the time comes as an argument."""
    for path in sources_of("scheduling"):
        names = {name.split(".")[0] for name, _ in imported(path)}
        assert not names & {"time", "threading", "datetime", "asyncio", "queue"}, path


def test_importing_goes_one_way() -> None:
    """No circle among rooms and the modules around them, imports for types aside."""

    def part(name: str) -> str:
        return ".".join(name.split(".")[:2])

    parts = {part(module_name(path)) for path in SOURCES} - {"vidserve"}
    graph: dict[str, set[str]] = {name: set() for name in parts}
    for path in SOURCES:
        mine = part(module_name(path))
        others = {part(name) for name in own_imports(path, types_too=False)}
        if mine in graph:
            graph[mine] |= others & (parts - {mine})
    state: dict[str, str] = {}

    def visit(name: str, trail: list[str]) -> None:
        assert state.get(name) != "open", f"a circle: {' -> '.join([*trail, name])}"
        if name in state:
            return
        state[name] = "open"
        for other in sorted(graph[name]):
            visit(other, [*trail, name])
        state[name] = "done"

    for name in sorted(graph):
        visit(name, [])
