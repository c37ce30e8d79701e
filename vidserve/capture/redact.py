"""Keeps credentials out of everything that people or machines can read."""

from __future__ import annotations

import base64
import re
from urllib.parse import quote, quote_plus, unquote, urlsplit

MASK = "***"
# Cameras take passwords in the query or even in the path (user=a_password=b_channel=1.sdp);
# there is no rule where they end, so all up to the next separator is hidden.
SECRET_PARAMETER = re.compile(
    r"((?:pass|pwd|token|secret|key|auth|sig|credential|pw|psw)[a-z0-9_.-]*(?:=|%3d))"
    r"[^&;/?#\s'\"]*",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^\s/'\"]+@")


class Redactor:
    """Replaces secrets in texts: as they are, percent-encoded, and as Basic's base64.

    Whatever stands before the ``@`` of a URL, or after ``password=`` and the like, is masked
    too, known or not.

    Args:
        secrets: Passwords, raw. Empty ones are ignored.
        logins: Pairs of user name and password, for the base64 of ``user:password``.
    """

    def __init__(
        self, secrets: tuple[str, ...] = (), logins: tuple[tuple[str, str], ...] = ()
    ) -> None:
        forms: set[str] = set()
        for secret in (*secrets, *(password for _, password in logins)):
            quoted = quote(secret, safe="")
            forms |= {secret, quoted, quoted.lower(), quote(secret), quote_plus(secret)}
            forms.add(repr(secret)[1:-1])  # as it stands in a traceback
        for user, password in logins:
            login = f"{user}:{password}".encode()
            forms |= {base64.b64encode(login).decode(), base64.urlsafe_b64encode(login).decode()}
        # Longest first: a secret that is part of another must not break it up.
        self._forms = sorted((form for form in forms if form), key=len, reverse=True)

    @classmethod
    def for_source(cls, source: str | int, username: str, password: str) -> Redactor:
        """For a camera: its own login, and one written into its URL."""
        logins = [(username, password)] if password else []
        if isinstance(source, str) and "://" in source:
            userinfo = urlsplit_userinfo(source)
            if userinfo is not None and userinfo[1]:
                logins.append((unquote(userinfo[0]), unquote(userinfo[1])))
                logins.append(userinfo)
        return cls(logins=tuple(logins))

    def clean(self, text: str) -> str:
        """The text without secrets."""
        text = SECRET_PARAMETER.sub(rf"\1{MASK}", _USERINFO.sub(f"{MASK}@", text))
        for form in self._forms:
            text = text.replace(form, MASK)
        return text


def urlsplit_userinfo(url: str) -> tuple[str, str] | None:
    """User name and password as written in the URL (still encoded), or None."""
    netloc = urlsplit(url).netloc
    if "@" not in netloc:
        return None
    user, _, password = netloc.rpartition("@")[0].partition(":")
    return user, password
