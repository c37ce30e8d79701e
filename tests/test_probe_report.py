"""From facts to words: advice, the JSON, the block for the config. Pure."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.lab.probing import FACTS, reading, sample, steady
from vidserve.capture.settings import CameraSettings
from vidserve.config import load
from vidserve.config.source import Source
from vidserve.errors import (
    CaptureError,
    SourceSilent,
    SourceUnauthorized,
    SourceUnreachable,
    SourceUnusable,
)
from vidserve.frames import CameraState
from vidserve.probe.advice import advice, codec_name, duration, next_step, number
from vidserve.probe.facts import found
from vidserve.probe.measure import Reading, Sample, Trouble
from vidserve.probe.report import Report, config_block, numbers, report
from vidserve.probe.show import show

GATE = CameraSettings("probe", "rtsp://10.0.0.5/stream1", "viewer", "geheim")

# Key -> kind of its values; every one may be None as long as it is not known. The units:
# _px pixels, _deg degrees counterclockwise, _s seconds, _ms milliseconds, fps a second,
# _share of 1.
KEYS: dict[str, type | tuple[type, ...]] = {
    "source": str, "state": str, "reason": str, "next_step": str, "interrupted": bool,
    "reader": str, "transport": str, "live": bool, "codec": str, "profile": str,
    "pixel_format": str, "decoder": str, "width_px": int, "height_px": int, "rotation_deg": int,
    "sizes_px": list, "pictures": int, "measured_s": float, "whole_file": bool, "open_ms": float,
    "first_picture_ms": float, "fps": float, "claimed_fps": float, "timestamp_fps": float,
    "gap_ms": dict, "uneven_steps_share": float, "timestamps_out_of_order": int,
    "timestamp_jumps": int, "pictures_without_timestamp": int, "key_pictures": int,
    "key_interval_pictures": (int, float), "key_interval_s": float,
    "longest_key_interval_pictures": int, "longest_key_interval_s": float,
    "longest_key_interval_is_longer": bool, "reorder_pictures": int, "reorder_ms": float,
    "reader_delay_ms": float, "lag_ms": dict, "clock_ahead_s": float, "decode_ms": dict,
    "cpu_ms_per_picture": float,
    "core_share": float, "corrupt_pictures": int, "refused_packets": int,
    "skipped_pictures": int, "warnings": list, "config": str, "saved": str,
}  # fmt: skip


def told(seen: Reading, camera: CameraSettings = GATE) -> list[str]:
    """What is advised."""
    facts = seen.standing.facts if seen.standing is not None else None
    return [one.about for one in advice(found(seen), facts, camera)]


def text_of(seen: Reading, about: str) -> str:
    assert seen.standing is not None
    given = advice(found(seen), seen.standing.facts, GATE)
    return next(one.text for one in given if one.about == about)


def shown(told: Report, width: int = 80) -> str:
    out = io.StringIO()
    show(told, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_a_good_camera_gets_no_advice() -> None:
    assert told(reading(steady())) == []


def live(samples: list[Sample] | None = None, **more: Any) -> Reading:
    return reading(steady() if samples is None else samples, **more)


def undated() -> list[Sample]:
    return [replace(one, pts_s=None) for one in steady()]


@pytest.mark.parametrize(
    ("seen", "about", "words"),
    [
        (
            live(facts=replace(FACTS, reorder=2)),
            "b_frames",
            "B-frames: 2 pictures held back, 67 ms: switch them off in the camera",
        ),
        (live(facts=replace(FACTS, reorder=1)), "b_frames", "1 picture held back, 33 ms"),
        (live(steady(700, key_every=600)), "key_pictures", "key picture every 20 s: a lost packet"),
        (live(steady(150, key_every=999)), "key_pictures", "key picture every over 5 s: a lost"),
        (
            live(steady(width=3840, height=2160, cpu_s=0.0233), facts=replace(FACTS, codec="hevc")),
            "decoding",
            "H.265 3840x2160: decoding takes 70% of a core: a smaller stream",
        ),
        (live(nominal_fps=25.0), "rate", "30 pictures a second, though the source claims 25"),
        (live(nominal_fps=31.6), "rate", "though the source claims 31.6"),
        (live(bad_packets=3), "damage", "3 packets were refused by the decoder: look for packet"),
        (live(steady(corrupt=True)), "damage", "150 of 150 pictures are damaged"),
        (
            live(undated(), facts=replace(FACTS, codec="mjpeg")),
            "no_timestamps",
            "MJPEG without timestamps: age is counted from arrival",
        ),
        (
            reading(undated(), live=False),
            "no_timestamps",
            "it is played at 30 pictures a second",
        ),
        (
            live([replace(one, pts_s=(one.pts_s or 0) / 2) for one in steady()]),
            "clock",
            "sends 60 pictures a second, by arrival 30",
        ),
        (live(facts=replace(FACTS, note="no CUDA here")), "note", "no CUDA here"),
        (
            live([*steady(20), *steady(20, width=640, height=360)]),
            "size",
            "the size changes: 1280x720, then 640x360",
        ),
        (
            live([sample(101 + i / 30 + (i > 50) * 2.0, 7 + i / 30) for i in range(90)]),
            "pauses",
            "no picture for 2 s once",
        ),
        (
            live([sample(101 + i / 30 + (i > 50) * 2.0, 7 + i / 30) for i in range(90)]),
            "lag",
            "pictures come up to 2 s later than at best",
        ),
        (
            reading([sample(101, i / 10 + (i % 5 == 4) * 0.05) for i in range(90)], live=False),
            "variable_rate",
            "variable rate: 100 ms from picture to picture, up to 150 ms",
        ),
        (
            reading([sample(101, i / 10 + (i > 50) * 5000) for i in range(90)], live=False),
            "jumps",
            "timestamps jump (once)",
        ),
        (
            reading([sample(101, (i - 2 * (i % 9 == 8)) / 10) for i in range(90)], live=False),
            "out_of_order",
            "repeat or go back a little (10 times)",
        ),
        (live([replace(one, read_s=one.read_s + 5) for one in steady()]), "start", "took 6 s"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_cure(seen: Reading, about: str, words: str) -> None:
    assert about in told(seen)
    assert words in text_of(seen, about)


@pytest.mark.parametrize(
    ("seen", "about"),
    [
        (live(nominal_fps=31.0), "rate"),  # within 5 %
        (live(nominal_fps=None), "rate"),
        (live(steady(100, key_every=90)), "key_pictures"),  # 3 s
        (reading(steady(), live=False, facts=replace(FACTS, reorder=2)), "b_frames"),
        (live(steady(cpu_s=0.015)), "decoding"),
        (live(steady(4), nominal_fps=10.0), "rate"),  # too few to tell
    ],
)
def test_what_is_well_is_not_spoken_of(seen: Reading, about: str) -> None:
    assert about not in told(seen)


def test_packet_loss_over_udp_has_its_own_cure() -> None:
    seen = live(steady(corrupt=True))
    assert seen.standing is not None
    udp = replace(GATE, transport="udp")
    texts = [one.text for one in advice(found(seen), seen.standing.facts, udp)]
    assert any("transport: tcp" in text for text in texts)


def test_json_is_finite_and_its_keys_are_these() -> None:
    for seen in (live(), live([]), reading([], standing=None), reading(steady(1), live=False)):
        made = numbers(report(seen, GATE, "gate", {}))
        assert list(made) == list(KEYS)
        for key, value in made.items():
            assert value is None or isinstance(value, KEYS[key]), key
        for value in values_of(made):
            assert not isinstance(value, float) or math.isfinite(value)
        assert orjson.loads(orjson.dumps(made)) == made


def values_of(made: Any) -> list[Any]:
    if isinstance(made, dict):
        return [inner for value in made.values() for inner in values_of(value)]
    if isinstance(made, list):
        return [inner for value in made for inner in values_of(value)]
    return [made]


def test_json_of_a_steady_camera() -> None:
    made = numbers(report(live(facts=replace(FACTS, reorder=2)), GATE, "gate", {}))
    expected = {
        "state": "running", "codec": "h264", "width_px": 1280, "height_px": 720, "fps": 30.0,
        "claimed_fps": 30.0, "gap_ms": {"p50": 33.33, "p99": 33.33, "max": 33.33},
        "key_interval_pictures": 30, "key_interval_s": 1.0, "reorder_pictures": 2,
        "reorder_ms": 66.67, "decode_ms": {"p50": 3.0, "p99": 3.0, "max": 3.0},
        "core_share": 0.12, "open_ms": 500.0, "first_picture_ms": 1004.0,
    }  # fmt: skip
    assert {key: made[key] for key in expected} == expected
    assert [warning["about"] for warning in made["warnings"]] == ["b_frames"]


ERRORS = [
    SourceUnauthorized("no"), SourceSilent("no"), SourceUnreachable("no"), SourceUnusable("no"),
    CaptureError("no"), ZeroDivisionError("no"),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("had_pictures", [True, False])
@pytest.mark.parametrize("is_url", [True, False])
def test_every_failure_comes_with_something_to_do(
    error: Exception, had_pictures: bool, is_url: bool
) -> None:
    step = next_step(type(error), GATE, had_pictures, is_url)
    assert len(step) > 10 and step[0].islower() and not step.endswith(".")


def test_a_missing_login_is_told_from_a_wrong_one() -> None:
    nobody = replace(GATE, username="", password="")
    assert "--username" in next_step(SourceUnauthorized, nobody, False, True)
    assert "lock accounts" in next_step(SourceUnauthorized, GATE, False, True)


def test_a_failure_shows_its_state_its_reason_and_no_table() -> None:
    trouble = Trouble(CameraState.UNAUTHORIZED, "10.0.0.5 refused the login", SourceUnauthorized)
    made = report(reading([], standing=None, trouble=trouble), GATE, "gate", {})
    assert made.failed and not made.block
    text = shown(made)
    assert "gate: unauthorized" in text
    assert "10.0.0.5 refused the login" in text and "what to do: " in text
    assert "decoding" not in text and "cameras:" not in text


def test_what_was_seen_before_a_failure_is_shown_too() -> None:
    trouble = Trouble(CameraState.STALLED, "no frame for 5 s", SourceSilent)
    made = report(live(trouble=trouble, hung=True), GATE, "gate", {})
    text = " ".join(shown(made).split())
    assert made.failed
    assert "gate: stalled" in text and "30 fps by arrival" in text
    assert "its library does not come back" in text


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_table_fits_its_terminal(width: int) -> None:
    seen = live(steady(corrupt=True), facts=replace(FACTS, reorder=2), nominal_fps=10.0)
    text = shown(report(seen, GATE, "gate", {}), width)
    table, _, block = text.partition("for the config:")
    assert max(map(len, table.splitlines())) <= width
    assert all(line == line.rstrip() for line in table.splitlines())
    assert "password: \"${CAMERA_PASSWORD}\"" in block  # fmt: skip
    assert "geheim" not in text


def test_the_table_of_a_steady_camera() -> None:
    made = report(live(facts=replace(FACTS, reorder=2)), GATE, "rtsp://10.0.0.5/stream1", {})
    assert shown(made, 100).splitlines() == [
        "rtsp://10.0.0.5/stream1: running",
        "  stream        H.264 High, 1280x720, yuv420p",
        "  read by       rtsp (rtsp over tcp), decoded by the CPU",
        "  rate          30 fps by arrival, as claimed (150 pictures in 4.9 s)",
        "  gaps          p50 33 ms, p99 33 ms, longest 33 ms",
        "  key pictures  every 30 pictures (1 s)",
        "  B-frames      2 pictures held back: 67 ms",
        "  delays        first picture after 1 s; lag p50 0 ms, p99 0 ms",
        "  decoding      p50 3 ms, p99 3 ms; 4 ms of CPU a picture with reading: 12% of a core",
        "  damage        none",
        "! B-frames: 2 pictures held back, 67 ms: switch them off in the camera",
        "for the config:",
        "cameras:",
        "  camera:",
        "    source: rtsp://10.0.0.5/stream1",
        "    username: viewer",
        '    password: "${CAMERA_PASSWORD}"',
    ]


def loaded(block: str, folder: Path, **environ: str) -> Any:
    """The camera that the daemon makes of a block."""
    path = folder / "vidserve.yaml"
    path.write_text(block, encoding="utf-8")
    result = load(path, environ)
    assert result.problems == () and result.config is not None, result.problems
    return result.config.camera("camera")


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1)


@settings(max_examples=80, deadline=None)
@given(name=NAMES, user=NAMES)
def test_the_block_is_read_back_as_it_was(
    name: str, user: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = "/srv/a" + name.replace("/", "_")
    given = CameraSettings("probe", path, user if user.strip() else "u", "geheim")
    block = config_block(given, {})
    assert "geheim" not in block
    camera = loaded(block, tmp_path_factory.getbasetemp(), CAMERA_PASSWORD="geheim")
    assert camera.source == path
    assert camera.username == given.username
    assert camera.password.get_secret_value() == "geheim"


@pytest.mark.parametrize(
    "url",
    [
        "rtsp://10.0.0.5/stream1",
        "rtsp://[fe80::1]:8554/a?channel=1&subtype=0#x",
        "http://cam/video.mjpg?user=a&x='\"",
        "synthetic://?width=640&fps=30",
        "rtsp://10.0.0.5/a${b}c$d",
    ],
)
def test_a_url_in_the_block_is_read_back_as_it_was(url: str, tmp_path: Path) -> None:
    assert loaded(config_block(CameraSettings("probe", url), {}), tmp_path).source == url


def test_other_settings_stand_in_the_block_too(tmp_path: Path) -> None:
    options = {"reader": "pyav", "transport": "udp", "decoder": "cuda"}
    camera = loaded(config_block(GATE, options), tmp_path, CAMERA_PASSWORD="geheim")
    assert (camera.own.transport, camera.own.reader, camera.own.decoder) == ("udp", "pyav", "cuda")
    assert loaded(config_block(CameraSettings("probe", 3), {}), tmp_path).source == 3


def test_a_secret_in_the_query_is_a_variable_in_the_block(tmp_path: Path) -> None:
    url = "rtsp://10.0.0.5/user=admin&password=geheim&channel=1"
    block = config_block(CameraSettings("probe", url), {})
    assert "geheim" not in block
    assert loaded(block, tmp_path, CAMERA_SECRET="geheim").source == url


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=6))
def test_no_secret_leaves_in_any_form(secret: str) -> None:
    """Also where a library quotes the URL that it was given, in words of its own."""
    secret = f"Zq7{secret}9xK"
    url = f"rtsp://joe:{quote(secret, safe='')}@10.0.0.5/a"
    source = Source.parse(url)
    settings = CameraSettings("probe", source.reveal(), "joe", secret)
    facts = replace(FACTS, transport=f"via {url}", note=f"{secret} is refused")
    made = report(live(facts=facts), settings, source.shown, {})
    for text in (shown(made), orjson.dumps(numbers(made)).decode(), repr(made)):
        assert secret not in text and quote(secret, safe="") not in text


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [(0.25, "250 ms ahead of ours"), (-3.0, "3 s behind ours"), (-9e8, "10417 days behind ours")],
)
def test_the_clock_of_a_camera_is_told(ahead_s: float, words: str) -> None:
    made = report(live(facts=replace(FACTS, clock_ahead_s=ahead_s)), GATE, "gate", {})
    assert f"the camera's is {words}" in shown(made)
    assert numbers(made)["clock_ahead_s"] == ahead_s


def test_texts_of_a_source_cannot_write_to_the_terminal() -> None:
    facts = replace(FACTS, profile="Hi\x1b[2Jgh", note="a\nb")
    text = shown(report(live(facts=facts), GATE, "gate", {}))
    assert "\x1b" not in text and "a\\nb" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ms"), (0.00004, "0.04 ms"), (0.0045, "4.5 ms"), (0.0333, "33 ms"),
        (0.9994, "999 ms"), (0.9996, "1 s"), (12.34, "12.3 s"), (139.3, "139.3 s"),
    ],
)  # fmt: skip
def test_durations_read_well(value: float, text: str) -> None:
    assert duration(value) == text


def test_numbers_and_codecs_read_well() -> None:
    assert [number(30.0, 2), number(29.97, 2), number(100.0, 0)] == ["30", "29.97", "100"]
    assert [codec_name("hevc"), codec_name("libdav1d"), codec_name("odd")] == [
        "H.265", "AV1", "odd",
    ]  # fmt: skip
