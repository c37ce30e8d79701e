"""RTP packets into pictures: whole ones, cut ones, lost ones, and markers that lie."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab import clips, rtp
from vidserve.capture.rtsp.pictures import MOST_PICTURE_BYTES, AccessUnit, PictureBuilder
from vidserve.capture.rtsp.sdp import VideoMedia

CODECS: tuple[rtp.Codec, ...] = ("h264", "h265")


def media(codec: str, numbered: bool = False) -> VideoMedia:
    name = "h264" if codec == "h264" else "hevc"
    return VideoMedia(codec.upper(), name, 96, 90_000, "", b"", None, numbered)


class Clips(dict[str, rtp.Coded]):
    """With a short name for hypothesis."""

    def __repr__(self) -> str:
        return "clips"


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Clips:
    """Clips with several slices a picture and B-frames, a key picture every 12."""
    folder = tmp_path_factory.mktemp("rtp")
    h264 = {"preset": "veryfast", "bf": "2", "g": "12", "crf": "20", "slices": "3"}
    h265 = {
        "preset": "ultrafast",
        "x265-params": "keyint=12:slices=2:log-level=none:repeat-headers=1",
    }
    return Clips(
        h264=rtp.coded(clips.write(folder / "a.mp4", 320, 240, frames=40, options=h264)),
        h265=rtp.coded(
            clips.write(folder / "b.mp4", 320, 240, frames=40, codec="libx265", options=h265)
        ),
    )


def build(builder: PictureBuilder, packets: list[bytes]) -> list[AccessUnit]:
    return [unit for packet in packets for unit in builder.add(memoryview(packet))]


def flat(packets: list[list[bytes]]) -> list[bytes]:
    return list(itertools.chain.from_iterable(packets))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit", [60, 300, 1400, 60_000])
@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("marker", ["right", "never"])
def test_every_form_gives_the_same_pictures(
    coded: Clips,
    codec: rtp.Codec,
    limit: int,
    aggregate: bool,
    marker: rtp.Marker,
) -> None:
    clip = coded[codec]
    packetiser = rtp.Packetiser(codec, limit, aggregate, marker)
    builder = PictureBuilder(media(codec))
    found = build(builder, flat(packetiser.pack_all(clip, 0xFFFF_8000)))
    wanted = [rtp.annexb(unit) for unit in clip.units]
    if marker == "never":
        wanted.pop()  # nothing says that the last one is complete
    assert [bytes(one.data) for one in found] == wanted
    assert not any(one.damaged for one in found)
    stamps = [one.timestamp for one in found]
    assert max(stamps) - min(stamps) <= 40 * 3000  # over the wrap of 32 bits
    assert found[0].key and sum(one.key for one in found) == 4
    assert builder.waits_for_next is (marker == "never")
    assert builder.lost == builder.malformed == 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit", [60, 300, 1400, 60_000])
@pytest.mark.parametrize("aggregate", [False, True])
def test_markers_that_lie_are_found_out(
    coded: Clips, codec: rtp.Codec, limit: int, aggregate: bool
) -> None:
    """On every packet: a picture of several slices is torn once, and never again."""
    clip = coded[codec]
    builder = PictureBuilder(media(codec))
    packetiser = rtp.Packetiser(codec, limit, aggregate, "always")
    found = [bytes(one.data) for one in build(builder, flat(packetiser.pack_all(clip)))]
    wanted = [rtp.annexb(unit) for unit in clip.units]
    if found == wanted:  # each picture came in one packet: there the marker is right
        assert not builder.waits_for_next
        return
    assert b"".join(found) == b"".join(wanted[:-1])
    assert found[-37:] == wanted[2:-1]
    assert builder.waits_for_next


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_lost_marks_the_pictures_it_touches(coded: Clips, codec: rtp.Codec) -> None:
    clip = coded[codec]
    pictures = rtp.Packetiser(codec, 200).pack_all(clip)
    where = next(i for i, packets in enumerate(pictures) if i > 4 and len(packets) > 3)
    for gone in range(len(pictures[where])):
        builder = PictureBuilder(media(codec))
        kept = [list(packets) for packets in pictures]
        del kept[where][gone]
        found = build(builder, flat(kept))
        touched = {where, where + 1} if gone == len(pictures[where]) - 1 else {where}
        assert {i for i, one in enumerate(found) if one.damaged} <= touched
        assert any(one.damaged for one in found)
        assert builder.lost == 1
        assert len(found) == len(pictures)


@pytest.mark.parametrize("codec", CODECS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_any_loss_reorder_and_damage_stays_bounded_and_recovers(
    coded: Clips, codec: rtp.Codec, seed: int
) -> None:
    rng = random.Random(seed)
    clip = coded[codec]
    packetiser = rtp.Packetiser(codec, rng.choice([50, 200, 1400]), rng.random() < 0.5)
    pictures = packetiser.pack_all(clip)
    bad = flat(pictures[:-8])
    for _ in range(rng.randrange(60)):
        at = rng.randrange(len(bad))
        what = rng.randrange(6)
        if what == 0:
            bad[at] = b""
        elif what == 1:
            bad[at] = bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
        elif what == 2:
            other = rng.randrange(len(bad))
            bad[at], bad[other] = bad[other], bad[at]
        elif what == 3:
            bad.insert(at, bad[at])
        elif what == 4:
            bad[at] = bad[at][: rng.randrange(len(bad[at]) + 1)]
        else:
            flipped = bytearray(bad[at] or b"\x80")
            flipped[rng.randrange(min(len(flipped), 20))] ^= 1 << rng.randrange(8)
            bad[at] = bytes(flipped)
    builder = PictureBuilder(media(codec, numbered=codec == "h265" and rng.random() < 0.2))
    numbered = builder._media.numbered
    build(builder, bad)
    tail = flat(pictures[-8:])
    found = build(builder, tail)
    if not numbered:
        wanted = [rtp.annexb(unit) for unit in clip.units[-5:]]
        assert [bytes(one.data) for one in found][-5:] == wanted or builder._markers_lie
    assert builder.highest_seq >= 0


@given(st.lists(st.binary(max_size=120), max_size=40), st.sampled_from(CODECS), st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_packets_make_it_crash(packets: list[bytes], codec: str, numbered: bool) -> None:
    builder = PictureBuilder(media(codec, numbered))
    build(builder, packets)
    for number, payload in enumerate(packets):
        builder.add(
            memoryview(rtp.rtp_packet(payload, number, 3000 * (number // 3), number % 3 == 2))
        )


def test_a_picture_without_end_is_dropped() -> None:
    builder = PictureBuilder(media("h264"))
    part = bytes([0x7C, 0x01]) + bytes(60_000)
    builder.add(memoryview(rtp.rtp_packet(bytes([0x7C, 0x85, 0x80]) + bytes(100), 0, 0)))
    tracemalloc.start()
    for seq in range(1, 600):
        assert builder.add(memoryview(rtp.rtp_packet(part, seq, 0))) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert builder.malformed >= 1
    assert peak < 3 * MOST_PICTURE_BYTES
    (found,) = builder.add(memoryview(rtp.rtp_packet(b"\x65\x80good", 600, 3000, True)))
    assert found.damaged and bytes(found.data).endswith(b"\x65\x80good")


def test_headers_with_everything_in_them() -> None:
    builder = PictureBuilder(media("h264"))
    packet = rtp.rtp_packet(
        b"\x65\x80abc", 1, 90_000, True, csrcs=[1, 2], extension=b"12345678", padding=5
    )
    (found,) = builder.add(memoryview(packet))
    assert bytes(found.data) == b"\0\0\0\1\x65\x80abc"
    assert found.timestamp == 90_000 and found.key and not found.damaged
    assert builder.add(memoryview(rtp.rtp_packet(b"\x65\x80", 2, 0, True, payload_type=97))) == []
    assert builder.foreign == 1


def test_another_sender_takes_over() -> None:
    builder = PictureBuilder(media("h264"))
    builder.add(memoryview(rtp.rtp_packet(b"\x65\x80a", 60_000, 0, True, ssrc=1)))
    (found,) = builder.add(memoryview(rtp.rtp_packet(b"\x65\x80b", 7, 9_000, True, ssrc=2)))
    assert found.damaged and builder.lost == 0 and builder.ssrc == 2
    (found,) = builder.add(memoryview(rtp.rtp_packet(b"\x41\x80c", 8, 12_000, True, ssrc=2)))
    assert not found.damaged


def test_parameter_sets_ahead_of_their_picture_and_a_marker_on_them() -> None:
    builder = PictureBuilder(media("h264"))
    assert builder.add(memoryview(rtp.rtp_packet(b"\x67sps", 1, 0, True))) == []
    assert builder.add(memoryview(rtp.rtp_packet(b"\x68pps", 2, 500, True))) == []
    (found,) = builder.add(memoryview(rtp.rtp_packet(b"\x65\x80x", 3, 3_000, True)))
    assert bytes(found.data) == b"\0\0\0\1\x67sps\0\0\0\1\x68pps\0\0\0\1\x65\x80x"
    assert found.timestamp == 3_000 and not builder.waits_for_next


def test_neither_markers_nor_timestamps() -> None:
    builder = PictureBuilder(media("h264"))
    found = build(builder, [rtp.rtp_packet(b"\x41\x80" + bytes([n]), n, 7) for n in range(5)])
    assert [bytes(one.data)[-1] for one in found] == [0, 1, 2, 3]


def test_decoding_order_numbers_are_taken_out() -> None:
    builder = PictureBuilder(media("h265", numbered=True))
    single = b"\x26\x01" + b"\0\1" + b"\x80one"
    fragments = [b"\x62\x01\x93" + b"\0\2" + b"\x80tw", b"\x62\x01\x53" + b"o"]
    both = b"\x60\x01" + b"\0\3" + b"\0\4\x26\x01\x80a" + b"\1" + b"\0\4\x26\x01\x00b"
    packets = [single, *fragments, both]
    found = build(
        builder,
        [rtp.rtp_packet(one, n, 3000 * (n + (n < 2)), n != 1) for n, one in enumerate(packets)],
    )
    assert [bytes(one.data) for one in found] == [
        b"\0\0\0\1\x26\x01\x80one",
        b"\0\0\0\1\x26\x01\x80two",
        b"\0\0\0\1\x26\x01\x80a\0\0\0\1\x26\x01\x00b",
    ]


def test_cutting_is_no_matter_of_the_file(tmp_path: Path) -> None:
    """The laboratory's own packets are what a decoder takes: no test of an echo."""
    import av

    clip = rtp.coded(clips.write(tmp_path / "c.mp4", 160, 96, frames=20))
    builder = PictureBuilder(media("h264"))
    context = av.CodecContext.create("h264", "r")
    assert isinstance(context, av.VideoCodecContext)
    frames = 0
    for one in build(builder, flat(rtp.Packetiser("h264", 90).pack_all(clip))):
        frames += len(context.decode(av.Packet(bytes(one.data))))
    frames += len(context.decode(None))
    assert frames == 20
