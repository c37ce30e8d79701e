"""The fake detector: what it sees, how long it takes, how it fails."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.clock import ManualClock
from vidserve.detection.detector import Detector
from vidserve.detection.fake import FakeDetector
from vidserve.detection.service_formula import parse_service
from vidserve.errors import DetectorError
from vidserve.frames import Letterbox
from vidserve.scheduling.buckets import rectangle
from vidserve.slots import Slot, SlotPool


def painted(detector: FakeDetector, boxes: list[tuple[int, int, int, int]]) -> Slot:
    """A slot of a 1280x720 camera, dark, with bright rectangles at boxes in source pixels."""
    bucket = rectangle(1280, 720, 640)
    slot = SlotPool(bucket, 1).take()
    assert slot is not None
    geometry = slot.geometry = Letterbox.fit(1280, 720, bucket)
    slot.pixels[:] = 114
    top, left = geometry.pad_top, geometry.pad_left
    inner = slot.pixels[top : top + geometry.inner_height, left : left + geometry.inner_width]
    inner[:] = 30
    scale = geometry.inner_width / 1280
    for x1, y1, x2, y2 in boxes:
        inner[round(y1 * scale) : round(y2 * scale), round(x1 * scale) : round(x2 * scale)] = (
            220,
            60,
            40,
        )
    return slot


def test_it_is_a_detector() -> None:
    detector: Detector = FakeDetector(clock=ManualClock(), names={3: "car", 5: "bus"})
    assert detector.info.names == {3: "car", 5: "bus"}
    assert detector.max_batch is None
    detector.close()


def test_rectangles_are_found_in_source_pixels() -> None:
    detector = FakeDetector(clock=ManualClock(), names={3: "car"})
    truth = [(100, 200, 220, 500), (600, 40, 760, 160)]
    (found,) = detector.detect([painted(detector, truth)])

    # a bucket of 640 for 1280: 2 pixels there are 4 here
    assert found.boxes.shape == (2, 4)
    assert np.abs(found.boxes - np.array(truth)).max() <= 4.0
    assert found.scores.tolist() == pytest.approx([0.9, 0.9])
    assert found.classes.tolist() == [3, 3]
    assert found.boxes.dtype == np.float32
    assert found.scores.dtype == np.float32
    assert found.classes.dtype == np.int32


@given(
    x=st.integers(0, 1100),
    y=st.integers(0, 550),
    width=st.integers(40, 180),
    height=st.integers(40, 170),
)
@settings(max_examples=60, deadline=None)
def test_any_rectangle_is_found_once(x: int, y: int, width: int, height: int) -> None:
    detector = FakeDetector(clock=ManualClock())
    (found,) = detector.detect([painted(detector, [(x, y, x + width, y + height)])])
    assert len(found) == 1
    assert np.abs(found.boxes[0] - [x, y, x + width, y + height]).max() <= 4 * 3.0


def test_nothing_in_view_is_a_normal_result() -> None:
    detector = FakeDetector(clock=ManualClock())
    (found,) = detector.detect([painted(detector, [])])
    assert len(found) == 0
    assert found.boxes.shape == (0, 4)


def test_it_takes_the_stated_time() -> None:
    clock = ManualClock()
    detector = FakeDetector("3+2n", clock=clock)
    slots = [painted(detector, []) for _ in range(4)]
    detector.detect(slots)
    assert clock.now() == pytest.approx(0.011)
    detector.detect(slots[:1])
    assert clock.now() == pytest.approx(0.016)
    FakeDetector(lambda n: 0.5 * n, clock=clock).detect(slots[:2])
    assert clock.now() == pytest.approx(1.016)


def test_failures_as_told() -> None:
    detector = FakeDetector(clock=ManualClock(), fail_every=3)
    slot = painted(detector, [])
    outcomes = []
    for _ in range(6):
        try:
            detector.detect([slot])
            outcomes.append(True)
        except DetectorError:
            outcomes.append(False)
    assert outcomes == [True, True, False, True, True, False]
    assert detector.calls == 6

    broken = FakeDetector(clock=ManualClock(), fail_after=1)
    broken.detect([slot])
    for _ in range(2):
        with pytest.raises(DetectorError, match="call"):
            broken.detect([slot])


def test_noise_is_seeded_and_keeps_boxes_in_the_picture() -> None:
    def look(noise: float, seed: int) -> np.ndarray:
        detector = FakeDetector(clock=ManualClock(), noise=noise, seed=seed)
        boxes = [(0, 0, 120, 300), (1180, 420, 1280, 720)]
        return detector.detect([painted(detector, boxes)])[0].boxes

    assert np.array_equal(look(0.1, 1), look(0.1, 1))
    assert not np.array_equal(look(0.1, 1), look(0.1, 2))
    assert np.abs(look(0.05, 3) - look(0.0, 3)).max() < 0.05 * 5 * 300
    noisy = look(2.0, 4)
    assert (noisy[:, :2] >= 0).all() and (noisy[:, 2:] <= [1280, 720]).all()
    assert (noisy[:, 2:] > noisy[:, :2]).all()


def test_it_hangs_while_told_to() -> None:
    hang = threading.Event()
    detector = FakeDetector(clock=ManualClock(), hang=hang)
    slot = painted(detector, [])
    detector.detect([slot])
    hang.set()
    thread = threading.Thread(target=detector.detect, args=([slot],))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    hang.clear()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3+2n", (3, 2)),
        (" 0.5 + 1.5 n ", (0.5, 1.5)),
        ("100", (100, 0)),
        ("2n", (0, 2)),
        ("n", (0, 1)),
        ("3+n", (3, 1)),
        ("3+2*n", (3, 2)),
        (".5n", (0, 0.5)),
    ],
)
def test_formula(text: str, expected: tuple[float, float]) -> None:
    assert parse_service(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "3ms",
        "3+",
        "+2n",
        "3-2n",
        "-3",
        "2n+3n",
        "3+2",
        "0",
        "0+0n",
        "1e3",
        "inf",
        "*n",
        "3+*n",
    ],
)
def test_formula_refused(text: str) -> None:
    with pytest.raises(ValueError, match="service time"):
        parse_service(text)


def test_formula_needs_no_heavy_import() -> None:
    code = (
        "import sys; import vidserve.detection.service_formula; "
        "print([m for m in ('cv2', 'torch', 'numpy', 'av') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
