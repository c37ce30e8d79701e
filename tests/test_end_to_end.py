"""The whole daemon on synthetic cameras with the fake detector: accounts, order, states."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.running import Report, assert_accounted, read_events, read_lines, run_daemon, synthetic
from vidserve import build, pipeline
from vidserve.capture.synthetic import scene_of
from vidserve.clock import Clock
from vidserve.config import Config
from vidserve.detection.detector import Detector
from vidserve.detection.fake import FakeDetector
from vidserve.errors import ConfigError, ModelNotFoundError

FAKE = "detector: {model: 'fake:3+2n', image_size: 320}\n"


def assert_in_order(lines: list[dict[str, object]]) -> None:
    """Answers leave in capture order, camera by camera."""
    for camera in {str(line["camera"]) for line in lines}:
        seqs = [int(str(line["seq"])) for line in lines if line["camera"] == camera]
        assert seqs == sorted(set(seqs)), camera


def test_every_frame_is_accounted_for_and_answers_leave_in_order(tmp_path: Path) -> None:
    report = run_daemon(
        tmp_path,
        FAKE
        + f"""
outputs: [{{jsonl: out.jsonl}}]
cameras:
  one: {{source: "{synthetic()}"}}
  two: {{source: "{synthetic(1280, 720, 25, 2, seed=2)}"}}
  tall: {{source: "{synthetic(360, 640, 10, 1, seed=3)}", weight: 2}}
""",
        4,
    )
    assert_accounted(report)
    lines = read_lines(tmp_path / "out.jsonl")
    answered = sum(c["detected"] + c["tracked"] for c in report["cameras"].values())
    assert len(lines) == answered
    assert report["jsonl"]["published"] == answered + len(read_events(tmp_path / "out.jsonl"))
    assert_in_order(lines)
    for name, fps in (("one", 30), ("two", 25), ("tall", 10)):
        camera = report["cameras"][name]
        assert camera["state"] == "running"
        assert camera["captured"] == pytest.approx(fps * 4, abs=3)
        assert camera["detected"] + camera["detections_late"] >= 4
        assert camera["answered_in_budget"] > 0.3  # far below the promise: no timing here
    assert {line["source"] for line in lines} == {"detected", "tracked"}


def test_boxes_follow_the_objects_between_keyframes(tmp_path: Path) -> None:
    url = synthetic(640, 360, 30, 2, seed=4)
    run_daemon(
        tmp_path,
        FAKE + f"outputs: [{{jsonl: out.jsonl}}]\ncameras: {{one: {{source: '{url}'}}}}\n",
        4,
    )
    scene = scene_of(url)
    lines = read_lines(tmp_path / "out.jsonl")
    first = next(line for line in lines if line["source"] == "detected")
    errors_px = []
    for line in lines:
        if line["seq"] <= first["seq"] or not line["objects"]:
            continue
        truth = scene.truth(line["seq"] / 30)
        for thing in line["objects"]:
            errors_px.append(np.abs(truth - np.array(thing["box"])).max(axis=1).min())
    assert len(errors_px) > 100
    # 5 frames of the fastest synthetic object are tens of pixels; following it costs less.
    assert np.median(errors_px) < 12


def test_a_slow_detector_delays_no_answer_and_starves_no_camera(tmp_path: Path) -> None:
    cameras = "".join(
        f"  c{number}: {{source: '{synthetic(seed=number)}'}}\n" for number in range(4)
    )
    report = run_daemon(
        tmp_path,
        "detector: {model: 'fake:0+100n', image_size: 320}\ncameras:\n" + cameras,
        6,
    )
    assert_accounted(report)
    for camera in report["cameras"].values():
        assert camera["detected"] == 0
        assert camera["detections_late"] >= 4
        assert camera["max_detection_gap_s"] < 5
        assert camera["latency_ms"]["answer"]["p50"] < 330


def test_a_wrong_block_fails_one_camera_and_the_others_run(tmp_path: Path) -> None:
    report = run_daemon(
        tmp_path,
        FAKE + f"cameras:\n  good: {{source: '{synthetic()}'}}\n  bad: {{sorce: x}}\n",
        1.5,
    )
    assert_accounted(report)
    assert report["cameras"]["good"]["state"] == "running"
    assert report["cameras"]["bad"]["state"] == "failed"
    assert "vidserve.yaml:4:" in report["cameras"]["bad"]["reason"]
    assert "source" in report["cameras"]["bad"]["reason"]


def test_dead_disabled_and_ended_cameras_touch_nobody(tmp_path: Path) -> None:
    report = run_daemon(
        tmp_path,
        FAKE
        + f"""
