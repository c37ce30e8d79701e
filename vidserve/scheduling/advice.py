"""What people should be told about the detector's load, and when. Pure: sentences, no logging."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from vidserve.scheduling.keyframes import CameraPlan

Note = tuple[int, str]
"""A level of ``logging`` and a sentence."""

_WINDOW_S = 30
_BUSY, _FILLED = 0.7, 0.3
_TOLD_EVERY_S = 600.0
_LONG_WAIT_S = 0.015
_MOST_NAMES = 4


class FillWatch:
    """Warns when a busy detector gets batches that are nearly empty.

    The filling refers to the largest batch that is worth making: by the config, the pixel
    budget, the model and the measured peak of its rate. Where larger batches bring nothing, a
    batch of 1 is full.
    """

    def __init__(self) -> None:
        self._seconds: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW_S)
        self._told_s: float | None = None

    def add(self, busy_s: float, frames: int, room: int) -> None:
        """One second more.

        Args:
            busy_s: The detector's.
            frames: In its finished batches.
            room: Frames, had each of them been as large as is worth making.
        """
        self._seconds.append((min(busy_s, 1.0), frames, room))

    def notes(self, now_s: float, wait_s: float) -> list[Note]:
        """A warning if it is time for one; at most every ten minutes."""
        if len(self._seconds) < _WINDOW_S:
            return []
        busy = sum(second[0] for second in self._seconds) / _WINDOW_S
        frames = sum(second[1] for second in self._seconds)
        room = sum(second[2] for second in self._seconds)
        if busy <= _BUSY or room == 0 or frames / room >= _FILLED:
            return []
        if self._told_s is not None and now_s - self._told_s < _TOLD_EVERY_S:
            return []
        self._told_s = now_s
        longer = "" if wait_s >= _LONG_WAIT_S else f"scheduling.batch.wait_ms {1000 * wait_s:g}"
        advice = ", ".join(
            [
                *([f"let batches fill (raise {longer} to 15)"] if longer else []),
                "give it fewer cameras or a longer keyframe_interval",
                "or take a smaller model or image_size",
            ]
        )
        sentence = (
            f"the detector was busy {busy:.0%} of the last {_WINDOW_S} s, but its batches were"
            f" only {frames / room:.0%} full ({frames / _WINDOW_S:.1f} pictures/s): {advice}"
        )
        return [(logging.WARNING, sentence)]


class OverloadNotes:
    """Tells what overload control has begun and ended; not each of its steps."""

    def __init__(self) -> None:
        self._longer = False
        self._smaller: set[str] = set()
        self._rare: set[str] = set()

    def notes(self, plans: Iterable[CameraPlan], asked_use: float) -> list[Note]:
        """What changed since the last call.

        Args:
            plans: All cameras.
            asked_use: Share of the detector's time that they asked for before the last step.
        """
        plans = list(plans)
        longer = any(plan.stretch > 1.0 for plan in plans)
        smaller = {plan.name for plan in plans if plan.level > 0}
        rare = {plan.name for plan in plans if plan.rare_s is not None}
        was_over = not (self._longer or self._smaller or self._rare)
        found: list[Note] = []
        if longer and was_over:
            found.append(
                (
                    logging.WARNING,
                    (
                        f"overload: the cameras ask for {asked_use:.0%} of the detector"
                        if asked_use > 1.0
                        else "overload: detections come late, and the detector is busy"
                    )
                    + "; detections become rarer, of the cameras of the lowest weight first",
                )
            )
        if smaller - self._smaller:
            names = _names(smaller - self._smaller)
            found.append((logging.WARNING, f"overload: a smaller detector input for {names}"))
        if rare - self._rare:
            names = _names(rare - self._rare)
            found.append(
                (
                    logging.WARNING,
                    f"overload: predict-only, nearly no detections, for {names}: use fewer cameras,"
                    " a smaller model, or give the important ones a higher weight",
                )
            )
        if not (longer or smaller or rare or was_over):
            found.append((logging.INFO, "overload: over, all cameras are as configured"))
        self._longer, self._smaller, self._rare = longer, smaller, rare
        return found


def _names(names: set[str]) -> str:
    listed = sorted(names)
    more = len(listed) - _MOST_NAMES
    return ", ".join(listed[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
