"""One capture thread end to end on synthetic cameras: frames, faults, supervision, stopping."""

from __future__ import annotations

import itertools
import logging
import threading
import time

import numpy as np
import pytest

from tests.lab.sink import CollectingSink, running
from vidserve.capture.camera import CameraSettings, CameraThread
from vidserve.capture.reader import Arrival, Reader
from vidserve.capture.source import open_reader
from vidserve.capture.synthetic import SyntheticReader, scene_of
from vidserve.clock import Clock, RealClock
from vidserve.errors import SourceUnauthorized
from vidserve.frames import Bucket, ByteArray, CameraState, DropReason, Frame, Letterbox


def test_a_synthetic_camera_plays_at_its_pace_and_its_slots_show_the_truth() -> None:
    url = "synthetic://?width=640&height=360&fps=30&objects=3&seed=5&duration_s=1.2"
    sink = CollectingSink(keyframe_every=5, keep_pixels=True)
    with running(sink, CameraSettings("gate", url)):
        sink.wait_state(CameraState.ENDED)
    assert sink.states() == [CameraState.CONNECTING, CameraState.RUNNING, CameraState.ENDED]
    sink.check_accounts("gate")
    frames = sink.of("gate")
    assert len(frames) + sum(drop[3] for drop in sink.drops) >= 36
    gaps = [
        b.captured_s - a.captured_s for a, b in itertools.pairwise(frames) if b.seq == a.seq + 1
    ]
    assert np.median(gaps) == pytest.approx(1 / 30, abs=1e-4)
    assert all(
        abs(f.wall_s - (time.time() - (time.monotonic() - f.captured_s))) < 5 for f in frames
    )
    assert sink.pixels
    scene = scene_of(url)
    geometry = Letterbox.fit(640, 360, sink.pool.bucket)
    first = frames[0].captured_s
    for (_, seq), pixels in sink.pixels.items():
        frame = next(f for f in frames if f.seq == seq)
        pts_s = round((frame.captured_s - first) * 30) / 30
        check_boxes(pixels, scene.truth(pts_s), geometry)


def check_boxes(pixels: ByteArray, boxes: np.ndarray, geometry: Letterbox) -> None:
    """The bright saturated pixels are those inside the boxes."""
    scale = geometry.inner_width / geometry.width
    spread = pixels.max(axis=2).astype(int) - pixels.min(axis=2)
    bright = (pixels.max(axis=2) > 96) & (spread > 80)
    expected = np.zeros_like(bright)
    for x1, y1, x2, y2 in boxes * scale:
        top, left = geometry.pad_top, geometry.pad_left
        expected[top + round(y1) : top + round(y2), left + round(x1) : left + round(x2)] = True
    # float32 rounding may move an edge that lies on a half by one pixel
    assert np.mean(bright != expected) < 0.02
    assert bright.any()


def test_the_scene_keeps_its_promises() -> None:
    scene = scene_of("synthetic://?objects=6&seed=9&width=333&height=217")
    spread = scene.colours.max(axis=1).astype(int) - scene.colours.min(axis=1)
    assert (spread > 80).all() and (scene.colours.max(axis=1) > 96).all()
    for t in np.arange(0, 60, 0.37):
        boxes = scene.truth(float(t))
        assert boxes.dtype == np.float32 and boxes.shape == (6, 4)
        assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] <= (333.01, 217.01)).all()
        assert (boxes[1:, 1] >= boxes[:-1, 3]).all()  # lanes
    moved = np.abs(scene.truth(1.0) - scene.truth(0.0)).max()
    assert 3.0 < moved < 333


def test_the_whole_picture_shows_the_same() -> None:
    clock = RealClock()
    reader = SyntheticReader("synthetic://?objects=2&seed=3", clock)
    reader.open()
    arrival = reader.read()
    assert arrival is not None
    bgr = arrival.picture.to_bgr()
    assert bgr.shape == (360, 640, 3)
    check_boxes(bgr, reader.scene.truth(0.0), Letterbox.fit(640, 360, Bucket(360, 640)))
    slot = np.empty((360, 640, 3), np.uint8)
    arrival.picture.write_letterbox(slot, Letterbox.fit(640, 360, Bucket(360, 640)))
    assert (slot == bgr[:, :, ::-1]).all()


