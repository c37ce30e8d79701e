"""Which tests want the machine for themselves; the others run several at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# The whole daemon in real time with its promises counted, many cameras at once, or the memory of a
# process: beside other tests they would measure those.
ALONE = frozenset(
    {
        "test_capture_latest",
        "test_capture_network_gstreamer",
        "test_end_to_end",
        "test_isolation",
        "test_motion_end_to_end",
        "test_mqtt_end_to_end",
        "test_reports_process",
        "test_soak",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in ALONE:
            item.add_marker(pytest.mark.alone)


@pytest.fixture(autouse=True)
def usual_priority() -> Iterator[None]:
    """The AV1 encoder of FFmpeg (SVT) makes the process of root a real-time one, and its children:

    what the tests started after it took the machine from everything else.
    """
    yield
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