cameras:
  good: {{source: "{synthetic()}"}}
  dead: {{source: "rtsp://127.0.0.1:1/none"}}
  gone: {{source: nothing-here.mp4}}
  off: {{source: "{synthetic()}", enabled: false}}
  dies: {{source: "{synthetic(fail_after_s=1)}"}}
""",
        4,
    )
    assert_accounted(report)
    states = {name: camera["state"] for name, camera in report["cameras"].items()}
    assert states["good"] == "running"
    assert states["dead"] == states["gone"] == "failed"
    assert states["off"] == "disabled"
    assert report["cameras"]["good"]["captured"] == pytest.approx(120, abs=10)
    assert 20 <= report["cameras"]["dies"]["captured"] < 125


def test_no_cameras_is_valid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = run_daemon(tmp_path, FAKE, 0.5)
    assert report["cameras"] == {}
    assert report["answered_in_budget"] is None
    assert "no cameras are configured" in caplog.text


def test_a_camera_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    report = run_daemon(
        tmp_path,
        FAKE + f"cameras: {{h: {{source: '{synthetic(hang_after_s=0.5)}', stall_s: 1}}}}\n",
        3,
    )
    assert_accounted(report)
    assert report["cameras"]["h"]["state"] in ("stalled", "connecting", "running")


def test_corrupt_pictures_are_answered_but_never_detected(tmp_path: Path) -> None:
    report = run_daemon(
        tmp_path,
        FAKE + f"cameras: {{c: {{source: '{synthetic(corrupt_every=1)}'}}}}\n",
        2,
    )
    assert_accounted(report)
    camera = report["cameras"]["c"]
    assert camera["tracked"] > 20
    assert camera["detected"] == camera["detections_late"] == 0


def test_ignored_areas_and_small_boxes_are_not_published(tmp_path: Path) -> None:
    everything = "[[[0, 0], [1, 0], [1, 1], [0, 1]]]"
    run_daemon(
        tmp_path,
        FAKE
        + f"""
outputs: [{{jsonl: out.jsonl}}]
cameras:
  seen: {{source: "{synthetic()}"}}
  ignored: {{source: "{synthetic()}", ignore: {everything}}}
  small: {{source: "{synthetic()}", min_box_px: 5000}}
""",
        2,
    )
    lines = read_lines(tmp_path / "out.jsonl")
    shown = {
        name: sum(len(line["objects"]) for line in lines if line["camera"] == name)
        for name in ("seen", "ignored", "small")
    }
    assert shown["seen"] > 0
    assert shown["ignored"] == shown["small"] == 0


def test_the_report_has_the_promised_form(tmp_path: Path) -> None:
    report: Report = run_daemon(
        tmp_path, FAKE + f"cameras: {{one: {{source: '{synthetic()}'}}}}\n", 2
    )
    assert {"duration_s", "answered_in_budget", "cameras", "batches", "detector"} < set(report)
    assert report["duration_s"] == pytest.approx(2, abs=0.5)
    camera = report["cameras"]["one"]
    assert {
        "state", "captured", "detected", "tracked", "dropped", "pending", "detections_late",
        "answered_in_budget", "fps", "detections_per_s", "max_detection_gap_s", "source_lag_ms",
        "latency_ms",
    } <= set(camera)  # fmt: skip
    assert set(camera["latency_ms"]) == {"capture", "motion", "wait", "detect", "track", "answer"}
    for stage in camera["latency_ms"].values():
        assert set(stage) == {"p50", "p95", "p99", "max"}
        assert all(a <= b for a, b in itertools.pairwise(stage.values()))
    assert {"count", "mean_size", "fill_ratio", "sizes"} <= set(report["batches"])
    assert {"use", "images_per_s", "service_ms"} <= set(report["detector"])
    assert set(report["detector"]["service_ms"]["320x192"]) == {str(n) for n in range(1, 9)}
    assert {"connected", "published", "dropped", "reconnects", "outbox_peak"} <= set(report["mqtt"])
    assert {"rss_mb", "cpu_s", "threads"} <= set(report["process"])
    assert report["cameras"]["one"]["source_lag_ms"] is None


def test_cameras_of_several_shapes_within_a_pixel_budget(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide, tall = synthetic(1280, 720), synthetic(360, 640, seed=2)
    four_k = synthetic(3840, 2160, fps=5, seed=3)
    report = run_daemon(
        tmp_path,
        f"""
