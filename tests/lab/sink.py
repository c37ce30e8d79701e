"""A sink that keeps what it gets, and asks for slots as a pipeline would."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from vidserve.capture.camera import CameraSettings, CameraThread
from vidserve.capture.reader import Reader
from vidserve.capture.source import open_reader
from vidserve.clock import Clock, RealClock
from vidserve.frames import (
    Bucket,
    ByteArray,
    CameraState,
    CameraStatus,
    DropReason,
    Frame,
    Letterbox,
    Regions,
    Thinning,
)
from vidserve.slots import Slot, SlotPool


class CollectingSink:
    """Keeps frames, drops, states and lags of any number of cameras. Safe in any thread.

    Args:
        keyframe_every: Ask for a slot for every n-th frame; 0: never.
        bucket: Of the slots.
        keep_pixels: Keep a copy of each filled slot, in ``pixels`` by (camera, seq).
    """

    def __init__(
        self,
        keyframe_every: int = 0,
        bucket: Bucket = Bucket(192, 320),  # noqa: B008
        keep_pixels: bool = False,
    ) -> None:
        self.pool = SlotPool(bucket, 4)
        self.frames: list[Frame] = []
        self.drops: list[tuple[str, float, DropReason, int]] = []
        self.statuses: list[CameraStatus] = []
        self.lags: list[tuple[str, float | None, float]] = []
        self.pixels: dict[tuple[str, int], ByteArray] = {}
        self.sizes: list[tuple[int, int]] = []
        self._keyframe_every = keyframe_every
        self._keep_pixels = keep_pixels
        self.thinning: Thinning | None = None  # None: motion is not measured
        self._asked = 0
        self._changed = threading.Condition()

    def slot_for(self, camera: str, captured_s: float, width: int, height: int) -> Slot | None:
        with self._changed:
            self._asked += 1
            if not self._keyframe_every or self._asked % self._keyframe_every:
                return None
        slot = self.pool.take()
        if slot is not None:
            slot.geometry = Letterbox.fit(width, height, self.pool.bucket)
        return slot

    def look_at(self, camera: str) -> tuple[Regions | None, Thinning] | None:
        return None if self.thinning is None else (None, self.thinning)

    def room_for(self, camera: str) -> bool:
        return True

    def frame(self, frame: Frame) -> None:
        with self._changed:
            if frame.slot is not None:
                if self._keep_pixels:
                    self.pixels[frame.camera, frame.seq] = frame.slot.pixels.copy()
                frame.slot.release()
            if not self.sizes or self.sizes[-1] != (frame.width, frame.height):
                self.sizes.append((frame.width, frame.height))
            self.frames.append(frame)
            self._changed.notify_all()

    def dropped(self, camera: str, captured_s: float, reason: DropReason, count: int = 1) -> None:
        with self._changed:
            self.drops.append((camera, captured_s, reason, count))
            self._changed.notify_all()

    def status(self, status: CameraStatus) -> None:
        with self._changed:
            self.statuses.append(status)
            self._changed.notify_all()

    def lag(self, camera: str, source_lag_s: float | None, reader_delay_s: float) -> None:
        with self._changed:
            self.lags.append((camera, source_lag_s, reader_delay_s))
            self._changed.notify_all()

    # For tests.

    def of(self, camera: str) -> list[Frame]:
        with self._changed:
            return [frame for frame in self.frames if frame.camera == camera]

    def states(self, camera: str | None = None) -> list[CameraState]:
        with self._changed:
            return [s.state for s in self.statuses if camera is None or s.camera == camera]

    def wait(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Until the condition holds; it is looked at whenever something comes."""
        until_s = time.monotonic() + timeout_s
        while not condition():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise AssertionError(f"not within {timeout_s} s; states {self.states()}")
            with self._changed:
                self._changed.wait(min(0.1, left_s))

    def wait_state(self, state: CameraState, camera: str | None = None) -> CameraStatus:
        self.wait(lambda: state in self.states(camera))
        with self._changed:
            return [
                s
                for s in self.statuses
                if s.state is state and (camera is None or s.camera == camera)
            ][-1]

    def check_accounts(self, camera: str) -> None:
        """Every number has one fate, times rise, no slot is lost. For a camera that ended."""
        frames = self.of(camera)
        taken = sum(count for name, _, _, count in self.drops if name == camera)
        seqs = [frame.seq for frame in frames]
        assert seqs == sorted(set(seqs))
        if seqs:
            assert seqs[-1] < len(seqs) + taken
        captured = [frame.captured_s for frame in frames]
        assert captured == sorted(captured)
        assert all(frame.ready_s >= frame.captured_s for frame in frames)
        assert self.pool.in_use == 0


ReaderFactory = Callable[[CameraSettings, Clock], Reader]


@contextlib.contextmanager
def running(
    sink: CollectingSink,
    *settings: CameraSettings,
    factory: ReaderFactory = open_reader,
    join_s: float = 10.0,
) -> Iterator[list[CameraThread]]:
    """Run cameras with a ticking supervisor, as the daemon does; stop and join them after."""
    clock = RealClock()
    cameras = [CameraThread(one, sink, clock, factory, seed=i) for i, one in enumerate(settings)]
    over = threading.Event()

    def supervise() -> None:
        while not over.wait(0.1):
            for camera in cameras:
                camera.tick(clock.now())

    ticker = threading.Thread(target=supervise, name="ticker", daemon=True)
    for camera in cameras:
        camera.start()
    ticker.start()
    try:
        yield cameras
    finally:
        over.set()
        ticker.join(5.0)
        for camera in cameras:
            camera.request_stop()
        ended = [camera.join(join_s) for camera in cameras]
    assert all(ended), "a capture thread did not end"
