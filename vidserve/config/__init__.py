"""Config: one strict YAML file, errors with file, line and column.

``load`` reads a file; ``check`` is the command of that name; ``Config.camera(name)`` answers
what holds for one camera.
"""

from vidserve.config.check import check, check_labels, summary, verdict, warnings
from vidserve.config.effective import CameraSettings
from vidserve.config.load import NOT_YET, LoadResult, load
from vidserve.config.problems import Problem
from vidserve.config.schema import (
    BatchConfig,
    CameraConfig,
    Config,
    DetectorConfig,
    HistoryConfig,
    JsonlOutput,
    MqttConfig,
    PublishLimit,
    SchedulingConfig,
    StatsConfig,
    TlsConfig,
    TrackingConfig,
    WebConfig,
)
from vidserve.config.source import Source

__all__ = [
    "NOT_YET",
    "BatchConfig",
    "CameraConfig",
    "CameraSettings",
    "Config",
    "DetectorConfig",
    "HistoryConfig",
    "JsonlOutput",
    "LoadResult",
    "MqttConfig",
    "Problem",
    "PublishLimit",
    "SchedulingConfig",
    "Source",
    "StatsConfig",
    "TlsConfig",
    "TrackingConfig",
    "WebConfig",
    "check",
    "check_labels",
    "load",
    "summary",
    "verdict",
    "warnings",
]
