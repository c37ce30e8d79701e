"""A detector without a model: it finds the bright rectangles of synthetic cameras.

For tests, the simulator's counterpart in real time, and ``vidserve`` without weights. It takes
the time it is told to take, so that everything around it can be tried at any speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from vidserve.clock import Clock
from vidserve.detection.detector import DetectorInfo
from vidserve.detection.letterbox import to_source
from vidserve.detection.service_formula import ServiceTime, service_time
from vidserve.errors import DetectorError
from vidserve.frames import ByteArray, Detections, FloatArray
from vidserve.slots import Slot

SCORE = 0.9
# What synthetic cameras promise: objects are saturated (brightest channel over 96, over 80
# above the darkest), the background and the letterbox grey are neither.
_MIN_BRIGHT = 96
_MIN_SATURATION = 80
_STEP_PX = 4
_MIN_SAMPLES = 2  # a speck of one sample is noise


class FakeDetector:
    """Finds saturated rectangles, in a stated time. Owned by one thread, as any detector.

    Args:
        service: ``"a+bn"`` in milliseconds, or a function from batch size to seconds.
        clock: Its ``sleep_until`` spends the time; a manual clock is moved.
        names: Class names by id; every object gets the lowest id.
        max_batch: Largest batch that it takes; None: any.
        fail_every: Every call whose number is a multiple of this raises; 0: none.
        fail_after: Every call after this many raises; None: none.
        noise: Standard deviation of each box side, as a share of the box's size.
        seed: Of the noise.
        hang: While it is set, ``detect`` does not return.
    """

    def __init__(
        self,
        service: str | ServiceTime = "3+2n",
        *,
        clock: Clock,
        names: Mapping[int, str] | None = None,
        max_batch: int | None = None,
        fail_every: int = 0,
        fail_after: int | None = None,
        noise: float = 0.0,
        seed: int = 0,
        hang: threading.Event | None = None,
    ) -> None:
        self._service = service_time(service) if isinstance(service, str) else service
        self._clock = clock
        self._max_batch = max_batch
        self._fail_every = fail_every
        self._fail_after = fail_after
        self._noise = noise
        self._random = np.random.default_rng(seed)
        self._hang = hang
        self._calls = 0
        self._names = dict(names or {0: "object"})
        label = service if isinstance(service, str) else "function"
        self._info = DetectorInfo("fake", "fake", "cpu", self._names, f"fake:{label}")

    @property
    def info(self) -> DetectorInfo:
        return self._info

    @property
    def max_batch(self) -> int | None:
        return self._max_batch

    @property
    def calls(self) -> int:
        """How often ``detect`` was called, failures included."""
        return self._calls

    def detect(self, slots: Sequence[Slot]) -> list[Detections]:
        started_s = self._clock.now()
        self._calls += 1
        call = self._calls
        while self._hang is not None and self._hang.is_set():
            time.sleep(0.005)  # real time: what hangs in a library does not follow our clock
        failing = self._fail_every > 0 and call % self._fail_every == 0
        if failing or (self._fail_after is not None and call > self._fail_after):
            raise DetectorError(f"the fake detector fails on call {call}, as it was told to")
        found = [self._look(slot) for slot in slots]
        self._clock.sleep_until(started_s + self._service(len(slots)))
        return found

    def close(self) -> None:
        """Nothing to free."""

    def _look(self, slot: Slot) -> Detections:
        if slot.geometry is None:
            raise DetectorError("a slot without a picture was given to the detector")
        boxes = find_saturated(slot.pixels)
        if self._noise > 0.0 and len(boxes):
            size = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
            shift = self._random.normal(0.0, self._noise, boxes.shape).astype(np.float32) * size
            boxes = np.sort((boxes + shift).reshape(-1, 2, 2), axis=1).reshape(-1, 4)
        boxes = to_source(boxes, slot.geometry)
        sides = boxes[:, 2:] - boxes[:, :2]
        boxes = boxes[(sides > 0.0).all(axis=1)]
        n = len(boxes)
        return Detections(
            boxes, np.full(n, SCORE, np.float32), np.full(n, min(self._names), np.int32)
        )


def find_saturated(rgb: ByteArray) -> FloatArray:
    """Boxes of the connected saturated bright areas, from every fourth pixel.

    Args:
        rgb: uint8 (height, width, 3); the order of channels does not matter.

    Returns:
        float32 (n, 4), x1 y1 x2 y2 in pixels of ``rgb``, left to right; each side is within 2
        pixels of the truth. Touching areas are one box.
    """
    sample = rgb[::_STEP_PX, ::_STEP_PX]
    first, second, third = sample[..., 0], sample[..., 1], sample[..., 2]
    brightest = np.maximum(np.maximum(first, second), third)
    darkest = np.minimum(np.minimum(first, second), third)
    mask = (brightest > _MIN_BRIGHT) & (brightest - darkest > _MIN_SATURATION)
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    stats = stats[1:]  # the first is the background
    stats = stats[stats[:, cv2.CC_STAT_AREA] >= _MIN_SAMPLES]
    stats = stats[np.argsort(stats[:, cv2.CC_STAT_LEFT], kind="stable")]
    left, top = stats[:, cv2.CC_STAT_LEFT], stats[:, cv2.CC_STAT_TOP]
    right, bottom = left + stats[:, cv2.CC_STAT_WIDTH], top + stats[:, cv2.CC_STAT_HEIGHT]
    # A sample stands for the pixel it was taken from: the true edge lies anywhere up to a step
    # before the first and after the last one. The middle of that range is unbiased.
    half = (_STEP_PX - 1) / 2.0
    return np.stack(
        [
            left * _STEP_PX - half,
            top * _STEP_PX - half,
            (right - 1) * _STEP_PX + 1 + half,
            (bottom - 1) * _STEP_PX + 1 + half,
        ],
        axis=1,
    ).astype(np.float32)
