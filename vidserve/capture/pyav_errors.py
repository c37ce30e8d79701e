"""What PyAV's exceptions mean for people, and what to do. No text here holds credentials."""

from __future__ import annotations

from urllib.parse import urlsplit

import av.error

from vidserve.capture import failures
from vidserve.errors import CaptureError, SourceUnreachable, SourceUnusable


def explain_url(
    error: Exception, url: str, waited_s: float, timeout_s: float, login_given: bool
) -> CaptureError:
    """For a network source that could not be opened.

    Args:
        error: What PyAV raised.
        url: Without credentials.
        waited_s: How long the attempt took.
        timeout_s: How long it could have taken. FFmpeg reports an RTSP server that stays silent
            as invalid data: only the time tells.
        login_given: Whether it was opened with a login.
    """
    place = urlsplit(url).netloc or url
    scheme = urlsplit(url).scheme.upper()
    if isinstance(error, (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError)):
        code = 401 if isinstance(error, av.error.HTTPUnauthorizedError) else 403
        return failures.refused_login(place, code, login_given)
    if isinstance(error, av.error.HTTPNotFoundError):
        return failures.no_such_stream(place)
    if isinstance(error, (av.error.HTTPError, av.error.HTTPClientError)):
        return failures.answered(place, str(error.strerror))
    if isinstance(error, ConnectionRefusedError):
        return failures.refused(place)
    if isinstance(error, (av.error.ExitError, TimeoutError)) or waited_s >= 0.9 * timeout_s:
        return failures.silent(place, timeout_s)
    if isinstance(error, av.error.ProtocolNotFoundError):
        return SourceUnusable(f"{scheme} is not built into this FFmpeg: use RTSP or HTTP instead")
    if isinstance(error, av.error.InvalidDataError):
        return failures.nonsense(place, scheme)
    host = urlsplit(url).hostname
    if host and not failures.resolves(host):
        return failures.no_such_host(host)
    return failures.no_way(place, getattr(error, "strerror", None) or type(error).__name__)


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
