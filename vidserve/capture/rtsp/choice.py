"""``reader: auto`` for RTSP: our own reader where the stream allows, FFmpeg otherwise."""

from __future__ import annotations

import threading
from dataclasses import replace

from vidserve.capture.pyav import PyAvReader
from vidserve.capture.reader import Arrival, Reader, SourceFacts
from vidserve.capture.rtsp.reader import RtspReader
from vidserve.capture.rtsp.session import NotForThisReader
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock


class RtspOrPyAvReader:
    """Asks our own reader first; FFmpeg connects anew if it says that it is not for it.

    Everything else is the chosen reader's.
    """

    live = True

    def __init__(self, settings: CameraSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._reader: Reader = RtspReader(settings, clock)
        self._aborted = False
        self._note = ""

    def open(self) -> None:
        try:
            self._reader.open()
        except NotForThisReader as reason:
            self._go_over(reason)

    def read(self) -> Arrival | None:
        try:
            return self._reader.read()
        except NotForThisReader as reason:
            self._go_over(reason)
            return self._reader.read()

    def _go_over(self, reason: NotForThisReader) -> None:
        """Connect anew, with FFmpeg."""
        self._note = f"read by FFmpeg, a frame later: {reason}"
        self._reader.close()
        with self._lock:
            self._reader = PyAvReader(self._settings, self._clock)
            if self._aborted:
                self._reader.abort()
        self._reader.open()

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            reader = self._reader
        reader.abort()

    def facts(self) -> SourceFacts:
        facts = self._reader.facts()
        notes = [note for note in (self._note, facts.note) if note]
        return replace(facts, note="; ".join(notes))

    @property
    def reader_delay_s(self) -> float:
        return self._reader.reader_delay_s

    @property
    def nominal_fps(self) -> float | None:
        return self._reader.nominal_fps

    @property
    def bad_packets(self) -> int:
        return self._reader.bad_packets

    @property
    def skipped(self) -> int:
        return self._reader.skipped

    def hurry(self, on: bool) -> None:
        self._reader.hurry(on)

    def catch_up(self) -> None:
        self._reader.catch_up()

    def expected_pts_s(self) -> float | None:
        return self._reader.expected_pts_s()

    def rewind(self) -> None:
        self._reader.rewind()

    def close(self) -> None:
        self._reader.close()
