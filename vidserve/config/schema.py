"""The schema: every key, its bounds and its meaning, in one place.

All models are frozen and refuse unknown keys. The fields take scalars as they stand in the
file (``values.Scalar``) or plain Python values. ``Config.camera`` answers what holds for one
camera after defaults and overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    Tag,
    model_validator,
)

from vidserve.config import checks
from vidserve.config.effective import CameraSettings
from vidserve.config.fields import (
    MAP,
    ONE,
    AsText,
    AsTuple,
    ByShape,
    CameraName,
    Confidence,
    Crop,
    Flag,
    ImageSizes,
    InputShape,
    Interval,
    Labels,
    Number,
    Optional,
    Polygons,
    Port,
    Present,
    Secret,
    Section,
    SourceField,
    Text,
    Timeout,
    Whole,
)
from vidserve.config.values import to_flag, wrong, wrong_all


class _Model(BaseModel):
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False
    )


class DetectorConfig(_Model):
    """The one detector that all cameras share."""

    model: Text = Field(default="yolo26n.pt", description="Ultralytics detector: a name or a path.")
    device: Annotated[Text, checks.validator(checks.device)] = Field(
        default="auto", description="auto, cpu, cuda, cuda:N, mps, intel:cpu|gpu|npu."
    )
    image_size: ImageSizes = Field(
        default=(640,),
        description="Longest side of the model's input in pixels; a list, largest first: smaller "
        "ones are used under overload.",
    )
    buckets: Annotated[tuple[InputShape, ...], AsTuple, Field(max_length=16)] = Field(
        default=(), description="The only input shapes to use, such as [640x384]; absent: any."
    )
    confidence: Confidence = Field(
        default=0.35, description="Least score that is published; or a map label -> least score."
    )
    classes: Annotated[Labels | None, Optional] = Field(
        default=None, description="Labels to publish; absent: all of the model."
    )
    backend: Annotated[Literal["auto", "torch"], AsText] = Field(
        default="auto", description="auto or torch: both run a .pt in PyTorch in this version."
    )


class BatchConfig(_Model):
    """Bounds of a batch."""

    max: Annotated[Whole, Field(ge=1, le=256)] = Field(
        default=8, description="Most frames in a batch."
    )
    target: Annotated[Whole, Field(ge=1, le=256)] = Field(
        default_factory=lambda data: min(4, data.get("max", 4)),
        description="A batch of this size does not wait for more.",
    )
    wait_ms: Annotated[Number, Field(ge=0, le=1000)] = Field(
        default=15.0, description="Longest wait for a batch to fill, in milliseconds."
    )
    max_pixels: Annotated[Annotated[Whole, Field(ge=1024, le=10**10)] | None, Optional] = Field(
        default=None, description="Most input pixels in a batch; absent: no bound."
    )

    @model_validator(mode="after")
    def _target_fits(self) -> Self:
        if self.target > self.max:
            raise wrong(f"must be at most max ({self.max})", "target")
        return self


class SchedulingConfig(_Model):
    """When frames go to the detector."""

    budget_ms: Annotated[Number, Field(ge=1, le=10_000)] = Field(
        default=33.0, description="From capture to answer, in milliseconds."
    )
    keyframe_interval: Interval = Field(
        default=5, description="Every n-th frame is meant for the detector."
    )
    max_gap_s: Annotated[Number, Field(ge=0.1, le=3600)] = Field(
        default=2.0, description="Longest time between two detections of a camera, in seconds."
    )
    batch: Annotated[BatchConfig, Section] = Field(
        default=BatchConfig(), description="Bounds of a batch."
    )
    control: Flag = Field(default=True, description="Lengthen the intervals under overload.")


class TrackingConfig(_Model):
    """How long tracks live."""

    lost_s: Annotated[Number, Field(ge=0, le=600)] = Field(
        default=2.0, description="How long a lost track is kept, unpublished, in seconds."
    )
    history_s: Annotated[Number, Field(ge=0.1, le=60)] = Field(
        default=1.0, description="How late a detection may still correct the tracker, in seconds."
    )
    flow: Flag = Field(default=True, description="Carry boxes by optical flow.")


class TlsConfig(_Model):
    """TLS to the broker. Files are relative to the config file."""

    ca: Annotated[Text | None, Optional] = Field(
        default=None, description="File of the authorities to trust; absent: the system's."
    )
    cert: Annotated[Text | None, Optional] = Field(
        default=None, description="File of our certificate."
    )
    key: Annotated[Text | None, Optional] = Field(
        default=None, description="File of its private key."
    )
    insecure: Flag = Field(default=False, description="Do not check the broker's name.")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise wrong("cert and key belong together", "cert" if self.cert else "key")
        return self


def _tls(value: Any) -> Any:
    if isinstance(value, dict | TlsConfig):
        return value
    return {} if to_flag(value) else None


class MqttConfig(_Model):
    """The broker: an own one on loopback (``embedded``) or one that runs elsewhere."""

    embedded: Flag = Field(default=False, description="Start a broker on loopback, for trials.")
    host: Annotated[Text, checks.validator(checks.host)] = Field(
        default="localhost", description="Name or address of the broker."
    )
    tls: Annotated[TlsConfig | None, BeforeValidator(_tls)] = Field(
        default=None, description="true, or {ca, cert, key, insecure}."
    )
    port: Port = Field(
        default_factory=lambda data: 8883 if data.get("tls") else 1883,
        description="1883, with TLS 8883; embedded: a free port unless one is given.",
    )
    username: Annotated[Text | None, Optional] = Field(default=None, description="Of the login.")
    password: Annotated[Secret | None, Optional] = Field(
        default=None, description="Best as ${VARIABLE}; never shown."
    )
    password_file: Annotated[Text | None, Optional] = Field(
        default=None, description="File whose first line is the password."
    )
    prefix: Annotated[Text, checks.validator(checks.prefix)] = Field(
        default="vidserve", description="First level or levels of all topics."
    )
    client_id: Annotated[Annotated[Text, Field(max_length=64)] | None, Optional] = Field(
        default=None, description="Absent: made up, so that two daemons never share one."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = self.model_fields_set
        found = checks.one_password(self.password, self.password_file, self.username)
        if self.embedded:
            found = [
                (key, "has no meaning for the embedded broker: remove it")
                for key in ("host", "tls", "username", "password", "password_file")
                if key in given and getattr(self, key) is not None
            ]
        if found:
            raise wrong_all(found)
        return self

    @property
    def embedded_port(self) -> int | None:
        """The port asked for the embedded broker; None: any free one."""
        return self.port if "port" in self.model_fields_set else None


class JsonlOutput(_Model):
    """Messages as lines of JSON in a file."""

    jsonl: Text = Field(description="File to append to; relative to the config file.")


OutputConfig: TypeAlias = Annotated[
    Annotated[Literal["mqtt"], AsText, Tag(ONE)] | Annotated[JsonlOutput, Tag(MAP)],
    ByShape,
]


class HistoryConfig(_Model):
    """Recorded statistics (SQLite)."""

    path: Text = Field(description="File of the database; relative to the config file.")
    keep_days: Annotated[Number, Field(gt=0, le=3650)] = Field(
        default=30.0, description="Older records are removed; days."
    )


class StatsConfig(_Model):
    """Live statistics."""

    interval_s: Annotated[Number, Field(ge=0.5, le=3600)] = Field(
        default=5.0, description="How often the snapshot is published, in seconds."
    )


class WebConfig(_Model):
    """The web page."""

    host: Annotated[Text, checks.validator(checks.host)] = Field(
        default="127.0.0.1", description="Address to listen on."
    )
    port: Port = Field(default=8080, description="TCP port to listen on.")


class PublishLimit(_Model):
    """At most so many messages a second."""

    max_per_s: Annotated[Number, Field(gt=0, le=1000)] = Field(description="Messages a second.")


Publish: TypeAlias = Annotated[
    Annotated[Literal["every_frame", "on_change"], AsText, Tag(ONE)]
    | Annotated[PublishLimit, Tag(MAP)],
    ByShape,
]


def _from_source(what: str) -> Callable[[dict[str, Any]], Any]:
    def value(data: dict[str, Any]) -> Any:
        return getattr(data.get("source"), what, None)

    return value


class CameraConfig(_Model):
    """One camera's block, as written. What holds after defaults: ``Config.camera``."""

    source: SourceField = Field(
        description="URL, file (relative to the config file), /dev/videoN, a device number, or "
        "synthetic://?width=640&height=360&fps=30&objects=3."
    )
    username: Annotated[Text | None, Optional] = Field(
        default_factory=_from_source("username"), description="Encoded by us; also in the URL."
    )
    password: Annotated[Secret | None, Optional] = Field(
        default_factory=_from_source("password"), description="Best as ${VARIABLE}."
    )
    password_file: Annotated[Text | None, Optional] = Field(
        default=None, description="File whose first line is the password."
    )
    enabled: Flag = Field(default=True, description="false: known, but not run.")
    confidence: Annotated[Confidence | None, Optional] = Field(
        default=None, description="As in detector; wins for this camera."
    )
    classes: Annotated[Labels | None, Optional] = Field(
        default=None, description="As in detector; wins for this camera."
    )
    min_box_px: Annotated[Number, Field(ge=0, le=10_000)] = Field(
        default=0.0, description="Boxes whose shorter side is below this many pixels are dropped."
    )
    ignore: Polygons = Field(
        default=(), description="Polygons in shares of width and height; a foot inside is dropped."
    )
    weight: Annotated[Number, Field(ge=0, le=1000)] = Field(
        default=1.0, description="Share of the detector's time, relative to the other cameras."
    )
    realtime: Flag = Field(default=True, description="Files: paced by their timestamps.")
    loop: Flag = Field(default=False, description="Files: begin again at the end.")
    image_size: Annotated[ImageSizes | None, Optional] = Field(
        default=None, description="As in detector; wins for this camera."
    )
    fps: Annotated[Annotated[Number, Field(gt=0, le=1000)] | None, Optional] = Field(
        default=None, description="Most frames per second that are taken; absent: all."
    )
    keyframe_interval: Annotated[Interval | None, Optional] = Field(
        default=None, description="As in scheduling; wins for this camera."
    )
    stall_s: Timeout = Field(
        default=5.0, description="Seconds without a frame until it is stalled."
    )
    start_s: Timeout = Field(default=10.0, description="Seconds that connecting may take.")
    reader: Annotated[Literal["auto", "rtsp", "pyav", "opencv", "synthetic"], AsText] = Field(
        default="auto",
        description="auto: OpenCV for devices, an own reader for RTSP where it can, else PyAV.",
    )
    transport: Annotated[Literal["tcp", "udp"], AsText] = Field(
        default="tcp", description="For RTSP."
    )
    decoder: Annotated[Literal["cpu", "cuda"], AsText] = Field(
        default="cpu", description="cuda: decoded by the GPU."
    )
    skip: Annotated[Literal["none", "nonref"], AsText] = Field(
        default="none", description="nonref: frames that no other needs are not decoded."
    )
    crop: Annotated[Crop | None, Optional] = Field(
        default=None,
        description="x1, y1, x2, y2 in shares of width and height: the camera is that part then.",
    )
    publish: Publish = Field(default="every_frame", description="or on_change, or {max_per_s: n}.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found = checks.one_password(self.password, self.password_file, self.username)
        if self.source.username is not None or self.source.password is not None:
            found = [
                (key, "is given twice: here and in the URL of source")
                for key in ("username", "password", "password_file")
                if key in self.model_fields_set and getattr(self, key) is not None
            ]
        if self.reader != "auto" and (
            (self.source.kind == "synthetic") != (self.reader == "synthetic")
        ):
            found.append(("reader", f"{self.reader} cannot read this source: write auto"))
        if self.reader == "opencv" and self.source.kind != "device":
            raise wrong("opencv reads local devices only: write auto", "reader")
        if self.reader == "rtsp" and not self.speaks_rtsp_over_tcp:
            raise wrong("rtsp reads rtsp:// over tcp only: write auto", "reader")
        if self.transport == "udp" and not self.source.shown.lower().startswith("rtsp"):
            found.append(("transport", "is for RTSP: this source has no such choice"))
        if self.decoder != "cpu" and self.source.kind in ("device", "synthetic"):
            found.append(("decoder", "is for files and URLs: this source is not decoded by it"))
        if self.crop is not None and self.source.kind == "synthetic":
            found.append(("crop", "has no use here: give the synthetic camera another size"))
        if self.crop is not None:
            x1, y1, x2, y2 = self.crop
            if not (x1 < x2 and y1 < y2):
                found.append(("crop", "must be [x1, y1, x2, y2] with x1 < x2 and y1 < y2"))
        if found:
            raise wrong_all(found)
        return self

    @property
    def speaks_rtsp_over_tcp(self) -> bool:
        """Whether our own reader may be asked."""
        url = self.source.kind == "url" and self.source.shown.lower().startswith("rtsp://")
        return url and self.transport == "tcp"


def _outputs_default(data: dict[str, Any]) -> tuple[Literal["mqtt"], ...]:
    return ("mqtt",) if data.get("mqtt") is not None else ()


class Config(_Model):
    """The whole file. ``cameras`` holds the good ones only."""

    detector: Annotated[DetectorConfig, Section] = Field(
        default=DetectorConfig(), description="The detector."
    )
    scheduling: Annotated[SchedulingConfig, Section] = Field(
        default=SchedulingConfig(), description="When it is used."
    )
    tracking: Annotated[TrackingConfig, Section] = Field(
        default=TrackingConfig(), description="How long tracks live."
    )
    mqtt: Annotated[MqttConfig | None, Present] = Field(
        default=None, description="Absent: no MQTT."
    )
    outputs: Annotated[tuple[OutputConfig, ...], AsTuple] = Field(
        default_factory=_outputs_default,
        description="mqtt, {jsonl: PATH}; absent: [mqtt] if there is an mqtt section.",
    )
    history: Annotated[HistoryConfig | None, Present] = Field(
        default=None, description="Absent: none."
    )
    stats: Annotated[StatsConfig, Section] = Field(
        default=StatsConfig(), description="Live statistics."
    )
    web: Annotated[WebConfig | None, Present] = Field(default=None, description="Absent: no page.")
    cameras: Annotated[dict[CameraName, CameraConfig], Section] = Field(
        default_factory=dict, description="Name -> camera; a name is a topic level."
    )

    _base_dir: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "mqtt" in self.outputs and self.mqtt is None:
            raise wrong(
                "lists mqtt, but there is no mqtt section (mqtt: {host: localhost} or "
                "mqtt: {embedded: true})",
                "outputs",
            )
        limit = self.scheduling.batch.max_pixels
        smallest = min(self.detector.buckets, key=lambda bucket: bucket.pixels, default=None)
        if limit is not None and smallest is not None and smallest.pixels > limit:
            raise wrong(
                f"holds buckets of which the smallest, {smallest}, has {smallest.pixels} pixels: "
                f"more than scheduling.batch.max_pixels, {limit}",
                "detector",
            )
        names = [x.jsonl if isinstance(x, JsonlOutput) else x for x in self.outputs]
        if len(set(names)) < len(names):
            raise wrong("names one output twice", "outputs")
        return self

    @property
    def base_dir(self) -> Path:
        """Folder of the config file: relative paths in it begin there."""
        return self._base_dir

    def at(self, base_dir: Path) -> Self:
        """The same config, seen from another folder."""
        copy = self.model_copy()
        copy._base_dir = base_dir
        return copy

    def with_cameras(self, cameras: dict[str, CameraConfig]) -> Self:
        """The same config with other (validated) cameras."""
        return self.model_copy(update={"cameras": cameras})

    def path(self, text: str) -> Path:
        """A path of the file as an absolute one. The only place that resolves them."""
        return self._base_dir / text

    def camera(self, name: str) -> CameraSettings:
        """What holds for one camera after defaults and overrides. KeyError: no such camera."""
        return CameraSettings(name, self.cameras[name], self)
