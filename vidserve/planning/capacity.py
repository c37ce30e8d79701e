"""From measured costs to a verdict: does it fit, how much more would, and what is in the way. Pure.

``Planner`` tries growing numbers of "such cameras": those of the config, and copies of them in
turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vidserve.frames import Bucket
from vidserve.planning.need import (
    Limit,
    Machine,
    Miss,
    PlannedCamera,
    mix,
    need,
    plain_misses,
    times_of,
)
from vidserve.planning.trial import LATE_MOST, Trial, try_out
from vidserve.scheduling.scheduler import Scheduler
from vidserve.scheduling.settings import SchedulerSettings

MOST_CAMERAS = 256
_CURVE_POINTS = 9
_LARGEST_BUDGET_MS = 1000
_BEYOND = 1.35  # how far past the limit the curve of latency goes

Resize = Callable[[int], tuple[tuple[PlannedCamera, ...], Machine] | None]
"""The same cameras with their pictures sent at most so large (long side, pixels), and the machine
with the service times for that; None: it would change nothing."""
SIDES = (512, 416, 320, 256, 192)


def largest_that_fits(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in ``low..high - 1`` that fits, by bisection.

    ``low`` is known to fit and ``high`` known, or assumed, not to; nothing else is presumed, so
    that a simulation that is not quite monotone does no harm: the number returned fits, the next
    one does not.
    """
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Help:
    """A change with which the configured cameras would fit.

    Attributes:
        change: Key of the config, or ``cameras``.
        value: To set it to.
        sentence: The same for people.
    """

    change: str
    value: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a plan.

    Attributes:
        now: The configured cameras.
        fits: How many such cameras fit.
        capped: That is only as far as it was tried.
        at_the_limit: So many cameras; None: not even one fits.
        limit: Which part is in the way of one more; None if capped.
        misses: What one more would break, ``limit`` first.
        accepting_late: How many fit if detections may come late for their frames (they still
            correct the tracker); None where that makes no difference.
        help: What would make the configured cameras fit, if they do not.
    """

    now: Trial
    fits: int
    capped: bool
    at_the_limit: Trial | None
    limit: Limit | None
    misses: tuple[Miss, ...]
    accepting_late: int | None
    help: tuple[Help, ...]

    @property
    def more(self) -> int:
        """So many more fit; negative: so many are too many."""
        return self.fits - self.now.cameras


class Planner:
    """Tries numbers of cameras, each once.

    Args:
        cameras: The configured ones, at least one.
        machine: What they share.
        settings: Of the scheduler.
        seed, duration_s, late_most: Of each simulation.
        tell: Told before each simulation how many cameras it has.
    """

    def __init__(
        self,
        cameras: Sequence[PlannedCamera],
        machine: Machine,
        settings: SchedulerSettings,
        *,
        seed: int = 1,
        duration_s: float = 8.0,
        late_most: float = LATE_MOST,
        tell: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.cameras = tuple(cameras)
        self.machine = machine
        self.settings = replace(settings, control=False)
        self._seed = seed
        self._duration_s = duration_s
        self._late_most = late_most
        self._tell = tell
        self._trials: dict[int, Trial] = {}

    def trial(self, count: int) -> Trial:
        """So many cameras, simulated."""
        if count not in self._trials:
            self._tell(count)
            self._trials[count] = try_out(
                mix(self.cameras, count),
                self.machine,
                self.settings,
                seed=self._seed,
                duration_s=self._duration_s,
                late_most=self._late_most,
            )
        return self._trials[count]

    def fits(self, count: int) -> bool:
        """Whether so many fit; no simulation where arithmetic says no."""
        return not self._plain(count) and self.trial(count).fits

    def _plain(self, count: int) -> list[Miss]:
        needed = need(mix(self.cameras, count), self.machine, self.settings)
        return plain_misses(needed, self.machine, self.settings.max_gap_s)

    def largest(self, most: int = MOST_CAMERAS) -> int:
        """How many fit, ``most`` at most."""
        asked = len(self.cameras)
        if asked <= most and self.fits(asked):
            high = largest_that_fits(lambda count: not self._plain(count), asked, most + 1) + 1
            return largest_that_fits(self.fits, asked, high)
        return largest_that_fits(self.fits, 0, min(asked, most + 1))

    def verdict(self, resize: Resize = lambda side: None, most: int = MOST_CAMERAS) -> Verdict:
        """The whole answer.

        Args:
            resize: Tells of smaller input sizes; asked only if there are too many cameras.
            most: To be tried, or as many as are configured.
        """
        most = max(most, len(self.cameras))
        now = self.trial(len(self.cameras))
        fits = self.largest(most)
        capped = fits >= most
        misses = () if capped else self._in_the_way(fits + 1)
        late = None
        if misses and self._late_is_all(fits + 1):
            late = self._variant(late_most=1.0).largest(most)
        return Verdict(
            now=now,
            fits=fits,
            capped=capped,
            at_the_limit=self.trial(fits) if fits else None,
            limit=misses[0].limit if misses else None,
            misses=misses,
            accepting_late=late if late is not None and late > fits else None,
            help=() if fits >= len(self.cameras) else self._help(fits, resize),
        )

    def _variant(
        self,
        cameras: Sequence[PlannedCamera] | None = None,
        machine: Machine | None = None,
        late_most: float | None = None,
        budget_s: float | None = None,
    ) -> Planner:
        return Planner(
            self.cameras if cameras is None else cameras,
            self.machine if machine is None else machine,
            self.settings if budget_s is None else replace(self.settings, budget_s=budget_s),
            seed=self._seed,
            duration_s=self._duration_s,
            late_most=self._late_most if late_most is None else late_most,
            tell=self._tell,
        )

    def _in_the_way(self, count: int) -> tuple[Miss, ...]:
        """What keeps so many from fitting, the cause before its consequences."""
        misses = self.trial(count).misses
        order = list(Limit)
        # A detector that is slow only because the cameras take its cores: the cores are short.
        slower = self.trial(count).needed.slower > 1.0
        if slower and all(miss.limit is Limit.DETECTOR for miss in misses):
            alone = self._variant(machine=replace(self.machine, detector_yields=False))
            if alone.fits(count):
                return tuple(replace(miss, limit=Limit.CPU) for miss in misses)
        return tuple(sorted(misses, key=lambda miss: order.index(miss.limit)))

    def _late_is_all(self, count: int) -> bool:
        """Whether nothing but lateness is wrong with so many."""
        relaxed = self._variant(late_most=1.0)
        return relaxed.fits(count)

    # -- help ------------------------------------------------------------------------------

    def _help(self, fits: int, resize: Resize) -> tuple[Help, ...]:
        """Changes with which all configured cameras would fit, each found by simulation."""
        found = [self._longer_interval(), self._smaller_image(resize), self._larger_budget()]
        if fits:
            text = f"fewer cameras: {fits} of {len(self.cameras)} fit as they are"
            found.append(Help("cameras", fits, text))
        return tuple(change for change in found if change is not None)

    def _longer_interval(self) -> Help | None:
        weighed = [camera for camera in self.cameras if camera.weight > 0]
        if not weighed:
            return None
        low = min(camera.interval_frames for camera in weighed)
        # Beyond the largest gap a longer interval changes nothing.
        most = max(math.ceil(c.fps * self.settings.max_gap_s) for c in weighed)
        step = 1
        while not self._fits_every(low + step):
            step *= 2
            if low + step > most:
                return None
        # Counted downwards: this one fits, the one half a step before did not.
        high = low + step
        interval = high - largest_that_fits(
            lambda less: self._fits_every(high - less), 0, step - step // 2
        )
        trial = self._every(interval).trial(len(self.cameras))
        return Help(
            "scheduling.keyframe_interval",
            interval,
            f"keyframe_interval {interval} (of every camera that has less):"
            f" {trial.needed.asked_per_s:.1f} detections/s instead of"
            f" {self.trial(len(self.cameras)).needed.asked_per_s:.1f},"
            f" detector {trial.use:.0%} busy, CPU {trial.cpu_use:.0%}",
        )

    def _every(self, interval: int) -> Planner:
        return self._variant(
            [
                replace(camera, interval_frames=max(interval, camera.interval_frames))
                for camera in self.cameras
            ]
        )

    def _fits_every(self, interval: int) -> bool:
        return self._every(interval).fits(len(self.cameras))

    def _smaller_image(self, resize: Resize) -> Help | None:
        """The largest input size with which they fit."""
        largest = max(max(camera.ladder[0]) for camera in self.cameras)
        # An input that is smaller does not make decoding any cheaper.
        if any(miss.limit is Limit.DECODE for miss in self.trial(len(self.cameras)).misses):
            return None
        for side in SIDES:
            made = resize(side) if side < largest else None
            if made is None:
                continue
            smaller = self._variant(*made)
            if smaller.fits(len(self.cameras)):
                trial = smaller.trial(len(self.cameras))
                return Help(
                    "detector.image_size",
                    side,
                    f"image_size {side}: detector {trial.use:.0%} busy,"
                    f" {trial.late_share:.1%} late, CPU {trial.cpu_use:.0%}"
                    " (small objects are missed more often)",
                )
        return None

    def _larger_budget(self) -> Help | None:
        """The smallest budget with which they fit, where nothing but lateness is in the way."""
        count = len(self.cameras)
        if not self._late_is_all(count):
            return None
        low = math.ceil(self.settings.budget_s * 1000)

        def fits(budget_ms: int) -> bool:
            return self._variant(budget_s=budget_ms / 1000).fits(count)

        if not fits(_LARGEST_BUDGET_MS):
            return None
        high = _LARGEST_BUDGET_MS
        less = largest_that_fits(lambda less: fits(high - less), 0, high - low + 1)
        trial = self._variant(budget_s=(high - less) / 1000).trial(count)
        return Help(
            "scheduling.budget_ms",
            high - less,
            f"budget_ms {high - less}: answers come that much later, with {trial.late_share:.1%}"
            f" of the detections late, latency p95 {1000 * trial.latency_p95_s:.0f} ms",
        )

    # -- curves ----------------------------------------------------------------------------

    def latency_curve(self, fits: int) -> list[Trial]:
        """Growing numbers of cameras up to past the limit, the configured number among them."""
        asked = len(self.cameras)
        top = min(max(math.ceil(_BEYOND * max(fits, 1)), asked, fits + 3), MOST_CAMERAS)
        counts = {round(1 + (top - 1) * k / (_CURVE_POINTS - 1)) for k in range(_CURVE_POINTS)}
        counts |= {asked, max(fits, 1)}
        trials = [self.trial(count) for count in sorted(counts)]
        # Where the cameras alone need more than all cores, a simulated detector tells nothing.
        return [t for t in trials if t.needed.camera_cores <= t.cores or t.cameras == asked]


@dataclass(frozen=True, slots=True)
class BatchCurve:
    """How much a larger batch brings in one input shape, on an idle machine.

    Attributes:
        bucket: The shape.
        cameras: How many of the configured ones use it.
        service_s: S(n) for n from 1 on.
        peak: The size that the scheduler makes at most; within 2 % of the best.
    """

    bucket: Bucket
    cameras: int
    service_s: tuple[float, ...]
    peak: int

    @property
    def per_s(self) -> tuple[float, ...]:
        """Detections a second by batch size: n / S(n)."""
        return tuple(n / seconds for n, seconds in enumerate(self.service_s, 1))


def batch_curves(
    cameras: Sequence[PlannedCamera], machine: Machine, settings: SchedulerSettings
) -> list[BatchCurve]:
    """One for each shape that the cameras use, the most used first."""
    times = times_of(machine.tables_s, settings.batch_max)
    scheduler = Scheduler(settings, times)
    used: dict[Bucket, int] = {}
    for camera in cameras:
        used[camera.ladder[0]] = used.get(camera.ladder[0], 0) + 1
    return [
        BatchCurve(bucket, count, times.expected(bucket)[1:], scheduler.largest_batch(bucket))
        for bucket, count in sorted(used.items(), key=lambda item: -item[1])
    ]
