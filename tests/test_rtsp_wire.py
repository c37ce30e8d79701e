"""The bytes of an RTSP connection, however they are cut, mixed with whatever comes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.capture.rtsp.wire import MOST_GARBAGE_BYTES, Message, Packet, Splitter
from vidserve.errors import SourceUnreachable

OK = b"RTSP/1.0 200 OK\r\nCSeq: 3\r\nSession: 12;timeout=30\r\n\r\n"


def framed(channel: int, payload: bytes) -> bytes:
    return struct.pack("!BBH", 0x24, channel, len(payload)) + payload


def cut(
    data: bytes, sizes: list[int], channels: tuple[int, int] | None = (0, 1)
) -> list[Message | tuple[int, bytes]]:
    """What a splitter makes of the bytes, received in pieces of these sizes, over and over."""
    splitter = Splitter()
    splitter.channels = channels
    found: list[Message | tuple[int, bytes]] = []
    at = turn = 0
    while at < len(data):
        piece = data[at : at + sizes[turn % len(sizes)]]
        room = splitter.room()
        piece = piece[: len(room)]
        room[: len(piece)] = piece
        splitter.received(len(piece))
        at += len(piece)
        turn += 1
        while (one := splitter.next()) is not None:
            found.append((one.channel, bytes(one.payload)) if isinstance(one, Packet) else one)
    return found


rtp_like = st.binary(min_size=0, max_size=300).map(lambda rest: b"\x80" + rest)
pieces = st.lists(st.integers(1, 400), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.integers(0, 1), rtp_like), max_size=20), pieces)
@settings(deadline=None)
def test_packets_come_out_as_they_went_in(
    packets: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    assert cut(b"".join(framed(*one) for one in packets), sizes) == packets


@given(st.lists(st.tuples(st.integers(0, 1), rtp_like), max_size=8), pieces)
@settings(deadline=None)
def test_answers_stand_between_packets(packets: list[tuple[int, bytes]], sizes: list[int]) -> None:
    body = b"RTSP/1.0 200 $\x00\x00\x01 all kinds of things\r\n\r\n"
    answer = b"RTSP/1.0 404 Not\xc3\xa4 There\nContent-Length:%d\nX:1\nx: 2\n\n" % len(body) + body
    data = OK + b"".join(framed(*one) + answer for one in packets)
    found = cut(data, sizes)
    assert [one for one in found if isinstance(one, tuple)] == packets
    messages = [one for one in found if isinstance(one, Message)]
    assert [one.status for one in messages] == [200] + [404] * len(packets)
    assert messages[0].header("session") == "12;timeout=30" and messages[0].reason == "OK"
    for message in messages[1:]:
        assert message.body == body and message.headers["x"] == ["1", "2"]


@given(st.binary(max_size=2000), pieces, st.booleans())
@settings(max_examples=200, deadline=None)
def test_garbage_is_skipped_and_what_follows_is_found(
    garbage: bytes, sizes: list[int], playing: bool
) -> None:
    # After a "$" of a channel in use a false length may swallow what follows: at most 64 KiB.
    garbage = garbage.replace(b"$", b"#").replace(b"RTSP/", b"rtsp/")
    tail = framed(1, b"\x80 the end")
    found = cut(garbage + OK + tail, sizes, (0, 1) if playing else None)
    messages = [one for one in found if isinstance(one, Message)]
    if messages and messages[-1].status == 200:
        assert messages[-1].header("cseq") == "3"
        assert not playing or found[-1] == (1, b"\x80 the end")
    else:  # the garbage held a word that begins a request: its head took the answer in
        assert messages and messages[-1].method


@given(st.binary(max_size=4000), pieces)
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_it_crash_or_hang(data: bytes, sizes: list[int]) -> None:
    cut(data, sizes)
    cut(data, sizes, None)


@given(st.binary(max_size=200), pieces)
@settings(deadline=None)
def test_after_any_damage_packets_are_found_again(damage: bytes, sizes: list[int]) -> None:
    packets = [(0, b"\x80" + bytes([number % 256]) * 1000) for number in range(150)]
    found = cut(damage + b"".join(framed(*one) for one in packets), sizes)
    # At most one false length of 64 KiB is believed before the true ones are seen again.
    assert found[-50:] == packets[-50:]


def test_endless_garbage_and_endless_heads_are_given_up() -> None:
    with pytest.raises(SourceUnreachable, match="garbage"):
        cut(b"\x01" * (MOST_GARBAGE_BYTES + 100_000), [50_000])
    with pytest.raises(SourceUnreachable, match="without end"):
        cut(b"RTSP/1.0 200 OK\r\n" + b"a" * 200_000, [50_000])
    with pytest.raises(SourceUnreachable, match="no RTSP"):
        cut(b"RTSP/1.0 200 OK\r\nContent-Length: 999999999\r\n\r\n", [50_000])


def test_requests_of_the_server_are_messages_too() -> None:
    (message,) = cut(b"OPTIONS rtsp://x RTSP/1.0\r\nCSeq: 7\r\n\r\n", [1])
    assert isinstance(message, Message)
    assert (message.method, message.status, message.header("cseq")) == ("OPTIONS", 0, "7")


def test_the_largest_packet_passes_and_memory_stays() -> None:
    packets = [(0, b"\x80" + bytes(65534)) for _ in range(40)]
    assert cut(b"".join(framed(*one) for one in packets), [7000]) == packets
