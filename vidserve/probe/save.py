"""Writes the picture that a probe shows."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from vidserve.capture.reader import Picture
from vidserve.errors import VidserveError

_QUALITY = 92


def save_picture(picture: Picture, path: Path, force: bool) -> None:
    """Write it as JPEG or PNG, by the suffix of ``path``.

    Args:
        picture: Not damaged.
        path: Ends in .jpg, .jpeg or .png.
        force: Write over a file that is there.

    Raises:
        VidserveError: it cannot be converted or written.
    """
    try:
        good, data = cv2.imencode(
            path.suffix.lower(), picture.to_bgr(), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
        )
    except Exception as error:  # a library's own
        raise VidserveError(f"--save: the picture cannot be converted: {error}") from error
    if not good:
        raise VidserveError(f"--save: a picture of this size cannot be written as {path.suffix}")
    try:
        # "x" refuses what has come into being since the start.
        with path.open("wb" if force else "xb") as out:
            out.write(np.asarray(data, np.uint8).tobytes())
    except OSError as error:
        raise VidserveError(f"--save: cannot write {path}: {error.strerror}") from error
