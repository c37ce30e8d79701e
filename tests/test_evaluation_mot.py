"""MOT text with all its traps, and sequences read from folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidserve.errors import EvaluationError
from vidserve.evaluation.mot import (
    NO_CLASS,
    parse_rows,
    read_rows,
    write_answers,
    write_detections,
)
from vidserve.evaluation.sequence import read_mot
from vidserve.frames import Detections, Tracks

MOT = Path(__file__).resolve().parents[2] / "shared" / "mot"
INFO = "[Sequence]\nname=made\nimDir=img1\nframeRate=10\nseqLength=5\nimWidth=100\nimHeight=50\n"


def folder(path: Path, truth: str = "", found: str = "", info: str = INFO) -> Path:
    """A MOTChallenge folder."""
    for name, text in (("gt", truth), ("det", found)):
        (path / name).mkdir()
        (path / name / f"{name}.txt").write_text(text)
    (path / "seqinfo.ini").write_text(info)
    return path


def test_seven_nine_and_ten_columns() -> None:
    rows = parse_rows(
        "1,4,10,20,30,40,0.5\n1,5,10,20,30,40,1,7,0.25\n2,6,10,20,30,40,1,-4.15,-7.3,0\n"
    )
    assert rows.ids.tolist() == [4, 5, 6]
    # The eighth of ten columns is a place in the world, not a class.
    assert rows.classes.tolist() == [NO_CLASS, 7, NO_CLASS]
    assert rows.confidences.tolist() == [0.5, 1.0, 1.0]
    assert rows.boxes[0].tolist() == [10.0, 20.0, 40.0, 60.0]


def test_integers_and_floats_mixed_blanks_order_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(
        b"\xef\xbb\xbf3.0, -1 ,1,2,3,4,1e-1\r\n\r\n  1 2.0 1.5 2 3 4 1\r\n1,9,1,2,3,4,1,\r\n"
    )
    rows = read_rows(path)
    assert rows.frames.tolist() == [1, 1, 3]
    assert rows.ids.tolist() == [2, 9, -1]
    assert rows.refused == 0


@pytest.mark.parametrize(
    "line",
    [
        "1,1,nan,2,3,4,1",
        "1,1,1,2,inf,4,1",
        "1,1,1,2,0,4,1",
        "1,1,1,2,3,-4,1",
        "1,1,1,2,3,4,nan",
        "1,nan,1,2,3,4,1",
        "0,1,1,2,3,4,1",
        "-3,1,1,2,3,4,1",
        "1e300,1,1,2,3,4,1",
        "1,1,1e17,2,1,4,1",
        "1,1,1,2,3,4,1,nan,1",
    ],
)
def test_a_row_that_is_no_box_is_refused_and_counted(line: str) -> None:
    rows = parse_rows(f"{line}\n1,2,1,2,3,4,1\n")
    assert rows.ids.tolist() == [2]
    assert rows.refused == 1


@pytest.mark.parametrize("line", ["1,1,a,2,3,4,1", "1,2,3,4,5,6", "1;2;3;4;5;6;7"])
def test_a_line_that_is_no_row_is_an_error_with_its_place(line: str) -> None:
    with pytest.raises(EvaluationError, match="here, line 2"):
        parse_rows(f"1,2,1,2,3,4,1\n{line}\n", "here")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"nowhere\.txt"):
        read_rows(tmp_path / "nowhere.txt")


def test_a_frame_without_a_row_is_empty() -> None:
    rows = parse_rows("1,1,1,2,3,4,1\n3,1,1,2,3,4,1\n")
    assert len(rows.of_frame(2)) == 0
    assert len(rows.detections(2)) == 0
    assert len(parse_rows("")) == 0


def test_detections_keep_off_image_boxes_and_classes_count_from_one() -> None:
    rows = parse_rows("1,-1,-20,-30,50,60,0.9,3,1\n1,-1,5000,1,2,3,0.2,-1,-1\n")
    found = rows.detections(1)
    assert found.boxes.tolist() == [[-20, -30, 30, 30], [5000, 1, 5002, 4]]
    assert found.classes.tolist() == [2, 0]
    assert found.boxes.dtype == np.float32


numbers = st.one_of(
    st.floats(width=32),
    st.integers(-1000, 5000),
    st.sampled_from([0.0, -1.0, float("nan"), float("inf")]),
)


@given(st.lists(st.lists(numbers, min_size=7, max_size=10), max_size=20))
def test_any_numbers_are_read_or_refused(table: list[list[float]]) -> None:
    rows = parse_rows("\n".join(",".join(map(repr, row)) for row in table))
    assert len(rows) + rows.refused == len(table)
    assert np.isfinite(rows.boxes).all()
    assert (rows.boxes[:, 2:] > rows.boxes[:, :2]).all()
    assert (np.diff(rows.frames) >= 0).all()
    assert (rows.frames >= 1).all()


coordinate = st.floats(-100, 2000).map(lambda value: round(value, 3))
side = st.floats(0.01, 500).map(lambda value: round(value, 3))
row = st.tuples(st.integers(1, 9), coordinate, coordinate, side, side, st.integers(0, 5))


@given(st.lists(row, max_size=12))
def test_detections_survive_the_file(
    made: list[tuple[int, float, float, float, float, int]],
) -> None:
    import tempfile

    frames = sorted({one[0] for one in made})
    by_frame = [
        (
            frame,
            Detections(
                np.array(
                    [[x, y, x + w, y + h] for f, x, y, w, h, _ in made if f == frame], np.float32
                ),
                np.array([0.25 for one in made if one[0] == frame], np.float32),
                np.array([one[5] for one in made if one[0] == frame], np.int32),
            ),
        )
        for frame in frames
    ]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "det.txt"
        write_detections(path, by_frame)
        rows = read_rows(path)
    assert len(rows) + rows.refused == len(made)
    if not rows.refused:  # a hair-thin box may be rounded to nothing
        for frame, found in by_frame:
            again = rows.detections(frame)
            assert np.allclose(again.boxes, found.boxes, atol=2e-3)
            assert again.classes.tolist() == found.classes.tolist()


def test_answers_have_a_row_a_box_and_none_for_an_empty_frame(tmp_path: Path) -> None:
    one = Tracks(
        np.array([3], np.int32),
        np.array([[1, 2, 4, 6]], np.float32),
        np.array([0.5], np.float32),
        np.array([0], np.int32),
        np.zeros((1, 2), np.float32),
        np.zeros(1, np.float32),
    )
    write_answers(tmp_path / "out.txt", [one, Tracks.none(), one])
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert lines[0] == "1,3,1.000,2.000,3.000,4.000,0.5000,-1,-1,-1"
    assert [line.split(",")[0] for line in lines] == ["1", "3"]


def test_only_walking_people_that_are_not_to_be_ignored_are_wanted(tmp_path: Path) -> None:
    made = folder(
        tmp_path,
        "1,1,1,1,9,9,1,1,1\n"  # wanted
        "1,2,1,1,9,9,0,1,1\n"  # to be ignored
        "1,3,1,1,9,9,1,3,1\n"  # a car
        "1,4,1,1,9,9,0,8,1\n",  # a distractor
    )
    sequence = read_mot(made)
    assert sequence.truth is not None
    assert sequence.truth.wanted.tolist() == [True, False, False, False]
    assert sequence.truth.excused.tolist() == [False, False, False, True]
    assert (sequence.frames, sequence.fps, sequence.size) == (5, 10.0, (100, 50))
    assert sequence.source is None
    with pytest.raises(EvaluationError, match="no pictures"):
        next(sequence.pictures())


def test_a_sequence_without_truth_or_detections(tmp_path: Path) -> None:
    (tmp_path / "seqinfo.ini").write_text(INFO)
    sequence = read_mot(tmp_path)
    assert sequence.truth is None
    assert sequence.detections is None


@pytest.mark.parametrize(
    ("info", "truth", "says"),
    [
        (INFO.replace("seqLength=5\n", ""), "", "seqLength"),
        (INFO.replace("=5", "=five"), "", "five"),
        (INFO.replace("=10\n", "=0\n"), "", "0 fps"),
        (INFO.replace("[Sequence]\n", ""), "", r"seqinfo\.ini"),
        (INFO, "9,1,1,1,9,9,1\n", "frame 9 of 5"),
        (INFO, "2,1,1,1,9,9,1\n2,1,1,1,9,9,1\n", "id 1 is there 2 times in frame 2"),
        (INFO + "video=no.mp4\n", "", r"no\.mp4"),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, info: str, truth: str, says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        read_mot(folder(tmp_path, truth, info=info))


@pytest.mark.skipif(not MOT.is_dir(), reason="needs ../shared/mot (tracking truth)")
def test_the_real_files_as_their_page_describes_them() -> None:
    counts = {
        "PETS09-S2L1": (4476, 19, 4359),
        "TUD-Stadtmitte": (1156, 10, 951),
        "KITTI-17": (683, 9, 592),
        "ADL-Rundle-6": (5009, 24, 4325),
        "MOT17-02-SDP": (18581, 62, 11639),
        "MOT17-05-SDP": (6917, 133, 4767),
    }
    for name, (boxes, ids, found) in counts.items():
        sequence = read_mot(MOT / name)
        assert sequence.truth is not None and sequence.detections is not None
        wanted = sequence.truth.rows.pick(sequence.truth.wanted)
        assert (len(wanted), len(np.unique(wanted.ids))) == (boxes, ids), name
        rows = read_rows(sequence.detections)
        assert len(rows) == found, name
        assert rows.refused == 0
