"""Which input shape a camera's pictures get: a small set that many cameras share.

A batch never mixes shapes, so every further shape makes batches smaller; a shape that does not
suit a picture wastes the detector's time on grey margins. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from vidserve.errors import ConfigError
from vidserve.frames import Bucket, Letterbox

STRIDE = 32
MAX_PADDING = 0.10
"""Share of a shape that may be margin."""
_SHARED_SCALE = 0.95  # so much smaller may a picture become to share a shape with others
_SHARED_MAX = 6  # shapes of one image size; what comes later takes the best of them
_SHORTEST_SIDE = 0.6  # how far the long side may shrink to get rid of margins


def rectangle(width: int, height: int, side: int, stride: int = STRIDE) -> Bucket:
    """The smallest shape for a picture scaled to ``side`` on its long side.

    Ultralytics' rectangular inference: 1280x720 at 640 is 640 wide and 384 high (360 and a
    margin). All in pixels, > 0; ``side`` is rounded up to ``stride``.
    """
    long_px = _round_up(side, stride)
    inner = Letterbox.fit(width, height, Bucket(long_px, long_px))
    return Bucket(_round_up(inner.inner_height, stride), _round_up(inner.inner_width, stride))


def padding(width: int, height: int, bucket: Bucket) -> float:
    """Share of the shape that is margin for such a picture, 0..1."""
    return 1.0 - _inner_px(width, height, bucket) / bucket.pixels


class Buckets:
    """The shapes of one run. Not locked: the pipeline does that.

    Args:
        fixed: The only shapes allowed (a model exported for one, or a list of the config);
            empty: made to measure, multiples of ``stride``.
        stride: What both sides must be a multiple of.
        max_pixels: Most pixels of a batch, so also of one picture; None: no limit.

    Raises:
        ConfigError: no fixed shape is within ``max_pixels``.
    """

    def __init__(
        self,
        fixed: Sequence[Bucket] = (),
        stride: int = STRIDE,
        max_pixels: int | None = None,
    ) -> None:
        self._stride = stride
        self._max_pixels = max_pixels
        self._fixed = [bucket for bucket in fixed if self._allowed(bucket)]
        if fixed and not self._fixed:
            smallest = min(fixed, key=lambda bucket: bucket.pixels)
            raise ConfigError(
                f"scheduling.batch.max_pixels: {max_pixels} is less than one picture of"
                f" {smallest} ({smallest.pixels} pixels), the smallest shape that the detector"
                " may use: raise it, or use a smaller model input"
            )
        self._shared: dict[int, list[Bucket]] = {}

    def ladder(self, width: int, height: int, sides: Sequence[int]) -> tuple[Bucket, ...]:
        """The shapes for pictures of one size: the usual one, then smaller ones for overload.

        Args:
            width: Of the picture as shown, pixels, > 0.
            height: Likewise.
            sides: Long sides of the input, pixels, largest first; not used with fixed shapes.

        Returns:
            At least one shape, falling in pixels, each within ``max_pixels``. If all of
            ``sides`` are too large, the largest side that is not takes their place.
        """
        if self._fixed:
            return self._fixed_ladder(width, height)
        found = [self._share(width, height, _round_up(side, self._stride)) for side in sides]
        allowed = [bucket for bucket in found if self._allowed(bucket)]
        return _falling(allowed) or (self._largest_allowed(width, height, min(sides)),)

    def _allowed(self, bucket: Bucket) -> bool:
        return self._max_pixels is None or bucket.pixels <= self._max_pixels

    def _fixed_ladder(self, width: int, height: int) -> tuple[Bucket, ...]:
        """The fixed shapes in which the picture is largest; smaller ones if they suit as well."""
        by_size = sorted(
            self._fixed, key=lambda b: (_inner_px(width, height, b), -b.pixels), reverse=True
        )
        most = padding(width, height, by_size[0]) + MAX_PADDING
        return _falling([b for b in by_size if padding(width, height, b) <= most])

    def _largest_allowed(self, width: int, height: int, side: int) -> Bucket:
        for smaller in range(_round_up(side, self._stride), self._stride, -self._stride):
            bucket = _made_to_measure(width, height, smaller, self._stride)
            if self._allowed(bucket):
                return bucket
        return Bucket(self._stride, self._stride)

    def _share(self, width: int, height: int, side: int) -> Bucket:
        """A shape that is in use already, if it suits; else a new one."""
        best = _made_to_measure(width, height, side, self._stride)
        known = self._shared.setdefault(side, [])
        if best in known:
            return best
        best_px = _inner_px(width, height, best)
        suits = [
            bucket
            for bucket in known
            if padding(width, height, bucket) < MAX_PADDING
            and _inner_px(width, height, bucket) >= _SHARED_SCALE**2 * best_px
        ]
        if not suits and len(known) < _SHARED_MAX:
            known.append(best)
            return best
        return max(
            suits or known, key=lambda bucket: (_inner_px(width, height, bucket), -bucket.pixels)
        )


def in_order(sizes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Picture sizes (width, height) in the order in which they should ask for shapes.

    The squarest first: a narrower picture may share a shape that is a little too high for it
    and loses nothing, while the other way round it would have to be made smaller.
    """
    return sorted(set(sizes), key=lambda size: (max(size) / min(size), size))


def _made_to_measure(width: int, height: int, side: int, stride: int) -> Bucket:
    """The shape with margins under 10 % in which the picture is largest.

    Where rounding up the short side would leave more, the picture is made a little smaller, so
    that it fits into a shape of the next lower multiple. If even that does not help (a side of
    few strides), the shape with the least margin.
    """
    usual = rectangle(width, height, side, stride)
    if padding(width, height, usual) < MAX_PADDING:
        return usual
    candidates = [usual]
    wide = width >= height
    for long_px in range(side, max(stride, math.ceil(side * _SHORTEST_SIDE)) - 1, -stride):
        short_px = long_px * min(width, height) / max(width, height)
        for short in (math.floor(short_px / stride) * stride, _round_up(short_px, stride)):
            if short >= stride:
                candidates.append(Bucket(short, long_px) if wide else Bucket(long_px, short))
    good = [b for b in candidates if padding(width, height, b) < MAX_PADDING]
    if good:
        return max(good, key=lambda b: (_inner_px(width, height, b), -b.pixels))
    return min(candidates, key=lambda b: padding(width, height, b))


def _inner_px(width: int, height: int, bucket: Bucket) -> int:
    inner = Letterbox.fit(width, height, bucket)
    return inner.inner_width * inner.inner_height


def _falling(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Those that are smaller than all before them."""
    kept: list[Bucket] = []
    for bucket in buckets:
        if not kept or bucket.pixels < kept[-1].pixels:
            kept.append(bucket)
    return tuple(kept)


def _round_up(length: float, stride: int) -> int:
    return max(1, math.ceil(length / stride)) * stride
