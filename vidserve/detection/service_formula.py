"""The stated service time of a fake detector: ``"3+2n"`` is 3 ms + 2 ms a picture.

Apart from the fake detector so that the simulator can read it without cv2 or torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

ServiceTime = Callable[[int], float]
"""Seconds that a batch of n pictures takes."""

_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_FORMULA = re.compile(
    rf"(?P<a>{_NUMBER})(?:\+(?:(?P<b>{_NUMBER})\*?)?(?P<n>n))?"
    rf"|(?:(?P<b_only>{_NUMBER})\*?)?(?P<n_only>n)"
)


def parse_service(text: str) -> tuple[float, float]:
    """Read ``a``, ``bn`` or ``a+bn``, in milliseconds.

    Args:
        text: Like ``"3+2n"``, ``"100"``, ``"0.5 + 1.5n"``, ``"2n"``.

    Returns:
        (a_ms, b_ms): the fixed part and the part of each picture.

    Raises:
        ValueError: It reads otherwise, or says that nothing takes any time at all.
    """
    match = _FORMULA.fullmatch("".join(text.split()).lower())
    if match is None:
        raise ValueError(
            f"service time {text!r}: expected milliseconds as a+bn, for example 3+2n "
            "(3 ms a batch and 2 ms a picture), 100 or 2n"
        )
    a_ms = float(match["a"] or 0.0)
    b_text = match["b"] or match["b_only"]
    has_n = match["n"] is not None or match["n_only"] is not None
    b_ms = float(b_text) if b_text else (1.0 if has_n else 0.0)
    if not (a_ms + b_ms > 0.0 and math.isfinite(a_ms + b_ms)):
        raise ValueError(f"service time {text!r}: must be more than 0 ms")
    return a_ms, b_ms


def service_time(text: str) -> ServiceTime:
    """``n -> seconds`` for a text that ``parse_service`` reads; raises as that does."""
    a_ms, b_ms = parse_service(text)
    return lambda n: (a_ms + b_ms * n) / 1000.0
