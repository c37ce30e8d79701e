"""The command ``evaluate``: options in, numbers out. Heavy imports happen inside."""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vidserve.evaluation.detections import DetectionSource
    from vidserve.evaluation.flow import Flow
    from vidserve.evaluation.run import Keyframes, OnlineTracker, Run
    from vidserve.evaluation.scores import Scores
    from vidserve.evaluation.sequence import Sequence


class TrackerName(StrEnum):
    """Whose tracker is evaluated."""

    VIDSERVE = "vidserve"
    BYTETRACK = "bytetrack"


def evaluate(
    mot: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="A MOTChallenge sequence: seqinfo.ini, gt/, det/, img1/ or a video.",
        ),
    ] = None,
    clip: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Or a video, such as samples/plaza.mp4."),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Of the clip; CLIP.gt.txt beside it if left out."
        ),
    ] = None,
    detections: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="MOT file; DIR/det/det.txt if left out."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Or a model that looks at the keyframes' pictures.")
    ] = None,
    image_size: Annotated[int, typer.Option(min=32, help="Long side of the model's input.")] = 640,
    confidence: Annotated[
        float, typer.Option(min=0, max=1, help="Lowest score that the tracker gets to see.")
    ] = 0.1,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Lowest score that starts a track.")
    ] = 0.35,
    interval: Annotated[int, typer.Option(min=1, help="Every n-th frame is a keyframe.")] = 1,
    delay_ms: Annotated[
        float, typer.Option(min=0, max=60_000, help="Detections are known so much later.")
    ] = 0.0,
    flow: Annotated[
        bool, typer.Option("--flow", help="Measure motion in the pictures between detections.")
    ] = False,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive", help="Keyframes by doubt, --interval on average at most; implies --flow."
        ),
    ] = False,
    tracker: Annotated[
        TrackerName, typer.Option(help="bytetrack: the peer, held between detections.")
    ] = TrackerName.VIDSERVE,
    mot17_rules: Annotated[
        bool,
        typer.Option("--mot17-rules", help="Leave out answers that fit a distractor of the truth."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the answers to every frame in MOT format.")
    ] = None,
    save_detections: Annotated[
        Path | None, typer.Option(help="Write what the model saw, for --detections.")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Write a PNG: truth and answer 1 and 4 frames on.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Run the tracker over a recorded sequence, online, and score every frame."""
    _check_options(mot, clip, truth, detections, model, save_detections)
    from vidserve.evaluation.run import check_answers, every, run
    from vidserve.evaluation.scores import check_scorer, score
    from vidserve.evaluation.sequence import read_clip, read_mot

    sequence = read_mot(mot) if mot is not None else read_clip(_given(clip), truth)
    if sequence.truth is not None:
        check_scorer()
    tracked_by = _tracker(tracker, sequence.fps / interval, confidence, threshold)
    with _source(sequence, detections, model, image_size, confidence) as source:
        motion, keyframes = None, every(interval)
        if flow or adaptive:
            motion, keyframes = _with_flow(tracked_by, interval, sequence.fps, adaptive)
        done = run(sequence, tracked_by, source, keyframes, delay_ms / 1000, motion)
    check_answers(done.answers)
    if out is not None or save_detections is not None:
        from vidserve.evaluation.detections import ModelDetections
        from vidserve.evaluation.mot import write_answers, write_detections

        if out is not None:
            write_answers(out, done.answers)
        if save_detections is not None:
            assert isinstance(source, ModelDetections)
            write_detections(save_detections, sorted(source.found.items()))
    if draw is not None:
        from vidserve.evaluation.draw import draw_sheet

        draw_sheet(draw, sequence, done.answers, done.keyframes)
    scores = None
    if sequence.truth is not None:
        scores = score(sequence.truth, done.answers, excuse=mot17_rules)
    found = {
        "sequence": sequence.name,
        "tracker": tracker.value,
        "interval": interval,
        "delay_ms": delay_ms,
        "flow": flow or adaptive,
        "adaptive": adaptive,
        **_numbers(sequence, done, scores, source),
    }
    _show(found, json)


def _check_options(
    mot: Path | None,
    clip: Path | None,
    truth: Path | None,
    detections: Path | None,
    model: str | None,
    save_detections: Path | None,
) -> None:
    if (mot is None) == (clip is None):
        raise typer.BadParameter("give --mot or --clip")
    if truth is not None and clip is None:
        raise typer.BadParameter("--truth belongs to --clip; with --mot it is DIR/gt/gt.txt")
    if detections is not None and model is not None:
        raise typer.BadParameter("give --detections or --model, not both")
    if clip is not None and detections is None and model is None:
        raise typer.BadParameter("--clip needs --detections or --model")
    if save_detections is not None and model is None:
        raise typer.BadParameter("--save-detections belongs to --model")


def _with_flow(
    tracker: OnlineTracker, interval: int, fps: float, adaptive: bool
) -> tuple[Flow, Keyframes]:
    from vidserve.evaluation.flow import Adaptive, Flow
    from vidserve.evaluation.run import every
    from vidserve.tracking.tracker import Tracker

    if not isinstance(tracker, Tracker):
        raise typer.BadParameter("--flow and --adaptive are for --tracker vidserve")
    keyframes = Adaptive(tracker, interval, fps) if adaptive else every(interval)
    return Flow(tracker), keyframes


def _given(clip: Path | None) -> Path:
    assert clip is not None
    return clip


def _tracker(name: TrackerName, rate: float, low: float, threshold: float) -> OnlineTracker:
    if name is TrackerName.BYTETRACK:
        from vidserve.evaluation.peers import ByteTrack

        return ByteTrack(rate, threshold)
    from vidserve.tracking.tracker import Tracker, TrackerSettings

    return Tracker(TrackerSettings(confidence=threshold, low=low))


@contextmanager
def _source(
    sequence: Sequence, detections: Path | None, model: str | None, image_size: int, low: float
) -> Iterator[DetectionSource]:
    """Where detections come from; a model is closed at the end."""
    from vidserve.errors import EvaluationError
    from vidserve.evaluation.detections import FileDetections, ModelDetections

    if model is None:
        path = detections or sequence.detections
        if path is None:
            raise EvaluationError(f"{sequence.name} has no det/det.txt: --detections or --model")
        yield FileDetections(path, low)
        return
    from vidserve.detection.ultralytics import UltralyticsDetector

    classes = ["person"] if sequence.people_only else None
    detector = UltralyticsDetector(model, low=low, classes=classes)
    try:
        yield ModelDetections(detector, image_size)
    finally:
        detector.close()


def _numbers(
    sequence: Sequence, done: Run, scores: Scores | None, source: DetectionSource
) -> dict[str, Any]:
    from vidserve.evaluation.detections import FileDetections

    calls = len(done.keyframes)
    found: dict[str, Any] = {"frames": sequence.frames, "fps": sequence.fps}
    if scores is not None:
        found |= {
            "HOTA": round(scores.hota, 2),
            "DetA": round(scores.deta, 2),
            "AssA": round(scores.assa, 2),
            "MOTA": round(scores.mota, 2),
            "IDF1": round(scores.idf1, 2),
            "switches": scores.switches,
            "misses": scores.misses,
            "false_boxes": scores.false_boxes,
        }
    refused = source.refused if isinstance(source, FileDetections) else 0
    if sequence.truth is not None:
        refused += sequence.truth.rows.refused
    return found | {
        "ms_per_frame": round(done.ms_per_frame, 3),
        "slowest_ms": round(1000 * done.slowest_s, 3),
        "detector_calls": calls,
        "detector_ms": round(1000 * done.detecting_s / calls, 3) if calls else None,
        "refused_rows": refused,
    }


def _show(found: dict[str, Any], json: bool) -> None:
    if json:
        import orjson

        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    for name, value in found.items():
        table.add_row(name.replace("_", " "), "-" if value is None else str(value))
    Console(highlight=False).print(table)
