"""Other people's trackers dressed as ours, to be measured on the same detections."""

from __future__ import annotations

import importlib.util

import numpy as np

from vidserve.errors import EvaluationError
from vidserve.frames import Detections, MotionStep, Tracks


def has_bytetrack() -> bool:
    """Whether the package that ``ByteTrack`` needs is installed."""
    return importlib.util.find_spec("trackers") is not None


class ByteTrack:
    """ByteTrack (Zhang et al. 2022) as Roboflow's ``trackers`` has it.

    It knows frames, not times, and has no answer between detections: the last one is held.
    It has no classes either; a detection keeps its own.

    Args:
        rate: Detections per second; its memory of lost tracks is one second.
        threshold: Score that starts a track, as for our tracker (its own default, 0.7, loses
            to 0.25 on ../shared/mot).

    Raises:
        EvaluationError: the package is not installed.
    """

    def __init__(self, rate: float, threshold: float) -> None:
        if not has_bytetrack():
            raise EvaluationError(
                "ByteTrack needs the package 'trackers', which is in the extra 'dev': "
                "pip install 'vidserve[dev]' (or pip install trackers)"
            )
        from trackers import ByteTrackTracker

        self._tracker = ByteTrackTracker(frame_rate=rate, track_activation_threshold=threshold)
        self._last = Tracks.none()

    def apply(
        self,
        time_s: float,
        detections: Detections,
        size: tuple[int, int],
        now_s: float | None = None,
        step: MotionStep | None = None,
    ) -> None:
        """Update with the detections of one picture; the times are not used."""
        import supervision

        found = self._tracker.update(
            supervision.Detections(
                xyxy=detections.boxes.astype(np.float64),
                confidence=detections.scores.astype(np.float64),
                class_id=detections.classes,
            )
        )
        known = np.flatnonzero(np.asarray(found.tracker_id) >= 0)
        if not len(known):
            self._last = Tracks.none()
            return
        self._last = Tracks(
            ids=found.tracker_id[known].astype(np.int32),
            boxes=found.xyxy[known].astype(np.float32),
            scores=found.confidence[known].astype(np.float32),
            classes=found.class_id[known].astype(np.int32),
            velocities=np.zeros((len(known), 2), np.float32),
            ages_s=np.zeros(len(known), np.float32),
        )

    def at(
        self,
        time_s: float,
        size: tuple[int, int] | None = None,
        step: MotionStep | None = None,
    ) -> Tracks:
        """What the last update said."""
        return self._last
