"""Real pedestrians (MOTChallenge), a guard against collapse; figures come from TrackEval.

The score is IDF1 (Ristani et al. 2016): truth and answers are paired one to one as whole
trajectories; it counts the boxes (IoU of at least 0.5) that the best pairing explains.
"""

from __future__ import annotations

import configparser
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from vidserve.frames import Detections
from vidserve.tracking.association import overlaps
from vidserve.tracking.tracker import Tracker, TrackerSettings

MOT = Path(__file__).resolve().parents[2] / "shared" / "mot"
Rows = dict[int, list[list[float]]]

pytestmark = pytest.mark.skipif(not MOT.is_dir(), reason="needs ../shared/mot (tracking truth)")


def read(path: Path) -> Rows:
    """Rows by frame: id, x1, y1, x2, y2, then the other columns."""
    rows: Rows = defaultdict(list)
    for line in path.read_text().splitlines():
        frame, name, x, y, w, h, *rest = (float(part) for part in line.split(","))
        rows[int(frame)].append([name, x, y, x + w, y + h, *rest])
    return rows


def idf1(truth: Rows, answers: Rows) -> float:
    """IDF1 in per cent."""
    together: dict[tuple[int, int], int] = defaultdict(int)
    for frame, wanted in truth.items():
        if not (given := answers.get(frame)):
            continue
        one, other = np.array([row[:5] for row in wanted]), np.array(given)
        for i, j in np.argwhere(overlaps(one[:, 1:], other[:, 1:]) >= 0.5):
            together[int(one[i, 0]), int(other[j, 0])] += 1
    names = sorted({pair[0] for pair in together}), sorted({pair[1] for pair in together})
    shared = np.zeros((len(names[0]), len(names[1])))
    for (i, j), count in together.items():
        shared[names[0].index(i), names[1].index(j)] = count
    explained = shared[linear_sum_assignment(shared, maximize=True)].sum()
    total = sum(map(len, truth.values())) + sum(map(len, answers.values()))
    return float(200.0 * explained / total)


def track(sequence: Path, interval: int, delay_s: float) -> Rows:
    """Online: the answer for a frame uses no detection that arrives after it."""
    parser = configparser.ConfigParser()
    parser.read(sequence / "seqinfo.ini")
    about = parser["Sequence"]
    size = (int(about["imWidth"]), int(about["imHeight"]))
    found = read(sequence / "det" / "det.txt")
    tracker = Tracker(TrackerSettings())
    waiting: list[tuple[float, Detections]] = []
    answers: Rows = {}
    for frame in range(1, int(about["seqLength"]) + 1):
        now_s = (frame - 1) / float(about["frameRate"])
        if (frame - 1) % interval == 0:
            rows = np.array([row[1:6] for row in found[frame]], np.float32).reshape(-1, 5)
            classes = np.zeros(len(rows), np.int32)
            waiting.append((now_s, Detections(rows[:, :4], rows[:, 4], classes)))
        while waiting and waiting[0][0] + delay_s <= now_s + 1e-9:
            tracker.apply(*waiting.pop(0), size, now_s)
        tracks = tracker.at(now_s)
        answers[frame] = [
            [name, *box] for name, box in zip(tracks.ids, tracks.boxes.tolist(), strict=True)
        ]
    return answers


def test_the_score_itself() -> None:
    truth: Rows = {f: [[1, 0, 0, 10, 10, 1], [2, 50, 0, 60, 10, 1]] for f in range(10)}
    perfect: Rows = {f: [[7, 0, 0, 10, 10], [8, 50, 0, 60, 10]] for f in range(10)}
    swapped = {
        f: (rows if f < 5 else [[8, *rows[0][1:]], [7, *rows[1][1:]]])
        for f, rows in perfect.items()
    }
    assert idf1(truth, perfect) == 100.0
    assert idf1(truth, swapped) == 50.0
    assert idf1(truth, {f: rows[:1] for f, rows in perfect.items()}) == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("name", "interval", "delay_s", "at_least"),
    [
        ("TUD-Stadtmitte", 1, 0.0, 62.0),
        ("TUD-Stadtmitte", 5, 0.0, 56.0),
        ("TUD-Stadtmitte", 5, 0.1, 51.0),
        ("MOT17-09-SDP", 5, 0.0, 48.0),
    ],
)
def test_no_collapse(name: str, interval: int, delay_s: float, at_least: float) -> None:
    truth = read(MOT / name / "gt" / "gt.txt")
    # Column 7 = 0: ignore; MOT17: class 1 is a walking person.
    people: Rows = {
        frame: [
            row for row in rows if row[5] != 0 and (not name.startswith("MOT17") or row[6] == 1)
        ]
        for frame, rows in truth.items()
    }
    people = {frame: rows for frame, rows in people.items() if rows}
    assert idf1(people, track(MOT / name, interval, delay_s)) >= at_least
