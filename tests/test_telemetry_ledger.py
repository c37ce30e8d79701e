"""The ledger: every captured frame is open until it is settled, exactly once."""

from __future__ import annotations

import queue
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.frames import DropReason, Outcome
from vidserve.telemetry.ledger import Counts, Ledger


def test_an_empty_ledger_is_balanced() -> None:
    counts = Ledger().counts()
    assert counts.balanced
    assert (counts.captured, counts.settled, counts.pending) == (0, 0, 0)
    assert counts.oldest_pending_s is None
    assert counts.dropped == {}


def test_each_way_of_settling_is_counted_apart() -> None:
    ledger = Ledger()
    for seq in range(5):
        ledger.capture(seq, seq * 0.1)
    ledger.settle(0, Outcome.DETECTED)
    ledger.settle(1, Outcome.TRACKED)
    ledger.settle(2, Outcome.TRACKED)
    ledger.drop(3, DropReason.INVALID)
    ledger.capture_and_drop(DropReason.MISSED, 7)
    counts = ledger.counts()
    assert (counts.captured, counts.detected, counts.tracked, counts.pending) == (12, 1, 2, 1)
    assert counts.dropped == {"invalid": 1, "missed": 7}
    assert counts.oldest_pending_s == pytest.approx(0.4)
    assert counts.settled == 11
    assert counts.balanced


def test_frames_may_be_settled_out_of_order() -> None:
    ledger = Ledger()
    for seq in range(3):
        ledger.capture(seq, float(seq))
    ledger.settle(2, Outcome.TRACKED)
    assert ledger.counts().oldest_pending_s == 0.0
    ledger.settle(0, Outcome.TRACKED)
    assert ledger.counts().oldest_pending_s == 1.0
    assert ledger.pending == 1


def test_a_frame_captured_at_time_zero_is_a_frame() -> None:
    ledger = Ledger()
    ledger.capture(0, 0.0)
    ledger.settle(0, Outcome.DETECTED)
    assert ledger.counts().balanced


@pytest.mark.parametrize("second", ["settle", "drop"])
@pytest.mark.parametrize("first", ["settle", "drop"])
def test_settling_twice_is_a_fault_however_it_is_done(first: str, second: str) -> None:
    ledger = Ledger()
    ledger.capture(0, 0.0)
    for way in (first, second):
        if way == "settle":
            ledger.settle(0, Outcome.TRACKED)
        else:
            ledger.drop(0, DropReason.BACKLOG)
    counts = ledger.counts()
    assert counts.faults == 1
    assert not counts.balanced


def test_settling_what_was_never_captured_is_a_fault() -> None:
    ledger = Ledger()
    ledger.settle(99, Outcome.DETECTED)
    assert not ledger.counts().balanced


def test_capturing_a_number_twice_is_seen() -> None:
    ledger = Ledger()
    ledger.capture(0, 0.0)
    ledger.capture(0, 0.1)
    ledger.settle(0, Outcome.TRACKED)
    assert not ledger.counts().balanced
    ledger.settle(0, Outcome.TRACKED)  # the sums agree now, the fault stays
    counts = ledger.counts()
    assert counts.captured == counts.settled + counts.pending
    assert not counts.balanced


def test_a_copy_does_not_change_later() -> None:
    ledger = Ledger()
    ledger.capture(0, 0.0)
    ledger.drop(0, DropReason.STALE)
    counts = ledger.counts()
    ledger.capture_and_drop(DropReason.STALE, 5)
    assert counts.dropped == {"stale": 1}


class Model:
    """What the ledger has to say after the same words."""

    def __init__(self) -> None:
        self.open: dict[int, float] = {}
        self.detected = self.tracked = self.captured = self.faults = 0
        self.dropped = dict.fromkeys((reason.value for reason in DropReason), 0)

    def agrees(self, counts: Counts) -> None:
        assert (counts.captured, counts.detected) == (self.captured, self.detected)
        assert (counts.tracked, counts.faults) == (self.tracked, self.faults)
        assert counts.pending == len(self.open)
        assert {k: v for k, v in self.dropped.items() if v} == {
            k: v for k, v in counts.dropped.items() if v
        }
        assert counts.oldest_pending_s == min(self.open.values(), default=None)
        assert counts.balanced == (self.faults == 0)


words = st.lists(
    st.tuples(
        st.sampled_from(["capture", "detected", "tracked", "drop", "miss"]),
        st.integers(0, 12),
        st.sampled_from(list(DropReason)),
    ),
    max_size=60,
)


@given(words)
@settings(max_examples=150, deadline=None)
def test_any_course_of_captures_and_outcomes(course: list[tuple[str, int, DropReason]]) -> None:
    ledger, model, next_seq = Ledger(), Model(), 0
    for word, number, reason in course:
        if word == "capture":
            ledger.capture(next_seq, next_seq * 0.5)
            model.open[next_seq] = next_seq * 0.5
            model.captured += 1
            next_seq += 1
        elif word == "miss":
            ledger.capture_and_drop(reason, number)
            model.captured += number
            model.dropped[reason.value] += number
        else:
            model.faults += model.open.pop(number, None) is None
            if word == "drop":
                ledger.drop(number, reason)
                model.dropped[reason.value] += 1
            else:
                ledger.settle(number, Outcome(word))
                setattr(model, word, getattr(model, word) + 1)
        model.agrees(ledger.counts())


def test_threads_that_capture_and_a_thread_that_settles_stay_balanced_at_every_look() -> None:
    ledger = Ledger()
    inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    per_thread, threads_count = 3000, 3
    looks: list[Counts] = []
    done = threading.Event()

    def capture(offset: int) -> None:
        drawn = random.Random(offset)
        for k in range(per_thread):
            seq = offset + k * threads_count
            ledger.capture(seq, float(seq))
            inbox.put(seq)
            if drawn.random() < 0.1:
                ledger.capture_and_drop(DropReason.MISSED, 2)

    def settle() -> None:
        drawn = random.Random(99)
        while (seq := inbox.get(timeout=60)) is not None:
            if drawn.random() < 0.1:
                ledger.drop(seq, DropReason.INVALID)
            else:
                ledger.settle(seq, drawn.choice([Outcome.DETECTED, Outcome.TRACKED]))

    def look() -> None:
        while not done.is_set():
            looks.append(ledger.counts())
            done.wait(0.001)

    captures = [threading.Thread(target=capture, args=(k,)) for k in range(threads_count)]
    settles = threading.Thread(target=settle)
    looker = threading.Thread(target=look)
    for thread in (*captures, settles, looker):
        thread.start()
    for thread in captures:
        thread.join(60)
    inbox.put(None)
    settles.join(60)
    done.set()
    looker.join(60)
    assert not any(thread.is_alive() for thread in (*captures, settles, looker))
    assert looks
    assert all(counts.balanced for counts in looks)
    counts = ledger.counts()
    assert counts.balanced
    assert counts.pending == ledger.pending == 0
    assert counts.captured == threads_count * per_thread + counts.dropped["missed"]
