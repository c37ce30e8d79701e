"""A recorded sequence with its truth: a MOTChallenge folder, or a clip with a file beside it."""

from __future__ import annotations

import configparser
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vidserve.errors import EvaluationError
from vidserve.evaluation.mot import NO_CLASS, Rows, read_rows
from vidserve.evaluation.pictures import Picture, find_pictures, pictures, video_info

# MOT16 and later: only class 1, a walking person, is scored. Answers that sit on these instead
# (person on a vehicle, standing person, distractor, reflection) are neither right nor wrong.
_PEDESTRIAN = 1
_DISTRACTORS = (2, 7, 8, 12)


@dataclass(frozen=True, slots=True)
class Truth:
    """What should be answered.

    Attributes:
        rows: All rows of truth, those that are not scored too.
        wanted: bool (n,): which rows are scored.
        excused: bool (n,): an answer that fits such a row best is not scored.
        by_class: Whether an answer of another class is wrong. Where False, classes mean nothing.
    """

    rows: Rows
    wanted: npt.NDArray[np.bool_]
    excused: npt.NDArray[np.bool_]
    by_class: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence; nothing is decoded before it is asked for.

    Attributes:
        name: For people.
        frames: How many; they count from 1.
        fps: Frames per second; frame f was captured at (f - 1) / fps.
        size: Width and height, pixels.
        truth: None where there is none (a test sequence).
        detections: The file of detections that came with it, if any.
        source: Video or folder of images, if any.
        people_only: Whether other classes than ``person`` of a model are left out.
    """

    name: str
    frames: int
    fps: float
    size: tuple[int, int]
    truth: Truth | None
    detections: Path | None
    source: Path | None
    people_only: bool

    def pictures(self) -> Iterator[Picture]:
        """The picture of each frame, in order.

        Raises:
            EvaluationError: there are none, fewer than frames, or they cannot be read.
        """
        if self.source is None:
            raise EvaluationError(f"{self.name} has no pictures: no img1/ folder and no video")
        number = 0
        for picture in pictures(self.source):
            number = picture.number
            yield picture
            if number == self.frames:
                return
        raise EvaluationError(f"{self.source} has {number} pictures, not {self.frames}")


def read_mot(folder: Path) -> Sequence:
    """A MOTChallenge folder: ``seqinfo.ini``, ``gt/gt.txt``, ``det/det.txt``, pictures.

    All but the first are optional. Pictures are the folder that ``imDir`` names, or a video in
    the folder or its ``video/``, or the one that a key ``video`` names.

    Raises:
        EvaluationError: a part cannot be read or makes no sense.
    """
    path = folder / "seqinfo.ini"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8-sig"), str(path))
        about = parser["Sequence"]
        frames, fps = int(about["seqLength"]), float(about["frameRate"])
        size = (int(about["imWidth"]), int(about["imHeight"]))
    except OSError as error:
        raise EvaluationError(f"cannot read {path}: {error.strerror}") from error
    except KeyError as error:
        raise EvaluationError(f"{path}: there is no {error}") from error
    except (ValueError, configparser.Error) as error:
        raise EvaluationError(f"{path}: {error}") from error
    _check(path, frames, fps, size)
    truth_file, detections = folder / "gt" / "gt.txt", folder / "det" / "det.txt"
    truth = _people(read_rows(truth_file), frames, truth_file) if truth_file.is_file() else None
    return Sequence(
        name=about.get("name", folder.resolve().name),
        frames=frames,
        fps=fps,
        size=size,
        truth=truth,
        detections=detections if detections.is_file() else None,
        source=find_pictures(folder, about.get("imDir", "img1"), about.get("video")),
        people_only=True,
    )


def read_clip(clip: Path, truth_file: Path | None = None) -> Sequence:
    """A video with its truth, all classes of it; as ``samples/render.py`` writes them.

    Args:
        clip: The video.
        truth_file: By default ``<clip>.gt.txt`` beside it, if it is there.

    Raises:
        EvaluationError: one of them cannot be read.
    """
    beside = clip.with_suffix(".gt.txt")
    if truth_file is None and beside.is_file():
        truth_file = beside
    info = video_info(clip)
    frames = info.frames or sum(1 for _ in pictures(clip))
    _check(clip, frames, info.fps, info.size)
    truth = None
    if truth_file is not None:
        rows = read_rows(truth_file)
        scored = rows.confidences != 0.0
        by_class = bool(len(rows)) and bool((rows.classes != NO_CLASS).all())
        truth = Truth(rows, scored, np.zeros_like(scored), by_class)
        _check_truth(truth, frames, truth_file)
    return Sequence(
        name=clip.stem,
        frames=frames,
        fps=info.fps,
        size=info.size,
        truth=truth,
        detections=None,
        source=clip,
        people_only=False,
    )


def _people(rows: Rows, frames: int, path: Path) -> Truth:
    """Truth about people: rows of confidence 0 are not scored, nor are other classes."""
    classless = rows.classes == NO_CLASS
    wanted = (rows.confidences != 0.0) & (classless | (rows.classes == _PEDESTRIAN))
    truth = Truth(rows, wanted, np.isin(rows.classes, _DISTRACTORS), by_class=False)
    _check_truth(truth, frames, path)
    return truth


def _check(path: Path, frames: int, fps: float, size: tuple[int, int]) -> None:
    if frames < 1 or min(size) < 1 or not (math.isfinite(fps) and fps > 0):
        raise EvaluationError(
            f"{path}: {frames} frames of {size[0]}x{size[1]} at {fps:g} fps make no sense"
        )


def _check_truth(truth: Truth, frames: int, path: Path) -> None:
    rows = truth.rows.pick(truth.wanted)
    if len(rows) and rows.frames[-1] > frames:
        raise EvaluationError(f"{path}: truth for frame {rows.frames[-1]} of {frames}")
    pairs, counts = np.unique(np.stack((rows.frames, rows.ids)), axis=1, return_counts=True)
    if (counts > 1).any():
        frame, name = pairs[:, counts.argmax()]
        raise EvaluationError(f"{path}: id {name} is there {counts.max()} times in frame {frame}")
