"""The own RTSP reader beside FFmpeg: the same pictures, no frame later, fallback where it must."""

from __future__ import annotations

import threading
from pathlib import Path

import av
import numpy as np
import pytest

from tests.lab import clips, rtp
from tests.lab.rtsp_messages import Answer
from tests.lab.scripted_rtsp import Connection, ScriptedRtsp
from tests.lab.sink import CollectingSink, running
from vidserve.capture.reader import Arrival, Reader
from vidserve.capture.settings import CameraSettings
from vidserve.capture.source import open_reader
from vidserve.clock import RealClock
from vidserve.frames import CameraState, DropReason

QUICK = {"preset": "ultrafast", "g": "15", "crf": "24"}
H265 = {"preset": "ultrafast", "x265-params": "keyint=15:bframes=0:log-level=none"}


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, rtp.Coded]]:
    """Clips of 60 pictures: plain, with B-frames, H.265, two sizes."""
    folder = tmp_path_factory.mktemp("streams")
    plain = clips.write(folder / "p.mp4", 320, 180, frames=60, options=QUICK | {"bf": "0"})
    b = QUICK | {"preset": "veryfast", "bf": "2", "b-pyramid": "none"}
    framed = clips.write(folder / "b.mp4", 320, 180, frames=60, options=b)
    hevc = clips.write(folder / "h.mp4", 320, 180, frames=60, codec="libx265", options=H265)
    return {
        "plain": (plain, rtp.coded(plain)),
        "bframes": (framed, rtp.coded(framed)),
        "hevc": (hevc, rtp.coded(hevc)),
    }


def opened(url: str, **more: object) -> Reader:
    reader = open_reader(CameraSettings("c", url, start_s=6.0, **more), RealClock())  # type: ignore[arg-type]
    reader.open()
    return reader


def read(reader: Reader, count: int) -> list[Arrival]:
    arrivals = []
    for _ in range(count):
        arrival = reader.read()
        assert arrival is not None
        arrivals.append(arrival)
    return arrivals


@pytest.mark.parametrize("name", ["plain", "bframes", "hevc"])
def test_the_same_pictures_as_ffmpeg_decodes_from_the_file(
    coded: dict[str, tuple[Path, rtp.Coded]], name: str
) -> None:
    path, clip = coded[name]
    with ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=90)) as server:
        reader = opened(server.url, reader="rtsp")
        arrivals = read(reader, 45)
        reader.close()
    with av.open(f"file:{path}") as container:
        truth = [frame.to_ndarray(format="bgr24") for frame in container.decode(video=0)][:45]
    for arrival, true in zip(arrivals, truth, strict=True):
        same = np.abs(arrival.picture.to_bgr().astype(int) - true.astype(int))
        assert same.max() <= 1
    times = [arrival.pts_s for arrival in arrivals]
    assert all(b > a for a, b in zip(times, times[1:], strict=False) if a and b)  # noqa: RUF007
    assert reader.facts().codec == clip.codec.replace("h265", "hevc")
    assert reader.facts().reorder == (1 if name == "bframes" else 0)
    assert [arrival.key for arrival in arrivals].count(True) == 3
    assert all(arrival.decode_s > 0.0 for arrival in arrivals)


def test_a_picture_is_there_before_the_next_one_is_sent(
    coded: dict[str, tuple[Path, rtp.Coded]],
) -> None:
    """The server sends the next picture only after this one was read. FFmpeg's reader waits."""
    _, clip = coded["plain"]
    arrived = threading.Semaphore(0)

    def in_step(one: Connection) -> None:
        packets = rtp.Packetiser("h264").pack_all(clip)
        for picture in packets[:20]:
            for packet in picture:
                one.send_rtp(packet)
            assert arrived.acquire(timeout=20.0), "the reader waits for the next picture"

    with ScriptedRtsp(rtp.sdp_for(clip), on_play=in_step) as server:
        reader = opened(server.url, reader="rtsp")
        for _ in range(20):
            read(reader, 1)
            arrived.release()
        reader.close()
    assert reader.reader_delay_s == 0.0


def test_a_camera_without_markers_is_read_a_frame_later_and_says_so(
    coded: dict[str, tuple[Path, rtp.Coded]],
) -> None:
    _, clip = coded["plain"]
    packetiser = rtp.Packetiser("h264", marker="never")
    play = lambda one: one.play(clip, packetiser, fps=60)  # noqa: E731
    with ScriptedRtsp(rtp.sdp_for(clip), on_play=play) as server:
        reader = opened(server.url, reader="rtsp")
        arrivals = read(reader, 20)
        assert reader.reader_delay_s == pytest.approx(1 / 30, abs=0.002)
        reader.close()
    assert not any(one.picture.corrupt for one in arrivals)


def test_auto_takes_ffmpeg_where_it_must_and_says_why(
    coded: dict[str, tuple[Path, rtp.Coded]],
) -> None:
    """A server that answers our SETUP with UDP, but would send over TCP if asked once more."""
    _, clip = coded["plain"]
    with ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=60)) as server:
        server.on("SETUP", Answer(461), None)
        reader = opened(server.url)
        read(reader, 5)
        facts = reader.facts()
        assert facts.reader == "pyav"
        assert "read by FFmpeg" in facts.note and "461" in facts.note
        assert reader.reader_delay_s > 0.0
        reader.close()
        assert len(server.connections) == 2


