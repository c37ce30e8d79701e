"""Keyframes by doubt: rare where nothing happens, never more on average than asked."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.scheduling.keyframes import CameraPlan

FPS, K, MAX_GAP_S = 30.0, 5, 2.0


def keyframes(doubt: Callable[[float], float], for_s: float, adaptive: bool = True) -> list[float]:
    """Capture times of the keyframes; each is detected at once."""
    plan = CameraPlan("gate", 1.0, K, 1 / FPS, adaptive)
    found = []
    for frame in range(round(for_s * FPS)):
        now_s = frame / FPS
        plan.saw(now_s)
        plan.doubt = doubt(now_s)
        if plan.due(now_s, MAX_GAP_S):
            plan.went(now_s)
            found.append(now_s)
    return found


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(times)]


def test_a_quiet_scene_costs_one_detection_in_the_largest_gap() -> None:
    times = keyframes(lambda now_s: 0.0, 60.0)
    assert len(times) == 30
    assert gaps(times) == pytest.approx([MAX_GAP_S] * 29, abs=1e-6)


def test_a_usual_scene_gets_what_is_configured() -> None:
    times = keyframes(lambda now_s: 0.5, 20.0)
    assert gaps(times) == pytest.approx([K / FPS] * (len(times) - 1), abs=1e-6)


def test_a_busy_scene_gets_no_less_and_on_average_no_more() -> None:
    times = keyframes(lambda now_s: 1.0, 60.0)
    assert max(gaps(times)) <= K / FPS + 1e-6
    assert len(times) <= 60 * FPS / K + 1


def test_what_a_quiet_time_saved_is_spent_when_something_happens() -> None:
    times = keyframes(lambda now_s: 0.0 if now_s < 10 else 1.0, 14.0)
    before = [t for t in times if t < 10]
    burst = [t for t in times if 10 <= t < 11]
    assert len(before) == 5
    assert burst[0] == pytest.approx(10.0, abs=0.04)  # at once, not after the rest of two seconds
    assert len(burst) >= 1.5 * FPS / K
    assert len(times) <= 14 * FPS / K


def test_between_quiet_and_usual_the_interval_falls_steadily() -> None:
    plan = CameraPlan("gate", 1.0, K, 1 / FPS, adaptive=True)
    wanted = []
    for percent in range(0, 101, 5):
        plan.doubt = percent / 100
        wanted.append(plan.wanted_s(MAX_GAP_S))
    assert wanted[0] == MAX_GAP_S
    assert wanted[10] == pytest.approx(K / FPS)
    assert wanted[20] == pytest.approx(0.5 * K / FPS)
    assert all(b < a for a, b in itertools.pairwise(wanted))


def test_without_motion_to_see_doubt_changes_nothing() -> None:
    plain = keyframes(lambda now_s: 0.0, 10.0, adaptive=False)
    assert gaps(plain) == pytest.approx([K / FPS] * (len(plain) - 1), abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_any_history_of_doubt_stays_within_the_budget(doubts: list[float], seed: int) -> None:
    drawn = random.Random(seed)
    jitter = [drawn.uniform(0, 0.004) for _ in range(len(doubts) * 30)]
    plan = CameraPlan("gate", 1.0, K, 1 / FPS, adaptive=True)
    times: list[float] = []
    for frame in range(len(doubts) * 15):
        now_s = frame / FPS + jitter[frame]
        plan.saw(now_s)
        plan.doubt = doubts[frame // 15]
        if plan.due(now_s, MAX_GAP_S):
            plan.went(now_s)
            times.append(now_s)
    assert len(times) <= len(doubts) * 15 / K * 1.02 + 2
    assert all(gap <= MAX_GAP_S + 0.04 for gap in gaps(times))
