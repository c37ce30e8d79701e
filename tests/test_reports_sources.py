"""What people reported of systems like this one, tried on vidserve: sources.

``../shared/reports.md`` has the reports; each test is named after one of its row. The rows that
older tests hold are in ``HELD``, so that every row can be found.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import threading
import time
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.lab import odd_files as odd
from tests.lab.http_servers import http_status, mjpeg_server
from tests.lab.sink import CollectingSink, running
from tests.lab.tcp_servers import refusing_port, serving, silent_server, tcp_stream
from tests.running import assert_accounted, read_lines, run_daemon, synthetic
from vidserve.capture.camera import CameraSettings
from vidserve.capture.pyav import PyAvReader
from vidserve.clock import RealClock
from vidserve.frames import CameraState
from vidserve.trace import read_trace

FAKE = "detector: {model: 'fake:3+2n', image_size: 320}\n"
RUNNING, STALLED, FAILED = CameraState.RUNNING, CameraState.STALLED, CameraState.FAILED

# First report of a row -> the tests that hold it (all of them, or what the others leave).
HELD = {
    "opencv/opencv#9053": ["test_lag_starts_anew_at_a_jump"],
    "opencv/opencv#22088": [
        "test_rotated_files_show_the_scene_upright",
        "test_rotated_shared_videos_are_upright",
    ],
    "PyAV-Org/PyAV#423": [
        "test_every_pixel_format_equals_the_ffmpeg_binary",
        "test_any_size_is_shrunk_and_enlarged_as_it_should",
    ],
    "PyAV-Org/PyAV#956": ["test_a_slow_consumer_of_a_live_source_never_builds_a_queue"],
    "bluenviron/mediamtx#1328": [
        "test_what_is_damaged_cut_or_odd_plays_as_far_as_it_goes",
        "test_corrupt_pictures_are_answered_but_never_detected",
    ],
    "blakeblackshear/frigate#6715": ["test_what_can_be_played_shows_every_picture_in_order"],
    "rbgirshick/yacs#48": [
        "test_words_of_yaml_1_1_stay_text_where_text_is_wanted",
        "test_a_number_with_two_meanings_is_refused",
        "test_a_flag_is_true_or_false",
        "test_repeated_keys_name_both_lines",
        "test_a_second_camera_of_the_same_name_never_wins",
    ],
    "SAIC-iSmart-API/saic-python-mqtt-gateway#99": [
        "test_names_that_cannot_be_a_topic_level_refuse_the_config",
        "test_names_that_clash_refuse_the_config",
    ],
    "ridgerun-ai/deepstream-rfdetr#4": ["test_wrong_names_are_refused"],
    "NVIDIA/nvidia-container-toolkit#48": ["test_a_detector_that_fails_loses_no_frame"],
    "ultralytics/ultralytics#4315": ["test_promises"],
}


def test_every_test_that_holds_a_row_exists() -> None:
    there: set[str] = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        there |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {name for names in HELD.values() for name in names} <= there


@pytest.fixture(scope="module")
def jpegs() -> list[bytes]:
    """160x120; each shows the scene's next picture."""
    return [
        cv2.imencode(".jpg", odd.scene(i, (160, 120))[:, :, ::-1])[1].tobytes() for i in range(20)
    ]


def test_opencv_24393_a_read_on_a_dead_rtsp_camera_is_bounded(jpegs: list[bytes]) -> None:
    """Silent from the first byte, or in mid-stream: stalled in time, and nobody else waits."""
    sink = CollectingSink()
    good = CameraSettings("good", synthetic(320, 180))
    began_s = time.monotonic()
    with silent_server() as port, mjpeg_server(jpegs, stop_after=10) as url:
        dead = CameraSettings("dead", f"rtsp://127.0.0.1:{port}/x", start_s=1.0, stall_s=1.0)
        mute = CameraSettings("mute", url, start_s=3.0, stall_s=1.0)
        with running(sink, dead, mute, good):
            sink.wait_state(STALLED, "dead")
            sink.wait_state(STALLED, "mute")
            took_s = time.monotonic() - began_s
    assert took_s < 12.0
    assert RUNNING not in sink.states("dead")
    assert RUNNING in sink.states("mute")
    frames = sink.of("good")
    assert sink.states("good") == [CameraState.CONNECTING, RUNNING]
    assert max(np.diff([frame.captured_s for frame in frames])) < 1.0
    sink.check_accounts("good")


