"""Latest wins: whatever holds a camera up, no queue is left; and what overload leaves out."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab import clips
from tests.lab.clock_stream import ClockStream, ReaderProcess
from tests.lab.manual import Played, Sent, play
from tests.lab.servers import Relay, RtspServer, need_rtsp, tcp_stream
from tests.lab.sink import CollectingSink, running
from tests.mosquitto import wait_for
from vidserve.capture.camera import CameraSettings
from vidserve.capture.pacing import FpsLimit, Hurry
from vidserve.frames import DropReason, Frame

BEGIN_S = 1000.5
BUDGET_S = 0.033


def ages_s(played: Played, sent_s: list[float]) -> list[tuple[float, float]]:
    """When each answered picture was ready, and how old it was then by the sender's clock."""
    return [(f.ready_s, f.ready_s - sent_s[f.seq]) for f in played.frames]


def stream(seconds: float, fps: float = 30.0) -> list[float]:
    return [BEGIN_S + i / fps for i in range(round(seconds * fps))]


@pytest.mark.parametrize("with_pts", [True, False])
@pytest.mark.parametrize("hold_s", [0.0, 0.005])
@pytest.mark.parametrize("work_s", [0.1, 0.035, 0.33])
def test_a_slow_consumer_never_builds_a_queue(work_s: float, hold_s: float, with_pts: bool) -> None:
    """For ten seconds each picture takes too long; the interpreter lock is in demand besides."""
    sent_s = stream(20.0)
    played = play(
        [Sent(t, t if with_pts else None) for t in sent_s],
        work_s=lambda now_s: work_s if 1005.0 < now_s < 1015.0 else 0.002,
        hold_s=hold_s,
    )
    played.check()
    assert max(age_s for _, age_s in ages_s(played, sent_s)) < BUDGET_S + 0.02 + 2 * hold_s + (
        min(work_s, 0.05) if with_pts else 0.0
    )
    during = [f for f in played.frames if 1005.0 < f.captured_s < 1015.0]
    assert len(during) >= 0.4 * 10.0 / max(work_s, 1 / 30)
    assert played.dropped(DropReason.STALE) == 600 - len(played.frames)


STAMPS: dict[str, Callable[[float], float | None]] = {
    "plain": lambda t: t,
    "none": lambda t: None,
    "some missing": lambda t: None if round(t * 30) % 7 == 0 else t,
    "a jump in the middle": lambda t: t + (5000.0 if t > 1006.0 else 0.0),
    "a step back in the middle": lambda t: t - (5000.0 if t > 1006.0 else 0.0),
}


@pytest.mark.parametrize("stamps", STAMPS)
@pytest.mark.parametrize("decode_s", [0.002, 0.015])
@pytest.mark.parametrize("hold_s", [0.0, 0.005])
def test_a_backlog_is_read_away(decode_s: float, hold_s: float, stamps: str) -> None:
    """A relay stops for three seconds, then sends all that it kept at once."""
    sent_s = stream(20.0)
    script = [Sent(max(t, 1008.0) if 1005.0 < t < 1008.0 else t, STAMPS[stamps](t)) for t in sent_s]
    played = play(script, decode_s=decode_s, hold_s=hold_s)
    played.check()
    # The first came while we waited: its pts alone could say that it is old. At most so long as
    # decoding 90 pictures takes others may come a second apart.
    late = [ready_s for ready_s, age_s in ages_s(played, sent_s) if age_s > 0.1]
    assert 1 <= len(late) <= 6 and late[-1] < 1008.0 + 250 * (decode_s + hold_s)
    assert played.dropped(DropReason.STALE) >= 70
    assert len([f for f in played.frames if f.captured_s > 1014.0]) >= 190


def skipping(seconds: float, slow: tuple[float, float]) -> Callable[[float], float]:
    return lambda now_s: seconds if slow[0] < now_s < slow[1] else 0.001


@pytest.mark.parametrize("live", [True, False])
def test_skip_nonref_hurries_while_the_thread_is_late_and_calms_down(live: bool) -> None:
    script = [Sent(t, t) for t in stream(20.0)]
    work_s = skipping(0.09, (1005.0, 1008.0))
    played = play(script, work_s=work_s, skip="nonref", live=live)
    # The rule is off again after some seconds of calm, and was never on before.
    assert [on for _, on in played.reader.hurries] == [True, False]
    (on_s, _), (off_s, _) = played.reader.hurries
    assert 1005.0 < on_s < 1006.0 and 1010.0 < off_s < 1012.5
    played.check()
    assert not play(script, work_s=work_s, live=live).reader.hurries


