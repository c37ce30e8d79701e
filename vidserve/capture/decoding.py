"""Packets in, pictures out, each with the stamp of its own packet. For every reader that decodes.

Pictures are decoded by one thread in slices: FFmpeg's frame threads would hold two more.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import av
import av.error
from av.codec.context import Flags as CodecFlags
from av.codec.hwaccel import HWAccel
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import VideoReformatter

from vidserve.capture.nal import UnitReader
from vidserve.capture.pyav_picture import AvPicture
from vidserve.capture.reader import Arrival, SourceFacts
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock
from vidserve.errors import SourceSilent, SourceUnusable

AnyPacket: TypeAlias = "av.Packet[Any]"  # of any track; PyAV's class takes no [] at run time

# What follows a refused packet is built on a picture that is not there, though FFmpeg does not
# always say so. It counts as damaged until the next key picture, or for so long: a stream that
# refreshes itself bit by bit may never have one.
SMEARED_S = 10.0
_MOST_PENDING = 32  # pictures in a decoder; H.264 and HEVC reorder at most 16


class Stamp(NamedTuple):
    """When a packet was received (monotonic), and how long the read waited for it; seconds."""

    received_s: float
    waited_s: float


class Decoder:
    """The decoder of one track. Belongs to the capture thread.

    Args:
        context: Not opened yet.
        time_base: Of the packets' timestamps; None: pictures get no ``pts_s``.
        settings: Of the camera: ``skip`` and ``crop``.
        clock: For damage that is forgotten after a while.
        live: Hand pictures out as soon as they are decoded. Not for files: there that would hand
            reordered pictures out of order at the start.
        begins_anew: After a refused packet decode nothing until the next key picture. For files
            that have an index: streams are made to be joined anywhere, their decoder is left to
            it, and what it makes of the damage is marked.
    """

    def __init__(
        self,
        context: VideoCodecContext,
        time_base: Fraction | None,
        settings: CameraSettings,
        clock: Clock,
        *,
        live: bool,
        begins_anew: bool,
    ) -> None:
        context.thread_type = "SLICE"
        context.thread_count = 1
        if live:
            context.flags |= CodecFlags.low_delay
        self.context = context
        self.bad_packets = 0
        self.skipped = 0
        self.hurried = False
        # As two floats: a Fraction costs 20 times as much to multiply with.
        self._ticks = (float(time_base.numerator), time_base.denominator) if time_base else None
        self._clock = clock
        self._skips = settings.skip == "nonref"
        self._crop = settings.crop
        self._wanted = settings.decoder
        self._units: UnitReader | None = None
        self._begins_anew = begins_anew
        self._reformatter = VideoReformatter()
        self._decoded: deque[av.VideoFrame] = deque()
        # pts of packets in the decoder -> their stamps, and the how-manieth packet each was
        self._pending: dict[int, tuple[Stamp, int]] = {}
        self._fed = 0
        self._damaged_at: list[int] = []  # packets since the last key picture that were damaged
        self._latest = Stamp(0.0, 0.0)
        self._decode_s = 0.0
        self._most_ahead = 0
        self._smeared_until_s = float("-inf")
        self._awaits_key_picture = False
        self._catches_up = False
        self._last_times: list[int | None] = [None, None]  # pts, dts
        self._went_back = [0, 0]

    @property
    def ready(self) -> bool:
        """Whether a picture waits to be taken."""
        return bool(self._decoded)

    @property
    def reorder(self) -> int:
        """How many pictures were received before one that is shown before them, at most."""
        return max(self._most_ahead, int(self.context.has_b_frames))  # PyAV says only whether

    def facts(self, reader: str, transport: str, note: str) -> SourceFacts:
        """What is known of the track now."""
        context = self.context
        return SourceFacts(
            reader,
            transport,
            codec=context.name,
            profile=context.profile or "",
            pixel_format=context.pix_fmt or "",
            decoder=self._wanted if context.is_hwaccel else "cpu",
            note=note,
            reorder=self.reorder,
        )

    def feed(self, packet: AnyPacket, stamp: Stamp, damaged: bool = False) -> bool:
        """Decode one packet; an empty one without pts flushes the decoder.

        Args:
            packet: Of this track.
            stamp: Its own.
            damaged: Parts of it are known to be lost.

        Returns:
            False if the decoder refused it.
        """
        if packet.size == 0 and packet.pts is not None:
            return True  # an empty sample; to the decoder it would mean the end
        if self._awaits_key_picture and packet.size:
            if not packet.is_keyframe:
                self.bad_packets += 1  # lost with the one that was refused
                return True
            self._awaits_key_picture = False
        if self._catches_up and packet.size:
            if not packet.is_keyframe:
                self.skipped += 1
                return True
            self._catches_up = False
        self._fed += 1
        if damaged:
            self.smear()
        if self.hurried and self._skips and packet.size and self._can_be_left_out(packet):
            self.skipped += 1
            return True
        self._latest = stamp
        if packet.pts is not None:
            if len(self._pending) >= _MOST_PENDING:
                # Its picture never came. The oldest, not the smallest: timestamps may jump.
                del self._pending[next(iter(self._pending))]
            self._pending[packet.pts] = (stamp, self._fed)
        began_s = self._clock.now()
        try:
            frames = self.context.decode(packet if packet.size else None)
        except EOFError:
            return True  # the decoder was flushed before
        except (av.error.FFmpegError, OSError, ValueError):
            self.bad_packets += 1
            self.smear()
            if packet.pts is not None:
                self._pending.pop(packet.pts, None)
            if self._begins_anew:
                # What follows rests on a picture that is not there: begin anew.
                self.context.flush_buffers()
                self._pending.clear()
                self._awaits_key_picture = True
            return False
        if frames:
            self._decode_s = self._clock.now() - began_s
            self._decoded.extend(frames)
        return True

    def catch_up(self) -> None:
        """Decode nothing until the next key picture; what is left out counts as skipped."""
        self._catches_up = True

    def smear(self) -> None:
        """Something was lost: what goes in from here to the next key picture is damaged.

        What went in before is not, though it may come out later: B-frames hold others back.
        """
        self._smeared_until_s = self._clock.now() + SMEARED_S
        self._damaged_at.append(self._fed)
        if len(self._damaged_at) > _MOST_PENDING:
            del self._damaged_at[1]  # a key picture that is in the decoder is not older than that

    def take(self, with_pts: bool = True) -> Arrival:
        """The next decoded picture; only when ``ready``."""
        frame = self._decoded.popleft()
        pts = frame.pts if frame.pts is not None else frame.dts
        stamp, number = self._latest, self._fed
        if pts is not None:
            stamp, number = self._pending.pop(pts, (stamp, number))
            ahead = sum(other > pts for other in self._pending)
            self._most_ahead = max(self._most_ahead, ahead)
        if frame.key_frame:
            self._damaged_at = [one for one in self._damaged_at if one > number]
            # From here on what is built on a lost picture is handed out, and marked. Without this
            # FFmpeg's HEVC decoder keeps such pictures to itself, without a word; with it from the
            # start both decoders hand out grey before the first key picture.
            self.context.flags |= CodecFlags.output_corrupt
        smeared = bool(self._damaged_at) and self._damaged_at[0] <= number
        if smeared and self._clock.now() >= self._smeared_until_s:
            self._damaged_at.clear()
            smeared = False
        return Arrival(
            AvPicture(frame, self._reformatter, frame.is_corrupt or smeared, self._crop),
            stamp.received_s,
            self.seconds(self._shown_at(frame.pts, frame.dts)) if with_pts else None,
            stamp.waited_s,
            key=frame.key_frame,
            decode_s=self._decode_s,
        )

    def _shown_at(self, pts: int | None, dts: int | None) -> int | None:
        """The pts, or the dts where the pts goes back more often.

        AVI knows no pts: FFmpeg's demuxer takes the order of decoding for that of showing, and
        with B-frames every third picture seems to go back. Its own programs guess as this does.
        """
        for which, time in enumerate((pts, dts)):
            last = self._last_times[which]
            if time is not None:
                self._went_back[which] += last is not None and time <= last
                self._last_times[which] = time
        if pts is None or (dts is not None and self._went_back[0] > self._went_back[1]):
            return dts
        return pts

    def earliest_pts_s(self, next_pts: int | None) -> float | None:
        """The smallest pts that is in the decoder or next to go in: exact, whatever the rate."""
        if self._decoded:
            return self.seconds(self._decoded[0].pts)
        candidates = list(self._pending)
        if next_pts is not None:
            candidates.append(next_pts)
        return self.seconds(min(candidates)) if candidates else None

    def seconds(self, pts: int | None) -> float | None:
        """A timestamp of the track in seconds."""
        if pts is None or self._ticks is None:
            return None
        return pts * self._ticks[0] / self._ticks[1]

    def forget(self) -> None:
        """The source goes on from another place."""
        self._decoded.clear()
        self._pending.clear()
        self._damaged_at.clear()
        self._awaits_key_picture = False
        self._last_times = [None, None]

    def _can_be_left_out(self, packet: AnyPacket) -> bool:
        """Whether no other picture is built on this one, as far as the codec tells."""
        if self._units is None:
            self._units = UnitReader(self.context.name, self.context.extradata or b"")
        return self._units.disposable(memoryview(packet))


class Patience:
    """Packets come, but no picture: how long that is borne.

    Args:
        settings: ``start_s`` for the first picture, ``stall_s`` for the others.
        clock: Tells the time; the first limit runs from now.
    """

    def __init__(self, settings: CameraSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._began_s = clock.now()
        self._picture_s: float | None = None

    def picture(self) -> None:
        """One was decoded."""
        self._picture_s = self._clock.now()

    def check(self, live: bool) -> None:
        """To be called while there is none.

        Raises:
            SourceUnusable: the first one did not come in time.
            SourceSilent: a live source showed nothing for too long.
        """
        now_s = self._clock.now()
        if self._picture_s is None:
            if now_s - self._began_s > self._settings.start_s:
                raise SourceUnusable(
                    f"no frames decoded in {self._settings.start_s:g} s, though data comes: "
                    "check the camera's codec, and that it sends key pictures often enough"
                )
        elif live and now_s - self._picture_s > self._settings.stall_s:
            raise SourceSilent(f"no frame for {self._settings.stall_s:g} s")


def accelerator(decoder: str) -> tuple[HWAccel | None, str]:
    """What PyAV needs to decode by ``decoder``, and why it does not ("" if it does, or need not).

    A codec or profile that the device cannot decode falls back to the CPU in FFmpeg itself.
    """
    if decoder == "cpu":
        return None, ""
    trouble = _trouble_of(decoder)
    if trouble:
        return None, f"decoder {decoder} cannot be used ({trouble}): decoded by the CPU instead"
    return HWAccel(decoder, allow_software_fallback=True), ""


@lru_cache(maxsize=8)
def _trouble_of(decoder: str) -> str:
    """Why the device cannot be opened; "" if it can. Asked once: it takes a while."""
    try:
        av.CodecContext.create("h264", "r", hwaccel=HWAccel(decoder))
    except (av.error.FFmpegError, OSError, RuntimeError, ValueError, NotImplementedError) as error:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"no such device, driver or build: {text}"
    return ""
