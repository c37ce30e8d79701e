"""A probe for people: a table, warnings, and what to write into the config."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.style import Style
from rich.text import Text

from vidserve.capture.reader import SourceFacts
from vidserve.capture.worker import Phase
from vidserve.frames import CameraState
from vidserve.probe.advice import codec_name, duration, number
from vidserve.probe.facts import Found, KeyPictures, Spread
from vidserve.probe.measure import Course
from vidserve.probe.report import Report
from vidserve.terminal import StatusLine

_GOOD, _WARN, _BAD = "green", "yellow", "red"
DAY_S = 86_400.0
_LEAST_WIDTH = 24
_TURNS = {90: "90 degrees counterclockwise", 180: "180 degrees", 270: "90 degrees clockwise"}
_STYLES = {CameraState.RUNNING: _GOOD, CameraState.DEGRADED: _WARN}


def show(report: Report, console: Console) -> None:
    """Print a probe. Nothing of it is taken for markup: a name may hold brackets."""
    found = report.found
    style = _BAD if report.failed else _STYLES.get(found.state, _WARN)
    title = Text(report.source, style="bold", overflow="fold")
    state = f"{found.state.value}{' (interrupted)' if report.interrupted else ''}"
    console.print(title.append(f": {state}", style=f"not bold {style}"), soft_wrap=True)
    if found.reason:
        _hanging(console, Text("  why           ", style="dim"), found.reason, style)
    for label, text in _rows(report):
        _hanging(console, Text(f"  {label:<14}", style="dim"), text)
    for one in report.advice:
        _hanging(console, Text("! ", style=_WARN), one.text, _WARN)
    if report.next_step:
        _hanging(console, Text("> ", style="bold"), f"what to do: {report.next_step}", "bold")
    if report.block:
        console.print(Text("for the config:", style="dim"))
        console.print(Text(report.block), soft_wrap=True)


def _hanging(console: Console, head: Text, text: str, style: str = "") -> None:
    """Lines that begin under each other. Rich's own tables fill each line up with blanks."""
    indent = len(head.plain)
    width = max(console.width - indent, _LEAST_WIDTH)
    lines = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    body = f"\n{' ' * indent}".join(lines)
    console.print(head.append(body, style=Style.parse(f"not dim {style}")), soft_wrap=True)


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    found, facts = report.found, report.facts
    if facts is None:
        return
    yield "stream", _stream(found, facts)
    yield "read by", _read_by(facts)
    if not found.pictures:
        return
    yield "rate", _rate(report)
    if found.gaps is not None:
        yield "gaps", _spread(found.gaps)
    yield "key pictures", _keys(found, found.keys)
    yield "B-frames", _reorder(found)
    if found.live:
        yield "delays", _delays(found)
    if facts.clock_ahead_s is not None:
        yield "clock", _clock(facts.clock_ahead_s)
    yield "decoding", _decoding(found)
    yield "damage", _damage(found)
    if report.saved is not None:
        yield "picture", f"saved to {report.saved}"


def _stream(found: Found, facts: SourceFacts) -> str:
    codec = " ".join(part for part in (codec_name(facts.codec), facts.profile) if part)
    parts = [codec] if codec else []
    if found.sizes:
        parts.append("{}x{}".format(*found.sizes[-1]))
    if facts.pixel_format:
        parts.append(facts.pixel_format)
    if found.rotation:
        parts.append(f"turned by {_TURNS[found.rotation]} to be upright")
    return ", ".join(parts) or "no video that could be decoded"


def _read_by(facts: SourceFacts) -> str:
    # FFmpeg calls one demuxer by all the formats that it reads.
    via = f" ({'/'.join(facts.transport.split(',')[:2])})" if facts.transport else ""
    return f"{facts.reader}{via}, decoded by the {facts.decoder.replace('cpu', 'CPU')}"


