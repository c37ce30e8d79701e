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
    (OpenCV), everything else goes to PyAV.

    Raises:
        SourceUnusable: the reader is unknown.
    """
    source = settings.source
    reader = settings.reader
    if reader == "auto":
        reader = _choose(source)
    # Imported when needed: OpenCV and FFmpeg take a while to load.
    if reader == "synthetic":
        return SyntheticReader(str(source), clock)
    if reader == "opencv":
        from vidserve.capture.opencv import OpenCvReader

        return OpenCvReader(settings, clock)
    if reader == "pyav":
        from vidserve.capture.pyav import PyAvReader

        return PyAvReader(settings, clock)
    raise SourceUnusable(f"reader {reader!r} is not known: use auto, pyav, opencv or synthetic")


def _choose(source: str | int) -> str:
    if isinstance(source, int) or source.startswith("/dev/video") or source.isdecimal():
        return "opencv"
    return "synthetic" if urlsplit(source).scheme == SCHEME else "pyav"
