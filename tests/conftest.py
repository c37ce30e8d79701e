"""Which tests want the machine for themselves; the others run several at a time."""

from __future__ import annotations

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
