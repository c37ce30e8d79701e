"""Boxes as MOTChallenge text: one row a box, read with all its traps, written for every frame.

A row is ``frame, id, left, top, width, height, confidence`` and, where there are more columns,
``class, visibility`` (8 or 9 columns: truth of MOT16 and later) or a place in the world
(10 columns: MOT15, and most files of detections), which is not used. Frames count from 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vidserve.errors import EvaluationError
from vidserve.frames import Detections, Tracks

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

NO_CLASS = -1
_LEAST_COLUMNS = 7
_CLASS_COLUMNS = (8, 9)
# What a tracker gives for lack of a class of its own: what all the benchmarks are about.
_PERSON = 0
# Far beyond any sequence, and far below what int32 holds.
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rows:
    """The usable rows of a file, ordered by frame; arrays of equal length n.

    Attributes:
        frames: int64 (n,), from 1.
        ids: int64 (n,), -1 in files of detections.
        boxes: float64 (n, 4), x1 y1 x2 y2, pixels; finite, with area, perhaps off the picture.
        confidences: float64 (n,); in truth 0 means "ignore this row".
        classes: int64 (n,), ``NO_CLASS`` where the file has none.
        refused: Rows left out: a number that is not finite, a box without area, no such frame.
    """

    frames: Whole
    ids: Whole
    boxes: Real
    confidences: Real
    classes: Whole
    refused: int = 0

    def __len__(self) -> int:
        return len(self.frames)

    def pick(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Rows:
        """The rows that a mask or an index array chooses."""
        return Rows(
            self.frames[chosen],
            self.ids[chosen],
            self.boxes[chosen],
            self.confidences[chosen],
            self.classes[chosen],
            self.refused,
        )

    def of_frame(self, frame: int) -> Rows:
        """The rows of one frame; none is a normal answer."""
        low, high = np.searchsorted(self.frames, (frame, frame + 1))
        return self.pick(np.arange(low, high))

    def detections(self, frame: int) -> Detections:
        """The rows of one frame as the tracker takes them.

        The class is the column's number less 1, as in the truth of the sample clips; a file
        without classes holds persons.
        """
        rows = self.of_frame(frame)
        classes = np.where(rows.classes > 0, rows.classes - 1, _PERSON)
        return Detections(
            rows.boxes.astype(np.float32),
            rows.confidences.astype(np.float32),
            classes.astype(np.int32),
        )


def read_rows(path: Path) -> Rows:
    """Read a file of truth, detections or answers.

    Rows that hold a NaN, an infinity or a box without area are left out and counted. Blank
    lines are skipped; numbers may be written as integers or floats, apart by commas or blanks.

    Raises:
        EvaluationError: the file cannot be read, or a line is no row of numbers; with its number.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"cannot read {path}: {error}") from error
    return parse_rows(text, str(path))


def parse_rows(text: str, name: str = "text") -> Rows:
    """The rows of a text; see ``read_rows``. ``name`` is for messages."""
    kept: list[list[float]] = []
    refused = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        row = _numbers(line, f"{name}, line {number}")
        if _usable(row):
            kept.append([*row[:7], row[7] if len(row) in _CLASS_COLUMNS else NO_CLASS])
        else:
            refused += 1
    table = np.array(kept, np.float64).reshape(-1, 8)
    table = table[np.argsort(table[:, 0], kind="stable")]
    low = table[:, 2:4]
    return Rows(
        table[:, 0].astype(np.int64),
        table[:, 1].astype(np.int64),
        np.concatenate((low, low + table[:, 4:6]), axis=1),
        table[:, 6].copy(),
        table[:, 7].astype(np.int64),
        refused,
    )


def write_answers(path: Path, answers: Sequence[Tracks]) -> None:
    """Write the tracks of frames 1, 2, ... as a file that any MOT scorer reads (10 columns).

    Raises:
        EvaluationError: the file cannot be written.
    """
    _write(
        path,
        (
            f"{frame},{name},{x1:.3f},{y1:.3f},{x2 - x1:.3f},{y2 - y1:.3f},{score:.4f},-1,-1,-1\n"
            for frame, tracks in enumerate(answers, start=1)
            for name, (x1, y1, x2, y2), score in zip(
                tracks.ids.tolist(), tracks.boxes.tolist(), tracks.scores.tolist(), strict=True
            )
        ),
    )


def write_detections(path: Path, found: Iterable[tuple[int, Detections]]) -> None:
    """Write detections by frame (9 columns, with the class), for ``read_rows``.

    Raises:
        EvaluationError: the file cannot be written.
    """
    _write(
        path,
        (
            f"{frame},-1,{x1:.3f},{y1:.3f},{x2 - x1:.3f},{y2 - y1:.3f},{score:.5f},{kind + 1},1\n"
            for frame, seen in found
            for (x1, y1, x2, y2), score, kind in zip(
                seen.boxes.tolist(), seen.scores.tolist(), seen.classes.tolist(), strict=True
            )
        ),
    )


def _numbers(line: str, place: str) -> list[float]:
    parts = line.rstrip(" ,").split(",") if "," in line else line.split()
    try:
        row = [float(part) for part in parts]
    except ValueError as error:
        raise EvaluationError(f"{place}: {error}") from error
    if len(row) < _LEAST_COLUMNS:
        raise EvaluationError(
            f"{place}: {len(row)} columns; a MOT row has at least {_LEAST_COLUMNS}"
        )
    return row


def _usable(row: list[float]) -> bool:
    frame, name, left, top, width, height, confidence = row[:7]
    if not all(map(math.isfinite, (frame, name, left, top, width, height, confidence))):
        return False
    if len(row) in _CLASS_COLUMNS and not (math.isfinite(row[7]) and abs(row[7]) < _MOST):
        return False
    # Compared as corners: a tiny width far out is rounded to nothing.
    area = left + width > left and top + height > top
    return area and 1 <= frame <= _MOST and abs(name) <= _MOST


def _write(path: Path, lines: Iterable[str]) -> None:
    try:
        with path.open("w", encoding="ascii", newline="\n") as file:
            file.writelines(lines)
    except OSError as error:
        raise EvaluationError(f"cannot write {path}: {error.strerror}") from error
