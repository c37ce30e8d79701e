"""Which detections of a camera count: its classes, its smallest box, its ignored areas. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import shapely
from shapely.geometry import MultiPolygon, Polygon
from shapely.ops import unary_union

from vidserve.frames import Detections

Ring = Sequence[tuple[float, float]]


class DetectionFilter:
    """Drops what a camera does not want to know. For the tracking loop.

    Args:
        classes: Class ids to keep; None: all.
        min_box_px: Boxes whose shorter side is below this are dropped.
        ignore: Polygons in shares of width and height; a box whose foot (the middle of its
            lower side) lies inside is dropped.
    """

    def __init__(
        self,
        classes: Collection[int] | None = None,
        min_box_px: float = 0.0,
        ignore: Sequence[Ring] = (),
    ) -> None:
        self._classes = None if classes is None else np.array(sorted(classes), np.int32)
        self._min_box_px = min_box_px
        self._area: Polygon | MultiPolygon | None = None
        if ignore:
            self._area = unary_union([Polygon(ring) for ring in ignore])
            shapely.prepare(self._area)

    def apply(self, detections: Detections, size: tuple[int, int]) -> Detections:
        """The detections that count, of a picture of ``size`` (width, height) pixels."""
        if not len(detections):
            return detections
        kept: npt.NDArray[np.bool_] = np.ones(len(detections), np.bool_)
        if self._classes is not None:
            kept &= np.isin(detections.classes, self._classes)
        boxes = detections.boxes
        if self._min_box_px > 0:
            kept &= (boxes[:, 2:] - boxes[:, :2]).min(axis=1) >= self._min_box_px
        if self._area is not None:
            foot_x = (boxes[:, 0] + boxes[:, 2]) / (2 * size[0])
            foot_y = boxes[:, 3] / size[1]
            kept &= ~shapely.intersects_xy(self._area, foot_x, foot_y)
        return detections if kept.all() else detections.pick(kept)
