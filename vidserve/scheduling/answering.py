"""When each frame is answered: in capture order, as late as useful, never later than allowed.

Pure; owned by the tracking loop. Per camera an ordered queue of unanswered frames. A keyframe at
its head waits for its detection until its answer time; the frames behind it wait with it (always
within their own budget), so that answers leave in order and profit from the detection.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import deque
from collections.abc import Callable

from vidserve.frames import Batch, BatchKind, Frame


class _Standing(enum.Enum):
    READY = "tracked: nothing to wait for"
    OFFERED = "offered to the detector, not in a batch yet"
    BATCHED = "in a batch that should finish in time"
    DETECTED = "the detector has spoken"


class _Entry:
    __slots__ = ("answer_by_s", "frame", "standing")

    def __init__(self, frame: Frame, answer_by_s: float, standing: _Standing) -> None:
        self.frame = frame
        self.answer_by_s = answer_by_s
        self.standing = standing


class AnswerDesk:
    """The unanswered frames of all cameras."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[_Entry]] = {}
        self._entries: dict[tuple[str, int], _Entry] = {}
        # So that a call costs what has changed, not what there is: cameras to look at again, and
        # answer times of heads, some of them outdated.
        self._changed: dict[str, None] = {}
        self._wakes: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, frame: Frame, answer_by_s: float, offered_in_time: bool) -> None:
        """Take a frame in capture order; ``offered_in_time``: it may wait for the detector."""
        standing = _Standing.OFFERED if offered_in_time else _Standing.READY
        entry = _Entry(frame, answer_by_s, standing)
        self._entries[frame.camera, frame.seq] = entry
        queue = self._queues.setdefault(frame.camera, deque())
        # What follows an answer may take longer now than when older frames came: they must not
        # hold this one beyond its own answer time.
        for older in reversed(queue):
            if older.answer_by_s <= answer_by_s:
                break
            older.answer_by_s = answer_by_s
        queue.append(entry)
        heapq.heappush(self._wakes, (queue[0].answer_by_s, frame.camera))
        self._changed[frame.camera] = None

    def give_up(self, frame: Frame) -> None:
        """The frame will not be detected in time (superseded, withdrawn, its batch failed)."""
        entry = self._entries.get((frame.camera, frame.seq))
        if entry is not None and entry.standing is not _Standing.DETECTED:
            self._stands(entry, _Standing.READY)

    def batch_started(self, batch: Batch, still_in_time: Callable[[Frame], bool]) -> None:
        """A batch left. Its frames wait for it if it is in time; others only while they may."""
        for frame in batch.frames:
            entry = self._entries.get((frame.camera, frame.seq))
            if entry is not None and entry.standing is _Standing.OFFERED:
                in_time = batch.kind is not BatchKind.CORRECTION
                self._stands(entry, _Standing.BATCHED if in_time else _Standing.READY)
        for queue in self._queues.values():
            for entry in queue:
                if entry.standing is _Standing.OFFERED and not still_in_time(entry.frame):
                    self._stands(entry, _Standing.READY)

    def detected(self, frame: Frame) -> bool:
        """The detector has spoken for a frame; False if it was answered before: it is late."""
        entry = self._entries.get((frame.camera, frame.seq))
        if entry is None:
            return False
        self._stands(entry, _Standing.DETECTED)
        return True

    def _stands(self, entry: _Entry, standing: _Standing) -> None:
        entry.standing = standing
        self._changed[entry.frame.camera] = None

    def take_ready(self, now_s: float) -> list[tuple[Frame, bool]]:
        """The frames to answer now, per camera in order, each with whether it was detected."""
        while self._wakes and self._wakes[0][0] <= now_s:
            self._changed[heapq.heappop(self._wakes)[1]] = None
        changed, self._changed = self._changed, {}
        ready: list[tuple[Frame, bool]] = []
        for camera in changed:
            queue = self._queues.get(camera)
            while queue:
                entry = queue[0]
                waits = entry.standing in (_Standing.OFFERED, _Standing.BATCHED)
                if waits and now_s < entry.answer_by_s:
                    heapq.heappush(self._wakes, (entry.answer_by_s, camera))
                    break
                queue.popleft()
                del self._entries[camera, entry.frame.seq]
                ready.append((entry.frame, entry.standing is _Standing.DETECTED))
            if queue is not None and not queue:
                del self._queues[camera]
        return ready

    def take_all(self) -> list[tuple[Frame, bool]]:
        """Everything, for draining."""
        return self.take_ready(math.inf)

    def next_wake_s(self) -> float:
        """When the first waiting head reaches its answer time; infinite if none waits."""
        while self._wakes:
            when_s, camera = self._wakes[0]
            queue = self._queues.get(camera)
            if queue and queue[0].answer_by_s == when_s:
                break
            heapq.heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else math.inf
