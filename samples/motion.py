"""Who moves where: walkers and riders that avoid one another, cars in lanes.

Everything is worked out before the first picture is painted: for every actor a list of
poses, one per picture (None while it is away).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from backdrop import Street
from cars import CarLook
from draw import Camera, Floats
from figures import BicycleLook, PersonLook, Pose


@dataclass(frozen=True)
class Crowd:
    """How many things move (kept about constant), or stand for good."""

    walkers: int
    riders: int
    cars_per_lane: int
    parked_cars: int = 0
    parked_bicycles: int = 0
    crossing: float = 0.0
    pausing: float = 0.35
    car_speed: float = 7.0


@dataclass
class Actor:
    """One moving thing. A rider has two numbers: ``ident`` (person), ``ident + 1`` (bicycle)."""

    ident: int
    person: PersonLook | None = None
    bicycle: BicycleLook | None = None
    car: CarLook | None = None
    poses: list[Pose | None] = field(default_factory=list)


@dataclass
class _Agent:
    """State of a walker or rider under way, in metres and seconds."""

    actor: Actor
    x: float
    z: float
    heading: float
    cruise: float
    goals: list[tuple[float, float]]
    speed: float = 0.0
    travel: float = 0.0
    wait: float = 0.0


def visible_span(street: Street, camera: Camera, d: float) -> tuple[float, float] | None:
    """The stretch (s from, s to) of the line ``d`` that the camera sees, in metres."""
    s = np.linspace(-45, 45, 361)
    table = np.array([street.to_world(float(v), d) for v in s])
    points = np.stack([table[:, 0], np.full(len(s), 0.9), table[:, 1]], axis=1)
    spots, _ = camera.project(points)
    seen = (table[:, 1] > 3.0) & (spots[:, 0] > 0) & (spots[:, 0] < camera.width)
    seen &= (spots[:, 1] > 0) & (spots[:, 1] < camera.height)
    where = np.flatnonzero(seen)
    if not len(where):
        return None
    return float(s[where[0]]), float(s[where[-1]])


class _World:
    """Moves the walkers and riders step by step."""

    def __init__(
        self,
        street: Street,
        camera: Camera,
        crowd: Crowd,
        rng: np.random.Generator,
        dt: float,
        solid: list[tuple[float, float]],
    ) -> None:
        self.street, self.camera, self.crowd, self.rng, self.dt = street, camera, crowd, rng, dt
        self.solid = np.array(solid, dtype=np.float64).reshape(-1, 2)
        self.actors: list[Actor] = []
        self.next_ident = 1

    def _band(self) -> float:
        """A line ``d`` for a walker."""
        street, rng = self.street, self.rng
        if street.road_half == 0:
            far = street.far_edge - (3.0 if self.crowd.parked_cars else 0.8)
            return float(rng.uniform(-street.near_band, far))
        if rng.random() < 0.55:
            return float(-street.road_half - rng.uniform(0.7, street.near_band))
        return float(street.road_half + rng.uniform(0.7, max(0.9, street.far_band - 0.6)))

    def _end(self, d: float, side: float) -> tuple[float, float] | None:
        span = visible_span(self.street, self.camera, d)
        if span is None:
            return None
        s = span[0] - 1.5 if side < 0 else span[1] + 1.5
        return self.street.to_world(s, d)

    def spawn(self, rides: bool, inside: bool) -> _Agent | None:
        """A new walker or rider, somewhere in view or entering; None when no place was found."""
        rng, street = self.rng, self.street
        side = float(rng.choice([-1.0, 1.0]))
        d = self._band()
        if rides and street.road_half > 0:
            d = side * (street.road_half - 0.6)
        start, last = self._end(d, side), self._end(d, -side)
        span = visible_span(street, self.camera, d)
        if start is None or last is None or span is None:
            return None
        goals = [last]
        if rides and street.road_half == 0:
            other = self._end(self._band(), -side)
            goals = [other if other is not None else last]
        elif not rides:
            goals = self._stroll(d, last)
        if inside:
            start = street.to_world(rng.uniform(span[0], span[1]), d)
            if start[1] > 32:
                return None
        heading = math.atan2(goals[0][1] - start[1], goals[0][0] - start[0])
        look = PersonLook.draw(rng)
        actor = Actor(self.next_ident, person=look)
        cruise = rng.uniform(0.8, 1.7) * (1.1 if look.height > 1.45 else 0.8)
        if rides:
            actor.bicycle = BicycleLook.draw(rng)
            cruise = rng.uniform(2.4, 4.8)
            while look.height < 1.5:
                look = PersonLook.draw(rng)
            actor.person = look
        self.next_ident += 2
        self.actors.append(actor)
        return _Agent(actor, start[0], start[1], heading, cruise, goals, cruise if inside else 0.5)

    def _stroll(self, d: float, last: tuple[float, float]) -> list[tuple[float, float]]:
        """Places that a walker visits, the last outside the picture."""
        goals = []
        for _ in range(int(self.rng.integers(0, 4))):
            line = d
            if self.street.road_half == 0 or self.rng.random() < self.crowd.crossing:
                line = self._band()
            span = visible_span(self.street, self.camera, line)
            if span is None:
                continue
            s = self.rng.uniform(span[0], span[1])
            spot = self.street.to_world(s, line + self.rng.uniform(-0.3, 0.3))
            if 4.5 < spot[1] < 28:
                goals.append(spot)
        return [*goals, last]

    def step(self, agents: list[_Agent]) -> list[_Agent]:
        """Move everybody by one time step; returns those still under way."""
        places = np.array([[a.x, a.z] for a in agents]).reshape(-1, 2)
        left = []
        for index, agent in enumerate(agents):
            others = np.concatenate([np.delete(places, index, axis=0), self.solid])
            if self._move(agent, others):
                left.append(agent)
        return left

    def _move(self, agent: _Agent, others: Floats) -> bool:
        rides, dt = agent.actor.bicycle is not None, self.dt
        goal = agent.goals[0]
        way = np.array([goal[0] - agent.x, goal[1] - agent.z])
        gap = float(np.hypot(way[0], way[1]))
        if gap < (1.2 if rides else 0.5):
            agent.goals.pop(0)
            if not agent.goals:
                return False
            if not rides and self.rng.random() < self.crowd.pausing:
                agent.wait = float(self.rng.uniform(1.5, 6.0))
            return True
        wish = way / gap
        if len(others):
            apart = np.array([agent.x, agent.z]) - others
            near = np.maximum(np.hypot(apart[:, 0], apart[:, 1]), 0.05)
            reach = 2.2 if rides else 1.3
            push = np.clip(1 - near / reach, 0, 1) * 1.6
            wish = wish + (apart / near[:, None] * push[:, None]).sum(axis=0)
        error = math.remainder(math.atan2(wish[1], wish[0]) - agent.heading, math.tau)
        limit = (1.4 if rides else 3.2) * dt
        target = 0.0 if agent.wait > 0 else agent.cruise * max(0.25, math.cos(error))
        if agent.wait > 0:
            agent.wait -= dt
        else:
            agent.heading += min(limit, max(-limit, error))
        change = (2.0 if rides else 3.0) * dt
        agent.speed += min(change, max(-change, target - agent.speed))
        agent.x += agent.speed * math.cos(agent.heading) * dt
        agent.z += agent.speed * math.sin(agent.heading) * dt
        agent.travel += agent.speed * dt
        return True

    def run(self, frames: int) -> None:
        """Fill the poses of all walkers and riders."""
        slots: list[tuple[bool, _Agent | None, float]] = []
        for k in range(self.crowd.walkers + self.crowd.riders):
            rides = k >= self.crowd.walkers
            agent = None
            if self.rng.random() < (0.45 if rides else 0.85):
                agent = self.spawn(rides, True)
            slots.append((rides, agent, float(self.rng.uniform(0.2, 4.0))))
        for frame in range(frames):
            active = [agent for _, agent, _ in slots if agent is not None]
            for agent in active:
                poses = agent.actor.poses
                poses.extend([None] * (frame - len(poses)))
                poses.append(Pose(agent.x, agent.z, agent.heading, agent.travel, agent.speed))
            going = {id(agent) for agent in self.step(active)}
            for k, (rides, agent, wait) in enumerate(slots):
                if agent is not None and id(agent) not in going:
                    agent, wait = None, float(self.rng.uniform(0.3, 4.0))
                elif agent is None:
                    wait -= self.dt
                    if wait <= 0:
                        agent = self.spawn(rides, False)
                slots[k] = (rides, agent, wait)


def lanes(street: Street) -> list[float]:
    """Middles ``d`` of the car lanes, in metres."""
    half = street.road_half - 1.15
    if half <= 0:
        return []
    count = max(2, 2 * round(half / 3.2))
    wide = 2 * half / count
    return [-half + (k + 0.5) * wide for k in range(count)]


def _progress(rng: np.random.Generator, speed: float, frames: int, dt: float) -> list[float]:
    """Way covered by a lane's traffic at every picture, with slow stretches, in metres."""
    way, at = [], float(rng.uniform(0, 200))
    phase, period = rng.uniform(0, math.tau), rng.uniform(12, 25)
    floor = float(rng.choice([0.0, 0.3, 0.7]))
    for frame in range(frames):
        wave = 0.5 + 0.9 * math.sin(phase + math.tau * frame * dt / period)
        at += speed * (floor + (1 - floor) * min(1.0, max(0.0, wave))) * dt
        way.append(at)
    return way


