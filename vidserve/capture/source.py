"""Which reader takes which source."""

from __future__ import annotations

from urllib.parse import urlsplit

from vidserve.capture.reader import Reader
from vidserve.capture.settings import CameraSettings
from vidserve.capture.synthetic import SCHEME, SyntheticReader
from vidserve.clock import Clock
from vidserve.errors import SourceUnusable


def open_reader(settings: CameraSettings, clock: Clock) -> Reader:
    """The reader for a source, not opened yet.

    ``auto``: ``synthetic://`` is the formula, numbers and ``/dev/video*`` are local devices
    (OpenCV), ``rtsp://`` over TCP goes to our own reader where the stream allows, everything
    else to PyAV.

    Raises:
        SourceUnusable: the reader is unknown, or cannot read such a source.
    """
    source = settings.source
    reader = settings.reader
    if reader == "auto":
        reader = _choose(source, settings.transport)
    # Imported when needed: OpenCV and FFmpeg take a while to load.
    if reader == "synthetic":
        return SyntheticReader(str(source), clock)
    if reader == "opencv":
        from vidserve.capture.opencv import OpenCvReader

        return OpenCvReader(settings, clock)
    if reader == "pyav":
        from vidserve.capture.pyav import PyAvReader

        return PyAvReader(settings, clock)
    if reader == "rtsp":
        from vidserve.capture.rtsp.choice import RtspOrPyAvReader
        from vidserve.capture.rtsp.reader import RtspReader

        return (
            RtspReader(settings, clock)
            if settings.reader == "rtsp"
            else (RtspOrPyAvReader(settings, clock))
        )
    raise SourceUnusable(
        f"reader {reader!r} is not known: use auto, rtsp, pyav, opencv or synthetic"
    )


def _choose(source: str | int, transport: str) -> str:
    if isinstance(source, int) or source.startswith("/dev/video") or source.isdecimal():
        return "opencv"
    scheme = urlsplit(source).scheme.lower()
    if scheme == SCHEME:
        return "synthetic"
    return "rtsp" if scheme == "rtsp" and transport == "tcp" else "pyav"
