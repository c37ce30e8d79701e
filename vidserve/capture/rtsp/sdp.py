"""What a server says of its stream (SDP, RFC 8866), as far as a reader of video needs it. Pure."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from vidserve.capture.nal import START_CODE

CODECS = {"H264": "h264", "H265": "hevc", "HEVC": "hevc"}
MAX_FPS = 240.0
_DEFAULT_CLOCK_HZ = 90_000


@dataclass(frozen=True, slots=True)
class VideoMedia:
    """One video track.

    Attributes:
        encoding: The RTP name, upper case: ``H264`` ...
        codec: FFmpeg's name; "" if this reader does not know it.
        payload_type: Of its RTP packets.
        clock_hz: Of its timestamps.
        control: As written, "" if absent: see ``control_url``.
        parameter_sets: Annex B; b"" if they come in band only.
        fps: As claimed, if it is sane.
        numbered: Units carry decoding order numbers (H.265, sprop-max-don-diff).
    """

    encoding: str
    codec: str
    payload_type: int
    clock_hz: int
    control: str
    parameter_sets: bytes
    fps: float | None
    numbered: bool


def parse(text: str) -> tuple[str, list[VideoMedia]]:
    """The session's own control ("" if absent), and its video tracks in order."""
    session: list[tuple[str, str]] = []
    sections: list[list[tuple[str, str]]] = []
    for line in text.splitlines():
        kind, equals, value = line.strip().partition("=")
        if not equals or len(kind) != 1:
            continue
        if kind == "m":
            sections.append([])
        (sections[-1] if sections else session).append((kind, value.strip()))
    control = next((v for k, v in _attributes(session) if k == "control"), "")
    tracks = [_media(section) for section in sections if section[0][1].startswith("video ")]
    return control, [track for track in tracks if track is not None]


def control_url(base: str, control: str) -> str:
    """Where to send SETUP: ``control`` may be absolute, ``*``, or relative to ``base``.

    Relative ones are appended, not resolved by RFC 3986: bases with a query
    (``/cam?channel=1``) are what cameras mean so.
    """
    if control in ("", "*"):
        return base
    if control.partition("://")[0].lower() in ("rtsp", "rtsps", "rtspu"):
        return control
    return base + ("" if base.endswith("/") or control.startswith("/") else "/") + control


def _attributes(section: list[tuple[str, str]]) -> list[tuple[str, str]]:
    pairs = []
    for kind, value in section:
        if kind == "a":
            name, _, rest = value.partition(":")
            pairs.append((name.strip().lower(), rest.strip()))
    return pairs


def _media(section: list[tuple[str, str]]) -> VideoMedia | None:
    formats = section[0][1].split()[3:]
    if not formats or not formats[0].isdecimal() or len(formats[0]) > 3:
        return None
    payload_type = int(formats[0])
    attributes = _attributes(section)
    encoding, clock_hz = {26: "JPEG", 32: "MPV", 33: "MP2T"}.get(payload_type, ""), 0
    parameters: dict[str, str] = {}
    fps = None
    for name, value in attributes:
        kind, _, rest = value.partition(" ")
        if name == "rtpmap" and kind == formats[0]:
            parts = rest.strip().split("/")
            encoding = parts[0].upper()
            clock_hz = _clock_hz(parts[1]) if len(parts) > 1 else 0
        elif name == "fmtp" and kind == formats[0]:
            for pair in rest.split(";"):
                key, _, content = pair.strip().partition("=")
                parameters[key.lower()] = content
        elif name == "framerate":
            fps = _rate(value)
    codec = CODECS.get(encoding, "")
    return VideoMedia(
        encoding=encoding or "an unnamed format",
        codec=codec,
        payload_type=payload_type,
        clock_hz=clock_hz if 0 < clock_hz <= 1_000_000_000 else _DEFAULT_CLOCK_HZ,
        control=next((value for name, value in attributes if name == "control"), ""),
        parameter_sets=_parameter_sets(codec, parameters),
        fps=fps,
        numbered=parameters.get("sprop-max-don-diff", "0").strip() not in ("", "0"),
    )


def _clock_hz(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0


def _rate(text: str) -> float | None:
    try:
        fps = float(text)
    except ValueError:
        return None
    return fps if 0.0 < fps <= MAX_FPS else None


def _parameter_sets(codec: str, parameters: dict[str, str]) -> bytes:
    keys = {
        "h264": ("sprop-parameter-sets",),
        "hevc": ("sprop-vps", "sprop-sps", "sprop-pps"),
    }.get(codec, ())
    found = b""
    for key in keys:
        for part in parameters.get(key, "").split(","):
            part = part.strip().rstrip("=")  # some cameras leave the padding out, or double it
            try:
                unit = base64.b64decode(part + "=" * (-len(part) % 4), validate=True)
            except (binascii.Error, ValueError):
                continue
            unit = unit.removeprefix(START_CODE)
            if unit:
                found += START_CODE + unit
    return found
