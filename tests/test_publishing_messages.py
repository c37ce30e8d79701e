"""Payloads, topics, counts, publish rates and the lines of ``watch``: all pure."""

from __future__ import annotations

import itertools
import math
import re
from datetime import datetime

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.frames import Answer, CameraState, CameraStatus, Frame, Tracks
from vidserve.publishing import messages
from vidserve.publishing.counts import Counts, count_labels
from vidserve.publishing.output import Message, MessageKind
from vidserve.publishing.rate import PublishMode, PublishRate, PublishRule
from vidserve.publishing.watch import Changes, format_line

NAMES = {0: "person", 2: "car", 9: "traffic light"}


def tracks(*boxes: tuple[int, int, float, float, float, float]) -> Tracks:
    """Tracks from (id, class, x1, y1, x2, y2)."""
    n = len(boxes)
    table = np.array(boxes, np.float32).reshape(n, 6)
    return Tracks(
        ids=table[:, 0].astype(np.int32),
        boxes=table[:, 2:],
        scores=np.full(n, 0.87654, np.float32),
        classes=table[:, 1].astype(np.int32),
        velocities=np.full((n, 2), -12.34, np.float32),
        ages_s=np.full(n, 1.2345, np.float32),
    )


def answer(seen: Tracks | None = None, captured_s: float = 1.0, detected: bool = True) -> Answer:
    frame = Frame("gate", 7, captured_s, 1_700_000_000.5, captured_s, 1280, 720)
    return Answer(frame, detected, 0.0404, seen if seen is not None else Tracks.none())


def test_the_payload_of_an_answer_has_the_fields_of_the_design() -> None:
    payload = messages.answer_payload(answer(tracks((3, 9, 0.1, 0.26, 99.94, 720))), NAMES, 12.345)
    assert orjson.loads(payload) == {
        "schema": 1,
        "camera": "gate",
        "seq": 7,
        "time": "2023-11-14T22:13:20.500Z",
        "age_ms": 12.3,
        "source": "detected",
        "detection_age_ms": 40.4,
        "width": 1280,
        "height": 720,
        "objects": [
            {
                "id": 3,
                "label": "traffic light",
                "confidence": 0.877,
                "box": [0.1, 0.3, 99.9, 720.0],
                "velocity": [-12.3, -12.3],
                "age_s": 1.23,
            }
        ],
    }
    assert b"0.1," in payload  # and not 0.10000000149011612


def test_an_empty_answer_before_the_first_detection() -> None:
    frame = answer().frame
    fields = orjson.loads(messages.answer_payload(Answer(frame, False, None), NAMES, 0.0))
    assert fields["objects"] == []
    assert fields["source"] == "tracked"
    assert fields["detection_age_ms"] is None


@given(
    st.lists(st.tuples(*[st.floats(width=32, allow_nan=True, allow_infinity=True)] * 8), max_size=6)
)
def test_every_number_published_is_finite(rows: list[tuple[float, ...]]) -> None:
    table = np.array(rows, np.float32).reshape(len(rows), 8)
    seen = Tracks(
        np.arange(len(rows), dtype=np.int32),
        table[:, :4],
        table[:, 4],
        np.zeros(len(rows), np.int32),
        table[:, 5:7],
        table[:, 7],
    )
    payload = messages.answer_payload(answer(seen), NAMES, 1.0)
    assert b"null" not in payload and b"-0.0," not in payload
    objects = orjson.loads(payload)["objects"]
    assert [o["id"] for o in objects] == [
        i for i, row in enumerate(rows) if all(map(math.isfinite, row))
    ]
    for thing in objects:
        numbers = [*thing["box"], *thing["velocity"], thing["confidence"], thing["age_s"]]
        assert all(isinstance(n, float) and math.isfinite(n) for n in numbers)


def test_times_are_iso_8601_in_utc_with_milliseconds() -> None:
    for wall_s in (0.0, 1_700_000_000.0, 1_700_000_000.0005, 4_000_000_000.999):
        text = messages.iso_time(wall_s)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
        assert datetime.fromisoformat(text).timestamp() == pytest.approx(wall_s, abs=0.0011)


def test_the_kind_and_the_topic_of_every_message() -> None:
    status = CameraStatus("gate", CameraState.STALLED, "no frame for 5 s", 1_700_000_000.0)
    made = [
        messages.answer_message(answer(), NAMES, 1.0),
        messages.camera_status_message(status),
        messages.count_message("gate", "traffic_light", 3),
        messages.stats_message({"cameras": {}}),
        messages.camera_stats_message("gate", {"fps": float("nan")}),
        messages.info_message(
            messages.info_payload(
                version="1",
                instance="x",
                started_wall_s=0.0,
                model="m",
                backend="fake",
                device="cpu",
                label_slugs={"car": "car"},
                cameras=["gate"],
                config={},
            )
        ),
    ]
    assert [(m.topic, m.kind) for m in made] == [
        ("gate/detections", MessageKind.FRAME),
        ("gate/status", MessageKind.STATE),
        ("gate/count/traffic_light", MessageKind.STATE),
        ("stats", MessageKind.FRAME),
        ("gate/stats", MessageKind.FRAME),
        ("info", MessageKind.STATE),
    ]
    assert orjson.loads(made[1].payload) == {
        "state": "stalled",
        "reason": "no frame for 5 s",
        "since": "2023-11-14T22:13:20.000Z",
    }
    assert made[2].payload == b"3"
    assert orjson.loads(made[4].payload) == {"fps": None}
    assert orjson.loads(made[5].payload)["labels"] == {"car": "car"}