def test_a_wrong_option_fails_with_its_name() -> None:
    sink = CollectingSink()
    with running(sink, CameraSettings("gate", "synthetic://?colour=red")):
        status = sink.wait_state(CameraState.FAILED)
    assert "'colour'" in status.reason


def test_as_fast_as_possible_and_looped() -> None:
    url = "synthetic://?duration_s=10&fps=30"
    sink = CollectingSink()
    with running(sink, CameraSettings("gate", url, realtime=False)):
        sink.wait_state(CameraState.ENDED)
    assert len(sink.of("gate")) == 300 and not sink.drops
    looped = CollectingSink()
    with running(looped, CameraSettings("gate", url, realtime=False, loop=True)):
        looped.wait(lambda: len(looped.frames) > 700)
    assert CameraState.ENDED not in looped.states()
    looped.check_accounts("gate")


def test_the_fps_limit_takes_no_numbers() -> None:
    url = "synthetic://?duration_s=1&fps=30"
    sink = CollectingSink()
    with running(sink, CameraSettings("gate", url, fps_limit=10)):
        sink.wait_state(CameraState.ENDED)
    captured = len(sink.of("gate")) + sum(drop[3] for drop in sink.drops)
    assert 7 <= captured <= 12
    sink.check_accounts("gate")


def test_damaged_pictures_get_no_slot_and_degrade_the_camera() -> None:
    sink = CollectingSink(keyframe_every=1)
    with running(sink, CameraSettings("gate", "synthetic://?fps=60&corrupt_every=4")):
        status = sink.wait_state(CameraState.DEGRADED)
        sink.wait(lambda: any(frame.corrupt for frame in sink.frames))
    assert "damaged" in status.reason
    assert all(frame.slot is None for frame in sink.frames if frame.corrupt)
    assert any(frame.slot is not None for frame in sink.frames)
    sink.check_accounts("gate")


def test_a_lost_connection_is_made_again_and_numbers_go_on() -> None:
    sink = CollectingSink()
    with running(sink, CameraSettings("gate", "synthetic://?fps=50&fail_after_s=0.2")):
        sink.wait(lambda: sink.states().count(CameraState.RUNNING) >= 3)
    assert sink.states()[:4] == [
        CameraState.CONNECTING,
        CameraState.RUNNING,
        CameraState.CONNECTING,
        CameraState.RUNNING,
    ]
    assert "connection lost" in sink.statuses[2].reason
    sink.check_accounts("gate")


def test_a_hanging_read_is_a_stall_and_is_aborted() -> None:
    settings = CameraSettings("gate", "synthetic://?fps=50&hang_after_s=0.2", stall_s=0.5)
    sink = CollectingSink()
    with running(sink, settings) as (camera,):
        status = sink.wait_state(CameraState.STALLED)
        sink.wait(lambda: sink.states().count(CameraState.RUNNING) >= 2)
        assert camera.given_up == 0
    assert status.reason == "no frame for 0.5 s"
    sink.check_accounts("gate")


def test_a_deaf_reader_is_given_up_replaced_and_cannot_speak_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vidserve.capture.camera.GRACE_S", 0.5)
    url = "synthetic://?fps=50&hang_after_s=0.2&deaf=1&hang_s=2"
    sink = CollectingSink(keyframe_every=2)
    with running(sink, CameraSettings("gate", url, stall_s=0.3)) as (camera,):
        sink.wait(lambda: sink.states().count(CameraState.RUNNING) >= 2)
        assert camera.given_up >= 1
        stop_began_s = time.monotonic()
        camera.request_stop()
        assert time.monotonic() - stop_began_s < 1.0
    sink.check_accounts("gate")


