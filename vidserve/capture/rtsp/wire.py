"""The bytes of an RTSP connection: messages, and packets between them ("$", RFC 7826 14). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from vidserve.errors import SourceUnreachable

MOST_HEAD_BYTES = 64 * 1024
MOST_BODY_BYTES = 128 * 1024
MOST_GARBAGE_BYTES = 1024 * 1024
_ROOM_BYTES = 64 * 1024
_BUFFER_BYTES = MOST_HEAD_BYTES + MOST_BODY_BYTES + _ROOM_BYTES
_DOLLAR = 0x24
# What a message begins with: an answer, or what a server may ask.
_STARTS = (
    b"RTSP/",
    b"ANNOUNCE ",
    b"GET_PARAMETER ",
    b"OPTIONS ",
    b"PLAY_NOTIFY ",
    b"REDIRECT ",
    b"SET_PARAMETER ",
    b"TEARDOWN ",
)
_FIRST_BYTES = frozenset(start[0] for start in _STARTS)


class Packet(NamedTuple):
    """One interleaved packet; ``payload`` is valid until the splitter receives again."""

    channel: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Message:
    """An answer (``status`` > 0) or a request of the server (``method``).

    Attributes:
        status: 200, 401 ...; 0 for a request.
        reason: The words after the status.
        method: Of a request; "" for an answer.
        headers: Lower-case name -> all values, in order.
        body: As many bytes as the message says.
    """

    status: int
    reason: str
    method: str
    headers: dict[str, list[str]] = field(default_factory=dict)
    body: bytes = b""

    def header(self, name: str) -> str:
        """The first value; "" if there is none."""
        return self.headers.get(name, [""])[0]


class Splitter:
    """Cuts what was received into packets and messages. Memory is bounded by its one buffer.

    What is neither is skipped, and counted: cameras send rests of broken packets, and the next
    ``$`` of a channel in use is a good place to go on.
    """

    def __init__(self) -> None:
        self._bytes = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._bytes)
        self._begin = 0
        self._end = 0
        self._incomplete = False
        self._garbage_in_a_row = 0
        self.garbage = 0
        self.channels: tuple[int, int] | None = None  # RTP, RTCP; None: no packets are expected

    def room(self) -> memoryview:
        """Where to receive into; packets given out before are no longer valid after that."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif _BUFFER_BYTES - self._end < _ROOM_BYTES:
            left = self._end - self._begin
            self._bytes[:left] = self._bytes[self._begin : self._end]
            self._begin, self._end = 0, left
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """So many bytes were written into ``room``."""
        self._end += count

    def next(self) -> Packet | Message | None:
        """The next complete one; None: receive more.

        Raises:
            SourceUnreachable: this is no RTSP, or a message beyond all limits.
        """
        while self._begin < self._end:
            self._incomplete = False
            first = self._bytes[self._begin]
            found: Packet | Message | None = None
            if first == _DOLLAR:
                found = self._packet()
            elif first in _FIRST_BYTES:
                found = self._message()
            else:
                self._skip()
            if found is not None:
                self._garbage_in_a_row = 0
                return found
            if self._incomplete:
                return None
        return None

    def _packet(self) -> Packet | None:
        """None: it is incomplete, or it was none and is skipped."""
        have = self._end - self._begin
        begin = self._begin + 4
        known = self.channels is not None and (
            have < 2 or self._bytes[self._begin + 1] in self.channels
        )
        if not known or (have > 4 and self._bytes[begin] >> 6 != 2):  # RTP and RTCP: version 2
            self._skip()
            return None
        if have < 4:
            self._incomplete = True
            return None
        channel = self._bytes[self._begin + 1]
        size = self._bytes[self._begin + 2] << 8 | self._bytes[self._begin + 3]
        if size == 0:
            self._skip()
            return None
        if have < 4 + size:
            self._incomplete = True
            return None
        self._begin = begin + size
        return Packet(channel, self._view[begin : begin + size])

    def _may_be_message(self) -> bool:
        head = bytes(self._view[self._begin : min(self._end, self._begin + 16)])
        return any(head.startswith(start) or start.startswith(head) for start in _STARTS)

    def _message(self) -> Message | None:
        """None: it is incomplete, or it was none and is skipped."""
        if not self._may_be_message():
            self._skip()
            return None
        head_end, body_begin = self._end_of_head()
        if head_end < 0:
            if self._end - self._begin > MOST_HEAD_BYTES:
                raise SourceUnreachable("an answer without end: this is no RTSP server")
            self._incomplete = True
            return None
        lines = bytes(self._view[self._begin : head_end]).decode("utf-8", "replace").splitlines()
        headers: dict[str, list[str]] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                headers.setdefault(name.strip().lower(), []).append(value.strip())
        size = _number(headers.get("content-length", ["0"])[0])
        if size > MOST_BODY_BYTES:
            raise SourceUnreachable(f"an answer of {size} bytes: this is no RTSP server")
        if self._end - body_begin < size:
            self._incomplete = True
            return None
        self._begin = body_begin + size
        body = bytes(self._view[body_begin : body_begin + size])
        first, _, rest = lines[0].partition(" ")
        if not first.startswith("RTSP/"):
            return Message(0, "", first, headers, body)
        status, _, reason = rest.strip().partition(" ")
        return Message(_number(status), reason.strip(), "", headers, body)

    def _end_of_head(self) -> tuple[int, int]:
        """Where the head ends, and where the body begins; -1, -1: not received yet."""
        limit = min(self._end, self._begin + MOST_HEAD_BYTES)
        found = [
            (at, at + len(gap))
            for gap in (b"\r\n\r\n", b"\n\n")
            if (at := self._bytes.find(gap, self._begin, limit)) >= 0
        ]
        return min(found, default=(-1, -1))

    def _skip(self) -> None:
        """Go on to the next byte that something may begin with."""
        at = self._begin + 1
        while at < self._end and self._bytes[at] != _DOLLAR and self._bytes[at] not in _FIRST_BYTES:
            at += 1
        blank = bytes(self._view[self._begin : at]).strip(b"\r\n\0 ")
        self._begin = at
        self.garbage += len(blank)
        self._garbage_in_a_row += len(blank)
        if self._garbage_in_a_row > MOST_GARBAGE_BYTES:
            raise SourceUnreachable("nothing but garbage comes: this is no RTSP server")


def _number(text: str) -> int:
    """0 for what is none."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
