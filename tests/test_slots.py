"""Input slots: bounded, reused, given back once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from vidserve.clock import ManualClock, RealClock
from vidserve.frames import Bucket
from vidserve.slots import Slot, SlotPool

SMALL = Bucket(64, 96)


def taken(pool: SlotPool) -> Slot:
    slot = pool.take()
    assert slot is not None
    return slot


def test_a_slot_is_a_picture_of_its_bucket() -> None:
    slot = taken(SlotPool(SMALL, 1))
    assert slot.bucket == SMALL
    assert slot.pixels.shape == (64, 96, 3)
    assert slot.pixels.dtype == np.uint8
    assert slot.geometry is None


def test_an_empty_pool_gives_none_until_a_slot_comes_back() -> None:
    pool = SlotPool(SMALL, 2)
    first, _second = taken(pool), taken(pool)
    assert pool.take() is None
    assert pool.take() is None
    first.release()
    assert pool.take() is first
    assert pool.take() is None


def test_no_slot_is_made_before_it_is_needed_and_none_is_made_twice() -> None:
    pool = SlotPool(SMALL, 10)
    for _ in range(50):
        taken(pool).release()
    assert pool.in_use == 0
    slots = [taken(pool) for _ in range(3)]
    assert len({id(slot.pixels) for slot in slots}) == 3
    assert pool.in_use == 3


def test_a_pool_of_no_slots_gives_none() -> None:
    assert SlotPool(SMALL, 0).take() is None


def test_a_second_release_is_a_fault() -> None:
    pool = SlotPool(SMALL, 2)
    slot = taken(pool)
    slot.release()
    with pytest.raises(AssertionError, match="twice"):
        slot.release()
    assert pool.in_use == 0
    assert taken(pool) is not taken(pool)


def test_in_use_counts_what_is_out() -> None:
    pool = SlotPool(SMALL, 4)
    slots = [taken(pool) for _ in range(4)]
    counts = [pool.in_use]
    for slot in slots:
        slot.release()
        counts.append(pool.in_use)
    assert counts == [4, 3, 2, 1, 0]


def test_threads_never_share_a_slot() -> None:
    """Each writes its mark and finds it again; the pool is smaller than the crowd."""
    pool = SlotPool(SMALL, 3)
    faults: list[str] = []
    took: list[int] = []

    def work(mark: int) -> None:
        for _ in range(300):
            slot = pool.take()
            if slot is None:
                continue
            slot.pixels[:] = mark
            if not (slot.pixels == mark).all():
                faults.append(f"thread {mark}: somebody else wrote here")
            took.append(mark)
            slot.release()

    threads = [threading.Thread(target=work, args=(mark,), daemon=True) for mark in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert faults == []
    assert took
    assert pool.in_use == 0
    free = [pool.take() for _ in range(4)]
    assert free.count(None) >= 1


def test_a_manual_clock_moves_forward_only() -> None:
    clock = ManualClock(10.0, wall_offset_s=1000.0)
    clock.advance(1.5)
    clock.move_to(5.0)
    assert clock.now() == 11.5
    clock.sleep_until(12.0)
    assert (clock.now(), clock.wall()) == (12.0, 1012.0)
    clock.advance(-3.0)
    assert clock.now() == 12.0


def test_the_real_clock_sleeps_until_and_not_at_all_for_the_past() -> None:
    clock = RealClock()
    start_s = clock.now()
    clock.sleep_until(start_s + 0.02)
    assert clock.now() >= start_s + 0.02
    clock.sleep_until(start_s - 100.0)
    assert clock.now() - start_s < 5.0
