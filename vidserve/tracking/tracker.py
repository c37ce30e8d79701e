"""The tracker of one camera: detections of some instants in, boxes of every instant out.

The state is *anchored* at the capture time of the last detection applied. ``at`` carries it
from there to a later instant and leaves it unchanged, so a late detection is nothing special:
it is applied at its own time, and the next answer carries it forward. Nothing is rolled back.

From the anchor to another instant lead two ways: the model alone (``flow.predicted``), which
pairs tracks with boxes, and the motion measured in the pictures (``flow.followed``), which says
where a track is. Both are relative to the camera where its motion was measured; where it was
not, ``_follow_camera`` guesses it from boxes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vidserve.frames import Detections, FloatArray, IntArray, MotionStep, Regions, Tracks
from vidserve.tracking import appearance
from vidserve.tracking.appearance import LENGTH
from vidserve.tracking.association import APART_COST, Indices, Mask, associate, costs, twins
from vidserve.tracking.camera import Drift, common_offset
from vidserve.tracking.flow import Anchored, Doubt, Moved, followed, predicted
from vidserve.tracking.kalman import Array, Motion, centred
from vidserve.tracking.published import Published, publish, same_view
from vidserve.tracking.table import TrackTable
from vidserve.tracking.trust import noise_factors

DEFAULT_CONFIDENCE = 0.35
# Seen once, but with a score this far between its level and 1: no second look needed.
STRONG = 0.5
# Detections may become rare (a quiet scene, overload): whatever ``lost_s`` says, a lost track
# lives for this many detection intervals, and without detections tracks stay published for
# this many more.
PATIENCE = 2.5
# An interval between detections is the median of the last so many.
INTERVALS = 7
# After a jump of the camera, the share of it that is expected again in the next interval: none if
# it was a jolt, all if the camera has begun to turn. On ../shared/mot, one in 5, 0.5 and 1 are
# alike; 0 loses 9 points of HOTA on the turning camera of MOT17-13.
AGAIN = 0.5
# Of steps shorter than a picture's at 60 fps no rate is taken: a jump in no time is a jolt.
LEAST_STEP_S = 1 / 60
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
        self._seq = 0
        self._counted = dict.fromkeys(TrackerCounters.__slots__, 0)
        self._forget()

    def _forget(self) -> None:
        self._anchor_s: float | None = None
        self._size: tuple[int, int] | None = None
        self._intervals: deque[float] = deque(maxlen=INTERVALS)
        self._interval_s = 0.0
        self._table = TrackTable.empty()
        self._published: Published | None = None
        self._anchored: Anchored | None = None
        self._doubt = Doubt()
        self._drift = Drift()

    @property
    def last_detection_s(self) -> float | None:
        """Capture time of the last detection applied; None before the first."""
        return self._anchor_s

    @property
    def interval_s(self) -> float:
        """Median time between the last detections applied; 0 before the second."""
        return self._interval_s

    @property
    def ids(self) -> list[int]:
        """Of the confirmed tracks that have not ended, in view or lost."""
        confirmed: list[int] = self._table.ids[self._table.ids > 0].tolist()
        return confirmed

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
        step: MotionStep | None = None,
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
            step: What moved until that picture, if it was measured.

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
        usable = self._accepted(detections)
        boxes = centred(detections.boxes[usable].astype(np.float64))
        scores, classes = detections.scores[usable], detections.classes[usable]
        nothing = np.zeros((len(boxes), LENGTH), np.float32)
        seen = nothing if detections.looks is None else detections.looks[usable]
        levels = self._levels(classes)
        high = scores >= levels
        by_flow, unseen_s = None, None
        if self._anchor_s is not None:
            moved = self._anchored.measured(step) if self._anchored is not None else None
            by_flow = self._advance(time_s, time_s - self._anchor_s, moved)
            if moved is None or not moved.camera_trusted:
                # Nobody saw in the pictures how the camera moved: the boxes may tell.
                unseen_s = time_s - self._anchor_s
                self._follow_camera(boxes[high], scores[high], unseen_s)
        self._anchor_s = time_s

        table = self._table
        rows, columns, factors = self._associate(boxes, classes, high, seen, by_flow, unseen_s)
        taken, taken_classes = boxes[columns], classes[columns]
        strongly, same = high[columns], seen[columns]
        table.hit(rows, time_s, taken, scores[columns], taken_classes, strongly, factors, same)
        self._confirm(rows[table.ids[rows] == 0])
        # A track that was seen once, and not again at the next look, was noise.
        self._keep((table.ids > 0) | (table.missed == 0))

        begins = high
        begins[columns] = False
        if begins.any() and len(columns):
            begins[begins] = ~twins(boxes[begins], classes[begins], taken, taken_classes)
        strong = scores[begins] >= levels[begins] + STRONG * (1.0 - levels[begins])
        before = len(table)
        table.begin(time_s, boxes[begins], scores[begins], classes[begins], seen[begins])
        self._confirm(before + np.flatnonzero(strong))
        if len(table) > MAX_TRACKS:
            longest_lost_first = np.argsort(table.hit_s, kind="stable")
            kept = np.ones(len(table), np.bool_)
            kept[longest_lost_first[: len(table) - MAX_TRACKS]] = False
            self._keep(kept)
        self._publish(step)

    def _accepted(self, detections: Detections) -> Mask:
        """Which detections are usable; counts those that nobody could use."""
        raw, scores = detections.boxes, detections.scores
        usable = np.isfinite(raw).all(axis=1) & np.isfinite(scores)
        usable &= (raw[:, 2:] > raw[:, :2]).all(axis=1)
        self._counted["refused"] += len(usable) - int(np.count_nonzero(usable))
        accepted: Mask = usable & (scores >= self.settings.low)
        return accepted

    def _levels(self, classes: IntArray) -> FloatArray:
        """Score that each detection needs to start a track, (m,)."""
        confidence = self.settings.confidence
        if not isinstance(confidence, Mapping):
            return np.full(len(classes), confidence, np.float32)
        of = [confidence.get(name, DEFAULT_CONFIDENCE) for name in classes.tolist()]
        return np.array(of, np.float32)

    def _advance(self, time_s: float, dt_s: float, moved: Moved | None) -> Motion | None:
        """Move the anchor forward by the model, and end what nobody saw for too long.

        Returns:
            The same by flow where it measured; None if it did not.
        """
        self._intervals.append(dt_s)
        self._interval_s = sorted(self._intervals)[len(self._intervals) // 2]
        table = self._table
        by_flow = None if moved is None else followed(table.motion, dt_s, moved)
        table.advance(dt_s, predicted(table.motion, dt_s, moved))
        lost_s, patience_s = self.settings.lost_s, PATIENCE * self._interval_s
        limit_s = np.where(table.missed > 0, max(lost_s, patience_s), lost_s + patience_s)
        kept = time_s - table.hit_s <= limit_s
        self._keep(kept)
        return None if by_flow is None else by_flow.pick(kept)

    def _follow_camera(self, boxes: Array, scores: FloatArray, dt_s: float) -> None:
        """Move all tracks along if boxes of high score say that the camera jumped."""
        table = self._table
        fresh = np.flatnonzero(table.missed == 0)
        best_first = np.argsort(-scores, kind="stable")
        offset = common_offset(table.motion.position[fresh], boxes[best_first])
        if offset is not None:
            speed = offset / max(dt_s, LEAST_STEP_S)
            table.motion = table.motion.shifted(offset, AGAIN * speed)

    def _associate(
        self,
        boxes: Array,
        classes: IntArray,
        high: Mask,
        seen: FloatArray,
        by_flow: Motion | None,
        unseen_s: float | None,
    ) -> tuple[Indices, Indices, Array]:
        """Tracks and boxes that belong together, and factors on the noise of those boxes.

        The model pairs, flow measures. Where two overlap, flow is often that of the one in
        front; it would then pull the other's track along, to be confirmed by the wrong box. The
        errors of the model have nothing to do with that, so what the model pairs with a box may
        well be moved by flow. (Both together, flow and pairs by flow, cost 3 points of HOTA on
        PETS09-S2L1, one in 5, and half a point on the sample clips.)

        ``unseen_s``: since the anchor, if nobody saw in the pictures how the camera moved. What
        the pairs are then off by together moves all tracks, and they are paired once more.
        """
        table = self._table
        if not len(table) or not len(boxes):
            none = np.empty(0, np.intp)
            return none, none, np.empty((0, 4))
        same_class = table.classes()[:, None] == classes[None, :]
        cost = self._costs(boxes, same_class, seen)
        pairs = associate(cost, high, table.missed == 0)
        if unseen_s is not None and self._drifted(boxes, high, pairs, unseen_s):
            cost = self._costs(boxes, same_class, seen)
            pairs = associate(cost, high, table.missed == 0)
        if by_flow is not None:
            table.motion = table.motion.replaced(pairs[0], by_flow)
        return *pairs, noise_factors(
            table.motion, boxes, cost, table.ids > 0, pairs, self._size or (0, 0)
        )

    def _costs(self, boxes: Array, same_class: Mask, seen: FloatArray) -> Array:
        """By place and, where known, by looks, (n, m)."""
        cost = costs(self._table.motion, boxes, same_class)
        if not seen.any():
            return cost
        looked = np.minimum(cost + appearance.cost(self._table.looks, seen), APART_COST)
        return np.where(cost < APART_COST, looked, cost)

    def _drifted(
        self, boxes: Array, high: Mask, pairs: tuple[Indices, Indices], dt_s: float
    ) -> bool:
        """Move all tracks by what the sure pairs are off by together; whether they moved."""
        table = self._table
        sure = (table.missed[pairs[0]] == 0) & (table.ids[pairs[0]] > 0) & high[pairs[1]]
        rows, columns = pairs[0][sure], pairs[1][sure]
        motion = table.motion
        off = boxes[columns, :2] - motion.position[rows, :2]
        variance = motion.pp[rows, :2] + motion.measurement_variance()[rows]
        drift = self._drift(off, variance, motion.position[rows, 3])
        if drift is None:
            return False
        table.motion = motion.shifted(drift, drift / max(dt_s, LEAST_STEP_S))
        return True

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
        self._anchored = None
        if old is None:
            return
        if same_view(old, size):
            self._table.motion = self._table.motion.scaled(size[0] / old[0], size[1] / old[1])
        else:
            self._keep(np.zeros(len(self._table), np.bool_))

    def _publish(self, step: MotionStep | None) -> None:
        """Work out once what every ``at`` until the next detection needs."""
        table, anchor_s, size = self._table, self._anchor_s, self._size
        assert anchor_s is not None and size is not None
        seen = np.flatnonzero(table.missed == 0)
        self._seq += 1
        anchored = Anchored(self._seq, seen, table.motion.position[seen])
        self._anchored = anchored.bridged(step, table.keys)
        lost_s = self.settings.lost_s
        patience_s = lost_s + PATIENCE * self._interval_s
        self._published = publish(table, self._anchored, anchor_s, size, lost_s, patience_s)

    # ---- tracks out

    def regions(self) -> Regions | None:
        """Where motion should be measured from now on; None before the first detection."""
        if self._anchored is None or self._anchor_s is None or self._size is None:
            return None
        return self._anchored.regions(self._anchor_s, self._size, self._table.keys)

    def at(
        self,
        time_s: float,
        size: tuple[int, int] | None = None,
        step: MotionStep | None = None,
    ) -> Tracks:
        """The published tracks at an instant, usually now. Changes nothing.

        Args:
            time_s: An instant before the last detection applied is answered with the boxes of
                that detection.
            size: Width and height of the picture that is answered, if known: after a change
                of size boxes are published in its pixels (or not at all, if it shows another
                view) although no detection has been applied for it yet.
            step: What moved until that instant, if it was measured.
        """
        return Tracks.none() if self._published is None else self._published.at(time_s, size, step)

    def doubt(self, time_s: float, step: MotionStep | None = None) -> float:
        """How badly the next detection is needed, 0 (not at all) to 1. See ``flow.Doubt``.

        Args:
            time_s: Of a frame.
            step: What moved until then, if it was measured.
        """
        if self._anchor_s is None:
            return 1.0
        since_s = max(0.0, time_s - self._anchor_s)
        return self._doubt(step, self._anchored, self._table, since_s)
