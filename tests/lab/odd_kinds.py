"""Every kind of odd file with what is right for it; ``test_capture_files`` plays them all."""

from __future__ import annotations

import os
import socket
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.lab import odd_files as odd
from tests.lab.odd_files import cut, encode, joined, part, remux


@dataclass(frozen=True)
class Right:
    """What is right for one file.

    Attributes:
        frames: How many come; None: some.
        sizes: Each once, in order.
        fails: Part of the reason; "" if it plays.
        damaged: At least so many of the frames are marked; 0: none at all.
        degraded: Whether the state says so; None: it may.
        usual_s, most_s: Between frames, as they are due in real time.
        lasts_s: From the first to the last.
    """

    frames: int | None = None
    sizes: Sequence[tuple[int, int]] | None = None
    fails: str = ""
    damaged: int = 0
    degraded: bool | None = False
    usual_s: float | None = None
    lasts_s: float | None = None
    most_s: float | None = None


Make = Callable[[Path], object]


def made(codec: str = "libx264", **more: Any) -> Make:
    return lambda path: encode(path, codec, **more)


def copied(change: Any = None, source: str = "mkv", **more: Any) -> Make:
    def make(path: Path) -> None:
        clip = encode(part(path, f"a.{source}"), frames=12)
        extra = {} if change is None else {"change": change}
        remux(clip, path, **extra, **more)

    return make


def parts(*every: dict[str, Any]) -> Make:
    """One clip after the other, byte by byte."""

    def make(path: Path) -> None:
        clips = [
            encode(part(path, f"{number}{path.suffix}"), **one) for number, one in enumerate(every)
        ]
        joined(path, *clips)

    return make


def shortened(share: float, **more: Any) -> Make:
    return lambda path: cut(encode(part(path, f"a{path.suffix}"), **more), path, share)


B_FRAMES: dict[str, Any] = {"preset": "veryfast", "bf": "3", "g": "12", "frames": 24}
JPEG: dict[str, Any] = {"codec": "mjpeg", "pix_fmt": "yuvj420p"}
ONE: dict[str, Any] = {"frames": 1, "muxer": {"update": "1"}}
SIZE, TALL = (96, 64), (64, 96)
TS_0: dict[str, Any] = {"muxer": {"output_ts_offset": "0"}}
TS_5000: dict[str, Any] = {"muxer": {"output_ts_offset": "5000"}, "first": 12}
WRAP = {"output_ts_offset": "95441"}  # 33 bits of 90 kHz are 95443.7 s
HEVC_B: dict[str, Any] = {"x265-params": "log-level=none:keyint=8:bframes=3:open-gop=1"}

X265_30: dict[str, Any] = {"x265-params": "log-level=none:keyint=30:bframes=0"}


