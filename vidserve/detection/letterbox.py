"""Pictures into buckets and boxes back: the geometry of Ultralytics' rectangular inference.

The numbers (rounding, grey, which side gets the odd pixel) are those of Ultralytics' own
letterbox, so that boxes agree with what ``YOLO.predict`` says of the same picture. A test
compares the pixels.
"""

from __future__ import annotations

import cv2
import numpy as np

from vidserve.frames import ByteArray, FloatArray, Letterbox

PAD_GREY = 114


def write_letterbox_array(bgr: ByteArray, pixels: ByteArray, geometry: Letterbox) -> None:
    """Scale a picture into an input slot, grey around it.

    Colours are swapped at the small size: a 1080p picture has 30 times the pixels of its inner
    part at 320.

    Args:
        bgr: uint8 (geometry.height, geometry.width, 3), BGR. Rows may be strided.
        pixels: uint8 (bucket height, bucket width, 3), RGB; all of it is written.
        geometry: Where the picture lies in ``pixels``.
    """
    if bgr.shape[:2] != (geometry.height, geometry.width):
        raise ValueError(
            f"a picture of {bgr.shape[1]}x{bgr.shape[0]} does not fit a letterbox "
            f"made for {geometry.width}x{geometry.height}"
        )
    size = (geometry.inner_width, geometry.inner_height)
    small = bgr
    if (geometry.width, geometry.height) != size:
        small = cv2.resize(bgr, size, interpolation=cv2.INTER_LINEAR)
    top, left = geometry.pad_top, geometry.pad_left
    bottom, right = top + geometry.inner_height, left + geometry.inner_width
    # A slot is used again by cameras of another aspect ratio: the grey is written each time.
    pixels[:top] = PAD_GREY
    pixels[bottom:] = PAD_GREY
    pixels[top:bottom, :left] = PAD_GREY
    pixels[top:bottom, right:] = PAD_GREY
    cv2.cvtColor(small, cv2.COLOR_BGR2RGB, dst=pixels[top:bottom, left:right])


def to_bucket(boxes_px: FloatArray, geometry: Letterbox) -> FloatArray:
    """Boxes in pixels of the picture to boxes in pixels of the bucket; float32 (n, 4)."""
    scale = np.array(
        [geometry.inner_width / geometry.width, geometry.inner_height / geometry.height] * 2,
        np.float32,
    )
    pad = np.array([geometry.pad_left, geometry.pad_top] * 2, np.float32)
    boxes: FloatArray = boxes_px * scale + pad
    return boxes


def to_source(boxes_px: FloatArray, geometry: Letterbox) -> FloatArray:
    """Boxes in pixels of the bucket to boxes in pixels of the picture, clipped to it.

    Each axis has its own scale, that of the resize itself: the inner size is rounded, so the
    two differ by up to half a pixel in the inner size.

    Args:
        boxes_px: float32 (n, 4), x1 y1 x2 y2.
        geometry: Of the slot.

    Returns:
        float32 (n, 4), a new array.
    """
    scale = np.array(
        [geometry.width / geometry.inner_width, geometry.height / geometry.inner_height] * 2,
        np.float32,
    )
    pad = np.array([geometry.pad_left, geometry.pad_top] * 2, np.float32)
    limit = np.array([geometry.width, geometry.height] * 2, np.float32)
    boxes: FloatArray = np.clip((boxes_px - pad) * scale, np.float32(0.0), limit)
    return boxes
