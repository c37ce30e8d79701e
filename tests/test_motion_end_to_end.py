"""Motion in the running daemon: measured in capture threads, used by trackers and keyframes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.running import assert_accounted, run_daemon, synthetic
from vidserve.detection_loop import _with_looks
from vidserve.frames import Bucket, Detections, Frame, Letterbox
from vidserve.replay import comparison, replay
from vidserve.slots import SlotPool
from vidserve.trace import read_trace

FAKE = 'detector: {model: "fake:3+2n", image_size: 320}\n'


def cameras(flow: str = "") -> str:
    return f"""{FAKE}{flow}
cameras:
  busy: {{source: "{synthetic(objects=5)}"}}
  quiet: {{source: "{synthetic(objects=0)}"}}
"""


def test_a_quiet_camera_costs_a_detection_in_two_seconds_a_busy_one_gets_its_own(
    tmp_path: Path,
) -> None:
    report = run_daemon(tmp_path, cameras(), 7)
    assert_accounted(report)
    busy, quiet = report["cameras"]["busy"], report["cameras"]["quiet"]
    assert quiet["detections_per_s"] <= 1.2
    assert quiet["max_detection_gap_s"] <= 2.5
    assert busy["detections_per_s"] == pytest.approx(6.0, rel=0.15)
    for camera in (busy, quiet):
        assert camera["answered_in_budget"] > 0.9
        assert camera["motion"]["thinning"] in ("full", "one_way", "fewer_points", "every_second")
        assert camera["latency_ms"]["motion"]["p50"] is not None
    # Plain rectangles show nothing to follow, and are not trusted.
    assert busy["motion"]["boxes_trusted"] is not None
    assert quiet["motion"]["boxes_trusted"] is None


def test_without_flow_nothing_is_measured_and_the_interval_is_kept(tmp_path: Path) -> None:
    report = run_daemon(tmp_path, cameras("tracking: {flow: false}"), 3)
    assert_accounted(report)
    for camera in report["cameras"].values():
        assert camera["detections_per_s"] == pytest.approx(6.0, rel=0.2)
        assert camera["latency_ms"]["motion"]["p50"] is None


def test_a_trace_keeps_the_doubt_so_that_it_replays(tmp_path: Path) -> None:
    run_daemon(tmp_path, cameras(), 5, trace=tmp_path / "run.gz")
    trace = read_trace(tmp_path / "run.gz")
    assert trace.header.adaptive
    doubts = {name: [f.doubt for f in trace.frames if f.camera == name] for name in trace.names}
    assert all(doubt is not None for doubt in doubts["quiet"])
    assert max(d for d in doubts["busy"] if d is not None) >= 0.5
    points = comparison(trace, replay(trace))["points_apart"]
    assert abs(points["detected"]) <= 5


def test_the_detection_loop_tells_what_it_saw_looks_like() -> None:
    """Red on the left, blue on the right, in a letterboxed slot; boxes in source pixels."""
    bucket = Bucket(96, 160)
    slot = SlotPool(bucket, 1).take()
    assert slot is not None
    slot.geometry = Letterbox.fit(320, 180, bucket)
    slot.pixels[:] = 114
    slot.pixels[:, :80] = (250, 10, 10)
    slot.pixels[:, 80:] = (10, 10, 250)
    boxes = np.array([[20, 20, 100, 160], [200, 20, 300, 160], [30, 30, 90, 150]], np.float32)
    found = Detections(boxes, np.ones(3, np.float32), np.zeros(3, np.int32))
    frame = Frame("gate", 0, 1.0, 1.0, 1.0, 320, 180, slot=slot)
    looks = _with_looks(frame, found).looks
    assert looks is not None
    alike = looks @ looks.T
    assert alike[0, 2] == pytest.approx(1.0)
    assert alike[0, 1] == pytest.approx(0.0)
    assert _with_looks(frame, Detections.none()).looks is None
