"""One online run of a tracker over a sequence: the answer for a frame uses nothing after it.

It is the daemon's order of things on a clock made of frame numbers: a picture comes, motion is
seen in it, detections that are ready by then are applied at their own capture time, and the
frame is answered. The same input gives the same answers; only the measured times differ.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple, Protocol

from vidserve.errors import EvaluationError
from vidserve.evaluation.detections import DetectionSource
from vidserve.evaluation.pictures import Picture
from vidserve.evaluation.sequence import Sequence
from vidserve.frames import Detections, FloatArray, MotionStep, Tracks

# Two times that are equal but for rounding: a detection is ready at the frame it was meant for.
_ROUNDING_S = 1e-9


class OnlineTracker(Protocol):
    """What is evaluated: ``tracking.tracker.Tracker``, or a peer dressed as one."""

    def apply(
        self,
        time_s: float,
        detections: Detections,
        size: tuple[int, int],
        now_s: float | None = None,
        step: MotionStep | None = None,
    ) -> None: ...

    def at(
        self,
        time_s: float,
        size: tuple[int, int] | None = None,
        step: MotionStep | None = None,
    ) -> Tracks: ...


class Motion(Protocol):
    """What sees motion in the pictures: ``flow.Flow``."""

    def look(self, time_s: float, picture: Picture) -> MotionStep | None:
        """A new picture, captured at ``time_s``, before its frame is answered."""
        ...

    def looks(self, picture: Picture, detections: Detections) -> FloatArray | None:
        """What was detected in a keyframe's picture looks like: ``appearance.looks``."""
        ...


Keyframes = Callable[[int, MotionStep | None], bool]


def every(interval: int) -> Keyframes:
    """Frames 1, 1 + interval, 1 + 2 * interval ... go to the detector."""
    return lambda frame, step: (frame - 1) % interval == 0


@dataclass(frozen=True, slots=True)
class Run:
    """What came out of a run.

    Attributes:
        answers: Tracks of frames 1, 2, ...
        keyframes: Frames that went to the detector.
        tracking_s: Spent in the tracker and in motion, all frames together.
        slowest_s: The same for the slowest frame.
        detecting_s: Spent in the detector.
    """

    answers: list[Tracks]
    keyframes: list[int]
    tracking_s: float
    slowest_s: float
    detecting_s: float

    @property
    def ms_per_frame(self) -> float:
        """What tracking costs a frame, on average."""
        return 1000.0 * self.tracking_s / len(self.answers)


class _Ready(NamedTuple):
    time_s: float
    detections: Detections
    size: tuple[int, int]
    step: MotionStep | None


def run(
    sequence: Sequence,
    tracker: OnlineTracker,
    detector: DetectionSource,
    keyframes: Keyframes,
    delay_s: float = 0.0,
    motion: Motion | None = None,
) -> Run:
    """Answer every frame of a sequence.

    Args:
        sequence: What is played.
        tracker: A new one.
        detector: Asked at keyframes only.
        keyframes: Whether a frame (from 1) goes to the detector; asked once a frame, in order.
        delay_s: A detection is known so long after the capture of its picture.
        motion: Sees every picture, if given.

    Raises:
        EvaluationError: pictures are needed and cannot be had.
        DetectorError: the model failed.
    """
    with_pictures = detector.needs_pictures or motion is not None
    shown: Iterator[Picture | None] = sequence.pictures() if with_pictures else repeat(None)
    ready: deque[_Ready] = deque()
    result = Run([], [], 0.0, 0.0, 0.0)
    tracking_s = slowest_s = detecting_s = 0.0
    for frame in range(1, sequence.frames + 1):
        now_s = (frame - 1) / sequence.fps
        picture = next(shown)
        size = sequence.size if picture is None else picture.size
        began_s = time.perf_counter()
        step = None
        if motion is not None and picture is not None:
            step = motion.look(now_s, picture)
        wanted = keyframes(frame, step)
        looked_s = time.perf_counter() - began_s
        if wanted:
            started_s = time.perf_counter()
            found = detector.detect(frame, picture)
            if motion is not None and picture is not None:
                found = replace(found, looks=motion.looks(picture, found))
            ready.append(_Ready(now_s, found, size, step))
            detecting_s += time.perf_counter() - started_s
            result.keyframes.append(frame)
        started_s = time.perf_counter() - looked_s
        while ready and ready[0].time_s + delay_s <= now_s + _ROUNDING_S:
            late = ready.popleft()
            tracker.apply(late.time_s, late.detections, late.size, now_s, late.step)
        result.answers.append(tracker.at(now_s, size, step))
        spent_s = time.perf_counter() - started_s
        tracking_s += spent_s
        slowest_s = max(slowest_s, spent_s)
    return Run(result.answers, result.keyframes, tracking_s, slowest_s, detecting_s)


def check_answers(answers: list[Tracks]) -> None:
    """An id is there once a frame; a tracker that breaks this cannot be scored.

    Raises:
        EvaluationError: with the frame.
    """
    for frame, tracks in enumerate(answers, start=1):
        if len(set(tracks.ids.tolist())) != len(tracks):
            raise EvaluationError(f"the tracker answered frame {frame} with an id twice")
