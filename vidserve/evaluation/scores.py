"""Scores of answers against truth: HOTA, CLEAR and identity, computed by TrackEval.

HOTA: Luiten et al. 2021; MOTA and switches: Bernardin and Stiefelhagen 2008; IDF1: Ristani et
al. 2016. TrackEval does the sums; what it is handed (who overlaps whom, what is scored) is made
here in memory, as its own reader of MOTChallenge files makes it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from vidserve.errors import EvaluationError
from vidserve.evaluation.mot import Rows
from vidserve.evaluation.sequence import Truth
from vidserve.frames import Tracks
from vidserve.tracking.association import overlaps

# An answer belongs to a box of truth from this overlap on, wherever one level is asked for.
MATCH = 0.5
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Scores:
    """In per cent, all but the counts. HOTA, DetA and AssA are means over 19 levels of overlap.

    Attributes:
        hota: Geometric mean of detection and association, by level.
        deta: Detection alone.
        assa: Association alone.
        mota: 1 - (misses + false boxes + switches) / boxes of truth; below 0 is possible.
        idf1: Boxes explained by the best pairing of whole trajectories.
        switches: How often an object of truth changed its id.
        misses: Boxes of truth without an answer, at ``MATCH``.
        false_boxes: Answers without a box of truth.
    """

    hota: float
    deta: float
    assa: float
    mota: float
    idf1: float
    switches: int
    misses: int
    false_boxes: int


def check_scorer() -> None:
    """Find out before a long run whether TrackEval is there.

    Raises:
        EvaluationError: it is not; with what to install.
    """
    if importlib.util.find_spec("trackeval") is None:
        raise EvaluationError(
            "scores need TrackEval, which is in the extra 'dev': pip install 'vidserve[dev]' "
            "(or pip install trackeval)"
        )


def score(truth: Truth, answers: Sequence[Tracks], excuse: bool = False) -> Scores:
    """Score the answers to frames 1, 2, ...

    Args:
        truth: What should have been answered.
        answers: One a frame, each id once.
        excuse: As the MOT17 benchmark does, leave out answers that fit a distractor. Otherwise
            rows of truth that are not scored are simply not there.

    Raises:
        EvaluationError: TrackEval is not installed.
    """
    check_scorer()
    from trackeval.metrics import CLEAR, HOTA, Identity

    data = _prepared(truth, answers, excuse)
    quiet = {"PRINT_CONFIG": False}
    hota = HOTA().eval_sequence(data)
    clear = CLEAR(quiet).eval_sequence(data)
    identity = Identity(quiet).eval_sequence(data)
    return Scores(
        hota=_per_cent(hota["HOTA"]),
        deta=_per_cent(hota["DetA"]),
        assa=_per_cent(hota["AssA"]),
        mota=_mota(clear, data["num_gt_dets"]),
        idf1=_per_cent(identity["IDF1"]),
        switches=int(clear["IDSW"]),
        misses=int(clear["CLR_FN"]),
        false_boxes=int(clear["CLR_FP"]),
    )


def _prepared(truth: Truth, answers: Sequence[Tracks], excuse: bool) -> dict[str, Any]:
    """What TrackEval's metrics take: ids from 0 without holes, and overlaps, by frame."""
    ids: list[npt.NDArray[np.int64]] = []
    names: list[npt.NDArray[np.int64]] = []
    similarities: list[npt.NDArray[np.float64]] = []
    low = np.searchsorted(truth.rows.frames, np.arange(1, len(answers) + 2))
    for index, tracks in enumerate(answers):
        here = np.arange(low[index], low[index + 1])
        similarity = _similarity(truth, truth.rows.pick(here), tracks)
        scored = ~_excused(similarity, truth.excused[here] & excuse)
        wanted = truth.wanted[here]
        ids.append(truth.rows.ids[here][wanted])
        names.append(tracks.ids[scored].astype(np.int64))
        similarities.append(similarity[wanted][:, scored])
    ids, of_truth = _numbered(ids)
    names, of_tracker = _numbered(names)
    return {
        "gt_ids": ids,
        "tracker_ids": names,
        "similarity_scores": similarities,
        "num_gt_ids": of_truth,
        "num_tracker_ids": of_tracker,
        "num_gt_dets": sum(map(len, ids)),
        "num_tracker_dets": sum(map(len, names)),
        "num_timesteps": len(answers),
    }


def _similarity(truth: Truth, rows: Rows, tracks: Tracks) -> npt.NDArray[np.float64]:
    """Overlap of each row of truth with each track; none across classes that are scored apart."""
    overlap = overlaps(rows.boxes, tracks.boxes.astype(np.float64))
    if truth.by_class:
        overlap[rows.classes[:, None] != tracks.classes[None, :] + 1] = 0.0
    return overlap


def _excused(
    similarity: npt.NDArray[np.float64], excuses: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which answers fit a distractor best: one to one, among all rows of truth."""
    found = np.zeros(similarity.shape[1], np.bool_)
    if excuses.any():
        matching = np.where(similarity < MATCH - _EPSILON, 0.0, similarity)
        rows, columns = linear_sum_assignment(matching, maximize=True)
        found[columns] = excuses[rows] & (matching[rows, columns] > _EPSILON)
    return found


def _numbered(
    by_frame: list[npt.NDArray[np.int64]],
) -> tuple[list[npt.NDArray[np.int64]], int]:
    """The same ids as 0, 1, 2, ... and how many there are."""
    if not by_frame:
        return [], 0
    known = np.unique(np.concatenate(by_frame))
    return [np.searchsorted(known, ids) for ids in by_frame], len(known)


def _mota(clear: dict[str, Any], boxes: int) -> float:
    """MOTA also where TrackEval leaves early: without an answer it is 0, without truth nothing."""
    wrong = clear["CLR_FN"] + clear["CLR_FP"] + clear["IDSW"]
    return 100.0 * (1.0 - float(wrong) / boxes) if boxes else 0.0


def _per_cent(value: Any) -> float:
    return 100.0 * float(np.mean(value))