def _rate(report: Report) -> str:
    found = report.found
    count = f"{found.pictures} picture{'' if found.pictures == 1 else 's'}"
    if found.measured_s > 0.0:
        count += f" in {duration(found.measured_s)}"
    if report.whole:
        count += ", the whole file"
    claim = "nothing claimed"
    if found.claimed_fps is not None:
        claim = f"{number(found.claimed_fps, 2)} claimed"
        if found.fps is not None and number(found.fps, 1) == number(found.claimed_fps, 1):
            claim = "as claimed"
    if found.fps is None:
        return f"not known, {claim} ({count})"
    how = "by arrival" if found.live else "by timestamps"
    return f"{number(found.fps, 2)} fps {how}, {claim} ({count})"


def _spread(spread: Spread) -> str:
    low, high, most = (duration(value) for value in (spread.p50, spread.p99, spread.most))
    return f"p50 {low}, p99 {high}, longest {most}"


def _keys(found: Found, keys: KeyPictures | None) -> str:
    if keys is None:
        return "not known"
    if keys.usual == 1 and keys.longest == 1:
        return "each picture is one"
    if keys.usual is None:
        pictures = f"{keys.longest} picture{'' if keys.longest == 1 else 's'}"
        time = "" if found.key_longest_s is None else f" ({duration(found.key_longest_s)})"
        return f"{keys.seen} in {pictures}{time}"
    text = f"every {number(keys.usual)} pictures"
    if found.key_usual_s is not None:
        text += f" ({duration(found.key_usual_s)})"
    if keys.longest > keys.usual * 1.1:
        more = "over " if keys.unfinished else ""
        time = "" if found.key_longest_s is None else f" ({duration(found.key_longest_s)})"
        text += f", at most {more}{keys.longest}{time}"
    return text


def _reorder(found: Found) -> str:
    if not found.reorder:
        return "none"
    held = f"{found.reorder} picture{'' if found.reorder == 1 else 's'} held back"
    return held if found.reorder_s is None else f"{held}: {duration(found.reorder_s)}"


def _delays(found: Found) -> str:
    parts = []
    if found.first_s is not None:
        parts.append(f"first picture after {duration(found.first_s)}")
    if found.reader_delay_s > 0.0:
        parts.append(f"the reader holds back {duration(found.reader_delay_s)}")
    if found.lag is not None:
        parts.append(f"lag p50 {duration(found.lag.p50)}, p99 {duration(found.lag.p99)}")
    return "; ".join(parts)


def _clock(ahead_s: float) -> str:
    by_s = abs(ahead_s)
    by = duration(by_s) if by_s < 2 * DAY_S else f"{by_s / DAY_S:.0f} days"
    return f"the camera's is {by} {'ahead of' if ahead_s > 0 else 'behind'} ours"


def _decoding(found: Found) -> str:
    parts = []
    if found.decode is not None:
        parts.append(f"p50 {duration(found.decode.p50)}, p99 {duration(found.decode.p99)}")
    if found.cpu_s is not None:
        cost = f"{duration(found.cpu_s)} of CPU a picture with reading"
        share = found.core_share
        parts.append(cost if share is None else f"{cost}: {share:.0%} of a core")
    return "; ".join(parts) or "not known"


def _damage(found: Found) -> str:
    parts = []
    if found.corrupt:
        parts.append(f"{found.corrupt} of {found.pictures} pictures")
    if found.refused:
        parts.append(f"{found.refused} packet{'' if found.refused == 1 else 's'} refused")
    if found.skipped:
        parts.append(f"{found.skipped} skipped on purpose")
    return ", ".join(parts) or "none"


class Progress(StatusLine):
    """One line on stderr that changes, on a terminal; else nothing. A context.

    Args:
        source: As people may see it.
        for_s: Seconds that are read.
    """

    def __init__(self, source: str, for_s: float) -> None:
        super().__init__(f"opening {source}")
        self._source = source
        self._for_s = for_s

    def tell(self, course: Course, now_s: float) -> None:
        """How far it is."""
        # The source last: it is what may be cut off.
        if course.first_s is None:
            doing = "opening" if course.phase is Phase.OPEN else "no picture yet of"
            text = f"{now_s - course.began_s:.0f} s: {doing} {self._source}"
        else:
            left_s = max(0.0, self._for_s - (now_s - course.first_s))
            text = f"{left_s:.0f} s left, {course.pictures} pictures of {self._source}"
        self.say(text)
