"""The sample clips, their truth, the renderer and the sample detector."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")
os.environ.setdefault("YOLO_VERBOSE", "false")
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.gettempdir())

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
sys.path.insert(0, str(SAMPLES))

WEIGHTS = SAMPLES / "vidserve-sample.pt"
CLIPS = {"plaza": (640, 360, 30, 22), "street": (960, 540, 25, 22), "gate": (640, 480, 30, 22)}
NAMES = {0: "person", 1: "bicycle", 2: "car"}
LOOKED_AT = (40, 200, 360, 520)

pytestmark = pytest.mark.filterwarnings("default")


@dataclass(frozen=True)
class Line:
    """One line of truth; the box is left, top, width, height in pixels."""

    frame: int
    ident: int
    box: tuple[float, float, float, float]
    label: int
    visibility: float


@cache
def truth(name: str) -> tuple[Line, ...]:
    """All truth lines of a clip."""
    lines = []
    for text in (SAMPLES / f"{name}.gt.txt").read_text(encoding="ascii").splitlines():
        f = text.split(",")
        assert len(f) == 9 and f[6] == "1"
        x, y, w, h = (float(value) for value in f[2:6])
        lines.append(Line(int(f[0]), int(f[1]), (x, y, w, h), int(f[7]), float(f[8])))
    return tuple(lines)


@cache
def pictures(name: str) -> tuple[int, int, dict[int, npt.NDArray[np.uint8]]]:
    """Number of pictures, number of key pictures, and those of LOOKED_AT as BGR."""
    kept: dict[int, npt.NDArray[np.uint8]] = {}
    keys = count = 0
    with av.open(str(SAMPLES / f"{name}.mp4")) as clip:
        for frame in clip.decode(video=0):
            if count in LOOKED_AT:
                kept[count] = frame.to_ndarray(format="bgr24").astype(np.uint8)
            keys += bool(frame.key_frame)
            count += 1
    return count, keys, kept


@pytest.mark.parametrize("name", CLIPS)
def test_clip_is_as_documented(name: str) -> None:
    width, height, rate, seconds = CLIPS[name]
    with av.open(str(SAMPLES / f"{name}.mp4")) as clip:
        stream = clip.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        assert (stream.codec_context.width, stream.codec_context.height) == (width, height)
        assert stream.average_rate == rate
        assert stream.duration is not None and stream.time_base is not None
        assert float(stream.duration * stream.time_base) == pytest.approx(seconds, abs=0.1)
    count, keys, _ = pictures(name)
    assert count == rate * seconds
    assert keys >= seconds - 1


def test_clips_are_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.glob("*.mp4")) < 15e6


@pytest.mark.parametrize("name", CLIPS)
def test_truth_is_well_formed(name: str) -> None:
    width, height, rate, seconds = CLIPS[name]
    lines = truth(name)
    labels: dict[int, int] = {}
    for line in lines:
        x, y, w, h = line.box
        assert x >= 0 and y >= 0 and w > 0 and h > 0
        assert x + w <= width + 0.02 and y + h <= height + 0.02
        assert 0.0 <= line.visibility <= 1.0
        assert line.label - 1 in NAMES
        assert labels.setdefault(line.ident, line.label) == line.label
    frames = [line.frame for line in lines]
    assert frames == sorted(frames)
    assert set(frames) == set(range(1, rate * seconds + 1))
    assert len({(line.frame, line.ident) for line in lines}) == len(lines)
    assert set(labels.values()) == {1, 2, 3}


@pytest.mark.parametrize("name", CLIPS)
def test_truth_moves_smoothly(name: str) -> None:
    last: dict[int, Line] = {}
    for line in truth(name):
        before = last.get(line.ident)
        if before is not None and before.frame == line.frame - 1:
            jump = abs(line.box[1] + line.box[3] - before.box[1] - before.box[3])
            assert jump < 0.05 * CLIPS[name][1]
        last[line.ident] = line


def test_rendering_is_deterministic() -> None:
    from render import PLAZA
    from scene import Scene

    small = replace(PLAZA, width=192, height=108, detail=8, fixtures=3)

    def shot(seed: int) -> tuple[npt.NDArray[np.uint8], str]:
        scene = Scene(small, seed, 6)
        shots = [scene.picture(number) for number in (0, 5)]
        return np.stack([picture for picture, _ in shots]), repr([items for _, items in shots])

    first, again, other = shot(11), shot(11), shot(12)
    assert np.array_equal(first[0], again[0])
    assert first[1] == again[1]
    assert not np.array_equal(first[0], other[0])
    assert first[1] != other[1]


def test_boxes_are_tight() -> None:
    """A box of truth ends where the object's pixels end (against a picture without it)."""
    from motion import Crowd
    from render import PLAZA
    from scene import Scene

    calm = replace(PLAZA, noise=0.0, fixtures=0, drift=0.0, crowd=Crowd(0, 0, 0, parked_cars=1))
    scene = Scene(calm, 4, 1)
    scene.backdrop = replace(scene.backdrop, shadow=0.0)
    filled, items = scene.picture(0)
    scene.actors = []
    empty, _ = scene.picture(0)
    assert len(items) == 1 and items[0].visibility == 1.0
    rows, columns = np.nonzero(np.abs(filled.astype(int) - empty.astype(int)).max(axis=2) > 4)
    x, y, w, h = items[0].box
    found = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert found == pytest.approx((x, y, x + w, y + h), abs=1.0)


