"""What is worth saying about a source, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vidserve.capture.reader import SourceFacts
from vidserve.capture.settings import CameraSettings
from vidserve.errors import SourceSilent, SourceUnauthorized, SourceUnreachable, SourceUnusable
from vidserve.probe.facts import Found

RATE_TOLERANCE = 0.05
UNEVEN_SHARE = 0.05
KEY_S = 4.0
HEAVY_SHARE = 0.5
SLOW_START_S = 4.0
PAUSE_S = 0.5
LAG_S = 0.2
_LEAST_STEPS = 5  # fewer say nothing of a rate

_CODECS = {
    "h264": "H.264", "hevc": "H.265", "mjpeg": "MJPEG", "mpeg4": "MPEG-4", "av1": "AV1",
    "libdav1d": "AV1", "libaom-av1": "AV1", "vp8": "VP8", "vp9": "VP9", "libvpx": "VP8",
    "libvpx-vp9": "VP9", "mpeg2video": "MPEG-2", "mpeg1video": "MPEG-1", "vvc": "H.266",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to know.

    Attributes:
        about: What it concerns, for programs.
        text: For people.
    """

    about: str
    text: str


def codec_name(codec: str) -> str:
    """As it is written on the box of a camera."""
    return _CODECS.get(codec, codec)


