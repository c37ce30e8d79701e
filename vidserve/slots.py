"""Input slots: preallocated pictures that capture threads fill and the detector reads."""

from __future__ import annotations

import threading

import numpy as np

from vidserve.frames import Bucket, ByteArray, Letterbox


class Slot:
    """One input picture of a pool: ``pixels`` is uint8 (height, width, 3), RGB.

    Life: free -> filling (capture thread) -> offered -> in batch -> free. Whoever holds it
    last calls ``release`` once: the tracking loop for offered slots, the detection loop for
    batched ones.
    """

    __slots__ = ("_pool", "bucket", "geometry", "pixels")

    def __init__(self, pool: SlotPool, bucket: Bucket) -> None:
        self._pool = pool
        self.bucket = bucket
        self.pixels: ByteArray = np.empty((bucket.height, bucket.width, 3), np.uint8)
        self.geometry: Letterbox | None = None

    def release(self) -> None:
        """Give the slot back to its pool."""
        self._pool.put_back(self)


class SlotPool:
    """At most ``limit`` slots of one bucket, made when first needed. Safe in any thread."""

    def __init__(self, bucket: Bucket, limit: int) -> None:
        self.bucket = bucket
        self.limit = limit
        self._lock = threading.Lock()
        self._free: list[Slot] = []
        self._made = 0

    def take(self) -> Slot | None:
        """A free slot, or None when all are in use (the frame is then tracked)."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._made >= self.limit:
                return None
            self._made += 1
        return Slot(self, self.bucket)

    def put_back(self, slot: Slot) -> None:
        """Called by ``Slot.release`` only."""
        with self._lock:
            if any(free is slot for free in self._free):
                raise AssertionError(f"a slot of {self.bucket} was released twice")
            self._free.append(slot)

    @property
    def in_use(self) -> int:
        with self._lock:
            return self._made - len(self._free)
