"""Bodies of cars as parts (see draw.py): an extruded lower body, a narrower cabin, wheels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from draw import Blob, Camera, Colour, Face, Floats, Part, Stroke, shade
from figures import GLASS, PAINT, TYRE, Pose, pick

LIGHT = np.array([-0.35, 0.85, -0.4])


@dataclass(frozen=True)
class Shape:
    """A kind of car, in metres; cabin positions run forward from the middle of the car."""

    length: float
    width: float
    belt: float
    roof: float
    cabin_base: tuple[float, float]
    cabin_top: tuple[float, float]
    panes: tuple[tuple[float, float], ...]


_TWO = ((0.05, 0.5), (0.54, 0.95))
SHAPES: dict[str, Shape] = {
    "sedan": Shape(4.6, 1.80, 0.90, 1.45, (-1.65, 0.95), (-0.95, 0.25), _TWO),
    "hatch": Shape(3.9, 1.72, 0.90, 1.50, (-1.90, 0.85), (-1.50, 0.20), _TWO),
    "suv": Shape(4.6, 1.88, 1.05, 1.75, (-2.20, 1.00), (-1.90, 0.40), _TWO),
    "estate": Shape(4.7, 1.80, 0.92, 1.48, (-2.25, 0.90), (-1.95, 0.25), _TWO),
    "van": Shape(5.1, 1.95, 1.15, 2.15, (-2.50, 1.75), (-2.45, 1.10), ((0.76, 0.97),)),
    "minibus": Shape(
        4.9,
        1.90,
        1.10,
        1.95,
        (-2.35, 1.60),
        (-2.20, 0.95),
        ((0.04, 0.33), (0.36, 0.65), (0.68, 0.96)),
    ),
    "pickup": Shape(5.2, 1.90, 1.02, 1.75, (-0.75, 1.15), (-0.60, 0.50), _TWO),
}


@dataclass(frozen=True)
class CarLook:
    """Shape, colours and wheel radius (metres) of a car."""

    shape: Shape
    size: float
    paint: Colour
    trim: Colour
    rim: Colour
    wheel: float
    taxi: bool

    @staticmethod
    def draw(rng: np.random.Generator) -> CarLook:
        """A look at random."""
        names = list(SHAPES)
        return CarLook(
            shape=SHAPES[names[int(rng.integers(len(names)))]],
            size=rng.uniform(0.94, 1.06),
            paint=pick(rng, PAINT),
            trim=pick(rng, ((45, 45, 45), (70, 70, 70))),
            rim=shade((190, 190, 192), rng.uniform(0.4, 1.1)),
            wheel=rng.uniform(0.31, 0.36),
            taxi=bool(rng.random() < 0.07),
        )

    @property
    def length(self) -> float:
        """Bumper to bumper, in metres."""
        return self.shape.length * self.size


class _Builder:
    """Collects the visible faces of one car, far to near."""

    def __init__(self, look: CarLook, pose: Pose, camera: Camera) -> None:
        self.look, self.pose = look, pose
        self.eye = np.array([0.0, camera.height_m, 0.0])
        self.parts: list[Part] = []

    def world(self, local: Sequence[Sequence[float]] | Floats) -> Floats:
        return self.pose.place(np.asarray(local, dtype=np.float64) * self.look.size)

    def face(
        self, local: Sequence[Sequence[float]], inside: Sequence[float], colour: Colour
    ) -> bool:
        """Add a face of a convex solid around ``inside`` when it looks at the camera."""
        points = self.world(local)
        normal = np.cross(points[1] - points[0], points[2] - points[1])
        norm = float(np.linalg.norm(normal))
        if norm < 1e-9:
            return False
        normal /= norm
        middle = points.mean(axis=0)
        if float(normal @ (middle - self.world([inside])[0])) < 0:
            normal = -normal
        if float(normal @ (self.eye - middle)) <= 0:
            return False
        bright = 0.72 + 0.33 * max(0.0, float(normal @ LIGHT))
        self.parts.append(Face(points, shade(colour, bright)))
        return True

    def flat(self, local: Sequence[Sequence[float]] | Floats, colour: Colour) -> None:
        """Add a face without a check of its side."""
        self.parts.append(Face(self.world(local), colour))

    def sees(self, local_normal: Sequence[float], local_point: Sequence[float]) -> bool:
        """Whether a plane of the car looks at the camera."""
        tip = self.world([[p + n for p, n in zip(local_point, local_normal, strict=True)]])[0]
        foot = self.world([local_point])[0]
        return float((tip - foot) @ (self.eye - foot)) > 0


def _profile(shape: Shape) -> list[tuple[float, float]]:
    """Corners (forward, up) of the lower body, around."""
    half, belt = shape.length / 2, shape.belt
    return [
        (-half, 0.30),
        (-half - 0.02, belt * 0.75),
        (-half + 0.08, belt),
        (shape.cabin_base[1], belt),
        (half - 0.18, belt - 0.14),
        (half, belt * 0.68),
        (half - 0.02, 0.26),
    ]


def _wheel_points(centre: float, radius: float, lateral: float) -> Floats:
    angles = np.arange(16) * math.tau / 16
    return np.stack(
        [centre + radius * np.cos(angles), np.full(16, lateral), radius + radius * np.sin(angles)],
        axis=1,
    )


def _axles(shape: Shape) -> tuple[float, float]:
    return (-shape.length * 0.31, shape.length * 0.32)


def _tyres(build: _Builder) -> None:
    look = build.look
    half = look.shape.width / 2
    for side in (-1.0, 1.0):
        for axle in _axles(look.shape):
            rims = np.concatenate(
                [
                    _wheel_points(axle, look.wheel, side * half),
                    _wheel_points(axle, look.wheel, side * (half - 0.2)),
                ]
            )
            build.parts.append(Blob(build.world(rims), np.full(len(rims), 0.01), TYRE, 0.0))


def _body(build: _Builder) -> None:
    look, shape = build.look, build.look.shape
    half = shape.width / 2
    profile = _profile(shape)
    inside = (0.0, 0.0, 0.6)
    for (a0, c0), (a1, c1) in zip(profile, profile[1:] + profile[:1], strict=True):
        ring = [[a0, -half, c0], [a1, -half, c1], [a1, half, c1], [a0, half, c0]]
        build.face(ring, inside, look.paint)
    _ends(build)
    for side in (-1.0, 1.0):
        if build.face([[a, side * half, c] for a, c in profile], inside, look.paint):
            _flank(build, side * (half + 0.005))


def _ends(build: _Builder) -> None:
    """Lamps, plates and grille on the front and the rear."""
    look, shape = build.look, build.look.shape
    half, belt, end = shape.width / 2, shape.belt, shape.length / 2

    def panel(a: float, left: float, right: float, low: float, high: float, c: Colour) -> None:
        build.flat([[a, left, low], [a, right, low], [a, right, high], [a, left, high]], c)

    if build.sees((1, 0, 0), (end, 0, 0.5)):
        a = end + 0.005
        panel(a, -half * 0.55, half * 0.55, 0.42, 0.58, (35, 35, 35))
        panel(a, -half, half, 0.26, 0.36, look.trim)
        panel(a, -0.26, 0.26, 0.36, 0.47, (215, 225, 225))
        for side in (-1.0, 1.0):
            inner, outer = side * half * 0.6, side * half * 0.97
            left, right = min(inner, outer), max(inner, outer)
            panel(a, left, right, belt * 0.52, belt * 0.68, (215, 235, 240))
    if build.sees((-1, 0, 0), (-end, 0, 0.5)):
        a = -end - 0.025
        panel(a, -half, half, 0.28, 0.40, look.trim)
        panel(a, -0.26, 0.26, 0.46, 0.58, (200, 215, 220))
        for side in (-1.0, 1.0):
            inner, outer = side * half * 0.68, side * half * 0.98
            left, right = min(inner, outer), max(inner, outer)
            panel(a, left, right, belt * 0.6, belt * 0.85, (35, 30, 175))


def _flank(build: _Builder, lateral: float) -> None:
    """Wheels, sill and door lines of a visible side."""
    look, shape = build.look, build.look.shape
    end = shape.length / 2
    build.flat(
        [[-end, lateral, 0.3], [end, lateral, 0.27], [end, lateral, 0.36], [-end, lateral, 0.4]],
        look.trim,
    )
    seam = shade(look.paint, 0.5)
    back, front = shape.cabin_base
    for a in (max(back, -end * 0.55), (back + front) / 2, front * 0.95):
        line = [[a, lateral, 0.36], [a, lateral, shape.belt]]
        build.parts.append(Stroke(build.world(line), 0.02, seam))
    for a in ((back + front) / 2 - 0.15, front * 0.95 - 0.95):
        line = [[a - 0.1, lateral, shape.belt - 0.14], [a + 0.08, lateral, shape.belt - 0.14]]
        build.parts.append(Stroke(build.world(line), 0.035, shade(look.paint, 0.65)))
    turn = -build.pose.travel / look.wheel
    for axle in _axles(shape):
        arch = _wheel_points(axle, look.wheel * 1.14, lateral)
        arch[:, 2] = np.maximum(arch[:, 2] - look.wheel * 0.14, 0.2)
        build.flat(arch, (24, 24, 24))
        build.flat(_wheel_points(axle, look.wheel, lateral), TYRE)
        hub = _wheel_points(axle, look.wheel * 0.66, lateral)
        hub[:, 2] += look.wheel * 0.34
        build.flat(hub, look.rim)
        for spoke in range(5):
            angle = turn + spoke * math.tau / 5
            tip = [
                axle + 0.6 * look.wheel * math.cos(angle),
                lateral,
                look.wheel + 0.6 * look.wheel * math.sin(angle),
            ]
            line = [[axle, lateral, look.wheel], tip]
            build.parts.append(Stroke(build.world(line), 0.05, shade(look.rim, 0.45)))


def _patch(corners: Floats) -> Callable[[float, float, float, float], Floats]:
    """Cutter of sub-quads (u0, u1, v0, v1 in 0..1) of a quad whose corners go round from below."""

    def at(u: float, v: float) -> Floats:
        low = corners[0] * (1 - u) + corners[1] * u
        high = corners[3] * (1 - u) + corners[2] * u
        point: Floats = low * (1 - v) + high * v
        return point

    def cut(u0: float, u1: float, v0: float, v1: float) -> Floats:
        return np.stack([at(u0, v0), at(u1, v0), at(u1, v1), at(u0, v1)])

    return cut


def _cabin(build: _Builder) -> None:
    look, shape = build.look, build.look.shape
    low_b, low_f = shape.cabin_base
    top_b, top_f = shape.cabin_top
    half, slim = shape.width / 2 - 0.02, shape.width / 2 - 0.14
    belt, roof = shape.belt - 0.01, shape.roof
    inside = ((low_b + low_f) / 2, 0.0, (belt + roof) / 2)
    build.face(
        [[top_b, -slim, roof], [top_f, -slim, roof], [top_f, slim, roof], [top_b, slim, roof]],
        inside,
        look.paint,
    )
    walls: list[tuple[list[list[float]], tuple[tuple[float, float], ...]]] = [
        (
            [[low_f, -half, belt], [low_f, half, belt], [top_f, slim, roof], [top_f, -slim, roof]],
            ((0.05, 0.95),),
        ),
        (
            [[low_b, -half, belt], [low_b, half, belt], [top_b, slim, roof], [top_b, -slim, roof]],
            ((0.08, 0.92),),
        ),
    ]
    for side in (-1.0, 1.0):
        walls.append(
            (
                [
                    [low_b, side * half, belt],
                    [low_f, side * half, belt],
                    [top_f, side * slim, roof],
                    [top_b, side * slim, roof],
                ],
                shape.panes,
            )
        )
    for corners, panes in walls:
        if not build.face(corners, inside, look.paint):
            continue
        cut = _patch(np.array(corners))
        for left, right in panes:
            build.flat(cut(left, right, 0.1, 0.88), GLASS)
            build.flat(cut(left + (right - left) * 0.55, right, 0.5, 0.88), shade(GLASS, 1.7))
    if look.taxi:
        sign = [[-0.35, -0.2, roof + 0.07], [-0.35, 0.2, roof + 0.07]]
        build.parts.append(Blob(build.world(sign), np.array([0.08, 0.08]), (60, 200, 235)))


def _mirrors(build: _Builder, near: bool) -> None:
    """The side mirror of the near or of the far side."""
    shape = build.look.shape
    for side in (-1.0, 1.0):
        spot = [shape.cabin_base[1] - 0.25, side * (shape.width / 2 + 0.07), shape.belt + 0.1]
        if build.sees((0, side, 0), spot) == near:
            build.parts.append(Blob(build.world([spot]), np.array([0.09]), build.look.paint))


def car(look: CarLook, pose: Pose, camera: Camera) -> list[Part]:
    """Parts of a car, far to near, with only the faces that the camera sees."""
    build = _Builder(look, pose, camera)
    _tyres(build)
    _body(build)
    _mirrors(build, False)
    _cabin(build)
    _mirrors(build, True)
    return build.parts


def car_shadow(look: CarLook, pose: Pose) -> list[Part]:
    """Plain hull of the car, for its shadow."""
    shape = look.shape
    half, end = shape.width / 2, shape.length / 2
    low = [[a, b, c] for a in (-end, end) for b in (-half, half) for c in (0.05, shape.belt)]
    high = [[a, b, shape.roof] for a in shape.cabin_top for b in (-half + 0.14, half - 0.14)]
    points = np.asarray(low + high, dtype=np.float64) * look.size
    world = pose.place(points)
    return [Blob(world, np.full(len(world), 0.03), (0.0, 0.0, 0.0), 0.0)]