def traffic(
    street: Street,
    camera: Camera,
    crowd: Crowd,
    rng: np.random.Generator,
    frames: int,
    dt: float,
    first_ident: int,
) -> list[Actor]:
    """Cars in lanes: near lanes drive to growing ``s``, far lanes the other way."""
    actors: list[Actor] = []
    ident = first_ident
    for lane in lanes(street):
        span = visible_span(street, camera, lane)
        if span is None or crowd.cars_per_lane == 0:
            continue
        low, high = span[0] - 8.0, span[1] + 8.0
        gaps = rng.uniform(8.5, 18.0, crowd.cars_per_lane)
        cycle = max(high - low, float(gaps.sum()))
        gaps *= cycle / gaps.sum()
        offsets = np.cumsum(gaps) - gaps[0] * rng.random()
        way = _progress(rng, crowd.car_speed * rng.uniform(0.7, 1.3), frames, dt)
        sign = 1.0 if lane < 0 else -1.0
        heading = street.yaw + (0.0 if sign > 0 else math.pi)
        seed = int(rng.integers(2**31))
        known: dict[tuple[int, int], Actor] = {}
        for frame in range(frames):
            for slot, offset in enumerate(offsets):
                lap, along = divmod(float(offset) + way[frame], cycle)
                if along > high - low:
                    continue
                key = (slot, int(lap))
                if key not in known:
                    look = CarLook.draw(np.random.default_rng([seed, slot, int(lap)]))
                    known[key] = Actor(ident, car=look)
                    ident += 1
                s = low + along if sign > 0 else high - along
                x, z = street.to_world(s, lane)
                poses = known[key].poses
                poses.extend([None] * (frame - len(poses)))
                poses.append(Pose(x, z, heading, way[frame], 0.0))
        actors += known.values()
    return actors