def test_given_up_threads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidserve.capture.camera.MOST_GIVEN_UP", 2)
    url = "synthetic://?fps=50&hang_after_s=0&deaf=1&hang_s=2.5"
    sink = CollectingSink()
    clock = RealClock()
    camera = CameraThread(CameraSettings("gate", url), sink, clock, open_reader)
    camera.start()
    until_s = clock.now() + 30.0
    while "2 readers hang" not in camera.status.reason:
        assert clock.now() < until_s
        camera.tick(clock.now() + 60.0)  # a minute on, all that is blocked is overdue
        time.sleep(0.02)
    for _ in range(5):
        camera.tick(clock.now() + 60.0)
    assert camera.given_up >= 2  # one may have been given up before it hung
    assert len([t for t in threading.enumerate() if t.name == "capture-gate"]) == 2
    assert not sink.frames
    camera.request_stop()
    assert camera.join(20.0)


class Refusing(SyntheticReader):
    """A camera with another password."""

    attempts = 0

    def open(self) -> None:
        type(self).attempts += 1
        raise SourceUnauthorized("the camera refused the login: check username and password")


def test_a_refused_login_is_retried_slowly(caplog: pytest.LogCaptureFixture) -> None:
    sink = CollectingSink()
    Refusing.attempts = 0
    with (
        caplog.at_level(logging.INFO),
        running(
            sink,
            CameraSettings("gate", "synthetic://"),
            factory=lambda settings, clock: Refusing("synthetic://", clock),
        ),
    ):
        sink.wait_state(CameraState.UNAUTHORIZED)
        time.sleep(1.0)  # long enough for the ordinary backoff to try again
    assert Refusing.attempts == 1
    assert len([r for r in caplog.records if "unauthorized" in r.getMessage()]) == 1


class Broken(SyntheticReader):
    """A reader with a bug that shows a password."""

    def read(self) -> Arrival | None:
        raise ZeroDivisionError("division by rtsp://joe:s3cret@host and s3cret")


def test_an_unknown_exception_is_a_state_and_no_secret_leaks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = CollectingSink()
    settings = CameraSettings("gate", "synthetic://", username="joe", password="s3cret")
    with running(sink, settings, factory=lambda settings, clock: Broken("synthetic://", clock)):
        status = sink.wait_state(CameraState.FAILED)
    assert "ZeroDivisionError" in status.reason
    assert "s3cret" not in status.reason and "s3cret" not in caplog.text
    assert "s3cret" not in repr(settings)
    assert "Traceback" in caplog.text


class Unconvertible:
    """A picture that cannot be converted."""

    width, height, rotation, corrupt = 64, 48, 0, False

    def write_letterbox(self, pixels: ByteArray, geometry: Letterbox) -> None:
        raise ValueError("no such pixel format")

    def grey(self, side_limit: int) -> ByteArray:
        raise ValueError("no such pixel format")

    def to_bgr(self) -> ByteArray:
        raise ValueError("no such pixel format")


class UnconvertibleReader(SyntheticReader):
    def read(self) -> Arrival | None:
        arrival = super().read()
        if arrival is None:
            return None
        return Arrival(Unconvertible(), arrival.received_s, arrival.pts_s, arrival.waited_s)


def test_a_conversion_error_drops_the_frame_and_keeps_the_slot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = "synthetic://?duration_s=1&fps=30"
    sink = CollectingSink(keyframe_every=3)
    with running(
        sink,
        CameraSettings("gate", url, realtime=False),
        factory=lambda settings, clock: UnconvertibleReader(url, clock),
    ):
        sink.wait_state(CameraState.ENDED)
    assert [drop[2] for drop in sink.drops] == [DropReason.INVALID] * 10
    assert len(sink.frames) == 20
    assert caplog.text.count("cannot be converted") == 1
    sink.check_accounts("gate")


class LiveReader(SyntheticReader):
    """A live source that sends 30 frames a second into a buffer, whether we read or not."""

    live = True

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock)
        self._began_s = 0.0

    def open(self) -> None:
        super().open()
        self._began_s = self._clock.now()

    def read(self) -> Arrival | None:
        arrival = super().read()
        if arrival is None or arrival.pts_s is None:
            return arrival
        came_s = self._began_s + arrival.pts_s
        began_s = self._clock.now()
        self._clock.sleep_until(came_s)
        now_s = self._clock.now()
        return Arrival(arrival.picture, now_s, arrival.pts_s + 777.0, now_s - began_s)


