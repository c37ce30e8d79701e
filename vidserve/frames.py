"""The words of the project as plain data: frame, batch, detections, tracks, outcome.

Nothing here decides anything or imports another room. All boxes are ``x1, y1, x2, y2`` in
pixels of the picture as shown (after rotation), all times monotonic seconds unless a name
says otherwise.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from vidserve.slots import Slot

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]


class Bucket(NamedTuple):
    """A model input shape in pixels. A batch never mixes buckets."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @classmethod
    def parse(cls, text: str) -> Bucket:
        """Read ``640x384``: width x height, as ``str`` writes it. ValueError: not that."""
        sides = text.split("x")
        if len(sides) != 2 or not all(s.isascii() and s.isdigit() and len(s) < 6 for s in sides):
            raise ValueError(f"{text!r} is not width x height, such as 640x384")
        return cls(int(sides[1]), int(sides[0]))


class Letterbox(NamedTuple):
    """How a picture lies in a bucket: scaled to ``inner_*`` at ``pad_*``, grey (114) around.

    ``width`` and ``height`` are those of the picture as shown.
    """

    width: int
    height: int
    inner_width: int
    inner_height: int
    pad_left: int
    pad_top: int

    @classmethod
    def fit(cls, width: int, height: int, bucket: Bucket) -> Letterbox:
        """The largest picture of the same aspect ratio, centred. Sizes in pixels, > 0."""
        small, large = sorted((bucket.width / width, bucket.height / height))
        # A bucket's short side may be the rounded-off size of this very picture (352 for 352.4):
        # the larger scale is then the true one, and fits after rounding.
        fits = round(width * large) <= bucket.width and round(height * large) <= bucket.height
        scale = large if fits else small
        inner_width = max(1, round(width * scale))
        inner_height = max(1, round(height * scale))
        # -0.1: an odd rest puts the smaller half first, as Ultralytics' LetterBox does.
        pad_left = round((bucket.width - inner_width) / 2 - 0.1)
        pad_top = round((bucket.height - inner_height) / 2 - 0.1)
        return cls(width, height, inner_width, inner_height, pad_left, pad_top)


@dataclass(slots=True)
class Frame:
    """One picture of one camera. Written by its capture thread, then only read.

    Attributes:
        camera: Name of the camera.
        seq: Number within the camera and run; every captured frame takes one, dropped ones too.
        captured_s: Capture time (monotonic): receipt of the picture's last packet, or the
            moment the frame of a paced file was due.
        wall_s: The same moment in wall time, for messages.
        ready_s: When the capture thread was done with it.
        width, height: Of the picture as shown, in pixels.
        corrupt: The decoder marked the picture as damaged; never sent to the detector.
        slot: The letterboxed picture if this is a keyframe candidate, else None.
        motion: What moved since the camera's last frame, if that was measured.
        motion_s: What the measuring took.
    """

    camera: str
    seq: int
    captured_s: float
    wall_s: float
    ready_s: float
    width: int
    height: int
    corrupt: bool = False
    slot: Slot | None = None
    motion: MotionStep | None = None
    motion_s: float = 0.0


