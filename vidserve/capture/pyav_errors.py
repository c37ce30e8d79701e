"""What PyAV's exceptions mean for people, and what to do. No text here holds credentials."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import av.error

from vidserve.errors import (
    CaptureError,
    SourceSilent,
    SourceUnauthorized,
    SourceUnreachable,
    SourceUnusable,
)


def explain_url(error: Exception, url: str, waited_s: float, timeout_s: float) -> CaptureError:
    """For a network source that could not be opened.

    Args:
        error: What PyAV raised.
        url: Without credentials.
        waited_s: How long the attempt took.
        timeout_s: How long it could have taken. FFmpeg reports an RTSP server that stays silent
            as invalid data: only the time tells.
    """
    place = urlsplit(url).netloc or url
    scheme = urlsplit(url).scheme.upper()
    if isinstance(error, (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError)):
        code = 401 if isinstance(error, av.error.HTTPUnauthorizedError) else 403
        return SourceUnauthorized(
            f"{place} refused the login ({code}): check username and password"
        )
    if isinstance(error, av.error.HTTPNotFoundError):
        return SourceUnreachable(f"{place} knows no such stream (404): check the path of the URL")
    if isinstance(error, (av.error.HTTPError, av.error.HTTPClientError)):
        return SourceUnreachable(
            f"{place} answered: {error.strerror}: check the URL and the camera"
        )
    if isinstance(error, ConnectionRefusedError):
        return SourceUnreachable(
            f"{place} refuses the connection: check that the camera is on and the port is right"
        )
    if isinstance(error, (av.error.ExitError, TimeoutError)) or waited_s >= 0.9 * timeout_s:
        return SourceSilent(
            f"{place} gave no answer for {timeout_s:g} s: check the address and the network"
        )
    if isinstance(error, av.error.ProtocolNotFoundError):
        return SourceUnusable(f"{scheme} is not built into this FFmpeg: use RTSP or HTTP instead")
    if isinstance(error, av.error.InvalidDataError):
        return SourceUnreachable(
            f"{place} gave no sensible answer: check that the URL is right and {scheme} is spoken"
        )
    host = urlsplit(url).hostname
    if host and not _resolves(host):
        return SourceUnreachable(f"no such host: {host}: check the name and the name server")
    text = getattr(error, "strerror", None) or type(error).__name__
    return SourceUnreachable(f"{place} cannot be reached: {text}: check the URL and the network")


def explain_file(error: Exception, path: str) -> CaptureError:
    """For a file that could not be opened."""
    if isinstance(error, FileNotFoundError):
        return SourceUnreachable(f"no such file: {path}: check the path")
    if isinstance(error, PermissionError):
        return SourceUnreachable(f"{path} may not be read: check its permissions")
    if isinstance(error, IsADirectoryError):
        return SourceUnusable(f"{path} is a directory: name a video file")
    text = getattr(error, "strerror", None) or type(error).__name__
    return SourceUnusable(
        f"{path} holds no video that can be read ({text}): it may be cut short or damaged"
    )


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
