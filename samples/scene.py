"""A scene: layout, moving things and the painting of one picture with its exact truth.

Classes: person, bicycle, car (ids 0, 1, 2). A ridden bicycle gives two objects, as COCO has
it: a ``bicycle`` box for the machine and a ``person`` box for its rider.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from backdrop import Backdrop, Street, make_backdrop
from cars import car, car_shadow
from draw import Camera, Part, Picture, Plane, Sprite, compose, overlap, paint_layers, shadow_mask
from figures import Pose, bicycle, rider, walker
from motion import Actor, Crowd, make_actors

NAMES = ("person", "bicycle", "car")
PERSON, BICYCLE, CAR = 0, 1, 2


@dataclass(frozen=True)
class Layout:
    """All that a scene is made from, besides its seed. Angles in degrees."""

    width: int
    height: int
    fps: float
    field_of_view: float
    camera_height: float
    pitch: float
    street: Street
    crowd: Crowd
    fixtures: int = 7
    detail: int = 28
    noise: float = 2.0
    gain: float = 1.0
    drift: float = 0.09

    def camera(self) -> Camera:
        """The camera of this layout."""
        focal = self.width / 2 / math.tan(math.radians(self.field_of_view) / 2)
        return Camera(self.width, self.height, focal, self.camera_height, math.radians(self.pitch))


@dataclass(frozen=True)
class Truth:
    """One object in a picture.

    ``box`` is ``(x, y, w, h)`` in pixels: the box around the whole object, hidden parts included,
    then clipped to the picture. ``visibility`` is the share of the object's pixels (those beyond
    the edge of the picture included) that are seen.
    """

    ident: int
    label: int
    box: tuple[float, float, float, float]
    visibility: float


@dataclass(frozen=True)
class _Item:
    """One sprite of an object in the painter's list; ``owner`` 0 is a fixture."""

    depth: float
    owner: int
    sprite: Sprite


