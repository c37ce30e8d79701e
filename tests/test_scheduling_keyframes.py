"""Keyframes: due by seconds at any rate, spread over groups."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.scheduling.keyframes import CameraPlan, stagger


def keyframes(plan: CameraPlan, captured_s: list[float]) -> list[int]:
    """Numbers of the frames that become keyframes, each detected at once."""
    chosen = []
    for seq, when_s in enumerate(captured_s):
        plan.saw(when_s)
        if plan.due(when_s):
            chosen.append(seq)
            plan.last_s = when_s
    return chosen


def gaps(values: list[int]) -> list[int]:
    return [later - earlier for earlier, later in itertools.pairwise(values)]


# -- due -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fps", [1, 10, 12.5, 15, 24, 25, 29.97, 30, 50, 60, 120])
@pytest.mark.parametrize("interval_frames", [1, 2, 5, 7])
def test_every_kth_frame_whatever_the_rate(fps: float, interval_frames: int) -> None:
    """The rate is not told: it is measured, in the first seconds."""
    plan = CameraPlan("gate", 1.0, interval_frames)
    chosen = keyframes(plan, [100.0 + k / fps for k in range(400)])
    late = [seq for seq in chosen if seq >= 100]
    assert set(gaps(late)) == {interval_frames}
    assert plan.interval_s == pytest.approx(interval_frames / fps, rel=0.02)


@pytest.mark.parametrize("fps", [10, 29.97, 60])
def test_jitter_moves_no_keyframe(fps: float) -> None:
    drawn = random.Random(1)
    plan = CameraPlan("gate", 1.0, 5, 1 / fps)
    jitter_s = 0.2 / fps
    chosen = keyframes(plan, [k / fps + drawn.uniform(0, jitter_s) for k in range(500)])
    assert set(gaps(chosen)) == {5}


def test_a_lost_keyframe_comes_one_frame_later_not_one_interval_later() -> None:
    plan = CameraPlan("gate", 1.0, 5, 1 / 30)
    times_s = [k / 30 for k in range(60)]
    del times_s[10]  # the third keyframe was lost on the way
    chosen = keyframes(plan, times_s)
    captured = [round(times_s[seq] * 30) for seq in chosen]
    assert captured[:4] == [0, 5, 11, 16]
    assert plan.period_s == pytest.approx(1 / 30, rel=0.04)


def test_one_lost_frame_hardly_moves_the_period() -> None:
    plan = CameraPlan("gate", 1.0, 5)
    times_s = [k / 30 for k in range(200) if k != 150]
    keyframes(plan, times_s[:150])
    before_s = plan.period_s
    keyframes(plan, times_s[150:152])
    assert plan.period_s == pytest.approx(before_s, rel=0.04)


def test_a_silence_of_an_hour_hardly_moves_the_period() -> None:
    plan = CameraPlan("gate", 1.0, 5)
    keyframes(plan, [k / 30 for k in range(100)])
    keyframes(plan, [3600 + k / 30 for k in range(100)])
    assert plan.period_s == pytest.approx(1 / 30, rel=0.02)


def test_a_stall_at_the_start_is_forgotten_within_seconds() -> None:
    plan = CameraPlan("gate", 1.0, 5)
    keyframes(plan, [0.0, *(5 + k / 30 for k in range(240))])
    assert plan.period_s == pytest.approx(1 / 30, rel=0.05)


@pytest.mark.parametrize(("before", "after"), [(30, 10), (10, 30), (30, 1), (5, 60)])
def test_a_new_rate_is_followed(before: float, after: float) -> None:
    plan = CameraPlan("gate", 1.0, 5)
    keyframes(plan, [k / before for k in range(200)])
    keyframes(plan, [200 / before + k / after for k in range(300)])
    assert plan.period_s == pytest.approx(1 / after, rel=0.05)


def test_a_variable_rate_gets_keyframes_by_its_mean() -> None:
    """A phone's stream: 20 to 50 ms between frames."""
    drawn = random.Random(2)
    times_s = list(itertools.accumulate(drawn.uniform(0.020, 0.050) for _ in range(900)))
    chosen = keyframes(CameraPlan("gate", 1.0, 5), times_s)
    mean_gap_s = (times_s[chosen[-1]] - times_s[chosen[5]]) / (len(chosen) - 6)
    assert mean_gap_s == pytest.approx(5 * 0.035, rel=0.12)