detector: {{model: "fake:3+2n", image_size: [640, 320]}}
scheduling: {{keyframe_interval: 3, batch: {{max_pixels: 600000}}}}
cameras:
  wide: {{source: "{wide}"}}
  tall: {{source: "{tall}", image_size: 320}}
  large: {{source: "{four_k}", image_size: 1280}}
""",
        3,
    )
    assert_accounted(report)
    shapes = {name: camera["bucket"] for name, camera in report["cameras"].items()}
    assert shapes == {"wide": "640x384", "tall": "192x320", "large": "1024x576"}
    for camera in report["cameras"].values():
        assert camera["overload"] == ""
        assert camera["keyframe_interval"] == pytest.approx(3, abs=0.1)
        assert 0 <= camera["padding"] < 0.1
        assert camera["detections_per_s"] > 0
    assert 0 < report["batches"]["padding"] < 0.1
    assert set(report["detector"]["service_ms"]) >= {"640x384", "320x192", "192x320", "1024x576"}
    assert "1280x736 are 942080 pixels, scheduling.batch.max_pixels allows 600000" in caplog.text


def test_fixed_shapes_of_the_config(tmp_path: Path) -> None:
    report = run_daemon(
        tmp_path,
        f"""
detector: {{model: "fake:3+2n", buckets: [320x320]}}
cameras:
  wide: {{source: "{synthetic()}"}}
  tall: {{source: "{synthetic(360, 640)}"}}
""",
        1.5,
    )
    assert {camera["bucket"] for camera in report["cameras"].values()} == {"320x320"}
    assert report["batches"]["padding"] == pytest.approx(1 - 180 / 320, abs=0.01)


def test_an_overload_goes_all_the_way_and_says_so(tmp_path: Path) -> None:
    report = run_daemon(
        tmp_path,
        f"""
detector: {{model: "fake:900", image_size: [640, 320]}}
scheduling: {{max_gap_s: 0.5, keyframe_interval: 2, batch: {{max: 1}}}}
cameras:
  heavy: {{source: "{synthetic()}", weight: 2}}
  light: {{source: "{synthetic(seed=2)}"}}
""",
        3,
    )
    assert_accounted(report)
    heavy, light = report["cameras"]["heavy"], report["cameras"]["light"]
    # This detector takes as long for a smaller input, so nobody gets one.
    assert light["bucket"] == heavy["bucket"] == "640x384"
    assert "predict-only, but for one detection in 5 s" in light["overload"]
    assert light["keyframe_interval_s"] == 5.0
    assert min(light["answered_in_budget"], heavy["answered_in_budget"]) > 0.9


def test_a_model_that_is_not_there_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"vidserve fetch-model nothing\.pt"):
        run_daemon(
            tmp_path,
            f"detector: {{model: nothing.pt}}\ncameras: {{a: {{source: '{synthetic()}'}}}}\n",
            1,
        )


def test_labels_that_the_model_does_not_have(tmp_path: Path) -> None:
    text = "detector: {model: 'fake:1+1n', classes: [objekt]}\n"
    with pytest.raises(ConfigError, match=r"vidserve\.yaml:1:\d+: detector\.classes.*object"):
        run_daemon(tmp_path, text, 1)
    report = run_daemon(
        tmp_path,
        FAKE
        + f"""
