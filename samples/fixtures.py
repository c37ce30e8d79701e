"""Things that stand in the street and hide objects: trees, planters, posts, benches."""

from __future__ import annotations

import math

import numpy as np
from draw import Blob, Camera, Colour, Face, Part, Stroke, far_to_near, shade
from figures import pick

WALLS: tuple[Colour, ...] = (
    (120, 140, 165),
    (150, 165, 180),
    (95, 110, 150),
    (170, 175, 175),
    (110, 120, 125),
    (140, 160, 190),
    (85, 100, 120),
    (165, 150, 140),
    (80, 90, 130),
)
SIGNS: tuple[Colour, ...] = (
    (60, 60, 170),
    (150, 90, 40),
    (60, 120, 60),
    (50, 50, 50),
    (60, 170, 220),
    (140, 70, 130),
)
GREENS: tuple[Colour, ...] = ((50, 105, 70), (40, 85, 60), (70, 125, 95), (45, 95, 95))


def tree(rng: np.random.Generator, x: float, z: float, camera: Camera) -> list[Part]:
    """A tree: trunk and clumps of leaves."""
    height, wide = rng.uniform(3.5, 6.0), rng.uniform(0.9, 1.6)
    green, bark = pick(rng, GREENS), pick(rng, ((50, 65, 85), (70, 80, 90)))
    trunk = Blob(np.array([[x, 0, z], [x, height - wide, z]]), np.array([0.17, 0.1]), bark)
    clumps: list[Part] = []
    for _ in range(16):
        angle, far, up = rng.uniform(0, math.tau), rng.uniform(0.1, wide), rng.uniform(-0.8, 0.8)
        spot = np.array(
            [[x + far * math.cos(angle), height + up * wide * 0.8, z + far * math.sin(angle)]]
        )
        tone = shade(green, rng.uniform(0.75, 1.25))
        clumps.append(Blob(spot, np.array([wide * rng.uniform(0.3, 0.5)]), tone, 0.3))
    return [trunk, *far_to_near(clumps, camera)]


def _box(
    x: float, z: float, wide: float, deep: float, low: float, high: float, c: Colour
) -> list[Part]:
    """An upright box: front and top."""
    a, b = x - wide / 2, x + wide / 2
    front = np.array([[a, low, z], [b, low, z], [b, high, z], [a, high, z]])
    top = np.array([[a, high, z], [b, high, z], [b, high, z + deep], [a, high, z + deep]])
    return [Face(top, shade(c, 1.2)), Face(front, c)]


def planter(rng: np.random.Generator, x: float, z: float) -> list[Part]:
    """A stone box with bushes."""
    wide, high = rng.uniform(0.9, 2.2), rng.uniform(0.45, 0.8)
    parts = _box(x, z, wide, 0.7, 0.0, high, pick(rng, WALLS))
    green = pick(rng, GREENS)
    for _ in range(12):
        spot = np.array(
            [
                [
                    x + rng.uniform(-0.45, 0.45) * wide,
                    high + rng.uniform(0.05, 0.3),
                    z + rng.uniform(0.1, 0.6),
                ]
            ]
        )
        parts.append(
            Blob(spot, np.array([rng.uniform(0.1, 0.22)]), shade(green, rng.uniform(0.7, 1.3)))
        )
    return parts


def post(rng: np.random.Generator, x: float, z: float) -> list[Part]:
    """A lamp post, a road sign or a bollard."""
    kind = rng.random()
    metal = pick(rng, ((70, 75, 75), (50, 60, 50), (120, 120, 120)))
    if kind < 0.4:
        return [
            Blob(np.array([[x, 0, z], [x, 5.5, z]]), np.array([0.09, 0.05]), metal),
            Blob(np.array([[x, 5.5, z], [x + 0.8, 5.6, z]]), np.array([0.06, 0.1]), metal),
        ]
    if kind < 0.7:
        angles = np.arange(16) * math.tau / 16
        disc = np.stack([x + 0.33 * np.cos(angles), 2.3 + 0.33 * np.sin(angles), 0 * angles + z], 1)
        return [
            Stroke(np.array([[x, 0, z], [x, 2.5, z]]), 0.08, metal),
            Face(disc, pick(rng, SIGNS)),
            Stroke(disc, 0.08, (210, 215, 215), True),
        ]
    return [
        Blob(np.array([[x, 0, z], [x, 0.85, z]]), np.array([0.09, 0.08]), metal),
        Stroke(
            np.array([[x - 0.06, 0.7, z - 0.09], [x + 0.06, 0.7, z - 0.09]]), 0.1, (200, 205, 210)
        ),
    ]


def bench(rng: np.random.Generator, x: float, z: float) -> list[Part]:
    """A bench, or a litter bin."""
    wood = pick(rng, ((60, 90, 130), (70, 80, 85)))
    if rng.random() < 0.4:
        bin_colour = pick(rng, ((60, 70, 60), (70, 70, 70), (120, 80, 40)))
        return [Blob(np.array([[x, 0.15, z], [x, 0.85, z]]), np.array([0.22, 0.25]), bin_colour)]
    parts: list[Part] = [
        Stroke(np.array([[x + k, 0, z], [x + k, 0.45, z]]), 0.08, (60, 60, 60)) for k in (-0.7, 0.7)
    ]
    for up, back in ((0.45, 0.0), (0.45, 0.18), (0.65, 0.4), (0.82, 0.42)):
        plank = np.array([[x - 0.85, up, z + back], [x + 0.85, up, z + back]])
        parts.append(Stroke(plank, 0.1, wood))
    return parts


def any_fixture(rng: np.random.Generator, x: float, z: float, camera: Camera) -> list[Part]:
    """One of them at random, at the ground point (x, z)."""
    kind = rng.random()
    if kind < 0.3:
        return tree(rng, x, z, camera)
    if kind < 0.55:
        return planter(rng, x, z)
    if kind < 0.85:
        return post(rng, x, z)
    return bench(rng, x, z)
