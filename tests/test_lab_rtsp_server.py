"""The laboratory's GStreamer server does as it says; PyAV is the client."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import av
import av.error
import numpy as np
import pytest
from av.container import InputContainer

from tests.lab import clips, clock_picture, rtp
from tests.lab.leaks import no_leak
from tests.lab.servers import RtspServer, need_rtsp
from tests.lab.unit_files import read_units, write_units

B_FRAMES = {"preset": "veryfast", "bf": "2", "g": "30", "crf": "20"}
B_FRAMES_265 = {
    "preset": "ultrafast",
    "x265-params": "bframes=2:b-adapt=0:log-level=none",
}


@pytest.fixture(autouse=True, scope="module")
def _rtsp() -> None:
    need_rtsp()


@contextlib.contextmanager
def opened(url: str, transport: str = "tcp", read_s: float = 5.0) -> Iterator[InputContainer]:
    options = {"rtsp_transport": transport, "analyzeduration": "300000"}
    with av.open(url, options=options, timeout=(10.0, read_s)) as container:
        yield container


def pictures(container: InputContainer, count: int) -> list[av.VideoFrame]:
    return list(itertools.islice(container.decode(video=0), count))


@pytest.mark.parametrize(
    ("codec", "transport", "b_frames"),
    [("h264", "udp", 2), ("h265", "tcp", 0)],
)
def test_a_test_picture_tells_when_it_was_drawn(
    codec: rtp.Codec, transport: str, b_frames: int
) -> None:
    with RtspServer(codec=codec, b_frames=b_frames, size=(320, 192)) as server:
        with opened(server.url, transport) as container:
            context = container.streams.video[0].codec_context
            ages_s, kinds = [], set()
            for frame in pictures(container, 20):
                drawn_s = clock_picture.read(frame.to_ndarray(format="gray"))
                assert drawn_s is not None
                ages_s.append(time.monotonic() - drawn_s)
                kinds.add(int(frame.pict_type))
            assert context.name == {"h264": "h264", "h265": "hevc"}[codec]
            assert (context.width, context.height) == (320, 192)
    assert (3 in kinds) is bool(b_frames)
    assert 0.0 < ages_s[-1] < 1.5


def test_a_clip_with_reordered_pictures_plays_on_over_its_end(tmp_path: Path) -> None:
    clip = clips.write(tmp_path / "b.mp4", frames=12, options=B_FRAMES)
    with RtspServer(clip) as server, opened(server.url) as container:
        frames = pictures(container, 25)[1:]
    times = np.array([frame.time for frame in frames])
    assert np.diff(times) == pytest.approx(1 / 30, abs=0.001)
    assert any(int(frame.pict_type) == 3 for frame in frames)
    assert not any(frame.is_corrupt for frame in frames)


@pytest.mark.parametrize("digest", [False, True])
def test_it_asks_for_a_login(digest: bool) -> None:
    with RtspServer(user="joe", password="right", digest=digest) as server:
        with pytest.raises(av.error.HTTPUnauthorizedError), opened(server.url):
            pass
        with opened(server.url.replace("://", "://joe:right@")) as container:
            assert pictures(container, 1)
        assert server.stats().connections == 2


def test_it_falls_silent_with_the_session_open_and_goes_on() -> None:
    size = (320, 192)
    with no_leak(), RtspServer(size=size, mounts=3) as server:
        with opened(server.url_of(0)) as first, opened(server.url_of(2)) as other:
            assert pictures(first, 2) and pictures(other, 2)
            server.mute(mount=0)
            sent = server.stats(mount=0).sent
            assert pictures(other, 15)  # half a second
            assert server.stats(mount=0).sent == sent
            assert server.stats().clients == 2
            server.mute(False, mount=0)
            on_s = time.monotonic()
            drawn: list[float] = []  # what was under way comes first, then what is smeared
            for frame in first.decode(video=0):
                read_s = clock_picture.read(frame.to_ndarray(format="gray"))
                drawn += [read_s] if read_s is not None else []
                if drawn[-1] > on_s:
                    break
            assert max(np.diff(drawn)) > 0.3
        with pytest.raises(av.error.HTTPNotFoundError), opened(server.url_of(3)):
            pass


def test_it_closes_dies_and_comes_back() -> None:
    with no_leak(), RtspServer() as server:
        port = server.port
        for end in (server.close_connections, server.kill):
            with opened(server.url) as container:
                assert pictures(container, 2)
                end()
                # It ends, or breaks: FFmpeg takes either for the end of a stream.
                with contextlib.suppress(av.error.FFmpegError):
                    assert len(pictures(container, 300)) < 300
        with pytest.raises(OSError), opened(server.url):
            pass
        server.start()
        assert server.port == port
        with opened(server.url) as container:
            assert pictures(container, 2)


def test_it_closes_each_connection_after_its_time() -> None:
    with RtspServer(close_after_s=1.0) as server, opened(server.url) as container:
        began_s = time.monotonic()
        with contextlib.suppress(av.error.FFmpegError):
            assert len(pictures(container, 300)) < 40
        assert time.monotonic() - began_s < 5.0
        assert server.stats().clients == 0


def test_the_size_of_h265_changes_in_the_same_session(tmp_path: Path) -> None:
    two = [
        clips.write(tmp_path / f"{w}.mp4", w, h, frames=30, codec="libx265", options=B_FRAMES_265)
        for w, h in ((320, 180), (256, 144))
    ]
    with RtspServer(two) as server, opened(server.url) as container:
        sizes: list[tuple[int, int]] = []
        for number, frame in enumerate(container.decode(video=0)):
            if number in (5, 25):
                server.play_clip(1 if number == 5 else 0)
            if (frame.width, frame.height) not in sizes[-1:]:
                sizes.append((frame.width, frame.height))
            if len(sizes) == 3:
                break
            assert number < 150
        assert server.stats().connections == 1
    assert sizes == [(320, 180), (256, 144), (320, 180)]


def test_it_loses_and_reorders_packets_over_udp() -> None:
    with RtspServer(size=(640, 360)) as server, opened(server.url, "udp") as container:
        assert not any(frame.is_corrupt for frame in pictures(container, 5))
        server.disturb(reorder=0.2)
        assert not any(frame.is_corrupt for frame in pictures(container, 20))  # FFmpeg sorts them
        late = server.stats().late
        assert late > 2
        server.disturb(loss=0.1)
        damaged = [frame.is_corrupt for frame in pictures(container, 40)]
        stats = server.stats()
    assert any(damaged)
    assert 0.02 < stats.lost / (stats.lost + stats.sent) < 0.2
    assert stats.late == late


def test_a_clock_that_is_half_covered_is_none() -> None:
    plane = np.frombuffer(clock_picture.draw(320, 180, 1234.567), np.uint8)[: 320 * 180]
    grey = plane.reshape(180, 320).copy()
    assert clock_picture.read(grey) == 1234.567
    assert clock_picture.read(grey[::2, ::2]) == 1234.567
    grey[:, 100:200] = 0
    assert clock_picture.read(grey) is None


def test_unit_files_hold_what_was_written(tmp_path: Path) -> None:
    units = [(0.0, b"\0\0\0\1abc"), (0.5, b""), (0.25, b"\n{}\n")]
    path = write_units(tmp_path / "a.units", "h265", 12.5, units)
    assert read_units(path) == ("h265", 12.5, units)


def test_a_server_that_cannot_start_says_why() -> None:
    with no_leak(), pytest.raises(AssertionError, match="no-such-folder"):
        with RtspServer(Path("/no-such-folder/clip.h264")):
            pass
