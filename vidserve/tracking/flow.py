"""Motion measured between two detections: how it moves boxes, and when it asks for the next one.

The tracking loop publishes the boxes of the last detection (the anchor) as regions; each frame's
``MotionStep`` says where they are now. So a step is worth something for one anchor only, and
nothing has to be added up or rolled back here. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vidserve.frames import IntArray, MotionStep, Regions
from vidserve.tracking.kalman import Array, Motion, centred, corners
from vidserve.tracking.table import TrackTable

Mask = npt.NDArray[np.bool_]

# Standard deviation of where flow carries a box, in box sizes, after a second; it grows with the
# square root of the time. 0.1 to 0.3 are alike on the samples; less than 0.05 is dangerous: flow
# drifts, and detections no longer correct it.
FLOW_SPREAD = 0.2
# The same for boxes that are only shown: their errors end with the next detection.
SHOWN_SPREAD = 0.07
# A scene is quiet while nothing moved by more than this share of its size since the detection.
# What stands still is measured to within 0.01.
QUIET_MOVE = 0.03
# Points outside all boxes that move by themselves, beyond what is usual for the scene.
STARTLE = 0.08
# A track that was missed is looked for again, so often, at the usual interval. With a detector of
# recall 0.8 a still person is published 98 % of the time instead of 72 %.
SECOND_LOOKS = 4
USUAL_GAIN = 0.02  # how much of what is usual a frame replaces


@dataclass(frozen=True, slots=True)
class Moved:
    """What a step says of the time since the anchor.

    Attributes:
        rows: Rows of the table whose boxes were measured all the way, (m,).
        sides: Of those boxes, their mean width and height at the anchor, (m, 1).
        change: By how much each did so by itself, the camera's part left out, (m, 4).
        camera: Takes a place of the background at the anchor to now, (2, 3).
        camera_trusted: All of that was measured; the identity stands for what was not.
    """

    rows: npt.NDArray[np.intp]
    sides: Array
    change: Array
    camera: Array
    camera_trusted: bool


@dataclass(frozen=True, slots=True)
class _Base:
    """What steps of a snapshot of regions are subtracted from."""

    seq: int
    rows: npt.NDArray[np.intp]  # of the table, by row of the regions; -1: not there any more
    start: Array  # where a step had the boxes at the anchor, centred, (n, 4)
    camera: Array | None  # and the camera, (3, 3); None: where it was at the regions


@dataclass(frozen=True, slots=True)
class Anchored:
    """Rows of a track table whose motion is measured from an anchor on.

    Attributes:
        seq: Of the regions.
        rows: Rows of the table, in the order of the regions.
        start: Their boxes at the anchor: centre x, y, width, height, (n, 4) pixels.
        bridge: Regions of the anchor before: capture threads look there until they hear of
            this one. What a step for those says now less what it said at this anchor is as good.
    """

    seq: int
    rows: npt.NDArray[np.intp]
    start: Array
    bridge: _Base | None = None

    def regions(self, time_s: float, size: tuple[int, int], keys: IntArray) -> Regions:
        """What capture threads are told. ``keys``: of all rows of the table."""
        return Regions(
            seq=self.seq,
            time_s=time_s,
            width=size[0],
            height=size[1],
            ids=keys[self.rows],
            boxes=corners(self.start).astype(np.float32),
        )

    def bridged(self, step: MotionStep | None, keys: IntArray) -> Anchored:
        """The same, reached from regions before by a step that ended at this anchor.

        Args:
            step: Of the picture of the anchor; one for other regions than this one's.
            keys: Of all rows of the table.
        """
        if step is None or step.regions_seq is None or step.regions_seq == self.seq:
            return self
        order = np.argsort(keys)
        place = np.searchsorted(keys, step.ids, sorter=order)
        there = order[np.minimum(place, len(keys) - 1)] if len(keys) else place
        known = keys[there] == step.ids if len(keys) else np.zeros(len(step.ids), np.bool_)
        rows = np.where(known & step.unbroken & np.isfinite(step.boxes).all(axis=1), there, -1)
        start = centred(step.boxes.astype(np.float64))
        return replace(self, bridge=_Base(step.regions_seq, rows, start, _square(step)))

    def measured(self, step: MotionStep | None) -> Moved | None:
        """What a step says of the time since the anchor; None: nothing, it is for others."""
        if step is None:
            return None
        if step.regions_seq == self.seq:
            base = _Base(self.seq, self.rows, self.start, None)
        elif self.bridge is not None and step.regions_seq == self.bridge.seq:
            base = self.bridge
        else:
            return None
        good = step.unbroken & np.isfinite(step.boxes).all(axis=1) & (base.rows >= 0)
        camera = step.camera_since
        if base.camera is not None:
            camera = (_square(step) @ np.linalg.inv(base.camera))[:2]
        now = centred(step.boxes[good].astype(np.float64))
        then = panned(base.start[good], camera)
        sides = np.maximum(then[:, 2:].mean(axis=1, keepdims=True), 1.0)
        return Moved(base.rows[good], sides, now - then, camera, step.camera_unbroken)


def _square(step: MotionStep) -> Array:
    """``camera_since`` with its third row."""
    return np.vstack((step.camera_since, (0.0, 0.0, 1.0)))


def panned(boxes: Array, camera: Array) -> Array:
    """Where the camera carries boxes (n, 4; centred) by itself."""
    zoom = math.hypot(camera[0, 0], camera[1, 0])
    return np.concatenate((boxes[:, :2] @ camera[:, :2].T + camera[:, 2], boxes[:, 2:] * zoom), 1)


def predicted(motion: Motion, dt_s: float, moved: Moved | None) -> Motion:
    """The state ``dt_s`` later by the model alone, relative to the camera where it is known."""
    if moved is not None:
        motion = replace(motion, position=panned(motion.position, moved.camera))
    return motion.predicted(dt_s)


def followed(motion: Motion, dt_s: float, moved: Moved) -> Motion:
    """The state ``dt_s`` later: measured where it was, predicted elsewhere.

    Args:
        motion: At the anchor, the whole table.
        dt_s: >= 0.
        moved: Since the anchor.
    """
    motion = replace(motion, position=panned(motion.position, moved.camera))
    variance = (FLOW_SPREAD * moved.sides) ** 2 * dt_s
    return motion.displaced(dt_s, moved.rows, moved.change, variance)


class Doubt:
    """How badly a camera needs its next detection. One per camera.

    0: nothing has happened since the last one. 0.5: as often as configured. Above: more is
    uncertain than usual for this camera. 1: at once.
    """

    def __init__(self) -> None:
        self._usual_outside: float | None = None
        self._outside_before = self._changed_before = 0.0
        self._usual_variance: float | None = None

    def __call__(
        self, step: MotionStep | None, anchored: Anchored | None, table: TrackTable, since_s: float
    ) -> float:
        """The doubt at a frame.

        Args:
            step: Of the frame; None: nothing was measured, which is no reason to be quiet.
            anchored: What the step is measured against; None before the first detection.
            table: At the anchor. Tracks lost for long do not count: most have left, and who
                comes back is motion outside all boxes.
            since_s: Time since the anchor, >= 0.
        """
        moved = None if anchored is None else anchored.measured(step)
        if step is None or anchored is None:
            return 0.5
        if step.scene_change:
            return 1.0
        usual = step.outside if self._usual_outside is None else self._usual_outside
        # Of two frames: a thing that moves goes on, noise does not.
        startled = (min(step.outside, self._outside_before) - usual) / STARTLE
        self._outside_before = step.outside
        changed, self._changed_before = min(step.changed, self._changed_before), step.changed
        self._usual_outside = usual + USUAL_GAIN * (step.outside - usual)
        if moved is None:
            return 0.5
        # What is uncertain, in box areas: broken flow and newly born tracks above all.
        unsure = _variance(table, moved, since_s)
        usual = unsure if self._usual_variance is None else self._usual_variance
        self._usual_variance = usual + USUAL_GAIN * (unsure - usual)
        calm = _farthest(moved) <= QUIET_MOVE and _glide(table, anchored, since_s) <= QUIET_MOVE
        # A plain wall shows no camera, and moves not.
        calm = calm and (moved.camera_trusted or step.changed == 0.0)
        calm = calm and not (table.ids[anchored.rows] == 0).any()
        # Who was just missed may stand there still: one bad look must not hide him for seconds.
        calm = (
            calm
            and not ((table.ids > 0) & (table.missed > 0) & (table.missed <= SECOND_LOOKS)).any()
        )
        calm = calm and changed == 0.0 and not step.failed.any()
        if calm and startled <= 0.5:
            return 0.0
        ratio = unsure / (unsure + usual) if unsure > 0.0 else 0.0
        return float(min(max(0.5, ratio, 0.5 + 0.5 * startled), 1.0))


def _variance(table: TrackTable, moved: Moved, since_s: float) -> float:
    """Of all boxes' centres in squares of their sizes, together."""
    seen = table.missed == 0
    ahead = table.motion.predicted(since_s)
    size = np.maximum(ahead.position[:, 2:].max(axis=1), 1.0)
    variance = ahead.pp[:, :2].max(axis=1) / size**2
    followed = table.motion.pp[moved.rows, :2].max(axis=1) / size[moved.rows] ** 2
    variance[moved.rows] = followed + FLOW_SPREAD**2 * since_s
    return float(variance[seen].sum())


def _glide(table: TrackTable, anchored: Anchored, since_s: float) -> float:
    """The most that any box should have moved by its own rate, in its sizes.

    What shows nothing to follow (a plain thing, a dark one) is quiet if it stood before.
    """
    rate = np.abs(table.motion.rate[anchored.rows, :2]).max(axis=1, initial=0.0)
    sides = np.maximum(anchored.start[:, 2:].mean(axis=1), 1.0)
    return float((rate / sides).max(initial=0.0)) * since_s


def _farthest(moved: Moved) -> float:
    """The most that any box moved or grew since the anchor, in its sizes."""
    return float(np.abs(moved.change / moved.sides).max(initial=0.0))
