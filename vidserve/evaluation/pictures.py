"""Pictures of a recorded sequence, one after the other, from a video or a folder of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vidserve.errors import EvaluationError
from vidserve.frames import ByteArray

if TYPE_CHECKING:
    import av
    from av.video.stream import VideoStream

VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".ts", ".mpg")
IMAGES = (".jpg", ".jpeg", ".png", ".bmp")
_PLANAR = ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p", "nv12", "gray")


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture; valid until the next one is asked for.

    Attributes:
        number: Of its frame, from 1.
        size: Width and height, pixels.
        luma: uint8 (height, width): the grey picture, as the daemon's optical flow gets it.
        to_bgr: Makes the colour picture, uint8 (height, width, 3) BGR, when called.
    """

    number: int
    size: tuple[int, int]
    luma: ByteArray
    to_bgr: Callable[[], ByteArray]


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a video says of itself: pictures (0: it does not say), fps, width and height."""

    frames: int
    fps: float
    size: tuple[int, int]


def pictures(source: Path) -> Iterator[Picture]:
    """Decode a video, or read the images of a folder in the order of their names.

    Raises:
        EvaluationError: it cannot be read; with the name.
    """
    return _images(source) if source.is_dir() else _decoded(source)


def video_info(path: Path) -> VideoInfo:
    """Read a video's head.

    Raises:
        EvaluationError: it cannot be read, or tells no rate.
    """
    import av

    with _opened(path) as container:
        stream = _video_of(container, path)
        rate = stream.average_rate or stream.base_rate
        if not rate:
            raise EvaluationError(f"{path} tells no frame rate")
        context = stream.codec_context
        assert isinstance(context, av.VideoCodecContext)
        return VideoInfo(stream.frames, float(rate), (context.width, context.height))


def find_pictures(folder: Path, image_folder: str, video: str | None) -> Path | None:
    """Where the pictures of a MOT folder are: the images, the named video, or the only one.

    Args:
        folder: With ``seqinfo.ini``.
        image_folder: Its ``imDir``.
        video: Its ``video``, a key of our own, relative to the folder.

    Raises:
        EvaluationError: a named video is absent, or there are several to choose from.
    """
    if video is not None:
        named = folder / video
        if not named.is_file():
            raise EvaluationError(f"{folder}: seqinfo.ini names the video {video}; it is not there")
        return named
    images = folder / image_folder
    if images.is_dir() and any(path.suffix.lower() in IMAGES for path in images.iterdir()):
        return images
    found = [
        path
        for place in (folder / "video", folder)
        if place.is_dir()
        for path in sorted(place.iterdir())
        if path.suffix.lower() in VIDEOS
    ]
    if len(found) > 1:
        raise EvaluationError(f"{folder}: several videos; say 'video=' in seqinfo.ini")
    return found[0] if found else None


def _images(folder: Path) -> Iterator[Picture]:
    import cv2

    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGES)
    for number, path in enumerate(files, start=1):
        read = cv2.imread(str(path), cv2.IMREAD_COLOR)
        if read is None:
            raise EvaluationError(f"{path} is no image that can be read")
        bgr: ByteArray = read
        luma: ByteArray = cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
        yield Picture(number, (bgr.shape[1], bgr.shape[0]), luma, partial(_whole, bgr))


def _decoded(path: Path) -> Iterator[Picture]:
    import av.error

    with _opened(path) as container:
        stream = _video_of(container, path)
        stream.thread_type = "AUTO"
        try:
            for number, frame in enumerate(container.decode(stream), start=1):
                size = (frame.width, frame.height)
                yield Picture(number, size, _luma(frame), partial(_bgr, frame))
        except av.error.FFmpegError as error:
            raise EvaluationError(f"{path} cannot be decoded: {error.strerror}") from error


def _opened(path: Path) -> av.container.InputContainer:
    import av
    import av.error

    try:
        return av.open(str(path))
    except (av.error.FFmpegError, OSError) as error:
        raise EvaluationError(f"cannot open {path}: {error.strerror}") from error


def _video_of(container: av.container.InputContainer, path: Path) -> VideoStream:
    if not container.streams.video:
        raise EvaluationError(f"{path} holds no video")
    return container.streams.video[0]


def _luma(frame: av.VideoFrame) -> ByteArray:
    """The luma plane itself where there is one of 8 bits, without a copy."""
    if frame.format.name not in _PLANAR:
        grey: ByteArray = frame.to_ndarray(format="gray").astype(np.uint8, copy=False)
        return grey
    plane = frame.planes[0]
    rows: ByteArray = np.frombuffer(memoryview(plane), np.uint8)
    return rows.reshape(-1, plane.line_size)[: frame.height, : frame.width]


def _bgr(frame: av.VideoFrame) -> ByteArray:
    return frame.to_ndarray(format="bgr24").astype(np.uint8, copy=False)


def _whole(bgr: ByteArray) -> ByteArray:
    return bgr
