"""Basic and Digest logins as a camera asks for and checks them."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Literal

_PAIR = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')


@dataclass(frozen=True)
class Login:
    """What a camera asks for.

    Attributes:
        user, password: Right ones.
        scheme: ``basic``, ``digest``, or ``both``: a client may choose.
        realm, nonce: Of the challenge.
        qop: Ask for ``qop="auth"`` (RFC 2617) or not (RFC 2069, as most cameras do).
        algorithm: ``MD5``, ``SHA-256``, or None: not named, which means MD5.
        opaque: To be given back; None: none.
    """

    user: str
    password: str
    scheme: Literal["basic", "digest", "both"] = "digest"
    realm: str = "camera, 1st floor"
    nonce: str = "0123456789abcdef"
    qop: bool = False
    algorithm: str | None = None
    opaque: str | None = None

    def challenges(self) -> list[str]:
        """The values of ``WWW-Authenticate``, one a header line."""
        digest = f'Digest realm="{self.realm}", nonce="{self.nonce}"'
        if self.qop:
            digest += ', qop="auth,auth-int"'
        if self.algorithm is not None:
            digest += f", algorithm={self.algorithm}"
        if self.opaque is not None:
            digest += f', opaque="{self.opaque}"'
        basic = f'Basic realm="{self.realm}"'
        return {"basic": [basic], "digest": [digest], "both": [digest, basic]}[self.scheme]

    def accepts(self, authorization: str | None, method: str) -> bool:
        """Whether this ``Authorization`` is right for a request of this method."""
        scheme, _, rest = (authorization or "").partition(" ")
        if scheme.lower() == "basic" and self.scheme != "digest":
            right = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            return rest.strip() == right
        if scheme.lower() != "digest" or self.scheme == "basic":
            return False
        given = {m[1].lower(): m[2] if m[2] is not None else m[3] for m in _PAIR.finditer(rest)}
        if (given.get("realm"), given.get("nonce")) != (self.realm, self.nonce):
            return False
        if given.get("username") != self.user or given.get("opaque") != self.opaque:
            return False
        first = self._hash(f"{self.user}:{self.realm}:{self.password}")
        second = self._hash(f"{method}:{given.get('uri', '')}")
        middle = self.nonce
        if self.qop:
            if given.get("qop") != "auth" or not given.get("nc") or not given.get("cnonce"):
                return False
            middle += f":{given['nc']}:{given['cnonce']}:auth"
        return given.get("response") == self._hash(f"{first}:{middle}:{second}")

    def _hash(self, text: str) -> str:
        name = (self.algorithm or "MD5").lower().replace("-", "")
        return hashlib.new(name, text.encode()).hexdigest()
