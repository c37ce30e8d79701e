"""The detector beside the cameras: a few seconds of the daemon itself, published to nobody."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from vidserve.config import LoadResult
from vidserve.daemon import Daemon
from vidserve.errors import VidserveError
from vidserve.frames import Bucket

LIVE_S = 5.0
_LEAST_BATCHES = 20


def beside_cameras(
    result: LoadResult, for_s: float = LIVE_S
) -> Mapping[Bucket, Mapping[int, float]]:
    """Service times, as the scheduler learnt them while all cameras of the config ran.

    A detector on the CPU shares cores, caches and the interpreter with them: on two cores beside
    nine sample cameras a batch of one took 8 to 12 ms instead of 6 to 8. Owns the main thread
    for ``for_s`` and the start.

    Returns:
        Seconds by shape and batch size; empty if too little was detected, or the run failed.
    """
    assert result.config is not None
    alone = result.config.model_copy(update={"mqtt": None, "outputs": (), "history": None})
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # its life is not the plan's
    try:
        report = Daemon(replace(result, config=alone)).run(for_s)
    except VidserveError:
        return {}  # the plan goes by what was measured before, and has said what is wrong
    finally:
        logging.disable(before)
    if report["batches"]["count"] < _LEAST_BATCHES:
        return {}
    return {
        Bucket.parse(shape): {int(n): ms / 1000 for n, ms in table_ms.items()}
        for shape, table_ms in report["detector"]["service_ms"].items()
    }
