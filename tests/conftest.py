"""Which tests want the machine for themselves; the others run several at a time."""

from __future__ import annotations

import pytest

# The whole daemon in real time with its promises counted, or memory and CPU of a process: beside
# other tests they would measure those.
ALONE = frozenset(
    {
        "test_capture_latest",
        "test_capture_stopping",
        "test_demo",
        "test_end_to_end",
        "test_isolation",
        "test_motion_end_to_end",
        "test_mqtt_end_to_end",
        "test_planning_command",
        "test_reports_process",
        "test_reports_sources",
        "test_service",
        "test_soak",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in ALONE:
            item.add_marker(pytest.mark.alone)
