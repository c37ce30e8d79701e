"""Which device the detector runs on."""

from __future__ import annotations

import torch

from vidserve.errors import DetectorError


def pick_device(device: str) -> torch.device | str:
    """What to load a model on.

    Args:
        device: ``auto`` (the first CUDA device, else the CPU), ``cpu``, ``cuda``, ``cuda:1`` or
            ``1``, or ``intel:gpu`` and the like for OpenVINO.

    Returns:
        A ``torch.device`` (CUDA ones with their index), or the string for OpenVINO.

    Raises:
        DetectorError: torch knows no such device, or the machine has none.
    """
    if device == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if device.startswith("intel"):
        return device
    try:
        picked = torch.device(f"cuda:{device}" if device.isdigit() else device)
    except RuntimeError as error:
        raise DetectorError(f"detector.device: {device!r} is none of torch's: {error}") from error
    if picked.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (picked.index or 0) >= count:
            raise DetectorError(
                f"detector.device: {device}, but there are {count} CUDA devices; use auto or cpu"
            )
        picked = torch.device("cuda", picked.index or 0)
    return picked
