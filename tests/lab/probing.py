"""Readings of a probe, made up: what a reader would have handed out, for pure tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vidserve.capture.reader import SourceFacts
from vidserve.probe.measure import Reading, Sample, Standing

FACTS = SourceFacts("rtsp", "rtsp over tcp", "h264", "High", "yuv420p")


def sample(received_s: float, pts_s: float | None, **more: object) -> Sample:
    """A good picture that was waited for."""
    plain = Sample(
        received_s=received_s,
        pts_s=pts_s,
        waited_s=0.03,
        key=False,
        decode_s=0.003,
        width=1280,
        height=720,
        rotation=0,
        corrupt=False,
        read_s=received_s + 0.004,
        cpu_s=0.004,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def reading(samples: Sequence[Sample], live: bool = True, **more: object) -> Reading:
    """Began at 100 s, opened half a second later."""
    standing = Standing(FACTS, live, 30.0, 0.0, 0, 0)
    facts = {name: more.pop(name) for name in list(more) if hasattr(standing, name)}
    ended_s = samples[-1].read_s if samples else 101.0
    plain = Reading(
        standing=replace(standing, **facts),  # type: ignore[arg-type]
        samples=tuple(samples),
        began_s=100.0,
        ended_s=ended_s,
        opened_s=100.5,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def steady(
    pictures: int = 150, fps: float = 30.0, key_every: int = 30, **more: object
) -> list[Sample]:
    """A camera that sends evenly; its first picture at 101 s, key pictures as asked."""
    return [
        sample(101.0 + index / fps, 7.0 + index / fps, key=index % key_every == 0, **more)
        for index in range(pictures)
    ]
