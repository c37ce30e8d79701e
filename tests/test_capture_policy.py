"""The pure parts of capture: pace, lag, backoff, states, log lines, redaction."""

from __future__ import annotations

import base64
import itertools
import random
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.capture.backoff import CAP_S, UNAUTHORIZED_CAP_S, Backoff
from vidserve.capture.lag import SourceLag
from vidserve.capture.pacing import Due, FpsLimit, Pacer
from vidserve.capture.redact import Redactor
from vidserve.capture.states import CameraStates, LineGate
from vidserve.clock import ManualClock
from vidserve.frames import CameraState

BUDGET_S = 0.033


def play(pts: list[float | None], cost_s: float = 0.0, fps: float | None = 30.0) -> list[Due]:
    """Play a file on a manual clock: wait, decode for ``cost_s``, ask, wait for the due moment."""
    clock = ManualClock(100.0)
    pacer = Pacer(BUDGET_S, fps)
    verdicts = []
    for value in pts:
        clock.sleep_until(pacer.wake_s(value, clock.now()))
        clock.advance(cost_s)
        due = pacer.picture(value, clock.now())
        clock.sleep_until(due.due_s)
        verdicts.append(due)
    return verdicts


def steps(verdicts: list[Due]) -> list[float]:
    return [b.due_s - a.due_s for a, b in itertools.pairwise(verdicts)]


def test_a_steady_file_is_due_at_its_timestamps() -> None:
    verdicts = play([7.0 + i / 30 for i in range(300)], cost_s=0.010)
    assert steps(verdicts) == pytest.approx([1 / 30] * 299)
    assert not any(due.missed or due.lost for due in verdicts)


def test_a_variable_rate_keeps_its_real_gaps() -> None:
    pts = [0.0, 0.033, 0.066, 0.391, 0.424, 1.9, 1.94, 5.2]
    assert steps(play(list(pts))) == pytest.approx([b - a for a, b in itertools.pairwise(pts)])


def test_one_frame_a_second_and_one_in_twenty_seconds_are_paces() -> None:
    assert steps(play([float(i) for i in range(10)], fps=None)) == pytest.approx([1.0] * 9)
    slow = steps(play([20.0 * i for i in range(6)], fps=None))
    assert slow[1:] == pytest.approx([20.0] * 4)
    assert slow[0] < 1.0


@pytest.mark.parametrize("jump_s", [4990.0, -4990.0, -0.5, 0.0, 95443.0])
def test_a_jump_of_the_timestamps_is_no_gap(jump_s: float) -> None:
    pts = [i / 25 for i in range(50)]
    pts += [pts[-1] + jump_s + i / 25 for i in range(50)]
    verdicts = play(list(pts), fps=25.0)
    assert steps(verdicts) == pytest.approx([1 / 25] * 99)
    assert not any(due.missed or due.lost for due in verdicts)


@pytest.mark.parametrize("claim", [None, 0.0, 90000.0, -3.0])
def test_without_timestamps_an_absurd_rate_is_refused(claim: float | None) -> None:
    assert steps(play([None] * 20, fps=claim)) == pytest.approx([1 / 25] * 19)


def test_without_timestamps_the_claimed_rate_is_used() -> None:
    assert steps(play([None] * 20, fps=10.0)) == pytest.approx([1 / 10] * 19)


def test_a_loop_goes_on_at_the_usual_step() -> None:
    clock = ManualClock()
    pacer = Pacer(BUDGET_S, 30.0)
    dues = []
    for _ in range(3):
        for i in range(30):
            clock.sleep_until(pacer.wake_s(i / 10, clock.now()))
            dues.append(pacer.picture(i / 10, clock.now()))
        pacer.restart()
    assert steps(dues) == pytest.approx([0.1] * 89)


def test_a_late_picture_is_missed_and_the_pace_goes_on() -> None:
    pacer = Pacer(BUDGET_S, 10.0)
    pacer.picture(0.0, 50.0)
    assert pacer.picture(0.1, 50.1 + 0.030) == Due(pytest.approx(50.1))  # type: ignore[arg-type]
    late = pacer.picture(0.2, 50.2 + 0.040)
    assert late.missed and late.due_s == pytest.approx(50.2)
    assert pacer.picture(0.3, 50.3).missed is False


