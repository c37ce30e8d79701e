"""Files through PyAV: pace, order, names, damage."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from urllib.parse import quote

import av
import cv2
import numpy as np
import pytest

from tests.lab import clips
from tests.lab.raw_frames import inner, letterboxed
from tests.lab.sink import CollectingSink, running
from vidserve.capture.bgr_picture import BgrPicture
from vidserve.capture.camera import CameraSettings
from vidserve.capture.opencv import OpenCvReader
from vidserve.capture.pyav import PyAvReader
from vidserve.capture.reader import Picture
from vidserve.capture.urls import is_url, with_login, without_login
from vidserve.clock import RealClock
from vidserve.errors import CaptureError, SourceUnreachable, SourceUnusable
from vidserve.frames import Bucket, CameraState

VIDEOS = Path(__file__).resolve().parents[2] / "shared" / "videos"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320x180, 30 fps, 60 frames."""
    return clips.write(tmp_path_factory.mktemp("clips") / "clip.mp4")


def read_all(path: Path | str, loops: int = 0) -> list[tuple[float | None, Picture]]:
    """Every picture of a file with its pts."""
    reader = PyAvReader(CameraSettings("c", str(path)), RealClock())
    reader.open()
    pictures: list[tuple[float | None, Picture]] = []
    try:
        while True:
            expected_s = reader.expected_pts_s()
            arrival = reader.read()
            if arrival is None:
                if not loops:
                    return pictures
                loops -= 1
                reader.rewind()
                continue
            if arrival.pts_s is not None:
                # The guess is never late, or a picture would be decoded after it was due.
                assert expected_s is not None and expected_s <= arrival.pts_s + 1e-9
            pictures.append((arrival.pts_s, arrival.picture))
    finally:
        reader.close()
        reader.close()


def test_a_file_plays_at_its_pace(clip: Path) -> None:
    sink = CollectingSink(keyframe_every=4)
    with running(sink, CameraSettings("c", str(clip))):
        sink.wait_state(CameraState.ENDED)
    assert sink.states() == [CameraState.CONNECTING, CameraState.RUNNING, CameraState.ENDED]
    sink.check_accounts("c")
    frames = sink.of("c")
    assert len(frames) + sum(drop[3] for drop in sink.drops) >= 60
    neighbours = [(a, b) for a, b in itertools.pairwise(frames) if b.seq == a.seq + 1]
    gaps = [b.captured_s - a.captured_s for a, b in neighbours]
    assert np.median(gaps) == pytest.approx(1 / 30, abs=1e-4)
    # 59 steps of 1/30 s were due; a loaded machine may add lost time, never take some away.
    assert frames[-1].captured_s - frames[0].captured_s >= 50 / 30


def test_a_looped_file_goes_on_at_its_pace(clip: Path) -> None:
    sink = CollectingSink()
    with running(sink, CameraSettings("c", str(clip), loop=True)):
        sink.wait(lambda: len(sink.frames) > 75)
    frames = sink.of("c")
    neighbours = [(a, b) for a, b in itertools.pairwise(frames) if b.seq == a.seq + 1]
    gaps = [b.captured_s - a.captured_s for a, b in neighbours]
    assert max(gaps) < 1.1 and np.median(gaps) == pytest.approx(1 / 30, abs=1e-3)
    assert CameraState.ENDED not in sink.states()
    sink.check_accounts("c")


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts", "clip.h264", "clip.avi"])
def test_every_container_loops_completely(tmp_path: Path, name: str) -> None:
    path = clips.write(tmp_path / name, frames=40)
    count = len(read_all(path))
    assert count == 40
    assert len(read_all(path, loops=2)) == 3 * 40


def test_reordered_pictures_come_in_order(tmp_path: Path) -> None:
    options = {"preset": "veryfast", "bf": "3", "g": "24", "crf": "20"}
    path = clips.write(tmp_path / "b.mp4", frames=72, options=options)
    times = [pts for pts, _ in read_all(path)]
    assert len(times) == 72
    assert np.diff(np.array(times, float)) == pytest.approx(np.full(71, 1 / 30), abs=1e-6)


