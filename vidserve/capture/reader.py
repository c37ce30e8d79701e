"""What a reader of a source is, and what it hands to its capture thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vidserve.frames import ByteArray, Letterbox


class Picture(Protocol):
    """A decoded picture that is converted only when somebody asks."""

    @property
    def width(self) -> int:
        """As shown, after rotation; pixels."""
        ...

    @property
    def height(self) -> int:
        """As shown, after rotation; pixels."""
        ...

    @property
    def rotation(self) -> int:
        """By how many degrees counterclockwise it was turned to be upright: 0, 90, 180 or 270."""
        ...

    @property
    def corrupt(self) -> bool:
        """The decoder marked it as damaged."""
        ...

    def write_letterbox(self, pixels: ByteArray, geometry: Letterbox) -> None:
        """Scale into ``pixels``, uint8 (bucket height, bucket width, 3) RGB, grey 114 around."""
        ...

    def grey(self, side_limit: int) -> ByteArray:
        """For measuring motion: halved until its longer side is at most ``side_limit`` pixels.

        uint8 (h, w), upright, an array of its own. Full or limited range, as the source has it.
        """
        ...

    def to_bgr(self) -> ByteArray:
        """The whole picture, uint8 (height, width, 3) BGR. For people, not for the hot path."""
        ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """One picture as it came out of a reader.

    Attributes:
        picture: The decoded picture.
        received_s: Monotonic time at which its last packet was read, before decoding.
        pts_s: Presentation time in the stream's own seconds; None where the stream has none.
        waited_s: How long the read of that packet took. Near 0 it already lay in a buffer: the
            thread is behind. Who stamps it decides (it takes a while to get the interpreter
            lock back, too).
        key: Decoding can begin with this picture.
        decode_s: How long the decoder took for the packet that gave the picture out.
    """

    picture: Picture
    received_s: float
    pts_s: float | None
    waited_s: float
    key: bool = False
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What an opened source says of itself; for people. Texts hold no credentials.

    Attributes:
        reader: Who reads it: ``rtsp``, ``pyav``, ``opencv`` or ``synthetic``.
        transport: How it comes: ``rtsp over tcp``, ``mpegts`` ..., as its reader calls it.
        codec: ``h264``, ``hevc`` ...; "" where there is none.
        profile: Of the codec, as far as it is known yet.
        pixel_format: FFmpeg's name, as far as it is known yet.
        decoder: ``cpu``, or the accelerator that decodes.
        note: Why it is not read or decoded as the config asks; "" if it is.
        reorder: How many pictures the decoder holds back to bring B-frames in order.
        clock_ahead_s: By how much the sender's clock is ahead of ours, if it says (RTCP).
    """

    reader: str
    transport: str
    codec: str = ""
    profile: str = ""
    pixel_format: str = ""
    decoder: str = "cpu"
    note: str = ""
    reorder: int = 0
    clock_ahead_s: float | None = None


class Reader(Protocol):
    """One source. Every method is called by the camera's capture thread, ``abort`` by others."""

    @property
    def live(self) -> bool:
        """Whether the source sets the pace (True) or has to be paced (False: a file)."""
        ...

    @property
    def reader_delay_s(self) -> float:
        """The known delay that the reader adds before ``received_s`` (FFmpeg's parser: a frame)."""
        ...

    @property
    def nominal_fps(self) -> float | None:
        """The frame rate that the source claims, if it is sane; only for sources without pts."""
        ...

    @property
    def bad_packets(self) -> int:
        """How many packets the decoder has refused since ``open``; rises only."""
        ...

    @property
    def skipped(self) -> int:
        """How many pictures were not decoded on purpose since ``open``; rises only."""
        ...

    def hurry(self, on: bool) -> None:
        """The thread is late (True) or not: with ``skip: nonref``, leave out what can be left."""
        ...

    def catch_up(self) -> None:
        """Leave out what waits, up to the next key picture. For live sources that are decoded."""
        ...

    def facts(self) -> SourceFacts:
        """What is known of the source now; after ``open``."""
        ...

    def open(self) -> None:
        """Connect and find the video track.

        Raises:
            SourceUnauthorized, SourceSilent, SourceUnreachable, SourceUnusable: with a reason
                for people, without credentials.
        """
        ...

    def expected_pts_s(self) -> float | None:
        """Best guess of the next picture's ``pts_s``, so that a file is decoded when it is due."""
        ...

    def read(self) -> Arrival | None:
        """The next picture; None at the end of the source. Blocks, bounded by time-outs.

        Raises:
            SourceSilent: nothing came in time.
            SourceUnreachable: the source went away.
            SourceUnusable: packets come, but no picture can be decoded.
        """
        ...

    def rewind(self) -> None:
        """Back to the first picture, for ``loop: true`` (files only)."""
        ...

    def abort(self) -> None:
        """Make a blocked ``open`` or ``read`` return soon, if the library can. Any thread."""
        ...

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        ...
