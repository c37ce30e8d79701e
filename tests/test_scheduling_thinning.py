"""Motion is thinned before anything else suffers, and comes back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vidserve.frames import Thinning
from vidserve.scheduling.thinning import CALM_S, ThinningControl


class Seconds:
    def __init__(self) -> None:
        self.control = ThinningControl(0.033)
        self.now_s = 0.0

    def __call__(self, frames: int = 30, late: int = 0, lost: int = 0, times: int = 1) -> Thinning:
        for _ in range(times):
            for k in range(frames):
                self.control.frame(self.now_s, self.now_s + (0.02 if k < late else 0.004))
            self.control.lost(lost)
            self.now_s += 1.0
            self.control.every_second(self.now_s)
        return self.control.level


def test_quick_frames_are_measured_in_full() -> None:
    assert Seconds()(times=30) is Thinning.FULL
    assert Seconds()(late=1, times=30) is Thinning.FULL  # one in thirty is noise


def test_late_frames_thin_one_level_a_second() -> None:
    second = Seconds()
    levels = [second(late=5) for _ in range(5)]
    assert levels == [
        Thinning.ONE_WAY,
        Thinning.FEWER_POINTS,
        Thinning.EVERY_SECOND,
        Thinning.EVERY_SECOND,
        Thinning.EVERY_SECOND,
    ]


def test_lost_frames_count_even_if_none_came() -> None:
    assert Seconds()(frames=0, lost=3) is Thinning.ONE_WAY
    assert Seconds()(frames=0, times=20) is Thinning.FULL


def test_it_comes_back_one_level_after_some_calm() -> None:
    second = Seconds()
    second(late=30, times=3)
    assert second(times=int(CALM_S)) is Thinning.EVERY_SECOND
    assert second() is Thinning.FEWER_POINTS
    assert second(times=int(CALM_S)) is Thinning.ONE_WAY
    second(late=10)
    assert second(times=3) is Thinning.FEWER_POINTS
    assert second(times=30) is Thinning.FULL


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 3)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_history_moves_one_level_at_a_time(seconds: list[tuple[int, int, int]]) -> None:
    second, before = Seconds(), Thinning.FULL
    for frames, late, lost in seconds:
        level = second(frames, min(late, frames), lost)
        assert abs(level - before) <= 1
        before = level
