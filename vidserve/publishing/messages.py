"""What a message says: topics and payloads. Pure functions; topics are without the prefix.

Numbers are finite and plain, boxes in pixels of the picture as shown, times ISO 8601 in UTC
with milliseconds. ``SCHEMA`` changes when a field is renamed, removed, or means something else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np
import orjson

from vidserve.frames import Answer, CameraStatus, Tracks
from vidserve.publishing.output import Message, MessageKind
from vidserve.tracking.lives import Life

SCHEMA = 1

STATUS = "status"
INFO = "info"
STATS = "stats"
ONLINE = b"online"
OFFLINE = b"offline"

# One column a number of an object: box, confidence, velocity, age. Rounded to 1 / scale.
_SCALE = np.array([10, 10, 10, 10, 1000, 10, 10, 100], np.float64)


def status_topic(camera: str) -> str:
    """State of a camera."""
    return f"{camera}/status"


def detections_topic(camera: str) -> str:
    """The answers to a camera's frames."""
    return f"{camera}/detections"


def count_topic(camera: str, label_slug: str) -> str:
    """How many of a label a camera shows now."""
    return f"{camera}/count/{label_slug}"


def events_topic(camera: str) -> str:
    """Tracks that begin and end."""
    return f"{camera}/events"


def camera_stats_topic(camera: str) -> str:
    """A camera's counters and latency."""
    return f"{camera}/stats"


