"""A whole session against any bytes, in any pieces, without a network."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab import clips, rtp
from vidserve.capture.rtsp.reader import RtspReader
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock
from vidserve.errors import CaptureError


class ScriptedSocket:
    """Serves bytes in pieces, then silence or the end; for fuzzing without a network."""

    def __init__(self, data: bytes, sizes: list[int], then: str) -> None:
        self._data = data
        self._sizes = sizes
        self._then = then
        self._at = 0
        self._turn = 0
        self._timeout_s: float | None = None

    def settimeout(self, value: float | None, /) -> None:
        self._timeout_s = value

    def recv_into(self, buffer: memoryview, /) -> int:
        size = min(self._sizes[self._turn % len(self._sizes)], len(buffer))
        self._turn += 1
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        if not piece:
            if self._then == "end":
                return 0
            raise TimeoutError if self._then == "silence" else OSError("gone")
        buffer[: len(piece)] = piece
        return len(piece)

    def sendall(self, data: bytes, /) -> None:
        pass

    def shutdown(self, how: int, /) -> None:
        pass

    def close(self) -> None:
        pass


class SteppingClock:
    """Moves a little with each look, so that nothing waits for ever."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def wall(self) -> float:
        return 1.7e9 + self.now_s

    def sleep_until(self, when_s: float) -> None:
        self.now_s = max(self.now_s, when_s)


class Conversation:
    """All that a server sends of a clip, as bytes; with a short name for hypothesis."""

    def __init__(self, clip: rtp.Coded) -> None:
        sdp = rtp.sdp_for(clip).encode()
        head = b"RTSP/1.0 200 OK\r\nCSeq: %d\r\n"
        self.parts = [
            head % 1 + b"Public: OPTIONS\r\n\r\n",
            head % 2 + b"Content-Length: %d\r\n\r\n" % len(sdp) + sdp,
            head % 3 + b"Transport: RTP/AVP/TCP;interleaved=0-1\r\nSession: 1\r\n\r\n",
            head % 4 + b"\r\n",
        ]
        for packets in rtp.Packetiser("h264", 300).pack_all(clip):
            self.parts += [b"$\0" + len(one).to_bytes(2, "big") + one for one in packets]

    def __repr__(self) -> str:
        return "conversation"


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    """160x96, 30 pictures, a key picture every 10."""
    options = {"preset": "ultrafast", "bf": "0", "g": "10", "crf": "30"}
    path = tmp_path_factory.mktemp("fuzz") / "c.mp4"
    return Conversation(rtp.coded(clips.write(path, 160, 96, frames=30, options=options)))


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    then=st.sampled_from(["end", "silence", "error"]),
    harm=st.integers(0, 20),
)
@settings(max_examples=150, deadline=None)
def test_whatever_a_server_sends_ends_in_pictures_or_an_error_of_ours(
    conversation: Conversation, seed: int, sizes: list[int], then: str, harm: int
) -> None:
    rng = random.Random(seed)
    parts = list(conversation.parts)
    for _ in range(harm):
        at = rng.randrange(len(parts))
        kind = rng.randrange(5)
        if kind == 0:
            parts[at] = b""
        elif kind == 1:
            parts.insert(at, rng.randbytes(rng.randrange(300)))
        elif kind == 2:
            other = rng.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        elif kind == 3:
            parts[at] = parts[at][: rng.randrange(len(parts[at]) + 1)]
        else:
            torn = bytearray(parts[at])
            for _ in range(rng.randrange(4) if torn else 0):
                torn[rng.randrange(len(torn))] = rng.randrange(256)
            parts[at] = bytes(torn)
    clock: Clock = SteppingClock()
    data = b"".join(parts)

    def connect(
        host: str, port: int, limit_s: float, clock: Clock, aborted: threading.Event
    ) -> ScriptedSocket:
        return ScriptedSocket(data, sizes, then)

    camera = CameraSettings("c", "rtsp://camera/x", start_s=5.0, stall_s=5.0)
    reader = RtspReader(camera, clock, connect)
    count = 0
    with pytest.raises(CaptureError):
        reader.open()
        while count < 1000:
            assert reader.read() is not None
            count += 1
    reader.close()
    assert count <= 45
    if not harm:
        assert count == 30