class SleepySink(CollectingSink):
    """Holds the capture thread up once, for a second."""

    def frame(self, frame: Frame) -> None:
        super().frame(frame)
        if len(self.frames) == 30:
            time.sleep(1.0)


def test_a_late_thread_on_a_live_source_drops_the_stale_and_ages_stay_bounded() -> None:
    url = "synthetic://?fps=30&duration_s=2.8"
    sink = SleepySink()
    with running(
        sink,
        CameraSettings("gate", url),
        factory=lambda settings, clock: LiveReader(url, clock),
    ):
        sink.wait(lambda: sum(d[3] for d in sink.drops) + len(sink.frames) >= 84)
    stale = [drop for drop in sink.drops if drop[2] is DropReason.STALE]
    assert len(stale) >= 15
    # Once the backlog is read away, what is delivered is fresh again.
    assert all(f.ready_s - f.captured_s < 0.33 for f in sink.frames)
    assert len(sink.frames) + len(stale) >= 80
    sink.check_accounts("gate")


class SlowSink(CollectingSink):
    """Takes three frame periods for each frame."""

    def frame(self, frame: Frame) -> None:
        super().frame(frame)
        time.sleep(0.1)


def test_a_slow_consumer_of_a_live_source_never_builds_a_queue() -> None:
    url = "synthetic://?fps=30&duration_s=100"
    sink = SlowSink()
    with running(
        sink,
        CameraSettings("gate", url),
        factory=lambda settings, clock: LiveReader(url, clock),
    ):
        sink.wait(lambda: len(sink.frames) >= 15)
    assert any(drop[2] is DropReason.STALE for drop in sink.drops)
    assert all(f.ready_s - f.captured_s < 0.33 for f in sink.frames)
    # The age does not grow: two seconds of source in two seconds of time.
    assert sink.frames[-1].seq >= 2.0 * len(sink.frames)


def test_dead_cameras_do_not_delay_a_good_one() -> None:
    dead = [
        CameraSettings(f"dead{i}", "synthetic://?hang_after_s=0&deaf=1&hang_s=1.5", start_s=1.0)
        for i in range(3)
    ]
    sink = CollectingSink()
    began_s = time.monotonic()
    with running(sink, *dead, CameraSettings("good", "synthetic://?fps=30")):
        sink.wait_state(CameraState.RUNNING, "good")
        assert time.monotonic() - began_s < 3.0
        sink.wait(lambda: len(sink.of("good")) > 20)


def test_stopping_while_waiting_to_try_again() -> None:
    sink = CollectingSink()
    settings = CameraSettings("gate", "synthetic://?nonsense=1")
    with running(sink, settings) as (camera,):
        sink.wait_state(CameraState.FAILED)
        camera.request_stop()
        assert camera.join(5.0)


def test_many_cheap_cameras() -> None:
    """Invariants only: 32 cameras of 30 fps, every frame accounted for."""
    many = [
        CameraSettings(f"c{i}", f"synthetic://?fps=30&seed={i}&duration_s=1") for i in range(32)
    ]
    sink = CollectingSink(keyframe_every=10)
    with running(sink, *many):
        sink.wait(lambda: sink.states().count(CameraState.ENDED) == 32)
    for settings in many:
        frames = len(sink.of(settings.name))
        dropped = sum(d[3] for d in sink.drops if d[0] == settings.name)
        assert frames + dropped >= 30
        assert frames > 0
    assert sink.pool.in_use == 0


def test_readers_fit_the_protocol() -> None:
    reader: Reader = open_reader(CameraSettings("gate", "synthetic://"), RealClock())
    assert reader.live is False
    camera = CameraThread(
        CameraSettings("gate", "synthetic://"), CollectingSink(), RealClock(), open_reader
    )
    assert camera.status.state is CameraState.CONNECTING
