"""Readers that do not come back, and ``vidserve`` with them as a process of its own.

``python -m tests.lab.bad_readers run -c CONFIG`` is ``vidserve run`` where a camera named
``<call>_<how>`` (``open_spin``, ``close_sleep`` ...) hangs in that call in that way.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from vidserve.capture.reader import Arrival, Reader
from vidserve.capture.settings import CameraSettings
from vidserve.capture.source import open_reader
from vidserve.capture.synthetic import SyntheticPicture, SyntheticReader
from vidserve.clock import Clock
from vidserve.errors import SourceUnreachable
from vidserve.frames import ByteArray, Letterbox

CALLS = ("factory", "open", "first", "read", "convert", "close")


def sleep(over: threading.Event) -> None:
    """As a library that waits for a socket."""
    over.wait()


def spin(over: threading.Event) -> None:
    """As a loop in Python: it takes the interpreter lock again and again."""
    while not over.is_set():
        pass


def burn(over: threading.Event) -> None:
    """As a decoder in C that loops: it takes a core, but not the interpreter lock."""
    while not over.is_set():
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 3_000_000)


HOWS: dict[str, Callable[[threading.Event], None]] = {"sleep": sleep, "spin": spin, "burn": burn}


class _BadPicture(SyntheticPicture):
    __slots__ = ("_stay",)

    def __init__(self, picture: SyntheticPicture, hang: Callable[[], None]) -> None:
        super().__init__(picture._scene, picture._pts_s, picture.corrupt)
        self._stay = hang

    def write_letterbox(self, pixels: ByteArray, geometry: Letterbox) -> None:
        self._stay()
        super().write_letterbox(pixels, geometry)


class BadReader(SyntheticReader):
    """Shows ten pictures at most, then hangs in one call, deaf to ``abort``.

    Args:
        url, clock: Of a synthetic source.
        call: One of ``CALLS`` but ``factory``; ``first`` is the read of the first picture.
        hang: Returns when it is over.
    """

    def __init__(self, url: str, clock: Clock, call: str, hang: Callable[[], None]) -> None:
        super().__init__(url, clock)
        self._call = call
        self._stay = hang
        self.closed = False

    def open(self) -> None:
        if self._call == "open":
            self._stay()
        super().open()

    def read(self) -> Arrival | None:
        if self._call == "first" or (self._call == "read" and self._index == 10):
            self._stay()
        if self._call == "close" and self._index == 10:
            raise SourceUnreachable("it hung up")
        arrival = super().read()
        assert arrival is not None and isinstance(arrival.picture, SyntheticPicture)
        if self._call == "convert" and self._index > 5:
            picture = _BadPicture(arrival.picture, self._stay)
            return Arrival(picture, arrival.received_s, arrival.pts_s, arrival.waited_s)
        return arrival

    def abort(self) -> None:
        """Deaf."""

    def close(self) -> None:
        if self._call == "close":
            self._stay()
        super().close()
        self.closed = True


def bad_reader(settings: CameraSettings, clock: Clock) -> Reader:
    """By the camera's name; any other name gets the reader for its source."""
    call, _, how = settings.name.partition("_")
    if call not in CALLS or how not in HOWS:
        return open_reader(settings, clock)
    over = threading.Event()  # never
    if call == "factory":
        HOWS[how](over)
    return BadReader("synthetic://?fps=30&objects=2", clock, call, lambda: HOWS[how](over))


if __name__ == "__main__":
    import vidserve.daemon
    from vidserve.cli import main

    vars(vidserve.daemon)["open_reader"] = bad_reader
    main()
