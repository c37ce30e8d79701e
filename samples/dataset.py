"""Pictures with labels to train, to validate and to test, in layouts and seeds of their own.

The validation set chooses the best epoch, the test set gives the figures. Nothing of the three
clips is used: their seeds (and with them their streets, looks and ways) occur in no set.

Left out of the labels, as one can not ask a model for them, are objects less than
``MIN_HEIGHT`` pixels high at the size of training and those seen to less than
``MIN_VISIBILITY``. Some pictures show no object at all.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from backdrop import Street
from draw import Picture
from motion import Crowd
from render import CLIPS
from scene import NAMES, Layout, Scene, Truth

MIN_HEIGHT = 10.0
MIN_VISIBILITY = 0.25
PER_SCENE = 5
STEPS, STEP_SECONDS = 240, 0.1
SIZES = ((640, 360), (640, 480), (960, 540), (640, 400), (512, 512), (480, 640), (768, 432))


@dataclass(frozen=True)
class Job:
    """One scene to render: which set it belongs to, its seed, where and how to write."""

    split: str
    seed: int
    folder: Path
    image_size: int


def random_layout(rng: np.random.Generator) -> Layout:
    """A layout at random: size, camera, street, crowd, light."""
    width, height = SIZES[int(rng.integers(len(SIZES)))]
    pitch, tall = rng.uniform(11, 25), rng.uniform(3.0, 7.5)
    pivot = float(np.clip(tall / math.tan(math.radians(pitch)) * rng.uniform(0.75, 1.1), 9, 21))
    yaw = math.radians(rng.uniform(-55, 55) if rng.random() < 0.5 else rng.uniform(-15, 15))
    kind = rng.random()
    road = 0.0 if kind < 0.4 else rng.uniform(3.9, 4.7) if kind < 0.75 else rng.uniform(7, 7.8)
    square = road == 0
    empty = rng.random() < 0.06
    crowd = Crowd(
        walkers=int(rng.integers(1, 11)),
        riders=int(rng.integers(0, 6)),
        cars_per_lane=int(rng.integers(0, 4)),
        parked_cars=int(rng.integers(0, 4)) if square else 0,
        parked_bicycles=int(rng.integers(0, 4)) if rng.random() < 0.5 else 0,
        crossing=0.3,
    )
    near = rng.uniform(4.0, max(5.0, pivot - 5.5)) if square else rng.uniform(2.5, 6.0)
    street = Street(
        yaw, pivot, road, near, rng.uniform(5.0, 10.0) if square else rng.uniform(2.5, 4.5)
    )
    return Layout(
        width,
        height,
        10.0,
        rng.uniform(48, 70) * min(1.0, width / height),
        tall,
        pitch,
        street,
        Crowd(0, 0, 0) if empty else crowd,
        fixtures=int(rng.integers(0, 13)),
        detail=20,
        noise=rng.uniform(0.5, 5.0),
        gain=rng.uniform(0.6, 1.15),
    )


def clip_layout(rng: np.random.Generator, spread: float) -> Layout:
    """The layout of a clip (only the layout: the seed differs), changed by ``spread`` (0..1)."""
    base = CLIPS[int(rng.integers(len(CLIPS)))].layout

    def vary(value: float, share: float) -> float:
        return value * (1 + share * spread * rng.uniform(-1, 1))

    street = dataclasses.replace(
        base.street,
        yaw=base.street.yaw + spread * rng.uniform(-0.25, 0.25),
        pivot=vary(base.street.pivot, 0.12),
    )
    return dataclasses.replace(
        base,
        street=street,
        detail=20,
        pitch=vary(base.pitch, 0.12),
        camera_height=vary(base.camera_height, 0.2),
        field_of_view=vary(base.field_of_view, 0.12),
        gain=vary(1.0, 0.2),
        noise=vary(base.noise, 0.5),
    )


def spoil(picture: Picture, rng: np.random.Generator) -> Picture:
    """Blur, contrast as of other cameras; the coder's loss comes with the JPEG."""
    result = picture
    if rng.random() < 0.3:
        result = cv2.GaussianBlur(result, (0, 0), rng.uniform(0.4, 1.3)).astype(np.uint8)
    if rng.random() < 0.5:
        curve = 255 * (np.arange(256) / 255) ** rng.uniform(0.75, 1.35)
        result = cv2.LUT(result, np.clip(curve, 0, 255).astype(np.uint8)).astype(np.uint8)
    return result


def label_lines(truth: list[Truth], width: int, height: int, image_size: int) -> list[str]:
    """YOLO lines ``class cx cy w h`` (shares of the picture) of the objects worth learning."""
    scale = image_size / max(width, height)
    lines = []
    for item in truth:
        x, y, w, h = item.box
        if h * scale < MIN_HEIGHT or item.visibility < MIN_VISIBILITY:
            continue
        lines.append(
            f"{item.label} {(x + w / 2) / width:.6f} {(y + h / 2) / height:.6f} "
            f"{w / width:.6f} {h / height:.6f}"
        )
    return lines


def render_job(job: Job) -> int:
    """Write the pictures and labels of one scene; returns the number of pictures."""
    cv2.setNumThreads(1)
    rng = np.random.default_rng([job.seed, 9])
    held_out = job.split != "train"
    if rng.random() < (0.5 if held_out else 0.3):
        layout = clip_layout(rng, 0.0 if held_out else 1.0)
    else:
        layout = random_layout(rng)
    scene = Scene(layout, job.seed, STEPS, STEP_SECONDS)
    for number in sorted(rng.choice(STEPS, PER_SCENE, replace=False).tolist()):
        picture, truth = scene.picture(int(number))
        name = f"{job.seed}_{number:03d}"
        quality = int(rng.integers(60, 96))
        cv2.imwrite(
            str(job.folder / "images" / job.split / f"{name}.jpg"),
            spoil(picture, rng),
            [cv2.IMWRITE_JPEG_QUALITY, quality],
        )
        lines = label_lines(truth, layout.width, layout.height, job.image_size)
        text = "".join(line + "\n" for line in lines)
        (job.folder / "labels" / job.split / f"{name}.txt").write_text(text, encoding="ascii")
    return PER_SCENE


def render_sets(folder: Path, train: int, held_out: int, image_size: int, workers: int) -> Path:
    """Render the three sets below ``folder``; returns the path of Ultralytics' data file."""
    jobs = []
    sets = (("train", train, 100_000), ("val", held_out, 900_000), ("test", held_out, 950_000))
    for split, count, first in sets:
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        jobs += [
            Job(split, first + k, folder, image_size) for k in range(math.ceil(count / PER_SCENE))
        ]
    jobs.sort(key=lambda job: job.split == "train")
    with get_context("spawn").Pool(workers) as pool:
        done = 0
        for count in pool.imap_unordered(render_job, jobs, chunksize=4):
            done += count
            if done % 250 == 0:
                print(f"rendered {done} pictures", flush=True)
    names = "".join(f"  {k}: {name}\n" for k, name in enumerate(NAMES))
    data = folder / "data.yaml"
    data.write_text(
        f"path: {folder.as_posix()}\ntrain: images/train\nval: images/val\n"
        f"test: images/test\nnames:\n{names}",
        encoding="utf-8",
    )
    return data
