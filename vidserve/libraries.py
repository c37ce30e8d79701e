"""Missing system libraries, named with the Debian package that brings them.

``pip`` installs opencv-python and the others without the shared libraries of the system that
they are linked to; on a bare server the import then fails with a name that says nothing.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable

from vidserve.errors import MissingLibraryError

MODULES = ("cv2", "av", "torch")
"""What is imported at a start that brings compiled code with it."""

DEBIAN_PACKAGES = {
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgobject-2.0.so.0": "libglib2.0-0",
    "libSM.so.6": "libsm6",
    "libICE.so.6": "libice6",
    "libX11.so.6": "libx11-6",
    "libXext.so.6": "libxext6",
    "libXrender.so.1": "libxrender1",
    "libxcb.so.1": "libxcb1",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libdbus-1.so.3": "libdbus-1-3",
    "libgomp.so.1": "libgomp1",
    "libstdc++.so.6": "libstdc++6",
    "libgcc_s.so.1": "libgcc-s1",
    "libuuid.so.1": "libuuid1",
    "libz.so.1": "zlib1g",
    "libnuma.so.1": "libnuma1",
    "libdrm.so.2": "libdrm2",
    "libva.so.2": "libva2",
    "libv4l2.so.0": "libv4l-0",
}

# What opencv-python asks for one after the other on a bare system: named at once.
_OPENCV_TOGETHER = ("libgl1", "libglib2.0-0")
_SONAME = re.compile(r"(lib[\w+.-]*?\.so(?:\.\d+)*)")


def explain(module: str, error: ImportError) -> str | None:
    """One sentence with the way out, or None if no system library is at fault.

    Args:
        module: Whose import failed.
        error: What it failed with; only its text is read.
    """
    match = _SONAME.search(str(error))
    if match is None or "cannot open shared object file" not in str(error):
        return None
    soname = match[1]
    package = DEBIAN_PACKAGES.get(soname)
    if package is None:
        return (
            f"{module} needs the system library {soname}, which is missing; on Debian and Ubuntu "
            f"`apt-file search {soname}` names the package"
        )
    packages = [package]
    if module == "cv2":
        packages = sorted({package, *_OPENCV_TOGETHER})
    return (
        f"{module} needs the system library {soname}, which is missing: "
        f"apt install {' '.join(packages)}"
    )


def check_libraries(
    modules: Iterable[str] = MODULES,
    import_module: Callable[[str], object] = importlib.import_module,
) -> None:
    """Import what has compiled code, so that a missing library is named before anything starts.

    Args:
        modules: What to import.
        import_module: How; for tests.

    Raises:
        MissingLibraryError: A system library or the Python package itself is missing; it names
            all of them, a line each, with what to install.
    """
    problems = []
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            problems.append(f"the Python package {error.name or module} is missing: run `make`")
        except ImportError as error:
            problems.append(explain(module, error) or f"{module} cannot be imported: {error}")
    if problems:
        raise MissingLibraryError("\n".join(problems))


def tame_libraries() -> None:
    """OpenCV: one thread a call, and no words of its own on stderr. Once, at the start.

    Our threads are as many as there are cameras; a pool below each call would only make them
    wait for each other.
    """
    import cv2

    cv2.setNumThreads(1)
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
