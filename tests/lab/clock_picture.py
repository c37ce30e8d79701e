"""A test picture with a clock drawn into it that a test can read. Standard library only.

The upper two tenths of the width hold 2 rows of 20 squares, white for 1 and black for 0: 32 bits
of milliseconds of the machine's monotonic clock, and 8 bits to check them by. The clock is the
same in every process of the machine, so the age of a picture is ``now - drawn``. Whoever draws
it and whoever reads it agree as long as the picture is scaled as a whole.
"""

from __future__ import annotations

from typing import Any

COLUMNS = 20
ROWS = 2
_BITS = 32
_BLACK, _WHITE = 16, 235


def _check(value_ms: int) -> int:
    return sum(value_ms >> shift & 0xFF for shift in (0, 8, 16, 24)) * 37 + 91 & 0xFF


def bits(now_s: float) -> list[bool]:
    """Of a monotonic time: 40, row by row."""
    value_ms = round(now_s * 1000) & 0xFFFFFFFF
    word = value_ms << 8 | _check(value_ms)
    return [bool(word >> shift & 1) for shift in range(_BITS + 7, -1, -1)]


def draw(width: int, height: int, now_s: float, number: int = 0) -> bytes:
    """I420 of even ``width`` and ``height``: a grey slope that moves with ``number``, the clock."""
    side = width // COLUMNS
    pattern = bytes(60 + (column * 120 // width + 2 * number) % 120 for column in range(width))
    rows = []
    for row in range(ROWS):
        part = bits(now_s)[row * COLUMNS : (row + 1) * COLUMNS]
        line = b"".join(bytes([_WHITE if bit else _BLACK]) * side for bit in part)
        rows.append((line + pattern[len(line) :]) * side)
    luma = b"".join(rows) + pattern * (height - ROWS * side)
    return luma + bytes([128]) * (width // 2 * (height // 2) * 2)


def read(grey: Any) -> float | None:
    """The monotonic time drawn, seconds modulo 2**32 ms; None where there is no whole clock.

    Args:
        grey: (height, width), uint8, of the whole picture at any size: an array, or lists.
    """
    side = len(grey[0]) / COLUMNS
    word = 0
    for row in range(ROWS):
        line = grey[int((row + 0.5) * side)]
        for column in range(COLUMNS):
            word = word << 1 | (int(line[int((column + 0.5) * side)]) > 128)
    value_ms, check = word >> 8, word & 0xFF
    return value_ms / 1000 if check == _check(value_ms) else None
