"""The tracker of one camera: detections of some instants in, boxes of every instant out.

The state is *anchored* at the capture time of the last detection applied. ``at`` carries it
from there to a later instant and leaves it unchanged, so a late detection is nothing special:
it is applied at its own time, and the next answer carries it forward. Nothing is rolled back.

From the anchor to another instant lead two ways, ``Motion.predicted`` in ``apply`` and
``carried`` in ``at``. Motion that was measured between the two (optical flow) would enter
there, as displacements in place of the modelled ones; the rest need not know.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vidserve.frames import Detections, FloatArray, IntArray, Tracks
from vidserve.tracking.association import Indices, Mask, associate, corners, costs
from vidserve.tracking.kalman import Array, carried, damping
from vidserve.tracking.table import TrackTable

DEFAULT_CONFIDENCE = 0.35
LEAST_PX = 1.0  # what is left of a box at the edge of the picture; less is rounded to nothing
# Seen once, but with a score this far between its level and 1: no second look needed.
STRONG = 0.5
# A single miss is forgiven, so that boxes do not blink, if the last hit is at most this old;
# later a box that nobody confirmed is wrong too often. Measured on ../shared/mot, one detection
# in five: forgiving at 7 to 14 fps (0.36 to 0.7 s) costs 6 to 9 points of MOTA; at 25 to 30 fps
# (0.17 to 0.2 s) it brings 1 to 4 with a fixed camera and a good detector, and costs 5 to 10
# otherwise: the price of not blinking.
FORGIVEN_S = 0.25
# Detections may become rare (a quiet scene, overload): whatever ``lost_s`` says, a lost track
# lives for this many detection intervals, and without detections tracks stay published for
# this many more.
PATIENCE = 2.5
# An interval between detections is the median of the last so many.
INTERVALS = 7
# How far a rate is trusted when boxes are carried: a rate whose square is below this share of
# its variance is mostly held at zero. Calms still objects and costs moving ones nothing measurable.
HOLD = 0.2
# A picture whose aspect ratio changed by less than this shows the same view in other pixels.
SAME_SHAPE = 0.02
# Far above any real scene; bounds memory and time when a detector goes mad.
MAX_TRACKS = 1000


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """What an operator may set.

    Attributes:
        confidence: Score from which a detection starts a track, for all classes or by class
            id; a class left out has ``DEFAULT_CONFIDENCE``.
        low: Score from which a detection can continue a track.
        lost_s: How long a lost track is remembered, unpublished, and how long tracks are
            published when no detections come any more.
        history_s: A detection older than this when it arrives is of no use.
    """

    confidence: float | Mapping[int, float] = DEFAULT_CONFIDENCE
    low: float = 0.1
    lost_s: float = 2.0
    history_s: float = 1.0


@dataclass(frozen=True, slots=True)
class TrackerCounters:
    """Since the tracker was made; ``reset`` does not change them, except ``ended``.

    Attributes:
        applied: Detections (pictures) applied.
        discarded: Detections not newer than the last one applied, or older than the history.
        refused: Boxes refused: not finite, or without area.
        born: Tracks that were confirmed and given an id.
        ended: Tracks with an id that ended.
    """

    applied: int = 0
    discarded: int = 0
    refused: int = 0
    born: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class _Published:
    """All of an answer that does not depend on its instant; rows are confirmed tracks."""

    tracks: Tracks = field(default_factory=Tracks.none)
    position: Array = field(default_factory=lambda: np.empty((0, 4)))
    rate: Array = field(default_factory=lambda: np.empty((0, 4)))
    until_s: Array = field(default_factory=lambda: np.empty(0))
    born_s: Array = field(default_factory=lambda: np.empty(0))


class Tracker:
    """One per camera, owned by the tracking loop. No threads, no clock: times are arguments.

    A track is confirmed, and gets its id, with its second hit or with one strong one. Ids
    start at 1, are given in the order of confirmation and never used again. A track not seen
    by a detection is *lost*: still published after a single, recent miss, remembered for
    ``lost_s``.
    """

    def __init__(self, settings: TrackerSettings) -> None:
        self.settings = settings
        self._next_id = 1
        self._counted = dict.fromkeys(TrackerCounters.__slots__, 0)
        self._forget()

    def _forget(self) -> None:
        self._anchor_s: float | None = None
        self._size: tuple[int, int] | None = None
        self._intervals: deque[float] = deque(maxlen=INTERVALS)
        self._interval_s = 0.0
        self._table = TrackTable.empty()
        self._published = _Published()

    @property
    def last_detection_s(self) -> float | None:
        """Capture time of the last detection applied; None before the first."""
        return self._anchor_s

    @property
    def interval_s(self) -> float:
        """Median time between the last detections applied; 0 before the second."""
        return self._interval_s

    @property
    def counters(self) -> TrackerCounters:
        """A frozen snapshot."""
        return TrackerCounters(**self._counted)

    def reset(self) -> None:
        """End all tracks and forget all times, as after a reconnect. Ids go on."""
        self._count_ended(self._table.ids)
        self._forget()

    # ---- detections in

    def apply(
        self,
        time_s: float,
        detections: Detections,
        size: tuple[int, int],
        now_s: float | None = None,
    ) -> None:
        """Take in what the detector saw in one picture.

        A detection not newer than the last one applied is discarded and counted.

        Args:
            time_s: Capture time of the picture; may lie in the past ("late").
            detections: From ``settings.low`` on, in pixels of that picture.
            size: Width and height of that picture, pixels. If they changed, tracks are
                rescaled as long as the aspect ratio stayed (a camera that switched its
                resolution), and end otherwise (turned, cropped, another source).
            now_s: The present; if given, a detection older than ``history_s`` is discarded.

        Raises:
            ValueError: ``time_s`` is not finite.
        """
        if not math.isfinite(time_s):
            raise ValueError(f"capture time {time_s} is not finite")
        too_old = now_s is not None and now_s - time_s > self.settings.history_s
        if too_old or (self._anchor_s is not None and time_s <= self._anchor_s):
            self._counted["discarded"] += 1
            return
        self._counted["applied"] += 1
        if size != self._size:
            self._resize(size)
        boxes, scores, classes = self._accepted(detections)
        if self._anchor_s is not None:
            self._advance(time_s, time_s - self._anchor_s)
        self._anchor_s = time_s

        table = self._table
        levels = self._levels(classes)
        high = scores >= levels
        rows, columns = self._associate(boxes, classes, high)
        table.hit(rows, time_s, boxes[columns], scores[columns], classes[columns], high[columns])
        self._confirm(rows[table.ids[rows] == 0])
        # A track that was seen once, and not again at the next look, was noise.
        self._keep((table.ids > 0) | (table.missed == 0))

        begins = high
        begins[columns] = False
        strong = scores[begins] >= levels[begins] + STRONG * (1.0 - levels[begins])
        before = len(table)
        table.begin(time_s, boxes[begins], scores[begins], classes[begins])
        self._confirm(before + np.flatnonzero(strong))
        if len(table) > MAX_TRACKS:
            longest_lost_first = np.argsort(table.hit_s, kind="stable")
            kept = np.ones(len(table), np.bool_)
            kept[longest_lost_first[: len(table) - MAX_TRACKS]] = False
            self._keep(kept)
        self._publish()

    def _accepted(self, detections: Detections) -> tuple[Array, FloatArray, IntArray]:
        """Usable detections; boxes as cx, cy, w, h."""
        raw, scores = detections.boxes, detections.scores
        usable = np.isfinite(raw).all(axis=1) & np.isfinite(scores)
        usable &= (raw[:, 2:] > raw[:, :2]).all(axis=1)
        self._counted["refused"] += len(usable) - int(np.count_nonzero(usable))
        usable &= scores >= self.settings.low
        wide = raw[usable].astype(np.float64)
        low, high = wide[:, :2], wide[:, 2:]
        boxes = np.concatenate(((low + high) * 0.5, high - low), axis=1)
        return boxes, scores[usable], detections.classes[usable]

    def _levels(self, classes: IntArray) -> FloatArray:
        """Score that each detection needs to start a track, (m,)."""
        confidence = self.settings.confidence
        if not isinstance(confidence, Mapping):
            return np.full(len(classes), confidence, np.float32)
        of = [confidence.get(name, DEFAULT_CONFIDENCE) for name in classes.tolist()]
        return np.array(of, np.float32)

    def _advance(self, time_s: float, dt_s: float) -> None:
        """Move the anchor forward, and end what nobody saw for too long."""
        self._intervals.append(dt_s)
        self._interval_s = sorted(self._intervals)[len(self._intervals) // 2]
        self._table.advance(dt_s)
        lost_s, patience_s = self.settings.lost_s, PATIENCE * self._interval_s
        limit_s = np.where(self._table.missed > 0, max(lost_s, patience_s), lost_s + patience_s)
        self._keep(time_s - self._table.hit_s <= limit_s)

    def _associate(self, boxes: Array, classes: IntArray, high: Mask) -> tuple[Indices, Indices]:
        table = self._table
        if not len(table) or not len(boxes):
            none = np.empty(0, np.intp)
            return none, none
        same_class = table.classes()[:, None] == classes[None, :]
        return associate(costs(table.motion, boxes, same_class), high, table.missed == 0)

    def _confirm(self, rows: Indices) -> None:
        self._table.ids[rows] = np.arange(self._next_id, self._next_id + len(rows))
        self._next_id += len(rows)
        self._counted["born"] += len(rows)

    def _keep(self, kept: Mask) -> None:
        if not kept.all():
            self._count_ended(self._table.ids[~kept])
            self._table.keep(kept)

    def _count_ended(self, ids: IntArray) -> None:
        self._counted["ended"] += int(np.count_nonzero(ids))

    def _resize(self, size: tuple[int, int]) -> None:
        old, self._size = self._size, size
        if old is None:
            return
        if _same_view(old, size):
            self._table.motion = self._table.motion.scaled(size[0] / old[0], size[1] / old[1])
        else:
            self._keep(np.zeros(len(self._table), np.bool_))

    def _publish(self) -> None:
        """Work out once what every ``at`` until the next detection needs."""
        table, anchor_s = self._table, self._anchor_s
        assert anchor_s is not None
        forgiven = (table.missed == 1) & (anchor_s - table.hit_s <= FORGIVEN_S)
        # Weak detections carry a track over a bad moment; they do not make it true for ever.
        sure = anchor_s - table.strong_s <= self.settings.lost_s
        rows = np.flatnonzero((table.ids > 0) & ((table.missed == 0) | forgiven) & sure)
        motion = table.motion.pick(rows)
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
        patience_s = self.settings.lost_s + PATIENCE * self._interval_s
        until_s = table.hit_s[rows] + patience_s
        self._published = _Published(tracks, motion.position, rate, until_s, table.born_s[rows])

    # ---- tracks out

    def at(self, time_s: float, size: tuple[int, int] | None = None) -> Tracks:
        """The published tracks at an instant, usually now. Changes nothing.

        Args:
            time_s: An instant before the last detection applied is answered with the boxes of
                that detection.
            size: Width and height of the picture that is answered, if known: after a change
                of size boxes are published in its pixels (or not at all, if it shows another
                view) although no detection has been applied for it yet.
        """
        prepared, known_size = self._published, self._size
        if self._anchor_s is None or known_size is None or not len(prepared.tracks):
            return Tracks.none()
        glide_s, left = damping(max(0.0, time_s - self._anchor_s))
        boxes = corners(carried(prepared.position, prepared.rate, glide_s))
        velocities = prepared.tracks.velocities * np.float32(left)
        if size is not None and size != known_size:
            if not _same_view(known_size, size):
                return Tracks.none()
            factors = np.array(size) / np.array(known_size)
            boxes *= np.tile(factors, 2)
            velocities *= factors.astype(np.float32)
            known_size = size
        shown = np.clip(boxes, 0.0, np.array(known_size * 2)).astype(np.float32)
        sides_px = shown[:, 2:] - shown[:, :2]
        visible = (sides_px >= LEAST_PX).all(axis=1) & (prepared.until_s >= time_s)
        ages_s = np.maximum(time_s - prepared.born_s, 0.0).astype(np.float32)
        of = prepared.tracks
        if visible.all():
            return Tracks(of.ids, shown, of.scores, of.classes, velocities, ages_s)
        return Tracks(
            of.ids[visible],
            shown[visible],
            of.scores[visible],
            of.classes[visible],
            velocities[visible],
            ages_s[visible],
        )

    def doubt(self, time_s: float) -> float:
        """How badly the next detection is needed, 0 (not at all) to 1. Changes nothing.

        The mean over all tracks of: standard deviation of the predicted centre in shorter box
        sides, at most 1; and 1 for a track that is lost or not confirmed yet. Nothing tracked:
        0. No detection applied yet: 1.
        """
        if self._anchor_s is None:
            return 1.0
        table = self._table
        if not len(table):
            return 0.0
        motion = table.motion.predicted(max(0.0, time_s - self._anchor_s))
        spread = np.sqrt(motion.pp[:, :2].max(axis=1)) / motion.position[:, 2:].min(axis=1)
        unsure = (table.ids == 0) | (table.missed > 0)
        return float(np.where(unsure, 1.0, np.minimum(spread, 1.0)).mean())


def _same_view(old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Whether two picture sizes have the same shape."""
    return abs(new[0] * old[1] / (old[0] * new[1]) - 1.0) <= SAME_SHAPE