@settings(deadline=None)
@given(
    cost_ms=st.integers(0, 90),
    hang_at=st.integers(1, 250),
    hang_s=st.floats(0.0, 30.0),
    fps=st.sampled_from([10, 25, 30]),
)
def test_a_late_thread_cannot_hide_a_frame(
    cost_ms: int, hang_at: int, hang_s: float, fps: int
) -> None:
    """However slow: the frames counted are the frames that were due in the time that passed."""
    clock = ManualClock()
    pacer = Pacer(BUDGET_S, float(fps))
    counted = on_time = 0
    last_due_s = -1.0
    for i in range(300):
        clock.sleep_until(pacer.wake_s(i / fps, clock.now()))
        clock.advance(cost_ms / 1000 + (hang_s if i == hang_at else 0.0))
        due = pacer.picture(i / fps, clock.now())
        assert due.due_s >= last_due_s
        last_due_s = due.due_s
        if not due.missed:
            # What is delivered was produced within its budget.
            assert clock.now() - due.due_s <= BUDGET_S + 1e-9
            on_time += 1
        counted += 1 + due.lost
        clock.sleep_until(due.due_s)
    first_due_s = cost_ms / 1000
    expected = (last_due_s - first_due_s) * fps + 1
    # Each re-anchoring rounds by at most half a frame.
    assert abs(counted - expected) <= 2 + 0.02 * expected
    if cost_ms / 1000 > 1.5 / fps:
        assert on_time < 300


@settings(deadline=None)
@given(st.floats(1.0, 60.0), st.floats(1.0, 60.0), st.integers(0, 1000))
def test_the_fps_limit_keeps_the_average(source_fps: float, limit: float, seed: int) -> None:
    rng = random.Random(seed)
    gate = FpsLimit(limit)
    seconds = 20
    times = [i / source_fps for i in range(int(seconds * source_fps))]
    jitter_s = 0.1 / source_fps
    taken = sum(gate.lets_through(t + rng.uniform(0, jitter_s)) for t in times)
    assert taken <= limit * seconds * 1.05 + 2
    assert taken >= min(source_fps, limit) * seconds * 0.70 - 2


def test_no_limit_lets_all_through() -> None:
    gate = FpsLimit(None)
    assert all(gate.lets_through(1.0) for _ in range(10))


def test_lag_shows_a_backlog_and_says_when_the_packets_came() -> None:
    lag = SourceLag()
    for i in range(100):
        sample = lag.sample(50.0 + i / 30, 1000.0 + i / 30 + 0.010, True)
        assert sample is not None and sample.lag_s == pytest.approx(0.0, abs=1e-6)
    # Our thread sleeps for two seconds, then reads sixty packets in no time.
    woke_s = 1000.0 + 100 / 30 + 2.0
    for i in range(100, 160):
        sample = lag.sample(50.0 + i / 30, woke_s, False)
        assert sample is not None
        assert sample.earliest_s == pytest.approx(1000.0 + i / 30 + 0.010)
        assert sample.lag_s == pytest.approx(woke_s - sample.earliest_s)


@pytest.mark.parametrize("jump_s", [5000.0, -3.0, -95443.0])
def test_lag_starts_anew_at_a_jump(jump_s: float) -> None:
    lag = SourceLag()
    lag.sample(10.0, 100.0, True)
    after = lag.sample(10.0 + jump_s, 100.033, True)
    assert after is not None and after.lag_s == 0.0
    assert lag.sample(None, 100.066, True) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(-10, 10), st.booleans()), max_size=80))
def test_lag_is_never_negative(arrivals: list[tuple[float, float, bool]]) -> None:
    lag = SourceLag()
    now_s = pts_s = 1000.0
    for gap_s, step_s, waited in arrivals:
        now_s, pts_s = now_s + gap_s, pts_s + step_s
        sample = lag.sample(pts_s, now_s, waited)
        if sample is not None:
            assert sample.lag_s >= 0.0
            assert sample.earliest_s <= now_s + 1e-6


def test_timestamps_that_do_not_run_with_the_time_are_not_believed_until_they_do() -> None:
    lag = SourceLag()
    # 20 pictures a second, numbered as 25 a second.
    samples = [lag.sample(i / 25, i / 20, True) for i in range(1000)]
    assert all(sample is None for sample in samples[201:])
    assert max(sample.lag_s for sample in samples[:200] if sample is not None) < 2.5
    after = [lag.sample(40.0 + i / 20, 50.0 + i / 20, True) for i in range(500)]
    assert after[-1] is not None and after[-1].lag_s < 0.001


def test_our_own_slowness_does_not_make_timestamps_unbelievable() -> None:
    lag = SourceLag()
    for i in range(1000):  # a consumer at 20 a second of a source of 25: a growing backlog
        sample = lag.sample(i / 25, i / 20, i == 0)
    assert sample is not None and sample.lag_s == pytest.approx(999 / 20 - 999 / 25)


def test_lag_forgets_after_a_minute() -> None:
    lag = SourceLag()
    lag.sample(0.0, 0.0, True)
    sample = None
    for i in range(1, 70):
        sample = lag.sample(float(i), i + 0.5, True)
    assert sample is not None and sample.lag_s == 0.0


@settings(deadline=None)
@given(st.integers(0, 10_000), st.lists(st.booleans(), max_size=60))
def test_backoff_is_bounded(seed: int, refusals: list[bool]) -> None:
    backoff = Backoff(random.Random(seed))
    for refused in refusals:
        wait_s = backoff.failed(refused)
        assert (45.0 if refused else 0.3) <= wait_s <= (UNAUTHORIZED_CAP_S if refused else CAP_S)


