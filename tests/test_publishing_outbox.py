"""The outbox: bounded, in order, state never lost, every message accounted for."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vidserve.publishing.outbox import Outbox, OutboxDrop, OutboxLimits
from vidserve.publishing.output import Message, MessageKind

FRAME, EVENT, STATE = MessageKind.FRAME, MessageKind.EVENT, MessageKind.STATE


def drain(outbox: Outbox) -> list[Message]:
    taken = []
    while (message := outbox.take()) is not None:
        taken.append(message)
        outbox.sent(message)
    return taken


def test_state_leaves_before_what_came_earlier() -> None:
    outbox = Outbox()
    for topic, kind in [("a/detections", FRAME), ("a/events", EVENT), ("a/status", STATE)]:
        outbox.put(Message(topic, b"1", kind))
    assert [m.topic for m in drain(outbox)] == ["a/status", "a/detections", "a/events"]


def test_only_the_newest_state_of_a_topic_waits() -> None:
    outbox = Outbox(OutboxLimits(messages=1))
    for n in range(100):
        outbox.put(Message("a/status", b"%d" % n, STATE))
        outbox.put(Message("b/status", b"%d" % n, STATE))
    assert [(m.topic, m.payload) for m in drain(outbox)] == [
        ("a/status", b"99"),
        ("b/status", b"99"),
    ]
    assert outbox.counts().coalesced == 198
    assert outbox.counts().dropped == {}


def test_the_oldest_frames_go_first_and_events_last() -> None:
    outbox = Outbox(OutboxLimits(messages=4))
    outbox.put(Message("e", b"0", EVENT))
    for n in range(5):
        outbox.put(Message("f", b"%d" % n, FRAME))
    assert [m.payload for m in drain(outbox)] == [b"0", b"2", b"3", b"4"]
    for n in range(6):
        outbox.put(Message("e", b"%d" % n, EVENT))
    outbox.put(Message("f", b"x", FRAME))  # no room among events: the frame itself goes
    assert [m.payload for m in drain(outbox)] == [b"2", b"3", b"4", b"5"]
    assert outbox.counts().dropped == {"outbox_full": 2 + 2 + 1}


def test_bytes_are_bounded_too() -> None:
    outbox = Outbox(OutboxLimits(messages=1000, payload_bytes=100, max_payload_bytes=60))
    for n in range(10):
        outbox.put(Message("f", bytes([n]) * 30, FRAME))
    assert [m.payload[0] for m in drain(outbox)] == [7, 8, 9]


@pytest.mark.parametrize("kind", list(MessageKind))
def test_a_message_that_is_too_large_is_refused_whatever_its_kind(kind: MessageKind) -> None:
    outbox = Outbox(OutboxLimits(max_payload_bytes=10))
    outbox.put(Message("t", b"x" * 11, kind))
    outbox.replay_state()
    assert outbox.take() is None
    assert outbox.counts().dropped == {"too_large": 1}


def test_a_replay_sends_the_newest_value_of_every_state_in_the_order_of_first_put() -> None:
    outbox = Outbox()
    outbox.put(Message("status", b"online", STATE))
    outbox.put(Message("a/status", b"connecting", STATE))
    drain(outbox)
    outbox.put(Message("a/status", b"running", STATE))
    outbox.put(Message("f", b"1", FRAME))
    outbox.replay_state()
    assert [m.payload for m in drain(outbox)] == [b"online", b"running", b"1"]


def test_a_state_given_back_does_not_come_after_a_newer_one() -> None:
    outbox = Outbox()
    outbox.put(Message("a/status", b"old", STATE))
    old = outbox.take()
    assert old is not None
    outbox.put(Message("a/status", b"new", STATE))
    outbox.give_back(old)
    outbox.replay_state()
    assert [m.payload for m in drain(outbox)] == [b"new"]


def test_events_given_back_keep_their_order() -> None:
    outbox = Outbox()
    for n in range(4):
        outbox.put(Message("e", b"%d" % n, EVENT))
    first, second = outbox.take(), outbox.take()
    assert first is not None and second is not None
    outbox.give_back(second)
    outbox.give_back(first)
    assert [m.payload for m in drain(outbox)] == [b"0", b"1", b"2", b"3"]


def test_a_full_window_lets_frames_pass() -> None:
    outbox = Outbox()
    outbox.put(Message("s", b"", STATE))
    outbox.put(Message("e", b"", EVENT))
    outbox.put(Message("f", b"", FRAME))
    frame = outbox.take(acknowledged_too=False)
    assert frame is not None and frame.kind is FRAME
    assert outbox.take(acknowledged_too=False) is None
    assert len(outbox) == 2


def test_state_that_was_cleared_is_forgotten() -> None:
    outbox = Outbox()
    outbox.put(Message("gone/status", b"running", STATE))
    outbox.put(Message("gone/status", b"", STATE))
    outbox.replay_state()
    assert [m.payload for m in drain(outbox)] == [b""]
    outbox.replay_state()
    assert drain(outbox) == []


def test_after_the_end_nothing_waits_and_all_is_counted() -> None:
    outbox = Outbox()
    outbox.put(Message("s", b"1", STATE))
    outbox.put(Message("f", b"1", FRAME))
    outbox.abandon()
    outbox.put(Message("f", b"2", FRAME))
    outbox.replay_state()
    assert outbox.take() is None
    assert outbox.new_reasons() == [OutboxDrop.STOPPED]
    assert outbox.new_reasons() == []
    assert outbox.counts().dropped == {"stopped": 3}


def test_limits_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        OutboxLimits(messages=0)
    with pytest.raises(ValueError, match="no room"):
        OutboxLimits(payload_bytes=10, max_payload_bytes=11)


def test_every_reason_has_a_sentence() -> None:
    assert all(reason.sentence.endswith(".") for reason in OutboxDrop)


class Life(RuleBasedStateMachine):
    """Any sequence of calls: the numbers add up, memory is bounded, topics keep their order."""

    LIMITS = OutboxLimits(messages=6, payload_bytes=60, max_payload_bytes=30)

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(self.LIMITS)
        self.number = 0
        self.hand: list[Message] = []
        self.left: dict[str, list[int]] = defaultdict(list)
        self.newest: dict[str, int] = {}

    @rule(
        topic=st.sampled_from(["a", "b", "c"]),
        kind=st.sampled_from(list(MessageKind)),
        size=st.integers(4, 31),
    )
    def put(self, topic: str, kind: MessageKind, size: int) -> None:
        self.number += 1
        payload = self.number.to_bytes(4, "big").ljust(size, b".")
        name = f"{topic}/{kind.name}"
        self.outbox.put(Message(name, payload, kind))
        if kind is STATE and size <= 30:
            self.newest[name] = self.number

    @rule(acknowledged_too=st.booleans())
    def take(self, acknowledged_too: bool) -> None:
        message = self.outbox.take(acknowledged_too=acknowledged_too)
        if message is not None:
            assert acknowledged_too or message.kind is FRAME
            self.hand.append(message)

    @precondition(lambda self: self.hand)
    @rule()
    def sent(self) -> None:
        message = self.hand.pop(0)
        self.outbox.sent(message)
        self.left[message.topic].append(int.from_bytes(message.payload[:4], "big"))

    @precondition(lambda self: self.hand)
    @rule()
    def lost(self) -> None:
        self.outbox.lost(self.hand.pop(0), OutboxDrop.CONNECTION_LOST)

    @rule()
    def reconnect(self) -> None:
        while self.hand:
            self.outbox.give_back(self.hand.pop())
        self.outbox.replay_state()

    @invariant()
    def adds_up(self) -> None:
        c = self.outbox.counts()
        assert c.in_hand == len(self.hand)
        assert c.put == c.sent + sum(c.dropped.values()) + c.coalesced + c.waiting + c.in_hand
        assert c.waiting <= self.LIMITS.messages + 3  # three state topics
        assert c.peak <= self.LIMITS.messages + 3

    @invariant()
    def keeps_order(self) -> None:
        for numbers in self.left.values():
            assert numbers == sorted(numbers)

    def teardown(self) -> None:
        self.reconnect()
        while (message := self.outbox.take()) is not None:
            self.hand.append(message)
            self.sent()
        for topic, number in self.newest.items():  # no state was lost
            assert self.left[topic][-1] == number
        self.keeps_order()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(deadline=None)
@given(st.lists(st.sampled_from([FRAME, EVENT]), max_size=60), st.integers(1, 10))
def test_no_event_is_dropped_while_a_frame_waits(kinds: list[MessageKind], limit: int) -> None:
    outbox = Outbox(OutboxLimits(messages=limit))
    for kind in kinds:
        outbox.put(Message(kind.name, b"x", kind))
    taken = drain(outbox)
    events = sum(m.kind is EVENT for m in taken)
    assert len(taken) == min(limit, len(kinds))
    assert events == min(limit, kinds.count(EVENT))
