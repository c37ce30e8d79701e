"""The answer desk: in capture order, as late as useful, never later than allowed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.scheduling import WIDE, frame
from vidserve.frames import Batch, BatchKind, Frame
from vidserve.scheduling.answering import AnswerDesk

BUDGET_S = 0.03


def add(desk: AnswerDesk, camera: str, seq: int, captured_s: float, offered: bool) -> Frame:
    new = frame(camera, seq, captured_s)
    desk.add(new, captured_s + BUDGET_S, offered)
    return new


def batch(*frames: Frame, kind: BatchKind = BatchKind.IN_TIME) -> Batch:
    return Batch(frames, WIDE, kind, 0.0, 0.005)


def taken(desk: AnswerDesk, now_s: float) -> list[tuple[str, int, bool]]:
    return [(f.camera, f.seq, detected) for f, detected in desk.take_ready(now_s)]


def start(desk: AnswerDesk, *frames: Frame, kind: BatchKind = BatchKind.IN_TIME) -> None:
    desk.batch_started(batch(*frames, kind=kind), lambda _: True)


def test_a_frame_that_waits_for_nothing_is_answered_at_once() -> None:
    desk = AnswerDesk()
    add(desk, "gate", 0, 0.0, offered=False)
    assert taken(desk, 0.0) == [("gate", 0, False)]
    assert len(desk) == 0
    assert desk.next_wake_s() == math.inf


def test_an_offered_frame_waits_until_its_answer_time_and_no_longer() -> None:
    desk = AnswerDesk()
    add(desk, "gate", 0, 0.0, offered=True)
    assert desk.next_wake_s() == pytest.approx(BUDGET_S)
    assert taken(desk, BUDGET_S - 1e-6) == []
    assert taken(desk, BUDGET_S) == [("gate", 0, False)]


def test_a_detection_ends_the_wait() -> None:
    desk = AnswerDesk()
    mine = add(desk, "gate", 0, 0.0, offered=True)
    start(desk, mine)
    assert taken(desk, 0.004) == []
    assert desk.detected(mine)
    assert taken(desk, 0.005) == [("gate", 0, True)]


def test_a_detection_counts_without_a_word_about_its_batch() -> None:
    desk = AnswerDesk()
    mine = add(desk, "gate", 0, 0.0, offered=True)
    assert desk.detected(mine)
    assert taken(desk, 0.0) == [("gate", 0, True)]


def test_a_detection_after_the_answer_is_late() -> None:
    desk = AnswerDesk()
    mine = add(desk, "gate", 0, 0.0, offered=True)
    start(desk, mine)
    taken(desk, BUDGET_S)
    assert not desk.detected(mine)
    assert len(desk) == 0
    assert taken(desk, 1.0) == []


def test_a_detection_of_a_frame_never_seen_is_late_too() -> None:
    assert not AnswerDesk().detected(frame("gate", 7, 0.0))


def test_a_frame_given_up_is_answered_at_once() -> None:
    desk = AnswerDesk()
    mine = add(desk, "gate", 0, 0.0, offered=True)
    desk.give_up(mine)
    assert taken(desk, 0.001) == [("gate", 0, False)]


def test_giving_up_what_is_answered_or_unknown_does_nothing() -> None:
    desk = AnswerDesk()
    mine = add(desk, "gate", 0, 0.0, offered=False)
    taken(desk, 0.0)
    desk.give_up(mine)
    desk.give_up(frame("yard", 0, 0.0))
    assert len(desk) == 0


def test_giving_up_does_not_undo_a_detection() -> None:
    desk = AnswerDesk()
    mine = add(desk, "gate", 0, 0.0, offered=True)
    desk.detected(mine)
    desk.give_up(mine)
    assert taken(desk, 0.0) == [("gate", 0, True)]


def test_a_failed_batch_is_given_up_and_its_frames_are_tracked() -> None:
    desk = AnswerDesk()
    frames = [add(desk, name, 0, 0.0, offered=True) for name in ("gate", "yard")]
    start(desk, *frames)
    for f in frames:
        desk.give_up(f)
    assert taken(desk, 0.002) == [("gate", 0, False), ("yard", 0, False)]


# -- order ---------------------------------------------------------------------------------


def test_a_later_frame_that_is_ready_waits_for_an_earlier_one() -> None:
    desk = AnswerDesk()
    add(desk, "gate", 0, 0.0, offered=True)
    add(desk, "gate", 1, 0.01, offered=False)
    assert taken(desk, 0.02) == []
    assert taken(desk, BUDGET_S) == [("gate", 0, False), ("gate", 1, False)]


def test_a_later_detection_does_not_overtake_an_earlier_frame() -> None:
    desk = AnswerDesk()
    first = add(desk, "gate", 0, 0.0, offered=True)
    start(desk, first)
    second = add(desk, "gate", 1, 0.01, offered=True)
    desk.detected(second)
    assert taken(desk, 0.02) == []
    desk.detected(first)
    assert taken(desk, 0.021) == [("gate", 0, True), ("gate", 1, True)]


def test_cameras_do_not_wait_for_each_other() -> None:
    desk = AnswerDesk()
    add(desk, "gate", 0, 0.0, offered=True)
    add(desk, "yard", 0, 0.0, offered=False)
    assert taken(desk, 0.001) == [("yard", 0, False)]
    assert len(desk) == 1


def test_the_frames_behind_a_head_follow_up_to_the_next_that_waits() -> None:
    desk = AnswerDesk()
    first = add(desk, "gate", 0, 0.0, offered=True)
    add(desk, "gate", 1, 0.005, offered=False)
    add(desk, "gate", 2, 0.010, offered=True)
    add(desk, "gate", 3, 0.015, offered=False)
    desk.detected(first)
    assert taken(desk, 0.016) == [("gate", 0, True), ("gate", 1, False)]
    assert desk.next_wake_s() == pytest.approx(0.010 + BUDGET_S)
    assert len(desk) == 2


# -- batches -------------------------------------------------------------------------------


def test_a_frame_left_out_of_a_batch_waits_only_while_it_still_can_make_the_next() -> None:
    desk = AnswerDesk()
    chosen = add(desk, "gate", 0, 0.0, offered=True)
    add(desk, "yard", 0, 0.0, offered=True)
    add(desk, "door", 0, 0.002, offered=True)
    desk.batch_started(batch(chosen), lambda f: f.camera == "door")
    assert taken(desk, 0.003) == [("yard", 0, False)]
    assert len(desk) == 2


def test_frames_of_a_correction_wait_for_nothing() -> None:
    desk = AnswerDesk()
    mine = add(desk, "gate", 0, 0.0, offered=True)
    start(desk, mine, kind=BatchKind.CORRECTION)
    assert taken(desk, 0.001) == [("gate", 0, False)]
    assert not desk.detected(mine)


def test_a_batched_frame_waits_though_the_next_batch_leaves_without_it() -> None:
    desk = AnswerDesk()
    mine = add(desk, "gate", 0, 0.0, offered=True)
    start(desk, mine)
    desk.batch_started(batch(frame("yard", 0, 0.0)), lambda _: False)
    assert taken(desk, 0.01) == []


def test_draining_answers_everything_in_order() -> None:
    desk = AnswerDesk()
    frames = [add(desk, "gate", seq, seq * 0.001, offered=True) for seq in range(5)]
    add(desk, "yard", 0, 0.0, offered=True)
    desk.detected(frames[2])
    answers = [(f.camera, f.seq, detected) for f, detected in desk.take_all()]
    assert answers[:5] == [("gate", seq, seq == 2) for seq in range(5)]
    assert answers[5:] == [("yard", 0, False)]
    assert (len(desk), desk.next_wake_s(), desk.take_all()) == (0, math.inf, [])


# -- anything ------------------------------------------------------------------------------

word = st.tuples(
    st.sampled_from(["add", "offer", "detect", "give_up", "start", "correct", "take"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.001, 0.01, 0.05]),
)


@given(st.lists(word, max_size=80))
@settings(max_examples=200, deadline=None)
def test_any_course_answers_each_frame_once_in_order_and_by_its_time(
    words: list[tuple[str, str, int, float]],
) -> None:
    """Also words about frames long answered or not yet captured."""
    desk, now_s = AnswerDesk(), 0.0
    added: dict[str, list[Frame]] = {"a": [], "b": []}
    answered: dict[str, list[int]] = {"a": [], "b": []}

    def take(when_s: float) -> None:
        for done, _ in desk.take_ready(when_s):
            assert when_s <= done.captured_s + BUDGET_S + 1e-9
            answered[done.camera].append(done.seq)

    for what, camera, seq, step_s in words:
        target_s = now_s + step_s
        while (wake_s := desk.next_wake_s()) <= target_s:
            take(wake_s)
        now_s = target_s
        frames = added[camera]
        known = frames[seq] if seq < len(frames) else frame(camera, seq, now_s)
        if what in ("add", "offer"):
            frames.append(add(desk, camera, len(frames), now_s, what == "offer"))
        elif what == "detect":
            late = known.seq < len(frames) and known.seq in answered[camera]
            assert not (desk.detected(known) and late)
        elif what == "give_up":
            desk.give_up(known)
        elif what == "start":
            desk.batch_started(batch(known), lambda f: f.seq % 2 == 0)
        elif what == "correct":
            desk.batch_started(batch(known, kind=BatchKind.CORRECTION), lambda _: True)
        else:
            take(now_s)
        open_frames = sum(map(len, added.values())) - sum(map(len, answered.values()))
        assert len(desk) == open_frames
    for done, _ in desk.take_all():
        answered[done.camera].append(done.seq)
    for camera, frames in added.items():
        assert answered[camera] == list(range(len(frames)))
