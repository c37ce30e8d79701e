"""Reader for local devices (``/dev/video0`` or a number), over OpenCV's V4L2 backend.

Only for these: ``cv2.VideoCapture.open`` holds one lock for the whole process, so a camera that
does not answer would hold up all others, and OpenCV's timestamps are not to be relied on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from vidserve.capture.bgr_picture import BgrPicture
from vidserve.capture.reader import Arrival, SourceFacts
from vidserve.capture.settings import CameraSettings
from vidserve.clock import Clock
from vidserve.errors import SourceUnreachable, SourceUnusable

MAX_FPS = 240.0
MOST_FAILED_READS = 10

CaptureFactory = Callable[[str | int], Any]  # a cv2.VideoCapture or what behaves like one


def v4l2_capture(device: str | int) -> Any:
    """A device through V4L2, with one picture of buffer where the driver allows that."""
    capture = cv2.VideoCapture(device, cv2.CAP_V4L2)
    capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
    return capture


class OpenCvReader:
    """One local device. All methods but ``abort`` belong to the capture thread.

    V4L2 itself ends a read that gets no picture after ten seconds; a driver that hangs for ever
    is the supervisor's business.

    Args:
        settings: Of the camera.
        clock: For the stamps.
        capture_factory: Makes the capture; tests read files with it.
    """

    live = True
    reader_delay_s = 0.0

    def __init__(
        self,
        settings: CameraSettings,
        clock: Clock,
        capture_factory: CaptureFactory = v4l2_capture,
    ) -> None:
        self._clock = clock
        self._factory = capture_factory
        source = settings.source
        is_number = isinstance(source, str) and source.isdecimal()
        self._device: str | int = int(source) if is_number else source
        self._crop = settings.crop
        self._capture: Any = None
        self.nominal_fps: float | None = None
        self.bad_packets = 0
        self.skipped = 0

    def hurry(self, on: bool) -> None:
        """A device sends what it sends."""

    def catch_up(self) -> None:
        """A driver's buffer holds a few pictures, each of them a key picture."""

    def facts(self) -> SourceFacts:
        code = int(self._capture.get(cv2.CAP_PROP_FOURCC)) if self._capture is not None else 0
        name = code.to_bytes(4, "little").decode("ascii", "replace").strip("\0 ").lower()
        return SourceFacts("opencv", "a local device", codec=name)

    def open(self) -> None:
        device = self._device
        path = f"/dev/video{device}" if isinstance(device, int) else device
        if not os.path.exists(path):
            raise SourceUnreachable(f"there is no device {path}: check that the camera is plugged")
        if not os.access(path, os.R_OK):
            raise SourceUnreachable(
                f"{path} may not be read: add the user of the service to the group 'video'"
            )
        self._capture = self._factory(device)
        if not self._capture.isOpened():
            raise SourceUnusable(
                f"{path} cannot be opened as a camera: another program may have it, or it is "
                "the camera's second, pictureless device"
            )
        rate = float(self._capture.get(cv2.CAP_PROP_FPS))
        self.nominal_fps = rate if 0.0 < rate <= MAX_FPS else None

    def expected_pts_s(self) -> float | None:
        return None

    def read(self) -> Arrival | None:
        if self._capture is None:
            raise AssertionError("read before open")
        for _ in range(MOST_FAILED_READS):
            began_s = self._clock.now()
            grabbed = self._capture.grab()
            received_s = self._clock.now()  # before decoding
            if not grabbed:
                break
            good, bgr = self._capture.retrieve()
            if good and bgr is not None and bgr.size:
                picture = BgrPicture(np.asarray(bgr, np.uint8), crop=self._crop)
                return Arrival(picture, received_s, None, received_s - began_s)
            self.bad_packets += 1
        return None  # for a live source the worker calls this a lost connection

    def rewind(self) -> None:
        raise AssertionError("a device has no beginning")

    def abort(self) -> None:
        """OpenCV cannot be interrupted from another thread."""

    def close(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.release()
