"""Motion between the pictures of one camera: sparse optical flow at published regions.

A handful of points in the inner part of every box, and a coarse grid over the whole picture,
are followed from each picture to the next. The grid tells how the camera moved and what moves
outside all boxes; the points of a box tell its shift and growth (``motion_fit``), and by how
well they agree whether to believe them. The idea is MedianFlow (Kalal, Mikolajczyk and Matas,
2010), with least squares over the points near the median in place of the medians.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vidserve.capture.grey import shrink
from vidserve.capture.motion_fit import Mask, fit
from vidserve.capture.motion_points import covered, follow, grid, place
from vidserve.frames import ByteArray, FloatArray, IntArray, MotionStep, Regions, Thinning

POINTS_A_BOX = 16
MOST_POINTS = 320  # the grid's included; if boxes are many, each has fewer
GRID = (8, 6)
LEAST_SIDE_PX = 4.0  # of a box, in the grey picture
# To be trusted, so many points of a box have to agree, and such a share of those that show it.
# A walker's box is half background: asking for half of the points loses 15 boxes in 100.
LEAST_POINTS, LEAST_SHARE = 4, 0.25
CAMERA_POINTS, CAMERA_SHARE = 8, 0.5
# Spread of growth: of a box a second, and of the picture a step. See ``fit``.
GROWTH_A_S, CAMERA_GROWTH = 0.1, 0.02
MOST_GROWTH = 0.2  # a step; more is a mistake
EDGE_PX = 1.0
# A scene change: the share of points that failed times how much the thumbnails differ.
CHANGED = 0.35
CHANGED_TIMES = 6.0  # the usual difference of a place
CHANGED_LEVELS = 3.0  # of a thumbnail's pixel; noise of 5 levels in the picture moves it by 0.3
LEAST_CONTRAST = 2.0  # a thumbnail with less, in grey levels, shows nothing
# How far back regions may lie, and how many pictures are kept for that (0.1 to 0.3 MB each).
HISTORY_S, MOST_PICTURES = 1.0, 32
SAME_VIEW = 0.02
SAME_TIME_S = 1e-4
_BEYOND_PX = 1e6


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Regions at the time of a picture, in its pixels."""

    ids: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    boxes: FloatArray = field(default_factory=lambda: np.empty((0, 4), np.float32))
    # End of the last step that was not trusted; -inf if there was none.
    broken_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    seq: int | None = None  # of the snapshot that they come from


@dataclass(frozen=True, slots=True)
class _Known:
    """A picture, and where the regions were in it."""

    time_s: float
    grey: ByteArray
    regions: _Boxes
    thumb: FloatArray
    # From the first picture of all to this one, (3, 3) homogeneous.
    camera: npt.NDArray[np.float64] = field(default_factory=lambda: np.eye(3))


@dataclass(frozen=True, slots=True)
class _Flow:
    """From one picture to another, in pixels of the grey picture; see ``MotionStep``."""

    shift: FloatArray
    scale: FloatArray
    trusted: Mask
    failing: Mask  # enough points of the object had texture, and too few could be followed
    residual: FloatArray
    camera: FloatArray
    camera_trusted: bool
    outside: float
    failed: float  # share of the grid's points with texture that could not be followed
    points: int


