"""Optical flow in an evaluation: what the capture thread and the tracking loop do with it."""

from __future__ import annotations

from vidserve.capture.grey import SIDE_LIMIT_PX, shrink
from vidserve.capture.motion import MotionEstimator
from vidserve.evaluation.pictures import Picture
from vidserve.frames import Detections, FloatArray, MotionStep, Thinning
from vidserve.scheduling.keyframes import CameraPlan
from vidserve.tracking.appearance import looks
from vidserve.tracking.tracker import Tracker


class Flow:
    """Sees every picture and measures motion where the tracker's boxes are."""

    def __init__(self, tracker: Tracker, thinning: Thinning = Thinning.FULL) -> None:
        self._tracker = tracker
        self._estimator = MotionEstimator()
        self._estimator.thinning = thinning

    def look(self, time_s: float, picture: Picture) -> MotionStep | None:
        """Measure from the last picture to this one."""
        grey = shrink(picture.luma, SIDE_LIMIT_PX)
        if grey is picture.luma:
            grey = grey.copy()  # the picture's own memory is used again
        return self._estimator.step(grey, time_s, picture.size, self._tracker.regions())

    def looks(self, picture: Picture, detections: Detections) -> FloatArray:
        """What was detected in a picture looks like, from its colours."""
        return looks(picture.to_bgr(), detections.boxes)


class Adaptive:
    """Keyframes by the tracker's doubt, with the daemon's own plan of a camera.

    Args:
        tracker: Whose doubt it is.
        interval: One in so many frames goes to the detector, on average at most.
        fps: Of the sequence.
        max_gap_s: Longest time between detections.
    """

    def __init__(self, tracker: Tracker, interval: int, fps: float, max_gap_s: float = 2.0) -> None:
        self._tracker = tracker
        self._fps = fps
        self._max_gap_s = max_gap_s
        self._plan = CameraPlan("evaluated", 1.0, interval, 1 / fps, adaptive=True)

    def __call__(self, frame: int, step: MotionStep | None) -> bool:
        """Whether a frame (from 1) goes to the detector."""
        now_s = (frame - 1) / self._fps
        self._plan.doubt = self._tracker.doubt(now_s, step)
        due = self._plan.due(now_s, self._max_gap_s)
        if due:
            self._plan.went(now_s)
        return due
