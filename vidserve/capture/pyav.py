"""Reader for files and network streams, over PyAV (FFmpeg).

FFmpeg's own log is switched off: it prints URLs with their passwords to stderr.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import av
import av.error
import av.logging
from av.codec.hwaccel import HWAccel
from av.container import InputContainer
from av.video.stream import VideoStream

from vidserve.capture.decoding import AnyPacket, Decoder, Patience, Stamp, accelerator
from vidserve.capture.pyav_errors import explain_file, explain_url
from vidserve.capture.reader import Arrival, SourceFacts
from vidserve.capture.settings import CameraSettings
from vidserve.capture.urls import is_url, with_login, without_login
from vidserve.clock import Clock
from vidserve.errors import (
    CaptureError,
    SourceSilent,
    SourceUnreachable,
    SourceUnusable,
)

av.logging.set_level(None)

MAX_FPS = 240.0
MOST_BAD_READS = 16
# Formats that make video of any text (by suffix: .txt, .nfo, .bin ...), and lists, which may name
# themselves: one took every file descriptor of the process.
_NO_VIDEO = frozenset({"tty", "bin", "xbin", "adf", "idf", "concat"})
_FORMATS = ",".join(sorted(av.formats_available - _NO_VIDEO))
_TS_DISCONT = 0x0200  # AVFMT_TS_DISCONT
_NO_TIMESTAMPS = 0x0080  # AVFMT_NOTIMESTAMPS: FFmpeg invents them, at 25 a second
_ATTACHED_PICTURE = 0x0400  # AV_DISPOSITION_ATTACHED_PIC: the cover of an audio file
# How long FFmpeg looks at a live stream before it hands out the first packet. Its default,
# five seconds, took 0.95 s of a 30 fps stream; the size comes with the first key picture anyhow.
_ANALYSE_US = 400_000
# How much of a URL FFmpeg keeps while it finds out what it is. Of its default, 5 MB, all was kept
# from each connection of a transport stream until so much had come, in memory that glibc does not
# give back: 20 cameras that came and went grew by 36 MB in three minutes.
_PROBE_BYTES = 1_000_000
_HELD_BACK = frozenset({"h264", "hevc", "vvc", "mpeg4", "mpeg2video"})


class PyAvReader:
    """One file or stream. All methods but ``abort`` belong to the capture thread.

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
        self._decoder: Decoder | None = None
        self._patience = Patience(settings, clock)
        self._packets: Iterator[AnyPacket] | None = None
        self._aborted = threading.Event()
        self.live = False
        self._invented_pts = False
        self.nominal_fps: float | None = None
        self._bad_reads = 0
        self._decoders_before = (0, 0)  # bad packets, skipped
        self._note = ""
        self._hurried = False
        self._pictures = 0  # since open or rewind
        self._sought = False
        self._ended = False
        self._peeked: AnyPacket | None = None
        self._latest = Stamp(0.0, 0.0)
        self._step_s: float | None = None
        self._last_pts_s: float | None = None

    @property
    def bad_packets(self) -> int:
        decoded = self._decoder.bad_packets if self._decoder is not None else 0
        return self._bad_reads + self._decoders_before[0] + decoded

    @property
    def skipped(self) -> int:
        decoder = self._decoder
        return self._decoders_before[1] + (decoder.skipped if decoder is not None else 0)

    @property
    def reader_delay_s(self) -> float:
        """FFmpeg's parser hands a live picture out when the next one begins: a frame later."""
        stream = self._stream
        if not self.live or stream is None or stream.codec_context.name not in _HELD_BACK:
            return 0.0
        return self._step_s or (1.0 / self.nominal_fps if self.nominal_fps else 0.0)

    def hurry(self, on: bool) -> None:
        self._hurried = on
        if self._decoder is not None:
            self._decoder.hurried = on

    def catch_up(self) -> None:
        if self._decoder is not None:
            self._decoder.catch_up()

    def facts(self) -> SourceFacts:
        container, decoder = self._container, self._decoder
        if container is None or decoder is None:
            raise AssertionError("facts before open")
        return decoder.facts("pyav", container.format.name, self._note)

    def open(self) -> None:
        self._patience = Patience(self._settings, self._clock)
        hwaccel, self._note = accelerator(self._settings.decoder)
        container = self._open_container(hwaccel)
        self._container = container
        streams = [stream for stream in container.streams.video if _decodable(stream)]
        if not streams:
            raise SourceUnusable(f"{self._name()} has no video track that can be decoded")
        best = container.streams.best("video")  # not a cover, not one without packets
        stream = next((one for one in streams if one is best), streams[0])
        self._stream = stream
        self.live = self._is_url and (
            container.duration is None
            or container.duration <= 0
            or urlsplit(self._source).scheme.lower() not in ("http", "https", "ftp", "sftp")
        )
        self._invented_pts = self.live and bool(container.format.flags & _NO_TIMESTAMPS)
        self._decoder = Decoder(
            stream.codec_context,
            stream.time_base,
            self._settings,
            self._clock,
            live=self.live,
            begins_anew=self._is_indexed,
        )
        self._decoder.hurried = self._hurried
        rate = stream.average_rate or stream.guessed_rate
        sane = rate is not None and 0 < float(rate) <= MAX_FPS and not self._invented_pts
        self.nominal_fps = float(rate) if rate is not None and sane else None
        self._packets = container.demux()

    def _open_container(self, hwaccel: HWAccel | None) -> InputContainer:
        settings = self._settings
        failure: CaptureError
        if not self._is_url:
            try:
                _refuse_what_is_no_file(self._source)
                # "file:" keeps FFmpeg from reading a protocol or an option out of a name. The
                # time-outs are for playlists without an end, which FFmpeg reads again and again.
                return av.open(
                    f"file:{self._source}",
                    "r",
                    options={"format_whitelist": _FORMATS},
                    metadata_errors="replace",
                    timeout=(settings.start_s / 2, settings.stall_s),
                    hwaccel=hwaccel,
                )
            except (av.error.FFmpegError, OSError, ValueError) as error:
                failure = explain_file(error, self._source)
            raise failure
        options = {"format_whitelist": _FORMATS}
        if urlsplit(self._source).scheme.lower() in ("rtsp", "rtsps"):
            options |= {
                "rtsp_transport": settings.transport,
                "allowed_media_types": "video",
                "timeout": str(round(settings.stall_s * 1e6)),
                "analyzeduration": str(_ANALYSE_US),
            }
        else:
            options |= {"probesize": str(_PROBE_BYTES)}
        timeout_s = settings.start_s / 2  # FFmpeg opens in two steps of at most this
        began_s = self._clock.now()
        try:
            return av.open(
                with_login(self._source, settings.username, settings.password),
                "r",
                options=options,
                metadata_errors="replace",
                timeout=(timeout_s, settings.stall_s),
                hwaccel=hwaccel,
            )
        except (av.error.FFmpegError, OSError, ValueError) as error:
            waited_s = self._clock.now() - began_s
            clean = without_login(self._source)
            given = bool(settings.username or settings.password) or clean != self._source
            failure = explain_url(error, clean, waited_s, timeout_s, given)
        # Outside of the except block: the original holds the URL with the password.
        raise failure

    def expected_pts_s(self) -> float | None:
        """The smallest pts that is in the decoder or next to go in: exact, whatever the rate."""
        if self.live or self._decoder is None:
            return None
        packet = self._peek() if not self._decoder.ready else None
        return self._decoder.earliest_pts_s(packet.pts if packet is not None else None)

    def read(self) -> Arrival | None:
        if self._decoder is None:
            raise AssertionError("read before open")
        while not self._decoder.ready:
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
            fed = self._decoder.feed(packet, self._latest, damaged=packet.is_corrupt)
            if not fed and self._is_indexed and not self._decoder.context.codec.intra_only:
                self._ended = not self._pictures
            if not self._decoder.ready:
                self._patience.check(self.live)
        arrival = self._decoder.take(with_pts=not self._invented_pts)
        self._measure_step(arrival.pts_s)
        self._patience.picture()
        self._pictures += 1
        return arrival

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
        self._decoders_before = (self.bad_packets - self._bad_reads, self.skipped)
        self._decoder = None
        self._packets = None
        self._stream = None
        container, self._container = self._container, None
        if container is not None:
            container.close()

    def _forget(self) -> None:
        if self._decoder is not None:
            self._decoder.forget()
        self._peeked = None
        self._ended = False
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
                self._patience.check(self.live)
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
                self._bad_reads += 1
                if not self._is_url and self._container is not None:
                    self._packets = self._container.demux()  # an exception ended the old one
                    continue
                failure = self._lost(error)
            else:
                now_s = self._clock.now()
                self._latest = Stamp(now_s, now_s - began_s)
                return packet
            raise failure
        return None

    def _lost(self, error: Exception) -> CaptureError:
        if isinstance(error, (av.error.ExitError, TimeoutError)):
            return SourceSilent(f"no frame for {self._settings.stall_s:g} s")
        text = getattr(error, "strerror", None) or type(error).__name__
        return SourceUnreachable(f"reading failed: {text}")

    def _measure_step(self, pts_s: float | None) -> None:
        """The usual step of a live stream, for the known delay of the parser."""
        if pts_s is not None and self._last_pts_s is not None:
            step_s = pts_s - self._last_pts_s
            if 1.0 / MAX_FPS <= step_s <= 2.0:
                before = self._step_s
                self._step_s = step_s if before is None else before + 0.1 * (step_s - before)
        self._last_pts_s = pts_s


def _refuse_what_is_no_file(path: str) -> None:
    """What would be waited for without end, in the kernel or by FFmpeg.

    Raises:
        SourceUnusable: it is a pipe, a device, a socket, or empty.
        OSError: it is not there, or may not be looked at.
    """
    about = os.stat(path)
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    devices = dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device that holds no video file")
    kind = (kinds | devices).get(stat.S_IFMT(about.st_mode))
    if kind is not None:
        raise SourceUnusable(f"{path} is {kind}: name a video file, a URL or /dev/video...")
    if stat.S_ISREG(about.st_mode) and about.st_size == 0:
        raise SourceUnusable(f"{path} is an empty file")


def _decodable(stream: VideoStream) -> bool:
    # Where FFmpeg has no decoder for a track there is no context, whatever PyAV's types say.
    context: object = stream.codec_context
    return context is not None and not int(stream.disposition) & _ATTACHED_PICTURE
