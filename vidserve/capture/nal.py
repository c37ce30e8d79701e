"""The units (NAL) of H.264 and H.265: what a first byte says. Rec. ITU-T H.264 7.3, H.265 7.3."""

from __future__ import annotations

from collections.abc import Iterator

START_CODE = b"\x00\x00\x00\x01"

H264_NON_IDR, H264_IDR, H264_SEI, H264_SPS, H264_PPS = 1, 5, 6, 7, 8
H265_VPS, H265_SPS, H265_PPS, H265_SEI = 32, 33, 34, 39
_H265_FIRST_IRAP, _H265_LAST_IRAP = 16, 23
_H265_FIRST_NOT_PICTURE = 32
_H265_LAST_NON_REFERENCE = 14  # of the even types 0, 2, ... 14: TRAIL_N, TSA_N ... RSV_VCL_N14


def split(data: memoryview, length_size: int) -> Iterator[memoryview]:
    """The units of a picture.

    Args:
        data: Of one picture.
        length_size: Bytes of the length before each unit (MP4); 0: start codes (Annex B).
            Damaged lengths end the row, they raise nothing.
    """
    if length_size:
        at = 0
        while at + length_size < len(data):
            size = int.from_bytes(data[at : at + length_size], "big")
            at += length_size
            if size:
                yield data[at : at + size]
            at += size
        return
    whole = bytes(data)  # memoryview cannot be searched
    at = whole.find(b"\x00\x00\x01")
    while at >= 0:
        begin = at + 3
        at = whole.find(b"\x00\x00\x01", begin)
        unit = data[begin : at if at >= 0 else len(data)]
        if len(unit):
            yield unit


def length_size(codec: str, extradata: bytes) -> int:
    """How many bytes of length stand before a unit, by the codec's header; 0: start codes."""
    at = {"h264": 4, "hevc": 21}.get(codec)
    if at is None or len(extradata) <= at or extradata[0] != 1:
        return 0
    return (extradata[at] & 3) + 1


class UnitReader:
    """Which packets of one track could be left out.

    Args:
        codec: FFmpeg's name.
        extradata: The codec's header, from which the form of packets is known.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._codec = codec
        self._length_size = length_size(codec, extradata)
        self._highest_layer = 0

    def disposable(self, packet: memoryview) -> bool:
        """Whether the packet is a picture on which no other is built.

        H.264 says so by ``nal_ref_idc`` 0. H.265 by the type, but only among the pictures of
        one temporal layer: so only those of the highest layer that was seen.
        """
        if self._codec == "h264":
            return self._disposable_h264(packet)
        return self._codec == "hevc" and self._disposable_h265(packet)

    def _disposable_h264(self, packet: memoryview) -> bool:
        for unit in split(packet, self._length_size):
            if 1 <= unit[0] & 0x1F <= 5:  # parts of one picture agree
                return not unit[0] & 0x60
        return False

    def _disposable_h265(self, packet: memoryview) -> bool:
        for unit in split(packet, self._length_size):
            kind = unit[0] >> 1 & 0x3F
            if kind < _H265_FIRST_NOT_PICTURE and len(unit) > 1:
                layer = unit[1] & 7
                self._highest_layer = max(self._highest_layer, layer)
                non_reference = kind <= _H265_LAST_NON_REFERENCE and kind % 2 == 0
                return non_reference and layer == self._highest_layer
        return False


def is_picture(codec: str, unit: bytes | memoryview) -> bool:
    """Whether a unit (at least one byte) is a part of a picture; ``codec``: h264 or hevc."""
    if codec == "h264":
        return 1 <= unit[0] & 0x1F <= 5
    return unit[0] >> 1 & 0x3F < _H265_FIRST_NOT_PICTURE


def is_key(codec: str, unit: bytes | memoryview) -> bool:
    """Whether decoding can begin at the picture that this unit is a part of."""
    if codec == "h264":
        return unit[0] & 0x1F == H264_IDR
    return _H265_FIRST_IRAP <= unit[0] >> 1 & 0x3F <= _H265_LAST_IRAP


def begins_picture(codec: str, unit: bytes | memoryview) -> bool:
    """Whether a unit of a picture is its first: the slice begins with the first block."""
    if codec == "h264":
        return len(unit) > 1 and bool(unit[1] & 0x80)  # first_mb_in_slice, ue(v), is 0
    return len(unit) > 2 and bool(unit[2] & 0x80)  # first_slice_segment_in_pic_flag