cameras:
  good: {{source: "{synthetic()}"}}
  bad: {{source: "{synthetic()}", classes: [objekt]}}
""",
        1.5,
    )
    assert_accounted(report)
    assert report["cameras"]["bad"]["state"] == "failed"
    assert "object" in report["cameras"]["bad"]["reason"]
    assert report["cameras"]["good"]["captured"] > 20


@pytest.mark.parametrize("fault", [{"fail_every": 3}, {"fail_after": 12}])
def test_a_detector_that_fails_loses_no_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, int]
) -> None:
    def factory(_config: Config, clock: Clock) -> Callable[[], Detector]:
        return lambda: FakeDetector(
            "3+2n", clock=clock, fail_every=fault.get("fail_every", 0),
            fail_after=fault.get("fail_after"),
        )  # fmt: skip

    monkeypatch.setattr(build, "detector_factory", factory)
    # The sweep at start is not what fails here.
    monkeypatch.setattr(
        pipeline, "service_times", lambda *_args, **_more: {1: 0.005, 4: 0.011, 8: 0.019}
    )
    report = run_daemon(
        tmp_path,
        f"cameras: {{a: {{source: '{synthetic()}'}}, b: {{source: '{synthetic()}'}}}}\n",
        4,
    )
    assert_accounted(report)
    assert report["batches"]["failed"] > 0
    if "fail_after" in fault:
        assert "failed" in report["detector"]["degraded"]
    for camera in report["cameras"].values():
        assert camera["detected"] + camera["tracked"] > 100
        assert camera["detected"] + camera["detections_late"] > 0


@pytest.mark.parametrize("realtime", ["true", "false"])
def test_a_file_waits_for_the_model_and_none_of_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, realtime: str
) -> None:
    def factory(_config: Config, clock: Clock) -> Callable[[], Detector]:
        def load() -> Detector:
            clock.sleep_until(clock.now() + 2.0)  # longer than the file
            return FakeDetector("3+2n", clock=clock)

        return load

    monkeypatch.setattr(build, "detector_factory", factory)
    short = synthetic(duration_s=1.5)
    report = run_daemon(
        tmp_path,
        f"cameras: {{a: {{source: '{short}', realtime: {realtime}}}, b: {{source: '{short}'}}}}\n",
        4,
    )
    assert_accounted(report)
    for camera in report["cameras"].values():
        assert camera["state"] == "ended"
        assert camera["captured"] == 45
        assert "backlog" not in camera["dropped"]


def test_a_file_at_full_speed_waits_where_a_camera_would_lose(tmp_path: Path) -> None:
    fast = f"source: '{synthetic(duration_s=30)}', realtime: false, loop: true"
    report = run_daemon(tmp_path, FAKE + f"cameras: {{a: {{{fast}}}}}\n", 2)
    assert_accounted(report)
    assert report["cameras"]["a"]["captured"] > 100
    assert report["cameras"]["a"]["dropped"] == {}


def test_a_detector_that_is_too_slow_for_the_budget_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cameras = f"cameras: {{a: {{source: '{synthetic()}'}}}}\n"
    run_daemon(tmp_path, "detector: {model: 'fake:60+1n', image_size: 320}\n" + cameras, 2)
    assert "most detections will come late" in caplog.text
    assert "try a smaller detector.image_size" in caplog.text
    assert "frames captured =" in caplog.text  # the last line sums it up
    caplog.clear()
    run_daemon(tmp_path, FAKE + cameras, 1)
    assert "come late" not in caplog.text


def test_all_files_at_their_end_are_told_and_the_daemon_runs_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    report = run_daemon(
        tmp_path, FAKE + f"cameras: {{a: {{source: '{synthetic(duration_s=0.5)}'}}}}\n", 2
    )
    assert report["duration_s"] == pytest.approx(2, abs=0.5)
    assert caplog.text.count("all cameras have ended") == 1
