"""A plan as plain data: what ``--json`` prints, and what table and plots are made from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vidserve.planning.capacity import BatchCurve, Verdict
from vidserve.planning.need import CPU_MOST
from vidserve.planning.survey import Survey
from vidserve.planning.trial import LATE_MOST, SERVED_LEAST, Trial

Numbers = dict[str, Any]


def numbers(
    file: str,
    surveyed: Survey,
    verdict: Verdict,
    curves: Sequence[BatchCurve],
    latency: Sequence[Trial],
) -> Numbers:
    """The whole plan. Milliseconds, rates per second, shares 0..1, CPU in cores.

    Args:
        file: Name of the config.
        surveyed: What was measured.
        verdict: What came of it.
        curves: Throughput by batch size.
        latency: Trials with growing numbers of cameras.
    """
    machine, settings = surveyed.machine, surveyed.settings
    limit = verdict.limit
    return {
        "config": file,
        "cores": machine.cores,
        "budget_ms": _ms(settings.budget_s),
        "detector": {
            "name": surveyed.detector,
            "measured": surveyed.measured,
            "noise": round(machine.noise, 3),
            "cpu_cores_while_busy": round(machine.detector_cores, 3),
            "yields_to_cameras": machine.detector_yields,
            "shapes": {
                str(curve.bucket): {
                    "cameras": curve.cameras,
                    "service_ms": {
                        str(n): _ms(seconds, 2) for n, seconds in enumerate(curve.service_s, 1)
                    },
                    "detections_per_s": {
                        str(n): round(rate, 1) for n, rate in enumerate(curve.per_s, 1)
                    },
                    "largest_batch": curve.peak,
                }
                for curve in curves
            },
        },
        "answer_ms": {
            "frame": _ms(machine.frame_s, 3),
            "detection": _ms(machine.detection_s, 3),
        },
        "cameras": [_camera(surveyed, index) for index in range(len(surveyed.cameras))],
        "left_out": [{"camera": n, "reason": why} for n, why in surveyed.left_out.items()],
        "notes": list(surveyed.notes),
        "rules": {
            "cpu_most": CPU_MOST,
            "detections_made_least": SERVED_LEAST,
            "late_most": LATE_MOST,
        },
        "now": trial_numbers(verdict.now),
        "fit": {
            "configured": verdict.now.cameras,
            "cameras": verdict.fits,
            "more": verdict.more,
            "or_more": verdict.capped,
            "limit": None if limit is None else limit.value,
            "reasons": [
                {"limit": miss.limit.value, "reason": miss.sentence} for miss in verdict.misses
            ],
            "accepting_late": verdict.accepting_late,
            "at_the_limit": (
                None if verdict.at_the_limit is None else trial_numbers(verdict.at_the_limit)
            ),
        },
        "help": [
            {"change": change.change, "value": change.value, "text": change.sentence}
            for change in verdict.help
        ],
        "latency_curve": [trial_numbers(trial) for trial in latency],
    }


def trial_numbers(trial: Trial) -> Numbers:
    """One number of cameras."""
    return {
        "cameras": trial.cameras,
        "fits": trial.fits,
        "misses": [{"limit": miss.limit.value, "reason": miss.sentence} for miss in trial.misses],
        "asked_per_s": round(trial.needed.asked_per_s, 2),
        "made_share": round(trial.served_share, 4),
        "made_share_of_worst_camera": round(trial.worst_served_share, 4),
        "in_time_share": round(trial.in_time_share, 4),
        "late_share": round(trial.late_share, 4),
        "gap_ms": {"p50": _ms(trial.gap_p50_s), "p99": _ms(trial.gap_p99_s)},
        "latency_ms": {"p50": _ms(trial.latency_p50_s), "p95": _ms(trial.latency_p95_s)},
        "mean_batch": round(trial.mean_batch, 2),
        "detector_use": round(trial.use, 4),
        "detector_asked": round(trial.needed.asked_use, 4),
        "detector_slower": round(trial.needed.slower, 3),
        "cpu": {
            "use": round(trial.cpu_use, 4),
            "camera_cores": round(trial.needed.camera_cores, 3),
            "detector_cores": round(trial.detector_cores, 3),
        },
    }


def _camera(surveyed: Survey, index: int) -> Numbers:
    found, gap_s = surveyed.cameras[index], surveyed.settings.max_gap_s
    camera = found.planned
    asked = camera.asked_per_s(gap_s)
    answers = camera.fps * surveyed.machine.frame_s + asked * surveyed.machine.detection_s
    return {
        "name": camera.name,
        "source": found.source,
        "measured": found.unread is None,
        "reason": found.unread,
        "note": found.note or None,
        "frames_measured": found.frames,
        "width": camera.width,
        "height": camera.height,
        "source_fps": round(camera.source_fps, 2),
        "fps": round(camera.fps, 2),
        "weight": camera.weight,
        "keyframe_interval": camera.interval_frames,
        "detections_per_s": round(asked, 3),
        "input": str(camera.ladder[0]),
        "decode_ms": _ms(camera.decode_s, 3),
        "letterbox_ms": _ms(camera.letterbox_s, 3),
        "motion_ms": _ms(camera.motion_s, 3),
        "thread_use": round(camera.thread_use(gap_s), 4),
        "cores": round(camera.thread_use(gap_s) + answers, 4),
    }


def _ms(seconds: float, digits: int = 1) -> float | None:
    return round(seconds * 1000, digits) if math.isfinite(seconds) else None
