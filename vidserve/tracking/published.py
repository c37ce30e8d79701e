"""What a tracker publishes between two detections: prepared once, answered for any instant."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vidserve.frames import MotionStep, Tracks
from vidserve.tracking.flow import SHOWN_SPREAD, Anchored, panned
from vidserve.tracking.kalman import Array, Motion, carried, corners, damping
from vidserve.tracking.table import TrackTable

LEAST_PX = 1.0  # what is left of a box at the edge of the picture; less is rounded to nothing
# A single miss is forgiven, so that boxes do not blink, if the last hit is at most this old;
# later a box that nobody confirmed is wrong too often. Measured on ../shared/mot, one detection
# in five: forgiving at 7 to 14 fps (0.36 to 0.7 s) costs 6 to 9 points of MOTA; at 25 to 30 fps
# (0.17 to 0.2 s) it brings 1 to 4 with a fixed camera and a good detector, and costs 5 to 10
# otherwise: the price of not blinking.
FORGIVEN_S = 0.25
# How far a rate is trusted when boxes are carried: a rate whose square is below this share of
# its variance is mostly held at zero. Calms still objects; 0.2 costs walkers seen every 0.7 s two
# points of MOTA (PETS09-S2L1, one in 5).
HOLD = 0.1
# A picture whose aspect ratio changed by less than this shows the same view in other pixels.
SAME_SHAPE = 0.02


@dataclass(frozen=True, slots=True)
class Published:
    """All of an answer that does not depend on its instant; rows are confirmed tracks.

    Attributes:
        anchor_s: Capture time of the last detection applied.
        size: Width and height of its picture, pixels.
        tracks: With empty boxes and ages.
        motion: At the anchor.
        rate: Of ``motion``, held at zero where it is mostly noise.
        until_s, born_s: float64 (n,).
        place: By row of the track table: which row it is here, -1 if not published.
        anchored: What steps are measured against.
    """

    anchor_s: float
    size: tuple[int, int]
    tracks: Tracks
    motion: Motion
    rate: Array
    until_s: Array
    born_s: Array
    place: npt.NDArray[np.intp]
    anchored: Anchored

    def at(
        self, time_s: float, size: tuple[int, int] | None = None, step: MotionStep | None = None
    ) -> Tracks:
        """See ``Tracker.at``."""
        of, known_size = self.tracks, self.size
        if not len(of):
            return Tracks.none()
        position, velocities = self._carried(time_s, step)
        boxes = corners(position)
        if size is not None and size != known_size:
            if not same_view(known_size, size):
                return Tracks.none()
            factors = np.array(size) / np.array(known_size)
            boxes *= np.tile(factors, 2)
            velocities *= factors
            known_size = size
        shown = np.clip(boxes, 0.0, np.array(known_size * 2)).astype(np.float32)
        sides_px = shown[:, 2:] - shown[:, :2]
        visible = (sides_px >= LEAST_PX).all(axis=1) & (self.until_s >= time_s)
        ages_s = np.maximum(time_s - self.born_s, 0.0).astype(np.float32)
        speeds = velocities.astype(np.float32)
        if visible.all():
            return Tracks(of.ids, shown, of.scores, of.classes, speeds, ages_s)
        return Tracks(
            of.ids[visible],
            shown[visible],
            of.scores[visible],
            of.classes[visible],
            speeds[visible],
            ages_s[visible],
        )

    def _carried(self, time_s: float, step: MotionStep | None) -> tuple[Array, Array]:
        """Boxes at an instant, (n, 4), and how fast their centres move, (n, 2)."""
        dt_s = max(0.0, time_s - self.anchor_s)
        glide_s, left = damping(dt_s)
        moved = self.anchored.measured(step) if dt_s > 0.0 else None
        if moved is None:
            return carried(self.motion.position, self.rate, glide_s), self.rate[:, :2] * left
        position = carried(panned(self.motion.position, moved.camera), self.rate, glide_s)
        velocities = self.rate[:, :2] * left
        places = self.place[moved.rows]
        shown = places >= 0
        if shown.any():
            rows = places[shown]
            there = self.motion.pick(rows)
            there = replace(there, position=panned(there.position, moved.camera))
            variance = (SHOWN_SPREAD * moved.sides[shown]) ** 2 * dt_s
            now, rates = there.shown(dt_s, moved.change[shown], variance)
            position[rows], velocities[rows] = now, rates[:, :2]
        return position, velocities


def publish(
    table: TrackTable,
    anchored: Anchored,
    anchor_s: float,
    size: tuple[int, int],
    lost_s: float,
    patience_s: float,
) -> Published:
    """Work out once what every answer until the next detection needs.

    Args:
        table: At the anchor.
        anchored: What steps are measured against.
        anchor_s: Capture time of the detection that was applied.
        size: Of its picture.
        lost_s: How long weak detections alone keep a track in view.
        patience_s: How long after its last hit a track is shown when no detection comes.
    """
    forgiven = (table.missed == 1) & (anchor_s - table.hit_s <= FORGIVEN_S)
    # Weak detections carry a track over a bad moment; they do not make it true for ever.
    sure = anchor_s - table.strong_s <= lost_s
    rows = np.flatnonzero((table.ids > 0) & ((table.missed == 0) | forgiven) & sure)
    motion = table.motion.pick(rows)
    place = np.full(len(table), -1, np.intp)
    place[rows] = np.arange(len(rows))
    square = motion.rate * motion.rate
    rate = motion.rate * (square / (square + HOLD * motion.rr))
    tracks = Tracks(
        ids=table.ids[rows],
        boxes=np.empty((0, 4), np.float32),
        scores=table.scores[rows],
        classes=table.classes()[rows],
        velocities=rate[:, :2].astype(np.float32),
        ages_s=np.empty(0, np.float32),
    )
    for shared in (tracks.ids, tracks.scores, tracks.classes):
        shared.flags.writeable = False
    until_s, born_s = table.hit_s[rows] + patience_s, table.born_s[rows]
    return Published(anchor_s, size, tracks, motion, rate, until_s, born_s, place, anchored)


def same_view(old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Whether two picture sizes have the same shape."""
    return abs(new[0] * old[1] / (old[0] * new[1]) - 1.0) <= SAME_SHAPE
