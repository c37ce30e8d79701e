"""The Ultralytics detector: its boxes are those of ``YOLO.predict``, alone and in batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from vidserve.detection.detector import Detector
from vidserve.detection.letterbox import write_letterbox_array
from vidserve.detection.ultralytics import UltralyticsDetector, prepare_environment
from vidserve.errors import DetectorError, ModelNotFoundError
from vidserve.frames import Bucket, ByteArray, Detections, Letterbox
from vidserve.scheduling.buckets import rectangle
from vidserve.slots import Slot, SlotPool

SHARED_MODEL = Path(__file__).parents[2] / "shared" / "models" / "yolo11n.pt"
SIZE = 320
LOADED: dict[tuple[object, ...], Any] = {}  # Ultralytics' own models, by file and options


@pytest.fixture(scope="module", autouse=True)
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    torch.set_num_threads(1)
    prepare_environment(folder)
    return folder


@pytest.fixture(scope="module")
def pictures(state_dir: Path) -> dict[str, ByteArray]:
    """The two pictures that the ultralytics package ships, BGR, and crops of them."""
    from ultralytics.utils import ASSETS

    bus, zidane = (cv2.imread(str(ASSETS / f"{name}.jpg")) for name in ("bus", "zidane"))
    assert bus is not None and zidane is not None
    # One bucket for all of these, that of 1280x720.
    return {
        "bus": bus,
        "zidane": zidane,
        "wide1": bus[200:656],
        "wide2": np.ascontiguousarray(zidane[:, ::-1]),
        "wide3": cv2.resize(zidane[100:400, 300:830], (640, 362)),
    }


@pytest.fixture(scope="module")
def build(state_dir: Path, pictures: dict[str, ByteArray]) -> Callable[..., Path]:
    """Makes a small model with random weights from a yaml and saves it as a .pt file."""

    def make(name: str, base: str, classes: int = 5) -> Path:
        path = state_dir / f"{name}.pt"
        if path.exists():
            return path
        from ultralytics.nn.tasks import DetectionModel, yaml_model_load

        torch.manual_seed(3)
        config = yaml_model_load(base) | {"scale": "n"}
        config["scales"] = {"n": [0.33, 0.125, 256]}
        model = DetectionModel(config, ch=3, nc=classes, verbose=False)
        model.names = {index: f"thing{index}" for index in range(classes)}
        wake(model, pictures)
        torch.save({"model": model, "train_args": {}}, path)
        return path

    return make


def wake(model: torch.nn.Module, pictures: dict[str, ByteArray]) -> None:
    """Spread a random model's scores over 0..1 and its boxes over many sizes.

    Fresh weights give every anchor one and the same score near zero.
    """
    views = [cv2.resize(bgr, (320, 192)).transpose(2, 0, 1) / 255.0 for bgr in pictures.values()]
    images = torch.from_numpy(np.stack(views)).float()
    head = model.model[-1]  # type: ignore[index]
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()
                module.momentum = None  # a plain mean: it learns what it sees at once
        model.train()
        for _ in range(4):
            model(images)
        model.eval()
        for part, mean, spread in (("cv2", 1.0, 1.5), ("cv3", -4.0, 1.3)):
            for branch in (part, f"one2one_{part}"):
                for layer in getattr(head, branch, None) or ():
                    rescale(layer[-1], model, images, mean, spread)


def rescale(
    layer: torch.nn.Conv2d, model: torch.nn.Module, images: torch.Tensor, mean: float, spread: float
) -> None:
    """Give each output channel of a layer this mean and standard deviation on these images."""
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _layer, _inputs, output: seen.append(output))
    model(images)
    hook.remove()
    now = seen[0].transpose(0, 1).flatten(1)
    scale = spread / now.std(1).clamp(min=1e-6)
    assert layer.bias is not None
    layer.weight.mul_(scale[:, None, None, None])
    layer.bias.copy_((layer.bias - now.mean(1)) * scale + mean)


def filled(detector: Detector, bgr: ByteArray, size: int = SIZE) -> Slot:
    height, width = bgr.shape[:2]
    info = detector.info
    bucket = info.fixed_bucket or rectangle(width, height, size, info.stride)
    slot = SlotPool(bucket, 1).take()
    assert slot is not None
    slot.geometry = Letterbox.fit(width, height, bucket)
    write_letterbox_array(bgr, slot.pixels, slot.geometry)
    return slot


def predict(
    path: Path, bgr: ByteArray, low: float = 0.1, size: int = SIZE, **more: Any
) -> Detections:
    """What Ultralytics says itself."""
    from ultralytics import YOLO

    key = (path, *more)
    if key not in LOADED:
        LOADED[key] = YOLO(str(path), task="detect")
    (result,) = LOADED[key].predict(
        bgr, conf=low, imgsz=size, verbose=False, device="cpu", save=False, **more
    )
    found = Detections(
        result.boxes.xyxy.numpy(),
        result.boxes.conf.numpy(),
        result.boxes.cls.numpy().astype(np.int32),
    )
    sides = found.boxes[:, 2:] - found.boxes[:, :2]
    return found.pick(np.flatnonzero((sides > 0).all(axis=1)))


def assert_same(ours: Detections, theirs: Detections, low: float = 0.1) -> None:
    """Same boxes to 1 px and 0.01, whatever the order; scores at the threshold may go either way.

    Boxes are paired by the best assignment over box, score and class.
    """
    cost = np.abs(ours.boxes[:, None] - theirs.boxes[None]).max(axis=2)
    cost = cost + 1e4 * np.abs(ours.scores[:, None] - theirs.scores[None])
    cost = cost + 1e6 * (ours.classes[:, None] != theirs.classes[None])
    rows, columns = linear_sum_assignment(cost)
    alone = np.setdiff1d(np.arange(len(ours)), rows), np.setdiff1d(np.arange(len(theirs)), columns)
    assert (ours.scores[alone[0]] < low + 0.01).all(), (len(ours), len(theirs))
    assert (theirs.scores[alone[1]] < low + 0.01).all(), (len(ours), len(theirs))
    assert np.array_equal(ours.classes[rows], theirs.classes[columns])
    assert np.abs(ours.boxes[rows] - theirs.boxes[columns]).max() <= 1.0
    assert np.abs(ours.scores[rows] - theirs.scores[columns]).max() <= 0.01


@pytest.mark.real
@pytest.mark.skipif(not SHARED_MODEL.exists(), reason="needs ../shared/models/yolo11n.pt")
@pytest.mark.parametrize("size", [320, 640])
def test_real_model_agrees_with_predict(
    pictures: dict[str, ByteArray], state_dir: Path, size: int
) -> None:
    detector = UltralyticsDetector(str(SHARED_MODEL), device="cpu", state_dir=state_dir)
    labels = set()
    for bgr in pictures.values():
        (ours,) = detector.detect([filled(detector, bgr, size)])
        theirs = predict(SHARED_MODEL, bgr, size=size)
        assert len(theirs) > 0
        assert_same(ours, theirs)
        labels |= {detector.info.names[key] for key in ours.classes.tolist()}
    assert {"person", "bus", "tie"} <= labels


VARIANTS = {
    # name: yaml, our end2end, arguments of predict
    "plain": ("yolo11.yaml", False, {}),
    "both-heads": ("yolo26.yaml", False, {}),
    "nms-free": ("yolo26.yaml", True, {"nms": False}),
    "v10": ("yolov10n.yaml", True, {"nms": False}),
}


@pytest.fixture(scope="module")
def detectors(build: Callable[..., Path], state_dir: Path) -> dict[str, UltralyticsDetector]:
    return {
        name: UltralyticsDetector(
            str(build(Path(base).stem, base)),
            device="cpu",
            end2end=end2end,
            state_dir=state_dir,
        )
        for name, (base, end2end, _) in VARIANTS.items()
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_random_model_agrees_with_predict(
    name: str,
    detectors: dict[str, UltralyticsDetector],
    pictures: dict[str, ByteArray],
) -> None:
    detector = detectors[name]
    found = 0
    for bgr in pictures.values():
        (ours,) = detector.detect([filled(detector, bgr)])
        theirs = predict(Path(detector.info.model), bgr, **VARIANTS[name][2])
        found += len(theirs)
        assert_same(ours, theirs)
        height, width = bgr.shape[:2]
        assert (ours.boxes >= 0).all() and (ours.boxes <= [width, height] * 2).all()
        assert (np.diff(ours.scores) <= 0).all()
    assert found > 100


@pytest.mark.parametrize("name", ["plain", "nms-free"])
def test_a_batch_says_what_each_picture_says_alone(
    name: str, detectors: dict[str, UltralyticsDetector], pictures: dict[str, ByteArray]
) -> None:
    detector = detectors[name]
    slots = [
        filled(detector, pictures[key]) for key in ("wide1", "zidane", "wide2", "wide3", "zidane")
    ]
    together = detector.detect(slots)
    alone = [detector.detect([slot])[0] for slot in slots]
    # A larger batch than the room that was made beforehand, and then a smaller one.
    many = detector.detect(slots * 2)
    assert len(together) == len(slots)
    for index, (ours, theirs) in enumerate(zip(together, alone, strict=True)):
        assert_same(ours, theirs)
        assert_same(many[index + len(slots)], theirs)
    assert len({float(found.scores.sum()) for found in alone}) >= 4  # the pictures do differ


def test_both_heads_can_be_chosen(
    detectors: dict[str, UltralyticsDetector], pictures: dict[str, ByteArray]
) -> None:
    with_suppression, without = detectors["both-heads"], detectors["nms-free"]
    slot = filled(without, pictures["zidane"])
    assert not np.array_equal(
        with_suppression.detect([slot])[0].scores, without.detect([slot])[0].scores
    )
    assert with_suppression.info.fingerprint != without.info.fingerprint


def test_classes_and_thresholds(
    build: Callable[..., Path], state_dir: Path, pictures: dict[str, ByteArray]
) -> None:
    path = build("yolo11", "yolo11.yaml")

    def look(**options: Any) -> Detections:
        detector = UltralyticsDetector(str(path), device="cpu", state_dir=state_dir, **options)
        return detector.detect([filled(detector, pictures["zidane"])])[0]

    everything = look()
    some = look(classes=[1, "thing3"], max_detections=7)
    wanted = everything.pick(np.isin(everything.classes, [1, 3]))
    assert len(some) == 7
    assert np.allclose(some.boxes, wanted.boxes[:7], atol=0.5)
    assert look(low=0.5).scores.min() > 0.5
    assert (look(iou=0.01).scores.size) < len(everything)
    with pytest.raises(DetectorError, match=r"'thing' .*did you mean"):
        look(classes=["thing"])
    with pytest.raises(DetectorError, match="17"):
        look(classes=[17])


def test_info(detectors: dict[str, UltralyticsDetector], state_dir: Path, tmp_path: Path) -> None:
    detector = detectors["plain"]
    assert detector.info.names == {index: f"thing{index}" for index in range(5)}
    assert (detector.info.backend, detector.info.device) == ("pytorch", "cpu")
    assert detector.max_batch is None
    assert (detector.info.stride, detector.info.fixed_bucket) == (32, None)

    copy = tmp_path / "copy.pt"
    copy.write_bytes(Path(detector.info.model).read_bytes())
    same = UltralyticsDetector(str(copy), device="cpu", state_dir=state_dir)
    assert same.info.fingerprint == detector.info.fingerprint
    other = UltralyticsDetector(str(copy), device="cpu", threads=2, state_dir=state_dir)
    torch.set_num_threads(1)
    assert other.info.fingerprint != detector.info.fingerprint
    other.close()


def test_a_batch_of_two_buckets_is_refused(
    detectors: dict[str, UltralyticsDetector], pictures: dict[str, ByteArray]
) -> None:
    detector = detectors["plain"]
    slots = [filled(detector, pictures["bus"]), filled(detector, pictures["zidane"])]
    with pytest.raises(DetectorError, match="one bucket"):
        detector.detect(slots)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_an_export_of_one_shape_keeps_it(
    build: Callable[..., Path], state_dir: Path, pictures: dict[str, ByteArray]
) -> None:
    from ultralytics import YOLO

    path = build("yolo11", "yolo11.yaml")
    exported = Path(
        YOLO(str(path)).export(format="torchscript", imgsz=[192, 320], batch=2, verbose=False)
    )
    detector = UltralyticsDetector(str(exported), device="cpu", state_dir=state_dir)
    assert detector.info.backend == "torchscript"
    assert detector.max_batch == 2
    assert detector.info.fixed_bucket == Bucket(192, 320)

    slots = [filled(detector, pictures[key]) for key in ("zidane", "bus", "wide2")]
    for ours, key in zip(detector.detect(slots[:2]), ("zidane", "bus"), strict=True):
        assert_same(ours, predict(exported, pictures[key], size=640))
    assert_same(detector.detect(slots[2:])[0], predict(exported, pictures["wide2"], size=640))
    with pytest.raises(DetectorError, match="a batch of 3"):
        detector.detect(slots)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_openvino_folder(
    build: Callable[..., Path], state_dir: Path, pictures: dict[str, ByteArray]
) -> None:
    pytest.importorskip("openvino", reason="needs openvino (pip install vidserve[openvino])")
    from ultralytics import YOLO

    path = build("yolo11", "yolo11.yaml")
    folder = Path(YOLO(str(path)).export(format="openvino", dynamic=True, verbose=False))
    detector = UltralyticsDetector(str(folder), device="cpu", state_dir=state_dir)
    assert detector.info.backend == "openvino"
    assert detector.max_batch is None
    slots = [filled(detector, pictures[key]) for key in ("zidane", "wide1", "wide2")]
    for ours, slot in zip(detector.detect(slots), slots, strict=True):
        assert_same(ours, detector.detect([slot])[0])


def edited(path: Path, target: Path, edit: Callable[[Any], None]) -> str:
    kept = torch.load(path, weights_only=False)
    edit(kept["model"])
    torch.save(kept, target)
    return str(target)


def test_wrong_names_are_refused(build: Callable[..., Path], tmp_path: Path) -> None:
    for base in ("yolo11.yaml", "yolov10n.yaml"):
        good = build(Path(base).stem, base)
        for count in (4, 6):

            def rename(model: Any, count: int = count) -> None:
                model.names = {index: f"thing{index}" for index in range(count)}

            bad = edited(good, tmp_path / f"{good.stem}-{count}.pt", rename)
            with pytest.raises(DetectorError, match=f"5 classes .* but has {count} names"):
                UltralyticsDetector(bad, device="cpu", end2end="v10" in base)


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    from ultralytics.nn.tasks import SegmentationModel, yaml_model_load

    config = yaml_model_load("yolo11-seg.yaml") | {"scale": "n"}
    config["scales"] = {"n": [0.33, 0.125, 256]}
    model = SegmentationModel(config, ch=3, nc=2, verbose=False)
    for args, message in (({"task": "segment"}, "'segment'"), ({}, "none of a detector")):
        torch.save({"model": model, "train_args": args}, tmp_path / "seg.pt")
        with pytest.raises(DetectorError, match=message):
            UltralyticsDetector(str(tmp_path / "seg.pt"), device="cpu")


def test_rt_detr_is_refused_by_name(tmp_path: Path) -> None:
    from ultralytics.nn.tasks import RTDETRDetectionModel, yaml_model_load

    config = yaml_model_load("yolov8-rtdetr.yaml") | {"scale": "n"}
    config["scales"] = {"n": [0.33, 0.125, 256]}
    # Two classes: its output then has the shape of an end-to-end model's.
    model = RTDETRDetectionModel(config, ch=3, nc=2, verbose=False)
    torch.save({"model": model, "train_args": {}}, tmp_path / "net.pt")
    with pytest.raises(DetectorError, match="RT-DETR"):
        UltralyticsDetector(str(tmp_path / "net.pt"), device="cpu")


def test_scores_that_are_no_numbers_are_an_error_and_not_an_empty_picture(
    build: Callable[..., Path], tmp_path: Path, pictures: dict[str, ByteArray]
) -> None:
    def spoil(model: Any) -> None:
        head = model.model[-1]
        for branch in ("cv3", "one2one_cv3"):
            for layer in getattr(head, branch, None) or ():
                layer[-1].bias.data.fill_(float("nan"))

    for base in ("yolo11.yaml", "yolov10n.yaml"):
        good = build(Path(base).stem, base)
        bad = edited(good, tmp_path / good.name, spoil)
        detector = UltralyticsDetector(bad, device="cpu", end2end="v10" in base)
        with pytest.raises(DetectorError, match="not finite"):
            detector.detect([filled(detector, pictures["zidane"])])


@pytest.mark.parametrize("content", [b"", b"not a model", b"PK\x03\x04 broken"])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.pt"
    path.write_bytes(content)
    with pytest.raises(DetectorError, match=r"broken\.pt: cannot be loaded"):
        UltralyticsDetector(str(path), device="cpu")


def test_devices(build: Callable[..., Path]) -> None:
    path = str(build("yolo11", "yolo11.yaml"))
    for device in ("warp", "cuda:77", "77"):
        with pytest.raises(DetectorError, match=r"detector\.device"):
            UltralyticsDetector(path, device=device)
    with pytest.raises(ModelNotFoundError, match="fetch-model"):
        UltralyticsDetector("absent.pt")