@pytest.mark.parametrize(
    ("label", "slug"),
    [
        ("traffic light", "traffic_light"),
        ("Café/Bar #2", "cafe_bar_2"),
        ("a+b", "a_b"),
        ("人", "label"),
        ("", "label"),
        ("__x__", "x"),
    ],
)
def test_slugs(label: str, slug: str) -> None:
    assert messages.slug(label) == slug


@given(st.dictionaries(st.integers(0, 100), st.text(max_size=8), max_size=20))
def test_slugs_are_safe_and_do_not_clash(names: dict[int, str]) -> None:
    by_label = messages.slugs(names)
    assert set(by_label) == set(names.values())
    assert len(set(by_label.values())) == len(by_label)
    assert all(re.fullmatch("[a-z0-9_]+", s) for s in by_label.values())


def test_slugs_that_clash_are_numbered_in_the_order_of_the_classes() -> None:
    names = {5: "Car", 1: "car", 7: "car!", 8: "car 2"}
    assert messages.slugs(names) == {
        "car": "car",
        "Car": "car_2",
        "car!": "car_3",
        "car 2": "car_2_2",
    }


# --- counts


def numbers(made: list[Message]) -> list[tuple[str, int]]:
    return [(m.topic, int(m.payload)) for m in made]


def counts() -> Counts:
    return Counts(messages.slugs(NAMES))


def test_count_labels() -> None:
    seen = tracks((1, 0, 0, 0, 1, 1), (2, 2, 0, 0, 1, 1), (3, 0, 0, 0, 1, 1), (4, 77, 0, 0, 1, 1))
    assert count_labels(seen, NAMES) == {"person": 2, "car": 1, "class 77": 1}
    assert count_labels(Tracks.none(), NAMES) == {}


def test_a_camera_starts_with_zeros_for_its_configured_classes() -> None:
    c = counts()
    assert numbers(c.add_camera("gate", ["person", "traffic light"], 0.0)) == [
        ("gate/count/person", 0),
        ("gate/count/traffic_light", 0),
    ]
    assert c.add_camera("yard", [], 0.0) == []
    c.update("yard", {"car": 1})
    assert numbers(c.due(0.0)) == [("yard/count/car", 1)]


def test_a_change_is_published_at_once_the_next_after_half_a_second_with_the_last_value() -> None:
    c = counts()
    c.update("gate", {"person": 1})
    assert numbers(c.due(10.0)) == [("gate/count/person", 1)]
    for n in (2, 3, 4):
        c.update("gate", {"person": n})
        assert c.due(10.1) == []
    assert c.next_due_s() == pytest.approx(10.5)
    assert numbers(c.due(10.5)) == [("gate/count/person", 4)]
    assert c.next_due_s() is None


def test_a_change_that_was_taken_back_in_time_is_not_published() -> None:
    c = counts()
    c.update("gate", {"person": 1})
    c.due(10.0)
    c.update("gate", {})
    c.update("gate", {"person": 1})
    assert c.next_due_s() is None
    assert c.due(20.0) == []


def test_a_dead_camera_counts_zero_at_once() -> None:
    c = counts()
    c.update("gate", {"person": 1, "car": 2})
    c.due(10.0)
    c.update("gate", {"person": 3, "car": 2})  # waits; the zero takes its place
    assert numbers(c.clear("gate", 10.1)) == [("gate/count/person", 0), ("gate/count/car", 0)]
    assert c.due(20.0) == []
    assert c.clear("gate", 20.0) == []
    assert c.clear("never seen", 20.0) == []
    c.update("yard", {"class 77": 1})  # a label that the model has no name for
    assert numbers(c.due(20.0)) == [("yard/count/class_77", 1)]
    c.update("gate", {"person": 3, "car": 2})  # alive again, with what it showed before
    assert numbers(c.due(21.0)) == [("gate/count/car", 2), ("gate/count/person", 3)]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 0.3),
            st.dictionaries(st.sampled_from(["person", "car"]), st.integers(0, 3)),
        ),
        max_size=50,
    )
)
def test_counts_are_rare_and_right_in_the_end(steps: list[tuple[float, dict[str, int]]]) -> None:
    c, now_s = counts(), 0.0
    retained: dict[str, int] = {}
    times: dict[str, list[float]] = {}

    def publish() -> None:
        for topic, number in numbers(c.due(now_s)):
            assert retained.get(topic) != number
            retained[topic] = number
            times.setdefault(topic, []).append(now_s)

    last: dict[str, int] = {}
    for step_s, seen in steps:
        now_s += step_s
        c.update("gate", seen)
        last = seen
        publish()
    while (due_s := c.next_due_s()) is not None:
        now_s = max(now_s, due_s)
        publish()
    for moments in times.values():
        assert all(b - a >= 0.5 - 1e-9 for a, b in itertools.pairwise(moments))
    assert {t: n for t, n in retained.items() if n} == {
        f"gate/count/{label}": n for label, n in last.items() if n
    }