def test_opencv_24229_the_open_of_one_camera_blocks_no_other(jpegs: list[bytes]) -> None:
    def first_frame_s(*others: CameraSettings) -> float:
        sink = CollectingSink()
        began_s = time.monotonic()
        with running(sink, *others, CameraSettings("good", url)):
            sink.wait_state(RUNNING, "good")
            return time.monotonic() - began_s

    with mjpeg_server(jpegs) as url, silent_server() as port:
        alone_s = first_frame_s()
        dead = [
            CameraSettings(f"d{i}", f"rtsp://127.0.0.1:{port}/x", start_s=2.0, stall_s=1.0)
            for i in range(3)
        ]
        assert first_frame_s(*dead) < alone_s + 1.0


@pytest.mark.parametrize("fps", [90_000, 1_000])
def test_viseron_298_an_absurd_frame_rate_in_the_header_is_refused(
    tmp_path: Path, fps: int
) -> None:
    path = odd.encode(tmp_path / "a.mkv", fps=fps, pts_ms=[100 * i for i in range(12)])
    reader = PyAvReader(CameraSettings("c", str(path)), RealClock())
    reader.open()
    assert reader.nominal_fps is None or reader.nominal_fps <= 240
    reader.close()


def test_viseron_298_the_rate_of_a_stream_without_one_is_measured(
    tmp_path: Path, jpegs: list[bytes]
) -> None:
    """HTTP with JPEGs tells no rate; FFmpeg makes one up (25)."""
    with mjpeg_server(jpegs, fps=10.0) as url:
        report = run_daemon(tmp_path, FAKE + f"cameras: {{a: {{source: '{url}'}}}}\n", 2)
    assert_accounted(report)
    assert 5.0 < report["cameras"]["a"]["fps"] < 11.0
    assert report["cameras"]["a"]["source_lag_ms"] is None


def told_thrice(sink: CollectingSink, camera: str) -> bool:
    return len(sink.states(camera)) > 2


def test_frigate_6715_timestamps_that_wrap_or_jump_restart_nothing(tmp_path: Path) -> None:
    """A live stream over the end of its 33 bits, and one that jumps by 5000 s."""
    clip = {"fps": 30, "frames": 45, "g": "15"}
    wrap = odd.encode(
        tmp_path / "wrap.ts",
        muxer={"output_ts_offset": "95442.9"},
        **clip,  # type: ignore[arg-type]
    )
    parts = [
        odd.encode(tmp_path / f"{at}.ts", muxer={"output_ts_offset": at}, **clip)  # type: ignore[arg-type]
        for at in ("0", "5000")
    ]
    jump = odd.joined(tmp_path / "jump.ts", *parts)
    sink = CollectingSink()
    with tcp_stream(wrap, 1.5) as one, tcp_stream(jump, 3.0) as other:
        with running(sink, CameraSettings("wrap", one), CameraSettings("jump", other)):
            for name in ("wrap", "jump"):
                sink.wait(partial(told_thrice, sink, name))
    for name, count in (("wrap", 20), ("jump", 50)):
        before_the_end = [s for s in sink.statuses if s.camera == name][:3]
        assert [s.state for s in before_the_end[:2]] == [CameraState.CONNECTING, RUNNING]
        assert "ended the stream" in before_the_end[2].reason
        frames = sink.of(name)
        assert len(frames) >= count
        ages_s = [frame.ready_s - frame.captured_s for frame in frames]
        assert 0.0 <= min(ages_s) and max(ages_s) < 1.0
        sink.check_accounts(name)
    assert all(lag_s is None or 0.0 <= lag_s < 1.0 for _, lag_s, _ in sink.lags)


def test_opencv_9053_speeds_are_right_whatever_the_timestamps_say(tmp_path: Path) -> None:
    """The square goes 40 px/s in all: at a steady rate, a variable one, and over a jump."""
    size = (160, 120)  # 4 px a picture
    clip = {"fps": 10, "size": size, "g": "5", "pix_fmt": "yuv420p"}
    odd.encode(tmp_path / "steady.mp4", frames=24, **clip)  # type: ignore[arg-type]
    parts = [
        odd.encode(
            tmp_path / f"{first}.ts", frames=12, first=first,
            muxer={"output_ts_offset": str(5000 * first)}, **clip,  # type: ignore[arg-type]
        )
        for first in (0, 12)
    ]  # fmt: skip
    odd.joined(tmp_path / "jump.ts", *parts)
    names = ("steady.mp4", "jump.ts")
    cameras = "".join(f"  {n[:-3].strip('.')}: {{source: {tmp_path / n}}}\n" for n in names)
    text = FAKE + "outputs: [{jsonl: out.jsonl}]\nscheduling: {keyframe_interval: 1}\n"
    run_daemon(tmp_path, text + f"cameras:\n{cameras}", 2.8)
    lines = read_lines(tmp_path / "out.jsonl")
    for camera in ("steady", "jump"):
        speeds = [
            line["objects"][0]["velocity"][0]
            for line in lines
            if line["camera"] == camera and line["objects"] and line["seq"] > 8
        ]
        assert len(speeds) > 8
        assert np.median(speeds) == pytest.approx(40.0, rel=0.25)
        assert 0.0 <= min(speeds) and max(speeds) < 100.0