class BatchKind(enum.Enum):
    """Why a batch was dispatched."""

    IN_TIME = "in time: every frame in it can still be answered as detected"
    LIKELY = "likely: its frames wait for it, but are not promised to be detected in time"
    CORRECTION = "correction: too late for its frames, it corrects the trackers"


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames of one bucket that go through the detector together.

    Attributes:
        frames: Each with a slot of ``bucket``.
        bucket: The input shape.
        kind: In time or a correction.
        started_s: Dispatch time (monotonic).
        expected_finish_s: Dispatch time plus the expected service time.
    """

    frames: tuple[Frame, ...]
    bucket: Bucket
    kind: BatchKind
    started_s: float
    expected_finish_s: float


@dataclass(frozen=True, slots=True)
class Detections:
    """What the detector saw in one picture.

    Attributes:
        boxes: float32 (n, 4), x1 y1 x2 y2, pixels.
        scores: float32 (n,), 0..1.
        classes: int32 (n,), keys of the model's names.
        looks: float32 (n, k), what each looks like, see ``tracking.appearance``; None: not known.
    """

    boxes: FloatArray
    scores: FloatArray
    classes: IntArray
    looks: FloatArray | None = None

    @classmethod
    def none(cls) -> Detections:
        """No detections: a normal result."""
        return cls(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.boxes)

    def pick(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Detections:
        """The rows that a mask or an index array of length n chooses."""
        looks = None if self.looks is None else self.looks[chosen]
        return Detections(self.boxes[chosen], self.scores[chosen], self.classes[chosen], looks)


@dataclass(frozen=True, slots=True)
class Tracks:
    """The published tracks of one camera at one instant.

    Attributes:
        ids: int32 (n,), unique per camera and run.
        boxes: float32 (n, 4), x1 y1 x2 y2 in pixels, inside the picture, area > 0.
        scores: float32 (n,), 0..1, of the last detection at the level of publishing or above.
        classes: int32 (n,), by vote over time.
        velocities: float32 (n, 2), pixels per second of the centre.
        ages_s: float32 (n,), since the track was first seen.
    """

    ids: IntArray
    boxes: FloatArray
    scores: FloatArray
    classes: IntArray
    velocities: FloatArray
    ages_s: FloatArray

    @classmethod
    def none(cls) -> Tracks:
        """Nothing in view."""
        return cls(
            np.empty(0, np.int32),
            np.empty((0, 4), np.float32),
            np.empty(0, np.float32),
            np.empty(0, np.int32),
            np.empty((0, 2), np.float32),
            np.empty(0, np.float32),
        )

    def __len__(self) -> int:
        return len(self.ids)


class Outcome(enum.Enum):
    """What became of a frame. Each frame has exactly one."""

    DETECTED = "detected"
    TRACKED = "tracked"
    DROPPED = "dropped"


class DropReason(enum.Enum):
    """Why a frame was not answered; the value is its name in reports."""

    MISSED = "missed"
    STALE = "stale"
    BACKLOG = "backlog"
    INVALID = "invalid"
    SKIPPED = "skipped"

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        return _DROP_SENTENCES[self]


_DROP_SENTENCES = {
    DropReason.MISSED: "The frame was due, but the capture thread was late and never produced it.",
    DropReason.STALE: "The frame was older than its budget when it arrived, and newer ones waited.",
    DropReason.BACKLOG: "Too many frames of this camera were still unanswered.",
    DropReason.INVALID: "The picture could not be used: no size, or not convertible.",
    DropReason.SKIPPED: "The camera was behind, and the picture could be left out undecoded.",
}


class CameraState(enum.Enum):
    """State of a camera as subscribers see it."""

    CONNECTING = "connecting"
    RUNNING = "running"
    STALLED = "stalled"
    UNAUTHORIZED = "unauthorized"
    FAILED = "failed"
    DEGRADED = "degraded"
    ENDED = "ended"
    DISABLED = "disabled"

    @property
    def delivers(self) -> bool:
        """Whether frames arrive in this state."""
        return self in (CameraState.RUNNING, CameraState.DEGRADED)


@dataclass(frozen=True, slots=True)
class CameraStatus:
    """A change of a camera's state. ``reason`` holds no secrets; ``since_wall_s`` is wall time."""

    camera: str
    state: CameraState
    reason: str
    since_wall_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What is handed over for one frame.

    Attributes:
        frame: The frame answered (its slot is no longer valid).
        detected: True if the detector has spoken for this very frame.
        detection_age_s: Capture of this frame less capture of the last detection applied;
            None before the first.
        tracks: The published tracks at the frame's capture time.
        age_s: From capture to the making of this answer.
    """

    frame: Frame
    detected: bool
    detection_age_s: float | None
    tracks: Tracks = field(default_factory=Tracks.none)
    age_s: float = 0.0


class Thinning(enum.IntEnum):
    """How much is measured, for less and less time; ``tests.bench_motion`` has the figures.

    Each level does what the one before leaves, and leaves out: nothing; the check backward;
    half of the points; every second picture.
    """

    FULL = 0
    ONE_WAY = 1
    FEWER_POINTS = 2
    EVERY_SECOND = 3


@dataclass(frozen=True, slots=True)
class Regions:
    """Where to measure motion: published by the tracking loop, read by a capture thread.

    Neither it nor its arrays are changed after it was made.

    Attributes:
        seq: Rises with each snapshot of a camera.
        time_s: Instant of the boxes, usually the capture time of the frame last answered.
        width, height: Of the picture as shown that the boxes belong to, pixels.
        ids: int32 (n,), distinct.
        boxes: float32 (n, 4), x1 y1 x2 y2 in pixels of the picture as shown. May lie outside.
    """

    seq: int
    time_s: float
    width: int
    height: int
    ids: IntArray
    boxes: FloatArray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class MotionStep:
    """What moved between two pictures of a camera, as measured. Pixels are those as shown.

    Rows are the rows of the regions that it was measured for.

    Attributes:
        from_s, to_s: Capture times of the two pictures; not always neighbours.
        regions_seq: Of the ``Regions``; None if there were none that fit (then n = 0).
        ids: int32 (n,).
        shift: float32 (n, 2), how far the object at the centre of the box moved, x and y,
            pixels. Where not trusted: how far the camera moved the background there.
        scale: float32 (n,), factor by which the object grew; where not trusted, by the camera.
        trusted: bool (n,), enough points of the object were seen and agreed.
        failed: bool (n,), enough of the object could have been followed, but was not.
        residual: float32 (n,), median distance of those points from the fit, pixels; infinite
            where not trusted.
        boxes: float32 (n, 4), the regions' boxes carried from their own instant to ``to_s`` by
            all steps since; a side that lies on the edge of the picture stays there. May lie
            outside; where a region's box was not finite, it stays that.
        unbroken: bool (n,), every step of that was trusted.
        camera: float32 (2, 3), similarity that takes a place of the background from the first
            picture to the second: ``x', y' = camera[:, :2] @ (x, y) + camera[:, 2]``. The
            identity where not trusted.
        camera_trusted: Enough of the picture outside the boxes was seen and agreed.
        camera_since: float64 (2, 3), the same from the regions' own instant to ``to_s``: all
            steps since, one after the other.
        camera_unbroken: bool, every step of that was trusted.
        outside: Share, 0..1, of the points measured outside all boxes that did not go with the
            camera. One point in 48 stands for 1/48 of the picture.
        changed: Share, 0..1, of the picture, seen very small, that looks otherwise than at the
            regions' instant (without regions: than in the first picture).
        scene_change: The second picture shows something else; then nothing is trusted.
        points: How many points were followed.
    """

    from_s: float
    to_s: float
    regions_seq: int | None
    ids: IntArray
    shift: FloatArray
    scale: FloatArray
    trusted: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.bool_]
    residual: FloatArray
    boxes: FloatArray
    unbroken: npt.NDArray[np.bool_]
    camera: FloatArray
    camera_trusted: bool
    camera_since: npt.NDArray[np.float64]
    camera_unbroken: bool
    outside: float
    changed: float
    scene_change: bool
    points: int

    def __len__(self) -> int:
        return len(self.ids)