def test_auto_goes_over_to_ffmpeg_if_no_packet_can_be_read(
    coded: dict[str, tuple[Path, rtp.Coded]],
) -> None:
    """Packets of another payload type than announced, on the first connection only."""
    _, clip = coded["plain"]

    def play(one: Connection) -> None:
        kind = 97 if one.index == 0 else 96
        one.play(clip, rtp.Packetiser("h264", payload_type=kind), fps=60)

    with ScriptedRtsp(rtp.sdp_for(clip), on_play=play) as server:
        reader = opened(server.url)
        read(reader, 5)
        assert "not known here" in reader.facts().note
        assert reader.facts().reader == "pyav"
        reader.close()


def test_a_note_is_logged_once_however_often_the_camera_comes_back(
    coded: dict[str, tuple[Path, rtp.Coded]], caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = coded["plain"]
    sink = CollectingSink()
    with running(sink, CameraSettings("c", str(path), realtime=False, loop=True, decoder="none")):
        sink.wait(lambda: len(sink.of("c")) > 150)
    assert caplog.text.count("decoder none cannot be used") == 1


def test_auto_takes_the_own_reader_where_it_can(
    coded: dict[str, tuple[Path, rtp.Coded]],
) -> None:
    _, clip = coded["hevc"]
    with ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip)) as server:
        sink = CollectingSink(keyframe_every=3)
        with running(sink, CameraSettings("c", server.url)):
            sink.wait(lambda: len(sink.of("c")) >= 40)
            server.connections[0].hang_up()
            sink.wait(lambda: sink.states().count(CameraState.RUNNING) == 2)
        assert "closed the connection" in sink.statuses[2].reason
    assert not [drop for drop in sink.drops if drop[2] is not DropReason.STALE]
    sink.check_accounts("c")


@pytest.mark.parametrize("name", ["bframes", "plain"])
def test_in_a_hurry_pictures_that_no_other_needs_are_left_out_and_counted(
    coded: dict[str, tuple[Path, rtp.Coded]], name: str
) -> None:
    _, clip = coded[name]
    with ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=120)) as server:
        reader = opened(server.url, reader="rtsp", skip="nonref")
        reader.hurry(True)
        hurried = read(reader, 30)
        reader.close()
    steps = [b.pts_s - a.pts_s for a, b in zip(hurried, hurried[1:], strict=False)]  # type: ignore[operator]  # noqa: RUF007
    assert not any(one.picture.corrupt for one in hurried)
    if name == "plain":  # every picture is needed by the next
        assert reader.skipped == 0
        assert max(steps) < 0.04
    else:
        assert reader.skipped >= 25
        assert np.median(steps) >= 2 / 30 - 0.001


@pytest.mark.parametrize("name", ["bframes", "hevc", "plain"])
def test_files_skip_too_and_only_if_asked(
    coded: dict[str, tuple[Path, rtp.Coded]], name: str
) -> None:
    path, _ = coded[name]
    counts = {}
    for skip in ("none", "nonref"):
        reader = opened(str(path), skip=skip)
        reader.hurry(True)
        count = 0
        while reader.read() is not None:
            count += 1
        counts[skip] = (count, reader.skipped)
        reader.close()
    assert counts["none"] == (60, 0)
    assert sum(counts["nonref"]) == 60
    assert (counts["nonref"][1] > 20) is (name == "bframes")


@pytest.mark.parametrize("reader_name", ["rtsp", "pyav"])
def test_catching_up_goes_on_at_the_next_key_picture(
    coded: dict[str, tuple[Path, rtp.Coded]], reader_name: str
) -> None:
    _, clip = coded["plain"]
    with ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=90)) as server:
        reader = opened(server.url, reader=reader_name)
        read(reader, 3)
        reader.catch_up()
        after = read(reader, 5)
        reader.close()
    assert after[0].key and not any(one.picture.corrupt for one in after)
    assert 1 <= reader.skipped <= 14


@pytest.mark.parametrize("source", ["file", "rtsp"])
def test_a_decoder_that_is_not_there_falls_back_with_a_clear_message(
    coded: dict[str, tuple[Path, rtp.Coded]], source: str
) -> None:
    from av.codec.hwaccel import HWAccel

    try:
        av.CodecContext.create("h264", "r", hwaccel=HWAccel("cuda"))
    except (av.error.FFmpegError, OSError, RuntimeError, ValueError, NotImplementedError):
        pass
    else:
        pytest.skip("this machine decodes by cuda")
    path, clip = coded["plain"]
    with ScriptedRtsp(rtp.sdp_for(clip), on_play=lambda one: one.play(clip, fps=60)) as server:
        reader = opened(server.url if source == "rtsp" else str(path), decoder="cuda")
        read(reader, 5)
        facts = reader.facts()
        reader.close()
    assert facts.decoder == "cpu"
    assert "decoder cuda cannot be used" in facts.note and "by the CPU instead" in facts.note
