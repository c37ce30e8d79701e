"""Suppression for a whole batch against Ultralytics' own, picture by picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.detection.suppression import Rules, select, suppress
from vidserve.detection.ultralytics import prepare_environment
from vidserve.errors import DetectorError


@pytest.fixture(scope="module", autouse=True)
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("state")
    prepare_environment(folder)
    return folder


def raw_output(seed: int, pictures: int, classes: int, anchors: int) -> torch.Tensor:
    """Clusters of overlapping boxes, some beyond the picture, and distinct scores."""
    random = np.random.default_rng(seed)
    centres = random.uniform(-20, 660, (pictures, 2, 6)).repeat(anchors // 6 + 1, 2)[..., :anchors]
    sizes = random.uniform(10, 200, (pictures, 2, 6)).repeat(anchors // 6 + 1, 2)[..., :anchors]
    jitter = random.normal(0, 6, (2, pictures, 2, anchors))
    boxes = np.concatenate([centres + jitter[0], np.abs(sizes + jitter[1]) + 1], axis=1)
    # Eighths: float32 is exact wherever a group is moved to, so that no overlap is decided by
    # rounding (in one of a thousand such outputs one is, and Ultralytics rounds the more).
    boxes = np.round(boxes * 4) / 4
    scores = random.beta(0.6, 3.0, (pictures, classes, anchors))
    return torch.from_numpy(np.concatenate([boxes, scores], axis=1)).float()


@given(
    seed=st.integers(0, 10_000),
    pictures=st.integers(1, 5),
    classes=st.integers(1, 9),
    # Ultralytics takes an output of exactly 6 anchors for an end-to-end one.
    anchors=st.integers(1, 400).filter(lambda anchors: anchors != 6),
    low=st.sampled_from([0.01, 0.1, 0.5, 0.95]),
    iou=st.sampled_from([0.3, 0.7]),
    limit=st.sampled_from([5, 300]),
)
@settings(max_examples=60, deadline=None)
def test_it_agrees_with_ultralytics(
    seed: int, pictures: int, classes: int, anchors: int, low: float, iou: float, limit: int
) -> None:
    from ultralytics.utils.nms import non_max_suppression

    output = raw_output(seed, pictures, classes, anchors)
    kept = [0, 2] if classes > 2 else None
    allowed = None
    if kept is not None:
        allowed = torch.zeros(classes, dtype=torch.bool)
        allowed[kept] = True
    ours = suppress(output.clone(), Rules(low, iou, limit, allowed))
    theirs = non_max_suppression(output, low, iou, classes=kept, max_det=limit)
    assert len(ours) == len(theirs) == pictures
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == tuple(other.shape)
        assert np.allclose(mine, other.numpy(), atol=0.01)


def test_boxes_of_other_pictures_and_classes_do_not_touch() -> None:
    # The very same boxes everywhere, at the edge where shifted groups could meet.
    output = torch.zeros(3, 4 + 4, 40)
    output[:, :4] = torch.tensor([638.0, -2.0, 30.0, 30.0])[None, :, None]
    output[:, 0, ::2] = 2.0
    for anchor in range(40):
        output[:, 4 + anchor % 4, anchor] = 0.5 + anchor / 100
    for rows in suppress(output, Rules(0.1, 0.7, 300)):
        # Two places, and in each the classes that occur there.
        assert len(rows) == 4
        assert sorted(rows[:, 5].tolist()) == [0, 1, 2, 3]


def test_too_many_candidates_keep_the_best() -> None:
    output = torch.zeros(2, 5, 4000)
    output[:, 0] = torch.arange(4000) * 10.0
    output[:, 2:4] = 5.0
    output[0, 4] = torch.linspace(0.2, 0.9, 4000)
    first, second = suppress(output, Rules(0.1, 0.7, 4000))
    assert len(first) == 3000 and len(second) == 0
    assert first[0, 4] == pytest.approx(0.9)
    assert first[-1, 4] > 0.3


def test_half_precision_and_empty() -> None:
    output = raw_output(1, 2, 3, 50)
    full = suppress(output, Rules(0.3, 0.7, 300))
    half = suppress(output.half(), Rules(0.3, 0.7, 300))
    assert all(rows.dtype == np.float32 for rows in half)
    assert abs(len(full[0]) - len(half[0])) <= 3
    nothing = suppress(output, Rules(0.999, 0.7, 300))
    assert [rows.shape for rows in nothing] == [(0, 6), (0, 6)]


def test_end_to_end_rows_are_only_chosen() -> None:
    output = torch.tensor(
        [
            [[0, 0, 9, 9, 0.9, 1], [0, 0, 9, 9, 0.5, 0], [0, 0, 9, 9, 0.05, 1]],
            [[1, 1, 5, 5, 0.2, 0], [1, 1, 5, 5, 0.8, 1], [0, 0, 0, 0, 0, 0]],
        ]
    )
    first, second = select(output, Rules(0.1, 0.7, 300))
    assert first[:, 4].tolist() == pytest.approx([0.9, 0.5])
    assert second[:, 4].tolist() == pytest.approx([0.8, 0.2])
    allowed = torch.tensor([True, False])
    first, second = select(output, Rules(0.1, 0.7, 300, allowed))
    assert first[:, 5].tolist() == [0] and second[:, 5].tolist() == [0]
    assert [len(rows) for rows in select(output, Rules(0.1, 0.7, 1))] == [1, 1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("channel", [0, 4])
def test_what_is_no_number_is_an_error(bad: float, channel: int) -> None:
    output = raw_output(2, 2, 3, 60)
    output[:, 4:, 7] = 0.99
    output[1, channel, 7] = bad
    with pytest.raises(DetectorError, match="not finite"):
        suppress(output, Rules(0.1, 0.7, 300))
    rows = torch.tensor([[[0, 0, 9, 9, 0.9, 1.0]]])
    rows[0, 0, channel] = bad
    with pytest.raises(DetectorError, match="not finite"):
        select(rows, Rules(0.1, 0.7, 300))
