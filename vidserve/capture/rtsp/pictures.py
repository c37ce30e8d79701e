"""RTP packets in, pictures (access units) out: RFC 3550, 6184 (H.264), 7798 (H.265). Pure.

A picture is closed by the marker bit of its last packet, as the rules say; where a camera sets
none, or sets it where it should not, by the next timestamp, which costs a frame of delay.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from vidserve.capture.nal import START_CODE, begins_picture, is_key, is_picture
from vidserve.capture.rtsp.sdp import VideoMedia

MOST_PICTURE_BYTES = 8 * 1024 * 1024
_HEADER_BYTES = 12
_HEADER = struct.Struct("!BBHII")  # flags, marker and type, number, timestamp, sender
_MOST_MISORDERED = 100  # packets; RFC 3550 A.1
_MOST_LATE = 3
_H264_STAP_A, _H264_STAP_B, _H264_FU_A, _H264_FU_B = 24, 25, 28, 29
_H265_AP, _H265_FU = 48, 49


class AccessUnit(NamedTuple):
    """One picture as the decoder takes it.

    Attributes:
        data: Annex B, with the parameter sets that came before it.
        timestamp: In units of the media's clock, unwrapped; any first value.
        key: Decoding can begin here.
        damaged: Packets of it, or before it, are missing.
    """

    data: bytearray
    timestamp: int
    key: bool
    damaged: bool


class PictureBuilder:
    """Builds the pictures of one track. Memory is bounded by one picture of 8 MiB.

    Args:
        media: Codec and payload type.
    """

    def __init__(self, media: VideoMedia) -> None:
        self._media = media
        self._codec = media.codec
        self._out: list[AccessUnit] = []
        # The picture that is being built.
        self._data = bytearray()
        self._timestamp = 0
        self._has_picture = False
        self._key = False
        self._damaged = False
        self._in_fragment = False
        # The stream.
        self._ssrc: int | None = None
        self._last_seq: int | None = None
        self._late_in_a_row = 0
        self._gap_here = False  # just before the present packet
        self._raw_timestamp = 0  # of the last packet, 32 bits
        self._wraps = 0
        self._unwrapped: int | None = None
        self._closed_timestamp: int | None = None
        self._markers_lie = False
        self._markers = 0
        self.lost = 0
        self.malformed = 0
        self.foreign = 0
        self.begun = False  # a unit of a picture came
        self.waits_for_next = False  # the last picture was closed by its successor

    @property
    def ssrc(self) -> int | None:
        """Of the sender; None before the first packet."""
        return self._ssrc

    @property
    def highest_seq(self) -> int:
        """Extended by the wraps."""
        return (self._wraps << 16) + (self._last_seq or 0)

    @property
    def timestamp(self) -> int | None:
        """The unwrapped timestamp of the last packet; None before the first."""
        return self._unwrapped

    def add(self, packet: memoryview) -> list[AccessUnit]:
        """One RTP packet, in order of arrival; the pictures that it completed (mostly 0 or 1)."""
        if self._in_fragment and self._add_middle(packet):
            return []
        self._out = []
        payload = self._payload(packet)
        if payload is None or not len(payload):
            return self._out
        marker = bool(packet[1] & 0x80)
        self._see_timestamp(struct.unpack_from("!I", packet, 4)[0])
        if self._codec == "h264":
            self._add_h264(payload)
        else:
            self._add_h265(payload)
        if marker:
            self._markers += 1
            if self._has_picture and not self._in_fragment and not self._markers_lie:
                self.waits_for_next = False
                self._close()
        if len(self._data) > MOST_PICTURE_BYTES:
            self.malformed += 1
            self._drop()
        return self._out

    def _add_middle(self, packet: memoryview) -> bool:
        """The short way for nine of ten packets: a fragment that goes on as the last one did.

        4 microseconds instead of 10 for a packet. False: take the long way.
        """
        seq = ((self._last_seq or 0) + 1) & 0xFFFF
        wanted = (0x80, self._media.payload_type, seq, self._raw_timestamp, self._ssrc)
        at = _HEADER_BYTES
        if len(packet) <= at + 3 or _HEADER.unpack_from(packet) != wanted or not seq:
            return False
        if self._codec == "h264":
            if packet[at] & 0x1F != _H264_FU_A or packet[at + 1] & 0xC0:
                return False
            at += 2
        else:
            if packet[at] >> 1 & 0x3F != _H265_FU or packet[at + 2] & 0xC0:
                return False
            at += 3
        if len(self._data) + len(packet) > MOST_PICTURE_BYTES:
            return False
        self._last_seq = seq
        self._data += packet[at:]
        return True

    def _payload(self, packet: memoryview) -> memoryview | None:
        """What the packet carries; None if it is not to be read."""
        size = len(packet)
        if size < _HEADER_BYTES or packet[0] >> 6 != 2:
            self.malformed += 1
            return None
        if packet[1] & 0x7F != self._media.payload_type:
            self.foreign += 1
            return None
        begin = _HEADER_BYTES + 4 * (packet[0] & 0x0F)
        if packet[0] & 0x10:  # a header extension
            if size < begin + 4:
                self.malformed += 1
                return None
            begin += 4 + 4 * (packet[begin + 2] << 8 | packet[begin + 3])
        end = size - packet[-1] if packet[0] & 0x20 else size
        if begin > end:
            self.malformed += 1
            return None
        if not self._in_order(packet[2] << 8 | packet[3], struct.unpack_from("!I", packet, 8)[0]):
            return None
        return packet[begin:end]

    def _in_order(self, seq: int, ssrc: int) -> bool:
        """Count what is missing; False for a packet that comes again or too late."""
        self._gap_here = False
        if ssrc != self._ssrc:
            if self._ssrc is not None:
                self._gap()  # another sender: nothing of before goes on
            self._ssrc = ssrc
            self._last_seq = None
        if self._last_seq is not None:
            ahead = (seq - self._last_seq) & 0xFFFF  # 1: the next one
            if ahead == 0 or 0x10000 - ahead <= _MOST_MISORDERED:
                self._late_in_a_row += 1
                if self._late_in_a_row <= _MOST_LATE:
                    return False
                # Over TCP nothing overtakes: the number that was ahead of these was wrong.
                self._gap()
            elif ahead > 1:
                self.lost += min(ahead - 1, 0x7FFF)
                self._gap()
            if seq < self._last_seq:
                self._wraps += 1
        self._last_seq = seq
        self._late_in_a_row = 0
        return True

    def _gap(self) -> None:
        self._gap_here = True
        self._damaged = True
        self._in_fragment = False

    def _see_timestamp(self, timestamp: int) -> None:
        self._raw_timestamp = timestamp
        if self._unwrapped is None:
            self._unwrapped = timestamp
        else:
            step = (timestamp - self._unwrapped) & 0xFFFFFFFF
            self._unwrapped += step - (1 << 32) if step >= 1 << 31 else step
        if self._unwrapped != self._timestamp:
            if self._has_picture:
                self.waits_for_next = True
                self._damaged = self._damaged or self._in_fragment
                self._in_fragment = False
                self._close()
                # Of which of the two something is missing cannot be known.
                self._damaged = self._gap_here
            # Parameter sets that came ahead, at a time of their own, belong to what follows.
            self._timestamp = self._unwrapped

    def _add_h264(self, payload: memoryview) -> None:
        kind = payload[0] & 0x1F
        if 1 <= kind <= 23:
            self._add_unit(payload)
        elif kind in (_H264_STAP_A, _H264_STAP_B):
            self._add_several(payload[1 if kind == _H264_STAP_A else 3 :], 0)
        elif kind in (_H264_FU_A, _H264_FU_B) and len(payload) > 2:
            start = bool(payload[1] & 0x80)
            header = bytes((payload[0] & 0xE0 | payload[1] & 0x1F,))
            skip = 4 if kind == _H264_FU_B and start else 2
            self._add_fragment(header, payload[skip:], start, bool(payload[1] & 0x40))
        else:
            self.malformed += 1

    def _add_h265(self, payload: memoryview) -> None:
        if len(payload) < 3:
            self.malformed += 1
            return
        kind = payload[0] >> 1 & 0x3F
        number = 2 if self._media.numbered else 0
        if kind < _H265_AP:
            unit = payload
            if number:  # the order number stands between header and content
                unit = memoryview(bytes(payload[:2]) + bytes(payload[4:]))
            self._add_unit(unit)
        elif kind == _H265_AP:
            self._add_several(payload[2 + number :], 1 if number else 0)
        elif kind == _H265_FU:
            start = bool(payload[2] & 0x80)
            header = bytes((payload[0] & 0x81 | (payload[2] & 0x3F) << 1, payload[1]))
            skip = 3 + (number if start else 0)
            self._add_fragment(header, payload[skip:], start, bool(payload[2] & 0x40))
        else:
            self.malformed += 1

    def _add_several(self, rest: memoryview, between: int) -> None:
        """Units with their sizes before them; ``between`` bytes stand before each later size."""
        at = 0
        while at + 2 <= len(rest):
            size = rest[at] << 8 | rest[at + 1]
            at += 2
            if not size or at + size > len(rest):
                self.malformed += 1
                self._damaged = True
                return
            self._add_unit(rest[at : at + size])
            at += size + between

    def _add_unit(self, unit: memoryview) -> None:
        if self._in_fragment:  # its end never came
            self._gap()
        if len(unit):
            self._begin_unit(unit)
            self._data += unit

    def _add_fragment(self, header: bytes, content: memoryview, start: bool, end: bool) -> None:
        if start:
            if self._in_fragment:
                self._gap()
            self._begin_unit(header + bytes(content[:2]))
            self._data += header
            self._in_fragment = True
        elif not self._in_fragment:
            self._damaged = True  # its beginning is lost
            return
        self._data += content
        if end:
            self._in_fragment = False

    def _begin_unit(self, unit: bytes | memoryview) -> None:
        """Note what the unit is, given its first bytes, and put its start code."""
        if is_picture(self._codec, unit):
            begins = begins_picture(self._codec, unit)
            if not begins and not self._has_picture and self._timestamp == self._closed_timestamp:
                # The rest of a picture that a marker closed too early, unless packets are missing.
                self._markers_lie = self._markers_lie or not self._damaged
                self._damaged = True
            elif begins and self._has_picture and (self._markers_lie or not self._markers):
                self.waits_for_next = True
                self._close()  # neither markers nor timestamps tell
            self._has_picture = self.begun = True
            self._key = self._key or is_key(self._codec, unit)
        self._data += START_CODE

    def _close(self) -> None:
        self._out.append(AccessUnit(self._data, self._timestamp, self._key, self._damaged))
        self._closed_timestamp = self._timestamp
        self._data = bytearray()
        self._has_picture = self._key = self._damaged = False

    def _drop(self) -> None:
        self._data = bytearray()
        self._has_picture = self._key = self._in_fragment = False
        self._damaged = True