@given(st.lists(st.floats(-10, 10), max_size=80), st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_any_times_leave_a_period_that_makes_sense(
    steps_s: list[float], interval_frames: int
) -> None:
    """Repeats, jumps back, silences."""
    plan = CameraPlan("gate", 1.0, interval_frames)
    keyframes(plan, list(itertools.accumulate(steps_s)))
    assert 1 / 240 - 1e-9 <= plan.period_s <= 2.0 + 1e-9
    assert math.isfinite(plan.interval_s)


def test_the_first_frame_is_due_and_its_gap_has_no_end() -> None:
    plan = CameraPlan("gate", 1.0, 5)
    assert plan.due(123.0)
    assert plan.gap_s(123.0) == math.inf


def test_the_stretch_of_overload_control_lengthens_the_interval() -> None:
    plan = CameraPlan("gate", 1.0, 4, 1 / 30)
    plan.stretch = 1.25
    assert set(gaps(keyframes(plan, [k / 30 for k in range(200)]))) == {5}


# -- groups --------------------------------------------------------------------------------


def plans_of(count: int, fps: float, interval_frames: int, seed: int = 1) -> list[CameraPlan]:
    """Cameras whose frames fall anywhere in the period."""
    drawn = random.Random(seed)
    found = []
    for index in range(count):
        plan = CameraPlan(f"c{index:02}", 1.0, interval_frames, 1 / fps)
        phase_s = drawn.uniform(0, 1 / fps)
        for k in range(3):
            plan.saw(phase_s + k / fps)
        found.append(plan)
    return found


def due_times(plans: list[CameraPlan], fps: float, start_s: float, seconds: float) -> list[float]:
    """When keyframes come after ``start_s``, if each is detected."""
    found = []
    for plan in plans:
        frame_s = plan.phase_s(1 / fps)
        k = math.ceil((start_s - frame_s) * fps - 1e-9)
        while (when_s := frame_s + k / fps) < start_s + seconds:
            if plan.due(when_s):
                found.append(when_s)
                plan.last_s = when_s
            k += 1
    return sorted(found)


def most_within(times_s: list[float], window_s: float) -> int:
    return max(sum(start_s <= t < start_s + window_s for t in times_s) for start_s in times_s)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("count", "interval_frames"), [(16, 5), (24, 5), (8, 5), (9, 5)])
def test_at_most_a_group_is_due_in_one_frame_period(
    count: int, interval_frames: int, seed: int
) -> None:
    plans = plans_of(count, 30, interval_frames, seed)
    stagger(plans, lambda _: 8, 10.0)
    times_s = due_times(plans, 30, 10.0, 20 * interval_frames / 30)
    assert len(times_s) == pytest.approx(20 * count, abs=count)
    # A hair less than a period: neighbours at exactly one period belong to the next.
    assert most_within(times_s, 0.999 / 30) <= 8


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_as_many_groups_as_frames_of_an_interval_take_a_frame_each(seed: int) -> None:
    """24 cameras, K = 3: no frame period is left free, but none holds two groups."""
    plans = plans_of(24, 30, 3, seed)
    stagger(plans, lambda _: 8, 10.0)
    times_s = due_times(plans, 30, 10.0, 2.0)
    in_period = Counter(int((t - times_s[0]) * 30 + 1e-6) for t in times_s)
    assert max(in_period.values()) <= 8


