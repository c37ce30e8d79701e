"""Coded pictures with their times in a file, for the RTSP server. Standard library only: it is
read by the system's python3.

A line of JSON (``codec``, ``fps``), then for each picture in decoding order: when it is shown
(float64, seconds), how long it is (uint32), and so many bytes of Annex B; big endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

_HEAD = struct.Struct("!dI")


def write_units(path: Path, codec: str, fps: float, units: Iterable[tuple[float, bytes]]) -> Path:
    """Write (when it is shown, Annex B) of each picture; returns the path."""
    with path.open("wb") as out:
        out.write(json.dumps({"codec": codec, "fps": fps}).encode() + b"\n")
        for shown_s, data in units:
            out.write(_HEAD.pack(shown_s, len(data)) + data)
    return path


def read_units(path: Path) -> tuple[str, float, list[tuple[float, bytes]]]:
    """The codec, the frames a second, and (when it is shown, Annex B) of each picture."""
    with path.open("rb") as file:
        facts = json.loads(file.readline())
        units = []
        while head := file.read(_HEAD.size):
            shown_s, length = _HEAD.unpack(head)
            units.append((shown_s, file.read(length)))
    return facts["codec"], facts["fps"], units