def test_skipped_pictures_are_counted_and_keep_their_place() -> None:
    """Every other picture left out for a while: numbers, accounts and times go on."""
    script = [
        Sent(t, t, skipped=1 if 100 <= i < 300 else 0)
        for i, t in enumerate(stream(20.0))
        if not (100 <= i < 300 and i % 2)
    ][:400]
    played = play(script, skip="nonref")
    played.check()
    assert played.dropped(DropReason.SKIPPED) == 100
    assert len(played.frames) == len(script)
    assert played.sink.numbers == len(script) + 100


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 6), min_size=20, max_size=150),
    limit=st.sampled_from([None, 3.0, 10.0, 25.0, 60.0]),
    work_s=st.sampled_from([0.0, 0.02, 0.08]),
    live=st.booleans(),
)
def test_with_a_limit_skipped_and_missed_pictures_count_only_where_they_left_a_period_empty(
    gaps: list[int], limit: float | None, work_s: float, live: bool
) -> None:
    script, at_s = [], BEGIN_S
    for gap in gaps:
        at_s += gap / 30
        script.append(Sent(at_s, at_s, skipped=gap - 1))
    played = play(script, fps_limit=limit, work_s=lambda _: work_s, live=live, skip="nonref")
    played.check()
    captured = played.sink.numbers
    sent = sum(gaps)
    spent_s = max(played.sink.captured_s) - min(played.sink.captured_s)
    if limit is None:
        assert captured >= len(script) + played.dropped(DropReason.SKIPPED)
        assert played.dropped(DropReason.SKIPPED) == sum(gap - 1 for gap in gaps)
    else:
        assert captured <= spent_s * limit + 1.5
    assert played.dropped(DropReason.SKIPPED) <= sent - len(script)


@settings(max_examples=40, deadline=None)
@given(
    fps=st.sampled_from([12.5, 24.0, 25.0, 29.97, 30.0, 50.0, 60.0]),
    limit=st.floats(1.0, 70.0),
    jitter=st.floats(0.0, 0.2),
)
def test_the_limit_is_the_exact_average(fps: float, limit: float, jitter: float) -> None:
    gate = FpsLimit(limit)
    times = [i / fps + jitter / fps * (i * 7919 % 100) / 100 for i in range(round(60 * fps))]
    taken = sum(gate.lets_through(t) for t in times)
    assert taken <= 60.0 * limit + 2
    # Evenly: one of every so many; the average is met where the source has them to give.
    if limit <= fps / 2:
        assert taken == pytest.approx(60.0 * limit, rel=0.02, abs=2)
    elif limit >= fps:
        assert taken == pytest.approx(60.0 * fps, rel=0.03, abs=2)


def test_lost_frames_under_a_limit() -> None:
    gate = FpsLimit(10.0)
    assert gate.count_lost(7, 0.0) == 0  # the first picture begins the first period
    assert gate.lets_through(0.0)
    assert gate.count_lost(2, 0.1) == 0  # the picture after them fills the period
    assert gate.lets_through(0.1)
    assert gate.count_lost(29, 1.1) == 9
    assert gate.lets_through(1.1)
    assert gate.count_lost(2, 2.1) == 2  # no more than were lost
    assert FpsLimit(None).count_lost(5, 3.0) == 5


def test_hurry_lasts_until_a_while_after_the_last_late_picture() -> None:
    hurry = Hurry(calm_s=3.0)
    assert not hurry.on(0.0, False)
    assert hurry.on(1.0, True) and hurry.on(3.9, False)
    assert hurry.on(3.95, True) and hurry.on(6.9, False)
    assert not hurry.on(6.96, False)


class SlowSink(CollectingSink):
    """Takes 80 ms for each frame."""

    def frame(self, frame: Frame) -> None:
        super().frame(frame)
        time.sleep(0.08)


