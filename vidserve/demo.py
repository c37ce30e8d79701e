"""``vidserve demo``: the main job in front of one's eyes.

The daemon runs as always, with an embedded broker. The table is drawn from what a subscriber of
its topics sees, not from the daemon's inside; only the summary uses the final report.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from vidserve import logs
from vidserve.clock import RealClock
from vidserve.config import Config, LoadResult, load
from vidserve.config.problems import Marks
from vidserve.daemon import Daemon, exit_code
from vidserve.errors import ConfigError, ModelNotFoundError
from vidserve.publishing.connection import (
    Connection,
    ConnectionEnded,
    ConnectionFailed,
    MqttSettings,
)
from vidserve.telemetry.report import one_line

SAMPLE_MODEL = "vidserve-sample.pt"
SAMPLE_CLIPS = ("plaza", "street", "gate")
_FRAME_S = 0.25
_PLAIN_EVERY_S = 5.0
_PLAIN_WIDTH = 100


def samples_folder() -> Path:
    """The folder with the sample clips and model: of the checkout, or below this folder.

    Raises:
        ModelNotFoundError: vidserve was installed without its samples.
    """
    for base in (Path(__file__).resolve().parent.parent, Path.cwd()):
        if (base / "samples" / SAMPLE_MODEL).is_file():
            return base / "samples"
    raise ModelNotFoundError(
        f"samples/{SAMPLE_MODEL} is not here: run `make demo` in a checkout of vidserve, or give "
        "your own with --source and --model"
    )


def demo_config(
    sources: list[str], model: str | None, image_size: int, config: Path | None
) -> LoadResult:
    """The config of the demo: the samples, the user's own sources, or a user's file.

    Raises:
        ConfigError: the file, or what was given, is wrong.
        ModelNotFoundError: samples are needed and not there.
    """
    if config is not None:
        result = load(config, os.environ)
        if result.config is None:
            raise ConfigError("\n".join(map(str, result.problems)))
        if result.config.mqtt is None or not result.config.mqtt.embedded:
            raise ConfigError(
                f"{config}: the demo needs `mqtt: {{embedded: true}}`; for another broker use "
                "`vidserve run` and `vidserve watch`"
            )
        return result
    if sources:
        cameras = {f"camera{number}": source for number, source in enumerate(sources, 1)}
    else:
        cameras = {clip: str(samples_folder() / f"{clip}.mp4") for clip in SAMPLE_CLIPS}
    try:
        made = Config.model_validate(
            {
                "detector": {
                    "model": model or str(samples_folder() / SAMPLE_MODEL),
                    "image_size": image_size,
                },
                "mqtt": {"embedded": True},
                "stats": {"interval_s": 1},
                "cameras": {
                    name: {"source": source, "loop": True} for name, source in cameras.items()
                },
            }
        )
    except ValueError as error:
        reasons = "; ".join(detail["msg"] for detail in getattr(error, "errors", list)())
        raise ConfigError(f"--source or --image-size: {reasons or error}") from None
    return LoadResult("demo", made, (), {}, (), Marks({}, {}))


class View:
    """What a subscriber has seen so far. Filled by the subscriber's thread."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._cameras: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, str] = {}
        self.messages = 0
        self.answers: Counter[str] = Counter()
        self.labels: dict[str, Counter[str]] = {}

    def take(self, topic: str, payload: bytes, _retained: bool) -> None:
        """One message; for the subscriber's thread."""
        parts = topic.removeprefix(f"{self._prefix}/").split("/")
        with self._lock:
            self.messages += 1
            if parts == ["stats"]:
                self._cameras = orjson.loads(payload)["cameras"]
            elif len(parts) == 2 and parts[1] == "detections":
                answer = orjson.loads(payload)
                labels = Counter(thing["label"] for thing in answer["objects"])
                self.answers[parts[0]] += 1
                self.labels.setdefault(parts[0], Counter()).update(labels.keys())
                self._seen[parts[0]] = "  ".join(
                    f"{n}\u00a0{name}" for name, n in sorted(labels.items())
                )

    def table(self, seconds_left: float) -> Table:
        """The numbers by camera, newest."""
        with self._lock:
            if not self._cameras:
                return _table("vidserve demo: waiting for the first numbers ...", {}, {})
            return _table(
                f"vidserve demo: {max(seconds_left, 0):.0f} s left, {self.messages} messages",
                self._cameras,
                self._seen,
            )


