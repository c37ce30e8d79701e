"""The bounded queue in front of a way out. Plain code with a lock of its own, no threads.

What leaves first: state, then events and frames in the order they came. Within one topic the
order is always kept. What goes first when there is no room: the oldest frames, then, when no
frame is left, the oldest events. State is never given up; of each state topic only the newest
value waits, so it needs one place a topic.

Every message put ends once: sent, dropped for a reason, or coalesced (a newer value of its
topic took its place). ``put == sent + dropped + coalesced + waiting + in_hand`` at any time.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from vidserve.publishing.output import Message, MessageKind


class OutboxDrop(enum.Enum):
    """Why a message never left; the value is its name in reports."""

    OUTBOX_FULL = "outbox_full"
    TOO_LARGE = "too_large"
    WRITE_FAILED = "write_failed"
    CONNECTION_LOST = "connection_lost"
    INVALID_TOPIC = "invalid_topic"
    STOPPED = "stopped"

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        return _SENTENCES[self]


_SENTENCES = {
    OutboxDrop.OUTBOX_FULL: "The way out was blocked and newer messages needed the room.",
    OutboxDrop.TOO_LARGE: "The payload is larger than this output takes.",
    OutboxDrop.WRITE_FAILED: "The file could not be written.",
    OutboxDrop.CONNECTION_LOST: "The connection broke while the message was half written.",
    OutboxDrop.INVALID_TOPIC: "The topic is none: it has a wildcard or is not text.",
    OutboxDrop.STOPPED: "The daemon stopped before the message could leave.",
}


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """Room for events and frames together; state has one place a topic besides.

    Attributes:
        messages: Most events and frames that wait.
        payload_bytes: Most bytes of payload that wait.
        max_payload_bytes: Largest payload of one message, of any kind.
    """

    messages: int = 2000
    payload_bytes: int = 8 << 20
    max_payload_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        if self.messages < 1 or not 0 < self.max_payload_bytes <= self.payload_bytes:
            raise ValueError(f"these limits leave no room for one message: {self}")


@dataclass(frozen=True, slots=True)
class OutboxCounts:
    """Frozen counters; ``put`` includes the values of state that were put again by a replay."""

    put: int
    sent: int
    coalesced: int
    dropped: Mapping[str, int]
    waiting: int
    in_hand: int
    peak: int


class Outbox:
    """See the module. Every method may be called from any thread and returns at once.

    The sending thread calls ``take`` and then, once for each message taken, one of ``sent``,
    ``give_back`` and ``lost``.
    """

    def __init__(self, limits: OutboxLimits | None = None) -> None:
        self._limits = limits or OutboxLimits()
        self._lock = threading.Lock()
        self._latest_state: dict[str, Message] = {}  # of this run, in the order of first put
        self._state: dict[str, Message] = {}
        self._events: deque[tuple[int, Message]] = deque()  # with the number of arrival
        self._frames: deque[tuple[int, Message]] = deque()
        self._bytes = 0  # of events and frames
        self._arrivals = 0
        self._put = 0
        self._sent = 0
        self._coalesced = 0
        self._dropped: dict[str, int] = {}
        self._in_hand = 0
        self._peak = 0
        self._closed = False
        self._new_reasons: list[OutboxDrop] = []

    def put(self, message: Message) -> int:
        """Add a message; make room if there is none.

        Returns:
            How many messages wait now.
        """
        with self._lock:
            self._put += 1
            if self._closed:
                self._drop(OutboxDrop.STOPPED)
            elif len(message.payload) > self._limits.max_payload_bytes:
                self._drop(OutboxDrop.TOO_LARGE)
            elif message.kind is MessageKind.STATE:
                self._latest_state[message.topic] = message
                self._queue_state(message)
            else:
                queue = self._frames if message.kind is MessageKind.FRAME else self._events
                self._arrivals += 1
                queue.append((self._arrivals, message))
                self._bytes += len(message.payload)
                self._make_room()
            waiting = self._waiting()
            self._peak = max(self._peak, waiting)
            return waiting

    def take(self, *, acknowledged_too: bool = True) -> Message | None:
        """The next message to send, or None.

        Args:
            acknowledged_too: False leaves state and events where they are (the window of
                unacknowledged messages is full) and takes frames only.
        """
        with self._lock:
            message = self._next(acknowledged_too)
            if message is not None:
                self._in_hand += 1
            return message

    def sent(self, message: Message) -> None:
        """A message taken has left. State that was cleared (empty payload) is forgotten."""
        with self._lock:
            self._in_hand -= 1
            self._sent += 1
            if not message.payload and self._latest_state.get(message.topic) is message:
                del self._latest_state[message.topic]

    def give_back(self, message: Message) -> None:
        """A message taken could not leave: it waits again, before all others of its kind.

        Call it for the messages in hand newest first, so that their order is kept. State does
        not come back: ``replay_state`` sends the newest value, which may be a newer one.
        """
        with self._lock:
            self._in_hand -= 1
            if message.kind is MessageKind.STATE:
                self._coalesced += 1
                return
            queue = self._frames if message.kind is MessageKind.FRAME else self._events
            queue.appendleft((0, message))  # arrivals count from 1
            self._bytes += len(message.payload)
            self._make_room()

    def lost(self, message: Message, reason: OutboxDrop) -> None:
        """A message taken is gone."""
        with self._lock:
            self._in_hand -= 1
            self._drop(reason)

    def replay_state(self) -> None:
        """Queue the newest value of every state topic of this run, in the order of first put.

        For a new connection: a broker without persistence has forgotten what was retained.
        """
        with self._lock:
            self._put += len(self._latest_state) - len(self._state)  # the rest waits already
            self._state = dict(self._latest_state)
            self._peak = max(self._peak, self._waiting())

    def abandon(self) -> None:
        """The end: all that waits, and all that is put from now on, is dropped as ``stopped``."""
        with self._lock:
            self._closed = True
            self._latest_state.clear()  # a late connection must not say "online" any more
            for _ in range(self._waiting()):
                self._drop(OutboxDrop.STOPPED)
            self._state.clear()
            self._events.clear()
            self._frames.clear()
            self._bytes = 0

    def new_reasons(self) -> list[OutboxDrop]:
        """The reasons that dropped their first message since the last call; for the log."""
        with self._lock:
            reasons, self._new_reasons = self._new_reasons, []
            return reasons

    def counts(self) -> OutboxCounts:
        """Frozen counters."""
        with self._lock:
            return OutboxCounts(
                put=self._put,
                sent=self._sent,
                coalesced=self._coalesced,
                dropped=dict(self._dropped),
                waiting=self._waiting(),
                in_hand=self._in_hand,
                peak=self._peak,
            )

    def __len__(self) -> int:
        with self._lock:
            return self._waiting()

    def _waiting(self) -> int:
        return len(self._state) + len(self._events) + len(self._frames)

    def _drop(self, reason: OutboxDrop) -> None:
        if reason.value not in self._dropped:
            self._new_reasons.append(reason)
        self._dropped[reason.value] = self._dropped.get(reason.value, 0) + 1

    def _queue_state(self, message: Message) -> None:
        if message.topic in self._state:
            self._coalesced += 1
        self._state[message.topic] = message  # an older value's place in the queue is kept

    def _make_room(self) -> None:
        while (
            len(self._events) + len(self._frames) > self._limits.messages
            or self._bytes > self._limits.payload_bytes
        ):
            _, message = (self._frames or self._events).popleft()
            self._bytes -= len(message.payload)
            self._drop(OutboxDrop.OUTBOX_FULL)

    def _next(self, acknowledged_too: bool) -> Message | None:
        if acknowledged_too:
            if self._state:
                return self._state.pop(next(iter(self._state)))
            frames_first = self._frames and (
                not self._events or self._frames[0][0] < self._events[0][0]
            )
            queue = self._frames if frames_first else self._events
        else:
            queue = self._frames
        if not queue:
            return None
        _, message = queue.popleft()
        self._bytes -= len(message.payload)
        return message
