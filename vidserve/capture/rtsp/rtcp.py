"""RTCP (RFC 3550 6.4, 6.6): the sender's clock, its good-bye, and our answer. Pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

_SENDER_REPORT, _RECEIVER_REPORT, _DESCRIPTION, _BYE = 200, 201, 202, 203
_NTP_EPOCH_S = 2_208_988_800  # from 1900 to 1970
_CNAME = b"vidserve"


class Report(NamedTuple):
    """What a compound packet said.

    Attributes:
        ssrc: Of the sender; None: it sent no report, or has no clock.
        sender_wall_s: The sender's clock, seconds since 1970.
        timestamp: The RTP time (32 bits) of that moment.
        middle: The middle 32 bits of its NTP time, which our answer repeats.
        bye: The sender ends the stream.
    """

    ssrc: int | None
    sender_wall_s: float
    timestamp: int
    middle: int
    bye: bool


def parse(packet: bytes | memoryview) -> Report:
    """Read a compound packet, as far as it makes sense."""
    ssrc, wall_s, timestamp, middle, bye = None, 0.0, 0, 0, False
    at = 0
    while at + 4 <= len(packet):
        first, kind, words = struct.unpack_from("!BBH", packet, at)
        size = 4 * (words + 1)
        if first >> 6 != 2 or at + size > len(packet):
            break
        if kind == _SENDER_REPORT and size >= 28:
            sender, seconds, fraction, timestamp = struct.unpack_from("!IIII", packet, at + 4)
            if seconds:  # 0: it has no clock
                ssrc = sender
            # The seconds begin anew in 2036.
            era_s = 0 if seconds & 0x80000000 else 1 << 32
            wall_s = seconds + era_s - _NTP_EPOCH_S + fraction / 2**32
            middle = (seconds & 0xFFFF) << 16 | fraction >> 16
        bye = bye or kind == _BYE
        at += size
    return Report(ssrc, wall_s, timestamp, middle, bye)


def receiver_report(
    own_ssrc: int, ssrc: int, highest_seq: int, lost: int, middle: int, since_report_s: float
) -> bytes:
    """Our answer, with a name as the rules ask; some servers end a session without one.

    Args:
        own_ssrc, ssrc: Ours and the sender's, 32 bits.
        highest_seq: Extended by its wraps.
        lost: Packets since the beginning.
        middle: Of the last sender report; 0: there was none.
        since_report_s: Since that report.
    """
    delay = min(0xFFFFFFFF, round(since_report_s * 65536)) if middle else 0
    report = struct.pack(
        "!BBHIIIIIII",
        0x81, _RECEIVER_REPORT, 7, own_ssrc, ssrc,
        min(lost, 0x7FFFFF), highest_seq & 0xFFFFFFFF, 0, middle, delay,
    )  # fmt: skip
    item = struct.pack("!BB", 1, len(_CNAME)) + _CNAME
    item += b"\0" * (4 - len(item) % 4)  # ends with at least one zero
    words = (8 + len(item)) // 4 - 1
    return report + struct.pack("!BBHI", 0x81, _DESCRIPTION, words, own_ssrc) + item
