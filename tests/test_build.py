"""From the config to the parts: what a number in the file becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import write_config
from vidserve import build
from vidserve.clock import ManualClock
from vidserve.config import Config, load
from vidserve.errors import ConfigError, ModelNotFoundError
from vidserve.publishing.rate import PublishMode

NAMES = {0: "person", 1: "bicycle", 2: "car"}


def configured(folder: Path, text: str) -> Config:
    result = load(write_config(folder, text), {"SECRET": "s3cr3t"})
    assert result.config is not None, result.problems
    return result.config


@pytest.mark.parametrize(
    ("text", "lowest"),
    [
        ("cameras: {}", 0.1),
        ("detector: {confidence: 0.05}", 0.05),
        ("detector: {confidence: {car: 0.07, person: 0.5}}", 0.07),
        ("cameras: {a: {source: x, confidence: 0.02}, b: {source: y}}", 0.02),
        ("cameras: {a: {source: x, confidence: {car: 0.03}}}", 0.03),
    ],
)
def test_the_detector_gives_what_the_lowest_threshold_needs(
    tmp_path: Path, text: str, lowest: float
) -> None:
    assert build._lowest_wanted(configured(tmp_path, text)) == lowest


def test_a_cameras_policy_is_in_class_ids(tmp_path: Path) -> None:
    config = configured(
        tmp_path,
        """
detector: {confidence: 0.4, classes: [person, car]}
tracking: {lost_s: 3}
cameras:
  a: {source: x, confidence: {person: 0.6}, publish: {max_per_s: 5}}
  b: {source: y, classes: [bicycle], publish: on_change}
""",
    )
    a, b = (build.camera_policy(config, name, NAMES) for name in ("a", "b"))
    assert a.tracker.confidence == {0: 0.6, 2: 0.4}
    assert a.tracker.lost_s == 3
    assert list(a.labels) == ["person", "car"]
    assert (a.publish.mode, a.publish.max_per_s) == (PublishMode.MAX_PER_S, 5)
    assert b.tracker.confidence == {1: 0.4}
    assert b.publish.mode is PublishMode.ON_CHANGE


def test_logins_reach_capture_and_broker_and_no_repr(tmp_path: Path) -> None:
    config = configured(
        tmp_path,
        """
mqtt: {host: broker, username: me, password: "${SECRET}", tls: true}
cameras: {a: {source: "rtsp://h/1", username: joe, password: "${SECRET}", fps: 5}}
""",
    )
    camera, broker = build.camera_settings(config, "a"), build.mqtt_settings(config)
    assert (camera.username, camera.password, camera.fps_limit) == ("joe", "s3cr3t", 5)
    assert (broker.password, broker.tls, broker.port) == ("s3cr3t", True, 8883)
    assert "s3cr3t" not in repr(camera) + repr(broker) + repr(config)


def test_milliseconds_become_seconds(tmp_path: Path) -> None:
    text = "scheduling: {budget_ms: 50, max_gap_s: 3, batch: {target: 2, max: 6, wait_ms: 5}}"
    settings = build.scheduler_settings(configured(tmp_path, text))
    assert (settings.budget_s, settings.max_gap_s, settings.wait_s) == (0.05, 3, 0.005)
    assert (settings.batch_target, settings.batch_max, settings.control) == (2, 6, True)


def test_what_cannot_be_made_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"fetch-model none\.pt"):
        build.detector_factory(configured(tmp_path, "detector: {model: none.pt}"), ManualClock())
    with pytest.raises(ConfigError, match="fake:x"):
        build.detector_factory(configured(tmp_path, "detector: {model: 'fake:x'}"), ManualClock())