@cache
def detector() -> Any:
    from ultralytics import YOLO

    return YOLO(WEIGHTS)


def paths_in(value: Any) -> list[str]:
    """Absolute paths anywhere in a nest of dicts and lists."""
    if isinstance(value, dict):
        return [path for item in value.values() for path in paths_in(item)]
    if isinstance(value, list | tuple):
        return [path for item in value for path in paths_in(item)]
    if isinstance(value, PurePath) or (isinstance(value, str) and os.path.isabs(value)):
        return [str(value)]
    return []


def test_detector_is_small_and_clean() -> None:
    import torch

    assert WEIGHTS.stat().st_size < 3e6
    checkpoint = torch.load(WEIGHTS, map_location="cpu", weights_only=False)
    model = checkpoint["model"]
    assert paths_in(checkpoint["train_args"]) == []
    assert paths_in(model.args) == [] and paths_in(model.yaml) == []
    assert checkpoint["optimizer"] is None and checkpoint["ema"] is None
    assert dict(model.names) == NAMES
    assert 400_000 < sum(weight.numel() for weight in model.parameters()) < 650_000


def test_figures_are_written_down() -> None:
    figures = json.loads((SAMPLES / "metrics.json").read_text(encoding="utf-8"))
    assert figures["mAP50"] >= 0.85
    assert set(figures["classes"]) == set(NAMES.values())
    assert figures["file_bytes"] == WEIGHTS.stat().st_size
    assert paths_in(figures) == []


def overlap(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Intersection over union of two boxes left, top, right, bottom."""
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    both = float(w * h)
    area = float((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]))
    return both / (area - both)


@pytest.mark.parametrize("name", CLIPS)
def test_detector_finds_the_objects(name: str) -> None:
    width, height, _, _ = CLIPS[name]
    scale = 320 / max(width, height)
    _, _, kept = pictures(name)
    wanted = found = 0
    for number, picture in kept.items():
        result = detector().predict(picture, imgsz=320, conf=0.3, device="cpu", verbose=False)[0]
        boxes = result.boxes.xyxy.cpu().numpy().astype(np.float64)
        labels = result.boxes.cls.cpu().numpy().astype(int)
        for line in truth(name):
            x, y, w, h = line.box
            if line.frame != number + 1 or line.visibility < 0.4 or h * scale < 14:
                continue
            wanted += 1
            box = np.array([x, y, x + w, y + h])
            found += any(
                label == line.label - 1 and overlap(box, other) >= 0.5
                for other, label in zip(boxes, labels, strict=True)
            )
    assert wanted >= 12
    assert found / wanted >= 0.6
