"""Where the detections of an evaluated sequence come from: a file, or a model on its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vidserve.detection.letterbox import write_letterbox_array
from vidserve.errors import EvaluationError
from vidserve.evaluation.mot import read_rows
from vidserve.evaluation.pictures import Picture
from vidserve.frames import Bucket, Detections, Letterbox
from vidserve.scheduling.buckets import rectangle
from vidserve.slots import SlotPool

if TYPE_CHECKING:
    from vidserve.detection.detector import Detector


class DetectionSource(Protocol):
    """Detections of keyframes."""

    @property
    def needs_pictures(self) -> bool: ...

    def detect(self, frame: int, picture: Picture | None) -> Detections:
        """Of one frame (from 1); its picture is given if ``needs_pictures``."""
        ...


class FileDetections:
    """From a file in the MOT format; a frame without a row has no detections.

    Args:
        path: The file.
        low: Scores below are left out.
    """

    needs_pictures = False

    def __init__(self, path: Path, low: float) -> None:
        self._rows = read_rows(path)
        self._low = low

    @property
    def refused(self) -> int:
        """Rows of the file that could not be used."""
        return self._rows.refused

    def detect(self, frame: int, picture: Picture | None) -> Detections:
        found = self._rows.detections(frame)
        return found.pick(found.scores >= self._low)


class ModelDetections:
    """From a detector on the pictures, through the letterbox that the daemon uses.

    Args:
        detector: Loaded.
        image_size: Long side of its input, pixels.
    """

    needs_pictures = True

    def __init__(self, detector: Detector, image_size: int = 640) -> None:
        self._detector = detector
        self._image_size = image_size
        self._pools: dict[Bucket, SlotPool] = {}
        self.found: dict[int, Detections] = {}  # by frame, so that they can be kept as a file

    def detect(self, frame: int, picture: Picture | None) -> Detections:
        if picture is None:
            raise EvaluationError(f"there is no picture of frame {frame} for the model")
        if frame not in self.found:
            info = self._detector.info
            bucket = info.fixed_bucket or rectangle(*picture.size, self._image_size, info.stride)
            slot = self._pools.setdefault(bucket, SlotPool(bucket, 1)).take()
            assert slot is not None  # one at a time
            slot.geometry = Letterbox.fit(*picture.size, bucket)
            write_letterbox_array(picture.to_bgr(), slot.pixels, slot.geometry)
            (self.found[frame],) = self._detector.detect([slot])
            slot.release()
        return self.found[frame]
