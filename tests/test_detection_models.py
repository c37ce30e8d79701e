"""Models are found, fetched and named; what is missing on the machine is named too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vidserve.detection.models import (
    fetch_model,
    file_hash,
    processor_name,
    resolve_model,
    state_directory,
)
from vidserve.errors import DetectorError, MissingLibraryError, ModelNotFoundError
from vidserve.libraries import check_libraries, explain


def test_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_directory() == Path("/home/someone/.local/state/vidserve")
    monkeypatch.setenv("XDG_STATE_HOME", "/data/state")
    assert state_directory() == Path("/data/state/vidserve")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/vidserve:/var/lib/other")
    assert state_directory() == Path("/var/lib/vidserve")


def test_a_model_is_found_by_path_here_and_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, state = tmp_path / "here", tmp_path / "state"
    for folder in (here, state, here / "a_openvino_model"):
        folder.mkdir()
    monkeypatch.chdir(here)
    (state / "net.pt").write_text("state")
    assert resolve_model("net.pt", state) == state / "net.pt"
    (here / "net.pt").write_text("here")
    assert resolve_model("net.pt", state) == here / "net.pt"
    assert resolve_model("./net.pt", state) == here / "net.pt"
    assert resolve_model(str(state / "net.pt"), state) == state / "net.pt"
    assert resolve_model("a_openvino_model", state) == here / "a_openvino_model"


def test_a_model_that_is_nowhere_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"vidserve fetch-model yolo11n\.pt"):
        resolve_model("yolo11n.pt", tmp_path)
    # A path is meant as it is: the state folder is not searched for it.
    (tmp_path / "net.pt").write_text("")
    with pytest.raises(ModelNotFoundError, match=r"there is no sub/net\.pt"):
        resolve_model("sub/net.pt", tmp_path)


def test_fetching_moves_what_loads_and_leaves_nothing_else(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    seen: list[Path] = []

    def download(name: str, path: Path) -> None:
        path.write_text(f"weights of {name}")

    fetched = fetch_model("net.pt", state, download, seen.append)
    assert fetched == state / "net.pt"
    assert fetched.read_text() == "weights of net.pt"
    assert [path.name for path in seen] == ["net.pt"]
    assert not seen[0].exists()
    assert os.listdir(state) == ["net.pt"]

    def never(name: str, path: Path) -> None:
        raise AssertionError("it is there already")

    assert fetch_model("net.pt", state, never, seen.append) == fetched


def test_a_download_that_fails_or_does_not_load_leaves_nothing(tmp_path: Path) -> None:
    def offline(name: str, path: Path) -> None:
        path.write_text("half of it")
        raise DetectorError("no internet")

    def nothing(name: str, path: Path) -> None:
        """Ultralytics' way to say that there is no such model."""

    def full(name: str, path: Path) -> None:
        raise OSError(28, "No space left on device")

    def good(name: str, path: Path) -> None:
        path.write_text("weights")

    def refuse(path: Path) -> None:
        raise DetectorError("not a detector")

    for download, check, message in (
        (offline, refuse, "no internet"),
        (nothing, refuse, r"no model named net\.pt"),
        (full, refuse, "No space left"),
        (good, refuse, "not a detector"),
    ):
        with pytest.raises(DetectorError, match=message):
            fetch_model("net.pt", tmp_path, download, check)
        assert os.listdir(tmp_path) == []
    for name in ("../net.pt", "https://example.org/net.pt", "net.onnx", ""):
        with pytest.raises(DetectorError, match="takes a name"):
            fetch_model(name, tmp_path, good, refuse)


