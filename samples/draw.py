"""Camera model and painting of solid parts.

World axes, in metres: X to the right, Y up, Z away from the camera along the ground;
the camera stands above the origin. Colours are BGR triples of 0..255. Picture
coordinates are continuous: pixel ``i`` covers ``[i, i + 1)``.

An object is a list of parts (:class:`Blob`, :class:`Face`, :class:`Stroke`). The parts are
painted, far to near as listed, on a small canvas at a multiple of the picture's scale; its
reduction gives soft edges, the coverage of every pixel and a box tight to a fraction of a
pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Picture = npt.NDArray[np.uint8]
Plane = npt.NDArray[np.float32]
Colour = tuple[float, float, float]

_SHIFT = 4
_UNIT = 1 << _SHIFT
_CIRCLE = np.stack(
    [np.cos(np.arange(14) * math.tau / 14), np.sin(np.arange(14) * math.tau / 14)], axis=1
)


@dataclass(frozen=True)
class Camera:
    """Pinhole camera ``height_m`` above the ground, tilted down by ``pitch`` radians."""

    width: int
    height: int
    focal: float
    height_m: float
    pitch: float

    def project(self, points: Floats) -> tuple[Floats, Floats]:
        """World points (n, 3) -> picture points (n, 2) and depths (n,) in metres."""
        sin, cos = math.sin(self.pitch), math.cos(self.pitch)
        up = points[:, 1] - self.height_m
        depth = np.maximum(points[:, 2] * cos - up * sin, 0.3)
        rise = up * cos + points[:, 2] * sin
        scale = self.focal / depth
        u = self.width / 2 + points[:, 0] * scale
        v = self.height / 2 - rise * scale
        return np.stack([u, v], axis=1), depth

    def ground_matrix(self) -> Floats:
        """Homography (3, 3) from ground points (X, Z, 1) to picture points."""
        sin, cos = math.sin(self.pitch), math.cos(self.pitch)
        f, h, cx, cy = self.focal, self.height_m, self.width / 2, self.height / 2
        return np.array(
            [
                [f, cx * cos, cx * h * sin],
                [0.0, cy * cos - f * sin, cy * h * sin + f * h * cos],
                [0.0, cos, h * sin],
            ]
        )

    def horizon(self) -> float:
        """Row of the horizon, in pixels (may lie outside the picture)."""
        return self.height / 2 - self.focal * math.tan(self.pitch)


@dataclass(frozen=True)
class Blob:
    """Convex hull of spheres: centres (n, 3), radii (n,) in metres."""

    points: Floats
    radii: Floats
    colour: Colour
    gloss: float = 0.22


@dataclass(frozen=True)
class Face:
    """Flat polygon with corners (n, 3)."""

    points: Floats
    colour: Colour


@dataclass(frozen=True)
class Stroke:
    """Bent rod through the points (n, 3), ``width`` metres thick."""

    points: Floats
    width: float
    colour: Colour
    closed: bool = False


Part = Blob | Face | Stroke


@dataclass(frozen=True)
class Sprite:
    """Painted object: premultiplied colour (h, w, 3) 0..255 and coverage (h, w) 0..1.

    ``x0, y0`` is the canvas corner in the picture (may be negative); ``box`` is
    ``(left, top, right, bottom)`` of the painted pixels, not yet clipped to the picture.
    """

    x0: int
    y0: int
    colour: Plane
    alpha: Plane
    box: tuple[float, float, float, float]


def shade(colour: Colour, factor: float) -> Colour:
    """Colour made lighter or darker, clipped to 0..255."""
    b, g, r = (min(255.0, max(0.0, channel * factor)) for channel in colour)
    return (b, g, r)


def centre_depth(part: Part, camera: Camera) -> float:
    """Depth of the middle of a part, in metres."""
    middle = part.points.mean(axis=0)
    return float(
        middle[2] * math.cos(camera.pitch) - (middle[1] - camera.height_m) * math.sin(camera.pitch)
    )


def far_to_near(parts: Sequence[Part], camera: Camera) -> list[Part]:
    """Parts in painter's order by the depth of their middles."""
    return sorted(parts, key=lambda part: -centre_depth(part, camera))


