"""The state of one camera as subscribers see it. Pure: a clock is passed in, no threads."""

from __future__ import annotations

from collections import deque

from vidserve.clock import Clock
from vidserve.errors import CaptureError, SourceSilent, SourceUnauthorized, SourceUnreachable
from vidserve.frames import CameraState, CameraStatus

DEGRADED_WINDOW_S = 10.0
DEGRADED_SHARE = 0.02
DEGRADED_LEAST = 3
DAMAGED_START_S = 2.0
REMIND_S = 600.0


def state_of(error: Exception, delivered: bool) -> tuple[CameraState, str]:
    """What an error of a reader makes of its camera, and why.

    Args:
        error: What opening or reading ended with.
        delivered: Pictures came before it. A connection that is lost then is made again at
            once, one that cannot be made is a failure.

    Returns:
        The state, and the reason for people; not yet cleaned of secrets.
    """
    text = str(error)
    if not isinstance(error, CaptureError):
        text = f"internal error, please report it: {type(error).__name__}: {text}"
        return CameraState.FAILED, text
    if isinstance(error, SourceUnauthorized):
        return CameraState.UNAUTHORIZED, text
    if isinstance(error, SourceSilent):
        return CameraState.STALLED, text
    if isinstance(error, SourceUnreachable) and delivered:
        return CameraState.CONNECTING, f"connection lost: {text}"
    return CameraState.FAILED, text


class CameraStates:
    """State machine of one camera. Every method returns the new status if it changed, else None.

    ``running`` is reached only by a decoded frame. A camera in trouble keeps its troubled state,
    with the reason, while it is tried again: the attempts are no news, a frame is.

    Args:
        camera: Name.
        clock: Monotonic time for the windows, wall time for ``since_wall_s``.
    """

    def __init__(self, camera: str, clock: Clock) -> None:
        self._clock = clock
        self._status = CameraStatus(camera, CameraState.CONNECTING, "", clock.wall())
        self._damage = DamageShare()
        self._damaged_since_s: float | None = None  # with no whole picture since it delivered

    @property
    def status(self) -> CameraStatus:
        return self._status

    def connecting(self, reason: str = "") -> CameraStatus | None:
        """The connection is made for the first time, or again after it was lost."""
        return self.become(CameraState.CONNECTING, reason)

    def frame(self, corrupt: bool) -> CameraStatus | None:
        """A picture was decoded, damaged or not."""
        now_s = self._clock.now()
        self._damage.add(now_s, corrupt)
        if not self._status.state.delivers:
            return self._first(now_s, corrupt)
        if self._status.state is CameraState.RUNNING and self._damage.bad(now_s):
            return self.become(
                CameraState.DEGRADED,
                f"{self._damage.share(now_s):.0%} of the last pictures are damaged: "
                "look for packet loss or a bit rate beyond the link",
            )
        if self._status.state is CameraState.DEGRADED and self._damage.calm(now_s):
            return self.become(CameraState.RUNNING, "")
        return None

    def _first(self, now_s: float, corrupt: bool) -> CameraStatus | None:
        """Joined between two key pictures a stream may be grey at first: that is not running."""
        if not corrupt:
            self._damage = DamageShare()
            return self.become(CameraState.RUNNING, "")
        if self._damaged_since_s is None:
            self._damaged_since_s = now_s
        if now_s - self._damaged_since_s < DAMAGED_START_S:
            return None
        return self.become(
            CameraState.DEGRADED,
            "only damaged pictures so far: look for packet loss, or for a camera that sends no "
            "key pictures",
        )

    def bad_packets(self, count: int) -> None:
        """Packets that the decoder refused; they count as damaged pictures."""
        self._damage.add(self._clock.now(), True, count)

    def stalled(self, reason: str) -> CameraStatus | None:
        """Nothing came for too long."""
        return self.become(CameraState.STALLED, reason)

    def unauthorized(self, reason: str) -> CameraStatus | None:
        """The login was refused."""
        return self.become(CameraState.UNAUTHORIZED, reason)

    def failed(self, reason: str) -> CameraStatus | None:
        """It cannot be opened, or shows nothing."""
        return self.become(CameraState.FAILED, reason)

    def ended(self) -> CameraStatus | None:
        """A file is over."""
        return self.become(CameraState.ENDED, "the file is over")

    def disabled(self, reason: str = "") -> CameraStatus | None:
        """Switched off on purpose."""
        return self.become(CameraState.DISABLED, reason)

    def become(self, state: CameraState, reason: str) -> CameraStatus | None:
        if (state, reason) == (self._status.state, self._status.reason):
            return None
        same = state is self._status.state
        self._damaged_since_s = None
        since_s = self._status.since_wall_s if same else self._clock.wall()
        self._status = CameraStatus(self._status.camera, state, reason, since_s)
        return self._status


class DamageShare:
    """Share of damaged pictures over the last seconds, in buckets of a second."""

    def __init__(self) -> None:
        self._buckets: deque[list[int]] = deque()  # [second, pictures, damaged]
        self._last_damage_s = float("-inf")

    def add(self, now_s: float, damaged: bool, count: int = 1) -> None:
        """``count`` pictures at this moment."""
        second = int(now_s)
        if not self._buckets or self._buckets[-1][0] != second:
            self._buckets.append([second, 0, 0])
        self._buckets[-1][1] += count
        if damaged:
            self._buckets[-1][2] += count
            self._last_damage_s = now_s
        while self._buckets[0][0] < second - DEGRADED_WINDOW_S:
            self._buckets.popleft()

    def share(self, now_s: float) -> float:
        """Damaged of all, 0..1."""
        recent = [bucket for bucket in self._buckets if bucket[0] >= now_s - DEGRADED_WINDOW_S]
        pictures = sum(bucket[1] for bucket in recent)
        return sum(bucket[2] for bucket in recent) / pictures if pictures else 0.0

    def bad(self, now_s: float) -> bool:
        """Enough damage to say so."""
        if now_s - self._last_damage_s > 1.0:
            return False
        damaged = sum(bucket[2] for bucket in self._buckets)
        return damaged >= DEGRADED_LEAST and self.share(now_s) >= DEGRADED_SHARE

    def calm(self, now_s: float) -> bool:
        """No damage for a whole window."""
        return now_s - self._last_damage_s > DEGRADED_WINDOW_S


class LineGate:
    """Which changes of state get a line in the log: news at once, floods and repeats rarely.

    A bucket of ten lines, refilled by one a minute, bounds a camera that flaps; the number of
    lines left out is told with the next one. An unchanged trouble is said again every ten
    minutes.
    """

    def __init__(self, lines: int = 10, refill_s: float = 60.0) -> None:
        self._most = float(lines)
        self._refill_s = refill_s
        self._tokens = float(lines)
        self._refilled_s: float | None = None
        self._last_line_s = float("-inf")
        self.left_out = 0

    def news(self, now_s: float) -> bool:
        """A change: whether to write it. After True, ``left_out`` is what was kept silent."""
        if not self.has_room(now_s):
            self.left_out += 1
            return False
        self._tokens -= 1.0
        self._last_line_s = now_s
        return True

    def has_room(self, now_s: float) -> bool:
        """Whether a line would be written now."""
        if self._refilled_s is not None:
            gained = (now_s - self._refilled_s) / self._refill_s
            self._tokens = min(self._most, self._tokens + gained)
        self._refilled_s = now_s
        return self._tokens >= 1.0

    def reminder(self, now_s: float) -> bool:
        """The same trouble again: whether it is time to say so."""
        if now_s - self._last_line_s < REMIND_S:
            return False
        self._last_line_s = now_s
        return True
