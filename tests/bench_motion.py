"""``python -m tests.bench_motion``: what optical flow costs, and how well it carries boxes.

Prints medians of the thread's CPU time (so other work on the machine does not count) by level
of thinning, boxes and picture size; then the mean overlap with the truth of boxes that are
carried over the pictures between keyframes, on a rendered scene, on the samples and (if
``../shared`` is there) on PETS09-S2L1. It judges nothing.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

from tests.lab.moving import Board, MovingScene, line, overlap
from tests.running import ROOT
from vidserve.capture.grey import shrink
from vidserve.capture.motion import MotionEstimator
from vidserve.capture.pyav import PyAvReader
from vidserve.capture.settings import CameraSettings
from vidserve.clock import RealClock
from vidserve.frames import ByteArray, FloatArray, MotionStep, Regions, Thinning
from vidserve.tracking.kalman import Motion

PETS = ROOT.parent / "shared" / "mot" / "PETS09-S2L1"
PETS_FPS = 7.0
KEYFRAME_EVERY = 5
NOISE = 0.04  # of a detector's box, in box sizes (``kalman.MEASUREMENT_SPREAD`` is 0.05)

console = Console(width=110)


def median_ms(times_s: list[float]) -> float:
    return 1e3 * float(np.median(times_s))


# ---- cost


def busy_scene(width: int, height: int, boards: int) -> MovingScene:
    """So many walkers of a usual size, spread over the picture."""
    columns = max(1, math.ceil(math.sqrt(boards * width / height)))
    rows = max(1, math.ceil(boards / columns))
    side = height / max(4.0, 1.3 * rows)
    return MovingScene(
        [
            Board(
                max(6, round(side * 0.45)),
                max(8, round(side)),
                line(
                    (number % columns + 0.5) * width / columns,
                    (number // columns + 0.5) * height / rows,
                    40.0 - 25.0 * (number % 4),
                    10.0,
                ),
            )
            for number in range(boards)
        ],
        width,
        height,
        camera=lambda time_s: (20.0 * time_s, 0.0),
        noise=2.0,
    )


def step_ms(scene: MovingScene, thinning: Thinning, pictures: list[ByteArray]) -> float:
    """Per picture, those left out included; regions published anew for each."""
    estimator = MotionEstimator()
    estimator.thinning = thinning
    times_s = []
    for number, grey in enumerate(pictures):
        regions = scene.regions(number, max(0, number - 1) / 30.0)
        began_s = time.thread_time()
        estimator.step(grey, number / 30.0, (scene.width, scene.height), regions)
        times_s.append(time.thread_time() - began_s)
    pairs = np.array(times_s[2:]).reshape(-1, 2).mean(axis=1)
    return median_ms(pairs.tolist())


def print_cost() -> None:
    table = Table(title="CPU ms a picture, median; regions new for each picture")
    for heading in ("picture", "boxes", *(level.name.lower() for level in Thinning)):
        table.add_column(heading, justify="right")
    for width, height, boards in (
        (640, 360, 0),
        (640, 360, 1),
        (640, 360, 10),
        (640, 360, 20),
        (640, 360, 60),
        (640, 480, 10),
        (480, 270, 10),
        (320, 180, 10),
    ):
        scene = busy_scene(width, height, boards)
        pictures = [scene.grey(number / 30.0) for number in range(62)]
        costs = [step_ms(scene, level, pictures) for level in Thinning]
        table.add_row(f"{width}x{height}", str(boards), *(f"{cost:.2f}" for cost in costs))
    console.print(table)


def print_shrinking() -> None:
    table = Table(title="shrinking a luma plane, ms")
    ways: dict[str, Callable[[ByteArray], object]] = {
        "halved": shrink,
        "area to 640": lambda luma: resized(luma, cv2.INTER_AREA),
        "bilinear to 640": lambda luma: resized(luma, cv2.INTER_LINEAR),
    }
    table.add_column("luma")
    for way in ways:
        table.add_column(way, justify="right")
    rng = np.random.default_rng(1)
    for width, height in ((3840, 2160), (1920, 1080), (1280, 720), (960, 540), (768, 576)):
        luma = rng.integers(0, 255, (height, width), np.uint8)
        row = []
        for shrunk in ways.values():
            times_s = []
            for _ in range(40):
                began_s = time.thread_time()
                shrunk(luma)
                times_s.append(time.thread_time() - began_s)
            row.append(f"{median_ms(times_s):.3f}")
        table.add_row(f"{width}x{height}", *row)
    console.print(table)


def resized(luma: ByteArray, how: int) -> ByteArray:
    size = (640, round(640 * luma.shape[0] / luma.shape[1]))
    return np.asarray(cv2.resize(luma, size, interpolation=how), np.uint8)


# ---- accuracy


@dataclass(frozen=True)
class Clip:
    """Small grey pictures, and the true boxes in each by id."""

    name: str
    fps: float
    shown: tuple[int, int]
    pictures: list[ByteArray]
    truth: list[dict[int, tuple[float, ...]]]


def read_clip(name: str, video: Path, truth_file: Path, fps: float) -> Clip:
    truth: dict[int, dict[int, tuple[float, ...]]] = defaultdict(dict)
    for row in truth_file.read_text().splitlines():
        number, ident, x, y, w, h, counts = map(float, row.split(",")[:7])
        if counts:
            truth[int(number) - 1][int(ident)] = (x, y, x + w, y + h)
    reader = PyAvReader(CameraSettings(name, str(video)), RealClock())
    reader.open()
    pictures = []
    shown = (0, 0)
    while (arrival := reader.read()) is not None:
        shown = (arrival.picture.width, arrival.picture.height)
        pictures.append(arrival.picture.grey(640))
    reader.close()
    return Clip(name, fps, shown, pictures, [truth[i] for i in range(len(pictures))])


def rendered_clip() -> Clip:
    scene = busy_scene(640, 360, 10)
    pictures = [scene.grey(number / 30.0) for number in range(60)]
    boxes = [scene.boxes(number / 30.0).tolist() for number in range(60)]
    truth = [{i: tuple(box) for i, box in enumerate(rows)} for rows in boxes]
    return Clip("rendered", 30.0, (640, 360), pictures, truth)


def clips() -> Iterator[Clip]:
    yield rendered_clip()
    for name, fps in (("plaza", 30.0), ("street", 25.0), ("gate", 30.0)):
        folder = ROOT / "samples"
        yield read_clip(name, folder / f"{name}.mp4", folder / f"{name}.gt.txt", fps)
    if PETS.exists():
        video = PETS / "video" / "PETS09-S2L1_h264.mp4"
        yield read_clip("PETS09-S2L1", video, PETS / "gt" / "gt.txt", PETS_FPS)


class Kalman:
    """The tracker's own filter, fed with the keyframes of one clip."""

    def __init__(self) -> None:
        self._motions: dict[int, Motion] = {}

    def apply(self, ids: list[int], boxes: FloatArray, dt_s: float) -> None:
        motions = {}
        for ident, box in zip(ids, to_centre(boxes), strict=True):
            motion = self._motions.get(ident)
            motions[ident] = (
                Motion.starting(box[None])
                if motion is None
                else motion.predicted(dt_s).corrected(np.array([0]), box[None])
            )
        self._motions = motions

    def at(self, ids: list[int], dt_s: float) -> FloatArray:
        boxes = [self._motions[ident].predicted(dt_s).position[0] for ident in ids]
        return to_corners(np.array(boxes).reshape(-1, 4))