def parked(
    street: Street,
    camera: Camera,
    crowd: Crowd,
    rng: np.random.Generator,
    frames: int,
    first_ident: int,
) -> list[Actor]:
    """Cars and bicycles that stand near the building line."""
    actors: list[Actor] = []
    line = street.far_edge - 1.4
    span = visible_span(street, camera, line)
    if span is None:
        return actors
    taken: list[float] = []
    for k in range(crowd.parked_cars + crowd.parked_bicycles):
        is_car = k < crowd.parked_cars
        s = float(rng.uniform(span[0], span[1]))
        if any(abs(s - other) < (5.6 if is_car else 3.6) for other in taken):
            continue
        taken.append(s)
        d = line if is_car else street.far_edge - 0.6
        x, z = street.to_world(s, d)
        heading = street.yaw + float(rng.choice([0.0, math.pi])) + rng.normal(0, 0.04)
        pose = Pose(x, z, heading, float(rng.uniform(0, 3)), 0.0)
        actor = Actor(first_ident + len(actors), poses=[pose] * frames)
        if is_car:
            actor.car = CarLook.draw(rng)
        else:
            actor.bicycle = BicycleLook.draw(rng)
        actors.append(actor)
    return actors


def make_actors(
    street: Street,
    camera: Camera,
    crowd: Crowd,
    rng: np.random.Generator,
    frames: int,
    dt: float,
    solid: list[tuple[float, float]],
) -> list[Actor]:
    """All actors with their poses at ``frames`` pictures, ``dt`` seconds apart."""
    world = _World(street, camera, crowd, rng, dt, solid)
    world.run(frames)
    actors = world.actors
    cars = traffic(street, camera, crowd, rng, frames, dt, world.next_ident)
    following = max([world.next_ident, *(actor.ident + 1 for actor in cars)])
    return actors + cars + parked(street, camera, crowd, rng, frames, following)
