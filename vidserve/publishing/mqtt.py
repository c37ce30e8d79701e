"""The MQTT output: one thread that owns the connection, fed by a bounded outbox.

While there is no connection nothing is handed to the MQTT library: messages wait in the outbox,
which drops the oldest per-frame ones when it is full. After every connection the birth
(``<prefix>/status`` = ``online``) and all retained state of this run are published again, then
what waits. The will puts ``offline`` on the same topic when the process dies without a goodbye.
"""

from __future__ import annotations

import logging
import math
import random
import ssl
import threading

import paho.mqtt.client as paho

from vidserve.clock import Clock
from vidserve.publishing.connection import (
    CLOSED_BY_BROKER,
    Connection,
    ConnectionEnded,
    ConnectionFailed,
    MqttSettings,
    Wake,
    Will,
)
from vidserve.publishing.messages import OFFLINE, ONLINE, STATUS
from vidserve.publishing.outbox import Outbox, OutboxDrop, OutboxLimits
from vidserve.publishing.output import Message, MessageKind, OutputStats

log = logging.getLogger(__name__)

RETRY_MAX_S = 5.0
_RETRY_FIRST_S = 0.25
_RETRY_LEAST_S = 0.1  # a pause after a try that itself took long
_STABLE_S = 10.0  # a connection that lived shorter does not reset the back-off
_SAME_LINE_S = 60.0  # a flapping connection logs each line at most this often
_UNACKNOWLEDGED_MAX = 20  # QoS 1 messages on their way
_GOODBYE_SHARE = 0.25  # of the flush time, kept for the last message
_STEP_S = 1.0


def retry_delay_s(failures: int, chance: float) -> float:
    """From the start of one try to the start of the next: doubled each time, with a cap.

    Args:
        failures: Tries in a row that came to nothing, >= 1.
        chance: Uniform in 0..1; takes off up to a fifth, so that daemons do not retry in step.
    """
    delay_s = _RETRY_FIRST_S * 2.0 ** min(failures - 1, 10)
    return min(delay_s, RETRY_MAX_S) * (1.0 - 0.2 * chance)