def test_backoff_grows_and_only_a_good_minute_resets_it() -> None:
    backoff = Backoff(random.Random(0))
    waits = [backoff.failed() for _ in range(10)]
    assert waits[0] < 0.7 and waits[-1] > 20.0
    for second in range(30):  # half a minute of frames, then it breaks again
        backoff.frame(float(second))
    assert backoff.failed() > 20.0
    for second in range(100, 162):
        backoff.frame(float(second))
    assert backoff.failed() < 0.7


def states() -> tuple[CameraStates, ManualClock]:
    clock = ManualClock(1000.0)
    return CameraStates("gate", clock), clock


def test_running_needs_a_decoded_frame() -> None:
    machine, clock = states()
    assert machine.status.state is CameraState.CONNECTING
    clock.advance(3.0)
    change = machine.frame(corrupt=False)
    assert change is not None and change.state is CameraState.RUNNING
    assert change.since_wall_s == clock.wall()
    assert machine.frame(corrupt=False) is None


def test_trouble_keeps_its_state_through_attempts_and_a_frame_ends_it() -> None:
    machine, clock = states()
    first = machine.failed("refused")
    assert first is not None
    clock.advance(5.0)
    assert machine.failed("refused") is None
    other = machine.failed("no such host")
    assert other is not None and other.since_wall_s == first.since_wall_s
    change = machine.frame(corrupt=False)
    assert change is not None and change.state is CameraState.RUNNING


def test_damage_degrades_and_calm_mends() -> None:
    machine, clock = states()
    changes = []
    for i in range(30 * 60):
        clock.advance(1 / 30)
        corrupt = 300 <= i < 600 and i % 10 == 0
        changes.append(machine.frame(corrupt))
    names = [change.state for change in changes if change is not None]
    assert names == [CameraState.RUNNING, CameraState.DEGRADED, CameraState.RUNNING]


def test_refused_packets_are_damage_too() -> None:
    machine, clock = states()
    for _ in range(60):
        clock.advance(1 / 30)
        machine.bad_packets(1)
        machine.frame(corrupt=False)
    assert machine.status.state is CameraState.DEGRADED


def test_one_damaged_picture_is_no_trouble() -> None:
    machine, clock = states()
    for i in range(3000):
        clock.advance(1 / 30)
        machine.frame(corrupt=i == 1000)
    assert machine.status.state is CameraState.RUNNING


def test_log_lines_are_bounded_and_the_silence_is_told() -> None:
    gate = LineGate(lines=10, refill_s=60.0)
    written = sum(gate.news(t * 0.1) for t in range(36_000))  # an hour of flapping
    assert 60 <= written <= 75
    assert gate.left_out > 30_000


def test_an_unchanged_trouble_is_said_again_every_ten_minutes() -> None:
    gate = LineGate()
    assert gate.news(0.0)
    assert [t for t in range(0, 2000, 5) if gate.reminder(float(t))] == [600, 1200, 1800]


@settings(deadline=None)
@given(
    st.text(min_size=1, max_size=20).filter(lambda text: text.encode("utf-8", "ignore") != b""),
    st.text(alphabet="abcxyz@:/ ", max_size=8),
)
def test_no_form_of_a_secret_is_left(password: str, user: str) -> None:
    try:
        password.encode()
    except UnicodeEncodeError:
        return
    if password in "*":
        return
    redactor = Redactor.for_source("rtsp://host/1", user, password)
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    text = f"GET {password} | {quote(password, safe='')} | Basic {basic} | {password!r}"
    cleaned = redactor.clean(text)
    assert all(password not in part for part in cleaned.split("***"))
    assert basic not in cleaned
    # One pass may not uncover what another would hide.
    assert redactor.clean(cleaned).count("*") >= cleaned.count("*")


def test_a_login_in_the_url_is_masked_too() -> None:
    redactor = Redactor.for_source("rtsp://joe:p%40ss@10.0.0.5/1", "", "")
    assert redactor.clean("cannot open rtsp://joe:p%40ss@10.0.0.5/1") == (
        "cannot open rtsp://***@10.0.0.5/1"
    )
    assert "p@ss" not in redactor.clean("wrong password p@ss")
    text = "no answer from rtsp://h/user=admin&password=x1y2&channel=1?pwd=zz"
    assert Redactor().clean(text) == (
        "no answer from rtsp://h/user=admin&password=***&channel=1?pwd=***"
    )
    assert Redactor().clean("http://a:b@c/d and http://c/d") == "http://***@c/d and http://c/d"


@pytest.mark.parametrize("name", ["_password", "key", "secret", "auth", "pw", "sig", "api_key"])
def test_secrets_in_queries_and_paths_are_masked_whatever_they_are_called(name: str) -> None:
    cleaned = Redactor().clean(f"http://h/user=a&{name}=Quer1Secret&x=1 has no video track")
    assert "Quer1Secret" not in cleaned
    assert cleaned.endswith("&x=1 has no video track")
