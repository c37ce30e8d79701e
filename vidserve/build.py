"""From the config to the parts of a run. The only place that knows both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from vidserve import __version__
from vidserve.capture.camera import CameraSettings
from vidserve.clock import Clock
from vidserve.config import Config
from vidserve.config.schema import JsonlOutput, PublishLimit
from vidserve.detection.detector import Detector
from vidserve.detection.fake import FakeDetector
from vidserve.detection.models import resolve_model, state_directory
from vidserve.detection.service_formula import parse_service
from vidserve.detection.sweep_cache import ServiceTimeCache
from vidserve.errors import ConfigError
from vidserve.pipeline import CameraPlace
from vidserve.publishing.broker import EmbeddedBroker
from vidserve.publishing.connection import MqttSettings
from vidserve.publishing.jsonl import JsonlOutput as JsonlWriter
from vidserve.publishing.mqtt import MqttOutput
from vidserve.publishing.output import Output
from vidserve.publishing.rate import PublishMode, PublishRule
from vidserve.scheduling.settings import SchedulerSettings
from vidserve.tracking.filtering import DetectionFilter
from vidserve.tracking.tracker import TrackerSettings
from vidserve.tracking_loop import CameraPolicy

logger = logging.getLogger(__name__)

FAKE_PREFIX = "fake:"
_LOW = 0.1


def scheduler_settings(config: Config) -> SchedulerSettings:
    """Limits of the scheduler, in seconds."""
    scheduling = config.scheduling
    return SchedulerSettings(
        budget_s=scheduling.budget_ms / 1000,
        max_gap_s=scheduling.max_gap_s,
        batch_target=scheduling.batch.target,
        batch_max=scheduling.batch.max,
        wait_s=scheduling.batch.wait_ms / 1000,
        max_pixels=scheduling.batch.max_pixels,
        control=scheduling.control,
    )


def camera_places(config: Config) -> dict[str, CameraPlace]:
    """What each camera asks of the detector."""
    return {
        name: CameraPlace(
            weight=camera.weight if camera.enabled else 0.0,
            interval_frames=config.camera(name).keyframe_interval,
            image_sizes=config.camera(name).image_size,
        )
        for name, camera in config.cameras.items()
    }


def camera_settings(config: Config, name: str) -> CameraSettings:
    """What the capture of one camera needs."""
    camera = config.camera(name)
    own = camera.own
    return CameraSettings(
        name=name,
        source=camera.source,
        username=camera.username or "",
        password=camera.password.get_secret_value() if camera.password is not None else "",
        reader=camera.reader,
        realtime=own.realtime,
        loop=own.loop,
        fps_limit=own.fps,
        stall_s=own.stall_s,
        start_s=own.start_s,
        transport=own.transport,
        budget_s=config.scheduling.budget_ms / 1000,
        decoder=own.decoder,
        skip=own.skip,
        crop=own.crop,
    )


def camera_policy(config: Config, name: str, names: Mapping[int, str]) -> CameraPolicy:
    """What holds for one camera's detections, in the model's class ids."""
    camera = config.camera(name)
    wanted = {class_id: label for class_id, label in names.items() if camera.wants(label)}
    return CameraPolicy(
        tracker=TrackerSettings(
            confidence={class_id: camera.confidence(label) for class_id, label in wanted.items()},
            low=min(_LOW, camera.lowest_confidence(wanted.values())),
            lost_s=config.tracking.lost_s,
            history_s=config.tracking.history_s,
        ),
        filter=DetectionFilter(
            classes=None if camera.classes is None else wanted,
            min_box_px=camera.own.min_box_px,
            ignore=camera.own.ignore,
        ),
        publish=_publish_rule(camera.own.publish),
        labels=camera.classes or (),
    )


def _publish_rule(publish: str | PublishLimit) -> PublishRule:
    if isinstance(publish, PublishLimit):
        return PublishRule(PublishMode.MAX_PER_S, max_per_s=publish.max_per_s)
    return PublishRule(PublishMode(publish))


def detector_factory(config: Config, clock: Clock) -> Callable[[], Detector]:
    """A function that loads the configured detector; for the detection thread.

    ``model: "fake:3+2n"`` gives the fake detector with that service time in milliseconds: it
    finds the coloured rectangles of synthetic cameras, for trials and benchmarks.

    Raises:
        ConfigError: a fake with a formula that is none.
        ModelNotFoundError: the model is not on disk.
    """
    detector = config.detector
    if detector.model.startswith(FAKE_PREFIX):
        service = detector.model.removeprefix(FAKE_PREFIX)
        try:
            parse_service(service)
        except ValueError as error:
            raise ConfigError(f"detector.model: {detector.model}: {error}") from None
        return lambda: FakeDetector(service, clock=clock)
    low = _lowest_wanted(config)
    # Found now, not in the detection thread: a missing model should be told before anything runs.
    model = str(resolve_model(detector.model, folders=[config.base_dir]))

    def load() -> Detector:
        from vidserve.detection.device import pick_device
        from vidserve.detection.threads import yield_to_cameras
        from vidserve.detection.ultralytics import UltralyticsDetector

        if not str(pick_device(detector.device)).startswith(("cuda", "mps")):
            # Before the model is loaded: its worker threads inherit the priority. A thread that
            # only feeds a GPU takes no time from the cameras.
            yield_to_cameras()
        return UltralyticsDetector(
            model,
            device=detector.device,
            low=low,
            max_batch_hint=config.scheduling.batch.max,
        )

    return load


def _lowest_wanted(config: Config) -> float:
    """From which score on the tracker may need a box: what carries tracks, or less if asked."""
    lowest = _LOW
    for confidence in (
        config.detector.confidence,
        *(c.confidence for c in config.cameras.values()),
    ):
        if isinstance(confidence, dict):
            lowest = min([lowest, *confidence.values()])
        elif confidence is not None:
            lowest = min(lowest, confidence)
    return lowest


def service_time_cache(config: Config) -> ServiceTimeCache | None:
    """Where measured service times are kept; none for a fake."""
    if config.detector.model.startswith(FAKE_PREFIX):
        return None
    return ServiceTimeCache(state_directory() / "service-times", __version__)


def broker(config: Config, clock: Clock) -> EmbeddedBroker | None:
    """The embedded broker, not started yet, if the config asks for one."""
    if config.mqtt is None or not config.mqtt.embedded:
        return None
    return EmbeddedBroker(config.mqtt.embedded_port, clock)


def outputs(config: Config, clock: Clock, embedded_port: int | None) -> list[Output]:
    """The configured outputs, not started yet.

    Args:
        config: With good outputs.
        clock: Tells the time.
        embedded_port: Where the embedded broker listens, if there is one.
    """
    made: list[Output] = []
    for output in config.outputs:
        if isinstance(output, JsonlOutput):
            made.append(JsonlWriter(config.path(output.jsonl), clock))
        else:
            made.append(MqttOutput(mqtt_settings(config, embedded_port), clock))
    return made


def mqtt_settings(config: Config, embedded_port: int | None = None) -> MqttSettings:
    """Where the broker is; config must have an mqtt section."""
    mqtt = config.mqtt
    if mqtt is None:
        raise ValueError("there is no mqtt section")
    if embedded_port is not None:
        return MqttSettings(host="127.0.0.1", port=embedded_port, prefix=mqtt.prefix)
    tls = mqtt.tls
    return MqttSettings(
        host=mqtt.host,
        port=mqtt.port,
        username=mqtt.username,
        password=None if mqtt.password is None else mqtt.password.get_secret_value(),
        prefix=mqtt.prefix,
        client_id=mqtt.client_id,
        tls=tls is not None,
        tls_ca=None if tls is None or tls.ca is None else config.path(tls.ca),
        tls_cert=None if tls is None or tls.cert is None else config.path(tls.cert),
        tls_key=None if tls is None or tls.key is None else config.path(tls.key),
        tls_insecure=False if tls is None else tls.insecure,
    )