class MotionEstimator:
    """One per camera, owned by its capture thread. No clock: times are arguments.

    Attributes:
        thinning: How much to measure, from the next step on. Any thread may set it.
    """

    def __init__(self) -> None:
        self.thinning = Thinning.FULL
        self.reset()

    def reset(self) -> None:
        """Forget all pictures, as after a reconnect: the next step is the first."""
        self._shown = (0, 0)
        self._history: deque[_Known] = deque(maxlen=MOST_PICTURES)
        self._now = _Boxes()
        self._seq: int | None = None
        self._reference: FloatArray | None = None  # thumbnail of the regions' instant
        self._ahead_s = 0.0
        self._skipped = False
        self._camera_at_regions = np.eye(3)
        self._regions_s = -math.inf
        self._camera_broken_s = -math.inf

    def step(
        self, grey: ByteArray, time_s: float, shown: tuple[int, int], regions: Regions | None
    ) -> MotionStep | None:
        """Measure from the last picture to this one.

        Args:
            grey: uint8 (h, w), the small grey picture. Kept, not copied: nobody may write
                into it any more.
            time_s: Capture time.
            shown: Width and height of the picture as shown, pixels.
            regions: Where to look; a snapshot already known costs nothing. Its boxes are first
                carried from their own instant to the last picture: known ids by what was
                measured of them, new ones by flow from the kept picture of that instant.

        Returns:
            None if there is nothing to measure from: the first picture, another size, a time
            not later than the last one (if earlier, all begins anew), or one left out by
            ``Thinning.EVERY_SECOND``.

        Raises:
            ValueError: ``time_s`` is not finite.
        """
        if not math.isfinite(time_s):
            raise ValueError(f"capture time {time_s} is not finite")
        last = self._history[-1] if self._history else None
        if last is None or self._begins(last, grey, time_s, shown):
            self.reset()
            self._shown = shown
            self._history.append(_Known(time_s, grey, self._now, _thumb(grey)))
            return None
        self._skipped = self.thinning >= Thinning.EVERY_SECOND and not self._skipped
        if self._skipped or time_s == last.time_s:
            return None
        usable = regions if regions is not None and _same_view(regions, shown) else None
        self._take(usable, last)
        return self._measure(last, _Known(time_s, grey, self._now, _thumb(grey)), usable)

    def _begins(self, last: _Known, grey: ByteArray, time_s: float, shown: tuple[int, int]) -> bool:
        return grey.shape != last.grey.shape or shown != self._shown or time_s < last.time_s

    def _measure(self, last: _Known, new: _Known, regions: Regions | None) -> MotionStep:
        dt_s = new.time_s - last.time_s
        before = self._now
        flow = _flow(last.grey, new.grey, before.boxes, dt_s, self.thinning)
        scene_change = flow.failed * _difference(last.thumb, new.thumb) > CHANGED
        reference = last.thumb if self._reference is None else self._reference
        trusted = flow.trusted & (not scene_change)
        camera_trusted = flow.camera_trusted and not scene_change
        camera = flow.camera if camera_trusted else np.eye(2, 3, dtype=np.float32)

        by_camera, zoom = _of_camera(camera, before.boxes)
        shift = np.where(trusted[:, None], flow.shift, by_camera)
        scale = np.where(trusted, flow.scale, zoom)
        # Boxes of a later instant than the last picture (one was left out) have less far to go.
        share = np.float32(max(0.0, 1.0 - self._ahead_s / dt_s))
        self._ahead_s = 0.0
        height, width = new.grey.shape
        boxes = _carried(before.boxes, share * shift, scale**share, (width, height))
        broken_s = np.where(trusted, before.broken_s, new.time_s)
        self._now = _Boxes(before.ids, boxes, broken_s, before.seq)
        if not camera_trusted:
            self._camera_broken_s = new.time_s
        total = np.vstack((camera.astype(np.float64), (0.0, 0.0, 1.0))) @ last.camera
        since = (total @ np.linalg.inv(self._camera_at_regions))[:2]
        self._history.append(_Known(new.time_s, new.grey, self._now, new.thumb, total))
        while new.time_s - self._history[0].time_s > HISTORY_S:
            self._history.popleft()

        unit = _units(self._shown, new.grey)
        return MotionStep(
            from_s=last.time_s,
            to_s=new.time_s,
            regions_seq=self._seq,
            ids=before.ids,
            shift=shift * unit,
            scale=scale,
            trusted=trusted,
            failed=flow.failing & ~trusted,
            residual=np.where(trusted, flow.residual * unit.max(), np.float32(np.inf)),
            boxes=boxes * np.tile(unit, 2),
            unbroken=np.isneginf(broken_s) if regions is None else broken_s <= regions.time_s,
            camera=np.column_stack((camera[:, :2], camera[:, 2] * unit)),
            camera_trusted=camera_trusted,
            camera_since=np.column_stack((since[:, :2], since[:, 2] * unit)),
            camera_unbroken=math.isfinite(self._regions_s)
            and self._camera_broken_s <= self._regions_s + SAME_TIME_S,
            outside=flow.outside,
            changed=_changed(reference, new.thumb),
            scene_change=scene_change,
            points=flow.points,
        )

    def _take(self, regions: Regions | None, last: _Known) -> None:
        """Make ``_now`` the boxes of this snapshot at the time of the last picture."""
        if regions is None:
            self._now, self._seq = _Boxes(), None
            self._camera_at_regions, self._regions_s = last.camera, last.time_s
            self._reference = None
            return
        if regions.seq == self._seq:
            return
        self._seq = regions.seq
        nearest = min(self._history, key=lambda known: abs(known.time_s - regions.time_s))
        self._camera_at_regions, self._reference = nearest.camera, nearest.thumb
        # Pictures before the first one kept: nobody knows.
        known_s = self._history[0].time_s - SAME_TIME_S
        self._regions_s = regions.time_s if regions.time_s >= known_s else -math.inf
        unit = _units((regions.width, regions.height), last.grey)
        # Clipped to what float32 can count in pixels; not a number stays that.
        boxes: FloatArray = np.clip(regions.boxes, -_BEYOND_PX, _BEYOND_PX).astype(np.float32)
        boxes /= np.tile(unit, 2)
        broken_s = np.full(len(boxes), -np.inf)
        self._ahead_s = max(0.0, regions.time_s - last.time_s)
        if regions.time_s < last.time_s - SAME_TIME_S:
            self._bring(regions.ids, boxes, broken_s, regions.time_s, last)
        self._now = _Boxes(regions.ids, boxes, broken_s, regions.seq)

    def _bring(
        self,
        ids: IntArray,
        boxes: FloatArray,
        broken_s: npt.NDArray[np.float64],
        time_s: float,
        last: _Known,
    ) -> None:
        """Bring boxes of an earlier instant to that of the last picture, in place."""
        then = min(self._history, key=lambda known: abs(known.time_s - time_s))
        if time_s < then.time_s - SAME_TIME_S and then is self._history[0]:
            broken_s[:] = last.time_s  # older than all that is kept
            return
        # Boxes of two snapshots differ by what the detector corrected, too: that is no motion.
        one = then.regions.seq == self._now.seq
        known = np.isin(ids, then.regions.ids) & np.isin(ids, self._now.ids) & one
        old = _rows(then.regions.ids, ids[known])
        new = _rows(self._now.ids, ids[known])
        was, became = then.regions.boxes[old], self._now.boxes[new]
        sides, grown = was[:, 2:] - was[:, :2], became[:, 2:] - became[:, :2]
        shift = (became - was).reshape(-1, 2, 2).mean(axis=1)
        scale = (grown / np.maximum(sides, 1e-3)).mean(axis=1)
        size = (last.grey.shape[1], last.grey.shape[0])
        boxes[known] = _carried(boxes[known], shift, scale, size)
        broken_s[known] = self._now.broken_s[new]
        fresh = ~known
        if then is last or not fresh.any():
            return
        dt_s = last.time_s - then.time_s
        flow = _flow(then.grey, last.grey, boxes[fresh], dt_s, self.thinning)
        by_camera, zoom = _of_camera(flow.camera, boxes[fresh])
        shift = np.where(flow.trusted[:, None], flow.shift, by_camera)
        scale = np.where(flow.trusted, flow.scale, zoom)
        boxes[fresh] = _carried(boxes[fresh], shift, scale, size)
        # The break ends here: regions of a later instant are not touched by it.
        broken_s[fresh] = np.where(flow.trusted, -np.inf, last.time_s)


