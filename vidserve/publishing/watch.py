"""``vidserve watch``: what a daemon publishes, one readable line a change."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import orjson

from vidserve.clock import Clock, RealClock
from vidserve.publishing.connection import (
    Connection,
    ConnectionEnded,
    ConnectionFailed,
    MqttSettings,
)

_RETRY_S = 2.0
_STEP_S = 0.2


def format_line(topic: str, payload: bytes) -> str | None:
    """A message as one line for people. Pure.

    Args:
        topic: Without the prefix.
        payload: As published; anything may come here, and nothing makes this raise.

    Returns:
        None for messages that are not shown: numbers, counts (the detections say it), and
        topics that are not known.
    """
    line = _line(topic, payload)
    if line is None or line.isprintable():
        return line
    # Whatever it is, it does not move the cursor of a terminal.
    return "".join(c if c.isprintable() else "?" for c in line)


def _line(topic: str, payload: bytes) -> str | None:
    match topic.split("/"):
        case ["status"]:
            return f"vidserve is {_text(payload)}"
        case ["info"]:
            return _info_line(_fields(payload))
        case [camera, "status"]:
            return _camera_line(camera, _fields(payload))
        case [camera, "detections"]:
            return _detections_line(camera, _fields(payload))
        case _:
            return None


def content_of(payload: bytes) -> object:
    """What has to differ for a line on a camera to be worth showing: ids and labels in view."""
    objects = _objects(_fields(payload))
    return sorted((str(thing.get("id")), str(thing.get("label"))) for thing in objects)


class Changes:
    """Keeps the lines of one camera to those where what is in view has changed. Pure.

    Args:
        every: Show every message instead.
    """

    def __init__(self, every: bool = False) -> None:
        self._every = every
        self._shown: dict[str, object] = {}

    def line(self, topic: str, payload: bytes) -> str | None:
        """``format_line``, or None where nothing has changed since that topic's last line."""
        line = format_line(topic, payload)
        if line is None or self._every:
            return line
        shown = content_of(payload) if topic.endswith("/detections") else payload
        if topic in self._shown and self._shown[topic] == shown:
            return None
        self._shown[topic] = shown
        return line


def watch(
    settings: MqttSettings,
    write: Callable[[str], None],
    stop: threading.Event,
    *,
    every: bool = False,
    clock: Clock | None = None,
) -> None:
    """Print what ``settings.prefix`` publishes until ``stop`` is set. Reconnects by itself.

    Args:
        settings: The broker and the prefix.
        write: Given each line, without its end.
        stop: Looked at several times a second.
        every: A line for every message, not only for changes.
        clock: For time-outs.

    Raises:
        OutputError: the TLS files cannot be used.
    """
    clock = clock or RealClock()
    context = settings.tls_context()
    changes = Changes(every)
    last_words = ""

    def show(topic: str, payload: bytes, _retained: bool) -> None:
        line = changes.line(topic.removeprefix(f"{settings.prefix}/"), payload)
        if line is not None:
            write(line)

    while not stop.is_set():
        connection = Connection(
            settings, settings.unique_client_id(), context, clock, on_message=show
        )
        try:
            connection.open(settings.connect_timeout_s)
            connection.subscribe(f"{settings.prefix}/#")
            last_words = ""
            while not stop.is_set():
                connection.step(_STEP_S)
        except (ConnectionFailed, ConnectionEnded) as error:
            if str(error) != last_words:
                last_words = str(error)
                write(f"not connected: {error}; trying again")
            stop.wait(_RETRY_S)
        finally:
            connection.close()


def _info_line(info: dict[str, object]) -> str:
    cameras = info.get("cameras")
    number = len(cameras) if isinstance(cameras, list) else "?"
    return (
        f"vidserve {info.get('version', '?')}: {number} cameras, model {info.get('model', '?')} "
        f"({info.get('backend', '?')} on {info.get('device', '?')})"
    )


def _camera_line(camera: str, status: dict[str, object]) -> str:
    reason = status.get("reason")
    why = f": {reason}" if reason else ""
    return f"{_time(status.get('since'))}  {camera}  is {status.get('state', '?')}{why}"


def _detections_line(camera: str, answer: dict[str, object]) -> str | None:
    if not answer:
        return None
    things = _objects(answer)
    confidences: dict[str, list[float]] = {}
    for thing in things:
        confidence = thing.get("confidence")
        known = confidences.setdefault(str(thing.get("label", "?")), [])
        if isinstance(confidence, int | float):
            known.append(float(confidence))
    counts = Counter(str(thing.get("label", "?")) for thing in things)
    seen = ", ".join(
        f"{n} {label} ({' '.join(f'{c:.2f}' for c in sorted(confidences[label], reverse=True))})"
        for label, n in counts.most_common()
    )
    age = answer.get("age_ms")
    age_text = f"{age:5.1f} ms" if isinstance(age, int | float) else "   ?   "
    source = str(answer.get("source", "?"))
    return f"{_time(answer.get('time'))}  {camera}  {source:8}  {age_text}  {seen or 'nothing'}"


def _time(iso: object) -> str:
    """The time of day of an ISO 8601 time, in UTC."""
    if isinstance(iso, str) and len(iso) >= 23 and iso[10] == "T":
        return iso[11:23]
    return "--:--:--.---"


def _fields(payload: bytes) -> dict[str, object]:
    """A JSON object's fields; empty for anything else."""
    try:
        data = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) else {}


def _objects(answer: dict[str, object]) -> list[dict[str, object]]:
    things = answer.get("objects")
    return [t for t in things if isinstance(t, dict)] if isinstance(things, list) else []


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", errors="replace")[:100]
