"""What stands still: ground, buildings, sky, trees and other things that hide objects.

The street has its own ground axes: ``s`` along the street and ``d`` across it, away from
the camera; ``d = 0`` is the middle of the road (or of the square).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from draw import (
    Camera,
    Colour,
    Floats,
    Part,
    Picture,
    Plane,
    Sprite,
    paint_layers,
    shade,
    shadow_mask,
)
from figures import pick
from fixtures import GREENS, SIGNS, WALLS, any_fixture

S_RANGE, D_RANGE = 60.0, 30.0


@dataclass(frozen=True)
class Street:
    """Layout of the ground, in metres: a road (``road_half`` 0 means a square without a road).

    ``yaw`` (radians) turns the street around its middle, ``pivot`` metres from the camera.
    """

    yaw: float
    pivot: float
    road_half: float
    near_band: float
    far_band: float

    def to_world(self, s: float, d: float) -> tuple[float, float]:
        """Ground point (X, Z) of street point (s, d)."""
        sin, cos = math.sin(self.yaw), math.cos(self.yaw)
        return s * cos - d * sin, self.pivot + s * sin + d * cos

    def matrix(self) -> Floats:
        """Homography (3, 3) from (s, d, 1) to ground (X, Z, 1)."""
        sin, cos = math.sin(self.yaw), math.cos(self.yaw)
        return np.array([[cos, -sin, 0.0], [sin, cos, self.pivot], [0.0, 0.0, 1.0]])

    @property
    def far_edge(self) -> float:
        """``d`` of the building line."""
        return self.road_half + self.far_band


def _grain(rng: np.random.Generator, h: int, w: int, scales: Sequence[tuple[int, float]]) -> Plane:
    """Sum of noises (h, w): (size of a grain in pixels, strength in grey levels)."""
    total = np.zeros((h, w), np.float32)
    for size, strength in scales:
        shape = (max(2, h // size), max(2, w // size))
        noise = rng.standard_normal(shape, dtype=np.float32) * np.float32(strength)
        total += cv2.resize(noise, (w, h), interpolation=cv2.INTER_LINEAR)
    return total


class _Ground:
    """Texture of the ground seen from above, ``q`` pixels to the metre."""

    def __init__(self, street: Street, rng: np.random.Generator, q: int) -> None:
        self.street, self.rng, self.q = street, rng, q
        self.h, self.w = int(2 * D_RANGE * q), int(2 * S_RANGE * q)
        base = pick(rng, ((150, 155, 160), (135, 145, 160), (120, 125, 128), (140, 160, 175)))
        self.image: Plane = np.empty((self.h, self.w, 3), np.float32)
        self.image[:] = np.array(base, np.float32)

    def box(self, s0: float, s1: float, d0: float, d1: float) -> tuple[slice, slice]:
        q = self.q
        rows = slice(max(0, round((d0 + D_RANGE) * q)), max(0, round((d1 + D_RANGE) * q)))
        cols = slice(max(0, round((s0 + S_RANGE) * q)), max(0, round((s1 + S_RANGE) * q)))
        return rows, cols

    def fill(self, s0: float, s1: float, d0: float, d1: float, colour: Colour) -> None:
        self.image[self.box(s0, s1, d0, d1)] = np.array(colour, np.float32)

    def slabs(self) -> None:
        """Paving: slabs of slightly different shade with joints."""
        size = float(self.rng.choice([0.5, 0.8, 1.2, 2.0]))
        step = max(2, round(size * self.q))
        shape = (self.h // step + 1, self.w // step + 1)
        tint = self.rng.normal(0, 5, shape).astype(np.float32)
        whole = np.kron(tint, np.ones((step, step), np.float32))[: self.h, : self.w]
        self.image += whole[..., None]
        joint = max(1, self.q // 24)
        for k in range(joint):
            self.image[k::step] -= 16
            self.image[:, k::step] -= 16

    def road(self) -> None:
        """Asphalt, kerbs, lane marks, cycle strips and perhaps a zebra crossing."""
        half, rng = self.street.road_half, self.rng
        dark = rng.uniform(70, 105)
        self.fill(-S_RANGE, S_RANGE, -half, half, (dark, dark, dark))
        for edge in (-half - 0.15, half):
            self.fill(-S_RANGE, S_RANGE, edge, edge + 0.15, (180, 180, 180))
        for _ in range(6):
            s, d, tone = rng.uniform(-30, 30), rng.uniform(-half, half - 1), rng.uniform(-14, 14)
            area = self.box(s, s + rng.uniform(1, 5), d, d + rng.uniform(0.5, 1))
            self.image[area] += np.float32(tone)
        white = (215, 220, 220)
        for side in (-1.0, 1.0):
            line = side * (half - 1.15)
            self.fill(-S_RANGE, S_RANGE, line, line + 0.1, white)
        lanes = max(2, 2 * round((half - 1.15) / 3.2))
        for k in range(1, lanes):
            d = -(half - 1.15) + k * 2 * (half - 1.15) / lanes
            for s in np.arange(-S_RANGE, S_RANGE, 5.0):
                self.fill(s, s + 2.2, d - 0.06, d + 0.07, white)
        if rng.random() < 0.5:
            s = rng.uniform(-7, 7)
            for d in np.arange(-half + 0.3, half - 0.4, 1.0):
                self.fill(s, s + 3.0, d, d + 0.5, (225, 228, 228))

    def details(self) -> None:
        """Drains, lawns and stains."""
        rng, street = self.rng, self.street
        self.fill(-S_RANGE, S_RANGE, street.far_edge, D_RANGE, pick(rng, GREENS))
        for _ in range(8):
            s, d = rng.uniform(-25, 25), rng.uniform(-street.road_half - 4, street.far_edge)
            self.fill(s, s + 0.6, d, d + 0.6, (70, 75, 78))
        for _ in range(int(rng.integers(0, 4))):
            s = rng.uniform(-25, 20)
            d0 = rng.uniform(street.road_half + 0.5, max(street.far_edge, street.road_half + 0.6))
            self.fill(s, s + rng.uniform(2, 8), d0, street.far_edge, pick(rng, GREENS))
        self.image += _grain(rng, self.h, self.w, ((1, 7), (self.q // 3, 4), (self.q * 3, 6)))[
            ..., None
        ]


def _ground(street: Street, camera: Camera, rng: np.random.Generator, q: int) -> Plane:
    ground = _Ground(street, rng, q)
    ground.slabs()
    if street.road_half > 0:
        ground.road()
    ground.details()
    to_texture = np.array([[1 / q, 0, -S_RANGE], [0, 1 / q, -D_RANGE], [0, 0, 1.0]])
    matrix = camera.ground_matrix() @ street.matrix() @ to_texture
    image = np.clip(ground.image, 0, 255).astype(np.uint8)
    warped = cv2.warpPerspective(
        image,
        matrix,
        (camera.width, camera.height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    result: Plane = warped.astype(np.float32)
    return result


def _facade(rng: np.random.Generator, width: float, height: float, q: int) -> Picture:
    """Front of a building (h, w, 3), ``q`` pixels to the metre."""
    w, h = round(width * q), round(height * q)
    image = np.empty((h, w, 3), np.float32)
    wall = pick(rng, WALLS)
    image[:] = np.array(wall, np.float32)
    if rng.random() < 0.5:
        course = max(2, q // 6)
        image[::course] -= 9
    frame = shade(wall, rng.uniform(1.15, 1.4) if rng.random() < 0.7 else 0.6)
    storey, bay = rng.uniform(2.9, 3.6), rng.uniform(1.8, 3.2)
    ww, wh = bay * rng.uniform(0.4, 0.65), storey * rng.uniform(0.42, 0.62)
    floors, bays = int(height / storey), max(1, int(width / bay))
    margin = (width - bays * bay) / 2
    for floor in range(1, floors):
        for k in range(bays):
            left = margin + k * bay + (bay - ww) / 2
            up = floor * storey + 0.9
            _window(image, rng, (left, up, left + ww, up + wh), q, frame)
    _shop(image, rng, width, storey, q)
    image += _grain(rng, h, w, ((1, 4), (q, 4)))[..., None]
    return np.clip(image, 0, 255).astype(np.uint8)


def _fill(image: Plane, area: tuple[float, float, float, float], q: int, colour: Colour) -> None:
    """Fill (left, low, right, high) in metres, measured from the foot of the wall."""
    h = image.shape[0]
    left, low, right, high = (round(v * q) for v in area)
    image[max(0, h - high) : max(0, h - low), max(0, left) : right] = np.array(colour, np.float32)


def _window(
    image: Plane,
    rng: np.random.Generator,
    area: tuple[float, float, float, float],
    q: int,
    frame: Colour,
) -> None:
    left, low, right, high = area
    _fill(image, (left - 0.1, low - 0.15, right + 0.1, high + 0.1), q, frame)
    tone = rng.uniform(45, 110)
    glass: Colour = (tone * 1.15, tone, tone * 0.88)
    if rng.random() < 0.08:
        glass = (120, 190, 215)
    _fill(image, area, q, glass)
    if rng.random() < 0.35:
        _fill(
            image,
            (left, low + (high - low) * rng.uniform(0.4, 0.8), right, high),
            q,
            (185, 190, 195),
        )
    middle = (left + right) / 2
    _fill(image, (middle - 0.04, low, middle + 0.04, high), q, frame)


def _shop(image: Plane, rng: np.random.Generator, width: float, storey: float, q: int) -> None:
    door = rng.uniform(0.5, max(0.6, width - 1.8))
    if rng.random() < 0.65:
        tone = rng.uniform(40, 95)
        _fill(image, (0.4, 0.5, width - 0.4, storey - 0.7), q, (tone * 1.1, tone, tone * 0.9))
        for k in np.arange(0.4, width - 0.4, rng.uniform(1.2, 2.4)):
            _fill(image, (k, 0.4, k + 0.1, storey - 0.7), q, (60, 60, 62))
            _fill(image, (k + 0.3, 0.6, k + 0.7, rng.uniform(0.9, 1.7)), q, pick(rng, SIGNS))
        _fill(image, (0.2, storey - 0.7, width - 0.2, storey - 0.1), q, pick(rng, SIGNS))
        for k in np.arange(1.0, width * 0.6, 0.45):
            _fill(image, (k, storey - 0.52, k + 0.28, storey - 0.28), q, (220, 225, 225))
    wood = pick(rng, ((50, 60, 90), (60, 70, 60), (80, 60, 50)))
    _fill(image, (door, 0, door + 1.1, 2.2), q, wood)


def _hedge(rng: np.random.Generator, width: float, height: float, q: int) -> Picture:
    """A low wall with bushes (h, w, 3); black where nothing stands."""
    w, h = round(width * q), round(height * q)
    image = np.empty((h, w, 3), np.float32)
    image[:] = np.array(pick(rng, GREENS), np.float32)
    image += _grain(rng, h, w, ((max(1, q // 6), 16), (q, 12)))[..., None]
    _fill(image, (0, 0, width, 0.6), q, pick(rng, WALLS))
    return np.clip(image, 1, 255).astype(np.uint8)


def _wall(
    picture: Plane,
    camera: Camera,
    street: Street,
    s: float,
    d: float,
    image: Picture,
    size: tuple[float, float],
) -> None:
    """Put a front (texture) of ``size`` metres on the line ``d`` from ``s`` on, in place."""
    x0, z0 = street.to_world(s, d)
    x1, z1 = street.to_world(s + size[0], d)
    corners = np.array([[x0, size[1], z0], [x1, size[1], z1], [x1, 0, z1], [x0, 0, z0]])
    if min(z0, z1) < 1.5:
        return
    target, _ = camera.project(corners)
    if target[:, 0].max() < 0 or target[:, 0].min() > camera.width:
        return
    h, w = image.shape[:2]
    source = np.array([[0, 0], [w, 0], [w, h], [0, h]], np.float32)
    matrix = cv2.getPerspectiveTransform(source, target.astype(np.float32))
    layer = np.dstack([image, np.full((h, w), 255, np.uint8)])
    warped = cv2.warpPerspective(
        layer, matrix, (camera.width, camera.height), flags=cv2.INTER_LINEAR
    ).astype(np.float32)
    alpha = warped[:, :, 3:] / np.float32(255)
    picture *= 1 - alpha
    picture += warped[:, :, :3] * alpha


def _sky(picture: Plane, camera: Camera, rng: np.random.Generator) -> None:
    rows = int(np.clip(camera.horizon(), 0, camera.height))
    if rows <= 0:
        return
    low, high = pick(rng, ((215, 210, 200), (200, 200, 200))), pick(rng, ((220, 180, 140),))
    ramp = np.linspace(0, 1, rows, dtype=np.float32)[:, None, None]
    sky = np.array(high, np.float32) * (1 - ramp) + np.array(low, np.float32) * ramp
    picture[:rows] = sky + _grain(rng, rows, camera.width, ((40, 5),))[..., None]


@dataclass(frozen=True)
class Fixture:
    """A thing that stands still and may hide objects; ``depth`` orders it among them."""

    sprite: Sprite
    depth: float
    x: float
    z: float


@dataclass(frozen=True)
class Backdrop:
    """Picture (h, w, 3) float 0..255 without objects, the standing things, the sun."""

    picture: Plane
    fixtures: tuple[Fixture, ...]
    lean: tuple[float, float]
    shadow: float

    @property
    def sun_side(self) -> float:
        """-1..1: from which side the light comes."""
        return -float(np.sign(self.lean[0]))


def _spots(street: Street, rng: np.random.Generator, count: int) -> list[tuple[float, float]]:
    """Street points for standing things: mostly along the kerbs, a few in the foreground."""
    spots = []
    for _ in range(count):
        s = rng.uniform(-14, 16)
        if street.road_half == 0:
            d = rng.uniform(-street.near_band * 0.7, street.far_edge * 0.9)
        elif rng.random() < 0.55:
            d = -street.road_half - rng.uniform(0.3, 0.9)
        else:
            d = street.road_half + rng.uniform(0.3, 0.9)
        spots.append((s, d))
    return spots


def make_backdrop(
    street: Street, camera: Camera, rng: np.random.Generator, fixtures: int, detail: int
) -> Backdrop:
    """Paint all that stands still; ``detail`` is texture pixels to the metre."""
    picture = _ground(street, camera, rng, detail)
    _sky(picture, camera, rng)
    s = -S_RANGE + rng.uniform(0, 5)
    walls: list[tuple[float, Picture, tuple[float, float]]] = []
    while s < S_RANGE:
        width, tall = rng.uniform(6, 13), rng.uniform(7, 14)
        if rng.random() < 0.15:
            tall = rng.uniform(1.2, 3.0)
            walls.append((s, _hedge(rng, width, tall, 20), (width, tall)))
        else:
            walls.append((s, _facade(rng, width, tall, 20), (width, tall)))
        s += width
    order = sorted(walls, key=lambda wall: -street.to_world(wall[0], street.far_edge)[1])
    for start, image, size in order:
        _wall(picture, camera, street, start, street.far_edge, image, size)
    angle, length = rng.uniform(0, math.tau), rng.uniform(0.2, 0.9)
    lean = (length * math.cos(angle), length * math.sin(angle) * 0.6)
    shadow = float(rng.uniform(0.2, 0.5))
    standing = _stand(street, camera, rng, fixtures)
    mask = shadow_mask([parts for parts, _, _ in standing], camera, lean)
    picture *= 1 - np.float32(shadow) * mask[..., None]
    side = -float(np.sign(lean[0]))
    made: list[Fixture] = []
    for parts, x, z in sorted(standing, key=lambda item: -item[2]):
        sprites = paint_layers([parts], camera, side)
        if sprites:
            depth = z * math.cos(camera.pitch) + camera.height_m * math.sin(camera.pitch)
            made.append(Fixture(sprites[0], depth, x, z))
    return Backdrop(np.clip(picture, 0, 255), tuple(made), lean, shadow)


def _stand(
    street: Street, camera: Camera, rng: np.random.Generator, count: int
) -> list[tuple[list[Part], float, float]]:
    standing: list[tuple[list[Part], float, float]] = []
    for s, d in _spots(street, rng, count):
        x, z = street.to_world(s, d)
        if z < 4.0:
            continue
        parts = any_fixture(rng, x, z, camera)
        standing.append((parts, x, z))
    return standing
