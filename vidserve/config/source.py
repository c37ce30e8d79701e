"""Where a camera's pictures come from, with its credentials kept apart and out of sight."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from vidserve.capture.redact import SECRET_PARAMETER
from vidserve.config.checks import no_controls
from vidserve.config.problems import did_you_mean, printable
from vidserve.config.values import Scalar, is_null, shape, to_text, wrong

SourceKind = Literal["url", "file", "device", "synthetic"]

SCHEMES = ("rtsp", "rtsps", "http", "https", "rtmp", "rtmps", "udp", "tcp", "rtp", "srt")
SYNTHETIC = "synthetic"

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """A source as configured. ``str`` and ``repr`` are safe to print; ``reveal`` is not.

    Attributes:
        kind: What it is. Only what has ``://`` and a known scheme is a URL: names with ``#``,
            ``%`` or a leading ``-`` are files.
        shown: The source without credentials, for logs, messages and topics.
        username, password: Taken out of a URL (percent-decoded); None if it has none.
    """

    kind: SourceKind
    shown: str
    username: str | None = field(default=None, repr=False)
    password: SecretStr | None = field(default=None, repr=False)
    _secret: SecretStr = field(default=SecretStr(""), repr=False)

    def __str__(self) -> str:
        return self.shown

    @staticmethod
    def parse(value: str | int) -> Source:
        """A source as one would write it in the file. ValueError: it is none."""
        return to_source(value)

    def reveal(self) -> str:
        """What to open, without user name and password; its query may still hold a token."""
        return self._secret.get_secret_value()

    def resolved(self, path: Callable[[str], Path]) -> str | int:
        """What to open: a URL as it is, a device number as int, a path made absolute.

        Args:
            path: Makes a path of the file absolute (``Config.path``).

        An absolute path is never taken for an option or for a URL by any library.
        """
        text = self.reveal()
        if self.kind in ("url", "synthetic"):
            return text
        if self.kind == "device" and _NUMBER.fullmatch(text):
            return int(text)
        return str(path(text))


def to_source(value: Any) -> Source:
    """From the file (a scalar) or from code (text, a device number, a ``Source``)."""
    if isinstance(value, Source):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= 9999:
            raise wrong("a device number is between 0 and 9999")
        return _plain("device", str(value))
    if is_null(value):
        raise wrong("is empty: a URL, a file or a device is wanted")
    if not isinstance(value, str | Scalar):
        raise wrong(f"must be a URL, a file or a device, but is {shape(value)}")
    text = to_text(value)
    if not text or text.isspace():
        raise wrong("is empty: a URL, a file or a device is wanted")
    if isinstance(value, Scalar) and value.plain and _NUMBER.fullmatch(text):
        return _plain("device", text)
    no_controls(text)
    found = _URL.fullmatch(text)
    if found is None:
        _refuse_half_url(text)
        return _plain("device" if text.startswith("/dev/") else "file", text)
    scheme = found[1].lower()
    if scheme == SYNTHETIC:
        return _plain("synthetic", text)
    if scheme not in SCHEMES:
        known = (*SCHEMES, SYNTHETIC)
        name = "its scheme" if isinstance(value, Scalar) and value.variables else scheme
        raise wrong(
            f"{printable(name, 20)} is not taken: one of {', '.join(known)}, or a file "
            f"(./ before a name that holds ://){did_you_mean(scheme, known)}"
        )
    return _from_url(scheme, found[2])


def _refuse_half_url(text: str) -> None:
    """A URL whose scheme is missing or maimed would be a file, and its password be shown."""
    if text.startswith(("/", "./", "../")):
        return
    scheme = text.partition(":")[0].lower()
    maimed = scheme in (*SCHEMES, SYNTHETIC) or re.search(r"://|:.*@", text, re.DOTALL)
    if ":" in text and maimed:
        raise wrong(
            "looks like a URL without scheme:// (for a file write ./ before its name); "
            "rtsp://HOST/... is usual"
        )


def _plain(kind: SourceKind, text: str) -> Source:
    return Source(kind, _shown(text), _secret=SecretStr(text))


def _shown(text: str) -> str:
    return printable(SECRET_PARAMETER.sub(r"\1***", text), 1000)


def _from_url(scheme: str, rest: str) -> Source:
    """Split ``user:password@host:port/path``; messages show nothing of it."""
    if any(c.isspace() for c in rest):
        raise wrong("a URL holds no blanks: write %20")
    cut = re.search(r"[/?#]", rest)
    authority, tail = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")
    login, at, host = authority.rpartition("@")
    port = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", host, re.ASCII)
    if port is None or (port[2] is not None and not 0 < int(port[2]) < 65536):
        raise wrong(
            "what follows the host is not a port number (a password with / ? or # in it does "
            "not fit into a URL: give it as `password`)"
        )
    if not port[1] and scheme not in ("udp", "tcp", "rtp", "srt"):
        raise wrong("the URL has no host")
    username = password = None
    if at:
        name, colon, secret = login.partition(":")
        try:
            username = urllib.parse.unquote(name, errors="strict")
            password = urllib.parse.unquote(secret, errors="strict") if colon else None
        except UnicodeDecodeError:
            # `from None`: the cause would show the bytes of the password.
            raise wrong("the percent-encoded login in the URL is not UTF-8") from None
    clean = f"{scheme}://{host}{tail}"
    return Source(
        "url",
        _shown(clean),
        username or None,
        None if password is None else SecretStr(password),
        SecretStr(clean),
    )