def to_centre(boxes: FloatArray) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    low, high = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    return np.concatenate(((low + high) / 2, high - low), axis=1)


def to_corners(boxes: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> FloatArray:
    half = boxes[:, 2:] / 2
    return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1).astype(np.float32)


def moved(boxes: FloatArray, step: MotionStep) -> FloatArray:
    """By shift and scale of a step."""
    centre = to_centre(boxes)
    centre[:, :2] += step.shift
    centre[:, 2:] *= step.scale[:, None]
    return to_corners(centre)


def carry(clip: Clip, noise: float, thinning: Thinning) -> tuple[dict[str, float], float, float]:
    """Mean overlap by way of carrying; share of boxes with unbroken flow; mean ms a picture."""
    rng = np.random.default_rng(0)
    estimator, kalman = MotionEstimator(), Kalman()
    estimator.thinning = thinning
    scores: dict[str, list[float]] = defaultdict(list)
    unbroken: list[bool] = []
    times_s = []
    regions = None
    ids: list[int] = []
    start: FloatArray = np.empty((0, 4), np.float32)
    speed, fused, carried = start, start, start
    known: dict[int, FloatArray] = {}
    limit = np.array(clip.shown * 2, np.float32)
    for number, grey in enumerate(clip.pictures):
        time_s, since = number / clip.fps, number % KEYFRAME_EVERY
        began_s = time.thread_time()
        step = estimator.step(grey, time_s, clip.shown, regions)
        times_s.append(time.thread_time() - began_s)
        truth = clip.truth[number]
        if since == 0:
            ids = sorted(truth)
            boxes = np.array([truth[ident] for ident in ids], np.float32).reshape(-1, 4)
            sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
            start = (boxes + noise * sides * rng.normal(size=boxes.shape)).astype(np.float32)
            steps = [start[i] - known.get(ident, start[i]) for i, ident in enumerate(ids)]
            speed = np.array(steps, np.float32).reshape(-1, 4) / np.float32(KEYFRAME_EVERY)
            known = dict(zip(ids, start, strict=True))
            kalman.apply(ids, start, KEYFRAME_EVERY / clip.fps)
            fused = kalman.at(ids, 0.0)
            carried = start
            regions = Regions(number, time_s, *clip.shown, np.array(ids, np.int32), start)
            continue
        modelled = kalman.at(ids, since / clip.fps)
        if step is not None:
            carried = step.boxes
            steps_taken = round((step.to_s - step.from_s) * clip.fps)
            drift = modelled - kalman.at(ids, max(0, since - steps_taken) / clip.fps)
            fused = np.where(step.trusted[:, None], moved(fused, step), fused + drift)
        rows = [i for i, ident in enumerate(ids) if ident in truth]
        if not rows:
            continue
        here = np.array([truth[ids[i]] for i in rows], np.float32)
        if step is not None:
            unbroken += step.unbroken[rows].tolist()
        for way, boxes in (
            ("hold", start),
            ("constant velocity", start + since * speed),
            ("kalman", modelled),
            ("flow", carried),
            ("flow, else kalman", fused),
        ):
            shown = np.clip(boxes[rows], 0.0, limit)
            scores[way] += np.nan_to_num(overlap(shown, here)).tolist()
    means = {way: float(np.mean(values)) for way, values in scores.items()}
    return means, float(np.mean(unbroken)), 1e3 * float(np.mean(times_s))


def print_accuracy(everything: list[Clip]) -> None:
    for noise in (0.0, NOISE):
        for level in Thinning:
            table = Table(title=f"overlap with truth; noise {noise:g} of the size; {level.name}")
            ways: list[str] = []
            for clip in everything:
                scores, unbroken, cost_ms = carry(clip, noise, level)
                if not ways:
                    ways = list(scores)
                    for heading in ("clip", *ways, "unbroken", "ms"):
                        table.add_column(heading, justify="right")
                row = [f"{scores[way]:.3f}" for way in ways]
                table.add_row(clip.name, *row, f"{unbroken:.2f}", f"{cost_ms:.2f}")
            console.print(table)


def main() -> None:
    cv2.setNumThreads(1)
    print_cost()
    print_shrinking()
    print_accuracy(list(clips()))


if __name__ == "__main__":
    main()
