"""Reader for RTSP over TCP, H.264 and H.265: our own session, FFmpeg's decoder.

FFmpeg's demuxer hands a picture out when the next one begins: 33 ms later at 30 fps. The marker
bit of RTP says at once that a picture is complete.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import av
import av.error

from vidserve.capture.decoding import Decoder, Patience, accelerator
from vidserve.capture.reader import Arrival, SourceFacts
from vidserve.capture.rtsp.connection import Connect, connect_tcp
from vidserve.capture.rtsp.session import NotForThisReader, RtspSession
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock

_JOIN_SHARE = 0.5  # of start_s: how long the first key picture is waited for


class RtspReader:
    """One camera. All methods but ``abort`` belong to the capture thread.

    Args:
        settings: Of the camera.
        clock: For the stamps.
        connect: Makes sockets; tests pass one of their own.
    """

    live = True

    def __init__(
        self, settings: CameraSettings, clock: Clock, connect: Connect = connect_tcp
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._session = RtspSession(settings, clock, connect)
        self._decoder: Decoder | None = None
        self._patience = Patience(settings, clock)
        self._time_base = Fraction(1, 90_000)
        self._join_until_s: float | None = None  # None: joined
        self._note = ""
        self._step_s: float | None = None
        self._last_pts_s: float | None = None
        self.nominal_fps: float | None = None

    @property
    def bad_packets(self) -> int:
        return self._decoder.bad_packets if self._decoder is not None else 0

    @property
    def skipped(self) -> int:
        return self._decoder.skipped if self._decoder is not None else 0

    @property
    def reader_delay_s(self) -> float:
        """None, unless the camera does not mark the end of its pictures."""
        if self._decoder is None or not self._session.pictures.waits_for_next:
            return 0.0
        return self._step_s or (1.0 / self.nominal_fps if self.nominal_fps else 0.0)

    def hurry(self, on: bool) -> None:
        if self._decoder is not None:
            self._decoder.hurried = on

    def catch_up(self) -> None:
        if self._decoder is not None:
            self._decoder.catch_up()

    def facts(self) -> SourceFacts:
        facts = self._open_decoder.facts("rtsp", "rtsp over tcp", self._note)
        return replace(facts, clock_ahead_s=self._session.clock_ahead_s)

    def open(self) -> None:
        self._patience = Patience(self._settings, self._clock)
        media = self._session.open()
        self._join_until_s = self._clock.now() + _JOIN_SHARE * self._settings.start_s
        self.nominal_fps = media.fps
        self._time_base = Fraction(1, media.clock_hz)
        hwaccel, self._note = accelerator(self._settings.decoder)
        try:
            context = av.CodecContext.create(media.codec, "r", hwaccel=hwaccel)
        except (av.error.FFmpegError, ValueError):
            raise NotForThisReader(f"this FFmpeg has no decoder for {media.encoding}") from None
        if not isinstance(context, av.VideoCodecContext):
            raise NotForThisReader(f"{media.encoding} is no video")
        if media.parameter_sets:
            context.extradata = media.parameter_sets
        self._decoder = Decoder(
            context,
            self._time_base,
            self._settings,
            self._clock,
            live=True,
            begins_anew=False,
        )

    @property
    def _open_decoder(self) -> Decoder:
        if self._decoder is None:
            raise AssertionError("read before open")
        return self._decoder

    def expected_pts_s(self) -> float | None:
        return None

    def read(self) -> Arrival | None:
        decoder = self._open_decoder
        while not decoder.ready:
            picture, stamp = self._session.read()
            if self._joined(picture.key):
                packet = av.Packet(bytes(picture.data))
                packet.pts = picture.timestamp
                packet.time_base = self._time_base
                packet.is_keyframe = picture.key
                decoder.feed(packet, stamp, picture.damaged)
            if not decoder.ready:
                self._patience.check(live=True)
        arrival = decoder.take()
        self._measure_step(arrival.pts_s)
        self._patience.picture()
        return arrival

    def _joined(self, key: bool) -> bool:
        """Whether to decode: from the first key picture on.

        A stream that refreshes itself bit by bit has none: after a while the decoder is left to
        it. What is thrown away before was never complete; it counts as nothing.
        """
        if self._join_until_s is None:
            return True
        if not key and self._clock.now() < self._join_until_s:
            return False
        self._join_until_s = None
        return True

    def _measure_step(self, pts_s: float | None) -> None:
        if pts_s is not None and self._last_pts_s is not None:
            step_s = pts_s - self._last_pts_s
            if 0.001 <= step_s <= 2.0:
                before = self._step_s
                self._step_s = step_s if before is None else before + 0.1 * (step_s - before)
        self._last_pts_s = pts_s

    def rewind(self) -> None:
        raise AssertionError("a camera has no beginning")

    def abort(self) -> None:
        self._session.abort()

    def close(self) -> None:
        self._session.close()
