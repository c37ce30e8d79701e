"""``vidserve evaluate`` as people run it, on a small made sequence with pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from tests.running import ROOT
from vidserve.errors import EvaluationError
from vidserve.evaluation.draw import choose
from vidserve.evaluation.mot import read_rows
from vidserve.evaluation.pictures import pictures, video_info
from vidserve.evaluation.sequence import read_clip, read_mot

SAMPLES = ROOT / "samples"
SIZE = (160, 96)
FRAMES = 24
pytest.importorskip("trackeval", reason="needs TrackEval (extra dev)")


def boxes(frame: int) -> list[tuple[int, int, int, int]]:
    """Two that pass each other: left, top, width, height."""
    return [(4 + 4 * frame, 8, 16, 32), (130 - 4 * frame, 48, 16, 32)]


def bgr(frame: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    picture = np.full((SIZE[1], SIZE[0], 3), 60, np.uint8)
    for (x, y, w, h), colour in zip(boxes(frame), ((0, 0, 255), (255, 128, 0)), strict=True):
        cv2.rectangle(picture, (x, y), (x + w, y + h), colour, -1)
    return picture


def write_video(path: Path) -> None:
    with av.open(str(path), "w") as box:
        stream = box.add_stream("libx264", rate=Fraction(10))
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for frame in range(FRAMES):
            box.mux(stream.encode(av.VideoFrame.from_ndarray(bgr(frame), format="bgr24")))
        box.mux(stream.encode(None))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MOT folder whose detections are the truth."""
    path = tmp_path_factory.mktemp("made")
    for name in ("gt", "det", "video"):
        (path / name).mkdir()
    truth, found = "", "1,-1,1,1,nan,9,1\n"
    for frame in range(FRAMES):
        for ident, box in enumerate(boxes(frame), start=1):
            place = ",".join(map(str, box))
            truth += f"{frame + 1},{ident},{place},1,-1,-1,-1\n"
            found += f"{frame + 1},-1,{place},0.9\n"
    (path / "gt/gt.txt").write_text(truth)
    (path / "det/det.txt").write_text(found)
    (path / "seqinfo.ini").write_text(
        f"[Sequence]\nname=made\nframeRate=10\nseqLength={FRAMES}\n"
        f"imWidth={SIZE[0]}\nimHeight={SIZE[1]}\n"
    )
    write_video(path / "video" / "made.mp4")
    return path


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vidserve", "evaluate", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_frame_and_one_in_five_with_file_and_sheet(made: Path, tmp_path: Path) -> None:
    out, sheet = tmp_path / "out.txt", tmp_path / "sheet.png"
    done = evaluate("--mot", str(made), "--json", "--out", str(out), "--draw", str(sheet))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["detector_calls"] == found["frames"] == FRAMES
    assert found["refused_rows"] == 1
    assert found["switches"] == 0
    assert min(found[name] for name in ("HOTA", "DetA", "AssA", "MOTA", "IDF1")) > 90
    rows = read_rows(out)
    assert set(rows.frames.tolist()) == set(range(1, FRAMES + 1))
    assert rows.refused == 0
    picture = cv2.imread(str(sheet))
    assert picture is not None
    assert picture.shape == (4 * (24 + 288), 4 * 480, 3)

    again = tmp_path / "again.txt"
    evaluate("--mot", str(made), "--out", str(again))
    assert again.read_text() == out.read_text()

    done = evaluate("--mot", str(made), "--interval", "5", "--delay-ms", "100")
    assert done.returncode == 0, done.stderr
    for word in ("HOTA", "DetA", "AssA", "MOTA", "IDF1", "switches", "ms per frame"):
        assert word in done.stdout
    calls = next(line for line in done.stdout.splitlines() if "detector calls" in line)
    assert calls.split()[-1] == "5"


@pytest.mark.parametrize("how", ["--flow", "--adaptive"])
def test_with_flow_and_with_adaptive_keyframes(made: Path, how: str) -> None:
    done = evaluate("--mot", str(made), "--json", "--interval", "5", how)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["flow"]
    assert found["adaptive"] == (how == "--adaptive")
    assert found["detector_calls"] <= 5
    assert found["switches"] == 0
    assert found["HOTA"] > 70
    done = evaluate("--mot", str(made), "--tracker", "bytetrack", how)
    assert done.returncode == 2
    assert "--tracker vidserve" in done.stderr


def test_the_sheet_shows_the_boxes(made: Path, tmp_path: Path) -> None:
    from vidserve.evaluation.draw import HEAD_PX, PANEL_PX, draw_sheet
    from vidserve.frames import Tracks

    sequence = read_mot(made)
    draw_sheet(tmp_path / "sheet.png", sequence, [Tracks.none()] * FRAMES, [1], rows=1)
    picture = cv2.imread(str(tmp_path / "sheet.png"))
    assert picture is not None
    scale = PANEL_PX / SIZE[0]
    x, y, w, _ = (round(scale * value) for value in boxes(1)[0])  # frame 2 is keyframe + 1
    edge = (HEAD_PX + y + 12, x + w)
    truth, answer = picture[edge], picture[edge[0], edge[1] + PANEL_PX]
    assert np.abs(truth.astype(int) - answer).max() > 60  # a line on one side, none on the other


