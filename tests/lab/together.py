"""Many small real-time tests at the same time: together they take as long as the slowest.

A scenario is a generator. It makes its server, yields a ``Run`` (cameras to run and what to wait
for), and goes on with its assertions when all scenarios got what they waited for and all cameras
have stopped. So each may be read as a test of its own, and fails by its own name.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tests.lab.leaks import no_leak
from tests.lab.sink import CollectingSink, running
from vidserve.capture.camera import CameraSettings, CameraThread


@dataclass(frozen=True)
class Run:
    """What a scenario wants to be run.

    Attributes:
        sink: Of its cameras.
        settings: Of its cameras.
        until: What it waits for; looked at often, in one thread.
    """

    sink: CollectingSink
    settings: list[CameraSettings]
    until: Callable[[], bool]


Scenario = Iterator[Run]
Name = TypeVar("Name")
Failures = dict[Name, Exception | None]  # what each failed with
Step = Callable[[], object]


def in_turn(*steps: Step) -> Callable[[], bool]:
    """For ``Run.until``: one step after the other, each again as long as it returns False."""
    left = list(steps)

    def until() -> bool:
        while left and left[0]() is not False:
            left.pop(0)
        return not left

    return until


def run_together(scenarios: Mapping[Name, Scenario], timeout_s: float = 30.0) -> Failures[Name]:
    """Run them; what each failed with, by name. Takes ``timeout_s`` and a little at most.

    Raises:
        AssertionError: a thread, a descriptor or a child process is left behind.
    """
    with no_leak():
        return _run(scenarios, timeout_s)


def _run(scenarios: Mapping[Name, Scenario], timeout_s: float) -> Failures[Name]:
    failures: Failures[Name] = dict.fromkeys(scenarios)
    runs: dict[Name, Run] = {}
    cameras: list[CameraThread] = []
    with contextlib.ExitStack() as stack:
        for name, scenario in scenarios.items():
            try:
                runs[name] = next(scenario)
            except Exception as error:
                failures[name] = error
        for run in runs.values():
            cameras += stack.enter_context(running(run.sink, *run.settings))
        _wait(dict(runs), failures, timeout_s)
        # All are asked before the first is waited for: one in a blocked call takes its time.
        for camera in cameras:
            camera.request_stop()
    for name in runs:
        try:
            for _ in scenarios[name]:
                raise AssertionError(f"{name} yields twice")
        except Exception as error:
            failures[name] = failures[name] or error
    return failures


def _wait(
    waiting: dict[Name, Run], failures: dict[Name, Exception | None], timeout_s: float
) -> None:
    until_s = time.monotonic() + timeout_s
    never = threading.Event()
    while waiting:
        for name, run in list(waiting.items()):
            try:
                if run.until():
                    del waiting[name]
            except Exception as error:
                failures[name] = error
                del waiting[name]
        if time.monotonic() > until_s:
            for name, run in waiting.items():
                states = {one.name: run.sink.states(one.name) for one in run.settings}
                failures[name] = AssertionError(f"not within {timeout_s} s; states {states}")
            return
        never.wait(0.02)