def _hull(points: Floats, radii: Floats) -> Floats:
    """Convex outline (m, 2) around circles at (n, 2)."""
    rims = (points[:, None, :] + radii[:, None, None] * _CIRCLE[None]).reshape(-1, 2)
    outline: Floats = cv2.convexHull(rims.astype(np.float32))[:, 0].astype(np.float64)
    return outline


def _fixed(points: Floats) -> npt.NDArray[np.int32]:
    """Picture points to OpenCV's fixed-point coordinates."""
    return np.round((points - 0.5) * _UNIT).astype(np.int32)


class _Flat:
    """A part already projected: points (n, 2) and radii in picture pixels."""

    def __init__(self, part: Part, camera: Camera) -> None:
        self.part = part
        self.points, depth = camera.project(part.points)
        scale = camera.focal / depth
        if isinstance(part, Blob):
            self.radii = part.radii * scale
        elif isinstance(part, Stroke):
            self.radii = np.full(len(depth), part.width / 2 * float(scale.mean()))
        else:
            self.radii = np.zeros(len(depth))

    def bounds(self) -> tuple[float, float, float, float]:
        low = (self.points - self.radii[:, None]).min(axis=0)
        high = (self.points + self.radii[:, None]).max(axis=0)
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])

    def paint(self, canvas: Picture, corner: Floats, scale: int, sun_side: float) -> None:
        """Paint on a BGRA canvas whose pixel (0, 0) lies at ``corner`` of the picture."""
        points = (self.points - corner) * scale
        colour = self.part.colour
        if isinstance(self.part, Face):
            cv2.fillPoly(canvas, [_fixed(points)], (*colour, 255.0), cv2.LINE_8, _SHIFT)
        elif isinstance(self.part, Stroke):
            thick = max(1, round(2 * float(self.radii[0]) * scale))
            cv2.polylines(
                canvas,
                [_fixed(points)],
                self.part.closed,
                (*colour, 255.0),
                thick,
                cv2.LINE_8,
                _SHIFT,
            )
        else:
            self._paint_blob(canvas, points, scale, sun_side)

    def _paint_blob(self, canvas: Picture, points: Floats, scale: int, sun_side: float) -> None:
        assert isinstance(self.part, Blob)
        radii = np.maximum(self.radii * scale, 0.6)
        colour, gloss = self.part.colour, self.part.gloss
        dark = (*shade(colour, 1.0 - gloss), 255.0)
        cv2.fillConvexPoly(canvas, _fixed(_hull(points, radii)), dark, cv2.LINE_8, _SHIFT)
        if gloss > 0 and float(radii.max()) > 1.5:
            shift = np.stack([radii * 0.28 * sun_side, -radii * 0.2], axis=1)
            light = (*colour, 255.0)
            inner = _hull(points + shift, radii * 0.6)
            cv2.fillConvexPoly(canvas, _fixed(inner), light, cv2.LINE_8, _SHIFT)


def _join(bounds: Sequence[tuple[float, float, float, float]]) -> Floats:
    table = np.array(bounds)
    return np.concatenate([table[:, :2].min(axis=0), table[:, 2:].max(axis=0)])


def paint_layers(
    layers: Sequence[Sequence[Part]], camera: Camera, sun_side: float = 1.0
) -> list[Sprite] | None:
    """Paint the layers of one object, each to its own sprite on one common canvas.

    The box of every returned sprite is the box of all layers together. None when the object
    lies outside the picture or is absurdly near.
    """
    flat = [[_Flat(part, camera) for part in layer] for layer in layers]
    extent = _join([item.bounds() for layer in flat for item in layer])
    if extent[2] <= 0 or extent[3] <= 0:
        return None
    if extent[0] >= camera.width or extent[1] >= camera.height:
        return None
    x0, y0 = math.floor(extent[0]) - 1, math.floor(extent[1]) - 1
    width, height = math.ceil(extent[2]) + 2 - x0, math.ceil(extent[3]) + 2 - y0
    if max(width, height) > 2.5 * max(camera.width, camera.height):
        return None
    scale = 4 if max(width, height) < 60 else 3 if max(width, height) < 120 else 2
    corner = np.array([x0, y0], dtype=np.float64)
    canvases: list[Picture] = []
    for layer in flat:
        canvas: Picture = np.zeros((height * scale, width * scale, 4), np.uint8)
        for item in layer:
            item.paint(canvas, corner, scale, sun_side)
        canvases.append(canvas)
    drawn = np.maximum.reduce([canvas[:, :, 3] for canvas in canvases])
    columns, rows = np.flatnonzero(drawn.any(axis=0)), np.flatnonzero(drawn.any(axis=1))
    if not len(columns):
        return None
    box = (
        x0 + float(columns[0]) / scale,
        y0 + float(rows[0]) / scale,
        x0 + float(columns[-1] + 1) / scale,
        y0 + float(rows[-1] + 1) / scale,
    )
    return [_reduce(canvas, x0, y0, scale, box) for canvas in canvases]


