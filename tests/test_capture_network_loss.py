"""Pictures lost on the way over RTSP are damage that shows, whatever the codec and its order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import clips, rtp
from tests.lab.scripted_rtsp import ScriptedRtsp
from tests.lab.servers import RTSP_READERS
from tests.lab.sink import CollectingSink, running
from vidserve.capture.camera import CameraSettings
from vidserve.frames import CameraState

H265 = {"preset": "ultrafast", "x265-params": "bframes=0:keyint=15:log-level=none"}
B_FRAMES = {"preset": "veryfast", "bf": "2", "b_strategy": "0", "g": "15", "crf": "20"}


def play_with_losses(clip: rtp.Coded, reader: str, lost: int, until: CameraState) -> CollectingSink:
    """Every packet is a picture; the ``lost``-th after each key picture but the first two is."""
    sink = CollectingSink(keyframe_every=2)
    with ScriptedRtsp(rtp.sdp_for(clip)) as server:
        server.on_play = lambda one: one.play(
            clip,
            rtp.Packetiser(clip.codec, limit=60_000),
            lose=lambda number: number > 29 and number % 15 == lost,
        )
        settings = CameraSettings("c", server.url, reader=reader, start_s=2.0, stall_s=1.0)
        with running(sink, settings):
            sink.wait(lambda: until in sink.states() and len(sink.frames) > 70)
    sink.check_accounts("c")
    assert all(frame.slot is None for frame in sink.frames if frame.corrupt)
    return sink


@pytest.mark.parametrize("reader", RTSP_READERS)
def test_a_lost_picture_of_h265_is_damage_and_no_gap(reader: str, tmp_path: Path) -> None:
    clip = rtp.coded(
        clips.write(tmp_path / "a.mp4", 192, 108, frames=30, codec="libx265", options=H265)
    )
    sink = play_with_losses(clip, reader, 5, CameraState.DEGRADED)
    assert sink.states() == [CameraState.CONNECTING, CameraState.RUNNING, CameraState.DEGRADED]
    damaged = [frame.corrupt for frame in sink.frames[35:]]
    assert sum(damaged) > len(damaged) / 3


def test_a_picture_lost_while_a_key_picture_waits_in_the_decoder_is_damage(
    tmp_path: Path,
) -> None:
    # FFmpeg's demuxer does not tell what was lost: with it this is not seen.
    clip = rtp.coded(clips.write(tmp_path / "a.mp4", 192, 108, frames=30, options=B_FRAMES))
    sink = play_with_losses(clip, "rtsp", 1, CameraState.DEGRADED)
    damaged = [frame.corrupt for frame in sink.frames[35:]]
    assert sum(damaged) > len(damaged) / 2
