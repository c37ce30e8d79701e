"""URLs of sources: telling them from paths, and keeping logins in the right place."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit


def is_url(source: str) -> bool:
    """``scheme://...``; anything else is a path, whatever characters it has."""
    scheme, separator, _ = source.partition("://")
    return bool(separator) and scheme.isascii() and scheme.replace("+", "").isalnum()


def with_login(url: str, username: str, password: str) -> str:
    """The URL with the login encoded into it, in place of one that it may hold."""
    if not username and not password:
        return url
    parts = urlsplit(url)
    login = f"{quote(username, safe='')}:{quote(password, safe='')}@"
    return urlunsplit(parts._replace(netloc=login + parts.netloc.rpartition("@")[2]))


def without_login(url: str) -> str:
    """The URL as people may see it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
