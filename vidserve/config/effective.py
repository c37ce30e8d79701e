"""What holds for one camera after defaults and overrides: the one place that answers it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import SecretStr

from vidserve.config.source import SourceKind

if TYPE_CHECKING:
    from vidserve.config.schema import CameraConfig, Config

DEFAULT_CONFIDENCE = 0.35
"""For labels that a map of the detector section does not name."""


@dataclass(frozen=True)
class CameraSettings:
    """One camera's settings. Settings without an override are read from ``own``.

    Attributes:
        name: The camera's name.
        own: Its block: ``fps``, ``weight``, ``loop``, ``stall_s``, ``publish`` ...
    """

    name: str
    own: CameraConfig
    _config: Config = field(repr=False)

    @property
    def kind(self) -> SourceKind:
        """url, file, device or synthetic."""
        return self.own.source.kind

    @property
    def source(self) -> str | int:
        """What to open: URL without login, absolute path, or device number. Do not print it."""
        return self.own.source.resolved(self._config.path)

    @property
    def shown_source(self) -> str:
        """The source for logs, reports and topics: no credentials, no tokens."""
        return self.own.source.shown

    @property
    def username(self) -> str | None:
        """Of the login, not encoded."""
        return self.own.username

    @property
    def password(self) -> SecretStr | None:
        """Of the login, not encoded; from the config, the URL or the password file."""
        return self.own.password

    @property
    def reader(self) -> Literal["auto", "rtsp", "pyav", "opencv", "synthetic"]:
        """Who opens the source. ``auto`` stays only where the stream itself has to be asked:
        for RTSP over TCP, which our own reader takes, or else PyAV.
        """
        if self.own.reader != "auto":
            return self.own.reader
        if self.kind == "synthetic":
            return "synthetic"
        if self.kind == "device":
            return "opencv"
        return "auto" if self.own.speaks_rtsp_over_tcp else "pyav"

    @property
    def keyframe_interval(self) -> int:
        """In frames."""
        own = self.own.keyframe_interval
        return self._config.scheduling.keyframe_interval if own is None else own

    @property
    def image_size(self) -> tuple[int, ...]:
        """Long sides of the detector's input in pixels, largest first."""
        own = self.own.image_size
        return self._config.detector.image_size if own is None else own

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Labels to publish; None: all. The camera's list replaces the detector's."""
        own = self.own.classes
        return self._config.detector.classes if own is None else own

    def wants(self, label: str) -> bool:
        """Whether objects of this label are published."""
        return self.classes is None or label in self.classes

    def confidence(self, label: str) -> float:
        """Least score at which this label is published.

        The camera's map, then the camera's number, then the same of the detector.
        """
        for level in (self.own.confidence, self._config.detector.confidence):
            if isinstance(level, dict):
                if label in level:
                    return level[label]
            elif level is not None:
                return level
        return DEFAULT_CONFIDENCE

    def lowest_confidence(self, labels: Iterable[str]) -> float:
        """Least of ``confidence`` over the wanted ones of ``labels``."""
        return min(
            (self.confidence(label) for label in labels if self.wants(label)),
            default=DEFAULT_CONFIDENCE,
        )
