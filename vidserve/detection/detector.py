"""What a detector is. The only place that knows a library is ``ultralytics.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vidserve.frames import Bucket, Detections
from vidserve.slots import Slot


@dataclass(frozen=True, slots=True)
class DetectorInfo:
    """What is known of a loaded detector, for ``info`` and the cache of service times.

    Attributes:
        model: Name as configured.
        backend: ``pytorch``, ``openvino``, ``onnx``, ``tensorrt``, ``fake`` ...
        device: ``cpu``, ``cuda:0`` ...
        names: Class names by id, from the model's own metadata.
        fingerprint: Of the model file's content and the versions that matter; equal
            fingerprints mean equal service times on one machine.
        stride: What both sides of an input must be a multiple of.
        fixed_bucket: The only input shape that the model takes; None: any.
    """

    model: str
    backend: str
    device: str
    names: Mapping[int, str]
    fingerprint: str
    stride: int = 32
    fixed_bucket: Bucket | None = None


class Detector(Protocol):
    """Made, loaded and called by the detection thread alone."""

    @property
    def info(self) -> DetectorInfo: ...

    @property
    def max_batch(self) -> int | None:
        """Largest batch the model takes; None: any."""
        ...

    def detect(self, slots: Sequence[Slot]) -> list[Detections]:
        """Detect on a batch of filled slots of one bucket.

        Args:
            slots: 1..max_batch slots with ``pixels`` and ``geometry`` set.

        Returns:
            One ``Detections`` a slot, in order: boxes in pixels of the source picture
            (clipped to it), scores from the low threshold on, after non-maximum suppression.

        Raises:
            DetectorError: the model failed on this batch.
        """
        ...

    def close(self) -> None:
        """Free memory and threads."""
        ...
