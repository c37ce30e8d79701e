"""From the socket to the picture: the own RTSP reader and FFmpeg's, turn by turn, one stream.

``python -m tests.bench_rtsp [--size 1280x720] [--for 10] [--repeat 3]``: a process of its own
sends a clip over RTSP in real time and notes when the last packet of each picture left; here it
is noted when the picture was there, decoded. The number of each picture is drawn into it. Not a
test: it needs a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import av
import numpy as np

from tests.lab import clock_picture, rtp
from tests.lab.scripted_rtsp import Connection, ScriptedRtsp
from vidserve.capture.settings import CameraSettings
from vidserve.capture.source import open_reader
from vidserve.clock import RealClock

WARM_UP = 30
COUNT = 150
BITS_PER_S = 4_000_000


def serve(path: str, pipe: Pipe) -> None:
    """Send the clip to whoever comes; on a message, give out when pictures were sent, and go on."""
    clip = rtp.coded(Path(path))
    sent: dict[int, float] = {}  # by number

    def play(one: Connection) -> None:
        packetiser = rtp.Packetiser(clip.codec)
        began_s = time.monotonic()
        number = 0
        while True:
            loop, index = divmod(number, len(clip.units))
            pts_s = loop * len(clip.units) / clip.fps + clip.pts_s[index]
            stamp = round(pts_s * rtp.CLOCK_HZ)
            if one.wait(began_s + number / clip.fps - time.monotonic()):
                return
            *others, last = packetiser.pack(clip.units[index], stamp)
            for packet in others:
                one.send_rtp(packet)
            sent[number] = time.monotonic()
            one.send_rtp(last)
            number += 1

    with ScriptedRtsp(rtp.sdp_for(clip), on_play=play) as server:
        pipe.send(server.port)
        while pipe.recv():
            pipe.send(dict(sent))
            sent.clear()


def numbered_clip(path: Path, width: int, height: int) -> Path:
    """``COUNT`` pictures, each with its number drawn into it (as a time, in steps of 1 s)."""
    with av.open(f"file:{path}", "w") as output:
        options = {"preset": "veryfast", "bf": "0", "g": "60", "b": str(BITS_PER_S)}
        rng = np.random.default_rng(1)
        stream = output.add_stream("libx264", rate=30, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(COUNT):
            raw = clock_picture.draw(width, height, float(number), number)
            rows = np.frombuffer(raw, np.uint8).reshape(height * 3 // 2, width).copy()
            # Noise, as a sensor has it: as many packets a picture as a camera sends.
            scene = rows[height // 4 : height]
            scene += rng.integers(0, 24, scene.shape, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(rows, format="yuv420p")))
        output.mux(stream.encode())
    return path


def measure(name: str, port: int, for_s: float) -> tuple[list[tuple[int, float]], float]:
    """Number and time of each picture, and the CPU seconds that reading one took."""
    there: list[tuple[int, float]] = []
    url = f"rtsp://127.0.0.1:{port}/stream"
    reader = open_reader(CameraSettings("c", url, reader=name), RealClock())
    reader.open()
    for _ in range(WARM_UP):
        reader.read()
    spent_s = 0.0
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        began_s = time.thread_time()
        arrival = reader.read()
        now_s = time.monotonic()
        spent_s += time.thread_time() - began_s
        assert arrival is not None
        number = clock_picture.read(arrival.picture.grey(640))
        assert number is not None
        there.append((round(number), now_s))
    reader.close()
    return there, spent_s / len(there)


def match(there: list[tuple[int, float]], sent: dict[int, float]) -> list[float]:
    """Milliseconds from sent to there; the clip is played over and over."""
    return [
        1000 * min(now_s - at_s for at, at_s in sent.items() if at % COUNT == n and at_s < now_s)
        for n, now_s in there
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--for", dest="for_s", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        width, height = map(int, options.size.split("x"))
        path = numbered_clip(Path(folder) / "c.mp4", width, height)
        near, far = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        server = context.Process(target=serve, args=(str(path), far), daemon=True)
        server.start()
        port = near.recv()
        rows: dict[str, list[tuple[float, float, float]]] = {"rtsp": [], "pyav": []}
        for _ in range(options.repeat):
            for name, found in rows.items():
                there, cpu_s = measure(name, port, options.for_s)
                near.send(True)
                delays = sorted(match(there, near.recv()))
                p99 = delays[min(len(delays) - 1, round(0.99 * len(delays)))]
                found.append((statistics.median(delays), p99, 1000 * cpu_s))
        near.send(False)
        server.join(10.0)
    out = ["reader   socket to picture p50 ms   p99 ms   CPU ms a picture"]
    for name, found in rows.items():
        medians = [statistics.median(column) for column in zip(*found, strict=True)]
        out.append(f"{name:<8} {medians[0]:25.2f} {medians[1]:8.2f} {medians[2]:18.2f}")
    sys.stdout.write("\n".join(out) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
