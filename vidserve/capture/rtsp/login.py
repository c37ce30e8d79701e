"""The login of HTTP and RTSP: Basic (RFC 7617) and Digest (RFC 7616, and 2069 for old cameras)."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Callable

_PAIR = re.compile(r'([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_SCHEME = re.compile(r"^\s*(basic|digest)\b", re.IGNORECASE)
_NEXT = re.compile(r",\s*(?=(?:basic|digest)\s)", re.IGNORECASE)  # several in one header
_HASHES: dict[str, Callable[[bytes], str]] = {
    "MD5": lambda data: hashlib.md5(data, usedforsecurity=False).hexdigest(),
    "SHA-256": lambda data: hashlib.sha256(data).hexdigest(),
}


class Login:
    """User name and password, and what the server asked for. Never printed.

    Args:
        username, password: As they are, not encoded.
    """

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password
        self._challenge: dict[str, str] | None = None  # Digest
        self._basic = False
        self._count = 0

    @property
    def given(self) -> bool:
        """Whether there is anything to log in with."""
        return bool(self._username or self._password)

    @property
    def is_basic(self) -> bool:
        """Whether the password itself is sent."""
        return self._basic

    def challenge(self, values: list[str]) -> bool:
        """Take what ``WWW-Authenticate`` says, Digest before Basic; False: nothing of use.

        A second challenge is worth an answer only if the first was for an old nonce: see
        ``stale``.
        """
        digests = []
        basic = False
        for value in [part for line in values for part in _NEXT.split(line)]:
            scheme = _SCHEME.match(value)
            if scheme is None:
                continue
            if scheme.group(1).lower() == "basic":
                basic = True
                continue
            fields = {
                name.lower(): re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
                for name, quoted, plain in _PAIR.findall(value[scheme.end() :])
            }
            name = fields.get("algorithm", "MD5").upper().removesuffix("-SESS")
            kinds = [part.strip() for part in fields.get("qop", "auth").lower().split(",")]
            if name in _HASHES and "nonce" in fields and "auth" in kinds:
                digests.append(fields)
        self._count = 0
        self._challenge = digests[0] if digests else None
        self._basic = basic and not digests
        return bool(digests) or basic

    def forget(self) -> None:
        """Another server: it has to ask for itself."""
        self._challenge, self._basic, self._count = None, False, 0

    @property
    def stale(self) -> bool:
        """The server refused only the age of the nonce."""
        challenge = self._challenge
        return challenge is not None and challenge.get("stale", "").lower() == "true"

    def header(self, method: str, uri: str) -> str | None:
        """The value of ``Authorization`` for one request; None: nothing was asked."""
        if self._basic:
            pair = f"{self._username}:{self._password}".encode()
            return "Basic " + base64.b64encode(pair).decode()
        if self._challenge is None:
            return None
        return self._digest(self._challenge, method, uri)

    def _digest(self, asked: dict[str, str], method: str, uri: str) -> str:
        algorithm = asked.get("algorithm", "MD5")
        make = _HASHES[algorithm.upper().removesuffix("-SESS")]
        realm, nonce = asked.get("realm", ""), asked["nonce"]
        client_nonce = secrets.token_hex(8)
        secret = make(f"{self._username}:{realm}:{self._password}".encode())
        if algorithm.upper().endswith("-SESS"):
            secret = make(f"{secret}:{nonce}:{client_nonce}".encode())
        what = make(f"{method}:{uri}".encode())
        fields = [
            f'username="{_quoted(self._username)}"',
            f'realm="{_quoted(realm)}"',
            f'nonce="{nonce}"',
            f'uri="{uri}"',
        ]
        if "auth" in [part.strip() for part in asked.get("qop", "").lower().split(",")]:
            self._count += 1
            count = f"{self._count:08x}"
            response = make(f"{secret}:{nonce}:{count}:{client_nonce}:auth:{what}".encode())
            fields += ["qop=auth", f"nc={count}", f'cnonce="{client_nonce}"']
        else:
            response = make(f"{secret}:{nonce}:{what}".encode())
        fields.append(f'response="{response}"')
        if "algorithm" in asked:
            fields.append(f"algorithm={algorithm}")
        if "opaque" in asked:
            fields.append(f'opaque="{asked["opaque"]}"')
        return "Digest " + ", ".join(fields)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