def test_opencv_python_1176_a_new_size_is_told_once_and_boxes_are_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another shape in mid-stream, and pictures that lie on their side."""
    caplog.set_level(logging.INFO)
    wide, tall = (160, 120), (120, 160)
    parts = [
        odd.encode(tmp_path / f"{size[0]}.h264", size=size, fps=25, frames=20)
        for size in (wide, tall)
    ]
    odd.joined(tmp_path / "size.h264", *parts)
    clip = odd.encode(tmp_path / "a.mp4", size=wide, fps=25, frames=40)
    odd.remux(clip, tmp_path / "lying.mp4", degrees=90)
    cameras = (
        f"  size: {{source: {tmp_path}/size.h264}}\n  lying: {{source: {tmp_path}/lying.mp4}}\n"
    )
    text = FAKE + "outputs: [{jsonl: out.jsonl}]\nscheduling: {keyframe_interval: 1}\ncameras:\n"
    report = run_daemon(tmp_path, text + cameras, 2.2)
    assert_accounted(report)
    lines = read_lines(tmp_path / "out.jsonl")
    sizes = {
        name: list(dict.fromkeys((x["width"], x["height"]) for x in lines if x["camera"] == name))
        for name in ("size", "lying")
    }
    assert sizes == {"size": [wide, tall], "lying": [tall]}
    seen = [(line, thing["box"]) for line in lines for thing in line["objects"]]
    assert {line["camera"] for line, _ in seen} == {"size", "lying"}
    assert any(line["height"] == 160 for line, _ in seen if line["camera"] == "size")
    for line, (x1, y1, x2, y2) in seen:
        assert 0 <= x1 < x2 <= line["width"] and 0 <= y1 < y2 <= line["height"]
    assert caplog.text.count("picture size changed from 160x120 to 120x160") == 1


def test_mediamtx_180_joined_without_a_key_picture_is_never_running(tmp_path: Path) -> None:
    """The tables come again and again, the key picture never: a reason within the limit."""
    whole = odd.encode(tmp_path / "a.ts", fps=30, frames=240, g="1000").read_bytes()
    begin = odd.TS_PACKET * (len(whole) // odd.TS_PACKET // 8)
    path = tmp_path / "middle.ts"
    path.write_bytes(whole[: 3 * odd.TS_PACKET] + whole[begin:])
    sink = CollectingSink()
    with tcp_stream(path, 7.0) as url, running(sink, CameraSettings("c", url, start_s=2.0)):
        sink.wait(lambda: len(sink.statuses) > 1)
    assert sink.statuses[1].state in (FAILED, STALLED)
    assert "no frame" in sink.statuses[1].reason
    assert RUNNING not in sink.states() and not sink.frames


def test_roboflow_2482_a_frozen_source_is_a_stall_and_a_still_scene_is_none(
    jpegs: list[bytes],
) -> None:
    sink = CollectingSink()
    with mjpeg_server(jpegs, stop_after=8) as frozen, mjpeg_server(jpegs[:1]) as still:
        cameras = [
            CameraSettings(name, url, stall_s=0.8, start_s=3.0)
            for name, url in (("frozen", frozen), ("still", still))
        ]
        with running(sink, *cameras):
            # It is connected anew without being asked, and stalls again.
            sink.wait(lambda: sink.states("frozen").count(RUNNING) >= 2)
    assert sink.states("frozen")[:4] == [CameraState.CONNECTING, RUNNING, STALLED, RUNNING]
    assert sink.states("still") == [CameraState.CONNECTING, RUNNING]


def test_ultralytics_10257_one_offline_stream_fails_nothing(tmp_path: Path) -> None:
    cameras = "".join(f"  c{i}: {{source: '{synthetic(seed=i)}'}}\n" for i in range(3))
    report = run_daemon(
        tmp_path,
        FAKE + f"cameras:\n{cameras}  off: {{source: 'rtsp://127.0.0.1:{refusing_port()}/x'}}\n",
        2.5,
    )
    assert_accounted(report)
    assert report["cameras"]["off"]["state"] == "failed"
    assert report["cameras"]["off"]["captured"] == 0
    assert report["batches"]["failed"] == 0
    for i in range(3):
        camera = report["cameras"][f"c{i}"]
        assert camera["captured"] == pytest.approx(75, abs=5)
        assert camera["detected"] + camera["detections_late"] > 5


def test_ultralytics_3559_no_batch_waits_for_the_slowest_or_repeats_a_frame(tmp_path: Path) -> None:
    cameras = "".join(
        f"  c{fps}: {{source: '{synthetic(fps=fps, seed=fps)}'}}\n" for fps in (30, 10, 1)
    )
    path = tmp_path / "t.jsonl"
    report = run_daemon(
        tmp_path,
        FAKE + f"scheduling: {{keyframe_interval: 1}}\ncameras:\n{cameras}",
        3,
        trace=path,
    )
    assert_accounted(report)
    trace = read_trace(path)
    seen = [frame for batch in trace.batches for frame in batch.frames]
    assert len(seen) == len(set(seen)) > 40
    for fps in (30, 10, 1):
        camera = report["cameras"][f"c{fps}"]
        # Each at its own rate, none at another's; the 30 fps camera may be thinned when busy.
        found = camera["detected"] + camera["detections_late"]
        assert found <= camera["captured"] <= 3 * fps + 3
        assert found >= 3 * fps * 0.3 - 1
        assert camera["latency_ms"]["answer"]["p50"] < 100


def test_roboflow_2976_counters_add_up_and_a_dead_source_shows(tmp_path: Path) -> None:
    """What was captured, inferred, dropped; and how old the last frame is."""
    live: dict[str, dict[str, object]] = {}

    def look(daemon: object) -> None:
        def later() -> None:
            live.update(daemon.snapshot()["cameras"])  # type: ignore[attr-defined]

        threading.Timer(2.1, later).start()

    report = run_daemon(
        tmp_path,
        FAKE
        + f"cameras:\n  good: {{source: '{synthetic()}'}}\n"
        + f"  dies: {{source: '{synthetic(hang_after_s=0.7)}', stall_s: 20}}\n"
        + "  never: {source: nothing.mp4}\n",
        2.6,
        look,
    )
    assert_accounted(report)
    for camera in report["cameras"].values():
        assert camera["detected"] <= camera["captured"] and camera["balanced"]
    ages_s = {name: camera["live"]["last_frame_age_s"] for name, camera in live.items()}  # type: ignore[index]
    assert 0.0 <= ages_s["good"] < 1.0 < ages_s["dies"]
    assert ages_s["never"] is None


def test_motion_1122_a_camera_that_refuses_costs_nearly_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No listener, a server that hangs up at once, an empty file; and a file that is over."""
    (tmp_path / "empty.webm").touch()
    over = odd.encode(tmp_path / "over.mp4", frames=3)
    accepted: list[float] = []

    def hang_up(_client: object, _over: object) -> None:
        accepted.append(time.monotonic())

    sink = CollectingSink()
    with serving(hang_up, "hang-up") as port:
        sources = {
            "refused": f"rtsp://127.0.0.1:{refusing_port()}/x",
            "hangs_up": f"http://127.0.0.1:{port}/x",
            "empty": str(tmp_path / "empty.webm"),
            "over": str(over),
        }
        with running(sink, *(CameraSettings(name, url) for name, url in sources.items())):
            sink.wait_state(CameraState.ENDED, "over")
            began_s, cpu_s = time.monotonic(), time.process_time()
            with contextlib.suppress(AssertionError):
                sink.wait(lambda: False, 1.8)
            cpu_s = time.process_time() - cpu_s
            took_s = time.monotonic() - began_s
    assert cpu_s < 0.3 * took_s
    assert len(accepted) <= 5
    for name in ("refused", "hangs_up", "empty"):
        assert sink.states(name)[-1] is FAILED
        # The library has two words for a server that hangs up.
        assert caplog.text.count(f"camera {name}:") <= 4
    assert sink.states("over").count(CameraState.ENDED) == 1


def test_openfollow_128_a_wrong_password_is_unauthorized_and_tried_rarely() -> None:
    sink = CollectingSink()
    with http_status(401) as asked:
        settings = CameraSettings("c", asked.url, username="joe", password="wrong")
        with running(sink, settings):
            status = sink.wait_state(CameraState.UNAUTHORIZED)
            tries = len(asked.paths)
            with contextlib.suppress(AssertionError):
                sink.wait(lambda: False, 1.3)
            assert len(asked.paths) == tries  # the next one is a minute away
    assert "check username and password" in status.reason
    assert RUNNING not in sink.states() and not sink.frames
