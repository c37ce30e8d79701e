"""Motion of boxes: a Kalman filter over all tracks of a camera, for any time step.

State of a track: centre x, centre y, width, height in pixels, and the rate of each in pixels
per second. A rate is a damped random walk (the Ornstein-Uhlenbeck process; Singer 1970 used
it for manoeuvring targets): it forgets itself with the time constant ``TAU_S`` and is nudged
at random, so an object that is not measured glides to a halt instead of running away. Noise
is relative to the size of the box, as in SORT (Bewley et al. 2016), DeepSORT (Wojke et al.
2017) and ByteTrack (Zhang et al. 2022). Those count frames; here the discretisation is exact
for every step in seconds.

No noise couples the four pairs of coordinate and rate, so the 8 x 8 covariance of a track
stays block-diagonal for ever: four blocks of 2 x 2. Their three distinct numbers are kept as
arrays (n, 4). It is the same filter at a fraction of the cost; a test compares it with the
textbook's 8 x 8 matrices.

Arrays and pure functions; the tracking loop owns them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Choice = npt.NDArray[np.bool_] | npt.NDArray[np.intp]

# Seconds after which an unmeasured rate has fallen to 37 %. On ../shared/mot 3 to 5 are alike;
# 2 loses 9 points of MOTA where 0.7 s lie between detections.
TAU_S = 4.0
# Spread (standard deviation) of the rates in box sizes per second: centre x and y, width and
# height. A walker does 0.5 to 0.8. 0.8 is up to a point of HOTA better on PETS09-S2L1 and as much
# worse on MOT17-09, one in 5; 1.0 the other way round; the mean of all does not tell them apart.
RATE_SPREAD = np.array([0.9, 0.9, 0.1, 0.1])
# The same for a track seen once; wider, so that the second hit tells what it does.
FIRST_RATE_SPREAD = np.array([2.0, 2.0, 0.1, 0.1])
# Standard deviation of a detector's coordinates in box sizes (SORT's descendants: 1/20).
MEASUREMENT_SPREAD = 0.05
# No predicted or corrected box has a shorter side than this, whatever its rate.
MIN_SIDE_PX = 1.0


@dataclass(frozen=True, slots=True)
class Motion:
    """State of n tracks at one instant; each array is float64 (n, 4), order cx, cy, w, h.

    Attributes:
        position: Pixels.
        rate: Pixels per second.
        pp: Variance of the position.
        pr: Covariance of position and rate.
        rr: Variance of the rate.
    """

    position: Array
    rate: Array
    pp: Array
    pr: Array
    rr: Array

    @classmethod
    def starting(cls, measured: Array) -> Motion:
        """New tracks at measured boxes (n, 4): at rest as far as known, and little is known."""
        size = _size(measured)
        zero = np.zeros_like(measured)
        return cls(
            measured.copy(),
            zero,
            np.broadcast_to((MEASUREMENT_SPREAD * size) ** 2, measured.shape).copy(),
            zero.copy(),
            (FIRST_RATE_SPREAD * size) ** 2,
        )

    def __len__(self) -> int:
        return len(self.position)

    def pick(self, chosen: Choice) -> Motion:
        """The tracks that a mask or an index array chooses, copied."""
        return Motion(
            self.position[chosen],
            self.rate[chosen],
            self.pp[chosen],
            self.pr[chosen],
            self.rr[chosen],
        )

    def replaced(self, rows: npt.NDArray[np.intp], other: Motion) -> Motion:
        """These tracks, but some of them (distinct indices) as in ``other``."""
        result = self.pick(np.arange(len(self)))
        for name in ("position", "rate", "pp", "pr", "rr"):
            getattr(result, name)[rows] = getattr(other, name)[rows]
        return result

    def joined(self, other: Motion) -> Motion:
        """These tracks, then those of ``other``."""
        return Motion(
            np.concatenate((self.position, other.position)),
            np.concatenate((self.rate, other.rate)),
            np.concatenate((self.pp, other.pp)),
            np.concatenate((self.pr, other.pr)),
            np.concatenate((self.rr, other.rr)),
        )

    def scaled(self, factor_x: float, factor_y: float) -> Motion:
        """The same in a picture of the same view with other pixels."""
        factors = np.array([factor_x, factor_y, factor_x, factor_y])
        squares = factors * factors
        return Motion(
            self.position * factors,
            self.rate * factors,
            self.pp * squares,
            self.pr * squares,
            self.rr * squares,
        )

    def predicted(self, dt_s: float) -> Motion:
        """The state ``dt_s`` >= 0 seconds later, means and covariances."""
        glide_s, left = damping(dt_s)
        spread = (RATE_SPREAD * _size(self.position)) ** 2
        # Process noise of a rate whose own spread stays as it is, integrated over the step.
        noise_pp = max(0.0, 2.0 * TAU_S * (dt_s - glide_s) - glide_s * glide_s)
        noise_pr = glide_s * glide_s / TAU_S
        noise_rr = 1.0 - left * left
        return Motion(
            carried(self.position, self.rate, glide_s),
            self.rate * left,
            self.pp + glide_s * (2.0 * self.pr + glide_s * self.rr) + noise_pp * spread,
            left * (self.pr + glide_s * self.rr) + noise_pr * spread,
            left * left * self.rr + noise_rr * spread,
        )

    def displaced(
        self, dt_s: float, rows: npt.NDArray[np.intp], change: Array, variance: Array
    ) -> Motion:
        """The state ``dt_s`` >= 0 seconds later, where some displacements were measured.

        A displacement says nothing of where the box was, so it takes no doubt from the position
        at the start: the Kalman update is that of the displacement, with what it has in common
        with the position and the rate at the end.

        Args:
            dt_s: Of the displacement.
            rows: Which tracks: distinct indices, (m,).
            change: How far each coordinate moved in that time, pixels, (m, 4).
            variance: Of that measurement, pixels squared, (m, 1) or (m, 4), > 0.
        """
        ahead = self.predicted(dt_s)
        seen = self.pick(rows)
        position, rate, weight, with_p, with_r = seen._pulled(dt_s, change, variance)
        ahead.position[rows], ahead.rate[rows] = position, rate
        ahead.pp[rows] -= weight * with_p * with_p
        ahead.pr[rows] -= weight * with_p * with_r
        ahead.rr[rows] -= weight * with_r * with_r
        return ahead

    def shown(self, dt_s: float, change: Array, variance: Array) -> tuple[Array, Array]:
        """Only position and rate of ``displaced``, for all tracks; for answers, a third of it."""
        position, rate, *_ = self._pulled(dt_s, change, variance)
        return position, rate

    def _pulled(
        self, dt_s: float, change: Array, variance: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Position and rate of ``displaced``; and of the displacement: one over its variance,
        and what it has in common with the position and with the rate at the end."""
        glide_s, left = damping(dt_s)
        spread = (RATE_SPREAD * _size(self.position)) ** 2
        noise_pp = max(0.0, 2.0 * TAU_S * (dt_s - glide_s) - glide_s * glide_s)
        own = glide_s * glide_s * self.rr + noise_pp * spread
        with_p = own + glide_s * self.pr
        with_r = left * glide_s * self.rr + glide_s * glide_s / TAU_S * spread
        weight = 1.0 / (own + variance)
        pull = weight * (change - glide_s * self.rate)
        position = carried(self.position, self.rate, glide_s) + with_p * pull
        np.maximum(position[:, 2:], MIN_SIDE_PX, out=position[:, 2:])
        return position, left * self.rate + with_r * pull, weight, with_p, with_r

    def measurement_variance(self) -> Array:
        """Of a box that a detector would report for each track, pixels squared, (n, 1)."""
        variance: Array = (MEASUREMENT_SPREAD * _size(self.position)) ** 2
        return variance

    def shifted(self, offset: Array, rate_change: Array) -> Motion:
        """The same seen by a camera that turned.

        Args:
            offset: Pixels that all centres moved, (2,).
            rate_change: What all their rates changed by, pixels per second, (2,).
        """
        still = np.zeros(2)
        return Motion(
            self.position + np.concatenate((offset, still)),
            self.rate + np.concatenate((rate_change, still)),
            self.pp,
            self.pr,
            self.rr,
        )

    def corrected(
        self, rows: npt.NDArray[np.intp], measured: Array, factors: Array | float = 1.0
    ) -> Motion:
        """The state after some tracks were measured at this very instant.

        Args:
            rows: Which tracks: distinct indices, (m,).
            measured: Their boxes, (m, 4).
            factors: On the variance of each measurement, (m, 4), from ``trust``.
        """
        seen = self.pick(rows)
        noise = seen.measurement_variance() * factors
        gain_p = seen.pp / (seen.pp + noise)
        gain_r = seen.pr / (seen.pp + noise)
        innovation = measured - seen.position
        position = seen.position + gain_p * innovation
        np.maximum(position[:, 2:], MIN_SIDE_PX, out=position[:, 2:])
        result = Motion(
            self.position.copy(), self.rate.copy(), self.pp.copy(), self.pr.copy(), self.rr.copy()
        )
        result.position[rows] = position
        result.rate[rows] = seen.rate + gain_r * innovation
        result.pp[rows] = gain_p * noise
        result.pr[rows] = (1.0 - gain_p) * seen.pr
        result.rr[rows] = seen.rr - gain_r * seen.pr
        return result


