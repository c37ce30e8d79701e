"""Files of every kind play, or fail with a reason: those of ``../shared/videos`` and own ones.

The own ones are made by ``tests.lab.odd_files``: each kind that is in ``../shared``, and others.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lab import odd_files as odd
from tests.lab import odd_kinds
from tests.lab.http_servers import http_server
from tests.lab.odd_extra import MORE_FAIL, MORE_PARTLY, MORE_PLAY, NOT_YET
from tests.lab.odd_kinds import FAIL, PARTLY, PLAY, Right
from tests.lab.sink import CollectingSink, running
from tests.running import assert_accounted, read_lines, run_daemon
from vidserve.capture.camera import CameraSettings
from vidserve.capture.pacing import Pacer
from vidserve.capture.pyav import PyAvReader
from vidserve.capture.reader import Arrival
from vidserve.clock import RealClock
from vidserve.frames import CameraState

VIDEOS = Path(__file__).resolve().parents[2] / "shared" / "videos"
ENDED, FAILED, DEGRADED = CameraState.ENDED, CameraState.FAILED, CameraState.DEGRADED


def play(path: Path, start_s: float = 2.0) -> CollectingSink:
    """As fast as it goes, to its end or failure."""
    sink = CollectingSink(keyframe_every=2)
    camera = CameraSettings("c", str(path), realtime=False, start_s=start_s)
    with running(sink, camera):
        sink.wait(lambda: sink.states()[-1] in (ENDED, FAILED))
    return sink


def arrivals(path: Path, most: int = 100_000) -> tuple[list[Arrival], float | None]:
    """What the reader gives out, and the rate that the file claims."""
    reader = PyAvReader(CameraSettings("c", str(path)), RealClock())
    reader.open()
    found: list[Arrival] = []
    try:
        while len(found) < most and (arrival := reader.read()) is not None:
            found.append(arrival)
        return found, reader.nominal_fps
    finally:
        reader.close()


def gaps_s(path: Path) -> npt.NDArray[np.float64]:
    """Between frames as a punctual thread would give them out, on a manual clock."""
    found, nominal_fps = arrivals(path)
    pacer, now_s, dues = Pacer(0.033, nominal_fps), 0.0, []
    for arrival in found:
        now_s = max(now_s, pacer.wake_s(arrival.pts_s, now_s))
        due = pacer.picture(arrival.pts_s, now_s)
        assert not due.missed and not due.lost
        dues.append(due.due_s)
    return np.diff(dues)


def check(path: Path, right: Right) -> None:
    """Play it and compare with what is right."""
    sink = play(path, 10.0 if right.fails == "no frames decoded" else 2.0)
    states = sink.states()
    if right.fails:
        assert states == [CameraState.CONNECTING, FAILED], sink.statuses
        assert right.fails in sink.statuses[-1].reason
        assert not sink.frames and not sink.drops
        return
    assert states[-1] is ENDED, sink.statuses
    assert right.degraded in (None, DEGRADED in states)
    assert CameraState.STALLED not in states
    assert sink.frames and not sink.drops
    assert right.frames in (None, len(sink.frames))
    assert right.sizes is None or sink.sizes == list(right.sizes)
    damaged = sum(frame.corrupt for frame in sink.frames)
    assert damaged >= right.damaged
    assert bool(right.damaged) or not damaged or right.degraded is not False
    sink.check_accounts("c")
    gaps = gaps_s(path)
    assert (gaps >= 0.0).all()
    if right.usual_s is not None:
        assert np.median(gaps) == pytest.approx(right.usual_s, rel=0.05)
    if right.lasts_s is not None:
        assert gaps.sum() == pytest.approx(right.lasts_s, rel=0.06)
    if right.most_s is not None:
        assert gaps.max() <= right.most_s


# -- ../shared/videos ------------------------------------------------------------------------

SHARED: dict[str, Right] = {
    "people.mp4": Right(302, [(1920, 1080)], usual_s=1 / 30, most_s=0.05),
    "car-detection.mp4": Right(377, [(768, 432)], usual_s=1 / 12.5, most_s=0.1),
    "one-by-one-person-detection.mp4": Right(1394, [(768, 432)], usual_s=0.1, most_s=0.15),
    "bottle-detection.mp4": Right(1189, [(640, 360)], usual_s=6 / 179, most_s=0.05),
    "pets_768x576_h264.avi": Right(100, [(768, 576)], usual_s=1 / 25, most_s=0.1),
    "highway_osd_320x240.avi": Right(748, [(320, 240)], lasts_s=30, most_s=0.2),
    "night_city_426x240.mp4": Right(None, [(426, 240)]),
    "rotated_90.mov": Right(None, [(320, 568)]),
    "rot90_metadata.mp4": Right(None, [(464, 848)]),
    "unordered_pts.mov": Right(),
    "corrupted.mp4": Right(28),
    "res_change_midstream.h264": Right(sizes=[(848, 464), (424, 232)], usual_s=1 / 25, most_s=0.05),
    "bad_task_info_pynv.mkv": Right(fails="no frames decoded"),
    "av1_video.mkv": Right(125),
    "android_slow_motion.mp4": Right(most_s=0.4),
    "no_duration.webm": Right(),
    "zero_bytes.webm": Right(fails="is an empty file"),
    "mp4_262_bytes_no_track.mp4": Right(fails="no video track"),
    "ts_with_junk.ts": Right(damaged=1, degraded=None),
    "failing_audio.mp4": Right(280),
    "h264_10bit.mp4": Right(),
    "-video-with-dash-.mp4": Right(5),
    "made/audio_only.mp4": Right(fails="no video track"),
    "made/truncated_no_moov.mp4": Right(fails="cut short"),
    "made/vfr_gaps.mp4": Right(68, most_s=0.4),
    "made/Камера 1 – Hof#2 %41 ü.mp4": Right(100),  # noqa: RUF001
    "made/odd_641x361_yuv444.mp4": Right(70, [(641, 361)]),
    "made/pts_jump_fwd_5000s_then_back.ts": Right(300, degraded=None, usual_s=0.1, most_s=0.2),
    "made/start_mid_gop.ts": Right(fails="no "),
    "made/packet_loss_1pct.ts": Right(196, damaged=22, degraded=True),
    "made/frozen_after_6s.mp4": Right(210, usual_s=0.1, most_s=0.15),
    "made/black_640x360.mp4": Right(150),
    "made/one_fps.mp4": Right(32, usual_s=1.0, most_s=1.1),
    "made/portrait_1080x1920.mp4": Right(40, [(1080, 1920)]),
    "made/mjpeg_768x576.avi": Right(80, [(768, 576)]),
    "made/interlaced_tff_25i.ts": Right(200, usual_s=0.04, most_s=0.05),
    "made/long_gop.ts": Right(200),
    "made/truncated.mkv": Right(120),
}


def shared(name: str) -> Path:
    path = VIDEOS / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


@pytest.mark.real
def test_every_shared_video_is_in_the_table() -> None:
    if not VIDEOS.is_dir():
        pytest.skip(f"needs {VIDEOS}")
    there = {str(p.relative_to(VIDEOS)) for p in VIDEOS.rglob("*") if p.is_file()}
    assert there - {"SOURCE.md"} == set(SHARED)


@pytest.mark.real
@pytest.mark.parametrize("name", SHARED)
def test_shared_videos_play_or_fail_as_their_table_says(name: str) -> None:
    check(shared(name), SHARED[name])


@pytest.mark.real
@pytest.mark.parametrize("name", ["rotated_90.mov", "rot90_metadata.mp4"])
def test_rotated_shared_videos_are_upright(name: str) -> None:
    path = shared(name)
    picture = arrivals(path, 1)[0][0].picture
    command = ["ffmpeg", "-v", "error", "-i", f"file:{path}", "-frames:v", "1"]
    try:
        raw = subprocess.run(
            [*command, "-f", "rawvideo", "-pix_fmt", "bgr24", "-"], capture_output=True, check=True
        ).stdout
    except FileNotFoundError:
        pytest.skip("needs Debian's ffmpeg")
    theirs = np.frombuffer(raw, np.uint8).reshape(picture.height, picture.width, 3)
    assert np.abs(picture.to_bgr().astype(int) - theirs).mean() <= 0.6


@pytest.mark.real
def test_shared_videos_through_the_daemon(tmp_path: Path) -> None:
    """Published sizes are those as shown, boxes lie within, and nothing is seen in the dark."""
    sizes = {
        "made/black_640x360.mp4": {(640, 360)},
        "rotated_90.mov": {(320, 568)},
        "rot90_metadata.mp4": {(464, 848)},
        "res_change_midstream.h264": {(848, 464), (424, 232)},
        "made/portrait_1080x1920.mp4": {(1080, 1920)},
        "made/Камера 1 – Hof#2 %41 ü.mp4": None,  # noqa: RUF001
    }
    cameras = "".join(
        f"  c{number}: {{source: {json.dumps(str(shared(name)))}, realtime: false}}\n"
        for number, name in enumerate(sizes)
    )
    report = run_daemon(
        tmp_path,
        "detector: {model: 'fake:3+2n', image_size: 320}\noutputs: [{jsonl: out.jsonl}]\n"
        f"scheduling: {{keyframe_interval: 1}}\ncameras:\n{cameras}",
        4,
    )
    assert_accounted(report)
    seen: dict[str, set[tuple[int, int]]] = {}
    boxes = dict.fromkeys(report["cameras"], 0)
    for line in read_lines(tmp_path / "out.jsonl"):
        seen.setdefault(line["camera"], set()).add((line["width"], line["height"]))
        boxes[line["camera"]] += len(line["objects"])
        for x1, y1, x2, y2 in (thing["box"] for thing in line["objects"]):
            assert 0 <= x1 < x2 <= line["width"] and 0 <= y1 < y2 <= line["height"]
    for number, (name, right) in enumerate(sizes.items()):
        assert right is None or seen[f"c{number}"] == right, name
    dark = report["cameras"]["c0"]
    assert boxes["c0"] == 0 and dark["detected"] + dark["detections_late"] > 0
    assert sum(boxes.values()) > 0


# -- files of our own ------------------------------------------------------------------------

_HANGS = ("pipe.mp4", "random.h264")


def cases(table: Iterable[str]) -> list[Any]:
    """The names, those that are not right yet marked so."""
    return [
        pytest.param(
            name,
            marks=[pytest.mark.xfail(reason=NOT_YET[name], strict=True, run=name not in _HANGS)]
            if name in NOT_YET
            else [],
        )
        for name in table
    ]


# One of each demuxer and decoder.
DAMAGEABLE = [
    "av1.mp4", "av1.obu", "vp9.webm", "vp8.ivf", "hevc.ts", "mpeg4-b.avi", "mpeg2-b.mpg",
    "raw.mjpeg", "prores-alpha.mov", "wmv.asf", "sorenson.flv", "animated.gif", "one.png",
    "one.jpg", "b_frames.mp4", "fragments.mp4", "wrap.ts", "raw.h264", "broken_audio.mkv",
    "subtitles_first.mkv",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd")


def shows(arrival: Arrival, index: int) -> bool:
    """Whether a picture is number ``index`` of the scene, upright."""
    picture = arrival.picture
    left, top, side = odd.square(index, (picture.width, picture.height))
    wide = picture.to_bgr().astype(int)
    rows, columns = np.nonzero(wide[..., 2] - wide[..., :2].max(axis=2) > 95)
    if len(rows) < 0.6 * side * side:
        return False
    # The square moves by 2 pixels a picture, so this is less than one picture off.
    off_px = np.subtract((columns.mean(), rows.mean()), np.add((left, top), (side - 1) / 2))
    return bool(np.abs(off_px).max() < 1.0)


@pytest.mark.parametrize("name", cases(PLAY | MORE_PLAY))
def test_what_can_be_played_shows_every_picture_in_order(folder: Path, name: str) -> None:
    make, right = (PLAY | MORE_PLAY)[name]
    path = folder / name
    make(path)
    check(path, right)
    found, _ = arrivals(path)
    wrong = [index for index, arrival in enumerate(found) if not shows(arrival, index)]
    assert not wrong


@pytest.mark.parametrize("name", cases(PARTLY | MORE_PARTLY))
def test_what_is_damaged_cut_or_odd_plays_as_far_as_it_goes(folder: Path, name: str) -> None:
    make, right = (PARTLY | MORE_PARTLY)[name]
    path = folder / name
    make(path)
    check(path, right)


@pytest.mark.parametrize("name", cases(FAIL | MORE_FAIL))
def test_what_cannot_be_played_fails_at_once_with_a_reason(folder: Path, name: str) -> None:
    make, reason = (FAIL | MORE_FAIL)[name]
    path = folder / name
    make(path)
    check(path, Right(fails=reason))


@pytest.mark.parametrize(("name", "quarters"), [("90.mp4", 1), ("180.mp4", 2), ("270.mp4", 3)])
def test_rotated_files_show_the_scene_upright(folder: Path, name: str, quarters: int) -> None:
    path = folder / f"upright_{name}"
    lying = odd.encode(
        odd.part(path, "a.mp4"),
        draw=lambda i, s: np.rot90(odd.scene(i, s if quarters == 2 else (s[1], s[0])), -quarters),
    )
    odd.remux(lying, path, degrees=(90, 180, -90)[quarters - 1])
    found, _ = arrivals(path)
    size = (found[0].picture.width, found[0].picture.height)
    assert size == ((96, 64) if quarters == 2 else (64, 96))
    assert all(shows(arrival, index) for index, arrival in enumerate(found))


def test_a_playlist_without_an_end_is_bounded(folder: Path) -> None:
    path = folder / "without_end.m3u8"
    odd_kinds.playlist("")(path)
    sink = CollectingSink()
    with running(sink, CameraSettings("c", str(path), realtime=False, start_s=2.0, stall_s=1.0)):
        sink.wait(lambda: {ENDED, CameraState.STALLED} & set(sink.states()) != set())
    assert len(sink.frames) >= 12


def test_text_from_a_web_server_is_no_video() -> None:
    def respond(handler: BaseHTTPRequestHandler, _over: threading.Event) -> None:
        body = b"please log in\n" * 200
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    sink = CollectingSink()
    with http_server(respond, "/login.txt") as asked:
        with running(sink, CameraSettings("c", asked.url, start_s=2.0)):
            sink.wait(lambda: len(sink.statuses) > 1)
    assert sink.states() == [CameraState.CONNECTING, FAILED]


def test_broken_files_touch_no_good_one_and_leave_nothing_behind(folder: Path) -> None:
    """All that fails at once beside a good file that plays in real time."""
    good = folder / "good.mp4"
    odd.encode(good, fps=30, frames=60)
    bad = [folder / f"bad_{name}" for name in FAIL if name not in ("missing.mp4", *NOT_YET)]
    for path in bad:
        FAIL[path.name.removeprefix("bad_")][0](path)
    before = len(os.listdir("/proc/self/fd"))
    sink = CollectingSink(keyframe_every=2)
    cameras = [CameraSettings(path.name, str(path), realtime=False) for path in bad]
    with running(sink, *cameras, CameraSettings("good", str(good))):
        sink.wait_state(ENDED, "good")
        sink.wait(lambda: all(FAILED in sink.states(path.name) for path in bad))
    assert len(sink.of("good")) + sum(drop[3] for drop in sink.drops) == 60
    assert CameraState.RUNNING not in {s for p in bad for s in sink.states(p.name)}
    sink.check_accounts("good")
    assert len(os.listdir("/proc/self/fd")) <= before


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_damage_plays_or_fails(folder: Path, data: st.DataObject) -> None:
    """Any of the files with some bytes changed, lost or added: an end, in bounded time."""
    name = data.draw(st.sampled_from(DAMAGEABLE))
    path = folder / f"fuzz_{name}"
    if not path.exists():
        PLAY[name][0](path)
    bytes_ = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, max(0, len(bytes_) - 1)))
        how = data.draw(st.sampled_from(["change", "lose", "add", "cut"]))
        if how == "change" and bytes_:
            bytes_[at] = data.draw(st.integers(0, 255))
        elif how == "lose":
            del bytes_[at : at + data.draw(st.integers(1, 200))]
        elif how == "add":
            bytes_[at:at] = data.draw(st.binary(min_size=1, max_size=50))
        elif at:
            del bytes_[at:]
    broken = folder / f"fuzzed_{name}"
    broken.write_bytes(bytes(bytes_))
    sink = play(broken)
    status = sink.statuses[-1]
    assert "internal error" not in status.reason
    assert all(0 < width and 0 < height for width, height in sink.sizes)
    assert (status.state is ENDED) == bool(sink.frames)
    sink.check_accounts("c")
