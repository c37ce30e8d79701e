"""All that is told of a probe: for programs as numbers, for the config as a block. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vidserve.capture.reader import SourceFacts
from vidserve.capture.redact import SECRET_PARAMETER, Redactor
from vidserve.capture.settings import CameraSettings
from vidserve.config.problems import printable
from vidserve.probe.advice import Advice, advice, next_step
from vidserve.probe.facts import Found, Spread, found
from vidserve.probe.measure import Reading

Numbers = dict[str, Any]

CAMERA = "camera"
PASSWORD, SECRET = "${CAMERA_PASSWORD}", "${CAMERA_SECRET}"
HUNG = "its library does not come back from a call: the daemon gives its thread up and starts anew"

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/._:?=&%+~,@-]*[A-Za-z0-9/]", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True, slots=True)
class Report:
    """What a probe found. No text of it holds a secret.

    Attributes:
        source: As people may see it.
        found: The numbers.
        facts: What the reader says; None if the source was never opened.
        advice: Warnings, the gravest first.
        next_step: After a failure, what to do; else "".
        block: For the config, YAML; "" for a camera that is configured already.
        failed: It did not go well to the end.
        whole: A file, read to its end.
        interrupted: Somebody asked to stop.
        hung: A library did not come back.
        saved: The file of the picture.
    """

    source: str
    found: Found
    facts: SourceFacts | None
    advice: tuple[Advice, ...]
    next_step: str
    block: str = field(repr=False)
    failed: bool
    whole: bool
    interrupted: bool
    hung: bool
    saved: str | None = None


def report(
    reading: Reading,
    settings: CameraSettings,
    shown: str,
    options: Mapping[str, str] | None = None,
) -> Report:
    """What the reading says.

    Args:
        reading: Of the source.
        settings: With which it was opened.
        shown: The source as people may see it.
        options: Other keys of its block; None: it comes from a config, and no block is made.
    """
    clean = Redactor.for_source(settings.source, settings.username, settings.password).clean
    facts = _cleaned(reading.standing.facts, clean) if reading.standing is not None else None
    numbers = found(reading)
    trouble = reading.trouble
    step = ""
    if trouble is not None:
        is_url = "://" in str(settings.source)
        step = next_step(trouble.error, settings, numbers.pictures > 0, is_url)
        if reading.hung:
            step = f"{HUNG}; {step}"
    failed = trouble is not None or not numbers.pictures
    return Report(
        source=shown,
        found=numbers,
        facts=facts,
        advice=tuple(advice(numbers, facts, settings)),
        next_step=step,
        block="" if options is None or not numbers.pictures else config_block(settings, options),
        failed=failed,
        whole=reading.whole,
        interrupted=reading.interrupted,
        hung=reading.hung,
    )


def numbers(report: Report) -> Numbers:
    """The report for programs. Every number is finite; what is not known is None.

    Units stand in the names. ``warnings`` are pairs of ``about`` and ``text``.
    """
    found, facts = report.found, report.facts
    width, height = found.sizes[-1] if found.sizes else (None, None)
    keys, stamps = found.keys, found.stamps
    return {
        "source": report.source,
        "state": found.state.value,
        "reason": found.reason,
        "next_step": report.next_step,
        "interrupted": report.interrupted,
        "reader": None if facts is None else facts.reader,
        "transport": None if facts is None else facts.transport,
        "live": None if facts is None else found.live,
        "codec": None if facts is None else facts.codec,
        "profile": None if facts is None else facts.profile,
        "pixel_format": None if facts is None else facts.pixel_format,
        "decoder": None if facts is None else facts.decoder,
        "width_px": width,
        "height_px": height,
        "rotation_deg": found.rotation,
        "sizes_px": [list(size) for size in found.sizes],
        "pictures": found.pictures,
        "measured_s": _seconds(found.measured_s),
        "whole_file": report.whole,
        "open_ms": _ms(found.open_s),
        "first_picture_ms": _ms(found.first_s),
        "fps": _rounded(found.fps),
        "claimed_fps": _rounded(found.claimed_fps),
        "timestamp_fps": _rounded(stamps.fps),
        "gap_ms": _spread(found.gaps),
        "uneven_steps_share": round(stamps.uneven, 4),
        "timestamps_out_of_order": stamps.backward,
        "timestamp_jumps": stamps.jumps,
        "pictures_without_timestamp": stamps.missing,
        "key_pictures": None if keys is None else keys.seen,
        "key_interval_pictures": None if keys is None else keys.usual,
        "key_interval_s": _seconds(found.key_usual_s),
        "longest_key_interval_pictures": None if keys is None else keys.longest,
        "longest_key_interval_s": _seconds(found.key_longest_s),
        "longest_key_interval_is_longer": None if keys is None else keys.unfinished,
        "reorder_pictures": found.reorder,
        "reorder_ms": _ms(found.reorder_s),
        "reader_delay_ms": _ms(found.reader_delay_s),
        "lag_ms": _spread(found.lag),
        "clock_ahead_s": None if facts is None else _rounded(facts.clock_ahead_s),
        "decode_ms": _spread(found.decode),
        "cpu_ms_per_picture": _ms(found.cpu_s),
        "core_share": _rounded(found.core_share),
        "corrupt_pictures": found.corrupt,
        "refused_packets": found.refused,
        "skipped_pictures": found.skipped,
        "warnings": [{"about": one.about, "text": one.text} for one in report.advice],
        "config": report.block or None,
        "saved": report.saved,
    }


def config_block(settings: CameraSettings, options: Mapping[str, str]) -> str:
    """A block for the config, YAML, without secrets: they stand in environment variables.

    Args:
        settings: For the source and its login.
        options: Other keys and their values, plain words.
    """
    lines = ["cameras:", f"  {CAMERA}:", f"    source: {_source(settings.source)}"]
    if settings.username:
        lines.append(f"    username: {_scalar(_literal(settings.username))}")
    if settings.password:
        lines.append(f'    password: "{PASSWORD}"')
    return "\n".join([*lines, *(f"    {key}: {value}" for key, value in options.items())])


def _source(source: str | int) -> str:
    if isinstance(source, int):
        return str(source)
    text = _literal(source)
    if "://" in text:
        text = SECRET_PARAMETER.sub(lambda match: match[1] + SECRET, text)
    return _scalar(text)


def _literal(text: str) -> str:
    """``${`` begins a variable in the config."""
    return text.replace("${", "$${")


def _scalar(text: str) -> str:
    """As a scalar of YAML, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS and ": " not in text:
        return text
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    return c if c.isprintable() else f"\\U{ord(c):08x}"


def _cleaned(facts: SourceFacts, clean: Callable[[str], str]) -> SourceFacts:
    """The texts come from the source: they may hold anything."""

    def text(raw: str) -> str:
        return printable(clean(raw), 1000) if raw else ""

    return replace(
        facts,
        transport=text(facts.transport),
        codec=text(facts.codec),
        profile=text(facts.profile),
        pixel_format=text(facts.pixel_format),
        note=text(facts.note),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


_seconds = _rounded


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1000, 2)


def _spread(spread: Spread | None) -> dict[str, float | None] | None:
    if spread is None:
        return None
    return {"p50": _ms(spread.p50), "p99": _ms(spread.p99), "max": _ms(spread.most)}