class Scene:
    """A street with its actors over ``frames`` pictures, ``step`` seconds apart."""

    def __init__(self, layout: Layout, seed: int, frames: int, step: float | None = None) -> None:
        self.layout, self.seed, self.frames = layout, seed, frames
        self.step = 1.0 / layout.fps if step is None else step
        rng = np.random.default_rng([seed, 1])
        self.camera = layout.camera()
        self.backdrop: Backdrop = make_backdrop(
            layout.street, self.camera, rng, layout.fixtures, layout.detail
        )
        solid = [(fixture.x, fixture.z) for fixture in self.backdrop.fixtures]
        self.actors: list[Actor] = make_actors(
            layout.street,
            self.camera,
            layout.crowd,
            np.random.default_rng([seed, 2]),
            frames,
            self.step,
            solid,
        )
        light = np.random.default_rng([seed, 3])
        self._phases = light.uniform(0, math.tau, 4)
        shape = (layout.height + 64, layout.width + 64)
        grey = light.standard_normal(shape, dtype=np.float32)
        tint = light.standard_normal((*shape, 3), dtype=np.float32)
        self._noise: Plane = (grey[..., None] * 0.8 + tint * 0.5) * np.float32(layout.noise)

    def picture(self, frame: int) -> tuple[Picture, list[Truth]]:
        """Picture (h, w, 3) uint8 BGR number ``frame`` (from 0) and its truth."""
        items, labels, shadows = self._items(frame)
        canvas = self.backdrop.picture.copy()
        mask = shadow_mask(shadows, self.camera, self.backdrop.lean)
        canvas *= 1 - np.float32(self.backdrop.shadow) * mask[..., None]
        owners = np.zeros(canvas.shape[:2], np.int32)
        items.sort(key=lambda item: -item.depth)
        for item in items:
            compose(canvas, item.sprite)
            _claim(owners, item, labels)
        truth = self._truth(items, owners, labels)
        return self._develop(canvas, frame), truth

    def _items(self, frame: int) -> tuple[list[_Item], dict[int, int], list[list[Part]]]:
        items = [_Item(f.depth, 0, f.sprite) for f in self.backdrop.fixtures]
        labels: dict[int, int] = {}
        shadows: list[list[Part]] = []
        for actor in self.actors:
            pose = actor.poses[frame] if frame < len(actor.poses) else None
            if pose is None or pose.z < 1.5:
                continue
            for ident, label, layers, offset in self._bodies(actor, pose):
                sprites = paint_layers(layers, self.camera, self.backdrop.sun_side)
                if sprites is None:
                    continue
                labels[ident] = label
                depth = self._depth(pose)
                for k, sprite in enumerate(sprites):
                    items.append(_Item(depth + offset[k], ident, sprite))
                shade: list[Part] = [part for layer in layers for part in layer]
                if actor.car is not None:
                    shade = car_shadow(actor.car, pose)
                shadows.append(shade)
        return items, labels, shadows

    def _bodies(
        self, actor: Actor, pose: Pose
    ) -> list[tuple[int, int, list[list[Part]], tuple[float, ...]]]:
        """(ident, class, layers of parts, depth shift of every layer) of an actor's objects."""
        if actor.car is not None:
            return [(actor.ident, CAR, [car(actor.car, pose, self.camera)], (0.0,))]
        if actor.person is not None and actor.bicycle is not None:
            behind, before = rider(actor.person, pose, self.camera)
            return [
                (actor.ident, PERSON, [behind, before], (0.02, -0.02)),
                (actor.ident + 1, BICYCLE, [bicycle(actor.bicycle, pose)], (0.0,)),
            ]
        if actor.bicycle is not None:
            return [(actor.ident, BICYCLE, [bicycle(actor.bicycle, pose)], (0.0,))]
        assert actor.person is not None
        return [(actor.ident, PERSON, [walker(actor.person, pose, self.camera)], (0.0,))]

    def _depth(self, pose: Pose) -> float:
        pitch = self.camera.pitch
        return pose.z * math.cos(pitch) + self.camera.height_m * math.sin(pitch)

    def _truth(
        self, items: list[_Item], owners: npt.NDArray[np.int32], labels: dict[int, int]
    ) -> list[Truth]:
        whole: dict[int, npt.NDArray[np.bool_]] = {}
        boxes: dict[int, tuple[float, float, float, float]] = {}
        for item in items:
            if item.owner:
                mask = _solid(item.sprite, labels[item.owner])
                seen = whole.get(item.owner)
                whole[item.owner] = mask if seen is None else mask | seen
                boxes[item.owner] = item.sprite.box
        counts = np.bincount(owners.ravel(), minlength=max(labels, default=0) + 1)
        truth = []
        for ident in sorted(whole):
            left, top, right, bottom = boxes[ident]
            left, top = max(0.0, left), max(0.0, top)
            right = min(float(self.camera.width), right)
            bottom = min(float(self.camera.height), bottom)
            if right - left < 0.5 or bottom - top < 0.5:
                continue
            share = float(counts[ident]) / max(1, int(whole[ident].sum()))
            box = (left, top, right - left, bottom - top)
            truth.append(Truth(ident, labels[ident], box, min(1.0, share)))
        return truth

    def _develop(self, canvas: Plane, frame: int) -> Picture:
        """Slow change of light, sensor noise, rounding."""
        time, p, layout = frame * self.step, self._phases, self.layout
        wave = math.sin(math.tau * time / 19 + p[0]) + 0.4 * math.sin(math.tau * time / 7 + p[1])
        gain = layout.gain * (1 + layout.drift * wave)
        warm = 1 + 0.02 * math.sin(math.tau * time / 23 + p[2])
        canvas *= np.array([gain / warm, gain, gain * warm], np.float32)
        top, left = np.random.default_rng([self.seed, 4, frame]).integers(0, 64, 2)
        h, w = canvas.shape[:2]
        canvas += self._noise[top : top + h, left : left + w]
        picture: Picture = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
        return picture


def _solid(sprite: Sprite, label: int) -> npt.NDArray[np.bool_]:
    """Pixels (h, w) that count as the object's own; thin bicycle tubes count early."""
    mask: npt.NDArray[np.bool_] = sprite.alpha > (0.25 if label == BICYCLE else 0.4)
    return mask


def _claim(owners: npt.NDArray[np.int32], item: _Item, labels: dict[int, int]) -> None:
    """Write the item's owner into the map (h, w) where it covers the picture."""
    area = overlap(item.sprite, owners.shape[1], owners.shape[0])
    if area is None:
        return
    rows, columns, from_rows, from_columns = area
    mask = _solid(item.sprite, labels.get(item.owner, PERSON))[from_rows, from_columns]
    owners[rows, columns][mask] = item.owner
