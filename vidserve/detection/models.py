"""Where models lie: found by path or name, fetched only when asked to.

Nothing here loads a model or knows a library; ``fetch_model`` is the only code of the project
that uses the internet, through Ultralytics' own download.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from vidserve.errors import DetectorError, ModelNotFoundError

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 20


def state_directory() -> Path:
    """Where models and caches are kept; not created here.

    ``$STATE_DIRECTORY`` (set by systemd; the first, if there are several), else
    ``$XDG_STATE_HOME/vidserve``, else ``~/.local/state/vidserve``.
    """
    from_systemd = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if from_systemd:
        return Path(from_systemd)
    base = os.environ.get("XDG_STATE_HOME")
    # expanduser leaves "~" as it is where there is no home at all (a systemd DynamicUser)
    return (Path(base) if base else Path(os.path.expanduser("~/.local/state"))) / "vidserve"


def resolve_model(name: str, state_dir: Path | None = None, folders: Sequence[Path] = ()) -> Path:
    """The file or folder of a model.

    Args:
        name: A path, or a name that lies in one of ``folders``, in the current folder or in
            ``state_dir``.
        state_dir: None: ``state_directory()``.
        folders: Where a relative path or a name is looked for first.

    Raises:
        ModelNotFoundError: It is nowhere; the message says how to get it.
    """
    state_dir = state_dir if state_dir is not None else state_directory()
    asked = Path(name).expanduser()
    bare = asked.name == name
    looked = list(dict.fromkeys([*folders, Path.cwd(), *([state_dir] if bare else [])]))
    for folder in looked:
        if (place := folder / asked).exists():
            return place.absolute()
    if bare:
        raise ModelNotFoundError(
            f"detector.model: {name} is not in {' nor in '.join(map(str, looked))}; "
            f"get it with: vidserve fetch-model {name}"
        )
    raise ModelNotFoundError(
        f"detector.model: there is no {asked}; give the path of a model, or a bare name like "
        f"{asked.name} after: vidserve fetch-model {asked.name}"
    )


def fetch_model(
    name: str,
    state_dir: Path | None = None,
    download: Callable[[str, Path], None] | None = None,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Download one of Ultralytics' published models into the state folder.

    The file is moved to its name only after it loads, so a broken download is never found by
    ``resolve_model``. A model that is there already is left alone.

    Args:
        name: A bare file name like ``yolo11n.pt``.
        state_dir: None: ``state_directory()``. Created if missing.
        download: ``(name, path)``: how; None: Ultralytics' own download.
        check: Raises DetectorError if the file is no detector; None: load it.

    Returns:
        Where it lies now.

    Raises:
        DetectorError: No such model, no internet, no space, or not a detection model.
    """
    if Path(name).name != name or Path(name).suffix != ".pt":
        raise DetectorError(f"fetch-model takes a name like yolo11n.pt, not {name!r}")
    if download is None or check is None:
        # The only import of Ultralytics is slow, and needed here alone.
        from vidserve.detection import ultralytics as backend

        download = download or backend.download_asset
        check = check or backend.check_model
    state_dir = state_dir if state_dir is not None else state_directory()
    target = state_dir / name
    if target.exists():
        logger.info("%s is there already", target)
        return target
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        # A folder of its own keeps the name: the download and the format go by it.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=state_dir) as folder:
            part = Path(folder) / name
            _download(download, name, part, state_dir)
            if not part.is_file():
                raise DetectorError(
                    f"Ultralytics publishes no model named {name}, or its list cannot be read"
                )
            check(part)
            part.replace(target)
    except OSError as error:
        raise DetectorError(f"cannot fetch {name} into {state_dir}: {error}") from error
    logger.info("fetched %s", target)
    return target


def _download(
    download: Callable[[str, Path], None], name: str, part: Path, state_dir: Path
) -> None:
    try:
        download(name, part)
    except DetectorError as error:
        raise DetectorError(
            f"{error}. Without internet: download {name} elsewhere, from the releases of"
            f" ultralytics/assets on GitHub, and copy it to {state_dir}"
        ) from error


def file_hash(path: Path) -> str:
    """SHA-256 (hex) of a file's content, or of all files of a folder with their names."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        if file != path:
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def processor_name() -> str:
    """The CPU's own name and how many of its cores this process may use."""
    name = "cpu"
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware"):
                name = value.strip()
                break
    except OSError:
        logger.debug("/proc/cpuinfo cannot be read")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name} x{cores}"