def _reduce(
    canvas: Picture, x0: int, y0: int, scale: int, box: tuple[float, float, float, float]
) -> Sprite:
    size = (canvas.shape[1] // scale, canvas.shape[0] // scale)
    small = cv2.resize(canvas, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    return Sprite(x0, y0, small[:, :, :3], small[:, :, 3] / np.float32(255), box)


def overlap(sprite: Sprite, width: int, height: int) -> tuple[slice, slice, slice, slice] | None:
    """Rows and columns of the picture and of the sprite where both meet; None if nowhere."""
    h, w = sprite.alpha.shape
    left, top = max(0, sprite.x0), max(0, sprite.y0)
    right, bottom = min(width, sprite.x0 + w), min(height, sprite.y0 + h)
    if left >= right or top >= bottom:
        return None
    return (
        slice(top, bottom),
        slice(left, right),
        slice(top - sprite.y0, bottom - sprite.y0),
        slice(left - sprite.x0, right - sprite.x0),
    )


def compose(picture: Plane, sprite: Sprite) -> None:
    """Lay the sprite over the picture (h, w, 3) in place."""
    area = overlap(sprite, picture.shape[1], picture.shape[0])
    if area is None:
        return
    rows, columns, from_rows, from_columns = area
    target = picture[rows, columns]
    target *= 1 - sprite.alpha[from_rows, from_columns, None]
    target += sprite.colour[from_rows, from_columns]


def _cast(part: Part, lean: tuple[float, float]) -> Part:
    """The part's shadow on the ground; ``lean`` is metres of shift (X, Z) per metre of height."""
    points = part.points.copy()
    points[:, 0] += points[:, 1] * lean[0]
    points[:, 2] += points[:, 1] * lean[1]
    points[:, 1] = 0.0
    if isinstance(part, Blob):
        return Blob(points, part.radii * 0.75, part.colour, 0.0)
    if isinstance(part, Stroke):
        return Stroke(points, part.width, part.colour, part.closed)
    return Face(points, part.colour)


def shadow_mask(
    objects: Sequence[Sequence[Part]], camera: Camera, lean: tuple[float, float]
) -> Plane:
    """Soft shadow (h, w) 0..1 that the objects cast on the ground."""
    half = np.zeros((camera.height // 2 * 2 // 2, camera.width // 2, 4), np.uint8)
    corner = np.zeros(2)
    for parts in objects:
        for part in parts:
            flat = _Flat(_cast(part, lean), camera)
            if isinstance(flat.part, Stroke):
                flat.radii = np.maximum(flat.radii, 1.0)
            flat.points, flat.radii = flat.points / 2, flat.radii / 2
            low_x, low_y, high_x, high_y = flat.bounds()
            outside = high_x < 0 or high_y < 0 or low_x > half.shape[1] or low_y > half.shape[0]
            if outside or high_x - low_x > 3 * half.shape[1]:
                continue
            flat.paint(half, corner, 1, 0.0)
    coverage = half[:, :, 3]
    sigma = max(0.8, camera.width / 800)
    soft = cv2.GaussianBlur(coverage, (0, 0), sigma)
    full = cv2.resize(soft, (camera.width, camera.height), interpolation=cv2.INTER_LINEAR)
    mask: Plane = full.astype(np.float32) / np.float32(255)
    return mask