@pytest.mark.parametrize("skip", ["none", "nonref"])
def test_under_overload_pictures_that_no_other_needs_are_not_decoded(
    tmp_path: Path, skip: str
) -> None:
    """A real decoder: two of three pictures are B-frames on which nothing is built."""
    options = {"preset": "veryfast", "bf": "2", "b-pyramid": "none", "b-adapt": "0", "g": "30"}
    clip = clips.write(tmp_path / "b.ts", frames=90, options=options)
    sink = SlowSink()
    with tcp_stream(clip, 3.0) as url, running(sink, CameraSettings("c", url, skip=skip)):
        sink.wait(lambda: "ended the stream" in sink.statuses[-1].reason)
    sink.check_accounts("c")
    skipped = sum(drop[3] for drop in sink.drops if drop[2] is DropReason.SKIPPED)
    assert (skipped > 10) if skip == "nonref" else (skipped == 0)
    captured = len(sink.frames) + sum(drop[3] for drop in sink.drops)
    assert 80 <= captured <= 90  # decoded or not, each is counted


Trouble = tuple[Callable[[int], None], Callable[[int], None], float]


def make_trouble(readers: Sequence[ReaderProcess], troubles: Sequence[Trouble]) -> None:
    """One after the other, in all of them at once; then look at the ages of what they answered."""
    wait_for(lambda: all(len(reader.shown) > 30 for reader in readers), "pictures")
    began_s = time.monotonic()
    ends_s = []
    for begin, end, for_s in troubles:
        for i in range(len(readers)):
            begin(i)
        time.sleep(for_s)
        for i in range(len(readers)):
            end(i)
        ends_s.append(time.monotonic())
        time.sleep(1.8)
    for reader in readers:
        reader.finish()
        shown = [one for one in reader.shown if one.ready_s > began_s]
        for end_s in ends_s:
            fresh = sorted(one.age_s for one in shown if end_s + 1.0 < one.ready_s < end_s + 1.8)
            assert len(fresh) >= 5
            # Encoding, sending and FFmpeg's parser are in it (70 ms), and a busy machine.
            assert fresh[len(fresh) // 2] < 0.4 and fresh[-1] < 1.0
        # While it was slow there was no queue either.
        assert all(one.age_s < 1.5 for one in shown if one.ready_s < ends_s[0])
        # A few of what a frozen network or a stopped process kept; that were 60 each.
        assert sum(one.age_s > 1.0 for one in shown) <= 12
        accounts = reader.accounts
        assert accounts["stale"] >= 60
        assert accounts["frames"] + accounts["dropped"] >= accounts["last"] + 1
        assert accounts["connections"] == 2  # connecting, running: it was never lost


def nothing(_i: int) -> None:
    """It ends by itself."""


def test_the_age_of_what_is_answered_by_a_clock_in_the_picture() -> None:
    """Real time, two streams: with timestamps (a transport stream) and without (plain H.264).

    Slow conversion, a thread that keeps the interpreter lock, a network that stops and then
    sends all it kept, and SIGSTOP; after each the answers are of now again within a second.
    """
    with (
        ClockStream("mpegts") as stamped, ClockStream("h264") as bare,
        ReaderProcess(stamped.url) as first, ReaderProcess(bare.url) as second,
    ):  # fmt: skip
        sources, readers = (stamped, bare), (first, second)
        make_trouble(
            readers,
            [
                (lambda i: readers[i].ask("slow", 1.5), nothing, 1.5),
                (lambda i: readers[i].ask("hog", 1.2), nothing, 1.2),
                (lambda i: sources[i].frozen.set(), lambda i: sources[i].frozen.clear(), 2.0),
                (
                    lambda i: os.kill(readers[i].pid, signal.SIGSTOP),
                    lambda i: os.kill(readers[i].pid, signal.SIGCONT),
                    2.0,
                ),
            ],
        )


def test_the_age_over_rtsp() -> None:
    need_rtsp()
    with (
        RtspServer(b_frames=2) as server, Relay(server.port) as relay,
        ReaderProcess(f"rtsp://127.0.0.1:{relay.port}/stream") as reader,
    ):  # fmt: skip
        make_trouble(
            [reader],
            [
                (lambda _: reader.ask("slow", 1.5), nothing, 1.5),
                (lambda _: relay.frozen.set(), lambda _: relay.frozen.clear(), 2.5),
            ],
        )
