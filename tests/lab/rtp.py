"""RTP for tests: access units into packets, their SDP, and RTCP. Plain bytes, no sockets.

H.264 by RFC 6184 (single NAL, STAP-A, FU-A), H.265 by RFC 7798 (single NAL, AP, FU).
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import av

Codec = Literal["h264", "h265"]
Marker = Literal["right", "never", "always"]
Unit = list[bytes]  # the NALs of one picture, in order, without start codes

NTP_EPOCH_S = 2_208_988_800  # 1900 to 1970
CLOCK_HZ = 90_000
_START_CODE = re.compile(rb"\x00\x00\x01")
_STAP_A, _FU_A = 24, 28
_AP, _FU = 48, 49


def split_annexb(data: bytes) -> Unit:
    """The NALs of a byte stream, without start codes and trailing zeros."""
    cuts = [match.start() for match in _START_CODE.finditer(data)]
    ends = [*cuts[1:], len(data)]
    nals = [data[cut + 3 : end].rstrip(b"\0") for cut, end in zip(cuts, ends, strict=True)]
    return [nal for nal in nals if nal]


def annexb(unit: Unit) -> bytes:
    """A picture as a byte stream."""
    return b"".join(b"\0\0\0\1" + nal for nal in unit)


def nal_type(codec: Codec, nal: bytes) -> int:
    """``nal_unit_type``."""
    return nal[0] & 0x1F if codec == "h264" else nal[0] >> 1 & 0x3F


@dataclass(frozen=True)
class Coded:
    """A coded clip, picture by picture in decoding order.

    Attributes:
        codec: ``h264`` or ``h265``.
        units: The NALs of each picture; key pictures carry their parameter sets.
        pts_s: When each is shown, seconds from 0.
        fps: Pictures a second.
    """

    codec: Codec
    units: list[Unit]
    pts_s: list[float]
    fps: float

    def __add__(self, other: Coded) -> Coded:
        """One after the other in one session; the size may change between them."""
        shift_s = len(self.units) / self.fps
        pts_s = self.pts_s + [shift_s + one_s for one_s in other.pts_s]
        return Coded(self.codec, self.units + other.units, pts_s, self.fps)


def coded(clip: Path) -> Coded:
    """The video track of a file; H.264 or HEVC in any container."""
    units: list[Unit] = []
    pts_s: list[float] = []
    with av.open(f"file:{clip}") as container:
        stream = container.streams.video[0]
        name = stream.codec_context.name
        codec: Codec = "h264" if name == "h264" else "h265"
        assert name in ("h264", "hevc"), name
        filters = av.BitStreamFilterContext(f"{name}_mp4toannexb", stream)
        rate = float(stream.average_rate or 25)
        for packet in container.demux(stream):
            if packet.size == 0:
                continue
            for one in filters.filter(packet):
                units.append(split_annexb(bytes(one)))
                assert one.pts is not None and stream.time_base is not None
                pts_s.append(float(one.pts * stream.time_base))
    first_s = min(pts_s)
    return Coded(codec, units, [one_s - first_s for one_s in pts_s], rate)


def rtp_packet(
    payload: bytes,
    seq: int,
    timestamp: int,
    marker: bool = False,
    payload_type: int = 96,
    ssrc: int = 0x1234ABCD,
    csrcs: Sequence[int] = (),
    extension: bytes | None = None,
    padding: int = 0,
) -> bytes:
    """One RTP packet.

    Args:
        payload: After the header.
        seq, timestamp: Taken modulo 2**16 and 2**32.
        marker, payload_type, ssrc, csrcs: Of the header.
        extension: Of a header extension (profile 0xBEDE), a multiple of 4 bytes; None: none.
        padding: How many bytes of padding, 0..255.
    """
    first = 0x80 | (0x20 if padding else 0) | (0x10 if extension is not None else 0) | len(csrcs)
    second = (0x80 if marker else 0) | payload_type
    head = struct.pack("!BBHII", first, second, seq & 0xFFFF, timestamp & 0xFFFFFFFF, ssrc)
    head += b"".join(struct.pack("!I", csrc) for csrc in csrcs)
    if extension is not None:
        head += struct.pack("!HH", 0xBEDE, len(extension) // 4) + extension
    tail = b"\0" * (padding - 1) + bytes([padding]) if padding else b""
    return head + payload + tail


class Packetiser:
    """Access units into RTP packets, with a sequence number that goes on rising.

    Args:
        codec: ``h264`` or ``h265``.
        limit: Largest payload of a packet, bytes; larger NALs are fragmented.
        aggregate: Put neighbouring small NALs into one packet (STAP-A, AP) where they fit.
        marker: On the last packet of a picture (``right``), on none or on all.
        payload_type, ssrc: Of the packets.
        seq: The first sequence number.
    """

    def __init__(
        self,
        codec: Codec,
        limit: int = 1400,
        aggregate: bool = True,
        marker: Marker = "right",
        payload_type: int = 96,
        ssrc: int = 0x1234ABCD,
        seq: int = 65_500,  # wraps soon, as it does in a camera some day
    ) -> None:
        self.codec: Codec = codec
        self.limit = limit
        self.aggregate = aggregate
        self.marker: Marker = marker
        self.payload_type = payload_type
        self.ssrc = ssrc
        self.seq = seq

    def pack(self, unit: Sequence[bytes], timestamp: int) -> list[bytes]:
        """The packets of one picture (all its NALs, without start codes)."""
        payloads = self.payloads(unit)
        packets = []
        for index, payload in enumerate(payloads):
            last = index == len(payloads) - 1
            marked = self.marker == "always" or (self.marker == "right" and last)
            packets.append(
                rtp_packet(payload, self.seq, timestamp, marked, self.payload_type, self.ssrc)
            )
            self.seq = self.seq + 1 & 0xFFFF
        return packets

    def pack_all(self, clip: Coded, first_timestamp: int = 0) -> list[list[bytes]]:
        """Every picture of a clip, each as its packets."""
        return [
            self.pack(unit, first_timestamp + round(pts_s * CLOCK_HZ))
            for unit, pts_s in zip(clip.units, clip.pts_s, strict=True)
        ]

    def payloads(self, unit: Sequence[bytes]) -> list[bytes]:
        """As ``pack``, without the RTP headers."""
        payloads: list[bytes] = []
        small: list[bytes] = []
        size = self._aggregate_head
        for nal in unit:
            if small and size + 2 + len(nal) > self.limit:
                payloads.append(self._together(small))
                small, size = [], self._aggregate_head
            if len(nal) > self.limit:
                payloads += self._fragments(nal)
            elif self.aggregate:
                small.append(nal)
                size += 2 + len(nal)
            else:
                payloads.append(nal)
        if small:
            payloads.append(self._together(small))
        return payloads

    @property
    def _aggregate_head(self) -> int:
        return 1 if self.codec == "h264" else 2

    def _together(self, nals: list[bytes]) -> bytes:
        """One NAL as it is, several as STAP-A or AP."""
        if len(nals) == 1:
            return nals[0]
        body = b"".join(struct.pack("!H", len(nal)) + nal for nal in nals)
        if self.codec == "h264":
            importance = max(nal[0] & 0x60 for nal in nals)
            return bytes([importance | _STAP_A]) + body
        layer = min((nal[0] & 1) << 5 | nal[1] >> 3 for nal in nals)
        temporal = min(nal[1] & 7 for nal in nals)
        return bytes([_AP << 1 | layer >> 5, (layer & 0x1F) << 3 | temporal]) + body

    def _fragments(self, nal: bytes) -> list[bytes]:
        """FU-A or FU: the NAL's own header goes into the fragments' headers."""
        if self.codec == "h264":
            head, kind, body = bytes([nal[0] & 0xE0 | _FU_A]), nal[0] & 0x1F, nal[1:]
        else:
            head = bytes([nal[0] & 0x81 | _FU << 1, nal[1]])
            kind, body = nal[0] >> 1 & 0x3F, nal[2:]
        step = max(1, self.limit - len(head) - 1)
        parts = [body[at : at + step] for at in range(0, len(body), step)]
        payloads = []
        for index, part in enumerate(parts):
            flags = (0x80 if index == 0 else 0) | (0x40 if index == len(parts) - 1 else 0)
            payloads.append(head + bytes([flags | kind]) + part)
        return payloads


def parameter_sets(codec: Codec, units: Iterable[Unit]) -> Unit:
    """SPS and PPS (with H.265 also VPS) of the first picture that has them."""
    kinds = (7, 8) if codec == "h264" else (32, 33, 34)
    for unit in units:
        found = [nal for nal in unit if nal_type(codec, nal) in kinds]
        if found:
            return found
    return []


def sdp(
    codec: Codec,
    sets: Sequence[bytes] = (),
    payload_type: int = 96,
    control: str = "trackID=0",
    session_control: str | None = "*",
    fps: float | None = None,
    audio: bool = False,
) -> str:
    """A session description with one video track.

    Args:
        codec: ``h264`` or ``h265``.
        sets: Parameter sets for ``sprop-...``; none: they come in band only.
        payload_type: Of the video.
        control: Of the video, relative or absolute.
        session_control: Of the session; None: no such line.
        fps: For ``a=framerate``; None: no such line.
        audio: Put an audio track (PCMU) before the video.
    """
    formats = []
    if codec == "h264":
        formats.append("packetization-mode=1")
        if sets:
            sps = next(nal for nal in sets if nal_type(codec, nal) == 7)
            formats.append(f"profile-level-id={sps[1:4].hex()}")
            formats.append("sprop-parameter-sets=" + ",".join(_base64(nal) for nal in sets))
    else:
        names = {32: "sprop-vps", 33: "sprop-sps", 34: "sprop-pps"}
        formats += [f"{names[nal_type(codec, nal)]}={_base64(nal)}" for nal in sets]
    lines = ["v=0", "o=- 1 1 IN IP4 127.0.0.1", "s=lab", "c=IN IP4 0.0.0.0", "t=0 0"]
    if session_control is not None:
        lines.append(f"a=control:{session_control}")
    if audio:
        lines += ["m=audio 0 RTP/AVP 0", "a=rtpmap:0 PCMU/8000", "a=control:audio"]
    lines += [f"m=video 0 RTP/AVP {payload_type}"]
    lines += [f"a=rtpmap:{payload_type} {codec.upper()}/{CLOCK_HZ}"]
    if formats:
        lines.append(f"a=fmtp:{payload_type} " + ";".join(formats))
    if fps is not None:
        lines.append(f"a=framerate:{fps:g}")
    lines.append(f"a=control:{control}")
    return "\r\n".join(lines) + "\r\n"


def sdp_for(clip: Coded, in_band_only: bool = False) -> str:
    """The description of a clip, by default with its parameter sets."""
    sets = [] if in_band_only else parameter_sets(clip.codec, clip.units)
    return sdp(clip.codec, sets)


def sender_report(
    unix_s: float,
    timestamp: int,
    packets: int = 0,
    octets: int = 0,
    ssrc: int = 0x1234ABCD,
) -> bytes:
    """RTCP: at this time of the sender's wall clock its RTP clock showed ``timestamp``."""
    ntp = round((unix_s + NTP_EPOCH_S) * (1 << 32)) & 0xFFFFFFFFFFFFFFFF
    body = struct.pack("!IQIII", ssrc, ntp, timestamp & 0xFFFFFFFF, packets, octets)
    return struct.pack("!BBH", 0x80, 200, len(body) // 4) + body


def goodbye(ssrc: int = 0x1234ABCD) -> bytes:
    """RTCP: the sender leaves."""
    return struct.pack("!BBHI", 0x81, 203, 1, ssrc)


def _base64(nal: bytes) -> str:
    return base64.b64encode(nal).decode()