# --- how often


def test_every_frame() -> None:
    rate = PublishRate()
    assert all(rate.wants(answer()) for _ in range(3))


def test_on_change() -> None:
    rate = PublishRate(PublishRule(PublishMode.ON_CHANGE))
    diagonal_px = math.hypot(1280, 720)
    steps = [
        (tracks(), False),  # nothing yet, as at the start
        (tracks((1, 0, 10, 10, 50, 90)), True),  # appeared
        (tracks((1, 0, 10, 10, 50, 90)), False),
        (tracks((1, 0, 10 + 0.015 * diagonal_px, 10, 50, 90)), False),  # moved a little
        (tracks((1, 0, 10 + 0.025 * diagonal_px, 10, 50, 90)), True),  # and a little more
        (tracks((1, 2, 10 + 0.025 * diagonal_px, 10, 50, 90)), True),  # another label
        (tracks((2, 2, 10 + 0.025 * diagonal_px, 10, 50, 90)), True),  # another id
        (tracks((2, 2, 40, 10, 50, 90), (1, 0, 1, 1, 9, 9)), True),
        (tracks((1, 0, 1, 1, 9, 9), (2, 2, 40, 10, 50, 90)), False),  # only the order changed
        (tracks(), True),  # the last one went: one empty message
        (tracks(), False),
    ]
    assert [rate.wants(answer(seen)) for seen, _ in steps] == [wanted for _, wanted in steps]


@settings(deadline=None)
@given(
    st.floats(0.2, 60),
    st.lists(st.floats(0.0, 2.0), max_size=200),
)
def test_max_per_s_holds_over_any_stretch(per_s: float, gaps_s: list[float]) -> None:
    rate = PublishRate(PublishRule(PublishMode.MAX_PER_S, per_s))
    times = [t for t in np.cumsum([0.0, *gaps_s]).tolist() if rate.wants(answer(captured_s=t))]
    assert times  # the first one always
    for i, start in enumerate(times):
        for j in range(i, len(times)):
            assert j - i <= (times[j] - start) * per_s + 1 + 1e-6


@pytest.mark.parametrize(("fps", "per_s", "expected"), [(30, 20, 200), (30, 1, 10), (10, 25, 100)])
def test_max_per_s_gives_what_was_asked_for(fps: int, per_s: float, expected: int) -> None:
    rate = PublishRate(PublishRule(PublishMode.MAX_PER_S, per_s))
    published = sum(rate.wants(answer(captured_s=n / fps)) for n in range(10 * fps))
    assert published == pytest.approx(expected, abs=1)


def test_a_rate_that_is_none_is_refused() -> None:
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="not a rate"):
            PublishRule(PublishMode.MAX_PER_S, bad)


# --- watch


def test_lines_of_watch() -> None:
    seen = tracks((1, 0, 0, 0, 1, 1), (2, 0, 0, 0, 1, 1), (3, 2, 0, 0, 1, 1))
    payload = messages.answer_payload(answer(seen), NAMES, 12.34)
    assert format_line("gate/detections", payload) == (
        "22:13:20.500  gate  detected   12.3 ms  2 person (0.88 0.88), 1 car (0.88)"
    )
    status = CameraStatus("gate", CameraState.FAILED, "no such host", 1_700_000_000.0)
    assert format_line("gate/status", messages.camera_status_payload(status)) == (
        "22:13:20.000  gate  is failed: no such host"
    )
    assert format_line("status", b"online") == "vidserve is online"
    assert format_line("gate/count/person", b"1") is None
    assert format_line("stats", b"{}") is None


@given(
    st.sampled_from(["gate/detections", "gate/status", "info", "status", "x/y/z", "", "stats"]),
    st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["objects", "label", "confidence", "time", "since", "age_ms", "id"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ).map(orjson.dumps),
    ),
)
def test_watch_takes_any_payload(topic: str, payload: bytes) -> None:
    line = Changes().line(topic, payload)
    assert line is None or line.isprintable()


def test_watch_shows_a_camera_when_what_it_shows_changes() -> None:
    changes = Changes()

    def shown(*boxes: tuple[int, int, float, float, float, float]) -> bool:
        payload = messages.answer_payload(answer(tracks(*boxes)), NAMES, 1.0)
        return changes.line("gate/detections", payload) is not None

    assert shown((1, 0, 0, 0, 1, 1))
    assert not shown((1, 0, 0, 0, 2, 2))
    assert shown((2, 0, 0, 0, 2, 2))
    assert shown()
    assert not shown()
    every = Changes(every=True)
    assert all(every.line("status", b"online") for _ in range(2))
