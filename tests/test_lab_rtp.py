"""The laboratory's packetiser, with FFmpeg as the judge."""

from __future__ import annotations

import itertools
import math
import struct

import av
import pytest

from tests.lab import clips, rtp
from tests.lab.scripted_rtsp import ScriptedRtsp

FRAMES = 30


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, rtp.Coded]:
    folder = tmp_path_factory.mktemp("rtp")
    found = {}
    for codec, library in (("h264", "libx264"), ("h265", "libx265")):
        options = {"preset": "ultrafast", "bf": "0", "g": "15", "crf": "18"}
        if codec == "h265":
            options = {"preset": "ultrafast", "x265-params": "bframes=0:keyint=15:log-level=none"}
        path = clips.write(folder / f"{codec}.mp4", frames=FRAMES, codec=library, options=options)
        found[codec] = rtp.coded(path)
    return found


@pytest.mark.parametrize("codec", ["h264", "h265"])
@pytest.mark.parametrize(
    ("limit", "aggregate", "marker"),
    [(1400, True, "right"), (100, True, "always"), (65_000, False, "never")],
)
def test_ffmpeg_reads_every_picture_of_every_packing(
    coded: dict[str, rtp.Coded], codec: str, limit: int, aggregate: bool, marker: rtp.Marker
) -> None:
    clip = coded[codec]
    packetiser = rtp.Packetiser(clip.codec, limit, aggregate, marker)
    with ScriptedRtsp(rtp.sdp_for(clip)) as server:
        server.on_play = lambda one: one.play(clip, packetiser, fps=math.inf)
        options = {"rtsp_transport": "tcp", "analyzeduration": "100000"}
        with av.open(server.url, options=options, timeout=10.0) as container:
            stream = container.streams.video[0]
            assert stream.codec_context.name == {"h264": "h264", "h265": "hevc"}[codec]
            frames = list(itertools.islice(container.decode(stream), 2 * FRAMES))
    assert {(frame.width, frame.height) for frame in frames} == {(320, 180)}
    assert not any(frame.is_corrupt for frame in frames)
    times = [frame.pts for frame in frames[1:]]  # FFmpeg gives the first none
    assert times == [3000 * number for number in range(1, 2 * FRAMES)]
    assert [one.method for one in server.requests][:4] == ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"]


@pytest.mark.parametrize("codec", ["h264", "h265"])
def test_packets_keep_the_limit_and_hold_every_byte(
    coded: dict[str, rtp.Coded], codec: str
) -> None:
    clip = coded[codec]
    for limit in (40, 333, 1400):
        packetiser = rtp.Packetiser(clip.codec, limit)
        pictures = packetiser.pack_all(clip)
        packets = [packet for picture in pictures for packet in picture]
        assert all(len(packet) <= 12 + limit for packet in packets)
        seqs = [struct.unpack_from("!H", packet, 2)[0] for packet in packets]
        assert all(b == a + 1 & 0xFFFF for a, b in itertools.pairwise(seqs))
        assert all(
            [packet[1] >> 7 for packet in picture] == [0] * (len(picture) - 1) + [1]
            for picture in pictures
        )
        assert sum(map(len, packets)) >= sum(len(nal) for unit in clip.units for nal in unit)


def test_a_clip_keeps_its_parameter_sets_and_pictures(coded: dict[str, rtp.Coded]) -> None:
    assert [rtp.nal_type("h264", one) for one in rtp.parameter_sets("h264", coded["h264"].units)][
        :2
    ] == [7, 8]
    kinds = [rtp.nal_type("h265", one) for one in rtp.parameter_sets("h265", coded["h265"].units)]
    assert kinds[:3] == [32, 33, 34]
    assert all(len(clip.units) == len(clip.pts_s) == FRAMES for clip in coded.values())
    assert rtp.split_annexb(b"\0\0\0\1\x09\xf0\0\0\1\x65\1\2\0\0\3\1") == [
        b"\x09\xf0",
        b"\x65\1\2\0\0\3\1",
    ]


def test_padding_extension_and_sources_of_a_packet() -> None:
    packet = rtp.rtp_packet(
        b"abc", 65_537, -1, marker=True, csrcs=[1, 2], extension=b"12345678", padding=4
    )
    assert packet[:2] == bytes([0xB2, 0xE0])
    assert struct.unpack_from("!HI", packet, 2) == (1, 0xFFFFFFFF)
    assert packet[12:20] == struct.pack("!II", 1, 2)
    assert packet[20:32] == b"\xbe\xde\0\2" + b"12345678"
    assert packet[32:] == b"abc\0\0\0\4"
