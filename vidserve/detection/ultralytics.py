"""Ultralytics models behind the ``Detector`` protocol: the only import of ultralytics.

Its ``AutoBackend`` loads .pt, ONNX, OpenVINO and TensorRT alike; the way in (letterbox) and the
way out (suppression) are ours, in batches. Nothing heavy is imported before a detector is made.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import inspect
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vidserve.detection.detector import DetectorInfo
from vidserve.detection.letterbox import to_source
from vidserve.detection.models import file_hash, processor_name, resolve_model, state_directory
from vidserve.errors import DetectorError
from vidserve.frames import Bucket, Detections, FloatArray
from vidserve.slots import Slot

if TYPE_CHECKING:
    import torch

    from vidserve.detection.suppression import Rules

logger = logging.getLogger(__name__)

_BACKEND_NAMES = {"pt": "pytorch", "engine": "tensorrt"}
_RUNTIME_PACKAGES = {
    "openvino": ("openvino",),
    "onnx": ("onnxruntime", "onnxruntime-gpu"),
    "engine": ("tensorrt",),
}
_NAMELESS = 999  # so many invented names AutoBackend gives to a model that has none


class UltralyticsDetector:
    """Any Ultralytics detection model. Made, called and closed by the detection thread.

    Args:
        model: Path, or a name that ``resolve_model`` finds.
        device: ``auto`` (the first CUDA device, else the CPU), ``cpu``, ``cuda``, ``cuda:1``, or
            ``intel:gpu`` and the like for OpenVINO.
        low: Scores over this are returned.
        classes: Ids or names to keep; None: all.
        max_detections: Of one picture.
        iou: Overlap from which the weaker of two boxes of a class goes.
        max_batch_hint: Room that is made beforehand; larger batches make more.
        end2end: Prefer the head without suppression in a .pt that has both (YOLO26, YOLOv10).
            False is what ``YOLO.predict`` does.
        threads: Of torch, on the CPU, for the whole process. One: beside four busy cameras on 2
            cores, niced, one gave 14-32 pictures a second and two gave 1 (OpenMP's threads wait
            for the core that one of them does not get).
        state_dir: Where names are looked up and Ultralytics' settings are kept; None: the
            state folder of the user or service.

    Raises:
        ModelNotFoundError: the model is not on disk.
        DetectorError: it cannot be loaded, or is no detector of named classes.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        low: float = 0.1,
        classes: Collection[int | str] | None = None,
        max_detections: int = 300,
        iou: float = 0.7,
        max_batch_hint: int = 8,
        end2end: bool = False,
        threads: int = 1,
        state_dir: Path | None = None,
    ) -> None:
        started_s = time.monotonic()
        path = resolve_model(model, state_dir)
        prepare_environment(state_dir)
        import torch

        from vidserve.detection.device import pick_device
        from vidserve.detection.suppression import Rules, class_mask

        torch.set_num_threads(threads)
        self._max_batch_hint = max_batch_hint
        self._buffers: dict[Bucket, torch.Tensor] = {}
        self._device = pick_device(device)
        self._backend = _load(path, self._device, end2end)
        try:
            self._names = _names(self._backend, path)
            self._stride = int(self._backend.stride)
            self._fixed = _fixed_bucket(self._backend)
            self._max_batch = _max_batch(self._backend)
            # A backend may have gone elsewhere: exports without CUDA run on the CPU.
            self._device = self._backend.device
            self._end2end = self._probe(path)
            allowed = class_mask(classes, self._names)
            if allowed is not None:
                allowed = allowed.to(self._device)
        except DetectorError:
            raise
        except Exception as error:
            raise DetectorError(f"{path}: the model does not run: {error}") from error
        self._rules: Rules = Rules(low, iou, max_detections, allowed)
        format_name = str(self._backend.format)
        self._info = DetectorInfo(
            model=model,
            backend=_BACKEND_NAMES.get(format_name, format_name),
            device=str(self._device),
            names=self._names,
            fingerprint=self._fingerprint(path, threads),
            stride=self._stride,
            fixed_bucket=self._fixed,
        )
        if self._fixed is not None:
            logger.info("%s was exported for %s: all pictures get this shape", path, self._fixed)
        logger.info(
            "detector %s: %s on %s, %d classes, loaded in %.1f s",
            model,
            self._info.backend,
            self._info.device,
            len(self._names),
            time.monotonic() - started_s,
        )

    @property
    def info(self) -> DetectorInfo:
        return self._info

    @property
    def max_batch(self) -> int | None:
        return self._max_batch

    def detect(self, slots: Sequence[Slot]) -> list[Detections]:
        import torch

        from vidserve.detection.suppression import select, suppress

        bucket = slots[0].bucket
        if any(slot.bucket != bucket or slot.geometry is None for slot in slots):
            raise DetectorError("a batch holds filled slots of one bucket")
        if self._max_batch is not None and len(slots) > self._max_batch:
            raise DetectorError(f"a batch of {len(slots)}; the model takes {self._max_batch}")
        try:
            with torch.inference_mode():
                output = self._infer(self._gather(slots, bucket))
                rows = (select if self._end2end else suppress)(output, self._rules)
        except DetectorError:
            raise
        except Exception as error:
            raise DetectorError(
                f"{self._info.model} failed on a batch of {len(slots)} at {bucket}: {error}"
            ) from error
        return [self._detections(found, slot) for found, slot in zip(rows, slots, strict=True)]

    def close(self) -> None:
        import torch

        self._buffers.clear()
        self._backend = None
        if getattr(self._device, "type", "") == "cuda":
            torch.cuda.empty_cache()

    def _fingerprint(self, path: Path, threads: int) -> str:
        """Changes with all that the service times depend on."""
        import torch

        packages = ["torch", "ultralytics", *_RUNTIME_PACKAGES.get(self._backend.format, ())]
        parts = [file_hash(path), *(f"{name} {_version(name)}" for name in packages)]
        on_cuda = getattr(self._device, "type", "") == "cuda"
        parts.append(torch.cuda.get_device_name(self._device) if on_cuda else processor_name())
        parts += [f"{self._device} {threads} {bool(self._backend.fp16)} {self._end2end}"]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _gather(self, slots: Sequence[Slot], bucket: Bucket) -> torch.Tensor:
        """The slots' pixels as one uint8 tensor (n, height, width, 3) on the device."""
        import torch

        n = len(slots)
        buffer = self._buffers.get(bucket)
        on_cuda = getattr(self._device, "type", "") == "cuda"
        if buffer is None or len(buffer) < n:
            room = max(n, self._max_batch_hint if self._max_batch is None else self._max_batch)
            # Pinned memory: the upload is one copy, without a second one in the driver.
            buffer = torch.empty((room, *bucket, 3), dtype=torch.uint8, pin_memory=on_cuda)
            self._buffers[bucket] = buffer
        pixels = buffer.numpy()
        for index, slot in enumerate(slots):
            pixels[index] = slot.pixels
        # The output is copied back before the next batch is gathered, so the buffer is free then.
        return buffer[:n].to(self._device, non_blocking=True) if on_cuda else buffer[:n]

    def _infer(self, pixels: torch.Tensor) -> torch.Tensor:
        """Run the model on uint8 (n, height, width, 3) RGB; its first output."""
        import torch

        images = pixels.permute(0, 3, 1, 2)
        images = (images.half() if self._backend.fp16 else images.float()).div_(255)
        if self._backend.format != "pt":
            images = images.contiguous()  # torch takes channels last as it is, and likes it
        output = self._backend(images)
        first = output[0] if isinstance(output, (list, tuple)) else output
        if not isinstance(first, torch.Tensor):
            raise DetectorError(f"an output of type {type(first).__name__} is none of a detector")
        return first

    def _probe(self, path: Path) -> bool:
        """Whether the output is end to end, from one run on a small grey picture.

        Raises:
            DetectorError: the output is none of a detector, or of other classes than named.
        """
        import torch

        bucket = self._fixed or Bucket(2 * self._stride, 2 * self._stride)
        with torch.inference_mode():
            grey = torch.full((1, *bucket, 3), 114, dtype=torch.uint8, device=self._device)
            output = self._infer(grey)
        shape = tuple(output.shape)
        if len(shape) != 3:
            raise DetectorError(f"{path}: an output of shape {shape} is none of a detector")
        if shape[2] == 6 and (self._backend.end2end or shape[1] != 4 + len(self._names)):
            head = _head(self._backend)
            count = int(getattr(head, "nc", len(self._names)))
            end2end = True
        elif self._backend.end2end:
            raise DetectorError(f"{path}: end to end, but with an output of shape {shape}")
        else:
            count = shape[1] - 4
            end2end = False
        if count != len(self._names):
            raise DetectorError(
                f"{path}: the model tells {count} classes apart but has {len(self._names)} names; "
                "labels would be wrong (is it an Ultralytics YOLO detector, with its own names?)"
            )
        return end2end

    def _detections(self, rows: FloatArray, slot: Slot) -> Detections:
        """Rows (box, score, class) in pixels of the input to detections in the picture."""
        if slot.geometry is None:
            raise DetectorError("a slot lost its geometry during detection")
        boxes = to_source(rows[:, :4], slot.geometry)
        # What lies in the grey margin alone has no area after clipping.
        seen = ((boxes[:, 2:] - boxes[:, :2]) > 0.0).all(axis=1)
        classes = rows[:, 5].astype(np.int32)
        if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < len(self._names):
            raise DetectorError(
                f"{self._info.model} reports class {int(classes.max())} of {len(self._names)}"
            )
        return Detections(boxes[seen], rows[seen, 4], classes[seen])