def iso_time(wall_s: float) -> str:
    """Seconds since the epoch as ``2025-03-01T12:00:00.123Z``."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def answer_payload(answer: Answer, names: Mapping[int, str], age_ms: float) -> bytes:
    """The answer to one frame.

    Boxes and velocities are rounded to 0.1 px, confidence to three decimals, age to 10 ms.
    The rounding is done for all objects at once: about 20 microseconds for 10 objects.

    Args:
        answer: What was handed over.
        names: Class names by id.
        age_ms: From capture to the making of this message.
    """
    frame = answer.frame
    detection_age_s = answer.detection_age_s
    return orjson.dumps(
        {
            "schema": SCHEMA,
            "camera": frame.camera,
            "seq": frame.seq,
            "time": iso_time(frame.wall_s),
            "age_ms": round(age_ms, 1),
            "source": "detected" if answer.detected else "tracked",
            "detection_age_ms": (
                None if detection_age_s is None else round(detection_age_s * 1000.0, 1)
            ),
            "width": frame.width,
            "height": frame.height,
            "objects": _objects(answer.tracks, names) if len(answer.tracks) else [],
        }
    )


def _objects(tracks: Tracks, names: Mapping[int, str]) -> list[dict[str, object]]:
    """The tracks as plain data; one with a number that is not finite is left out."""
    # float64: a float32 such as 0.1 would print as 0.10000000149011612.
    table = np.empty((len(tracks), 8), np.float64)
    table[:, :4] = tracks.boxes
    table[:, 4] = tracks.scores
    table[:, 5:7] = tracks.velocities
    table[:, 7] = tracks.ages_s
    rows = (np.rint(table * _SCALE) / _SCALE + 0.0).tolist()  # + 0.0: no "-0.0"
    ids, classes = tracks.ids.tolist(), tracks.classes.tolist()
    chosen = range(len(rows)) if np.isfinite(table).all() else _finite_rows(table)
    return [
        {
            "id": ids[i],
            "label": label_of(classes[i], names),
            "confidence": rows[i][4],
            "box": rows[i][:4],
            "velocity": rows[i][5:7],
            "age_s": rows[i][7],
        }
        for i in chosen
    ]


def _finite_rows(table: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[int]:
    rows: list[int] = np.flatnonzero(np.isfinite(table).all(axis=1)).tolist()
    return rows


def label_of(class_id: int, names: Mapping[int, str]) -> str:
    """The name of a class; ``class 7`` where the model has none."""
    return names.get(class_id) or f"class {class_id}"


def camera_status_payload(status: CameraStatus) -> bytes:
    """``{"state", "reason", "since"}``; the reason is empty where there is nothing to say."""
    return orjson.dumps(
        {
            "state": status.state.value,
            "reason": status.reason,
            "since": iso_time(status.since_wall_s),
        }
    )


def event_payload(
    camera: str, event: str, life: Life, names: Mapping[int, str], reason: str, wall_less_s: float
) -> bytes:
    """A track began or ended.

    Args:
        camera: Its name.
        event: ``start`` or ``end``.
        life: Of the track so far.
        names: Class names by id.
        reason: Why it ended, if not because it was lost from view.
        wall_less_s: Wall time less monotonic time.
    """
    return orjson.dumps(
        {
            "schema": SCHEMA,
            "camera": camera,
            "event": event,
            "reason": reason,
            "id": life.id,
            "label": label_of(life.class_id, names),
            "confidence": round(life.confidence, 3),
            "first": iso_time(life.first_s + wall_less_s),
            "last": iso_time(life.last_s + wall_less_s),
            "duration_s": round(life.last_s - life.first_s, 2),
            "path_px": round(life.path_px, 1),
            "box": [round(side, 1) for side in life.box],
        }
    )


def info_payload(
    *,
    version: str,
    instance: str,
    started_wall_s: float,
    model: str,
    backend: str,
    device: str,
    label_slugs: Mapping[str, str],
    cameras: list[str],
    config: Mapping[str, object],
) -> bytes:
    """What this daemon is.

    Args:
        version: Of vidserve.
        instance: Unique per run; tells two daemons on one prefix apart.
        started_wall_s: Wall time of the start.
        model, backend, device: Of the detector.
        label_slugs: Topic level of each label, from ``slugs``.
        cameras: Names of the configured cameras.
        config: The effective config, without secrets: the caller has removed them.
    """
    return orjson.dumps(
        {
            "schema": SCHEMA,
            "version": version,
            "instance": instance,
            "started": iso_time(started_wall_s),
            "model": model,
            "backend": backend,
            "device": device,
            "labels": dict(label_slugs),
            "cameras": cameras,
            "config": dict(config),
        }
    )


def stats_payload(snapshot: Mapping[str, object]) -> bytes:
    """A snapshot of the numbers as it is; numbers that are not finite become null."""
    return orjson.dumps(dict(snapshot), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def count_payload(count: int) -> bytes:
    """A plain integer as text."""
    return b"%d" % count


def slug(label: str) -> str:
    """A label as one topic level that MQTT and Home Assistant take: ``[a-z0-9_]+``.

    ``traffic light`` -> ``traffic_light``, ``Café/Bar`` -> ``cafe_bar``. A label without any
    letter or digit of the Latin alphabet becomes ``label``.
    """
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_") or "label"


def slugs(names: Mapping[int, str]) -> dict[str, str]:
    """The slug of each label, all different: later ones that clash get ``_2``, ``_3`` ...

    Labels are taken in the order of their class ids, so a model always gives the same slugs.
    """
    by_label: dict[str, str] = {}
    used: set[str] = set()
    for class_id in sorted(names):
        label = names[class_id]
        if label in by_label:
            continue
        plain = candidate = slug(label)
        number = 2
        while candidate in used:
            candidate = f"{plain}_{number}"
            number += 1
        by_label[label] = candidate
        used.add(candidate)
    return by_label


def answer_message(answer: Answer, names: Mapping[int, str], age_ms: float) -> Message:
    """``<camera>/detections``; QoS 0."""
    return Message(
        detections_topic(answer.frame.camera),
        answer_payload(answer, names, age_ms),
        MessageKind.FRAME,
    )


def event_message(
    camera: str, event: str, life: Life, names: Mapping[int, str], reason: str, wall_less_s: float
) -> Message:
    """``<camera>/events``; QoS 1."""
    payload = event_payload(camera, event, life, names, reason, wall_less_s)
    return Message(events_topic(camera), payload, MessageKind.EVENT)


def camera_status_message(status: CameraStatus) -> Message:
    """``<camera>/status``; retained."""
    return Message(status_topic(status.camera), camera_status_payload(status), MessageKind.STATE)


def count_message(camera: str, label_slug: str, count: int) -> Message:
    """``<camera>/count/<label>``; retained."""
    return Message(count_topic(camera, label_slug), count_payload(count), MessageKind.STATE)


def info_message(payload: bytes) -> Message:
    """``info``; retained."""
    return Message(INFO, payload, MessageKind.STATE)


def stats_message(snapshot: Mapping[str, object]) -> Message:
    """``stats``: of a moment, so not retained; a newer one follows soon."""
    return Message(STATS, stats_payload(snapshot), MessageKind.FRAME)


def camera_stats_message(camera: str, snapshot: Mapping[str, object]) -> Message:
    """``<camera>/stats``; as ``stats``."""
    return Message(camera_stats_topic(camera), stats_payload(snapshot), MessageKind.FRAME)
