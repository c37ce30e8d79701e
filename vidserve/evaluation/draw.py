"""A sheet of frames to look at: truth and answer side by side, between keyframes."""

from __future__ import annotations

import colorsys
from pathlib import Path

import cv2
import numpy as np

from vidserve.errors import EvaluationError
from vidserve.evaluation.mot import Real, Whole
from vidserve.evaluation.sequence import Sequence
from vidserve.frames import ByteArray, Tracks

PANEL_PX = 480  # width of one picture on the sheet
HEAD_PX = 24  # height of the line above it
AFTER = (1, 4)  # frames after a keyframe that are shown


def choose(keyframes: list[int], frames: int, rows: int) -> list[int]:
    """Keyframes to show, at most ``rows``, spread over those whose later frames exist."""
    fit = [frame for frame in keyframes if frame + max(AFTER) <= frames]
    if not fit:
        return []
    # In the middle of equal parts: the first frames of a sequence say little.
    at = (np.arange(rows) + 0.5) / rows * len(fit)
    return sorted({fit[int(index)] for index in at})


def draw_sheet(
    path: Path, sequence: Sequence, answers: list[Tracks], keyframes: list[int], rows: int = 4
) -> None:
    """Write a PNG: a row per keyframe k; truth and answer at k + 1, then at k + 4.

    An id keeps its colour over the sheet. Ids of truth and of answers have nothing in common.

    Raises:
        EvaluationError: the sequence has no pictures or no truth, is too short, or the file
            cannot be written.
    """
    chosen = choose(keyframes, sequence.frames, rows)
    if not chosen:
        raise EvaluationError(f"{sequence.name} is too short to draw frames after a keyframe")
    if sequence.truth is None:
        raise EvaluationError(f"{sequence.name} has no truth to draw beside the answers")
    truth = sequence.truth.rows.pick(sequence.truth.wanted)
    wanted = {frame + after: after for frame in chosen for after in AFTER}
    panels: dict[int, ByteArray] = {}
    for picture in sequence.pictures():
        frame = picture.number
        if frame in wanted:
            bgr, told, tracks = picture.to_bgr(), truth.of_frame(frame), answers[frame - 1]
            title = f"frame {frame}, keyframe + {wanted[frame]}"
            left = _panel(bgr, f"{title}: truth, {len(told)}", told.boxes, told.ids)
            right = _panel(
                bgr,
                f"{title}: answer, {len(tracks)}",
                tracks.boxes.astype(np.float64),
                tracks.ids.astype(np.int64),
            )
            panels[frame] = np.concatenate((left, right), axis=1)
    sheet = np.concatenate(
        [np.concatenate([panels[frame + after] for after in AFTER], axis=1) for frame in chosen]
    )
    done, encoded = cv2.imencode(".png", sheet)
    if not done:
        raise EvaluationError(f"cannot make a PNG of {sheet.shape[1]}x{sheet.shape[0]}")
    try:
        path.write_bytes(encoded.tobytes())
    except OSError as error:
        raise EvaluationError(f"cannot write {path}: {error.strerror}") from error


def _panel(bgr: ByteArray, title: str, boxes: Real, ids: Whole) -> ByteArray:
    """One picture with boxes and ids, scaled to the width of a panel, its title above."""
    scale = PANEL_PX / bgr.shape[1]
    height = max(1, round(bgr.shape[0] * scale))
    panel = np.full((HEAD_PX + height, PANEL_PX, 3), 255, np.uint8)
    picture = cv2.resize(bgr, (PANEL_PX, height), interpolation=cv2.INTER_AREA)
    limit = 4 * PANEL_PX  # OpenCV draws no line from far away
    for (x1, y1, x2, y2), name in zip(
        np.clip(boxes * scale, -limit, limit).round().astype(int).tolist(),
        ids.tolist(),
        strict=True,
    ):
        colour = _colour(name)
        cv2.rectangle(picture, (x1, y1), (x2, y2), colour, 2)
        place = (max(x1, 0), max(y1 - 3, 9))
        cv2.putText(picture, str(name), place, cv2.FONT_HERSHEY_SIMPLEX, 0.4, (0, 0, 0), 3)
        cv2.putText(picture, str(name), place, cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1)
    panel[HEAD_PX:] = picture
    cv2.putText(panel, title, (6, 17), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 0, 0), 1)
    return panel


def _colour(name: int) -> tuple[int, int, int]:
    """A bright BGR colour; neighbouring numbers are far apart on the circle of hues."""
    red, green, blue = colorsys.hsv_to_rgb(name * 0.618034 % 1.0, 0.75, 1.0)
    return round(255 * blue), round(255 * green), round(255 * red)