def corners(boxes: Array) -> Array:
    """Boxes cx, cy, w, h as x1, y1, x2, y2; float64 (n, 4)."""
    half = boxes[:, 2:] * 0.5
    return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)


def centred(boxes: Array) -> Array:
    """Boxes x1, y1, x2, y2 as cx, cy, w, h; float64 (n, 4)."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate(((low + high) * 0.5, high - low), axis=1)


def damping(dt_s: float) -> tuple[float, float]:
    """What damping leaves of a rate after ``dt_s`` >= 0 seconds.

    Returns:
        For how many seconds the full rate would have had to act to go as far, and the share
        of the rate that is left.
    """
    left = math.exp(-dt_s / TAU_S)
    return -TAU_S * math.expm1(-dt_s / TAU_S), left


def carried(position: Array, rate: Array, glide_s: float) -> Array:
    """Boxes (n, 4) moved by ``glide_s`` seconds of their full rate; sides stay positive."""
    moved = position + glide_s * rate
    np.maximum(moved[:, 2:], MIN_SIDE_PX, out=moved[:, 2:])
    return moved


def _size(position: Array) -> Array:
    """What noise is relative to, pixels (n, 1): the longer side.

    The literature takes the height, being about people; a car seen from the side moves and
    jitters in proportion to its length.
    """
    return np.maximum(position[:, 2:3], position[:, 3:4])