def test_the_groups_take_turns_over_the_whole_interval() -> None:
    plans = plans_of(32, 30, 8)
    stagger(plans, lambda _: 8, 10.0)
    turns = Counter(int((t - 10.0) * 30 % 8) // 2 for t in due_times(plans, 30, 10.0, 8 / 30))
    assert sum(turns.values()) == 32
    assert max(turns.values()) <= 12  # 8, and neighbours on the border of a frame


def test_a_group_is_due_together_so_that_a_hold_fills_its_batch() -> None:
    plans = plans_of(16, 30, 5, seed=4)
    stagger(plans, lambda _: 8, 10.0)
    times_s = due_times(plans, 30, 10.0, 5 / 30)
    gaps_s = sorted(b - a for a, b in itertools.pairwise(times_s))
    assert gaps_s[-1] > 1 / 30  # two groups, a silence between them
    assert times_s[7] - times_s[0] <= 1 / 30
    assert times_s[15] - times_s[8] <= 1 / 30


def test_neighbours_in_phase_share_a_group() -> None:
    """Four cameras early in the period, four late: each four are a group."""
    plans = []
    for index in range(8):
        plan = CameraPlan(f"c{index}", 1.0, 6, 1 / 30)
        plan.saw((0.001 if index % 2 else 0.020) + index * 0.0005)
        plans.append(plan)
    stagger(plans, lambda _: 4, 5.0)
    first_due_s = {p.name: (p.last_s or 0.0) + p.interval_s for p in plans}
    early = [first_due_s[f"c{i}"] for i in (1, 3, 5, 7)]
    late = [first_due_s[f"c{i}"] for i in (0, 2, 4, 6)]
    assert max(early) - min(early) < 0.005
    assert max(late) - min(late) < 0.005


def test_everybody_is_due_within_one_interval() -> None:
    plans = plans_of(40, 25, 10)
    stagger(plans, lambda _: 8, 7.0)
    for plan in plans:
        assert plan.last_s is not None
        first_due_s = plan.last_s + plan.interval_s
        assert 7.0 <= first_due_s <= 7.0 + plan.interval_s + 2 / 25


def test_different_intervals_are_spread_apart_from_each_other() -> None:
    slow, quick = plans_of(8, 30, 10), plans_of(8, 30, 5, seed=2)
    for plan in quick:
        plan.name = "q" + plan.name
    stagger([*slow, *quick], lambda _: 4, 0.0)
    for alike in (slow, quick):
        times_s = due_times(alike, 30, 0.0, 3.0)
        assert most_within(times_s, 0.999 / 30) <= 4


@given(
    count=st.integers(0, 30),
    group_size=st.integers(1, 8),
    intervals=st.lists(st.sampled_from([1, 2, 5, 30]), min_size=30, max_size=30),
    fps=st.sampled_from([1.0, 10.0, 12.5, 29.97, 60.0]),
    now_s=st.floats(0, 1e6),
)
@settings(max_examples=100, deadline=None)
def test_any_mixture_is_due_within_one_interval(
    count: int, group_size: int, intervals: list[int], fps: float, now_s: float
) -> None:
    plans = [CameraPlan(f"c{k}", 1.0, intervals[k], 1 / fps) for k in range(count)]
    for plan in plans[::2]:
        plan.saw(now_s - 0.01)
    stagger(plans, lambda _: group_size, now_s)
    for plan in plans:
        assert plan.last_s is not None
        first_due_s = plan.last_s + plan.interval_s
        # Up to a period until the first frame, and one by the rounding to whole periods.
        assert now_s - 1e-3 <= first_due_s <= now_s + plan.interval_s + 2 * plan.period_s + 1e-3


@pytest.mark.parametrize("seed", range(8))
def test_a_group_stays_together_although_its_rates_were_measured(seed: int) -> None:
    """2.5 periods of wait, and a digit of noise: half of a group came a frame later."""
    drawn = random.Random(seed)
    plans = []
    for k in range(16):
        plan = CameraPlan(f"c{k:02}", 1.0, 5, (1 + drawn.uniform(-1e-4, 1e-4)) / 30)
        plan.saw(drawn.uniform(0, 1 / 30))
        plans.append(plan)
    stagger(plans, lambda _: 8, 10.0)
    dues = sorted((plan.last_s or 0.0) + plan.interval_s for plan in plans)
    periods = [int((due - dues[0]) * 30 + 1e-3) for due in dues]
    assert len(set(periods)) == 2, periods