def prepare_environment(state_dir: Path | None = None) -> None:
    """Make Ultralytics offline, quiet and out of the home folder. Before its first import.

    It never asks the net, never installs packages, keeps its settings in the state folder (or
    in a folder of this run, where that is not writable), and logs warnings through our logging.
    """
    os.environ["YOLO_OFFLINE"] = "true"
    os.environ["YOLO_AUTOINSTALL"] = "false"
    os.environ.setdefault("YOLO_VERBOSE", "false")  # the import itself would write to stdout
    first = "ultralytics" not in sys.modules
    own = "YOLO_CONFIG_DIR" not in os.environ and first
    if own:
        os.environ["YOLO_CONFIG_DIR"] = str(_settings_folder(state_dir or state_directory()))
    from ultralytics.utils import LOGGER, SETTINGS

    if own and SETTINGS["sync"]:
        SETTINGS.update(sync=False)
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
    LOGGER.propagate = True
    LOGGER.setLevel(logging.WARNING)


def download_asset(name: str, path: Path) -> None:
    """Download one of Ultralytics' published models to ``path``. Uses the internet.

    Raises:
        DetectorError: no internet, or no such model.
    """
    prepare_environment(path.parent)
    from ultralytics.utils.downloads import attempt_download_asset

    del os.environ["YOLO_OFFLINE"]
    try:
        # An old name may come back as another one (yolov5n.pt is yolov5nu.pt today).
        got = Path(attempt_download_asset(str(path)))
    except Exception as error:
        said = str(error).encode("ascii", "ignore").decode().strip(" .;")
        raise DetectorError(f"cannot download {name}: {said}") from error
    finally:
        os.environ["YOLO_OFFLINE"] = "true"
    if got != path and got.is_file():
        got.replace(path)