def _flow(
    first: ByteArray, second: ByteArray, boxes: FloatArray, dt_s: float, thinning: Thinning
) -> _Flow:
    """Follow points in boxes (n, 4) and on the grid from one picture to another."""
    height, width = first.shape
    fewer = thinning >= Thinning.FEWER_POINTS
    columns, rows = (GRID[0] // 2, GRID[1]) if fewer else GRID
    lattice = grid(width, height, columns, rows)
    edge = np.array([width - 1, height - 1] * 2, np.float32)
    seen = np.clip(boxes, 0.0, edge)  # not a number stays that, and is not usable
    room = (MOST_POINTS // 2 if fewer else MOST_POINTS) - len(lattice)
    chosen = _usable(seen, room // LEAST_POINTS)
    each = min(POINTS_A_BOX // 2 if fewer else POINTS_A_BOX, room // max(1, len(chosen)))
    points, free = place(seen[chosen], boxes[chosen], each)

    starts = np.concatenate((points.reshape(-1, 2), lattice))
    ends, tried, good = follow(first, second, starts, thinning < Thinning.ONE_WAY)
    inside = len(starts) - len(lattice)
    middle = np.array([[width / 2, height / 2]], np.float32)
    background = good[inside:] & ~covered(lattice, boxes)
    still = fit(
        middle,
        lattice[None],
        ends[None, inside:],
        background[None],
        CAMERA_GROWTH,
    )
    measured, going = int(background.sum()), int(still.agree.sum())
    camera_trusted = going >= max(CAMERA_POINTS, CAMERA_SHARE * measured)
    camera_trusted &= abs(float(still.growth[0])) <= MOST_GROWTH
    grow, turn = float(still.growth[0]), float(still.turn[0])
    camera = np.array([[1.0 + grow, -turn, 0.0], [turn, 1.0 + grow, 0.0]], np.float32)
    camera[:, 2] = still.shift[0] + middle[0] - camera[:, :2] @ middle[0]

    found = fit(
        (boxes[chosen, :2] + boxes[chosen, 2:]) * np.float32(0.5),
        points,
        ends[:inside].reshape(points.shape),
        good[:inside].reshape(free.shape) & free,
        GROWTH_A_S * dt_s,
    )
    count = found.agree.sum(axis=1)
    sure = (count >= LEAST_POINTS) & (count >= LEAST_SHARE * free.sum(axis=1))
    sure &= np.abs(found.growth) <= MOST_GROWTH
    n = len(boxes)
    shift, scale = np.zeros((n, 2), np.float32), np.ones(n, np.float32)
    trusted, residual = np.zeros(n, np.bool_), np.full(n, np.inf, np.float32)
    shift[chosen], scale[chosen] = found.shift, 1.0 + found.growth
    trusted[chosen], residual[chosen] = sure, found.residual
    failing = np.zeros(n, np.bool_)
    textured = (tried[:inside].reshape(free.shape) & free).sum(axis=1) >= LEAST_POINTS
    failing[chosen] = textured & ~sure
    attempts, failures = int(tried[inside:].sum()), int((tried & ~good)[inside:].sum())
    return _Flow(
        shift,
        scale,
        trusted,
        failing,
        residual,
        camera if camera_trusted else np.eye(2, 3, dtype=np.float32),
        camera_trusted,
        outside=1.0 - going / measured if measured >= CAMERA_POINTS else 0.0,
        failed=failures / attempts if attempts >= CAMERA_POINTS else 1.0,
        points=len(starts),
    )


def _usable(seen: FloatArray, most: int) -> npt.NDArray[np.intp]:
    """Boxes large enough to have points; if too many, the largest: there flow is at its best."""
    sides = seen[:, 2:] - seen[:, :2]
    usable = np.flatnonzero((sides >= LEAST_SIDE_PX).all(axis=1))
    if len(usable) > most:
        order = np.argsort(-sides[usable].prod(axis=1), kind="stable")
        usable = np.sort(usable[order[:most]])
    return usable


def _of_camera(camera: FloatArray, boxes: FloatArray) -> tuple[FloatArray, np.float32]:
    """How the camera moves the centres of boxes, (n, 2), and how it scales."""
    centres = (boxes[:, :2] + boxes[:, 2:]) * np.float32(0.5)
    matrix = camera[:, :2] - np.eye(2, dtype=np.float32)
    moved: FloatArray = (centres @ matrix.T + camera[:, 2]).astype(np.float32)
    return moved, np.float32(math.hypot(camera[0, 0], camera[1, 0]))


def _carried(
    boxes: FloatArray, shift: FloatArray, scale: FloatArray, size: tuple[int, int]
) -> FloatArray:
    """Boxes moved and scaled. What is cut off at the edge of the picture stays cut off there.

    A box that touches the edge ends there although its object goes on: while that comes in or
    leaves, the side at the edge stays and the other moves. On the samples that is worth 2
    points of IoU, over all boxes that are trusted.
    """
    centres = (boxes[:, :2] + boxes[:, 2:]) * np.float32(0.5) + shift
    half = (boxes[:, 2:] - boxes[:, :2]) * np.float32(0.5) * scale[:, None]
    moved = np.concatenate((centres - half, centres + half), axis=1)
    low = boxes[:, :2] <= EDGE_PX
    high = boxes[:, 2:] >= np.array(size, np.float32) - np.float32(EDGE_PX)
    kept = np.concatenate((low & ~high, high & ~low), axis=1)
    # Away from the edge only as long as something is left.
    carried: FloatArray = np.where(kept, boxes, moved)
    gone = np.tile(carried[:, 2:] <= carried[:, :2], 2)
    return np.clip(np.where(gone, moved, carried), -_BEYOND_PX, _BEYOND_PX)


def _units(shown: tuple[int, int], grey: ByteArray) -> FloatArray:
    """Pixels of the picture as shown to one of the grey picture, x and y."""
    return np.array([shown[0] / grey.shape[1], shown[1] / grey.shape[0]], np.float32)


def _same_view(regions: Regions, shown: tuple[int, int]) -> bool:
    """Whether the regions belong to a picture of the same shape."""
    if regions.width <= 0 or regions.height <= 0:
        return False
    return abs(regions.width * shown[1] / (regions.height * shown[0]) - 1.0) <= SAME_VIEW


def _rows(ids: IntArray, wanted: IntArray) -> npt.NDArray[np.intp]:
    """Where each of the wanted ids is among the ids; all are."""
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids, wanted, sorter=order)]


def _thumb(grey: ByteArray) -> FloatArray:
    """The picture 20 to 40 pixels wide, less its mean brightness; float32 (h, w)."""
    small: FloatArray = shrink(grey, 40).astype(np.float32)
    small -= small.mean()
    return small


def _difference(first: FloatArray, second: FloatArray) -> float:
    """How much two pictures differ throughout: 0 not at all, 1 as much as unrelated ones.

    By their thumbnails: shaking, noise and what moves in the scene hardly change those.
    """
    contrast = float((first * first).mean() + (second * second).mean())
    return float(((first - second) ** 2).mean()) / max(2.0 * LEAST_CONTRAST**2, contrast)


def _changed(before: FloatArray, now: FloatArray) -> float:
    """Share of the thumbnail's places that changed by themselves, more than noise does."""
    apart = now - before
    apart -= np.median(apart)
    apart = np.abs(apart)
    level = max(CHANGED_LEVELS, CHANGED_TIMES * float(np.median(apart)))
    return float((apart > level).mean())
