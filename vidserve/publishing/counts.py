"""How many of each label are in view: from tracks to retained count messages. Pure.

A count is published when it changes, at most once in ``min_gap_s`` for each camera and label;
a change that came too soon waits, and the last value is always published.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vidserve.frames import Tracks
from vidserve.publishing.messages import count_message, label_of, slug
from vidserve.publishing.output import Message


def count_labels(tracks: Tracks, names: Mapping[int, str]) -> dict[str, int]:
    """Number of tracks by label; labels that are not in view are absent."""
    if not len(tracks):
        return {}
    return {label_of(c, names): n for c, n in Counter(tracks.classes.tolist()).items()}


@dataclass(slots=True)
class _Count:
    wanted: int = 0
    published: int | None = None
    published_s: float = -math.inf


class Counts:
    """The counts of all cameras. For one thread; times are monotonic seconds.

    Args:
        label_slugs: Topic level of each label, from ``messages.slugs``.
        min_gap_s: Least time between two messages of one camera and label.
    """

    def __init__(self, label_slugs: Mapping[str, str], min_gap_s: float = 0.5) -> None:
        self._slugs = label_slugs
        self._min_gap_s = min_gap_s
        self._cameras: dict[str, dict[str, _Count]] = {}
        self._changed: set[tuple[str, str]] = set()  # published differs from wanted
        self._last: dict[str, Mapping[str, int]] = {}

    def add_camera(self, camera: str, labels: Iterable[str], now_s: float) -> list[Message]:
        """Start a camera: a 0 for each configured label, so that no old count stays retained.

        Args:
            camera: Its name.
            labels: The configured classes; empty if none are: a label then gets a topic when
                it is first seen.
            now_s: The time.
        """
        counts = self._cameras.setdefault(camera, {})
        for label in labels:
            counts.setdefault(label, _Count())
        return self.clear(camera, now_s)

    def update(self, camera: str, counts: Mapping[str, int]) -> None:
        """What a camera shows now, from ``count_labels``; absent labels are 0."""
        if self._last.get(camera) == counts:  # most frames change nothing
            return
        self._last[camera] = dict(counts)
        known = self._cameras.setdefault(camera, {})
        for label in counts:
            known.setdefault(label, _Count())
        for label, count in known.items():
            count.wanted = counts.get(label, 0)
            self._mark(camera, label, count)

    def due(self, now_s: float) -> list[Message]:
        """The counts that changed and whose time has come."""
        ready = [
            (camera, label)
            for camera, label in self._changed
            if now_s >= self._due_s(self._cameras[camera][label])
        ]
        return [self._publish(camera, label, now_s) for camera, label in sorted(ready)]

    def next_due_s(self) -> float | None:
        """When ``due`` has something; None if nothing waits. May lie in the past."""
        if not self._changed:
            return None
        return min(self._due_s(self._cameras[camera][label]) for camera, label in self._changed)

    def clear(self, camera: str, now_s: float) -> list[Message]:
        """Zero for all of a camera's labels, at once: it died, was disabled, or the run ends.

        Those that are published as 0 already are left out.
        """
        self._last[camera] = {}
        messages = []
        for label, count in self._cameras.get(camera, {}).items():
            count.wanted = 0
            self._mark(camera, label, count)
            if count.published != 0:
                messages.append(self._publish(camera, label, now_s))
        return messages

    def _due_s(self, count: _Count) -> float:
        return count.published_s + self._min_gap_s

    def _mark(self, camera: str, label: str, count: _Count) -> None:
        if count.wanted == count.published:
            self._changed.discard((camera, label))
        else:
            self._changed.add((camera, label))

    def _publish(self, camera: str, label: str, now_s: float) -> Message:
        count = self._cameras[camera][label]
        count.published = count.wanted
        count.published_s = now_s
        self._changed.discard((camera, label))
        return count_message(camera, self._slugs.get(label) or slug(label), count.wanted)
