"""Render the sample clips: made street scenes with persons, bicycles and cars.

``python samples/render.py`` writes, next to this file (or to ``--out``), three H.264 clips and
beside each its exact truth ``<clip>.gt.txt`` in the MOT format, one line per object and picture::

    frame,id,x,y,w,h,conf,class,visibility

``frame`` counts from 1; ``x,y,w,h`` are pixels (left, top, width, height) of the whole object,
hidden parts included, clipped to the picture; ``conf`` is always 1; ``class`` is 1 person,
2 bicycle, 3 car (the model's class id plus 1); ``visibility`` is the share 0..1 of the object's
pixels that are seen, those beyond the edge of the picture counted as unseen. A ridden bicycle
gives a bicycle and a person. Numbers stay with an object as long as it lives.

========== ========= === ======= =============================================
clip       size      fps seconds what
========== ========= === ======= =============================================
plaza.mp4  640 x 360  30      22 a square: walkers, riders, a parked car
street.mp4 960 x 540  25      22 a four-lane street: cars, walkers, few riders
gate.mp4   640 x 480  30      22 a street seen at an angle: all of them
========== ========= === ======= =============================================

The same seed gives the same pixels and truth on the same versions of NumPy and OpenCV.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
from backdrop import Street
from motion import Crowd
from scene import Layout, Scene, Truth


@dataclass(frozen=True)
class Clip:
    """A clip to render: layout, seed, seconds, and the coder's quality (higher is smaller)."""

    name: str
    layout: Layout
    seed: int
    seconds: float
    crf: int

    @property
    def frames(self) -> int:
        """Number of pictures."""
        return round(self.seconds * self.layout.fps)


def _street(yaw: float, pivot: float, road: float, near: float, far: float) -> Street:
    return Street(math.radians(yaw), pivot, road, near, far)


PLAZA = Layout(
    640,
    360,
    30,
    58.0,
    4.6,
    15.5,
    _street(9, 13.5, 0.0, 5.0, 8.5),
    Crowd(walkers=7, riders=2, cars_per_lane=0, parked_cars=1, parked_bicycles=1),
    fixtures=6,
)
STREET = Layout(
    960,
    540,
    25,
    57.0,
    5.6,
    16.5,
    _street(-8, 17.5, 7.4, 3.2, 3.6),
    Crowd(walkers=6, riders=2, cars_per_lane=2, car_speed=7.5),
    fixtures=7,
)
GATE = Layout(
    640,
    480,
    30,
    60.0,
    5.2,
    17.0,
    _street(34, 16.0, 4.3, 4.0, 3.6),
    Crowd(walkers=6, riders=2, cars_per_lane=3, car_speed=6.5),
    fixtures=7,
)
CLIPS = (
    Clip("plaza", PLAZA, 4, 22.0, 23),
    Clip("street", STREET, 5, 22.0, 24),
    Clip("gate", GATE, 5, 22.0, 23),
)


def truth_line(frame: int, item: Truth) -> str:
    """One MOT line; ``frame`` counts from 1."""
    x, y, w, h = item.box
    return (
        f"{frame},{item.ident},{x:.2f},{y:.2f},{w:.2f},{h:.2f},1,{item.label + 1},"
        f"{item.visibility:.3f}"
    )


def write_clip(clip: Clip, out: Path) -> tuple[int, int]:
    """Write ``<name>.mp4`` and ``<name>.gt.txt``; returns pictures and truth lines written."""
    layout = clip.layout
    scene = Scene(layout, clip.seed, clip.frames)
    lines: list[str] = []
    rate = Fraction(layout.fps).limit_denominator(1001)
    with av.open(str(out / f"{clip.name}.mp4"), "w", options={"movflags": "+faststart"}) as box:
        stream = box.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = layout.width, layout.height, "yuv420p"
        stream.thread_count = 1
        gop = str(round(layout.fps))
        stream.options = {
            "crf": str(clip.crf),
            "preset": "medium",
            "g": gop,
            "keyint_min": gop,
            "bf": "0",
        }
        for number in range(clip.frames):
            picture, truth = scene.picture(number)
            lines += [truth_line(number + 1, item) for item in truth]
            frame = av.VideoFrame.from_ndarray(picture, format="bgr24")
            box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    (out / f"{clip.name}.gt.txt").write_text("\n".join(lines) + "\n", encoding="ascii")
    return clip.frames, len(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Render the sample clips and their truth.")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parent,
        help="folder to write to (default: beside this file)",
    )
    parser.add_argument(
        "--only",
        choices=[clip.name for clip in CLIPS],
        action="append",
        help="render only this clip (may be repeated)",
    )
    options = parser.parse_args()
    cv2.setNumThreads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for clip in CLIPS:
        if options.only and clip.name not in options.only:
            continue
        frames, lines = write_clip(clip, options.out)
        size = (options.out / f"{clip.name}.mp4").stat().st_size
        print(f"{clip.name}: {frames} pictures, {lines} truth lines, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