class MqttOutput:
    """An ``Output`` over MQTT 3.1.1. State is retained with QoS 1, events QoS 1, frames QoS 0.

    ``published`` counts frames that were written to the socket and state and events that the
    broker acknowledged; frames that were in the socket when the broker died count as published.
    An event without an acknowledgement is sent again on the next connection, so a subscriber
    may see it twice.

    Args:
        settings: Where the broker is.
        clock: Monotonic time.
        limits: Of the outbox.
    """

    def __init__(
        self, settings: MqttSettings, clock: Clock, limits: OutboxLimits | None = None
    ) -> None:
        self._settings = settings
        self._client_id = settings.unique_client_id()
        self._clock = clock
        self._outbox = Outbox(limits)
        self._outbox.put(Message(STATUS, ONLINE, MessageKind.STATE))  # first state: the birth
        self._context: ssl.SSLContext | None = None
        self._thread: threading.Thread | None = None
        self._wake = Wake()
        self._stop = threading.Event()
        self._stop_deadline_s = math.inf
        self._asleep = False
        # Written by the thread, read by stats(); each a single reference.
        self._connected = False
        self._reason = "not started"
        self._connections = 0
        # The thread's own.
        self._unacknowledged: list[tuple[paho.MQTTMessageInfo, Message]] = []
        self._half_written: Message | None = None
        self._told: str | None = None  # reason of the last line; empty: connected
        self._state_s = clock.now()
        self._told_s: dict[str, float] = {}

    @property
    def name(self) -> str:
        return "mqtt"

    @property
    def client_id(self) -> str:
        """As the broker knows us; unique for each run unless configured."""
        return self._client_id

    def start(self) -> None:
        """Start the thread ``mqtt``, which connects, and keeps trying.

        Raises:
            OutputError: the TLS files cannot be used.
        """
        if self._thread is not None:
            raise RuntimeError("an output is started once")
        self._context = self._settings.tls_context()
        self._reason = "connecting"
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Queue a message; a few microseconds, whatever the broker does. Any thread."""
        self._outbox.put(message)
        if self._asleep:
            self._asleep = False
            self._wake.set()

    def stop(self, flush_s: float) -> None:
        """Send what waits, then the retained ``offline``, wait for its acknowledgement and
        disconnect; all that within ``flush_s``. What is left is counted as ``stopped``.
        """
        self._stop_deadline_s = self._clock.now() + flush_s
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            # More than flush_s only where the resolver of host names hangs; the thread is a
            # daemon and does not keep the process.
            self._thread.join(flush_s + 1.0)
        self._outbox.abandon()

    def stats(self) -> OutputStats:
        """Frozen counters. Any thread."""
        counts = self._outbox.counts()
        connected, reason = self._connected, self._reason
        thread = self._thread
        if thread is not None and not thread.is_alive() and not self._stop.is_set():
            connected, reason = False, "the thread of this output has died"
        return OutputStats(
            connected=connected,
            published=counts.sent,
            dropped=counts.dropped,
            reconnects=max(0, self._connections - 1),
            outbox_peak=counts.peak,
            reason="" if connected else reason,
            put=counts.put,
            coalesced=counts.coalesced,
            waiting=counts.waiting + counts.in_hand,
        )

    def _run(self) -> None:
        failures = 0
        while True:
            started_s = self._clock.now()
            lived_s = self._one_connection()
            if self._stop.is_set():
                self._set_state(False, "stopped")
                return
            failures = 1 if lived_s >= _STABLE_S else failures + 1
            delay_s = retry_delay_s(failures, random.random())
            spent_s = self._clock.now() - started_s if lived_s == 0.0 else 0.0
            self._tell()
            # A stop ends the wait; one more try then, for the goodbye.
            self._stop.wait(max(_RETRY_LEAST_S, delay_s - spent_s))

    def _one_connection(self) -> float:
        """Make a connection and serve it to its end. Returns how long it lived, in seconds."""
        connection = self._new_connection()
        made_s: float | None = None
        goodbye = False
        try:
            left_s = self._stop_deadline_s - self._clock.now()
            connection.open(min(self._settings.connect_timeout_s, max(0.1, left_s)))
            made_s = self._clock.now()
            self._connections += 1
            self._set_state(True, "")
            goodbye = self._serve(connection)
        except ConnectionFailed as error:
            self._set_state(False, str(error))
        except ConnectionEnded as error:
            soon = made_s is not None and self._clock.now() - made_s < _STABLE_S
            self._set_state(False, self._why_ended(str(error), soon))
        except Exception as error:
            # Whatever a library raises, the way out is tried again, and people can see why.
            self._set_state(False, f"unexpected error: {error!r}", broken=True)
        finally:
            connection.close(goodbye=goodbye)
            self._take_back()
        return 0.0 if made_s is None else self._clock.now() - made_s

    def _new_connection(self) -> Connection:
        will = Will(f"{self._settings.prefix}/{STATUS}", OFFLINE)
        return Connection(self._settings, self._client_id, self._context, self._clock, will)

    def _serve(self, connection: Connection) -> bool:
        """Send until the connection ends (raises) or the output is stopped (returns).

        Returns:
            Whether the broker has acknowledged our ``offline``; if not, its will has to say it.
        """
        self._outbox.replay_state()
        while not self._stop.is_set():
            self._pump(connection, _STEP_S)
        left_s = max(0.0, self._stop_deadline_s - self._clock.now())
        self._flush(connection, self._stop_deadline_s - _GOODBYE_SHARE * left_s)
        self._outbox.put(Message(STATUS, OFFLINE, MessageKind.STATE))
        self._flush(connection, self._stop_deadline_s)
        return not self._unacknowledged and not len(self._outbox)

    def _flush(self, connection: Connection, deadline_s: float) -> None:
        """Send until nothing waits and all is acknowledged, or until the deadline."""
        while len(self._outbox) or self._unacknowledged or self._half_written:
            left_s = deadline_s - self._clock.now()
            if left_s <= 0:
                return
            self._pump(connection, min(left_s, _STEP_S))

    def _pump(self, connection: Connection, timeout_s: float) -> None:
        """Send what the socket takes, then wait for something to do and settle what is done."""
        self._send(connection)
        if not connection.backed_up():
            self._asleep = True
            if len(self._outbox):  # put just now, before it could see that we sleep
                self._send(connection)
        self._tell()
        connection.step(timeout_s, self._wake)
        self._asleep = False
        if self._half_written is not None and not connection.backed_up():
            self._outbox.sent(self._half_written)
            self._half_written = None
        if self._unacknowledged:
            waiting = []
            for info, message in self._unacknowledged:
                if info.is_published():
                    self._outbox.sent(message)
                else:
                    waiting.append((info, message))
            self._unacknowledged = waiting

    def _send(self, connection: Connection) -> None:
        while not connection.backed_up():
            room = len(self._unacknowledged) < _UNACKNOWLEDGED_MAX
            message = self._outbox.take(acknowledged_too=room)
            if message is None:
                return
            qos = 0 if message.kind is MessageKind.FRAME else 1
            try:
                info = connection.publish(
                    f"{self._settings.prefix}/{message.topic}",
                    message.payload,
                    qos=qos,
                    retain=message.kind is MessageKind.STATE,
                )
            except ValueError:
                self._outbox.lost(message, OutboxDrop.INVALID_TOPIC)
                log.error("mqtt: %r is no topic; the message is dropped", message.topic)
                continue
            if qos:
                self._unacknowledged.append((info, message))
            elif connection.backed_up():
                self._half_written = message
            else:
                self._outbox.sent(message)

    def _take_back(self) -> None:
        """After a connection: what was on its way waits again, or is counted as lost."""
        self._asleep = False
        if self._half_written is not None:
            self._outbox.lost(self._half_written, OutboxDrop.CONNECTION_LOST)
            self._half_written = None
        for _, message in reversed(self._unacknowledged):
            self._outbox.give_back(message)
        self._unacknowledged = []

    def _why_ended(self, why: str, soon: bool) -> str:
        if why == CLOSED_BY_BROKER and soon and self._settings.client_id is not None:
            # MQTT 3.1.1 has no word for a take-over: the older connection is just closed.
            why += f" soon after login: does another client use the client id {self._client_id}?"
        return why

    def _set_state(self, connected: bool, reason: str, broken: bool = False) -> None:
        """Remember the state and tell it if it is another one."""
        self._connected, self._reason = connected, reason
        self._state_s = self._clock.now()
        self._tell(broken)

    def _tell(self, broken: bool = False) -> None:
        """Log the state if it is not the one logged last; the same line once a minute at most,
        so a flapping connection is told in a few lines, and the last line is true in the end:
        a connection that proves stable is told sooner.
        A reason for drops is told once; the counters tell the rest.
        """
        for drop in self._outbox.new_reasons():
            log.warning("mqtt: messages are dropped (%s): %s", drop.value, drop.sentence)
        connected, reason = self._connected, self._reason
        if reason == self._told:
            return
        now_s = self._clock.now()
        again = now_s - self._told_s.get(reason, -math.inf) < _SAME_LINE_S
        if again and not (connected and now_s - self._state_s > _STABLE_S):
            return
        self._told_s = {r: s for r, s in self._told_s.items() if now_s - s < _SAME_LINE_S}
        self._told_s[reason] = now_s
        self._told = reason
        settings = self._settings
        if connected:
            log.info("mqtt: connected to %s:%d", settings.host, settings.port)
        elif self._stop.is_set():
            log.info("mqtt: %s", reason)
        elif broken:
            log.error("mqtt: %s; retrying", reason, exc_info=True)
        else:
            log.warning("mqtt: not connected: %s; retrying", reason)
