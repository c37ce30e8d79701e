"""The tracking thread: it owns all trackers and settles every frame.

Everything reaches it through one inbox, in the order it happened; everything leaves it as
messages to the outputs. No other thread decides what becomes of a frame.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vidserve.clock import Clock
from vidserve.events import BatchDone, BatchStarted, Drain, Event, FramesLost
from vidserve.frames import Answer, CameraStatus, DropReason, Frame, Regions, Thinning
from vidserve.gate import SchedulerGate
from vidserve.publishing.counts import Counts, count_labels
from vidserve.publishing.messages import answer_message, camera_status_message, event_message
from vidserve.publishing.output import Message, Output
from vidserve.publishing.rate import PublishRate, PublishRule
from vidserve.scheduling.answering import AnswerDesk
from vidserve.scheduling.thinning import ThinningControl
from vidserve.telemetry.quantile import RollingQuantile
from vidserve.telemetry.stats import CameraStats, RunStats
from vidserve.trace import Recorder
from vidserve.tracking.filtering import DetectionFilter
from vidserve.tracking.lives import Life, Lives
from vidserve.tracking.tracker import Tracker, TrackerSettings

logger = logging.getLogger(__name__)

IDLE_S = 0.25
_SIZE_TOLD_EVERY_S = 60.0
_AFTER_START_S, _AFTER_MIN_S, _AFTER_MAX_S = 0.004, 0.001, 0.012


@dataclass(frozen=True, slots=True)
class CameraPolicy:
    """How one camera's detections become published tracks.

    Attributes:
        tracker: Settings of its tracker.
        filter: What is dropped before tracking.
        publish: How often its answers are published.
        labels: Configured labels, for which counts are published from the start.
    """

    tracker: TrackerSettings = field(default_factory=TrackerSettings)
    filter: DetectionFilter = field(default_factory=DetectionFilter)
    publish: PublishRule = field(default_factory=PublishRule)
    labels: Sequence[str] = ()


class _Camera:
    """What the loop keeps of one camera."""

    def __init__(
        self, name: str, policy: CameraPolicy, stats: CameraStats, budget_s: float
    ) -> None:
        self.name = name
        self.policy = policy
        self.stats = stats
        self.tracker = Tracker(policy.tracker)
        self.lives = Lives()
        self.rate = PublishRate(policy.publish)
        self.thinning = ThinningControl(budget_s)
        self.regions: Regions | None = None
        self.doubt = 0.5
        self.forgotten_s = -math.inf
        self.size = (0, 0)
        self.size_told_s = -math.inf
        self.delivers = False


class TrackingLoop:
    """Owns trackers, answer desk, counts. Started when the detector is ready.

    Args:
        policies: By camera.
        names: Class names by id.
        label_slugs: Topic level of each label.
        gate: To the scheduler.
        inbox: Events in the order they happened.
        outputs: Where messages go; ``put`` never blocks.
        stats: Numbers of this run.
        clock: Tells the time.
        recorder: Keeps a trace of what happens.
        eyes: Where motion is to be measured, by camera; written here, read by capture threads.
            None: it is not measured.
    """

    def __init__(
        self,
        policies: Mapping[str, CameraPolicy],
        names: Mapping[int, str],
        label_slugs: Mapping[str, str],
        gate: SchedulerGate,
        inbox: queue.SimpleQueue[Event],
        outputs: Sequence[Output],
        stats: RunStats,
        clock: Clock,
        recorder: Recorder,
        eyes: dict[str, tuple[Regions | None, Thinning]] | None = None,
    ) -> None:
        self._eyes = eyes
        self._names = names
        self._recorder = recorder
        self._gate = gate
        self._inbox = inbox
        self._outputs = outputs
        self._clock = clock
        self._desk = AnswerDesk()
        self._counts = Counts(label_slugs)
        self._cameras = {
            name: _Camera(name, policy, stats.camera(name), stats.budget_s)
            for name, policy in policies.items()
        }
        self._after = RollingQuantile(0.99, 500)
        self._next_second_s = clock.now() + 1.0
        self._draining = False
        self._done_s: dict[tuple[str, int], float] = {}
        self.progress_s = clock.now()
        self.thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._handlers: dict[type, Callable[..., None]] = {
            Frame: self._frame,
            FramesLost: self._lost,
            CameraStatus: self._status,
            BatchStarted: self._batch_started,
            BatchDone: self._batch_done,
            Drain: self._drain,
        }

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def _run(self) -> None:
        now_s = self._clock.now()
        for camera in self._cameras.values():
            self._send(self._counts.add_camera(camera.name, camera.policy.labels, now_s))
        while not self._draining:
            try:
                self._step()
            except Exception:  # one bad event must not end the answers of all cameras
                logger.exception("internal error in the tracking loop, please report it")

    def _step(self) -> None:
        """Take events until none waits, then answer what is ready."""
        timeout_s = min(self._next_wake_s() - self._clock.now(), IDLE_S)
        try:
            event = self._inbox.get(timeout=max(timeout_s, 0.0)) if timeout_s > 0 else None
        except queue.Empty:
            event = None
        try:
            if event is None:
                event = self._inbox.get_nowait()
            while True:
                self._handlers[type(event)](event)
                # A long row of events must not hold up an answer that is due.
                if self._desk.next_wake_s() <= self._clock.now():
                    break
                event = self._inbox.get_nowait()
        except queue.Empty:
            pass
        self._answer_ready(self._clock.now())
        now_s = self.progress_s = self._clock.now()
        self._send(self._counts.due(now_s))
        if now_s >= self._next_second_s:
            self._next_second_s = now_s + 1.0
            after_s = self._after.value(_AFTER_START_S)
            after_s = min(max(after_s, _AFTER_MIN_S), _AFTER_MAX_S)
            self._recorder.after(after_s, now_s)
            for camera in self._cameras.values():
                if camera.delivers:
                    thinning = camera.thinning.every_second(now_s)
                    camera.stats.thinning = None if self._eyes is None else thinning
                    self._open_eyes(camera)
            for level, sentence in self._gate.every_second(now_s, after_s):
                logger.log(level, "%s", sentence)

    def _next_wake_s(self) -> float:
        counts_s = self._counts.next_due_s()
        wake_s = min(self._desk.next_wake_s(), self._next_second_s)
        return wake_s if counts_s is None else min(wake_s, counts_s)

    # -- events ----------------------------------------------------------------------------

    def _frame(self, frame: Frame) -> None:
        camera = self._cameras[frame.camera]
        if (frame.width, frame.height) != camera.size:
            self._new_size(camera, frame)
        in_time = False
        if frame.slot is not None:
            if camera.delivers:
                now_s = self._clock.now()
                offer = self._gate.offer(frame, frame.slot.bucket, now_s)
                in_time = offer.in_time
                self._given_back(offer.superseded)
            else:
                frame.slot.release()
        self._desk.add(frame, self._gate.scheduler.answer_by(frame), in_time)
        camera.thinning.frame(frame.captured_s, frame.ready_s)
        doubt = None
        if self._eyes is not None:
            camera.stats.moved(frame)
            # A picture left out to save time is no reason to detect more often.
            if frame.motion is not None or camera.thinning.level < Thinning.EVERY_SECOND:
                camera.doubt = camera.tracker.doubt(frame.captured_s, frame.motion)
                self._gate.scheduler.tell_doubt(camera.name, camera.doubt)
            doubt = camera.doubt
        self._recorder.frame(frame, self._clock.now(), doubt)

    def _new_size(self, camera: _Camera, frame: Frame) -> None:
        """The picture's size is known, or changed: tell it, but not for ever."""
        before, camera.size = camera.size, (frame.width, frame.height)
        if before != (0, 0) and frame.captured_s - camera.size_told_s >= _SIZE_TOLD_EVERY_S:
            camera.size_told_s = frame.captured_s
            logger.info(
                "camera %s: picture size changed from %dx%d to %dx%d",
                camera.name, *before, *camera.size,
            )  # fmt: skip

    def _given_back(self, frame: Frame | None) -> None:
        """The scheduler gave an offered frame up: its slot is free, it becomes tracked."""
        if frame is None:
            return
        self._desk.give_up(frame)
        if frame.slot is not None:
            frame.slot.release()

    def _lost(self, lost: FramesLost) -> None:
        self._cameras[lost.camera].stats.ledger.capture_and_drop(lost.reason, lost.count)
        self._recorder.dropped(lost.camera, lost.reason, lost.count, self._clock.now())
        if lost.reason is DropReason.MISSED:  # stale ones are the network's fault
            self._cameras[lost.camera].thinning.lost(lost.count)

    def _status(self, status: CameraStatus) -> None:
        camera = self._cameras[status.camera]
        camera.stats.status = status
        if camera.delivers != status.state.delivers:
            camera.delivers = status.state.delivers
            self._recorder.delivers(camera.name, camera.delivers, self._clock.now())
        self._send([camera_status_message(status)])
        if not camera.delivers:
            self._forget(camera, f"the camera is {status.state.value}")

    def _forget(self, camera: _Camera, reason: str) -> None:
        """A camera that shows nothing has nothing in view: no tracks, counts at zero."""
        now_s = self._clock.now()
        camera.forgotten_s = now_s
        camera.tracker.reset()
        camera.regions = None
        self._open_eyes(camera)
        self._given_back(self._gate.withdraw(camera.name))
        self._tell(camera, "end", camera.lives.clear(), reason)
        self._send(self._counts.clear(camera.name, now_s))

    def _open_eyes(self, camera: _Camera) -> None:
        """Tell the camera's capture thread where to measure motion, and how much."""
        if self._eyes is not None:
            self._eyes[camera.name] = (camera.regions, camera.thinning.level)

    def _batch_started(self, event: BatchStarted) -> None:
        now_s = self._clock.now()

        def still_in_time(frame: Frame) -> bool:
            slot = frame.slot
            return slot is not None and self._gate.still_in_time(frame, slot.bucket, now_s)

        self._desk.batch_started(event.batch, still_in_time)

    def _batch_done(self, event: BatchDone) -> None:
        if event.detections is None:
            for frame in event.batch.frames:
                self._desk.give_up(frame)
            return
        received_s = self._clock.now()
        late_count = 0
        for frame, detections in zip(event.batch.frames, event.detections, strict=True):
            camera = self._cameras[frame.camera]
            late = not self._desk.detected(frame)
            late_count += late
            if not late:
                self._done_s[frame.camera, frame.seq] = event.done_s
            if frame.captured_s >= camera.forgotten_s:
                size = (frame.width, frame.height)
                counting = camera.policy.filter.apply(detections, size)
                camera.tracker.apply(
                    frame.captured_s, counting, size, self._clock.now(), frame.motion
                )
                self._tell(camera, "end", camera.lives.without(camera.tracker.ids))
                camera.regions = camera.tracker.regions()
                self._open_eyes(camera)
            camera.stats.detection(frame, event.batch, event.done_s, late)
        self._recorder.batch(event.batch, event.done_s, received_s, late_count)

    def _drain(self, _event: Drain) -> None:
        """The run ends: answer what waits, take back what was offered, counts to zero."""
        self._draining = True
        for frame, detected in self._desk.take_all():
            self._answer(frame, detected)
        for camera in self._cameras.values():
            self._forget(camera, "vidserve is stopped")

    # -- answers ---------------------------------------------------------------------------

    def _answer_ready(self, now_s: float) -> None:
        for frame, detected in self._desk.take_ready(now_s):
            self._answer(frame, detected)

    def _answer(self, frame: Frame, detected: bool) -> None:
        camera = self._cameras[frame.camera]
        started_s = self._clock.now()
        try:
            self._publish(camera, frame, detected, started_s)
        except Exception:
            camera.stats.ledger.drop(frame.seq, DropReason.INVALID)
            self._recorder.dropped(camera.name, DropReason.INVALID, 1, self._clock.now())
            raise
        handed_s = self._clock.now()
        self._recorder.answered(frame, detected, handed_s)
        camera.stats.answered(frame, detected, handed_s, handed_s - started_s)
        ready_s = self._done_s.pop((frame.camera, frame.seq), None)
        if ready_s is not None:
            self._after.add(handed_s - ready_s)

    def _publish(self, camera: _Camera, frame: Frame, detected: bool, now_s: float) -> None:
        """Make the answer and hand it over."""
        tracker = camera.tracker
        last_s = tracker.last_detection_s
        answer = Answer(
            frame=frame,
            detected=detected,
            detection_age_s=None if last_s is None else max(frame.captured_s - last_s, 0.0),
            tracks=tracker.at(frame.captured_s, (frame.width, frame.height), frame.motion),
            age_s=now_s - frame.captured_s,
        )
        if camera.delivers:
            self._tell(camera, "start", camera.lives.seen(answer.tracks, frame.captured_s))
        if camera.rate.wants(answer):
            self._send([answer_message(answer, self._names, answer.age_s * 1000.0)])
        if camera.delivers:
            self._counts.update(camera.name, count_labels(answer.tracks, self._names))

    def _tell(self, camera: _Camera, event: str, lives: Sequence[Life], reason: str = "") -> None:
        """Tracks began or ended."""
        if lives:
            wall_less_s = self._clock.wall() - self._clock.now()
            self._send(
                [
                    event_message(camera.name, event, life, self._names, reason, wall_less_s)
                    for life in lives
                ]
            )

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            for output in self._outputs:
                output.put(message)
