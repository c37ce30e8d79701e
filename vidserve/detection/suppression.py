"""From a model's output to boxes: threshold and non-maximum suppression for a whole batch.

The rules (best class only, strictly over the threshold, class-aware, ``iou`` 0.7, at most 300)
are the defaults of ``YOLO.predict``; the work is done for all pictures at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torchvision

from vidserve.errors import DetectorError

# A trained model has a few hundred candidates a picture at a threshold of 0.1; a broken one has
# thousands, and suppression is quadratic.
_MAX_CANDIDATES = 3000


@dataclass(frozen=True, slots=True)
class Rules:
    """What counts as a detection.

    Attributes:
        low: Scores must be over this.
        iou: Of two boxes of one class that overlap more, the lower goes.
        max_detections: Of one picture.
        allowed: bool (classes,), on the model's device: which classes are kept; None: all.
    """

    low: float
    iou: float
    max_detections: int
    allowed: torch.Tensor | None = None


def class_mask(
    classes: Collection[int | str] | None, names: Mapping[int, str]
) -> torch.Tensor | None:
    """The mask for ``Rules.allowed``, on the CPU; None for all.

    Raises:
        DetectorError: the model knows no class of that id or name.
    """
    if classes is None:
        return None
    ids = {name: key for key, name in names.items()}
    allowed = torch.zeros(len(names), dtype=torch.bool)
    for wanted in classes:
        key = ids.get(wanted) if isinstance(wanted, str) else wanted
        if key not in names:
            close = difflib.get_close_matches(str(wanted), list(ids), n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise DetectorError(f"detector.classes: the model knows no {wanted!r}{hint}")
        allowed[key] = True
    return allowed


def suppress(output: torch.Tensor, rules: Rules) -> list[npt.NDArray[np.float32]]:
    """Detections of a model that leaves suppression to its caller.

    Args:
        output: (n, 4 + classes, anchors), any device, float16 or float32: centre x, centre y,
            width, height in pixels of the input, then a score for each class.
        rules: What counts.

    Returns:
        For each picture float32 (k, 6): x1 y1 x2 y2, score, class; best first.

    Raises:
        DetectorError: a score or box is not finite.
    """
    n = output.shape[0]
    best, classes = output[:, 4:].max(1)  # both (n, anchors)
    if not bool(torch.isfinite(best).all()):
        raise DetectorError("the model's scores are not finite")
    wanted = best > rules.low
    if rules.allowed is not None:
        wanted &= rules.allowed[classes]
    if int(wanted.sum(1).max()) > _MAX_CANDIDATES:
        ranked = torch.where(wanted, best, best.new_zeros(())).topk(_MAX_CANDIDATES, dim=1)
        wanted &= torch.zeros_like(wanted).scatter_(1, ranked.indices, True)
    image, anchor = wanted.nonzero(as_tuple=True)
    if not len(image):
        return [np.empty((0, 6), np.float32) for _ in range(n)]
    scores = best[image, anchor].float()
    labels = classes[image, anchor]
    centre_size = output[image, :4, anchor].float()
    half = centre_size[:, 2:] / 2
    boxes = torch.cat([centre_size[:, :2] - half, centre_size[:, :2] + half], dim=1)

    # One call for all: boxes of different pictures and classes are moved apart. Numbering only
    # the groups that occur keeps the coordinates small, where float32 is exact enough.
    _, group = torch.unique(image * (output.shape[1] - 4) + labels, return_inverse=True)
    span = boxes.max() - boxes.min() + 1.0
    kept = torchvision.ops.nms(boxes + (group * span)[:, None], scores, rules.iou)

    rows = torch.cat(
        [image[kept, None].float(), boxes[kept], scores[kept, None], labels[kept, None].float()], 1
    )
    return _split(rows.cpu().numpy(), n, rules.max_detections)


def select(output: torch.Tensor, rules: Rules) -> list[npt.NDArray[np.float32]]:
    """Detections of an end-to-end model, which has suppressed already.

    Args:
        output: (n, rows, 6 or more): x1 y1 x2 y2 in pixels of the input, score, class.
        rules: What counts; ``iou`` is not used.

    Returns:
        As ``suppress``.

    Raises:
        DetectorError: a score or box is not finite.
    """
    n, count = output.shape[:2]
    found = output[..., :6].float().cpu().reshape(n * count, 6)
    if not bool(torch.isfinite(found[:, 4]).all()):
        raise DetectorError("the model's scores are not finite")
    wanted = found[:, 4] > rules.low
    if rules.allowed is not None:
        allowed = rules.allowed.cpu()
        labels = found[:, 5].long()
        known = (labels >= 0) & (labels < len(allowed))
        wanted &= known & allowed[labels.clamp(0, len(allowed) - 1)]
    image = torch.arange(n).repeat_interleave(count)
    rows = torch.cat([image[wanted, None].float(), found[wanted]], 1)
    order = rows[:, 5].argsort(descending=True, stable=True)
    return _split(rows[order].numpy(), n, rules.max_detections)


def _split(rows: npt.NDArray[np.float32], n: int, limit: int) -> list[npt.NDArray[np.float32]]:
    """Rows (image, box, score, class), best first, to one array for each image."""
    if not np.isfinite(rows).all():
        raise DetectorError("the model's boxes are not finite")
    return [rows[rows[:, 0] == image, 1:][:limit] for image in range(n)]
