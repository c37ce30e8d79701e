"""The detection thread gives way to the cameras on a CPU."""

from __future__ import annotations

import logging
import os
import sys
import threading

logger = logging.getLogger(__name__)

LOWEST = 19


def yield_to_cameras() -> None:
    """Set the lowest priority (nice 19) for the calling thread alone.

    Linux keeps a nice value a thread, and a new thread starts with that of its maker: called
    by the detection thread before it loads the model, it holds for the workers of OpenMP and
    OpenVINO too. Going down needs no privilege, coming back up would. Elsewhere it does nothing.

    Measured: four 720p30 cameras beside a detector that never rests, 2 cores: 99.9-100 % of
    the frames within 33 ms with it, 84-99 % without.
    """
    if sys.platform != "linux":
        return
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
    except OSError as error:  # a seccomp filter may forbid it: slower cameras, no reason to stop
        logger.warning("the detector cannot give way to the cameras: %s", error)
