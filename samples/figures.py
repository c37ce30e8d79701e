"""Bodies of persons, bicycles and cars as parts (see draw.py) in world metres.

Every body has a look (colours, sizes), drawn once from a random generator, and a pose:
place, heading, and how far it has moved, which sets the swing of limbs and the turn of
wheels. Local axes: forward, right, up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from draw import Blob, Camera, Colour, Floats, Part, Stroke, far_to_near, shade

SKIN: tuple[Colour, ...] = (
    (165, 190, 235),
    (140, 170, 220),
    (105, 140, 195),
    (70, 100, 150),
    (45, 65, 105),
)
HAIR: tuple[Colour, ...] = (
    (25, 25, 30),
    (30, 45, 70),
    (50, 90, 140),
    (110, 170, 205),
    (150, 150, 155),
    (35, 50, 120),
)
CLOTH: tuple[Colour, ...] = (
    (40, 40, 45),
    (60, 50, 45),
    (120, 70, 40),
    (170, 90, 40),
    (60, 60, 190),
    (40, 40, 130),
    (60, 140, 60),
    (50, 90, 50),
    (225, 225, 225),
    (180, 180, 175),
    (120, 120, 125),
    (40, 180, 230),
    (60, 120, 230),
    (170, 90, 160),
    (190, 150, 220),
    (150, 190, 120),
    (80, 110, 150),
    (130, 160, 190),
)
PAINT: tuple[Colour, ...] = (
    (235, 235, 235),
    (200, 200, 198),
    (140, 140, 138),
    (85, 85, 88),
    (38, 38, 42),
    (40, 40, 180),
    (30, 30, 110),
    (150, 80, 35),
    (190, 140, 70),
    (70, 110, 50),
    (60, 190, 225),
    (120, 165, 190),
    (50, 100, 200),
    (110, 120, 60),
)
GLASS: Colour = (72, 62, 52)
TYRE: Colour = (34, 32, 32)


@dataclass(frozen=True)
class Pose:
    """Where a body is: ground point (metres), heading (radians from X towards Z).

    ``travel`` is the path length so far in metres, ``speed`` in metres per second.
    """

    x: float
    z: float
    heading: float
    travel: float
    speed: float

    def place(self, local: Sequence[Sequence[float]] | Floats) -> Floats:
        """Local points (n, 3) forward, right, up -> world points (n, 3)."""
        table = np.asarray(local, dtype=np.float64).reshape(-1, 3)
        sin, cos = math.sin(self.heading), math.cos(self.heading)
        world = np.empty_like(table)
        world[:, 0] = self.x + table[:, 0] * cos + table[:, 1] * sin
        world[:, 1] = table[:, 2]
        world[:, 2] = self.z + table[:, 0] * sin - table[:, 1] * cos
        return world


def pick(rng: np.random.Generator, colours: Sequence[Colour]) -> Colour:
    """One colour of the list, slightly changed."""
    base = colours[int(rng.integers(len(colours)))]
    factor = rng.uniform(0.82, 1.18)
    b, g, r = (float(np.clip(c * factor * rng.uniform(0.94, 1.06), 5, 250)) for c in base)
    return (b, g, r)


@dataclass(frozen=True)
class PersonLook:
    """Sizes in metres and colours of a person."""

    height: float
    build: float
    skin: Colour
    hair: Colour
    top: Colour
    legs: Colour
    shoes: Colour
    long_hair: bool
    skirt: bool
    sleeves: bool
    bag: Colour | None
    hat: Colour | None
    swing: float

    @staticmethod
    def draw(rng: np.random.Generator) -> PersonLook:
        """A look at random; one in eight is a child."""
        child = rng.random() < 0.12
        return PersonLook(
            height=rng.uniform(1.15, 1.4) if child else rng.uniform(1.55, 1.92),
            build=rng.uniform(0.85, 1.2),
            skin=pick(rng, SKIN),
            hair=pick(rng, HAIR),
            top=pick(rng, CLOTH),
            legs=pick(rng, CLOTH),
            shoes=pick(rng, ((30, 30, 32), (220, 220, 220), (50, 70, 110))),
            long_hair=bool(rng.random() < 0.4),
            skirt=bool(rng.random() < 0.22),
            sleeves=bool(rng.random() < 0.65),
            bag=pick(rng, CLOTH) if rng.random() < 0.35 else None,
            hat=pick(rng, CLOTH) if rng.random() < 0.2 else None,
            swing=rng.uniform(0.85, 1.15),
        )


def _limb(
    pose: Pose, joints: Sequence[Sequence[float]], radii: Sequence[float], colour: Colour
) -> Blob:
    return Blob(pose.place(joints), np.array(radii), colour)


def _bend(
    start: Sequence[float], end: Sequence[float], first: float, second: float, side: float
) -> list[float]:
    """Middle joint of a two-bone limb in the forward/up plane; ``side`` +1 bends forward."""
    df, du = end[0] - start[0], end[2] - start[2]
    reach = min(math.hypot(df, du), (first + second) * 0.999)
    along = (first**2 - second**2 + reach**2) / (2 * max(reach, 1e-6))
    off = math.sqrt(max(first**2 - along**2, 0.0))
    norm = max(math.hypot(df, du), 1e-6)
    uf, uu = df / norm, du / norm
    return [
        start[0] + uf * along - uu * off * side,
        (start[1] + end[1]) / 2,
        start[2] + uu * along + uf * off * side,
    ]


def _head(look: PersonLook, pose: Pose, forward: float, up: float) -> list[Part]:
    size = 0.068 * look.height if look.height > 1.45 else 0.085 * look.height
    parts: list[Part] = [
        _limb(pose, [[forward - 0.01, 0, up - size * 1.6]], [size * 0.6], shade(look.skin, 0.8)),
        _limb(
            pose,
            [[forward + 0.02, 0, up], [forward + 0.015, 0, up - size * 0.5]],
            [size, size * 0.8],
            look.skin,
        ),
    ]
    fall = size * 2.0 if look.long_hair else size * 0.2
    parts.append(
        _limb(
            pose,
            [[forward - size * 0.35, 0, up + size * 0.3], [forward - size * 0.5, 0, up - fall]],
            [size * 1.02, size * 0.7],
            look.hair,
        )
    )
    if look.hat is not None:
        parts.append(
            _limb(
                pose,
                [[forward, 0, up + size * 0.75], [forward + size, 0, up + size * 0.5]],
                [size * 0.85, size * 0.25],
                look.hat,
            )
        )
    return parts


def _trunk(look: PersonLook, pose: Pose, hips: Sequence[float], chest: Sequence[float]) -> Blob:
    h, b = look.height, look.build
    points = [
        [chest[0], -0.095 * h * b, chest[2]],
        [chest[0], 0.095 * h * b, chest[2]],
        [hips[0], -0.055 * h * b, hips[2]],
        [hips[0], 0.055 * h * b, hips[2]],
    ]
    thick = 0.05 * h * b
    return _limb(pose, points, [thick, thick, thick * 1.15, thick * 1.15], look.top)


def _arm(look: PersonLook, pose: Pose, joints: Sequence[Sequence[float]]) -> list[Part]:
    h, b = look.height, look.build
    lower = look.top if look.sleeves else look.skin
    return [
        _limb(pose, joints[:2], [0.03 * h * b, 0.024 * h * b], shade(look.top, 0.92)),
        _limb(pose, joints[1:], [0.024 * h * b, 0.018 * h * b], shade(lower, 0.92)),
        _limb(pose, [joints[2]], [0.024 * h], look.skin),
    ]


def _leg(look: PersonLook, pose: Pose, joints: Sequence[Sequence[float]]) -> list[Part]:
    h, b = look.height, look.build
    bare = look.skin if look.skirt else look.legs
    ankle = joints[2]
    return [
        _limb(pose, joints[:2], [0.052 * h * b, 0.036 * h * b], bare),
        _limb(pose, joints[1:], [0.036 * h * b, 0.024 * h * b], shade(bare, 0.95)),
        _limb(
            pose,
            [
                [ankle[0] - 0.02, ankle[1], ankle[2] - 0.03],
                [ankle[0] + 0.14 * h / 1.75, ankle[1], ankle[2] - 0.045],
            ],
            [0.035, 0.03],
            look.shoes,
        ),
    ]


def _stride(look: PersonLook, phase: float, swing: float) -> list[list[list[float]]]:
    """Hip, knee and ankle of both legs (left first), the lower foot on the ground."""
    h = look.height
    legs = []
    for side in (-1.0, 1.0):
        turn = phase + (0.0 if side < 0 else math.pi)
        angle, lift = swing * math.sin(turn), max(0.0, math.cos(turn))
        low = angle - swing * (0.2 + 1.04 * lift)
        hip = [0.0, side * 0.052 * h, 0.0]
        knee = [0.245 * h * math.sin(angle), hip[1], -0.245 * h * math.cos(angle)]
        ankle = [knee[0] + 0.235 * h * math.sin(low), hip[1], knee[2] - 0.235 * h * math.cos(low)]
        legs.append([hip, knee, ankle])
    rise = 0.04 * h - min(leg[2][2] for leg in legs)
    return [[[a, b, c + rise] for a, b, c in leg] for leg in legs]


def walker(look: PersonLook, pose: Pose, camera: Camera) -> list[Part]:
    """Parts of a standing or walking person, far to near."""
    h = look.height
    phase = pose.travel / (0.43 * h) * math.pi
    swing = 0.5 * look.swing * min(1.0, pose.speed / 0.9)
    legs = _stride(look, phase, swing)
    up = legs[0][0][2] + 0.01 * h
    hips, chest = [0.0, 0.0, up], [0.035 * swing, 0.0, up + 0.255 * h]
    limbs: list[Part] = [part for leg in legs for part in _leg(look, pose, leg)]
    parts: list[Part] = [_trunk(look, pose, hips, chest)]
    for side in (-1.0, 1.0):
        arm = -0.95 * swing * math.sin(phase + (0.0 if side < 0 else math.pi))
        shoulder = [chest[0], side * 0.118 * h * look.build, chest[2]]
        elbow = [
            shoulder[0] + 0.165 * h * math.sin(arm),
            shoulder[1] + side * 0.02 * h,
            shoulder[2] - 0.165 * h * math.cos(arm),
        ]
        fore = arm + 0.25 + 0.4 * swing
        hand = [
            elbow[0] + 0.15 * h * math.sin(fore),
            elbow[1],
            elbow[2] - 0.15 * h * math.cos(fore),
        ]
        parts += _arm(look, pose, [shoulder, elbow, hand])
    if look.bag is not None:
        parts.append(
            _limb(
                pose,
                [[-0.1 * h, 0, up + 0.23 * h], [-0.1 * h, 0, up + 0.07 * h]],
                [0.06 * h, 0.07 * h],
                look.bag,
            )
        )
    parts += _head(look, pose, chest[0] + 0.01, up + 0.4 * h)
    order = far_to_near(parts + limbs, camera)
    if look.skirt:
        last = max(k for k, part in enumerate(order) if any(part is limb for limb in limbs))
        order.insert(last + 1, _skirt(look, pose, legs, up))
    return order


def _skirt(look: PersonLook, pose: Pose, legs: list[list[list[float]]], up: float) -> Blob:
    """A skirt from the hips to just above both knees."""
    h = look.height
    hem = [[0.85 * knee[0], 1.35 * knee[1], knee[2] + 0.05 * h] for _, knee, _ in legs]
    waist = [[0, -0.05 * h, up], [0, 0.05 * h, up]]
    return _limb(pose, waist + hem, [0.055 * h] * 2 + [0.045 * h] * 2, look.legs)


@dataclass(frozen=True)
class BicycleLook:
    """Colours and sizes of a bicycle; ``wheel`` is the radius in metres."""

    frame: Colour
    wheel: float
    basket: bool

    @staticmethod
    def draw(rng: np.random.Generator) -> BicycleLook:
        """A look at random."""
        return BicycleLook(pick(rng, PAINT), rng.uniform(0.31, 0.36), bool(rng.random() < 0.3))


_SEAT = (-0.22, 0.0, 0.92)
_GRIP = (0.34, 0.0, 1.02)
_CRANK = (-0.05, 0.0, 0.3)


def _wheel(pose: Pose, centre: float, radius: float, turn: float) -> list[Part]:
    angles = np.arange(20) * math.tau / 20
    ring = np.stack(
        [centre + radius * np.cos(angles), 0 * angles, radius + radius * np.sin(angles)]
    )
    parts: list[Part] = []
    for spoke in range(4):
        a = turn + spoke * math.pi / 4
        df, du = 0.93 * radius * math.cos(a), 0.93 * radius * math.sin(a)
        ends = [[centre - df, 0, radius - du], [centre + df, 0, radius + du]]
        parts.append(Stroke(pose.place(ends), 0.012, (175, 175, 172)))
    parts.append(Stroke(pose.place(ring.T), 0.055, TYRE, True))
    return parts


def bicycle(look: BicycleLook, pose: Pose) -> list[Part]:
    """Parts of a bicycle without its rider."""
    turn = -pose.travel / look.wheel
    rear, front = -0.52, 0.54
    parts = _wheel(pose, rear, look.wheel, turn) + _wheel(pose, front, look.wheel, turn)
    head, seat = [0.36, 0.0, 0.82], [-0.2, 0.0, 0.78]
    tubes: list[list[Sequence[float]]] = [
        [_CRANK, seat, head, _CRANK],
        [seat, [rear, 0, look.wheel], _CRANK],
        [head, [front, 0, look.wheel]],
        [head, [0.34, 0, 1.0]],
        [seat, [-0.22, 0, 0.88]],
    ]
    parts += [Stroke(pose.place(np.array(tube)), 0.05, look.frame) for tube in tubes]
    bar = [[0.30, -0.26, 1.0], [0.36, -0.18, 1.01], [0.36, 0.18, 1.01], [0.30, 0.26, 1.0]]
    parts.append(Stroke(pose.place(bar), 0.04, (60, 60, 60)))
    parts.append(
        Blob(pose.place([[-0.32, 0, 0.9], [-0.1, 0, 0.91]]), np.array([0.07, 0.03]), (40, 40, 40))
    )
    for side, pedal in _pedals(pose):
        parts.append(Stroke(pose.place([_CRANK, pedal]), 0.03, (70, 70, 72)))
        parts.append(Blob(pose.place([pedal]), np.array([0.04]), (50, 50, 50 + side)))
    if look.basket:
        parts.append(
            Blob(
                pose.place(
                    [[0.52, -0.13, 0.95], [0.52, 0.13, 0.95], [0.5, -0.1, 0.8], [0.5, 0.1, 0.8]]
                ),
                np.array([0.05] * 4),
                (70, 100, 140),
            )
        )
    return parts


def _pedals(pose: Pose) -> list[tuple[float, list[float]]]:
    angle = -pose.travel / 0.95
    return [
        (
            side,
            [
                _CRANK[0] + 0.165 * side * math.cos(angle),
                side * 0.11,
                _CRANK[2] + 0.165 * side * math.sin(angle),
            ],
        )
        for side in (-1.0, 1.0)
    ]


def rider(look: PersonLook, pose: Pose, camera: Camera) -> tuple[list[Part], list[Part]]:
    """Parts of a rider: those behind the bicycle and those before it, each far to near."""
    h = look.height
    hips = [_SEAT[0], 0.0, _SEAT[2] + 0.05 * h]
    chest = [hips[0] + 0.13 * h, 0.0, hips[2] + 0.23 * h]
    right_is_near = math.sin(pose.heading + math.pi / 2) > 0
    behind: list[Part] = []
    before: list[Part] = [_trunk(look, pose, hips, chest)]
    for side, pedal in _pedals(pose):
        group = before if (side > 0) == right_is_near else behind
        hip = [hips[0], side * 0.05 * h, hips[2]]
        ankle = [pedal[0] - 0.05, pedal[1], pedal[2] + 0.08]
        group += _leg(look, pose, [hip, _bend(hip, ankle, 0.26 * h, 0.26 * h, 1.0), ankle])
        shoulder = [chest[0], side * 0.11 * h, chest[2]]
        grip = [_GRIP[0] - 0.02, side * 0.22, _GRIP[2] + 0.02]
        group += _arm(look, pose, [shoulder, _bend(shoulder, grip, 0.18 * h, 0.18 * h, -1.0), grip])
    if look.bag is not None:
        before.append(
            _limb(
                pose,
                [
                    [chest[0] - 0.12 * h, 0, chest[2] - 0.02 * h],
                    [hips[0] - 0.02 * h, 0, hips[2] + 0.08 * h],
                ],
                [0.055 * h, 0.06 * h],
                look.bag,
            )
        )
    before += _head(look, pose, chest[0] + 0.04 * h, chest[2] + 0.145 * h)
    return far_to_near(behind, camera), far_to_near(before, camera)
