"""Twenty cameras of every kind that come and go: cut, frozen, killed and restarted at random.

First calm, then a storm of a seeded random generator, then calm again: what the process holds
is judged over the storm after its warm-up, and in the end everything that can run has to run.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import clips
from tests.lab.servers import Relay, RtspServer, mjpeg_server
from tests.running import synthetic
from tests.soak import streams
from tests.soak.measure import Sample, sample
from tests.soak.process import SoakedDaemon
from tests.soak.sender import Channel, Sender
from tests.soak.troubles import SHORT_WAITS, Camera, jpegs, troubles

WAITS = 0.1  # 50 ms before the first attempt, 3 s at most
CALM_S = 15.0
_TICK_S = 0.05
_MEAN_GAP_S = 0.7
_LONGEST_S = 8.0  # of a frozen relay or a dead server

Progress = Callable[[float], None]


@dataclass(slots=True)
class World:
    """The cameras, and what can be done to them.

    Attributes:
        cameras: Config blocks by name, 20 of them.
        relays: Those whose connections can be frozen and cut.
        servers: Those that can be killed and brought back.
        can_run: Names of the cameras that run when the world is calm.
    """

    cameras: dict[str, Camera]
    relays: list[Relay]
    servers: list[RtspServer]
    can_run: frozenset[str]


@contextlib.contextmanager
def world(folder: Path, reader: str = "auto", rtsp: bool = True) -> Iterator[World]:
    """Twenty cameras with their servers.

    Args:
        folder: For the files.
        reader: Of the RTSP cameras.
        rtsp: False: transport streams in place of RTSP, where there is no GStreamer.
    """
    stream = streams.padded(streams.make(folder / "coming.ts", 60.0))
    sizes_clip = streams.make(folder / "sizes.ts", 12.0, ((320, 180), (480, 270), (176, 144)))
    looped = clips.write(folder / "looped.mp4", frames=90)
    steady, sizes = Channel(stream), Channel(streams.padded(sizes_clip))
    relays: list[Relay] = []
    servers: list[RtspServer] = []
    with contextlib.ExitStack() as stack:

        def relay(port: int) -> int:
            relays.append(stack.enter_context(Relay(port)))
            return relays[-1].port

        stack.enter_context(Sender([steady, sizes]))
        bad = stack.enter_context(troubles(folder, stream))
        cameras = {
            "file0": Camera(str(looped), {"loop": "true"}),
            "file1": Camera(str(folder / "sizes.ts"), {"loop": "true"}),
            "synthetic0": Camera(synthetic(320, 180)),
            "synthetic1": Camera(synthetic(320, 180, fail_after_s=3)),
            "flapping": Camera(f"tcp://127.0.0.1:{relay(sizes.port)}", SHORT_WAITS),
        }
        for at in range(2 if rtsp else 0):
            clip = clips.annexb(looped, folder / "looped.h264")
            servers.append(stack.enter_context(RtspServer(clip)))
            for camera in range(2):
                url = f"rtsp://127.0.0.1:{relay(servers[-1].port)}/stream"
                cameras[f"rtsp{2 * at + camera}"] = Camera(url, {"reader": reader, **SHORT_WAITS})
        url = stack.enter_context(mjpeg_server(jpegs()))
        port = int(url.split(":")[2].split("/")[0])
        for at in range(2):
            url = f"http://127.0.0.1:{relay(port)}/video"
            cameras[f"mjpeg{at}"] = Camera(url, SHORT_WAITS)
        for at in range(2 if rtsp else 6):
            url = f"tcp://127.0.0.1:{relay(steady.port)}"
            cameras[f"ts{at}"] = Camera(url, SHORT_WAITS)
        can_run = frozenset(cameras) - {"synthetic1"}
        for name in ("refused", "unknown_host", "silent", "closes", "torn", "empty", "deaf"):
            cameras[name] = bad[name]
        # Deaf for a while only: what was given up comes back, and is cleaned up.
        cameras["deaf"] = Camera(synthetic(320, 180, hang_after_s=1, deaf=1, hang_s=9), SHORT_WAITS)
        assert len(cameras) == 20
        yield World(cameras, relays, servers, can_run)


@dataclass(slots=True)
class Storm:
    """Does something to the world at random moments, and undoes it. One thread."""

    world: World
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    _undo: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: itertools.count[int] = field(default_factory=itertools.count)
    _busy: set[int] = field(default_factory=set)
    _next_s: float = 0.0

    def blow(self, now_s: float) -> None:
        """Undo what is over, and do the next thing if it is time."""
        while self._undo and self._undo[0][0] <= now_s:
            heapq.heappop(self._undo)[2]()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self.rng.expovariate(1.0 / _MEAN_GAP_S)
        what = self.rng.choices(("cut", "freeze", "kill"), (6, 3, 1))[0]
        until_s = now_s + self.rng.uniform(0.2, _LONGEST_S)
        if what == "kill" and self.world.servers:
            server = self.rng.choice(self.world.servers)
            if id(server) in self._busy:
                return
            server.kill()
            self._later(until_s, server, server.start)
        else:
            relay = self.rng.choice(self.world.relays)
            if what != "freeze":
                what = "cut"
                relay.cut()
            elif id(relay) in self._busy:
                return
            else:
                relay.frozen.set()
                self._later(until_s, relay, relay.frozen.clear)
        self.done[what] += 1

    def _later(self, when_s: float, thing: object, undo: Callable[[], None]) -> None:
        self._busy.add(id(thing))

        def over() -> None:
            self._busy.discard(id(thing))
            undo()

        heapq.heappush(self._undo, (when_s, next(self._number), over))

    def end(self) -> None:
        """Undo all."""
        while self._undo:
            heapq.heappop(self._undo)[2]()


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it.

    Attributes:
        samples: Of the storm.
        calm_before, calm_after: At the end of each calm.
        done: How often what was done.
        down: Cameras that do not run in the calm after the storm, with their reasons.
        cpu: Cores used by each thread in the storm, those that were given up left out.
        memory: Lines of Python that hold more than before the storm, with ``--tracemalloc``.
    """

    samples: list[Sample]
    calm_before: Sample
    calm_after: Sample
    done: dict[str, int]
    down: dict[str, str]
    memory: list[str]


