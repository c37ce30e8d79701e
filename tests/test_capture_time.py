"""Time: capture times are ours, whatever the source and the wall clock say. On a manual clock."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.manual import Played, Sent, play
from vidserve.capture.lag import SourceLag
from vidserve.capture.pacing import LONGEST_STEP_S, Pacer
from vidserve.capture.timing import LiveTiming
from vidserve.clock import ManualClock
from vidserve.frames import DropReason

BUDGET_S = 0.033
BEGIN_S = 1000.5
WRAP_S = 2**33 / 90_000
Pts = Callable[[float], float | None]


def steady(seconds: float, fps: float, pts: Pts) -> list[Sent]:
    """One picture every period, with a pts that is a function of the time."""
    return [Sent(BEGIN_S + i / fps, pts(i / fps)) for i in range(round(seconds * fps))]


def latencies_s(played: Played) -> list[float]:
    return [frame.ready_s - frame.captured_s for frame in played.frames]


# What a source says of the time: nothing, nonsense, or the truth in an odd form.
PTS: dict[str, Pts] = {
    "none": lambda t: None,
    "constant": lambda t: 7.0,
    "negative": lambda t: t - 1e5,
    "of the year 2026": lambda t: t + 1.79e9,
    "beyond all floats' precision": lambda t: 1e300 + t,
    "not a number": lambda t: math.nan,
    "infinite": lambda t: math.inf,
    "wrapping at 33 bits": lambda t: (WRAP_S - 5.0 + t) % WRAP_S,
    "an hour ahead for a while": lambda t: t + (3600.0 if 5.0 < t < 8.0 else 0.0),
    "in milliseconds": lambda t: t * 1000.0,
    "in microseconds, too small": lambda t: t / 1e6,
    "at half the rate": lambda t: t / 2.0,
    "at twice the rate": lambda t: t * 2.0,
    "two per cent fast": lambda t: t * 1.02,
    "two per cent slow": lambda t: t * 0.98,
    "a thousandth slow": lambda t: t * 0.999,
    "in pairs": lambda t: math.floor(t * 15.0 + 1e-6) / 15.0,
    "missing now and then": lambda t: None if round(t * 30) % 7 == 0 else t,
    "repeated now and then": lambda t: t - (1 / 30 if round(t * 30) % 9 == 0 else 0.0),
}


@pytest.mark.parametrize("kind", PTS)
def test_no_timestamp_makes_a_healthy_camera_late_or_loses_its_frames(kind: str) -> None:
    played = play(steady(20.0, 30.0, PTS[kind]))
    played.check()
    assert len(played.frames) == 600
    assert latencies_s(played) == pytest.approx([0.002] * 600, abs=1e-6)


@pytest.mark.parametrize("kind", PTS)
def test_nor_where_the_thread_waits_too_little_to_see_a_packet_come(kind: str) -> None:
    """60 a second, or a picture that takes long to decode: here only the pts tell of a backlog."""
    played = play(steady(30.0, 60.0, PTS[kind]), decode_s=0.006)
    played.check()
    # Pts that run wrong are found out in a few seconds; before that they look like a backlog.
    wrong = kind in ("in microseconds, too small", "at half the rate", "two per cent slow")
    assert played.dropped(DropReason.STALE) <= (4 * 60 if wrong else 0)
    assert max(latencies_s(played)) <= BUDGET_S + 0.007
    ends = [frame for frame in played.frames if frame.captured_s > BEGIN_S + 20.0]
    assert len(ends) >= 0.99 * 600


@pytest.mark.parametrize("drift", [0.999, 0.9999, 1.0001, 1.001])
def test_a_clock_that_drifts_for_hours_gathers_no_lag(drift: float) -> None:
    timing = LiveTiming(BUDGET_S)
    worst_s = 0.0
    for i in range(2 * 3600 * 20):
        came_s = i / 20 + 0.004 * (i % 3)
        stamp = timing.stamp(i / 20 * drift, came_s, 0.012, came_s + 0.001)
        assert stamp.reason is None
        assert came_s - 0.02 <= stamp.captured_s <= came_s
        assert timing.lag_s is not None
        worst_s = max(worst_s, timing.lag_s)
    assert worst_s < 0.020


STEPS = st.one_of(
    st.just(1 / 30),
    st.sampled_from([0.0, -1 / 30, -0.5, 0.9, 1.1, 3600.0, -3600.0, -WRAP_S, 95_443.0]),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300]),
    st.floats(-10.0, 10.0),
    st.none(),
)


@settings(max_examples=150, deadline=None)
@given(
    start_s=st.sampled_from([0.0, -5.0, WRAP_S - 1.0, 1.79e9, 1e12, 1e300]),
    arrivals=st.lists(
        st.tuples(STEPS, st.sampled_from([1 / 30, 1 / 30, 1 / 30, 0.0, 0.004, 0.3, 7.0])),
        min_size=2, max_size=120,
    ),
    work_s=st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    hold_s=st.sampled_from([0.0, 0.005, 0.02]),
    fps_limit=st.sampled_from([None, 5.0, 30.0]),
)  # fmt: skip
def test_whatever_the_pts_do_times_are_sane_and_accounts_add_up(
    start_s: float,
    arrivals: list[tuple[float | None, float]],
    work_s: float,
    hold_s: float,
    fps_limit: float | None,
) -> None:
    script, came_s, pts_s = [], BEGIN_S, start_s
    for step_s, gap_s in arrivals:
        came_s += gap_s
        if step_s is None or not math.isfinite(step_s):
            script.append(Sent(came_s, step_s))
            continue
        pts_s += step_s
        script.append(Sent(came_s, pts_s))
    played = play(script, work_s=lambda _: work_s, hold_s=hold_s, fps_limit=fps_limit)
    played.check()
    read_s = played.reader.read_s
    # What is answered was received within its budget; nothing is from before the beginning.
    for frame in played.frames:
        assert read_s[0] <= frame.captured_s <= frame.ready_s
        assert frame.ready_s - frame.captured_s <= BUDGET_S + 0.002 + 1e-6
        assert frame.wall_s == pytest.approx(frame.captured_s + 1.7e9, abs=1e-3)
    captured = len(played.frames) + sum(drop[3] for drop in played.sink.drops)
    assert captured <= len(script)
    if fps_limit is None:
        assert captured == len(script)
    # No wait but for packets: live pictures are never due in the future.
    assert played.longest_wait_s == 0.0


class SteppingClock(ManualClock):
    """NTP sets the wall clock, by hours, every few seconds."""

    def wall(self) -> float:
        now_s = self.now()
        return super().wall() + (0.0, 7200.0, -18_000.0, 1e8)[int(now_s / 3.0) % 4]


@pytest.mark.parametrize("live", [True, False])
def test_a_step_of_the_wall_clock_changes_nothing_but_the_wall_times(live: bool) -> None:
    script = steady(20.0, 25.0, lambda t: t)
    stepped = play(script, clock=SteppingClock(1000.0), live=live)
    plain = play(script, live=live)
    stepped.check()
    assert [f.captured_s for f in stepped.frames] == [f.captured_s for f in plain.frames]
    assert [f.ready_s for f in stepped.frames] == [f.ready_s for f in plain.frames]
    assert not stepped.sink.drops
    offsets = {round(frame.wall_s - frame.captured_s - 1.7e9) for frame in stepped.frames}
    assert offsets == {0, 7200, -18_000, 100_000_000}
    assert [status.state for status in stepped.sink.statuses] == [
        status.state for status in plain.sink.statuses
    ]


def test_a_source_that_sends_in_bursts_shows_the_newest_of_each() -> None:
    """Ten pictures each third of a second, as HLS and some cameras send."""
    script = [Sent(BEGIN_S + (i // 10 + 1) / 3, i / 30) for i in range(600)]
    played = play(script)
    played.check()
    answered = {frame.seq for frame in played.frames}
    # The newest of every burst; the first too, for when it is read nobody knows of the others.
    assert {i for i in range(600) if i % 10 == 9} <= answered
    assert played.dropped(DropReason.STALE) >= 400
    assert max(latencies_s(played)) <= BUDGET_S + 0.02


@pytest.mark.parametrize("fps", [30.0, 60.0])
@pytest.mark.parametrize("with_pts", [True, False])
def test_a_jittery_network_loses_only_what_newer_pictures_overtake(
    fps: float, with_pts: bool
) -> None:
    """Each picture late by up to 200 ms, in order: six budgets."""
    rng = random.Random(5)
    script, came_s = [], 0.0
    for i in range(round(30 * fps)):
        came_s = max(came_s, BEGIN_S + i / fps + rng.uniform(0.0, 0.2))
        script.append(Sent(came_s, i / fps if with_pts else None))
    played = play(script, decode_s=0.004)
    played.check()
    for second in range(1, 29):
        began_s = BEGIN_S + second
        assert sum(began_s <= f.captured_s < began_s + 1.0 for f in played.frames) >= 5
    assert max(latencies_s(played)) <= BUDGET_S + 0.02


@pytest.mark.parametrize("later_s", [0.05, 0.2, 2.0])
def test_a_network_that_becomes_slower_for_good_loses_a_second_at_most(later_s: float) -> None:
    script = [Sent(BEGIN_S + i / 60 + (later_s if i >= 300 else 0.0), i / 60) for i in range(1200)]
    played = play(script, decode_s=0.006)
    played.check()
    assert played.dropped(DropReason.STALE) <= 70
    assert max(latencies_s(played)) <= BUDGET_S + 0.007


def test_reordered_pictures_are_captured_when_their_own_packets_came_and_none_is_stale() -> None:
    """I P B B: the P was received before the two that are shown before it."""
    timing = LiveTiming(BUDGET_S)
    for group in range(300):
        began_s = group / 10
        for shown, came in enumerate((0, 2, 3)):  # of I, B and B; the next I is the P
            read_s = began_s + (shown + 3) / 30  # when the last that is needed has come
            stamp = timing.stamp(began_s + shown / 30, began_s + came / 30, 0.005, read_s)
            assert stamp.reason is None or group == 0
            assert stamp.captured_s == pytest.approx(began_s + came / 30)


def test_a_picture_that_the_reader_itself_held_is_as_old_as_that() -> None:
    """Two came together; handing the first on took 100 ms."""
    timing = LiveTiming(BUDGET_S)
    for i in range(60):
        assert timing.stamp(i / 30, i / 30, 0.030, i / 30).reason is None
    assert timing.stamp(2.0, 2.0, 0.030, 2.0).reason is None
    held = timing.stamp(2.0 + 1 / 30, 2.0 + 1 / 30, 0.0, 2.14)
    assert held.reason is DropReason.STALE and held.captured_s == pytest.approx(2.0 + 1 / 30)


def play_file(pts: list[float | None], claim: float | None) -> Played:
    script = [Sent(0.0, value) for value in pts]
    return play(script, live=False, nominal_fps=claim, decode_s=0.003)


def steps_s(played: Played) -> list[float]:
    return [b.captured_s - a.captured_s for a, b in itertools.pairwise(played.frames)]


CLAIMS = [None, 0.0, 90_000.0, -25.0, math.inf, math.nan, 60.0, 1e-6]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_wrong_claim_of_the_rate_changes_no_pace(claim: float | None) -> None:
    played = play_file([i / 30 for i in range(300)], claim)
    played.check()
    assert steps_s(played) == pytest.approx([1 / 30] * 299)
    without = play_file([None] * 100, claim)
    expected = 1 / 60 if claim == 60.0 else 1 / 25
    assert steps_s(without) == pytest.approx([expected] * 99)


@pytest.mark.parametrize("later_s", [0.0, 1 / 30])
def test_timestamps_in_pairs_keep_the_speed(later_s: float) -> None:
    """Both fields of a picture with one timestamp, or pictures that swap theirs."""
    pts = [i / 30 if i % 2 == 0 else (i - 1) / 30 - later_s for i in range(600)]
    played = play_file(list(pts), 30.0)
    spent_s = sum(steps_s(played))
    assert spent_s == pytest.approx(599 / 30, rel=0.05)
    assert len(played.frames) == 600


@settings(max_examples=150, deadline=None)
@given(
    claim=st.sampled_from(CLAIMS),
    fps=st.sampled_from([1.0, 10.0, 29.97, 50.0]),
    odd=st.lists(STEPS, max_size=20),
    start_s=st.sampled_from([0.0, -77.0, WRAP_S - 1.0, 1e300]),
)
def test_a_file_keeps_its_pace_over_the_good_stretch_and_never_waits_long(
    claim: float | None, fps: float, odd: list[float | None], start_s: float
) -> None:
    pts: list[float | None] = []
    pts_s = start_s
    for step_s in odd:
        if step_s is None or not math.isfinite(step_s):
            pts.append(step_s)
            continue
        pts_s += step_s
        pts.append(pts_s)
    good = [5e4 + i / fps for i in range(100)]
    played = play_file([*pts, *good], claim)
    played.check()
    assert len(played.frames) == len(pts) + 100  # nothing is missed: the thread is not late
    assert played.longest_wait_s <= LONGEST_STEP_S
    assert all(0.0 <= step_s <= LONGEST_STEP_S for step_s in steps_s(played))
    stretch = [frame.captured_s for frame in played.frames[len(pts) + 10 :]]
    assert stretch[-1] - stretch[0] == pytest.approx(89 / fps, rel=0.05)


@settings(deadline=None)
@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(0.0, 1e6))
def test_any_single_timestamp_is_survived(pts_s: float, now_s: float) -> None:
    pacer = Pacer(BUDGET_S, 25.0)
    pacer.picture(0.0, now_s)
    pacer.wake_s(pts_s, now_s)
    due = pacer.picture(pts_s, now_s)
    assert now_s <= due.due_s <= now_s + LONGEST_STEP_S
    lag = SourceLag()
    lag.sample(1.0, now_s, True)
    sample = lag.sample(pts_s, now_s + 0.04, True)
    assert sample is None or (sample.lag_s >= 0.0 and sample.earliest_s <= now_s + 0.04 + 1e-3)


def test_what_comes_faster_than_it_is_decoded_goes_on_from_key_picture_to_key_picture() -> None:
    """50 ms of decoding at 30 fps: all would be stale for ever."""
    played = play(steady(60.0, 30.0, lambda t: t), decode_s=0.05)
    played.check()
    seen_s = [frame.captured_s - 1000.0 for frame in played.frames]
    assert len(seen_s) > 60
    assert max(b - a for a, b in itertools.pairwise(seen_s[10:])) < 8.0
    assert all(frame.ready_s - frame.captured_s < 0.15 for frame in played.frames)
    assert played.dropped(DropReason.SKIPPED) > 300


def test_a_backlog_that_is_read_away_needs_no_key_picture() -> None:
    script = [
        Sent(max(one.came_s, 1010.0) if one.came_s > 1005.0 else one.came_s, one.pts_s)
        for one in steady(30.0, 30.0, lambda t: t)
    ]
    played = play(script, decode_s=0.02)
    played.check()
    assert played.dropped(DropReason.SKIPPED) == 0
    assert played.frames[-1].captured_s - 1000.0 > 29.0
