"""The filter against the textbook: dense matrices, fine steps, simulated motion."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from vidserve.tracking.kalman import (
    MEASUREMENT_SPREAD,
    MIN_SIDE_PX,
    RATE_SPREAD,
    TAU_S,
    Array,
    Motion,
    carried,
    damping,
)

START = np.array([[300.0, 200.0, 40.0, 100.0], [50.0, 60.0, 80.0, 30.0]])


def dense(motion: Motion, row: int) -> tuple[Array, Array]:
    """State (8,) and covariance (8, 8) of one track as a textbook writes them."""
    state = np.concatenate((motion.position[row], motion.rate[row]))
    covariance = np.zeros((8, 8))
    for i in range(4):
        covariance[i, i] = motion.pp[row, i]
        covariance[i, i + 4] = covariance[i + 4, i] = motion.pr[row, i]
        covariance[i + 4, i + 4] = motion.rr[row, i]
    return state, covariance


def moving() -> Motion:
    """Two tracks with some history, so that all parts of the state are in use."""
    motion = Motion.starting(START).predicted(0.2)
    return motion.corrected(np.arange(2), START + np.array([[9.0, -4, 1, 2], [-3, 5, 0, 1]]))


@pytest.mark.parametrize("dt_s", [0.0, 0.033, 0.2, 1.0, 10.0])
def test_prediction_equals_the_matrix_exponential(dt_s: float) -> None:
    """Van Loan's method: one matrix exponential gives transition and process noise."""
    before = moving()
    after = before.predicted(dt_s)
    for row in range(2):
        state, covariance = dense(before, row)
        size = before.position[row, 2:].max()
        drift = np.zeros((8, 8))
        drift[:4, 4:] = np.eye(4)
        drift[4:, 4:] = -np.eye(4) / TAU_S
        noise = np.zeros((8, 8))
        noise[4:, 4:] = np.diag(2.0 * (RATE_SPREAD * size) ** 2 / TAU_S)
        block = np.block([[-drift, noise], [np.zeros((8, 8)), drift.T]])
        exponential = expm(block * dt_s)
        transition = exponential[8:, 8:].T
        process = transition @ exponential[:8, 8:]
        got_state, got_covariance = dense(after, row)
        np.testing.assert_allclose(got_state, transition @ state, rtol=1e-9, atol=1e-9)
        expected = transition @ covariance @ transition.T + process
        np.testing.assert_allclose(got_covariance, expected, rtol=1e-6, atol=1e-6)


def test_correction_equals_the_textbook() -> None:
    before = moving().predicted(0.3)
    measured = before.position + np.array([[6.0, -2, 3, 1], [1, 2, 3, 4]])
    factors = np.array([[1.0, 2.0, 3.0, 4.0]])
    after = before.corrected(np.array([1]), measured[1:], factors)
    state, covariance = dense(before, 1)
    observe = np.eye(4, 8)
    noise = np.diag(factors[0]) * (MEASUREMENT_SPREAD * before.position[1, 2:].max()) ** 2
    gain = covariance @ observe.T @ np.linalg.inv(observe @ covariance @ observe.T + noise)
    got_state, got_covariance = dense(after, 1)
    np.testing.assert_allclose(got_state, state + gain @ (measured[1] - observe @ state))
    np.testing.assert_allclose(
        got_covariance, (np.eye(8) - gain @ observe) @ covariance, rtol=1e-9, atol=1e-9
    )
    np.testing.assert_array_equal(after.position[0], before.position[0])


@given(st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_two_steps_are_one(first_s: float, second_s: float) -> None:
    motion = moving()
    twice, once = (
        motion.predicted(first_s).predicted(second_s),
        motion.predicted(first_s + second_s),
    )
    np.testing.assert_allclose(twice.position, once.position, rtol=1e-9)
    np.testing.assert_allclose(twice.rate, once.rate, rtol=1e-9, atol=1e-12)


def test_a_rate_dies_out() -> None:
    """However long nothing is measured, an object gets no farther than TAU_S seconds of it."""
    glide_s, left = damping(1e6)
    assert glide_s == pytest.approx(TAU_S)
    assert left == 0.0
    glide_s, left = damping(1e-9)
    assert glide_s == pytest.approx(1e-9)
    assert left == pytest.approx(1.0)


def test_sides_stay_positive() -> None:
    shrinking = np.array([[0.0, 0.0, -500.0, -500.0]])
    boxes = carried(START[:1], shrinking, 1.0)
    assert (boxes[:, 2:] == MIN_SIDE_PX).all()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(1e-4, 20.0), st.booleans()), max_size=20))
def test_covariance_stays_valid(steps: list[tuple[float, bool]]) -> None:
    motion = Motion.starting(START)
    for dt_s, seen in steps:
        motion = motion.predicted(dt_s)
        if seen:
            motion = motion.corrected(np.arange(2), START)
        determinant = motion.pp * motion.rr - motion.pr**2
        assert (motion.pp > 0).all()
        assert (motion.rr > 0).all()
        assert (determinant > -1e-9 * motion.pp * motion.rr).all()


def test_scaling_commutes_with_prediction() -> None:
    np.testing.assert_allclose(
        moving().scaled(2.0, 2.0).predicted(0.4).pp, moving().predicted(0.4).scaled(2.0, 2.0).pp
    )


def test_a_turned_camera_moves_centres_and_leaves_doubt_and_sides() -> None:
    before = moving()
    after = before.shifted(np.array([5.0, -3.0]), np.array([50.0, 0.0]))
    np.testing.assert_allclose(after.position - before.position, [[5.0, -3.0, 0.0, 0.0]] * 2)
    np.testing.assert_allclose(after.rate - before.rate, [[50.0, 0.0, 0.0, 0.0]] * 2, atol=1e-9)
    np.testing.assert_array_equal(after.pp, before.pp)


def test_rates_of_a_walk_are_found() -> None:
    motion = Motion.starting(START[:1])
    for k in range(1, 13):
        seen = START[:1] + np.array([80.0, -20.0, 0.0, 0.0]) * k / 6
        motion = motion.predicted(1 / 6).corrected(np.array([0]), seen)
    np.testing.assert_allclose(motion.rate[0, :2], [80.0, -20.0], rtol=0.1)
