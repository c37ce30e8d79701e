"""Whether a block of a test leaves threads, sockets or child processes behind."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator


def descriptors() -> dict[int, str]:
    """The open file descriptors of this process, and what each is."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of listdir itself
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def children() -> set[int]:
    """The child processes of this process, of any of its threads."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                found |= {int(pid) for pid in file.read().split()}
    return found


@contextlib.contextmanager
def no_leak(patience_s: float = 5.0) -> Iterator[None]:
    """All threads, file descriptors and children that the block makes are gone soon after it."""
    threads, files, processes = set(threading.enumerate()), descriptors(), children()
    yield
    until_s = time.monotonic() + patience_s
    while True:
        left = [
            *(thread.name for thread in set(threading.enumerate()) - threads),
            *(f"fd {one}: {what}" for one, what in descriptors().items() if one not in files),
            *(f"process {pid}" for pid in children() - processes),
        ]
        if not left or time.monotonic() > until_s:
            break
        time.sleep(0.01)
    assert not left, f"left behind: {left}"