def test_keyframes_for_the_sheet() -> None:
    assert choose([1, 6, 11, 16, 21], 24, 4) == [1, 6, 11, 16]
    assert choose([1, 6, 11, 16, 21], 24, 1) == [11]
    assert choose([1], 24, 4) == [1]
    assert choose([1], 4, 4) == []


def test_a_clip_with_its_truth_and_detections(made: Path) -> None:
    video = made / "video" / "made.mp4"
    done = evaluate(
        "--clip", str(video), "--truth", str(made / "gt/gt.txt"),
        "--detections", str(made / "det/det.txt"), "--interval", "3", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sequence"], found["fps"], found["detector_calls"]) == ("made", 10.0, 8)
    assert found["MOTA"] > 80


def test_without_truth_there_are_answers_but_no_scores(made: Path, tmp_path: Path) -> None:
    (tmp_path / "seqinfo.ini").write_text((made / "seqinfo.ini").read_text())
    out = tmp_path / "out.txt"
    done = evaluate(
        "--mot", str(tmp_path), "--detections", str(made / "det/det.txt"), "--json",
        "--out", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "HOTA" not in json.loads(done.stdout)
    assert len(read_rows(out)) > FRAMES


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--mot or --clip"),
        (["--mot", "{made}", "--clip", "{made}/video/made.mp4"], "--mot or --clip"),
        (["--mot", "{made}", "--truth", "{made}/gt/gt.txt"], "--truth"),
        (["--mot", "{made}", "--model", "a.pt", "--detections", "{made}/det/det.txt"], "not both"),
        (["--clip", "{made}/video/made.mp4"], "--detections or --model"),
        (["--mot", "{made}", "--save-detections", "x"], "--save-detections"),
        (["--mot", "{made}/nowhere"], "does not exist"),
    ],
)
def test_options_that_do_not_fit_exit_2(made: Path, arguments: list[str], says: str) -> None:
    done = evaluate(*(argument.format(made=made) for argument in arguments))
    assert done.returncode == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())


def test_a_bad_file_is_one_line_and_exit_1(made: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("1,-1,hello\n")
    done = evaluate("--mot", str(made), "--detections", str(bad))
    assert done.returncode == 1
    assert done.stderr.startswith("vidserve: ") and "bad.txt, line 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_pictures_of_a_video_and_of_a_folder_are_the_same(made: Path, tmp_path: Path) -> None:
    images = tmp_path / "img1"
    images.mkdir()
    video = made / "video" / "made.mp4"
    assert video_info(video).size == SIZE
    for picture in pictures(video):
        assert picture.size == SIZE
        assert picture.luma.shape == (SIZE[1], SIZE[0])
        whole = picture.to_bgr()
        assert np.abs(whole.astype(int) - bgr(picture.number - 1)).mean() < 8
        cv2.imwrite(str(images / f"{picture.number:06d}.png"), whole)
    (tmp_path / "seqinfo.ini").write_text((made / "seqinfo.ini").read_text())
    sequence = read_mot(tmp_path)
    assert sequence.source == images
    read = list(sequence.pictures())
    assert [picture.number for picture in read] == list(range(1, FRAMES + 1))
    for one, other in zip(read, pictures(video), strict=True):
        assert np.array_equal(one.to_bgr(), other.to_bgr())
        # The video's luma is in its narrow range (16 to 235), that of an image is not.
        narrow = 16 + one.luma.astype(float) * 219 / 255
        assert np.abs(narrow - other.luma).mean() < 3


def test_too_few_pictures_and_none_that_can_be_read(made: Path, tmp_path: Path) -> None:
    text = (made / "seqinfo.ini").read_text().replace(f"={FRAMES}", "=99")
    (tmp_path / "seqinfo.ini").write_text(text)
    video = tmp_path / "made.mp4"
    video.write_bytes((made / "video" / "made.mp4").read_bytes())
    with pytest.raises(EvaluationError, match=f"{FRAMES} pictures, not 99"):
        list(read_mot(tmp_path).pictures())
    video.write_bytes(b"no video")
    with pytest.raises(EvaluationError, match=r"made\.mp4"):
        list(read_mot(tmp_path).pictures())
    (tmp_path / "other.avi").write_bytes(b"")
    with pytest.raises(EvaluationError, match="several videos"):
        read_mot(tmp_path)


@pytest.mark.filterwarnings("default")
def test_the_sample_model_on_a_sample_clip(tmp_path: Path) -> None:
    """Some frames only: the keyframes of one in thirty."""
    kept = tmp_path / "det.txt"
    done = evaluate(
        "--clip", str(SAMPLES / "plaza.mp4"), "--model", str(SAMPLES / "vidserve-sample.pt"),
        "--image-size", "320", "--interval", "30", "--save-detections", str(kept), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["detector_calls"] == 22
    assert found["HOTA"] > 5  # one look a second is little
    rows = read_rows(kept)
    assert set(rows.frames.tolist()) <= set(range(1, 661, 30))
    assert set(rows.classes.tolist()) <= {1, 2, 3}
    sequence = read_clip(SAMPLES / "plaza.mp4")
    assert sequence.truth is not None and sequence.truth.by_class
