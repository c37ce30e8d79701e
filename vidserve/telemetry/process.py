"""What the process itself costs, from /proc. Linux."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_snapshot() -> dict[str, float | int]:
    """Resident memory in MB, CPU seconds since start, threads that Python knows and all."""
    resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "rss_mb": round(resident_pages * _PAGE_BYTES / 1e6, 1),
        "cpu_s": round(time.process_time(), 2),
        "threads": len(os.listdir("/proc/self/task")),
        "python_threads": threading.active_count(),
    }