def middle(**more: Any) -> Make:
    """The tables of a transport stream, then its last three quarters."""

    def make(path: Path) -> None:
        data = encode(part(path, "a.ts"), **{"frames": 60, **more}).read_bytes()
        begin = odd.TS_PACKET * (len(data) // odd.TS_PACKET // 4)
        path.write_bytes(data[: 3 * odd.TS_PACKET] + data[begin:])

    return make


def headless(suffix: str, keep_sets: bool, **more: Any) -> Make:
    """A byte stream without its only key picture."""
    more = {"frames": 40, **more}
    if suffix == "hevc":
        more["x265-params"] = "log-level=none:keyint=1000:bframes=0"
    return lambda path: odd.without_headers(
        encode(part(path, f"a.{suffix}"), **more),
        path,
        keep_sets,
    )


def damaged(suffix: str, which: Callable[[int], bool]) -> Make:
    return lambda path: remux(
        encode(part(path, f"a.{suffix}"), frames=36), path, odd.scrambled(which)
    )


def noisy(suffix: str, **more: Any) -> Make:
    """A bit in some hundred bytes is wrong."""
    more = {"g": "30", **more, "frames": 120}
    return lambda path: remux(
        encode(part(path, f"a.{suffix}"), **more),
        path,
        bits="noise=amount=300",
    )


def lossy(**more: Any) -> Make:
    more = {"g": "30", "frames": 120, "size": (160, 120), "crf": "5", **more}
    return lambda path: odd.lossy_ts(encode(part(path, "a.ts"), **more), path, 40)


def playlist(end: str) -> Make:
    def make(path: Path) -> None:
        segment = encode(part(path, "segment.ts"))
        head = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.2,\n"
        path.write_text(f"{head}parts/{segment.name}\n{end}")

    return make


# Each shows picture 0, 1, 2 ... of the scene, and all of them.
PLAY: dict[str, tuple[Make, Right]] = {
    # codecs and containers
    "av1.mp4": (made("libsvtav1"), Right(12)),
    "av1.mkv": (made("libsvtav1"), Right(12)),
    "av1.obu": (made("libsvtav1"), Right(12)),
    "vp9.webm": (made("libvpx-vp9"), Right(12)),
    "vp9-alpha.webm": (made("libvpx-vp9", pix_fmt="yuva420p"), Right(12)),
    "vp8.ivf": (made("libvpx"), Right(12)),
    "hevc.ts": (made("libx265"), Right(12)),
    "hevc-open-gop.mp4": (made("libx265", frames=24, **HEVC_B), Right(24)),
    "hevc-10bit.mp4": (made("libx265", pix_fmt="yuv420p10le"), Right(12)),
    "hevc-12bit.mp4": (made("libx265", pix_fmt="yuv444p12le"), Right(12)),
    "h264-10bit.mp4": (made(pix_fmt="yuv420p10le"), Right(12)),
    "mpeg4.m4v": (made("mpeg4"), Right(12)),
    "mpeg4-b.avi": (made("mpeg4", bf="2", g="12", frames=24), Right(24)),
    "mpeg2-b.mpg": (made("mpeg2video", bf="2", g="12", fps=25, frames=24), Right(24)),
    "mjpeg.avi": (made("mjpeg", pix_fmt="yuvj420p"), Right(12)),
    "raw.mjpeg": (made("mjpeg", pix_fmt="yuvj420p"), Right(12)),
    "prores-alpha.mov": (made("prores_ks", pix_fmt="yuva444p10le"), Right(12)),
    "ffv1-12bit.mkv": (made("ffv1", pix_fmt="yuv422p12le"), Right(12)),
    "ffv1-rgb48.mkv": (made("ffv1", pix_fmt="rgb48le"), Right(12)),
    "raw.avi": (made("rawvideo", pix_fmt="bgr24"), Right(12)),
    "raw.y4m": (made("rawvideo"), Right(12)),
    "wmv.asf": (made("wmv2"), Right(12)),
    "sorenson.flv": (made("flv"), Right(12)),
    "h263.3gp": (made("h263", size=(176, 144)), Right(12)),
    "animation.mov": (made("qtrle", pix_fmt="argb"), Right(12)),
    "utvideo.avi": (made("utvideo", pix_fmt="gbrp"), Right(12)),
    "jpeg2000.mov": (made("jpeg2000"), Right(12)),
    "animated.gif": (made("gif", pix_fmt="rgb8"), Right(12)),
    "animated.apng": (made("apng", pix_fmt="rgb24"), Right(12)),
    "one.png": (made("png", pix_fmt="rgba", **ONE), Right(1)),
    "one.jpg": (made(**JPEG, **ONE), Right(1)),
    "one.webp": (made("libwebp", **ONE), Right(1)),
    "one.bmp": (made("bmp", pix_fmt="bgr24", **ONE), Right(1)),
    # names
    "%03d.png": (made("png", pix_fmt="rgb24", **ONE), Right(1)),
    "a%d.mp4": (made(), Right(12)),
    "glob*[a-z]?.mkv": (made(), Right(12)),
    "-i": (made(container="mp4"), Right(12)),
    "no_suffix": (made(container="mpegts"), Right(12)),
    "really_an_mp4.png": (made(container="mp4"), Right(12)),
    "really_a_mkv.h264": (made(container="matroska"), Right(12)),
    "line\nbreak 'quoted' \"twice\".mp4": (made(), Right(12)),
    # order and time
    "b_frames.mp4": (made(**B_FRAMES), Right(24, usual_s=0.1, most_s=0.11)),
    "b_frames.avi": (made(**B_FRAMES), Right(24, lasts_s=2.3)),
    "b_frames.ts": (made(**B_FRAMES), Right(24, usual_s=0.1, most_s=0.11)),
    "negative_cts.mp4": (made(**B_FRAMES, muxer={"movflags": "negative_cts_offsets"}), Right(24)),
    "fragments.mp4": (
        made(muxer={"movflags": "frag_every_frame+empty_moov+default_base_moof"}),
        Right(12, usual_s=0.1),
    ),
    "no_duration.mkv": (made(muxer={"live": "1"}), Right(12, usual_s=0.1)),
    "variable.mkv": (
        made(pts_ms=[0, 33, 66, 100, 133, 833, 866, 1000, 1033, 5000, 5033, 5066]),
        Right(12, usual_s=0.033, most_s=4.0, lasts_s=5.066),
    ),
    "0.2fps.mp4": (made(fps=Fraction(1, 5), frames=6), Right(6, usual_s=5.0, most_s=5.01)),
    "1fps.mp4": (made(fps=1, frames=6), Right(6, usual_s=1.0, most_s=1.01)),
    "240fps.mp4": (made(fps=240, frames=24), Right(24, usual_s=1 / 240, most_s=0.005)),
    "jump.ts": (
        parts(TS_0, TS_5000, {**TS_0, "first": 24}),
        Right(36, degraded=None, usual_s=0.1, most_s=0.2, lasts_s=3.5),
    ),
    "wrap.ts": (made(frames=40, muxer=WRAP), Right(40, usual_s=0.1, most_s=0.2, lasts_s=3.9)),
    "wrap_b.ts": (made(**{**B_FRAMES, "frames": 40}, muxer=WRAP), Right(40, most_s=0.2)),
    "before_zero.mkv": (
        copied(odd.moved(-500), muxer={"avoid_negative_ts": "disabled"}),
        Right(12, usual_s=0.1, most_s=0.11),
    ),
    "starts_late.mp4": (copied(odd.moved(20_000)), Right(12, usual_s=0.1, most_s=0.11)),
    "all_zero.mkv": (copied(odd.stamped(0)), Right(12, most_s=0.2)),
    "all_zero.nut": (copied(odd.stamped(0)), Right(12, most_s=0.2)),
    "no_stamps.ts": (copied(odd.stamped(None)), Right(12, most_s=0.2)),
    "raw.h264": (made(), Right(12, most_s=0.1)),
    # sizes
    "4096x64.mp4": (made(size=(4096, 64)), Right(12, [(4096, 64)])),
    "97x65.webm": (made("libvpx-vp9", size=(97, 65)), Right(12, [(97, 65)])),
    "97x65.mp4": (made(size=(97, 65), pix_fmt="yuv444p"), Right(12, [(97, 65)])),
    "portrait.mp4": (made(size=(90, 160)), Right(12, [(90, 160)])),
    "16x16.webm": (made("libvpx-vp9", size=(16, 16)), Right(12, [(16, 16)])),
    # structure
    "long_gop.ts": (made(g="1000", frames=60), Right(60)),
    "open_gop.ts": (
        made(**{**B_FRAMES, "g": "8"}, **{"x264-params": "open-gop=1"}), Right(24)
    ),
    "intra_refresh.h264": (
        made(frames=40, **{"x264-params": "intra-refresh=1:keyint=20"}), Right(40)
    ),
    "interlaced.ts": (made(flags="+ilme+ildct", **{"x264-params": "tff=1"}), Right(12)),
    "broken_audio.mp4": (lambda path: odd.with_sound(path, broken=True), Right(12)),
    "broken_audio.mkv": (lambda path: odd.with_sound(path, broken=True), Right(12)),
    "opus.mkv": (lambda path: odd.with_sound(path, "libopus"), Right(12)),
    "subtitles_first.mkv": (odd.subtitled, Right(12)),
    "cover_first.mp4": (lambda path: odd.with_cover(path, True), Right(12)),
    "cover_unmarked.mkv": (lambda path: odd.with_cover(path, True), Right(12)),
    "junk_at_end.mp4": (
        lambda path: path.write_bytes(encode(part(path, "a.mp4")).read_bytes() + bytes(5000)),
        Right(12),
    ),
    "junk_first.h264": (
        lambda path: odd.with_junk(encode(part(path, "a.h264")), path, 10_000, 5000), Right(12)
    ),
    "junk_between.ts": (
        lambda path: odd.with_junk(encode(part(path, "a.ts"), frames=60), path, 60), Right(60)
    ),
}  # fmt: skip


# Plays, but not all of it, or shows something else than the scene from its beginning.
PARTLY: dict[str, tuple[Make, Right]] = {
    # cut short
    "cut.mkv": (shortened(0.6, frames=60), Right(34)),
    "cut.webm": (shortened(0.6, codec="libvpx-vp9", frames=60), Right(36)),
    "cut_data.mp4": (shortened(0.6, frames=60, muxer={"movflags": "faststart"}), Right(32)),
    "cut_fragments.mp4": (
        shortened(0.6, frames=60, muxer={"movflags": "frag_keyframe+empty_moov"}), Right(34)
    ),
    "cut.avi": (shortened(0.8, **JPEG, frames=60), Right()),
    "cut.ts": (shortened(0.6, frames=60), Right()),
    "cut.gif": (shortened(0.6, codec="gif", pix_fmt="rgb8", frames=60), Right(37)),
    "cut.jpg": (shortened(0.6, **JPEG, **ONE), Right(1)),
    # begun in the middle: nothing is shown before the next key picture
    "middle.ts": (middle(g="30"), Right(30)),
    "middle_hevc.ts": (middle(codec="libx265", **X265_30), Right(30)),
    "middle_open_gop.ts": (
        middle(**{**B_FRAMES, "g": "20", "frames": 60, "x264-params": "open-gop=1"}), Right(40)
    ),
    # sizes, also such as no encoder of cameras makes
    "1x1.avi": (made("rawvideo", size=(1, 1), pix_fmt="bgr24"), Right(12, [(1, 1)])),
    "1x1.png": (made("png", size=(1, 1), pix_fmt="rgb24", **ONE), Right(1, [(1, 1)])),
    "2x2.mp4": (made(size=(2, 2)), Right(12, [(2, 2)])),
    "5x3.webm": (made("libvpx", size=(5, 3)), Right(12, [(5, 3)])),
    "2x1024.mp4": (made(size=(2, 1024)), Right(12, [(2, 1024)])),
    "size.h264": (parts({}, {"size": TALL}), Right(24, [SIZE, TALL])),
    "size.ts": (parts({}, {"size": TALL}), Right(24, [SIZE, TALL], degraded=None)),
    "size.hevc": (
        parts({"codec": "libx265"}, {"codec": "libx265", "size": TALL}), Right(24, [SIZE, TALL])
    ),
    "size.mjpeg": (parts(JPEG, {**JPEG, "size": TALL}), Right(24, [SIZE, TALL])),
    "size.ivf": (odd.resized_vp9, Right(24, [SIZE, (64, 48)])),
    "depth.h264": (parts({}, {"pix_fmt": "yuv420p10le"}), Right(24, [SIZE])),
    "rotated_90.mp4": (copied(source="mp4", degrees=90), Right(12, [TALL])),
    "rotated_180.mp4": (copied(source="mp4", degrees=180), Right(12, [SIZE])),
    "rotated_270.mkv": (copied(source="mp4", degrees=-90), Right(12, [TALL])),
    # what it shows
    "grey.mkv": (made("ffv1", pix_fmt="gray16le"), Right(12)),
    "black_and_white.avi": (made("rawvideo", pix_fmt="monob"), Right(12)),
    "frozen.mp4": (made(draw=odd.still, frames=60), Right(60)),
    "black.mp4": (made(draw=odd.black), Right(12)),
    # several tracks: the one that FFmpeg calls the best
    "default.mkv": (lambda p: odd.two_tracks(p, [(64, 48), SIZE], [12, 12], 1), Right(12, [SIZE])),
    "empty_first.mkv": (lambda p: odd.two_tracks(p, [(64, 48), SIZE], [0, 12]), Right(12, [SIZE])),
    "empty_first.mp4": (lambda p: odd.two_tracks(p, [(64, 48), SIZE], [0, 12]), Right(12, [SIZE])),
    "programs.ts": (lambda p: odd.two_tracks(p, [SIZE, (64, 48)], [12, 12]), Right(12, [SIZE])),
    # an edit list that begins in the middle
    "edited.mp4": (copied(odd.moved(-500), source="mp4"), Right(7)),
    # damage
    "first_bad.avi": (
        lambda p: remux(encode(part(p, "a.avi"), **JPEG), p, odd.scrambled(lambda i: i == 0)),
        Right(11, degraded=False),
    ),
    "key_bad.mp4": (damaged("mp4", lambda i: i == 12), Right(30, degraded=True)),
    "noise_h264.ts": (noisy("ts"), Right(damaged=20, degraded=True)),
    "noise_h264.mp4": (noisy("mp4"), Right(damaged=1, degraded=True)),
    "noise_hevc.mkv": (noisy("mkv", codec="libx265", **X265_30), Right(degraded=True)),
    "noise_mpeg4.avi": (noisy("avi", codec="mpeg4"), Right(damaged=1, degraded=True)),
    "noise_vp9.webm": (noisy("webm", codec="libvpx-vp9", g="10"), Right(degraded=True)),
    "noise_mjpeg.avi": (noisy("avi", **JPEG), Right(degraded=True)),
    "loss.ts": (lossy(), Right(damaged=5, degraded=True)),
    "loss_hevc.ts": (lossy(codec="libx265", **X265_30), Right(damaged=5, degraded=True)),
    "list.m3u8": (playlist("#EXT-X-ENDLIST\n"), Right(12)),
}  # fmt: skip


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "x" * 1000)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