def check_model(path: Path) -> None:
    """Load a model once, on the CPU. Raises DetectorError if that fails."""
    UltralyticsDetector(str(path), device="cpu").close()


def _settings_folder(state_dir: Path) -> Path:
    folder = state_dir / "ultralytics"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        temporary = Path(tempfile.mkdtemp(prefix="vidserve-ultralytics-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return temporary


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _load(path: Path, device: Any, end2end: bool) -> Any:
    """An ``AutoBackend`` with the layers fused, in half precision on CUDA."""
    from ultralytics.nn.autobackend import AutoBackend

    extra: dict[str, object] = {}
    if "end2end" in inspect.signature(AutoBackend.__init__).parameters:
        extra["end2end"] = end2end
    on_cuda = getattr(device, "type", "") == "cuda"
    try:
        # A string: for a Path, AutoBackend complains of suffixes before it looks at folders.
        backend = AutoBackend(
            model=str(path), device=device, fp16=on_cuda, fuse=True, verbose=False, **extra
        )
        backend.eval()
    except ModuleNotFoundError as error:
        raise DetectorError(
            f"{path}: this format needs the Python package {error.name} (pip install {error.name})"
        ) from error
    except Exception as error:
        raise DetectorError(f"{path}: cannot be loaded as a model: {error}") from error
    task = backend.task or getattr(getattr(backend, "model", None), "task", None)
    if task not in (None, "detect"):
        raise DetectorError(f"{path}: a model for the task {task!r}; vidserve needs a detector")
    family = f"{type(backend.model).__name__} {backend.metadata.get('description', '')}"
    if "rtdetr" in family.lower().replace("-", ""):
        # Its rows of box and scores look like an end-to-end model's when there are two classes.
        raise DetectorError(f"{path}: an RT-DETR model; its output is not supported")
    if int(getattr(backend, "channels", 3)) != 3:
        raise DetectorError(f"{path}: a model for {backend.channels} channels, not RGB")
    return backend


def _head(backend: Any) -> Any:
    """The last layer of a .pt model, else None."""
    layers = getattr(getattr(backend, "model", None), "model", None)
    return layers[-1] if backend.format == "pt" and layers is not None else None


def _names(backend: Any, path: Path) -> Mapping[int, str]:
    names = {int(key): str(name) for key, name in backend.names.items()}
    if len(names) == _NAMELESS and names[0] == "class0":
        raise DetectorError(
            f"{path}: the file holds no class names; export it with Ultralytics, which writes them"
        )
    return names


def _fixed_bucket(backend: Any) -> Bucket | None:
    """The input shape of an export that has only one; None: any multiple of the stride."""
    size = getattr(backend, "imgsz", None)
    if backend.format == "pt" or size is None or getattr(backend, "dynamic", False):
        return None
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return Bucket(int(height), int(width))


def _max_batch(backend: Any) -> int | None:
    """The batch of an export that has a largest one; None: any."""
    if backend.format == "pt":
        return None
    # A dynamic TensorRT engine has a profile that ends at the batch it was built for.
    if getattr(backend, "dynamic", False) and backend.format != "engine":
        return None
    return int(getattr(backend, "batch", 1) or 1)