def _table(
    title: str, cameras: dict[str, dict[str, Any]], last: dict[str, str], heading: str = "in view"
) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("camera", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("fps", "detected", "tracked", "dropped", "in\nbudget", "p50\nms", "p99\nms"):
        table.add_column(name, justify="right", no_wrap=True)
    # One row a camera, so that rows do not jump; what does not fit is cut with dots.
    table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for name, numbers in cameras.items():
        share = numbers["answered_in_budget"]
        answer = numbers["latency_ms"]["answer"]
        table.add_row(
            name,
            numbers["state"],
            f"{numbers['live']['fps'] or numbers['fps']:.1f}",
            str(numbers["detected"]),
            str(numbers["tracked"]),
            str(sum(numbers["dropped"].values())),
            "-" if share is None else f"{share:.1%}".replace("100.0", "100"),
            "-" if answer["p50"] is None else f"{answer['p50']:.1f}",
            "-" if answer["p99"] is None else f"{answer['p99']:.1f}",
            last.get(name, ""),
        )
    return table


class Demo:
    """One demo run. ``run`` belongs to the main thread.

    Args:
        result: The config; its mqtt section is embedded.
        seconds: How long it runs from readiness.
    """

    def __init__(self, result: LoadResult, seconds: float) -> None:
        assert result.config is not None and result.config.mqtt is not None
        self._seconds = seconds
        folder = str(Path(__file__).resolve().parent.parent / "samples")
        sources = [str(camera.source) for camera in result.config.cameras.values()]
        self._sample_model_on_own_source = result.config.detector.model.endswith(
            SAMPLE_MODEL
        ) and not all(source.startswith(folder) for source in sources)
        self._config = result.config
        self._daemon = Daemon(result)
        self._view = View(result.config.mqtt.prefix)
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(width=_PLAIN_WIDTH, highlight=False)
        self._clock = RealClock()
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def hung(self) -> bool:
        """Whether a thread hangs in a library."""
        return self._daemon.hung

    def request_stop(self) -> None:
        """End soon; for signal handlers."""
        self._daemon.request_stop()

    def run(self) -> int:
        """Run, show, sum up.

        Returns:
            0 if every frame is accounted for and every camera's answers reached the subscriber.
        """
        logs.set_up("WARNING")
        self._console.print("Loading the model and connecting ...")
        if self._sample_model_on_own_source:
            self._console.print(
                "No --model was given: the sample model only knows the rendered sample clips.",
                style="yellow",
            )
        try:
            report = self._daemon.run(self._seconds, self._begin)
        finally:
            self._done.set()
            for thread in self._threads:
                thread.join(2.0)
        if not report["duration_s"]:
            self._console.print("Stopped before it was ready.")
            return 0
        return self._sum_up(report)

    def _begin(self) -> None:
        """Readiness: subscribe and draw."""
        for target, name in ((self._subscribe, "demo-subscriber"), (self._draw, "demo-table")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _subscribe(self) -> None:
        assert self._daemon.mqtt_port is not None and self._config.mqtt is not None
        settings = MqttSettings("127.0.0.1", self._daemon.mqtt_port)
        while not self._done.is_set():
            connection = Connection(
                settings, "vidserve-demo", None, self._clock, on_message=self._view.take
            )
            try:
                connection.open(2.0)
                connection.subscribe(f"{self._config.mqtt.prefix}/#")
                while not self._done.is_set():
                    connection.step(0.2)
            except (ConnectionFailed, ConnectionEnded):
                self._done.wait(0.2)  # it ends with the daemon; before that it comes back
            finally:
                connection.close()

    def _draw(self) -> None:
        until_s = self._clock.now() + self._seconds
        if not self._console.is_terminal:
            while not self._done.wait(_PLAIN_EVERY_S):
                self._console.print(self._view.table(until_s - self._clock.now()))
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while not self._done.wait(_FRAME_S):
                live.update(self._view.table(until_s - self._clock.now()), refresh=True)

    def _sum_up(self, report: dict[str, Any]) -> int:
        view, console = self._view, self._console
        seen = {
            name: ", ".join(label for label, _ in labels.most_common(4))
            for name, labels in view.labels.items()
        }
        console.print(_table("Summary", report["cameras"], seen, "seen"))
        budget = f"{self._config.scheduling.budget_ms:g} ms"
        console.print(
            "detected: the detector saw this very frame; tracked: the tracker carried the boxes on;"
            f" in budget: answered within {budget}; p50, p99: from capture to answer.",
            style="dim",
        )
        late = sum(c["detections_late"] for c in report["cameras"].values())
        in_time = sum(c["detected"] for c in report["cameras"].values())
        batches, detector = report["batches"], report["detector"]
        console.print(f"{report['duration_s']:.1f} s: {one_line(report)} ({budget}).")
        console.print(
            f"Detector: {in_time} detections in time, {late} late (those still correct the boxes);"
            f" {detector['images_per_s']:.1f} detections/s in batches of"
            f" {batches['mean_size'] or 0:.1f}, busy {detector['use']:.0%} of the time."
        )
        answers = sum(view.answers.values())
        console.print(
            f"MQTT: our own subscriber saw {answers} answers, and {view.messages - answers} other"
            " messages."
        )
        silent = [
            name
            for name, numbers in report["cameras"].items()
            if not view.answers[name] or not numbers["captured"]
        ]
        for name in silent:
            reason = report["cameras"][name]["reason"] or "no answers reached the subscriber"
            console.print(f"camera {name}: nothing was seen of it: {reason}", style="red")
        for problem in report["unaccounted"]:
            console.print(f"frames are unaccounted for: {problem}", style="red")
        if not silent:
            console.print(
                "Next: write a config (configs/vidserve.yaml is an example), then"
                " `vidserve check -c FILE` and `vidserve run -c FILE`."
            )
        return 1 if silent else exit_code(report)