def test_hash_of_files_and_folders(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        (folder / "net.xml").write_text("a")
        (folder / "net.bin").write_text("b")
    assert file_hash(one) == file_hash(two)
    (two / "net.bin").write_text("c")
    assert file_hash(one) != file_hash(two)
    assert file_hash(one / "net.bin") != file_hash(two / "net.bin")
    assert processor_name().partition(" x")[0]


@pytest.mark.parametrize(
    ("module", "message", "expected"),
    [
        ("cv2", "libGL.so.1", "apt install libgl1 libglib2.0-0"),
        ("cv2", "libgthread-2.0.so.0", "apt install libgl1 libglib2.0-0"),
        ("cv2", "libxcb.so.1", "apt install libgl1 libglib2.0-0 libxcb1"),
        ("torch", "libgomp.so.1", "apt install libgomp1"),
        ("av", "libmystery-2.so.7.1", "apt-file search libmystery-2.so.7.1"),
    ],
)
def test_a_missing_library_names_its_package(module: str, message: str, expected: str) -> None:
    error = ImportError(f"{message}: cannot open shared object file: No such file or directory")
    said = explain(module, error)
    assert said is not None
    assert said.endswith(expected) or expected in said
    assert module in said and message in said


def test_check_libraries() -> None:
    tried: list[str] = []

    def import_module(name: str) -> object:
        tried.append(name)
        if name == "cv2":
            raise ImportError(
                "libGL.so.1: cannot open shared object file: No such file or directory"
            )
        if name == "torch":
            raise ImportError("numpy.core.multiarray failed to import")
        raise ModuleNotFoundError("No module named 'av'", name="av")

    with pytest.raises(MissingLibraryError) as caught:
        check_libraries(import_module=import_module)
    lines = str(caught.value).splitlines()
    assert tried == ["cv2", "av", "torch"]
    assert "apt install libgl1 libglib2.0-0" in lines[0]
    assert "Python package av" in lines[1]
    assert "numpy.core.multiarray" in lines[2]


def test_this_machine_has_all_libraries() -> None:
    check_libraries()


@pytest.mark.skipif(sys.platform != "linux", reason="nice values of threads are Linux's")
def test_the_workers_of_torch_inherit_the_nice_value() -> None:
    code = """
import threading
from pathlib import Path

def nices():
    found = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found[int(task.name)] = int(fields[16])  # the 19th field of proc(5), after pid and name
    return found

def detection():
    from vidserve.detection.threads import yield_to_cameras
    yield_to_cameras()
    import torch
    torch.set_num_threads(3)
    x = torch.rand(1, 16, 256, 256)
    torch.nn.functional.conv2d(x, torch.rand(16, 16, 3, 3))
    mine = threading.get_native_id()
    now = nices()
    new = {tid: nice for tid, nice in now.items() if tid not in before}
    print(now[threading.main_thread().native_id], new[mine], len(new), set(new.values()))

before = nices()
thread = threading.Thread(target=detection)
thread.start()
thread.join()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    main, mine, count, values = run.stdout.split(maxsplit=3)
    assert main == str(os.getpriority(os.PRIO_PROCESS, 0))
    assert mine == "19"
    assert int(count) >= 3, "torch made no workers: nothing was shown"
    assert values.strip() == "{19}"


def test_only_the_calling_thread_yields() -> None:
    from vidserve.detection.threads import yield_to_cameras

    seen: list[int] = []

    def work() -> None:
        yield_to_cameras()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [19]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_ultralytics_stays_quiet_offline_and_out_of_the_home_folder(tmp_path: Path) -> None:
    code = """
import logging, os, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("the net was asked")
socket.getaddrinfo = refuse
from vidserve.detection.ultralytics import prepare_environment
prepare_environment()
assert os.environ["YOLO_OFFLINE"] == "true" and os.environ["YOLO_AUTOINSTALL"] == "false"
from ultralytics import YOLO
from ultralytics.utils import LOGGER, ONLINE, SETTINGS, USER_CONFIG_DIR
LOGGER.info("chatter")
LOGGER.warning("something to know")
print(ONLINE, SETTINGS["sync"], USER_CONFIG_DIR)
"""
    home, state = tmp_path / "home", tmp_path / "state"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("YOLO_")}
    environment |= {"HOME": str(home), "STATE_DIRECTORY": str(state)}
    environment.pop("XDG_CONFIG_HOME", None)

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environment | more,
        )

    out = run()
    assert out.stdout == f"False False {state}/ultralytics/Ultralytics\n"
    assert out.stderr == "something to know\n"
    assert os.listdir(home) == []

    # A daemon without a home and with a state folder that cannot be written.
    out = run(HOME="/dev/null", STATE_DIRECTORY="/dev/null/state", TMPDIR=str(tmp_path))
    assert f"False False {tmp_path}/vidserve-ultralytics-" in out.stdout
    assert not list(tmp_path.glob("vidserve-ultralytics-*"))
