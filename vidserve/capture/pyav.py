"""Reader for files and network streams, over PyAV (FFmpeg).

FFmpeg's own log is switched off: it prints URLs with their passwords to stderr.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import av
import av.error
import av.logging
from av.codec.context import Flags as CodecFlags
from av.container import InputContainer
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from vidserve.capture.pyav_errors import explain_file, explain_url
from vidserve.capture.pyav_picture import AvPicture
from vidserve.capture.reader import Arrival, SourceFacts
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock
from vidserve.errors import (
    CaptureError,
    SourceSilent,
    SourceUnreachable,
    SourceUnusable,
)

AnyPacket: TypeAlias = "av.Packet[Any]"  # of any track; PyAV's class takes no [] at run time

av.logging.set_level(None)

MAX_FPS = 240.0
MOST_BAD_READS = 16
# What follows a refused packet is built on a picture that is not there, though FFmpeg does not
# always say so. It counts as damaged until the next key picture, or for so long: a stream that
# refreshes itself bit by bit may never have one.
SMEARED_S = 10.0
_MOST_PENDING = 32  # pictures in a decoder; H.264 and HEVC reorder at most 16
_TS_DISCONT = 0x0200  # AVFMT_TS_DISCONT
_NO_TIMESTAMPS = 0x0080  # AVFMT_NOTIMESTAMPS: FFmpeg invents them, at 25 a second
_ATTACHED_PICTURE = 0x0400  # AV_DISPOSITION_ATTACHED_PIC: the cover of an audio file
# How long FFmpeg looks at a live stream before it hands out the first packet. Its default,
# five seconds, took 0.95 s of a 30 fps stream; the size comes with the first key picture anyhow.
_ANALYSE_US = 400_000
_HELD_BACK = frozenset({"h264", "hevc", "vvc", "mpeg4", "mpeg2video"})


class PyAvReader:
    """One file or stream. All methods but ``abort`` belong to the capture thread.

    Pictures are decoded by one thread in slices: FFmpeg's frame threads would hold two more.

    Args:
        settings: Of the camera.
        clock: For the stamps.
    """

    def __init__(self, settings: CameraSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._source = str(settings.source)
        if self._source.lower().startswith("file://"):
            self._source = unquote(self._source[len("file://") :])
        self._is_url = is_url(self._source)
        self._container: InputContainer | None = None
        self._stream: VideoStream | None = None
        self._packets: Iterator[AnyPacket] | None = None
        self._reformatter = VideoReformatter()
        self._aborted = threading.Event()
        self.live = False
        self._invented_pts = False
        self.nominal_fps: float | None = None
        self.bad_packets = 0
        self.skipped = 0
        self._opened_s = 0.0
        self._picture_s: float | None = None
        self._pictures = 0  # since open or rewind
        self._sought = False
        self._ended = False
        self._peeked: AnyPacket | None = None
        self._decoded: deque[av.VideoFrame] = deque()
        # pts of packets in the decoder -> when they were received, and how long that took
        self._pending: dict[int, tuple[float, float]] = {}
        self._latest: tuple[float, float] = (0.0, 0.0)
        self._smeared_until_s = float("-inf")
        self._awaits_key_picture = False
        self._step_s: float | None = None
        self._last_pts_s: float | None = None

    @property
    def reader_delay_s(self) -> float:
        """FFmpeg's parser hands a live picture out when the next one begins: a frame later."""
        stream = self._stream
        if not self.live or stream is None or stream.codec_context.name not in _HELD_BACK:
            return 0.0
        return self._step_s or (1.0 / self.nominal_fps if self.nominal_fps else 0.0)

    def hurry(self, on: bool) -> None:
        """Not acted upon yet."""

    def facts(self) -> SourceFacts:
        context = self._track.codec_context
        container = self._container
        return SourceFacts(
            "pyav",
            container.format.name if container is not None else "",
            codec=context.name,
            profile=context.profile or "",
            pixel_format=context.pix_fmt or "",
            reorder=int(context.has_b_frames),
        )

    def open(self) -> None:
        self._opened_s = self._clock.now()
        container = self._open_container()
        self._container = container
        streams = [stream for stream in container.streams.video if _decodable(stream)]
        if not streams:
            raise SourceUnusable(f"{self._name()} has no video track that can be decoded")
        stream = streams[0]
        self._stream = stream
        self.live = self._is_url and (
            container.duration is None
            or container.duration <= 0
            or urlsplit(self._source).scheme.lower() not in ("http", "https", "ftp", "sftp")
        )
        self._invented_pts = self.live and bool(container.format.flags & _NO_TIMESTAMPS)
        context = stream.codec_context
        context.thread_type = "SLICE"
        context.thread_count = 1
        if self.live:
            # Not for files: there it would hand reordered pictures out of order at the start.
            context.flags |= CodecFlags.low_delay
        rate = stream.average_rate or stream.guessed_rate
        self.nominal_fps = float(rate) if rate and 0 < float(rate) <= MAX_FPS else None
        self._packets = container.demux()

    def _open_container(self) -> InputContainer:
        settings = self._settings
        failure: CaptureError
        if not self._is_url:
            try:
                if os.path.isfile(self._source) and os.path.getsize(self._source) == 0:
                    raise SourceUnusable(f"{self._source} is an empty file")
                # "file:" keeps FFmpeg from reading a protocol or an option out of a name.
                return av.open(f"file:{self._source}", "r", metadata_errors="replace")
            except (av.error.FFmpegError, OSError, ValueError) as error:
                failure = explain_file(error, self._source)
            raise failure
        options = {}
        if urlsplit(self._source).scheme.lower() in ("rtsp", "rtsps"):
            options = {
                "rtsp_transport": settings.transport,
                "allowed_media_types": "video",
                "timeout": str(round(settings.stall_s * 1e6)),
                "analyzeduration": str(_ANALYSE_US),
            }
        timeout_s = settings.start_s / 2  # FFmpeg opens in two steps of at most this
        began_s = self._clock.now()
        try:
            return av.open(
                with_login(self._source, settings.username, settings.password),
                "r",
                options=options,
                metadata_errors="replace",
                timeout=(timeout_s, settings.stall_s),
            )
        except (av.error.FFmpegError, OSError, ValueError) as error:
            waited_s = self._clock.now() - began_s
            failure = explain_url(error, without_login(self._source), waited_s, timeout_s)
        # Outside of the except block: the original holds the URL with the password.
        raise failure

    def expected_pts_s(self) -> float | None:
        """The smallest pts that is in the decoder or next to go in: exact, whatever the rate."""
        if self.live or self._stream is None:
            return None
        if self._decoded:
            return self._seconds(self._decoded[0].pts)
        packet = self._peek()
        candidates = list(self._pending)
        if packet is not None and packet.pts is not None:
            candidates.append(packet.pts)
        return self._seconds(min(candidates)) if candidates else None

    def read(self) -> Arrival | None:
        while not self._decoded:
            if self._aborted.is_set():
                raise SourceSilent("the source was aborted")
            packet = self._peek()
            self._peeked = None
            if packet is None:
                if self._sought and not self._pictures:
                    # The seek led nowhere; begin anew.
                    self._reopen()
                    continue
                return None
            self._decode(packet)
            if not self._decoded:
                self._check_patience()
        frame = self._decoded.popleft()
        pts = frame.pts if frame.pts is not None else frame.dts
        received_s, waited_s = self._latest
        if pts is not None:
            received_s, waited_s = self._pending.pop(pts, self._latest)
        pts_s = None if self._invented_pts else self._seconds(pts)
        self._measure_step(pts_s)
        self._picture_s = self._clock.now()
        self._pictures += 1
        if frame.key_frame:
            self._smeared_until_s = float("-inf")
        smeared = self._picture_s < self._smeared_until_s
        picture = AvPicture(frame, self._reformatter, frame.is_corrupt or smeared)
        return Arrival(picture, received_s, pts_s, waited_s)

    def rewind(self) -> None:
        container, stream = self._container, self._stream
        if container is None or stream is None:
            raise AssertionError("rewind before open")
        self._forget()
        try:
            if container.format.flags & _TS_DISCONT:
                # The timestamps of these may jump: only the place in the file is sure.
                container.seek(0, unsupported_byte_offset=True)
            else:
                container.seek(stream.start_time or 0, stream=stream)
        except (av.error.FFmpegError, OSError):
            self._reopen()
            return
        self._sought = True
        self._packets = container.demux()

    def abort(self) -> None:
        """PyAV cannot be interrupted from outside: its time-outs end a blocked call."""
        self._aborted.set()

    def close(self) -> None:
        self._forget()
        self._packets = None
        self._stream = None
        container, self._container = self._container, None
        if container is not None:
            container.close()

    def _forget(self) -> None:
        self._decoded.clear()
        self._pending.clear()
        self._peeked = None
        self._ended = False
        self._smeared_until_s = float("-inf")
        self._awaits_key_picture = False
        self._pictures = 0
        self._sought = False
        self._last_pts_s = None

    def _reopen(self) -> None:
        self.close()
        self.open()

    @property
    def _is_indexed(self) -> bool:
        """A file such as MP4 or Matroska: after damage it goes on at its next key picture.

        One whose very first picture is refused is taken for unusable. Broadcast formats and
        streams are made to be joined anywhere: their decoder is left to it, and what it makes
        of the damage is marked.
        """
        container = self._container
        return (
            not self._is_url and container is not None and not container.format.flags & _TS_DISCONT
        )

    def _name(self) -> str:
        return without_login(self._source) if self._is_url else self._source

    @property
    def _track(self) -> VideoStream:
        if self._stream is None:
            raise AssertionError("read before open")
        return self._stream

    def _seconds(self, pts: int | None) -> float | None:
        time_base = self._track.time_base
        if pts is None or time_base is None:
            return None
        return float(pts * time_base)

    def _peek(self) -> AnyPacket | None:
        """The next packet of the video track, without decoding it; None at the end."""
        while self._peeked is None and not self._ended:
            if self._aborted.is_set():
                raise SourceSilent("the source was aborted")
            packet = self._next_packet()
            if packet is None:
                self._ended = True
            elif packet.stream_index == self._track.index:
                self._peeked = packet
            else:
                self._check_patience()
        return self._peeked

    def _next_packet(self) -> AnyPacket | None:
        """The next packet of any track; a file is read on beyond what cannot be read."""
        failure: CaptureError
        for _ in range(MOST_BAD_READS):
            if self._packets is None:
                raise AssertionError("read before open")
            began_s = self._clock.now()
            try:
                packet = next(self._packets, None)
            except (av.error.FFmpegError, OSError) as error:
                self.bad_packets += 1
                if not self._is_url and self._container is not None:
                    self._packets = self._container.demux()  # an exception ended the old one
                    continue
                failure = self._lost(error)
            else:
                now_s = self._clock.now()
                self._latest = (now_s, now_s - began_s)
                return packet
            raise failure
        return None

    def _lost(self, error: Exception) -> CaptureError:
        if isinstance(error, (av.error.ExitError, TimeoutError)):
            return SourceSilent(f"no frame for {self._settings.stall_s:g} s")
        text = getattr(error, "strerror", None) or type(error).__name__
        return SourceUnreachable(f"reading failed: {text}")

    def _decode(self, packet: AnyPacket) -> None:
        if packet.size == 0 and packet.pts is not None:
            return  # an empty sample; to the decoder it would mean the end
        if self._awaits_key_picture and packet.size:
            if not packet.is_keyframe:
                return
            self._awaits_key_picture = False
        if packet.pts is not None:
            if len(self._pending) >= _MOST_PENDING:
                # Its picture never came. The oldest, not the smallest: timestamps may jump.
                del self._pending[next(iter(self._pending))]
            self._pending[packet.pts] = self._latest
        try:
            self._decoded.extend(self._track.codec_context.decode(packet if packet.size else None))
        except EOFError:
            return  # the decoder was flushed before
        except (av.error.FFmpegError, OSError, ValueError):
            self.bad_packets += 1
            self._smeared_until_s = self._clock.now() + SMEARED_S
            if packet.pts is not None:
                self._pending.pop(packet.pts, None)
            if self._is_indexed:
                # What follows rests on a picture that is not there: begin anew.
                self._track.codec_context.flush_buffers()
                self._pending.clear()
                self._awaits_key_picture = True
                self._ended = not self._pictures

    def _check_patience(self) -> None:
        """Packets come, but no picture."""
        now_s = self._clock.now()
        if self._picture_s is None:
            if now_s - self._opened_s > self._settings.start_s:
                raise SourceUnusable(
                    f"no frames decoded in {self._settings.start_s:g} s, though data comes: "
                    "check the camera's codec, and that it sends key pictures often enough"
                )
        elif self.live and now_s - self._picture_s > self._settings.stall_s:
            raise SourceSilent(f"no frame for {self._settings.stall_s:g} s")

    def _measure_step(self, pts_s: float | None) -> None:
        """The usual step of a live stream, for the known delay of the parser."""
        if pts_s is not None and self._last_pts_s is not None:
            step_s = pts_s - self._last_pts_s
            if 1.0 / MAX_FPS <= step_s <= 2.0:
                before = self._step_s
                self._step_s = step_s if before is None else before + 0.1 * (step_s - before)
        self._last_pts_s = pts_s


def _decodable(stream: VideoStream) -> bool:
    # Where FFmpeg has no decoder for a track there is no context, whatever PyAV's types say.
    context: object = stream.codec_context
    return context is not None and not int(stream.disposition) & _ATTACHED_PICTURE


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
