"""One run of the daemon: build, start, watch, drain, stop. Owns the main thread's loop."""

from __future__ import annotations

import contextlib
import gc
import logging
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vidserve import __version__, build
from vidserve.capture.camera import CameraThread
from vidserve.capture.source import open_reader
from vidserve.clock import Clock, RealClock
from vidserve.config import Config, LoadResult, check_labels
from vidserve.errors import ConfigError
from vidserve.frames import CameraState, CameraStatus
from vidserve.libraries import tame_libraries
from vidserve.pipeline import Pipeline
from vidserve.publishing import messages
from vidserve.publishing.broker import EmbeddedBroker
from vidserve.publishing.output import Message, Output
from vidserve.systemd import Notifier
from vidserve.telemetry import report
from vidserve.telemetry.stats import RunStats, Snapshot
from vidserve.tracking.filtering import DetectionFilter
from vidserve.tracking_loop import CameraPolicy

logger = logging.getLogger(__name__)

TICK_S = 0.25
CHECK_EVERY_S = 60.0
_LOAD_STEP_S = 0.25
_SLOW_SHARE = 0.75  # the rest goes for decoding and for what follows a detection
_EXTEND_S = 30.0
_JOIN_S, _DRAIN_S, _FLUSH_S = 1.2, 1.0, 2.0
_HASTE_S = 0.0002
_WATCHDOG_DEFAULT_S = 30.0