def _link(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def _text(text: str) -> Make:
    return lambda path: path.write_text(text)


# Fails, and says why; nothing is ever shown.
FAIL: dict[str, tuple[Make, str]] = {
    "missing.mp4": (lambda path: None, "no such file"),
    "link_to_nothing.mp4": (_link("/nowhere/x.mp4"), "no such file"),
    "link_to_itself.mp4": (lambda path: path.symlink_to(path), "cut short"),
    "empty.webm": (lambda path: path.touch(), "is an empty file"),
    "folder.mp4": (lambda path: path.mkdir(), "is a directory"),
    "pipe.mp4": (os.mkfifo, "is a pipe"),
    "socket.mp4": (_bind, "is a socket"),
    "null.mp4": (_link("/dev/null"), "is a device"),
    "zero.ts": (_link("/dev/zero"), "is a device"),
    "random.h264": (_link("/dev/urandom"), "is a device"),
    "text.txt": (_text("hello world\n" * 200), "cut short"),
    "poem.nfo": (_text("hello world\n" * 200), "cut short"),
    "code.py": (_text("import os\n" * 200), "cut short"),
    "names.csv": (_text("a,b\n1,2\n" * 200), "cut short"),
    "itself.ffconcat": (_text("ffconcat version 1.0\nfile itself.ffconcat\n"), "(Invalid"),
    "elsewhere.m3u8": (_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/a.ts\n"), "cut short"),
    "camera.sdp": (
        _text("v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
              "m=video 25000 RTP/AVP 96\na=rtpmap:96 H264/90000\n"), "cut short",
    ),
    "archive.zip": (_zip, "cut short"),
    "sparse.mp4": (_sparse, "cut short"),
    "sparse.ts": (_sparse, "cut short"),
    "sparse.mkv": (_sparse, "cut short"),
    "no_moov.mp4": (shortened(0.6, frames=60), "cut short"),
    "no_data.mp4": (
        lambda path: odd.drop_atoms(encode(part(path, "a.mp4")), path, b"mdat"), "no frames decoded"
    ),
    "no_track.mp4": (lambda path: odd.drop_atoms(
        odd.with_sound(part(path, "a.mp4"), video=False), path, b"mdat"), "no video track"),
    "audio.mp4": (lambda path: odd.with_sound(path, video=False), "no video track"),
    "audio.mkv": (lambda path: odd.with_sound(path, video=False), "no video track"),
    "audio.ts": (lambda path: odd.with_sound(path, video=False), "no video track"),
    "cover_only.mp4": (lambda path: odd.with_cover(path, False), "no video track"),
    "cut.png": (shortened(0.3, codec="png", pix_fmt="rgb24", **ONE), "no frames decoded"),
    "scrambled.mkv": (copied(odd.scrambled()), "no frames decoded"),
    "scrambled.mp4": (copied(odd.scrambled()), "no frames decoded"),
    "middle_only.ts": (middle(g="1000"), "no "),
    "middle_only.h264": (headless("h264", False, g="1000"), "cut short"),
    "middle_only.hevc": (headless("hevc", False, codec="libx265"), "no frames decoded"),
    "middle_with_sets.h264": (headless("h264", True, g="1000"), "no frames decoded"),
    "middle_with_sets.hevc": (headless("hevc", True, codec="libx265"), "no frames decoded"),
}  # fmt: skip
