"""Whatever arrives, whatever the detector takes: what the scheduler and the desk promise holds.

The promises themselves are asserted by the bench, at every step.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lab.scheduling import (
    SMALL,
    TALL,
    WIDE,
    Bench,
    Camera,
    Record,
    linear,
    scheduler,
    steady,
)
from vidserve.frames import Batch, BatchKind
from vidserve.scheduling.scheduler import Scheduler
from vidserve.scheduling.settings import SchedulerSettings

BUCKETS = (WIDE, TALL, SMALL)
STEPS_S = [0.0, 0.0005, 1 / 60, 1 / 30, 1 / 30, 1 / 30, 0.0334, 0.1, 0.7, 3.0]
delay_s = st.sampled_from([0.0, 0.0, 0.003, 0.02, 0.05])
factor = st.sampled_from([0.2, 0.9, 1.0, 1.0, 1.1, 2.0, 6.0, 40.0])
table_ms = st.one_of(
    st.just([3.0 + 2.0 * n for n in range(1, 9)]),
    st.builds(
        lambda fixed, each: [fixed + each * n for n in range(1, 9)],
        st.floats(0.1, 15),
        st.floats(0.1, 8),
    ),
    st.builds(
        lambda fixed, each: [fixed + each * n for n in range(1, 9)],
        st.floats(0.1, 150),
        st.floats(0, 60),
    ),
    st.lists(st.floats(0.1, 200), min_size=8, max_size=8),  # a sweep full of spikes
)


@st.composite
def arrivals(draw: st.DrawFn) -> list[float]:
    """A steady stream with jitter, or a wild one with bursts, repeats and silences."""
    # Written out by a seed: lists drawn one by one stay too short to fill a batch.
    drawn = random.Random(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 60))
    start_s = draw(st.sampled_from([0.0, 0.0, 0.01, 1.0]))
    if draw(st.booleans()):
        period_s = draw(st.sampled_from([1 / 60, 1 / 30, 1 / 30, 0.1]))
        jitter_s = draw(st.sampled_from([0.0, 0.002, 0.02]))
        return sorted(start_s + k * period_s + drawn.uniform(0, jitter_s) for k in range(count))
    return list(
        itertools.accumulate((drawn.choice(STEPS_S) for _ in range(count)), initial=start_s)
    )


@st.composite
def cameras(draw: st.DrawFn) -> list[Camera]:
    """Up to ten cameras; some come late, some leave early."""
    buckets = draw(st.sampled_from([(WIDE,), (WIDE,), BUCKETS]))
    return [
        Camera(
            f"c{index}",
            draw(arrivals()),
            bucket=draw(st.sampled_from(buckets)),
            weight=draw(st.sampled_from([0.0, 0.1, 1.0, 1.0, 100.0])),
            interval_frames=draw(st.sampled_from([1, 1, 2, 5, 30])),
            period_s=draw(st.sampled_from([None, 1 / 30, 0.5])),
            delay_s=draw(delay_s),
            comes_s=draw(st.sampled_from([0.0, 0.0, 0.02])),
            leaves_s=draw(st.sampled_from([math.inf, math.inf, 0.05, 0.5])),
        )
        for index in range(draw(st.integers(1, 10)))
    ]


@st.composite
def crowds(draw: st.DrawFn) -> list[Camera]:
    """Eight to twenty cameras at 30 fps in one or two shapes: large batches."""
    drawn = random.Random(draw(st.integers(0, 2**32)))
    interval_frames = draw(st.sampled_from([1, 1, 3, 5]))
    spread_s = draw(st.sampled_from([0.0, 0.004, 1 / 30]))
    buckets = draw(st.sampled_from([(WIDE,), (WIDE, SMALL)]))
    return [
        steady(
            f"c{index:02}",
            30,
            0.5,
            drawn.uniform(0, spread_s),
            interval_frames=interval_frames,
            bucket=drawn.choice(buckets),
            weight=drawn.choice([0.5, 1.0, 3.0]),
            leaves_s=drawn.choice([math.inf, math.inf, math.inf, 0.3]),
        )
        for index in range(draw(st.integers(8, 20)))
    ]


scheduler_settings = st.builds(
    SchedulerSettings,
    budget_s=st.sampled_from([0.010, 0.033, 0.2]),
    max_gap_s=st.sampled_from([0.1, 0.5, 2.0]),
    batch_target=st.integers(1, 8),
    batch_max=st.sampled_from([1, 2, 3, 5, 8, 8, 8]),
    wait_s=st.sampled_from([0.0, 0.005, 0.015, 0.1]),
    max_pixels=st.sampled_from([None, None, SMALL.pixels - 1, 3 * SMALL.pixels, 3 * WIDE.pixels]),
    control=st.booleans(),
)


@given(
    cams=st.one_of(cameras(), crowds()),
    chosen=scheduler_settings,
    tables=st.tuples(table_ms, table_ms, table_ms),
    factors=st.lists(factor, min_size=1, max_size=10),
    failing=st.sets(st.integers(0, 20)),
    largest=st.sampled_from([None, None, 1, 2, 8]),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_load_keeps_every_promise(
    cams: list[Camera],
    chosen: SchedulerSettings,
    tables: tuple[list[float], ...],
    factors: list[float],
    failing: set[int],
    largest: int | None,
) -> None:
    by_bucket = {
        bucket: {n: table[n - 1] / 1000 for n in range(1, 9)}
        for bucket, table in zip(BUCKETS, tables, strict=True)
    }
    sched = scheduler(chosen, by_bucket)
    if largest is not None:
        sched.limit_batch(largest)
    drawn = itertools.cycle(factors)

    def takes_s(batch: Batch) -> float:
        return by_bucket[batch.bucket][len(batch.frames)] * next(drawn)

    bench = Bench(sched, cams, takes_s, fails=failing.__contains__, until_s=4.0)
    record = bench.run()
    for camera in cams:
        settled = [answer.seq for answer in record.answers[camera.name]]
        assert settled == [f.seq for f in record.captured[camera.name]]
        if camera.weight == 0:
            assert not record.detections_s(camera.name)
    for batch in record.batches:
        if largest is not None:
            assert len(batch.frames) <= largest
    # A frame is in at most one batch, and one that failed or came late is not "detected".
    batched = [(f.camera, f.seq) for batch in record.batches for f in batch.frames]
    assert len(batched) == len(set(batched))
    spoken = {
        (f.camera, f.seq)
        for number, batch in enumerate(record.batches)
        if number not in failing
        for f in batch.frames
    }
    for name, answers in record.answers.items():
        assert all((name, a.seq) in spoken for a in answers if a.detected)
    # The detector is asked when something happened, not in circles.
    arrivals = sum(map(len, record.captured.values()))
    assert record.asked <= 8 * (arrivals + len(record.batches)) + 20


def loaded(sched: Scheduler, cams: list[Camera], until_s: float) -> Record:
    return Bench(sched, cams, until_s=until_s).run()


@given(
    count=st.integers(1, 12),
    fps=st.sampled_from([1.0, 5.0, 12.5, 29.97, 60.0]),
    service=st.tuples(st.floats(0.5, 80), st.floats(0.1, 40)),
    wait_s=st.sampled_from([0.0, 0.015]),
)
@settings(max_examples=25, deadline=None)
def test_unanswered_frames_stay_few(
    count: int, fps: float, service: tuple[float, float], wait_s: float
) -> None:
    """The design's bound of a camera's queue: budget / frame period + 2."""
    sched = scheduler(SchedulerSettings(wait_s=wait_s), {WIDE: linear(*service)})
    cams = [steady(f"c{k:02}", fps, 3.0, phase_s=k * 0.007) for k in range(count)]
    record = loaded(sched, cams, 3.0)
    for camera in cams:
        assert record.most_unanswered[camera.name] <= 0.033 * fps + 2


@given(
    count=st.integers(1, 16),
    interval_frames=st.sampled_from([1, 3, 5, 15]),
    service=st.tuples(st.floats(0.5, 100), st.floats(0.1, 30)),
    seed_s=st.floats(0, 1 / 30),
    wait_s=st.sampled_from([0.0, 0.015]),
)
@settings(max_examples=25, deadline=None)
def test_no_camera_starves_while_the_capacity_lasts(
    count: int,
    interval_frames: int,
    service: tuple[float, float],
    seed_s: float,
    wait_s: float,
) -> None:
    """Equal cameras, any detector: no gap beyond ``max_gap_s``, or what a fair turn takes."""
    table_s = linear(*service)
    sched = scheduler(SchedulerSettings(wait_s=wait_s), {WIDE: table_s})
    phases_s = [(k * seed_s) % (1 / 30) for k in range(count)]
    cams = [
        steady(f"c{k:02}", 30, 9.0, phase_s, interval_frames=interval_frames)
        for k, phase_s in enumerate(phases_s)
    ]
    record = loaded(sched, cams, 9.0)
    turn_s = count / max(n / s for n, s in table_s.items())
    for camera in cams:
        # A camera past its gap waits for the batch in work and for the others like it.
        allowed_s = max(2.0, 2 * (turn_s + interval_frames / 30)) + turn_s + 2 * table_s[8] + 0.1
        # From 1.1 s on: phases are spread in the first second.
        assert record.longest_gap_s(camera.name, 1.1, 8.9) <= allowed_s


def test_a_detector_that_always_fails_still_leaves_every_frame_answered() -> None:
    sched = scheduler()
    cams = [steady(f"c{k}", 30, 5.0, phase_s=k * 0.004) for k in range(4)]
    record = Bench(sched, cams, fails=lambda number: True, until_s=5.0).run()
    assert not any(a.detected for answers in record.answers.values() for a in answers)
    assert all(len(record.answers[c.name]) == 150 for c in cams)


def test_cameras_that_come_and_go_leave_nothing_behind() -> None:
    """Forty short lives one after the other beside a camera that stays: it notices nothing."""
    sched = scheduler(SchedulerSettings(control=True))
    cams = [steady("stays", 30, 40.0)]
    for life in range(80):
        start_s = life * 0.5 + 0.01
        arrivals_s = [start_s + k / 30 for k in range(14)]
        cams.append(
            Camera(f"life{life}", arrivals_s, comes_s=start_s - 0.005, leaves_s=start_s + 0.45)
        )
    record = Bench(sched, cams, until_s=40.0).run()
    assert list(sched.plans()) == []
    assert all(record.detections_s(c.name) for c in cams)
    assert record.longest_gap_s("stays", 0.0, 40.0) < 0.4
    assert all(b.kind is BatchKind.IN_TIME for b in record.batches)


@pytest.mark.parametrize("wait_s", [0.0, 0.015])
def test_an_idle_scheduler_is_not_asked_again(wait_s: float) -> None:
    """Nothing offered: nothing to wake for."""
    sched = scheduler(SchedulerSettings(wait_s=wait_s))
    record = Bench(sched, [Camera("gate", [0.5])], until_s=0.0).run()
    assert record.asked <= 6
