"""``vidserve plan`` from a file to what is said: measured here, on synthetic cameras and clips."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.lab import clips
from tests.lab.servers import RtspServer, need_rtsp, refusing_port, silent_server
from tests.running import ROOT, synthetic, write_config
from vidserve import cli
from vidserve.capture.settings import CameraSettings
from vidserve.clock import RealClock
from vidserve.detection.fake import FakeDetector
from vidserve.errors import DetectorError
from vidserve.frames import Bucket
from vidserve.planning import measure
from vidserve.planning.detector import DetectorBench
from vidserve.planning.measure import SourceCost, SourceJob, Unread, answer_cost, read_sources
from vidserve.planning.plot import draw, write_plot
from vidserve.planning.show import show, verdict

FAKE = "detector: {model: 'fake:3+2n', image_size: 320}\n"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The command sets up the logging of its process, which here is that of all tests."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


class Said:
    """What a command said, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> Said:
    """``vidserve plan ...`` in this process, quickly measured."""
    quick = ["--measure-s", "0.2", "--for", "3"]
    monkeypatch.setattr("sys.argv", ["vidserve", "plan", *quick, *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert left.value.code is None or isinstance(left.value.code, int)
    return Said(left.value.code or 0, said.out, said.err)


def test_json_tells_all_and_stdout_is_nothing_else(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = write_config(
        tmp_path,
        FAKE
        + "cameras:\n"
        + f"  good: {{source: '{synthetic()}', keyframe_interval: 3, fps: 15}}\n"
        + f"  twin: {{source: '{synthetic(width=1280, height=960)}', weight: 2}}\n"
        + "  absent: {source: nowhere.mp4}\n"
        + f"  dead: {{source: 'rtsp://127.0.0.1:{refusing_port()}/x', username: me,"
        + " password: geheim}\n"
        + "  off: {source: x.mp4, enabled: false}\n"
        + "  wrong: {source: x.mp4, weight: many}\n",
    )
    picture = tmp_path / "plan.png"
    said = plan(capsys, monkeypatch, "-c", str(config), "--json", "--plot", str(picture))
    assert said.code == 0, said.err
    assert "geheim" not in said.out + said.err
    found = json.loads(said.out)
    cameras = {camera["name"]: camera for camera in found["cameras"]}
    assert list(cameras) == ["good", "twin", "absent", "dead"]
    good = cameras["good"]
    assert (good["width"], good["height"], good["source_fps"], good["fps"]) == (640, 360, 30, 15)
    assert good["detections_per_s"] == pytest.approx(5)
    assert good["measured"] and good["frames_measured"] > 10
    assert good["input"] == "320x192" and cameras["twin"]["input"] == "320x256"
    for name, word in (("absent", "nowhere.mp4"), ("dead", "refuses")):
        assert not cameras[name]["measured"]
        assert word in cameras[name]["reason"]
        assert (cameras[name]["width"], cameras[name]["fps"]) == (1280, 30)
    assert cameras["dead"]["letterbox_ms"] == pytest.approx(
        (good["letterbox_ms"] + cameras["twin"]["letterbox_ms"]) / 2, abs=0.002
    )
    left_out = {left["camera"]: left["reason"] for left in found["left_out"]}
    assert set(left_out) == {"off", "wrong"} and "weight" in left_out["wrong"]
    shape = found["detector"]["shapes"]["320x192"]
    assert shape["service_ms"]["1"] == pytest.approx(5, rel=0.5)
    assert shape["detections_per_s"]["8"] == pytest.approx(421, rel=0.5)
    assert found["now"]["fits"] and found["now"]["made_share"] > 0.99
    assert found["now"]["gap_ms"]["p99"] > 100
    assert found["fit"]["configured"] == 4
    assert found["fit"]["more"] == found["fit"]["cameras"] - 4 > 0
    assert found["fit"]["limit"] in ("decode", "cpu", "detector")
    assert found["latency_curve"][0]["cameras"] == 1
    assert picture.read_bytes().startswith(PNG)
    figure = draw(found)
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert len(labels) == 2
    assert labels[0] == ("frames in a batch", "detections per second")
    assert "latency" in labels[1][1]


def test_a_clip_for_people_with_given_service_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = ROOT / "samples" / "plaza.mp4"
    config = write_config(
        tmp_path,
        # With --service no model is loaded: this one is not there.
        f"detector: {{model: none.pt, image_size: 320}}\ncameras: {{plaza: {{source: {clip}}}}}\n",
    )
    said = plan(capsys, monkeypatch, "-c", str(config), "--service", "3+2n")
    assert said.code == 0, said.err
    assert "640x360" in said.out
    assert "1 camera of the config: it fits." in said.out
    assert "more such cameras" in said.out
    assert "The limit is" in said.out
    assert "reading 1 source" in said.err


def test_too_many_cameras_read_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cameras = "".join(f"  c{k}: {{source: '{synthetic()}'}}\n" for k in range(6))
    config = write_config(
        tmp_path, f"{FAKE}scheduling: {{keyframe_interval: 1}}\ncameras:\n{cameras}"
    )
    said = plan(capsys, monkeypatch, "-c", str(config), "--service", "3+6n")
    assert said.code == 0, said.err
    text = " ".join(said.out.split())
    assert "Already too many:" in text and "of 6 cameras fit." in text
    assert "The limit is the detector" in text
    assert "What would make all 6 fit:" in text
    assert "keyframe_interval 2" in text or "keyframe_interval 3" in text
    assert "image_size" in text
    assert "fewer cameras:" in text


@pytest.mark.parametrize(
    ("text", "arguments", "code", "words"),
    [
        (FAKE, ["--service", "soon"], 2, "--service"),
        (FAKE, ["--plot", "no/such/folder/x.png"], 2, "--plot"),
        (FAKE, ["--plot", "plan.doc"], 2, ".png"),
        (FAKE + "cameras: {}\n", [], 2, "no camera to plan for"),
        (FAKE + "cameras: {a: {source: x.mp4, enabled: false}}\n", [], 2, "enabled: false"),
        (FAKE + "cameras: {a: {sorce: x.mp4}}\n", [], 2, "did you mean source?"),
        ("detector: {confidence: 7}\n", [], 2, "vidserve.yaml:1:"),
        ("detector: {model: 'fake:soon'}\ncameras: {a: {source: x}}\n", [], 2, "fake:soon"),
        (FAKE + "cameras: {a: {source: x.mp4}, b: {source: y.mp4}}\n", [], 1, "no source answers"),
        ("detector: {model: no.pt}\ncameras: {a: {source: x}}\n", [], 1, "fetch-model no.pt"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_sentence(
    text: str,
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = plan(capsys, monkeypatch, "-c", str(write_config(tmp_path, text)), *arguments)
    assert said.code == code
    assert words in said.err
    assert said.out == ""
    assert said.err.splitlines()[-1]


# -- measuring -----------------------------------------------------------------------------


def job(source: str, **more: Any) -> SourceJob:
    settings = CameraSettings(name="a", source=source, **more)
    return SourceJob(settings, lambda width, height: Bucket(192, 320))


def test_a_clip_is_read_at_its_own_rate_with_its_own_cost() -> None:
    clip = str(ROOT / "samples" / "plaza.mp4")
    started_s = time.monotonic()
    (cost,) = read_sources([job(clip)], 0.5, RealClock()).results
    assert isinstance(cost, SourceCost)
    assert (cost.width, cost.height) == (640, 360)
    assert cost.fps == pytest.approx(30, rel=0.02)
    assert 1e-5 < cost.decode_s < 0.05
    assert 1e-5 < cost.letterbox_s < 0.05
    assert cost.frames <= 500
    assert time.monotonic() - started_s < 15


def test_a_stream_is_measured_by_its_cpu_time_not_by_its_pace(tmp_path: Path) -> None:
    need_rtsp()
    clip = clips.annexb(clips.write(tmp_path / "clip.mp4"), tmp_path / "clip.h264")
    with RtspServer(clip) as server, silent_server() as silent:
        jobs = [job(server.url), job(f"rtsp://127.0.0.1:{silent}/x", start_s=2.0, stall_s=2.0)]
        stream, unread = read_sources(jobs, 1.0, RealClock()).results
    assert isinstance(stream, SourceCost), stream
    assert stream.fps == pytest.approx(30, rel=0.1)
    assert stream.decode_s < 0.015  # a frame comes every 33 ms
    assert stream.frames >= 10
    assert isinstance(unread, Unread) and unread.reason


def test_sources_that_fail_hang_or_stop_do_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "ANSWER_S", 0.5)
    monkeypatch.setattr(measure, "_SLACK_S", 0.5)
    jobs = [
        job(synthetic(hang_after_s=0, deaf=1, hang_s=3)),
        job(synthetic(hang_after_s=1)),
        job(synthetic(fail_after_s=0)),
        job(synthetic(fail_after_s=0.5)),
        job(synthetic(), reader="none"),
        job(synthetic()),
    ]
    readings = read_sources(jobs, 0.2, RealClock())
    deaf, hanging, failing, cut, unknown, good = readings.results
    assert readings.hung
    assert isinstance(deaf, Unread) and "no picture" in deaf.reason
    assert isinstance(hanging, SourceCost) and hanging.frames == 30  # what it gave counts
    assert isinstance(failing, Unread) and "failed" in failing.reason
    assert isinstance(cut, SourceCost) and cut.frames == 15
    assert isinstance(unknown, Unread) and "not known" in unknown.reason
    assert isinstance(good, SourceCost) and good.fps == pytest.approx(30)
    for thread in threading.enumerate():
        if thread.name == "plan-a":
            thread.join(10)


def test_reasons_hold_no_passwords() -> None:
    url = f"rtsp://me:geheim@127.0.0.1:{refusing_port()}/x?password=geheim"
    (unread,) = read_sources([job(url)], 0.2, RealClock()).results
    assert isinstance(unread, Unread)
    assert "geheim" not in unread.reason and "refuses" in unread.reason


def test_an_answer_costs_something() -> None:
    cost = answer_cost(frames=50)
    assert 1e-6 < cost.frame_s < 0.02
    assert 1e-6 < cost.detection_s < 0.02


def test_the_detector_is_timed_in_one_thread_of_its_own() -> None:
    made_in: list[threading.Thread] = []

    def make() -> FakeDetector:
        made_in.append(threading.current_thread())
        return FakeDetector("10+5n", clock=RealClock())

    bench = DetectorBench(make, RealClock(), None)
    try:
        times_s = bench.times(Bucket(64, 64), 4)
        assert bench.times_anew(Bucket(64, 64), 2).keys() == {1, 2}
        single = bench.single(Bucket(64, 64))
    finally:
        bench.close()
    assert made_in[0] is not threading.current_thread()
    assert times_s[4] == pytest.approx(0.030, rel=0.5)
    assert single.wall_s == pytest.approx(0.015, rel=0.5)
    assert 0 < single.cpu_s < 0.010  # it sleeps
    assert single.noise < 0.5
    assert 0 <= single.waited < 1


def test_whatever_a_library_raises_is_a_sentence() -> None:
    def broken() -> FakeDetector:
        raise ZeroDivisionError("weights are odd")

    with pytest.raises(DetectorError, match="weights are odd"):
        DetectorBench(broken, RealClock(), None)
    bench = DetectorBench(
        lambda: FakeDetector("1", clock=RealClock(), fail_every=2), RealClock(), None
    )
    with pytest.raises(DetectorError):
        bench.times(Bucket(64, 64), 2)
    bench.close()


# -- words and pictures --------------------------------------------------------------------


def a_plan(**fit: Any) -> dict[str, Any]:
    trial = {
        "cameras": 3, "fits": True, "misses": [], "asked_per_s": 18.0, "in_time_share": 1.0,
        "late_share": 0.0, "gap_ms": {"p50": None, "p99": None}, "mean_batch": 0.0,
        "latency_ms": {"p50": None, "p95": None}, "detector_use": 0.0, "detector_slower": 1.5,
        "cpu": {"use": 0.1, "camera_cores": 0.1, "detector_cores": 0.1},
    }  # fmt: skip
    return {
        "config": "site.yaml", "cores": 2, "budget_ms": 33.0, "cameras": [], "left_out": [],
        "notes": [],
        "detector": {
            "name": "fake", "measured": True,
            "shapes": {"64x64": {
                "cameras": 3, "largest_batch": 1, "service_ms": {"1": 5.0},
                "detections_per_s": {"1": 200.0},
            }},
        },
        "now": {**trial, "fits": fit["cameras"] >= 3}, "help": [], "latency_curve": [trial],
        "fit": {
            "configured": 3, "more": fit["cameras"] - 3, "or_more": False, "limit": "cpu",
            "reasons": [{"limit": "cpu", "reason": "too much"}], "accepting_late": None,
            "at_the_limit": None, **fit,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        ({"cameras": 3}, "Not one more such camera fits."),
        ({"cameras": 4}, "1 more such camera fits: 4 in all."),
        ({"cameras": 9}, "6 more such cameras fit: 9 in all."),
        ({"cameras": 256, "or_more": True, "limit": None}, "At least 253 more such cameras fit"),
        ({"cameras": 2}, "Already too many: 2 of 3 cameras fit."),
        ({"cameras": 0}, "None of the 3 cameras fits."),
    ],
)
def test_verdicts_read_well(fit: dict[str, Any], words: str) -> None:
    assert words in " ".join(text for text, _ in verdict(a_plan(**fit)))


def test_nothing_detected_is_shown_and_drawn_too(tmp_path: Path) -> None:
    """No latency and no gap: cameras without weight."""
    console = Console(record=True, width=100, file=(tmp_path / "out").open("w"))
    show(a_plan(cameras=3), console)
    assert "p50 -" in console.export_text()
    console.file.close()
    assert len(write_plot(a_plan(cameras=3), tmp_path / "x.png").axes) == 2
    assert (tmp_path / "x.png").read_bytes().startswith(PNG)


def test_a_detector_on_the_cpu_is_timed_beside_the_cameras(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan by the times of a detector alone promised twice of what a live run gave."""
    config = write_config(
        tmp_path,
        f"detector: {{model: '{ROOT}/samples/vidserve-sample.pt', image_size: 320}}\n"
        f"cameras: {{one: {{source: '{ROOT}/samples/street.mp4', loop: true}}}}\n",
    )
    said = plan(capsys, monkeypatch, "-c", str(config), "--measure-s", "0.5", "--json")
    assert said.code == 0, said.err
    notes = json.loads(said.out)["notes"]
    assert [note for note in notes if note.startswith("beside these cameras a picture of 320x192")]
