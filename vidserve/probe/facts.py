"""From what was seen of a source to what it is: rates, gaps, costs. Pure: numbers in and out."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vidserve.capture.lag import PAUSE_S, SourceLag
from vidserve.capture.pacing import GAP_S, MAX_FPS
from vidserve.capture.states import DEGRADED_LEAST, DEGRADED_SHARE
from vidserve.capture.timing import SETTLE_S
from vidserve.frames import CameraState
from vidserve.probe.measure import Reading, Sample

_UNEVEN = 0.25  # a step so far from the usual one is another rate
_LEAST_STEP_S = 0.5 / MAX_FPS  # less is no step, as where files are paced
_REORDER_SHARE = 0.98
_DISORDER = 16  # pictures; H.264 and H.265 reorder no more
_RATE_LEAST_S = 0.5  # a rate over less time says little


@dataclass(frozen=True, slots=True)
class Spread:
    """How values lie: of the half, of 99 in 100, the largest."""

    p50: float
    p99: float
    most: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread | None:
        """None of no values."""
        ordered = sorted(values)
        if not ordered:
            return None

        def quantile(share: float) -> float:
            return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

        return Spread(quantile(0.5), quantile(0.99), ordered[-1])


@dataclass(frozen=True, slots=True)
class KeyPictures:
    """The pictures with which decoding can begin.

    Attributes:
        seen: How many.
        usual: Pictures from one to the next, the half; None if fewer than two were seen.
        longest: The longest stretch from one to the next that was seen.
        unfinished: The longest had not ended, or begun, when it was seen: it is longer.
    """

    seen: int
    usual: float | None
    longest: int
    unfinished: bool


@dataclass(frozen=True, slots=True)
class Timestamps:
    """What the presentation times say.

    Attributes:
        fps: Pictures a second; None if there is no step that can be true.
        steps: From picture to picture, those that can be true; seconds.
        uneven: The share of the steps that are far from the usual one.
        backward: Steps of none, or a little back: pictures that are dated out of order.
        jumps: Steps that cannot be true: far back, or too far ahead.
        missing: Pictures without one.
        span_s: Of all the steps.
    """

    fps: float | None
    steps: Spread | None
    uneven: float
    backward: int
    jumps: int
    missing: int
    span_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a source is. Seconds; None: not known.

    Attributes:
        state, reason: As the daemon would show it.
        live: The source sets the pace; a file does not.
        pictures: That were decoded.
        measured_s: For how long: of the time that passed, or of the file.
        open_s, first_s: Until the source was open, and until its first picture.
        sizes: Width and height as shown, pixels, in the order in which they came.
        rotation: Degrees counterclockwise by which pictures are turned.
        fps: Pictures a second, by arrival (live) or by timestamps (file).
        claimed_fps: What the source says.
        gaps: From picture to picture, on the same measure as ``fps``.
        stamps: Of the stream.
        keys: None if the reader does not say.
        reorder: Pictures held back to bring B-frames in order.
        lag: How much later than at best the pictures came. Live only.
        decode: Of the decoder, a picture.
        cpu_s: To read and decode a picture, of one core.
        corrupt: Pictures that are damaged.
        refused: Packets that the decoder refused.
    """

    state: CameraState
    reason: str
    live: bool
    pictures: int
    measured_s: float
    open_s: float | None
    first_s: float | None
    sizes: tuple[tuple[int, int], ...]
    rotation: int
    fps: float | None
    claimed_fps: float | None
    gaps: Spread | None
    stamps: Timestamps
    keys: KeyPictures | None
    reorder: int
    reader_delay_s: float
    lag: Spread | None
    decode: Spread | None
    cpu_s: float | None
    corrupt: int
    refused: int
    skipped: int

    @property
    def step_s(self) -> float | None:
        """From picture to picture, by the rate, or by the one that is claimed."""
        fps = self.fps or self.claimed_fps
        return 1.0 / fps if fps else None

    @property
    def reorder_s(self) -> float | None:
        """What B-frames cost: the pictures that are held back."""
        return None if self.step_s is None else self.reorder * self.step_s

    @property
    def key_usual_s(self) -> float | None:
        """From key picture to key picture."""
        if self.keys is None or self.keys.usual is None or self.step_s is None:
            return None
        return self.keys.usual * self.step_s

    @property
    def key_longest_s(self) -> float | None:
        """The longest stretch that was seen."""
        if self.keys is None or self.step_s is None:
            return None
        return self.keys.longest * self.step_s

    @property
    def core_share(self) -> float | None:
        """Of one core, to read and decode it at this rate."""
        if self.cpu_s is None or self.step_s is None:
            return None
        return self.cpu_s / self.step_s


def found(reading: Reading) -> Found:
    """What the reading says."""
    samples, standing = reading.samples, reading.standing
    live = standing.live if standing is not None else True
    stamps = timestamps([sample.pts_s for sample in samples])
    settled = samples[_settled_from(samples) :] if live else samples
    arrivals = sorted(sample.received_s for sample in settled)
    gaps: Spread | None
    if live:
        fps = rate(arrivals)
        gaps = Spread.of(b - a for a, b in pairwise(arrivals))
        measured_s = arrivals[-1] - arrivals[0] if arrivals else 0.0
    else:
        fps, gaps = stamps.fps, stamps.steps
        measured_s = stamps.span_s
    # The first picture pays for the start.
    costs_s = [sample.cpu_s for sample in samples][1:]
    refused = standing.bad_packets if standing is not None else 0
    corrupt = sum(sample.corrupt for sample in samples)
    state, reason = _state(reading, corrupt, refused)
    return Found(
        state=state,
        reason=reason,
        live=live,
        pictures=len(samples),
        measured_s=measured_s,
        open_s=None if reading.opened_s is None else reading.opened_s - reading.began_s,
        first_s=samples[0].read_s - reading.began_s if samples else None,
        sizes=tuple(dict.fromkeys((sample.width, sample.height) for sample in samples)),
        rotation=samples[-1].rotation if samples else 0,
        fps=fps,
        claimed_fps=standing.nominal_fps if standing is not None else None,
        gaps=gaps,
        stamps=stamps,
        keys=key_pictures([sample.key for sample in samples], reading.whole),
        reorder=_reorder(samples, standing.facts.reorder if standing is not None else 0),
        reader_delay_s=standing.reader_delay_s if standing is not None else 0.0,
        lag=_lag(settled) if live else None,
        decode=Spread.of(sample.decode_s for sample in samples if sample.decode_s > 0.0),
        cpu_s=statistics.fmean(costs_s) if costs_s else None,
        corrupt=corrupt,
        refused=refused,
        skipped=standing.skipped if standing is not None else 0,
    )