@contextlib.contextmanager
def _haste() -> Iterator[None]:
    """Readers that loop in Python must not use up the time to say goodbye.

    Each keeps the interpreter lock for a whole interval whenever somebody else wants it: with
    13 of them the end took 5.9 s, with this 1.9 to 3.6 s.
    """
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(_HASTE_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


class Daemon:
    """One run.

    Args:
        result: Of loading the config; ``config`` must not be None.
        clock: Tells the time.
        notifier: To systemd.
        stop: Set when the run is to end; it may be set before ``run``.
        trace: File to record a trace in.
    """

    def __init__(
        self,
        result: LoadResult,
        clock: Clock | None = None,
        notifier: Notifier | None = None,
        stop: threading.Event | None = None,
        trace: Path | None = None,
    ) -> None:
        if result.config is None:
            raise ConfigError("\n".join(map(str, result.problems)))
        self._result = result
        self._config: Config = result.config
        self._clock = clock or RealClock()
        self._notifier = notifier or Notifier()
        self._stop = stop or threading.Event()
        self._trace = trace
        self._outputs: list[Output] = []
        self._broker: EmbeddedBroker | None = None
        self._cameras: dict[str, CameraThread] = {}
        self._pipeline: Pipeline | None = None
        self._started_wall_s = self._clock.wall()
        self._progressing = True
        self._broker_told = self._over_told = False
        self.hung = False
        self.mqtt_port: int | None = None

    # -- the run ---------------------------------------------------------------------------

    def request_stop(self) -> None:
        """End the run soon. Any thread, and signal handlers."""
        self._stop.set()

    def run(
        self, for_s: float | None = None, on_ready: Callable[[], None] | None = None
    ) -> Snapshot:
        """Run until stopped, or for ``for_s`` seconds from readiness.

        Args:
            for_s: None: until ``request_stop``.
            on_ready: Called once, when counting has begun.

        Returns:
            The final report.

        Raises:
            VidserveError: the run could not begin. Everything is put away then.
        """
        try:
            ready = self._start()
        except BaseException:
            self._put_away(_JOIN_S)
            raise
        if not ready:
            self._put_away(_JOIN_S)
            return self._nothing_happened()
        if on_ready is not None:
            on_ready()
        self._watch(for_s)
        return self._finish()

    def _nothing_happened(self) -> Snapshot:
        """The report of a run that was stopped before readiness."""
        settings = build.scheduler_settings(self._config)
        now_s = self._clock.now()
        stats = RunStats(settings.budget_s, settings.batch_max, now_s)
        stats.stop(now_s)
        for name, camera in self._cameras.items():
            stats.camera(name).status = camera.status
        numbers = report.complete(stats.snapshot(now_s), self._outputs)
        return {**numbers, "unaccounted": []}

    def _start(self) -> bool:
        """Everything up to readiness; False if asked to stop meanwhile."""
        tame_libraries()
        config = self._config
        make_detector = build.detector_factory(config, self._clock)
        self._broker = build.broker(config, self._clock)
        if self._broker is not None:
            self.mqtt_port = self._broker.start()
            logger.info("see what it publishes: vidserve watch --port %d", self.mqtt_port)
        for output in build.outputs(config, self._clock, self.mqtt_port):
            output.start()
            self._outputs.append(output)
        self._pipeline = Pipeline(
            build.scheduler_settings(config),
            build.camera_places(config),
            make_detector,
            self._outputs,
            self._clock,
            build.service_time_cache(config),
            config.detector.buckets,
            self._trace,
            config.tracking.flow,
        )
        self._tell_idle_cameras(self._pipeline)
        self._pipeline.load()
        for seed, (name, camera) in enumerate(config.cameras.items()):
            if camera.enabled:
                settings = build.camera_settings(config, name)
                thread = CameraThread(settings, self._pipeline, self._clock, open_reader, seed)
                self._cameras[name] = thread
                thread.start()
        if not self._wait_for_model(self._pipeline):
            return False
        self._begin(self._pipeline)
        return True

    def _tell_idle_cameras(self, pipeline: Pipeline) -> None:
        """Cameras that will not run: switched off, or their block is wrong."""
        wall_s = self._started_wall_s
        for name, camera in self._config.cameras.items():
            if not camera.enabled:
                pipeline.status(
                    CameraStatus(name, CameraState.DISABLED, "enabled: false in the config", wall_s)
                )
        for name, problems in self._result.failed_cameras.items():
            reason = "; ".join(map(str, problems))
            logger.error("camera %s does not run: %s", name, reason)
            pipeline.status(CameraStatus(name, CameraState.FAILED, reason, wall_s))
        if not self._config.cameras and not self._result.failed_cameras:
            logger.warning("no cameras are configured: add some under `cameras:`")

    def _wait_for_model(self, pipeline: Pipeline) -> bool:
        extend_s = self._clock.now()
        while not self._stop.is_set():
            if self._clock.now() >= extend_s:
                self._notifier.extend_start(_EXTEND_S)
                extend_s = self._clock.now() + _EXTEND_S / 3
            self._tick_cameras()
            if pipeline.wait_ready(_LOAD_STEP_S):
                return True
        return False

    def _begin(self, pipeline: Pipeline) -> None:
        """The model is there: check what needs its labels, then begin to count."""
        names = pipeline.detection.info.names
        wrong = check_labels(self._result, names.values())
        refused = [str(problem) for problem in wrong if problem.camera is None]
        if refused:
            raise ConfigError("\n".join(refused))
        for camera in {problem.camera for problem in wrong if problem.camera is not None}:
            self._fail_camera(
                pipeline, camera, "; ".join(str(p) for p in wrong if p.camera == camera)
            )
        idle = CameraPolicy(filter=DetectionFilter())
        failed = {p.camera for p in wrong} | set(self._result.failed_cameras)
        every = [*self._config.cameras, *self._result.failed_cameras]
        pipeline.begin(
            {
                name: idle if name in failed else build.camera_policy(self._config, name, names)
                for name in dict.fromkeys(every)
            }
        )
        self._put(messages.info_message(self._info(names)))
        self._warn_of_slow_detector(pipeline)
        self._notifier.ready(self._status_line())
        logger.info("ready: %s", self._status_line())

    def _warn_of_slow_detector(self, pipeline: Pipeline) -> None:
        """Everything is answered in time then, but by the tracker alone: people should know."""
        budget_ms = self._config.scheduling.budget_ms
        for bucket, service_ms in pipeline.snapshot()["detector"]["service_ms"].items():
            if service_ms["1"] > _SLOW_SHARE * budget_ms:
                logger.warning(
                    "one picture of %s takes the detector %.0f ms of the %g ms budget: most"
                    " detections will come late for their frame and only correct the tracker;"
                    " try a smaller detector.image_size, a smaller model, or a GPU",
                    bucket, service_ms["1"], budget_ms,
                )  # fmt: skip

    def _fail_camera(self, pipeline: Pipeline, name: str, reason: str) -> None:
        thread = self._cameras.pop(name, None)
        if thread is not None:
            thread.request_stop()
        logger.error("camera %s does not run: %s", name, reason)
        pipeline.status(CameraStatus(name, CameraState.FAILED, reason, self._clock.wall()))

    def _watch(self, for_s: float | None) -> None:
        """The main thread's loop from readiness to the wish to stop."""
        pipeline = self._pipeline
        assert pipeline is not None and pipeline.stats is not None
        started_s = pipeline.stats.started_s
        interval_s = self._config.stats.interval_s
        next_stats_s, next_check_s = started_s + interval_s, started_s + CHECK_EVERY_S
        tick_s = TICK_S
        if self._notifier.watchdog_s is not None:
            tick_s = min(tick_s, self._notifier.watchdog_s / 4)
        while not self._stop.is_set():
            now_s = self._clock.now()
            left_s = tick_s if for_s is None else started_s + for_s - now_s
            if left_s <= 0 or self._stop.wait(min(tick_s, left_s)):
                break
            now_s = self._clock.now()
            self._tick_cameras()
            self._feed_watchdog(pipeline, now_s)
            self._look_after_broker()
            self._tell_if_over()
            if now_s >= next_stats_s:
                next_stats_s = max(next_stats_s + interval_s, now_s)
                self._publish_stats()
            if now_s >= next_check_s:
                next_check_s = now_s + CHECK_EVERY_S
                self._check_balance()

    def _tick_cameras(self) -> None:
        now_s = self._clock.now()
        for camera in self._cameras.values():
            camera.tick(now_s)

    def _tell_if_over(self) -> None:
        """Files that have ended do not end the run; somebody may wait for that."""
        ended = [c.status.state is CameraState.ENDED for c in self._cameras.values()]
        if ended and all(ended) and not self._over_told:
            self._over_told = True
            logger.info("all cameras have ended; the daemon runs on until it is stopped")

    def _look_after_broker(self) -> None:
        """An embedded broker that died is told once; it is for trials and not brought back."""
        if self._broker is not None and not self._broker.alive and not self._broker_told:
            self._broker_told = True
            logger.error("the embedded broker died: restart vidserve, or use a real broker")

    def _feed_watchdog(self, pipeline: Pipeline, now_s: float) -> None:
        """Only progress of both loops feeds the watchdog; cameras may be dead as they like."""
        assert pipeline.tracking is not None
        limit_s = self._notifier.watchdog_s or _WATCHDOG_DEFAULT_S
        stuck = [
            name
            for name, progress_s in (
                ("detection", pipeline.detection.progress_s),
                ("tracking", pipeline.tracking.progress_s),
            )
            if now_s - progress_s > limit_s / 2
        ]
        if not stuck:
            self._notifier.watchdog()
        if bool(stuck) == self._progressing:
            self._progressing = not stuck
            if stuck:
                logger.error("the %s loop makes no progress", " and the ".join(stuck))
            else:
                logger.info("all loops make progress again")

    # -- numbers ---------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The run so far, in the form of the report. Any thread."""
        if self._pipeline is None or self._pipeline.stats is None:
            return {}
        snapshot = self._pipeline.snapshot()
        detection = self._pipeline.detection
        snapshot["detector"]["degraded"] = detection.degraded
        for name, camera in self._cameras.items():
            if name in snapshot["cameras"]:
                snapshot["cameras"][name]["threads_given_up"] = camera.given_up
        return report.complete(snapshot, self._outputs)

    def _publish_stats(self) -> None:
        snapshot = self.snapshot()
        self._put(messages.stats_message(snapshot))
        for name, numbers in snapshot["cameras"].items():
            self._put(messages.camera_stats_message(name, numbers))
        self._notifier.send(STATUS=self._status_line())

    def _check_balance(self) -> list[str]:
        """Log an error for every frame that is unaccounted for."""
        assert self._pipeline is not None and self._pipeline.stats is not None
        problems = self._pipeline.stats.unbalanced(self._clock.now())
        for problem in problems:
            logger.error("frames are unaccounted for: %s", problem)
        return problems

    def _status_line(self) -> str:
        up = sum(camera.status.state.delivers for camera in self._cameras.values())
        wanted = sum(camera.enabled for camera in self._config.cameras.values())
        line = f"{up} of {wanted + len(self._result.failed_cameras)} cameras up"
        if self._pipeline is not None and self._pipeline.stats is not None:
            numbers = self._pipeline.snapshot()
            if numbers["answered_in_budget"] is not None:
                per_s = sum(c["live"]["detections_per_s"] for c in numbers["cameras"].values())
                line += (
                    f", {numbers['answered_in_budget']:.1%} of frames answered in budget,"
                    f" {per_s:.1f} detections/s"
                )
        return line

    def _info(self, names: Mapping[int, str]) -> bytes:
        assert self._pipeline is not None
        info = self._pipeline.detection.info
        return messages.info_payload(
            version=__version__,
            instance=secrets.token_hex(4),
            started_wall_s=self._started_wall_s,
            model=info.model,
            backend=info.backend,
            device=info.device,
            label_slugs=messages.slugs(names),
            cameras=list(self._config.cameras),
            config=self._config.model_dump(mode="json"),
        )

    def _put(self, message: Message) -> None:
        for output in self._outputs:
            output.put(message)

    # -- the end ---------------------------------------------------------------------------

    @_haste()
    def _finish(self) -> Snapshot:
        """No more capture, settle, counts to zero, goodbye. Bounded: about 5 s at worst."""
        pipeline = self._pipeline
        assert pipeline is not None
        self._notifier.stopping()
        before = self.snapshot()
        for camera in self._cameras.values():
            camera.request_stop()
        if not pipeline.drain(_DRAIN_S):
            logger.error("a loop did not end in time; the process ends without it")
            self.hung = True
        # Frames after this point are refused by the sink, so threads may end as they can.
        self._join_cameras(_JOIN_S)
        unaccounted = self._check_balance()
        self._publish_stats()
        wall_s = self._clock.wall()
        for name in self._cameras:
            gone = CameraStatus(name, CameraState.DISABLED, "vidserve is stopped", wall_s)
            self._put(messages.camera_status_message(gone))
        self._stop_outputs()
        final = self.snapshot()
        report.as_it_stood(final, before)
        final["unaccounted"] = unaccounted
        self._stop_broker()
        gc.unfreeze()
        logger.info("stopped after %.1f s: %s", final["duration_s"], report.one_line(final))
        return final

    @_haste()
    def _put_away(self, limit_s: float) -> None:
        """End whatever was started of a run that never became ready."""
        for camera in self._cameras.values():
            camera.request_stop()
        if self._pipeline is not None:
            self.hung = not self._pipeline.drain(limit_s)
        self._join_cameras(limit_s)
        self._stop_outputs()
        self._stop_broker()

    def _join_cameras(self, limit_s: float) -> None:
        until_s = self._clock.now() + limit_s
        for name, camera in self._cameras.items():
            if not camera.join(max(until_s - self._clock.now(), 0.0)):
                logger.warning("camera %s: its thread hangs; the process ends without it", name)
                self.hung = True

    def _stop_outputs(self) -> None:
        """All at the same time, so that one that hangs does not take the others' time."""
        stoppers = [
            threading.Thread(target=output.stop, args=(_FLUSH_S,), name=f"stop-{output.name}")
            for output in self._outputs
        ]
        for stopper in stoppers:
            stopper.daemon = True
            stopper.start()
        until_s = self._clock.now() + _FLUSH_S + 0.3
        for stopper in stoppers:
            stopper.join(max(until_s - self._clock.now(), 0.0))
            if stopper.is_alive():
                logger.warning("%s did not end in time", stopper.name)
                self.hung = True

    def _stop_broker(self) -> None:
        if self._broker is not None:
            self._broker.stop()


def exit_code(numbers: Snapshot) -> int:
    """0, or 1 if frames are unaccounted for."""
    return 1 if numbers.get("unaccounted") else 0
