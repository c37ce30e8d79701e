"""What reaches the tracking loop: frames, and what happened to cameras and batches."""

from __future__ import annotations

from dataclasses import dataclass

from vidserve.frames import Batch, CameraStatus, Detections, DropReason, Frame


@dataclass(frozen=True, slots=True)
class FramesLost:
    """Frames that count as captured, but were never handed on."""

    camera: str
    reason: DropReason
    count: int


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """The detector began with a batch."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The detector is through; ``detections`` in the order of the frames, None: it failed."""

    batch: Batch
    detections: list[Detections] | None
    done_s: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Answer what is left and end."""


Event = Frame | FramesLost | CameraStatus | BatchStarted | BatchDone | Drain