def test_a_variable_rate_keeps_its_gaps(tmp_path: Path) -> None:
    pts = [0, 33, 66, 100, 133, 833, 866, 1000, 1033]
    path = clips.write(tmp_path / "vfr.mkv", frames=len(pts), pts=pts)
    sink = CollectingSink()
    # A gap that is longer than the stall limit is no stall: the next picture is not due yet.
    with running(sink, CameraSettings("c", str(path), stall_s=0.5)):
        sink.wait_state(CameraState.ENDED)
    assert CameraState.STALLED not in sink.states()
    frames = sink.of("c")
    if not sink.drops:
        times = [frame.captured_s - frames[0].captured_s for frame in frames]
        assert times == pytest.approx([value / 1000 for value in pts], abs=0.002)
    sink.check_accounts("c")


@pytest.mark.parametrize(
    "name",
    ["-dash.mp4", "a#b.mp4", "a%41.mp4", "a b.mp4", "a:b.mp4", "http:x.mp4", "ü?x=1.mp4", "-i"],
)
def test_any_file_name_is_a_path(
    tmp_path: Path, clip: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(clip.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert len(read_all(name)) == 60


def test_a_size_that_changes_in_mid_stream_is_shown(tmp_path: Path) -> None:
    parts = [clips.write(tmp_path / f"{w}.h264", w, 180, frames=30) for w in (320, 256)]
    path = tmp_path / "both.h264"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    sink = CollectingSink(keyframe_every=2)
    with running(sink, CameraSettings("c", str(path), realtime=False)):
        sink.wait_state(CameraState.ENDED)
    assert sink.sizes == [(320, 180), (256, 180)]
    assert len(sink.frames) == 60
    sink.check_accounts("c")


def test_damage_in_the_middle_is_played_beyond_and_marked(tmp_path: Path) -> None:
    path = clips.write(tmp_path / "c.mkv", frames=120)
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(3)
    for at in rng.integers(len(data) // 4, len(data) // 2, 400):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))
    sink = CollectingSink(keyframe_every=1)
    with running(sink, CameraSettings("c", str(path), realtime=False)):
        sink.wait(lambda: sink.states()[-1] in (CameraState.ENDED, CameraState.FAILED))
    assert sink.states()[-1] is CameraState.ENDED
    assert len(sink.frames) > 40
    assert any(frame.corrupt for frame in sink.frames)
    assert CameraState.DEGRADED in sink.states()
    sink.check_accounts("c")


def test_a_file_that_is_cut_plays_as_far_as_it_goes(tmp_path: Path, clip: Path) -> None:
    path = clips.write(tmp_path / "c.mkv", frames=60)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    sink = CollectingSink()
    with running(sink, CameraSettings("c", str(path), realtime=False)):
        sink.wait_state(CameraState.ENDED)
    assert 20 <= len(sink.frames) < 60


@pytest.mark.parametrize("kind", ["none", "empty", "junk", "directory", "audio", "cut"])
def test_what_cannot_be_played_fails_with_a_reason(
    tmp_path: Path, clip: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "f.mp4"
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "junk":
        path.write_bytes(np.random.default_rng(1).bytes(50_000))
    elif kind == "directory":
        path.mkdir()
    elif kind == "audio":
        with av.open(str(path), "w") as output:
            stream = output.add_stream("aac", rate=44100)
            frame = av.AudioFrame.from_ndarray(
                np.zeros((1, 44100), np.float32), format="fltp", layout="mono"
            )
            frame.sample_rate = 44100
            assert isinstance(stream, av.AudioStream)
            output.mux(stream.encode(frame))
            output.mux(stream.encode())
    elif kind == "cut":
        path.write_bytes(clip.read_bytes()[:3000])
    sink = CollectingSink()
    with running(sink, CameraSettings("c", str(path))):
        status = sink.wait_state(CameraState.FAILED)
        # It is tried again, without a word.
        sink.wait(lambda: True)
    assert str(path) in status.reason and len(status.reason) > len(str(path)) + 10
    assert CameraState.RUNNING not in sink.states()
    assert caplog.text.count("failed") <= 1


def test_a_stream_that_never_decodes_fails_within_the_start_limit(tmp_path: Path) -> None:
    """Joined after its only headers: packets, but no picture."""
    whole = clips.write(tmp_path / "w.ts", frames=90, options={"g": "90", "bf": "0"})
    data = whole.read_bytes()
    cut = 188 * (len(data) // 188 // 3)
    path = tmp_path / "mid.ts"
    path.write_bytes(data[: 188 * 3] + data[cut:])  # the tables, then the middle
    sink = CollectingSink()
    with running(sink, CameraSettings("c", str(path), start_s=3.0)):
        status = sink.wait_state(CameraState.FAILED)
    assert "no frames decoded" in status.reason or "no video" in status.reason
    assert not sink.frames


def test_opening_and_failing_leaves_no_file_open(tmp_path: Path, clip: Path) -> None:
    junk = tmp_path / "junk.mp4"
    junk.write_bytes(clip.read_bytes()[:3000])

    def once() -> None:
        assert read_all(clip)[0][0] == 0.0
        with pytest.raises(CaptureError):
            read_all(junk)

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        once()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_file_url_is_a_path(tmp_path: Path, clip: Path) -> None:
    path = tmp_path / "a b.mp4"
    path.write_bytes(clip.read_bytes())
    assert len(read_all(f"file://{quote(str(path))}")) == 60


def test_urls_and_logins() -> None:
    assert is_url("rtsp://h/1") and is_url("rtsp+x://h") and is_url("HTTP://h")
    assert not is_url("-x.mp4") and not is_url("/a/b:c.mp4") and not is_url("a b://c")
    url = with_login("rtsp://old:pw@h:554/a?b=c", "jo@e", "p/ä:?#")
    assert url == "rtsp://jo%40e:p%2F%C3%A4%3A%3F%23@h:554/a?b=c"
    assert without_login(url) == "rtsp://h:554/a?b=c"
    assert with_login("rtsp://h/a", "", "") == "rtsp://h/a"


class FileAsDevice:
    """A file that gives its pictures out as a camera does: one at a time, after a while."""

    def __init__(self, device: str | int) -> None:
        self._file = cv2.VideoCapture(str(device), cv2.CAP_FFMPEG)
        self.isOpened, self.get = self._file.isOpened, self._file.get
        self.retrieve, self.release = self._file.retrieve, self._file.release

    def grab(self) -> bool:
        time.sleep(0.01)
        return bool(self._file.grab())


def test_the_opencv_reader_reads_what_its_capture_gives(clip: Path) -> None:
    sink = CollectingSink(keyframe_every=3)
    settings = CameraSettings("c", str(clip), reader="opencv")
    with running(sink, settings, factory=lambda s, clock: OpenCvReader(s, clock, FileAsDevice)):
        status = sink.wait_state(CameraState.CONNECTING)
        sink.wait(lambda: "ended the stream" in sink.statuses[-1].reason)
    assert status.camera == "c"
    assert sink.sizes == [(320, 180)]
    assert len(sink.frames) >= 60
    sink.check_accounts("c")
    picture = BgrPicture(clips.picture(0, 320, 180)[:, :, ::-1].copy())
    pixels, geometry = letterboxed(picture, Bucket(192, 160))
    expected = cv2.resize(clips.picture(0, 320, 180), (160, 90), interpolation=cv2.INTER_AREA)
    assert (inner(pixels, geometry) == expected).all()


@pytest.mark.parametrize("source", ["/dev/video98", 97, "96"])
def test_a_missing_device_says_so(source: str | int) -> None:
    sink = CollectingSink()
    with running(sink, CameraSettings("c", source)):
        status = sink.wait_state(CameraState.FAILED)
    assert "there is no device /dev/video9" in status.reason


def test_errors_of_capture_form_one_tree() -> None:
    assert issubclass(SourceUnreachable, CaptureError) and issubclass(SourceUnusable, CaptureError)
