"""Checks of single values that bounds cannot say. Each raises ``wrong`` with a sentence."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import shapely
from pydantic import AfterValidator, SecretStr
from shapely.validation import explain_validity

from vidserve.config.problems import did_you_mean
from vidserve.config.values import wrong

RESERVED_NAMES = ("status", "info", "stats", "set", "state", "response", "health")
"""Topic levels beside the cameras' own."""
LONGEST_NAME = 64
_DEVICES = ("auto", "cpu", "cuda", "mps", "intel:cpu", "intel:gpu", "intel:npu")


def validator(check: Callable[[Any], None]) -> AfterValidator:
    """A check as pydantic takes it."""

    def run(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(run)


def no_controls(text: str) -> None:
    """Text that may be printed: no line ends, no escape sequences."""
    if any(ord(c) < 32 or ord(c) == 127 or 0x80 <= ord(c) < 0xA0 for c in text):
        raise wrong("holds a control character")


def no_repeats(items: Sequence[str]) -> None:
    """A list names each thing once."""
    if len(set(items)) < len(items):
        raise wrong("names one of them twice")


def device(text: str) -> None:
    """A device that torch or OpenVINO may have."""
    if text in _DEVICES or re.fullmatch(r"cuda:[0-9]{1,2}", text, re.ASCII):
        return
    if re.fullmatch(r"[0-9]{1,2}", text, re.ASCII):
        raise wrong(f"is a bare number (did you mean cuda:{int(text)}?)")
    hint = did_you_mean(text, _DEVICES)
    raise wrong(f"must be one of {', '.join(_DEVICES)} or cuda:N{hint}")


def stride(size: int) -> None:
    """Model inputs are multiples of 32."""
    if size % 32:
        raise wrong(f"must be a multiple of 32 (did you mean {_near(size)}?)")


def _near(size: int) -> int:
    return max(32, (size + 16) // 32 * 32)


def falling(sizes: Sequence[int]) -> None:
    """Sizes come largest first, each once."""
    wanted = sorted(set(sizes), reverse=True)
    if list(sizes) != wanted:
        raise wrong(f"must be largest first, each once (did you mean {wanted}?)")


def simple(points: Sequence[tuple[float, float]]) -> None:
    """A polygon has an area and does not cross itself."""
    shape = shapely.Polygon(points)
    if shape.is_valid and shape.area > 0:
        return
    if shape.convex_hull.area == 0:
        raise wrong("the polygon has no area: its points lie on one line")
    reason = str(explain_validity(shape))
    if found := re.match(r"Self-intersection\[(\S+) (\S+)\]", reason):
        x, y = float(found[1]), float(found[2])
        raise wrong(f"the polygon crosses itself near ({x:.3g}, {y:.3g}): order its points")
    raise wrong("the polygon touches itself")


def host(text: str) -> None:
    """A host name or address and nothing else."""
    if "://" in text:
        raise wrong("must be a host name alone, without a scheme")
    if "@" in text:
        raise wrong("must be a host name alone: give username and password as keys")
    if re.fullmatch(r"[^:]+:[0-9]+", text):
        raise wrong("must be a host name alone: give the port as `port`")
    if "/" in text or any(c.isspace() or not c.isprintable() for c in text):
        raise wrong("must be a host name or an address")


def prefix(text: str) -> None:
    """The first levels of all topics."""
    if text.startswith("/") or text.endswith("/") or "//" in text:
        raise wrong("must have no slash at either end and no empty level")
    for level in text.split("/"):
        reason = _why_no_level(level)
        if reason:
            raise wrong(reason)
    if len(text) > 200:
        raise wrong("is longer than 200 characters")


def camera_name(name: str) -> str | None:
    """Why a name cannot be a camera's; None if it can."""
    if not name:
        return "a camera needs a name"
    if len(name) > LONGEST_NAME:
        return f"a camera's name has at most {LONGEST_NAME} characters"
    reason = "must be one topic level: no /" if "/" in name else _why_no_level(name)
    if reason:
        return f"cannot be a camera's name: {reason}"
    if name.casefold() in RESERVED_NAMES:
        return f"cannot be a camera's name: reserved are {', '.join(RESERVED_NAMES)}"
    return None


def named_well(name: str) -> None:
    """``camera_name`` as a check."""
    if reason := camera_name(name):
        raise wrong(reason)


def name_key(name: str) -> str:
    """Names with the same key are one name on some file system or in Home Assistant."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _why_no_level(level: str) -> str | None:
    if "+" in level or "#" in level:
        return "+ and # are wildcards in MQTT"
    if level.startswith("$"):
        return "a leading $ is the broker's own in MQTT"
    if any(not c.isprintable() for c in level):
        return "it holds a control or invisible character"
    if level != level.strip():
        return "it begins or ends with a blank"
    return None


def one_password(
    password: SecretStr | None, password_file: str | None, username: str | None
) -> list[tuple[str | None, str]]:
    """A password is given once, and for somebody: what is wrong, by key."""
    found: list[tuple[str | None, str]] = []
    if password is not None and password_file is not None:
        found.append(("password_file", "password is given too: keep one of the two"))
    for key, value in (("password", password), ("password_file", password_file)):
        if value is not None and not username:
            found.append((key, "needs a username beside it"))
    return found
