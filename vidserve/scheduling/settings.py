"""Limits of the scheduling policy, and the answer time that follows from them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vidserve.frames import Frame

_SAFETY_S = 0.001


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Limits of the policy. Seconds, frames, pixels.

    Attributes:
        budget_s: From capture to hand-over.
        max_gap_s: Longest wanted time between detections of a camera.
        batch_target: A smaller batch may be held for more frames.
        batch_max: Largest batch.
        wait_s: Longest hold; 0 dispatches at once.
        max_pixels: Largest n * height * width of a batch; None: no limit.
        control: Lengthen keyframe intervals under overload.
    """

    budget_s: float = 0.033
    max_gap_s: float = 2.0
    batch_target: int = 4
    batch_max: int = 8
    wait_s: float = 0.015
    max_pixels: int | None = None
    control: bool = False


def answer_time_s(frame: Frame, settings: SchedulerSettings, after_s: float) -> float:
    """Deadline less what follows and a millisecond."""
    return frame.captured_s + settings.budget_s - after_s - _SAFETY_S
