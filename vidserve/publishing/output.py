"""What leaves the daemon and through what: messages, their kinds, and the output protocol."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class MessageKind(enum.Enum):
    """How a message is treated when the way out is blocked."""

    STATE = "retained, QoS 1; only the newest of a topic matters; never dropped"
    EVENT = "QoS 1; kept as long as there is room, dropped last and counted"
    FRAME = "QoS 0; of a moment; the oldest are dropped first and counted"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``topic`` is without the prefix; ``payload`` is UTF-8 JSON or plain text."""

    topic: str
    payload: bytes
    kind: MessageKind


@dataclass(frozen=True, slots=True)
class OutputStats:
    """Counters of one output since its start.

    Attributes:
        connected: Whether messages can leave now.
        published: Messages that left.
        dropped: By reason (``outbox_full``, ``too_large``, ``write_failed`` ...).
        reconnects: Connections after the first.
        outbox_peak: Most messages that ever waited.
        reason: Why it is not connected, for people; empty if it is.
        put: Messages handed over; state that was published again counts again.
        coalesced: State that a newer value of its topic replaced before it left.
        waiting: In the outbox or not yet acknowledged.
            ``put == published + sum(dropped) + coalesced + waiting``.
    """

    connected: bool
    published: int
    dropped: Mapping[str, int]
    reconnects: int
    outbox_peak: int
    reason: str = ""
    put: int = 0
    coalesced: int = 0
    waiting: int = 0


class Output(Protocol):
    """A way out. ``put`` may be called from any thread and never blocks."""

    @property
    def name(self) -> str:
        """``mqtt`` or ``jsonl``; for logs."""
        ...

    def start(self) -> None:
        """Start the thread. A broker that is away is no error; an unusable file is.

        Raises:
            OutputError: with what to do.
        """
        ...

    def put(self, message: Message) -> None:
        """Hand a message over. Returns at once, whatever the state of the way out."""
        ...

    def stop(self, flush_s: float) -> None:
        """Send what waits for at most ``flush_s`` seconds, say goodbye, end the thread."""
        ...

    def stats(self) -> OutputStats:
        """Frozen counters. Any thread."""
        ...
