"""What the probe sees of real streams, by each reader: key pictures, B-frames, costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import clips
from tests.lab.servers import RTSP_READERS, RtspServer, need_rtsp
from vidserve.capture.settings import CameraSettings
from vidserve.capture.source import open_reader
from vidserve.clock import RealClock
from vidserve.probe.facts import Found, found
from vidserve.probe.measure import read
from vidserve.probe.report import report


def look(source: str | Path, for_s: float = 2.0, reader: str = "auto") -> Found:
    """The facts; the source has to play."""
    settings = CameraSettings("probe", str(source), reader=reader)
    seen = read(settings, for_s, RealClock(), open_reader)
    assert seen.trouble is None and not seen.hung
    assert report(seen, settings, "it").failed is False
    return found(seen)


@pytest.mark.parametrize("every", [10, 25])
def test_key_pictures_of_a_file(tmp_path: Path, every: int) -> None:
    options = {"preset": "ultrafast", "bf": "0", "g": str(every), "sc_threshold": "0"}
    facts = look(clips.write(tmp_path / "clip.mp4", frames=100, options=options))
    assert facts.keys is not None
    assert (facts.keys.seen, facts.keys.usual) == (100 // every, every)
    assert facts.key_usual_s == pytest.approx(every / 30)


def test_key_pictures_among_b_frames_are_those_that_are_shown(tmp_path: Path) -> None:
    options = {"preset": "veryfast", "bf": "2", "g": "24", "sc_threshold": "0"}
    facts = look(clips.write(tmp_path / "clip.mp4", frames=96, options=options))
    assert facts.keys is not None
    assert (facts.keys.seen, facts.keys.usual, facts.keys.longest) == (4, 24, 24)


def test_each_picture_of_mjpeg_is_a_key_picture(tmp_path: Path) -> None:
    clip = clips.write(tmp_path / "clip.avi", frames=20, codec="mjpeg", pix_fmt="yuvj420p")
    facts = look(clip)
    assert facts.keys is not None and (facts.keys.seen, facts.keys.usual) == (20, 1)


def test_decoding_costs_something_and_no_more_than_all(tmp_path: Path) -> None:
    facts = look(clips.write(tmp_path / "clip.mp4", 1280, 720, frames=60))
    assert facts.decode is not None and facts.cpu_s is not None
    assert 5e-5 < facts.decode.p50 < 0.1
    assert facts.decode.p50 <= facts.decode.p99 <= facts.decode.most


@pytest.mark.parametrize("reader", RTSP_READERS)
def test_a_camera_over_rtsp(tmp_path: Path, reader: str) -> None:
    need_rtsp()
    options = {"preset": "ultrafast", "bf": "0", "g": "15", "sc_threshold": "0"}
    with RtspServer(clips.write(tmp_path / "clip.mp4", frames=90, options=options)) as server:
        facts = look(server.url, 1.4, reader)
    assert facts.live and facts.corrupt == 0
    assert facts.fps == pytest.approx(30, rel=0.2)
    assert facts.stamps.fps == pytest.approx(30, rel=0.2)
    assert facts.reorder == 0
    assert facts.gaps is not None and 0.02 < facts.gaps.p50 < 0.05
    assert facts.first_s is not None and facts.first_s < 10
    assert facts.keys is not None and facts.keys.usual == pytest.approx(15, abs=2)
    assert facts.key_usual_s == pytest.approx(0.5, rel=0.3)
    assert facts.decode is not None and 0 < facts.decode.p50 < 0.1


@pytest.mark.parametrize("reader", RTSP_READERS)
def test_b_frames_over_rtsp(tmp_path: Path, reader: str) -> None:
    need_rtsp()
    options = {"preset": "veryfast", "bf": "2", "b-adapt": "0", "g": "30", "b-pyramid": "none"}
    with RtspServer(clips.write(tmp_path / "clip.mp4", frames=90, options=options)) as server:
        facts = look(server.url, 1.0, reader)
    assert facts.reorder == 1
    assert facts.reorder_s == pytest.approx(1 / 30, rel=0.3)