def number(value: float, digits: int = 1) -> str:
    """With at most so many digits after the point, and none that are zero."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(value_s: float) -> str:
    """Milliseconds below a second, else seconds; to about three digits."""
    if value_s >= 0.9995:
        return f"{number(value_s, 1)} s"
    digits = 0 if value_s >= 0.01 else 1 if value_s >= 0.001 else 2
    return f"{number(value_s * 1000, digits)} ms"


def advice(found: Found, facts: SourceFacts | None, settings: CameraSettings) -> list[Advice]:
    """Warnings, the gravest first."""
    if facts is None or not found.pictures:
        return []
    return [Advice(*one) for one in _all(found, facts, settings)]


def _all(found: Found, facts: SourceFacts, settings: CameraSettings) -> Iterator[tuple[str, str]]:
    if facts.note:
        yield "note", facts.note
    yield from _damage(found, settings)
    yield from _cost(found, facts)
    yield from _delays(found)
    yield from _keys(found)
    yield from _rates(found)
    yield from _stamps(found, facts)
    if len(found.sizes) > 1:
        sizes = ", then ".join(f"{width}x{height}" for width, height in found.sizes[:4])
        yield "size", f"the size changes: {sizes}: tracking starts afresh at each change"


def _damage(found: Found, settings: CameraSettings) -> Iterator[tuple[str, str]]:
    damaged = found.corrupt + found.refused
    if not damaged:
        return
    parts = []
    if found.corrupt:
        parts.append(f"{found.corrupt} of {found.pictures} pictures are damaged")
    if found.refused:
        packets = "packet was" if found.refused == 1 else "packets were"
        parts.append(f"{found.refused} {packets} refused by the decoder")
    cure = "the file is damaged, or was recorded with losses"
    if found.live:
        cure = "look for packet loss, or a bit rate beyond the link"
        if settings.transport == "udp":
            cure += "; transport: tcp loses nothing"
    yield "damage", f"{' and '.join(parts)}: {cure}"


def _cost(found: Found, facts: SourceFacts) -> Iterator[tuple[str, str]]:
    share = found.core_share
    if share is None or share <= HEAVY_SHARE or not found.sizes:
        return
    width, height = found.sizes[-1]
    what = f"{codec_name(facts.codec)} {width}x{height}".strip()
    gpu = ", or decoder: cuda" if facts.decoder == "cpu" else ""
    yield (
        "decoding",
        f"{what}: decoding takes {share:.0%} of a core: a smaller stream of the camera "
        f"(many have a second one){gpu}",
    )


def _delays(found: Found) -> Iterator[tuple[str, str]]:
    if not found.live:
        return
    if found.reorder:
        held = f"{found.reorder} picture{'' if found.reorder == 1 else 's'} held back"
        cost = "" if found.reorder_s is None else f", {duration(found.reorder_s)}"
        yield "b_frames", f"B-frames: {held}{cost}: switch them off in the camera"
    if found.lag is not None and found.lag.p99 > LAG_S:
        yield (
            "lag",
            f"pictures come up to {duration(found.lag.most)} later than at best: "
            "the network or the camera stutters; frames that are too late are dropped as stale",
        )
    if found.gaps is not None and found.gaps.most > max(PAUSE_S, 8.0 * found.gaps.p50):
        yield (
            "pauses",
            f"no picture for {duration(found.gaps.most)} once: the network or the camera pauses",
        )
    if found.first_s is not None and found.first_s > SLOW_START_S:
        yield (
            "start",
            f"the first picture took {duration(found.first_s)}: so does each reconnect",
        )


def _keys(found: Found) -> Iterator[tuple[str, str]]:
    longest_s = found.key_longest_s
    if found.keys is None or longest_s is None or longest_s <= KEY_S:
        return
    more = "over " if found.keys.unfinished else ""
    every = f"key picture every {more}{duration(longest_s)}"
    if found.live:
        yield (
            "key_pictures",
            f"{every}: a lost packet hurts for as long, and connecting may take as long: "
            "set the camera's key frame (I-frame, GOP) interval to 1 or 2 s",
        )
    else:
        yield "key_pictures", f"{every}: what is damaged is mended only by the next one"


def _rates(found: Found) -> Iterator[tuple[str, str]]:
    stamps, claimed = found.stamps, found.claimed_fps
    known = found.pictures - stamps.missing
    if found.fps is not None and claimed is not None and found.pictures > _LEAST_STEPS:
        if abs(found.fps / claimed - 1.0) > RATE_TOLERANCE:
            yield (
                "rate",
                f"{number(found.fps)} pictures a second, though the source claims "
                f"{number(claimed)}: the measured rate is used",
            )
    orderly = stamps.backward <= UNEVEN_SHARE * known  # else the steps say little
    if (
        orderly and known > _LEAST_STEPS and stamps.uneven > UNEVEN_SHARE
        and stamps.steps is not None
    ):  # fmt: skip
        yield (
            "variable_rate",
            f"variable rate: {duration(stamps.steps.p50)} from picture to picture, up to "
            f"{duration(stamps.steps.most)}",
        )
    if (
        found.live and found.fps is not None and stamps.fps is not None and known > _LEAST_STEPS
        and abs(stamps.fps / found.fps - 1.0) > RATE_TOLERANCE
    ):  # fmt: skip
        yield (
            "clock",
            f"by its timestamps it sends {number(stamps.fps)} pictures a second, by arrival "
            f"{number(found.fps)}: its timestamps are not to be trusted",
        )


def _stamps(found: Found, facts: SourceFacts) -> Iterator[tuple[str, str]]:
    stamps, claimed = found.stamps, found.claimed_fps
    if stamps.backward:
        yield (
            "out_of_order",
            f"timestamps repeat or go back a little ({_times(stamps.backward)}): the daemon "
            "evens them out",
        )
    if stamps.jumps:
        yield (
            "jumps",
            f"timestamps jump ({_times(stamps.jumps)}): the pace goes on at the usual rate",
        )
    if stamps.missing == found.pictures:
        how = "age is counted from arrival, and a backlog cannot be seen"
        if not found.live:
            pace = "25" if claimed is None else number(claimed)
            how = f"it is played at {pace} pictures a second"
        what = codec_name(facts.codec) or "this source"
        yield "no_timestamps", f"{what} without timestamps: {how}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def next_step(
    error: type[Exception], settings: CameraSettings, had_pictures: bool, is_url: bool
) -> str:
    """What to do after a failure, beyond what its reason says.

    Args:
        error: The class of what was raised.
        settings: Of the attempt.
        had_pictures: Some came before it.
        is_url: The source is no file and no device.
    """
    if issubclass(error, SourceUnauthorized):
        if not settings.username:
            return (
                "it wants a login: --username NAME, with the password in VIDSERVE_PASSWORD "
                "or --ask-password"
            )
        return (
            "try the login in the camera's own page; wait a while before many attempts: "
            "cameras lock accounts"
        )
    if issubclass(error, SourceUnreachable) and had_pictures and is_url:
        return (
            "look at the camera's power and network; the daemon connects again by itself, "
            "and probing for longer (--for 60) shows how often it happens"
        )
    if issubclass(error, SourceSilent) and is_url:
        return (
            "ping the camera; see whether another client uses its last connection, "
            "whether a firewall drops packets, and whether the port is that of this protocol"
        )
    if issubclass(error, SourceUnreachable):
        if is_url:
            return (
                "ping the host; compare the URL with the camera's manual, and try it in another "
                "player"
            )
        if issubclass(error, SourceSilent):
            return "see whether the disk, the network share or the device answers at all"
        return (
            "correct the path, or its permissions for the user of the service; a camera needs a "
            "whole URL: rtsp://10.0.0.5/stream1"
        )
    if issubclass(error, SourceUnusable):
        if is_url:
            return "choose H.264 or H.265 in the camera, or its second stream"
        return "name a video file; if this is one and plays elsewhere (VLC, mpv), report it"
    return "report it, with the log above"
