"""What the capture of one camera needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CameraSettings:
    """What the capture of one camera needs to know.

    Attributes:
        name: Unique; a topic level.
        source: URL, path, ``synthetic://...``, or the number of a local device.
        username, password: Encoded into the URL only when it is opened; never shown.
        reader: ``auto``, ``rtsp``, ``pyav``, ``opencv`` or ``synthetic``.
        realtime: Play a file at its own pace (True) or as fast as it can be read.
        loop: Begin a file again at its end.
        fps_limit: Most frames a second; those beyond are not captured at all. None: all.
        stall_s: No picture for so long is a stall.
        start_s: The first picture has to come within this after the attempt began.
        transport: ``tcp`` or ``udp``, for RTSP.
        budget_s: A frame that is later than this on arrival is missed or stale.
        decoder: ``cpu`` or ``cuda``; what cannot be had falls back to ``cpu`` and says so.
        skip: ``none``, or ``nonref``: under overload, pictures on which no other is built are
            not decoded.
        crop: x1, y1, x2, y2 in shares of the upright picture: the camera shows only this part.
    """

    name: str
    source: str | int = field(repr=False)  # a URL may hold a login
    username: str = ""
    password: str = field(default="", repr=False)
    reader: str = "auto"
    realtime: bool = True
    loop: bool = False
    fps_limit: float | None = None
    stall_s: float = 5.0
    start_s: float = 10.0
    transport: str = "tcp"
    budget_s: float = 0.033
    decoder: str = "cpu"
    skip: str = "none"
    crop: tuple[float, float, float, float] | None = None