def rate(times_s: Sequence[float]) -> float | None:
    """A second, of moments in their order; None if they span too little time to tell."""
    if len(times_s) < 2:
        return None
    span_s = times_s[-1] - times_s[0]
    return (len(times_s) - 1) / span_s if span_s >= _RATE_LEAST_S else None


def timestamps(pts_s: Sequence[float | None]) -> Timestamps:
    """Of pictures in the order of presentation.

    A step of seconds can be true (a recorder that cut out the quiet parts, a picture every ten
    seconds), by the same rule as where files are paced.
    """
    given = [pts for pts in pts_s if pts is not None]
    raw = [b - a for a, b in pairwise(given)]
    ahead = [step for step in raw if step >= _LEAST_STEP_S]
    usual_s = statistics.median(ahead) if ahead else 0.0
    true = [step for step in ahead if step <= max(GAP_S, 3.0 * usual_s)]
    backward = [step for step in raw if -_DISORDER * usual_s <= step < _LEAST_STEP_S]
    # What goes back was ahead before: only the sum tells how far the stream came.
    span_s = max(sum(true, 0.0) + sum(backward), 0.0)
    counted = len(true) + len(backward)
    uneven = sum(abs(step - usual_s) > _UNEVEN * usual_s for step in true)
    return Timestamps(
        fps=counted / span_s if counted and span_s >= counted / MAX_FPS else None,
        steps=Spread.of(true),
        uneven=uneven / len(true) if true else 0.0,
        backward=len(backward),
        jumps=len(raw) - len(true) - len(backward),
        missing=len(pts_s) - len(given),
        span_s=span_s,
    )


def reordered(received_s: Sequence[float]) -> list[int]:
    """For each picture, how many that are shown later were received before it.

    The most of these is by how many pictures a decoder holds back to bring them in order: what
    H.264 calls ``max_num_reorder_frames``, from what was seen.

    Args:
        received_s: When each was received, in the order in which they are shown.
    """
    later: list[float] = []  # of the pictures shown later, sorted
    ahead = []
    for received in reversed(received_s):
        place = bisect_left(later, received)
        ahead.append(place)
        later.insert(place, received)
    return ahead[::-1]


def _reorder(samples: Sequence[Sample], said: int) -> int:
    """By what the decoder says, or by what was seen; single odd stamps are no B-frames."""
    ahead = sorted(reordered([sample.received_s for sample in samples]))
    seen = ahead[int(_REORDER_SHARE * len(ahead))] if ahead else 0
    return max(said, seen)


def key_pictures(keys: Sequence[bool], whole: bool = False) -> KeyPictures | None:
    """Of pictures in their order; None if none is one: the reader does not say.

    Args:
        keys: Whether a picture is one.
        whole: There are no pictures before and after these.
    """
    places = [index for index, key in enumerate(keys) if key]
    if not places:
        return None
    between = [b - a for a, b in pairwise(places)]
    finished = max(between, default=0)
    # The stretch before the first began earlier, the one after the last ends later.
    open_ends = max(places[0], len(keys) - places[-1])
    return KeyPictures(
        seen=len(places),
        usual=statistics.median(between) if between else None,
        longest=max(finished, open_ends),
        unfinished=open_ends > finished and not whole,
    )


def _settled_from(samples: Sequence[Sample]) -> int:
    """The first picture that was waited for: those before it lay ready when it was opened."""
    for index, sample in enumerate(samples):
        late = sample.received_s - samples[0].received_s > SETTLE_S
        if late or (index and sample.waited_s > PAUSE_S):
            return index
    return 0


def _lag(samples: Sequence[Sample]) -> Spread | None:
    """As the daemon measures it, of the n-th picture received and the n-th shown.

    With B-frames these are not the same; what that costs is told apart.
    """
    lag = SourceLag()
    received = sorted(samples, key=lambda sample: sample.received_s)
    taken = [
        lag.sample(shown.pts_s, came.received_s, came.waited_s > PAUSE_S)
        for came, shown in zip(received, samples, strict=True)
    ]
    return Spread.of(sample.lag_s for sample in taken if sample is not None)


def _state(reading: Reading, corrupt: int, refused: int) -> tuple[CameraState, str]:
    if reading.trouble is not None:
        return reading.trouble.state, reading.trouble.reason
    pictures, damaged = len(reading.samples), corrupt + refused
    if not pictures:
        return CameraState.CONNECTING, "interrupted before its first picture"
    share = damaged / (pictures + refused)
    if damaged >= DEGRADED_LEAST and share >= DEGRADED_SHARE:
        return CameraState.DEGRADED, f"{share:.0%} of the pictures are damaged"
    return CameraState.RUNNING, ""
