"""The online run and its scores: nothing is known before its time, and known cases score right."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.running import ROOT
from vidserve.errors import EvaluationError
from vidserve.evaluation.detections import FileDetections
from vidserve.evaluation.flow import Flow
from vidserve.evaluation.mot import parse_rows
from vidserve.evaluation.peers import ByteTrack, has_bytetrack
from vidserve.evaluation.pictures import Picture
from vidserve.evaluation.run import Run, check_answers, every, run
from vidserve.evaluation.scores import Scores, score
from vidserve.evaluation.sequence import Sequence, Truth, read_clip
from vidserve.frames import Detections, Tracks
from vidserve.tracking.tracker import Tracker, TrackerSettings

FPS = 10.0
FRAMES = 30


def sequence(truth: Truth | None = None, frames: int = FRAMES) -> Sequence:
    return Sequence("made", frames, FPS, (640, 480), truth, None, None, True)


def made_truth(text: str, by_class: bool = False) -> Truth:
    rows = parse_rows(text)
    wanted = rows.confidences != 0
    return Truth(rows, wanted, np.isin(rows.classes, (8,)), by_class)


def tracks(*rows: tuple[int, float, float, float, float], kind: int = 0) -> Tracks:
    """Rows of id, x1, y1, x2, y2."""
    n = len(rows)
    return Tracks(
        np.array([row[0] for row in rows], np.int32),
        np.array([row[1:] for row in rows], np.float32).reshape(-1, 4),
        np.ones(n, np.float32),
        np.full(n, kind, np.int32),
        np.zeros((n, 2), np.float32),
        np.zeros(n, np.float32),
    )


class Scripted:
    """A detector that says what it is told, and notes when it was asked.

    Args:
        say: Boxes x1, y1, x2, y2 of a frame.
    """

    needs_pictures = False

    def __init__(self, say: Callable[[int], list[list[float]]]) -> None:
        self._say = say
        self.asked: list[int] = []

    def detect(self, frame: int, picture: Picture | None) -> Detections:
        self.asked.append(frame)
        boxes = np.array(self._say(frame), np.float32).reshape(-1, 4)
        return Detections(
            boxes, np.full(len(boxes), 0.9, np.float32), np.zeros(len(boxes), np.int32)
        )


def walker(frame: int) -> list[list[float]]:
    return [[10.0 * frame, 100.0, 10.0 * frame + 40, 200.0]]


def tracker() -> Tracker:
    return Tracker(TrackerSettings())


def boxes_of(result: Run) -> list[list[list[float]]]:
    return [np.column_stack((one.ids, one.boxes)).round(4).tolist() for one in result.answers]


# ---- the run


def test_every_frame_is_answered_and_keyframes_alone_are_detected() -> None:
    detector = Scripted(walker)
    result = run(sequence(), tracker(), detector, every(5))
    assert len(result.answers) == FRAMES
    assert result.keyframes == detector.asked == [1, 6, 11, 16, 21, 26]
    assert all(len(answer) == 1 for answer in result.answers)
    assert result.ms_per_frame > 0


@pytest.mark.parametrize(("delay_s", "first_answered"), [(0.0, 1), (0.1, 2), (0.3, 4), (0.05, 2)])
def test_a_late_detection_is_known_late(delay_s: float, first_answered: int) -> None:
    """And carried forward: the walker is where he is, not where he was."""
    result = run(sequence(), tracker(), Scripted(walker), every(1), delay_s)
    answered = [frame for frame, one in enumerate(result.answers, 1) if len(one)]
    assert answered[0] == first_answered
    assert abs(result.answers[19].boxes[0, 0] - 200.0) < 5.0


crowd = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 500), st.integers(0, 300), st.integers(20, 80), st.integers(40, 120)
        ),
        max_size=4,
    ),
    min_size=FRAMES,
    max_size=FRAMES,
)


@settings(max_examples=40, deadline=None)
@given(crowd, crowd, st.integers(1, FRAMES), st.integers(1, 5), st.sampled_from([0.0, 0.1, 0.35]))
def test_what_comes_after_a_frame_changes_no_answer_up_to_it(
    first: list[list[tuple[int, ...]]],
    other: list[list[tuple[int, ...]]],
    change: int,
    interval: int,
    delay_s: float,
) -> None:
    def play(*pieces: list[tuple[int, ...]]) -> list[list[list[float]]]:
        def say(frame: int) -> list[list[float]]:
            return [[x, y, x + w, y + h] for x, y, w, h in pieces[frame - 1]]

        return boxes_of(run(sequence(), tracker(), Scripted(say), every(interval), delay_s))

    one = play(*first)
    assert play(*first) == one  # the same input, the same answers
    assert play(*first[:change], *other[change:])[:change] == one[:change]


def test_motion_sees_every_picture_in_order_before_the_answer() -> None:
    seen: list[tuple[float, int]] = []

    class Eye:
        def look(self, time_s: float, picture: Picture) -> None:
            seen.append((time_s, picture.number))

        def looks(self, picture: Picture, detections: Detections) -> None:
            looked.append(picture.number)

    looked: list[int] = []
    grey = np.zeros((480, 640), np.uint8)

    class WithPictures(Sequence):
        def pictures(self):  # type: ignore[no-untyped-def]
            for frame in range(1, FRAMES + 1):
                yield Picture(frame, (640, 480), grey, lambda: grey)

    plain = sequence()
    fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    run(WithPictures(**fields), tracker(), Scripted(walker), every(3), motion=Eye())
    assert seen == [((frame - 1) / FPS, frame) for frame in range(1, FRAMES + 1)]
    assert looked == list(range(1, FRAMES + 1, 3))


def test_an_id_twice_in_a_frame_is_told() -> None:
    check_answers([tracks((1, 0, 0, 9, 9), (2, 0, 0, 9, 9))])
    with pytest.raises(EvaluationError, match="frame 2"):
        check_answers([Tracks.none(), tracks((1, 0, 0, 9, 9), (1, 5, 5, 9, 9))])


def test_a_file_leaves_out_low_scores(tmp_path: Path) -> None:
    path = tmp_path / "det.txt"
    path.write_text("1,-1,1,2,3,4,0.05\n1,-1,5,2,3,4,0.1\n1,-1,5,2,0,4,0.9\n")
    source = FileDetections(path, 0.1)
    assert source.detect(1, None).boxes.tolist() == [[5, 2, 8, 6]]
    assert source.refused == 1


# ---- the scores

TWO = "".join(f"{f},1,0,0,10,10,1\n{f},2,50,0,10,10,1\n" for f in range(1, 11))
LEFT, RIGHT = (0.0, 0.0, 10.0, 10.0), (50.0, 0.0, 60.0, 10.0)


def scored(answers: list[Tracks], truth: Truth, excuse: bool = False) -> Scores:
    pytest.importorskip("trackeval", reason="needs TrackEval (extra dev)")
    return score(truth, answers, excuse)


def test_perfect() -> None:
    found = scored([tracks((7, *LEFT), (9, *RIGHT))] * 10, made_truth(TWO))
    assert (found.hota, found.deta, found.assa) == pytest.approx((100.0, 100.0, 100.0))
    assert (found.mota, found.idf1) == pytest.approx((100.0, 100.0))
    assert (found.switches, found.misses, found.false_boxes) == (0, 0, 0)


def test_ids_swapped_half_way() -> None:
    one, other = tracks((7, *LEFT), (9, *RIGHT)), tracks((9, *LEFT), (7, *RIGHT))
    found = scored([one] * 5 + [other] * 5, made_truth(TWO))
    assert found.switches == 2
    assert found.mota == pytest.approx(90.0)
    assert found.idf1 == pytest.approx(50.0)
    assert found.deta == pytest.approx(100.0)
    # Each half of a trajectory: 5 boxes right, 5 missing, 5 of another: 5 / 15.
    assert found.assa == pytest.approx(100 / 3)
    assert found.hota == pytest.approx(100 / 3**0.5)


def test_half_of_it_missing() -> None:
    found = scored([tracks((7, *LEFT))] * 10, made_truth(TWO))
    assert (found.misses, found.false_boxes) == (10, 0)
    assert found.mota == pytest.approx(50.0)
    assert found.deta == pytest.approx(50.0)
    assert found.assa == pytest.approx(100.0)
    assert found.idf1 == pytest.approx(200 / 3)


def test_no_answer_at_all_and_no_truth_at_all() -> None:
    nothing = scored([Tracks.none()] * 10, made_truth(TWO))
    assert (nothing.hota, nothing.mota, nothing.idf1, nothing.misses) == (0.0, 0.0, 0.0, 20)
    invented = scored([tracks((1, *LEFT))] * 10, made_truth(""))
    assert (invented.hota, invented.mota, invented.idf1, invented.false_boxes) == (
        0.0,
        0.0,
        0.0,
        10,
    )


def test_a_box_a_little_off_loses_the_high_levels_only() -> None:
    off = (0.0, 0.0, 10.0, 6.0)  # overlap 0.6
    found = scored([tracks((7, *off), (9, *RIGHT))] * 10, made_truth(TWO))
    assert found.mota == pytest.approx(100.0)
    assert 75.0 < found.deta < 90.0


def test_distractors_are_excused_on_demand_and_ignored_rows_are_not_there() -> None:
    truth = made_truth(
        "".join(f"{f},1,0,0,10,10,1,1,1\n{f},2,50,0,10,10,0,8,1\n" for f in range(1, 6))
    )
    answers = [tracks((7, *LEFT), (9, *RIGHT))] * 5
    assert scored(answers, truth).false_boxes == 5
    assert scored(answers, truth, excuse=True).false_boxes == 0
    # An answer that fits a wanted box better is not taken away.
    assert scored([tracks((7, *LEFT))] * 5, truth, excuse=True).misses == 0


def test_the_wrong_class_is_wrong_where_classes_count() -> None:
    text = "".join(f"{f},1,0,0,10,10,1,3,1\n" for f in range(1, 6))
    right, wrong = [tracks((1, *LEFT), kind=2)] * 5, [tracks((1, *LEFT), kind=0)] * 5
    assert scored(right, made_truth(text, by_class=True)).mota == pytest.approx(100.0)
    assert scored(wrong, made_truth(text, by_class=True)).mota == pytest.approx(-100.0)
    assert scored(wrong, made_truth(text)).mota == pytest.approx(100.0)


def test_without_trackeval_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EvaluationError, match=r"vidserve\[dev\]"):
        score(made_truth(TWO), [])
    with pytest.raises(EvaluationError, match=r"vidserve\[dev\]"):
        ByteTrack(10.0, 0.35)


@pytest.mark.skipif(not has_bytetrack(), reason="needs the package trackers (extra dev)")
def test_the_peer_follows_a_walker_and_holds_between_detections() -> None:
    result = run(sequence(), ByteTrack(FPS / 2, 0.35), Scripted(walker), every(2))
    late = result.answers[10:]
    assert {one.ids.tolist()[0] for one in late} == {late[0].ids.tolist()[0]}
    assert late[0].boxes.tolist() == late[1].boxes.tolist()
    assert late[2].boxes[0, 0] == late[0].boxes[0, 0] + 20.0
    nobody = run(sequence(), ByteTrack(FPS, 0.35), Scripted(lambda frame: []), every(1))
    assert all(len(one) == 0 for one in nobody.answers)


@pytest.mark.parametrize("clip", ["plaza", "street"])
def test_detections_later_than_the_next_keyframe_are_better_with_flow(clip: str) -> None:
    """Corrections of one snapshot were once taken for motion by the next, and added again."""
    sequence = read_clip(ROOT / "samples" / f"{clip}.mp4", None)
    assert sequence.truth is not None
    hota = []
    for with_flow in (False, True):
        tracker = Tracker(TrackerSettings())
        source = FileDetections(ROOT / "samples" / f"{clip}.gt.txt", 0.1)
        motion = Flow(tracker) if with_flow else None
        done = run(sequence, tracker, source, every(5), 0.3, motion)
        hota.append(score(sequence.truth, done.answers).hota)
    assert hota[1] >= hota[0], hota