def run(
    folder: Path,
    storm_s: float,
    reader: str = "auto",
    seed: int = 1,
    rtsp: bool = True,
    calm_s: float = CALM_S,
    every_s: float = 2.0,
    progress: Progress = lambda passed_s: None,
    options: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
) -> Result:
    """One soak of ``storm_s`` seconds and two calms of ``calm_s``.

    Args:
        folder: For files, config and log.
        storm_s, calm_s: How long.
        reader, rtsp: As ``world``.
        seed: Of the storm.
        every_s: Between samples.
        progress: Is told the seconds since the storm began.
        options, environ: For the child.
    """
    with world(folder, reader, rtsp) as around:
        text = "detector: {model: 'fake:3+1n', image_size: 320}\n"
        text += "outputs: [{jsonl: /dev/null}]\ncameras:\n"
        text += "".join(camera.line(name) for name, camera in around.cameras.items())
        with SoakedDaemon(folder, text, WAITS, *options, **(environ or {})) as daemon:
            time.sleep(calm_s)
            calm_before = sample(daemon.pid, 0.0)
            storm = Storm(around, random.Random(seed))
            samples: list[Sample] = []
            daemon.ask("memory", "lines")
            begun_s = time.monotonic()
            while (passed_s := time.monotonic() - begun_s) < storm_s:
                storm.blow(passed_s)
                if passed_s >= len(samples) * every_s:
                    samples.append(sample(daemon.pid, passed_s))
                    progress(passed_s)
                time.sleep(_TICK_S)
            storm.end()
            down = _wait_for_all(daemon, around.can_run, calm_s + 45.0)
            time.sleep(calm_s)
            calm_after = sample(daemon.pid, time.monotonic() - begun_s)
            memory = daemon.ask("memory", "lines")["lines"]
            report = daemon.stop()
        assert report["unaccounted"] == [], report["unaccounted"]
    return Result(samples, calm_before, calm_after, dict(storm.done), down, memory)


def _wait_for_all(daemon: SoakedDaemon, names: frozenset[str], limit_s: float) -> dict[str, str]:
    """Until all of them run; those that do not, with state and reason."""
    until_s = time.monotonic() + limit_s
    while True:
        cameras = daemon.cameras()
        down = {
            name: f"{cameras[name]['state']}: {cameras[name]['reason']}"
            for name in sorted(names)
            if cameras[name]["state"] not in ("running", "degraded")
        }
        if not down or time.monotonic() > until_s:
            return down
        time.sleep(0.2)
