"""On a machine with a GPU: ``decoder: cuda`` beside the CPU.

``python -m tests.gpu_sources [FILE ...]``

For each codec: do the pictures agree (mean difference of the letterboxes, levels), how long does
a picture take (wall and CPU ms), is the accelerator really used, and what happens with a format
that it cannot decode. Exit code 1 if pictures differ or the GPU is not used for H.264. It has not
been run yet: no GPU was at hand.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.lab import clips
from vidserve.capture.settings import CameraSettings
from vidserve.capture.source import open_reader
from vidserve.clock import RealClock
from vidserve.frames import Bucket, ByteArray, Letterbox

BUCKET = Bucket(384, 640)
MOST_DIFFERENCE = 2.0


def play(path: Path, decoder: str) -> tuple[list[ByteArray], str, str, float, float]:
    """Letterboxes, the decoder that was used, its note, wall and CPU ms a picture."""
    reader = open_reader(CameraSettings("c", str(path), decoder=decoder), RealClock())
    reader.open()
    seen: list[ByteArray] = []
    wall_s = cpu_s = 0.0
    while True:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        arrival = reader.read()
        wall_s += time.monotonic() - began_s
        cpu_s += time.process_time() - began_cpu_s
        if arrival is None:
            break
        pixels = np.empty((BUCKET.height, BUCKET.width, 3), np.uint8)
        picture = arrival.picture
        picture.write_letterbox(pixels, Letterbox.fit(picture.width, picture.height, BUCKET))
        seen.append(pixels)
    facts = reader.facts()
    reader.close()
    count = max(1, len(seen))
    return seen, facts.decoder, facts.note, 1000 * wall_s / count, 1000 * cpu_s / count


def main() -> int:
    good = True
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(name) for name in sys.argv[1:]]
        for codec, pix_fmt in (
            ("libx264", "yuv420p"),
            ("libx265", "yuv420p10le"),
            ("mjpeg", "yuvj444p"),
        ):
            suffix = "mkv" if codec == "mjpeg" else "mp4"
            made = Path(folder) / f"{codec}.{suffix}"
            files.append(clips.write(made, 1920, 1080, frames=90, codec=codec, pix_fmt=pix_fmt))
        for path in files:
            ours, used, note, wall_ms, cpu_ms = play(path, "cuda")
            truth, _, _, base_wall_ms, base_cpu_ms = play(path, "cpu")
            same = len(ours) == len(truth)
            worst = max(
                (
                    float(np.abs(a.astype(int) - b.astype(int)).mean())
                    for a, b in zip(ours, truth, strict=False)
                ),
                default=0.0,
            )
            good = good and same and worst <= MOST_DIFFERENCE
            good = good and (used == "cuda" or path.stem != "libx264")
            sys.stdout.write(
                f"{path.name}: {used} ({note or 'as asked'}), "
                f"{len(ours)} of {len(truth)} pictures, difference {worst:.2f}, "
                f"{wall_ms:.2f} ms (CPU {cpu_ms:.2f}) a picture, "
                f"by the CPU {base_wall_ms:.2f} ({base_cpu_ms:.2f})\n"
            )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
