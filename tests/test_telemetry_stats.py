"""Numbers of a run: quantiles, shares, duration, and the form of the snapshot."""

from __future__ import annotations

import random
import threading

import orjson
import pytest

from vidserve.frames import (
    Batch,
    BatchKind,
    Bucket,
    CameraState,
    CameraStatus,
    DropReason,
    Frame,
)
from vidserve.telemetry.process import process_snapshot
from vidserve.telemetry.stats import CameraStats, RunStats, Snapshot

BUCKET = Bucket(384, 640)
STAGES = {"capture", "wait", "detect", "track", "answer"}


def frame(camera: str, seq: int, captured_s: float, ready_s: float | None = None) -> Frame:
    ready_s = captured_s if ready_s is None else ready_s
    return Frame(camera, seq, captured_s, captured_s, ready_s, 1280, 720)


def batch(*frames: Frame, started_s: float = 0.0, kind: BatchKind = BatchKind.IN_TIME) -> Batch:
    return Batch(frames, BUCKET, kind, started_s, started_s + 0.01)


def run_stats(budget_s: float = 0.033, started_s: float = 0.0) -> RunStats:
    return RunStats(budget_s, batch_max=8, started_s=started_s)


def answer(
    stats: CameraStats, seq: int, captured_s: float, took_s: float, detected: bool = False
) -> None:
    stats.ledger.capture(seq, captured_s)
    stats.answered(frame(stats.name, seq, captured_s), detected, captured_s + took_s, 0.001)


# -- shares --------------------------------------------------------------------------------


def test_the_budget_is_met_up_to_its_last_moment() -> None:
    stats = run_stats(budget_s=0.25).camera("gate")
    answer(stats, 0, 1.0, 0.25)
    answer(stats, 1, 2.0, 0.2500001)
    assert stats.snapshot(3.0, 3.0)["answered_in_budget"] == 0.5


def test_dropped_frames_count_against_the_share_and_pending_ones_do_not() -> None:
    stats = run_stats().camera("gate")
    for seq in range(8):
        answer(stats, seq, seq * 0.1, 0.01)
    stats.ledger.capture(8, 0.8)
    stats.ledger.drop(8, DropReason.INVALID)
    stats.ledger.capture_and_drop(DropReason.MISSED, 1)
    for seq in range(9, 14):
        stats.ledger.capture(seq, 0.9)
    snapshot = stats.snapshot(1.0, 1.0)
    assert snapshot["pending"] == 5
    assert snapshot["answered_in_budget"] == 0.8


def test_the_share_of_the_run_weighs_cameras_by_their_frames() -> None:
    stats = run_stats()
    for seq in range(90):
        answer(stats.camera("quick"), seq, seq * 0.01, 0.001)
    for seq in range(10):
        answer(stats.camera("slow"), seq, seq * 0.1, 1.0)
    stats.camera("silent")
    snapshot = stats.snapshot(1.0)
    assert snapshot["answered_in_budget"] == 0.9
    assert snapshot["cameras"]["slow"]["answered_in_budget"] == 0.0
    assert snapshot["cameras"]["silent"]["answered_in_budget"] is None


def test_shares_before_any_frame_are_null() -> None:
    assert run_stats().snapshot(10.0)["answered_in_budget"] is None


# -- detections ----------------------------------------------------------------------------


def test_detections_in_time_and_late_count_together_per_second() -> None:
    stats = run_stats().camera("gate")
    for seq in range(10):
        one = frame("gate", seq, seq * 0.5)
        stats.detection(one, batch(one, started_s=seq * 0.5 + 0.002), seq * 0.5 + 0.01, seq >= 6)
    snapshot = stats.snapshot(5.0, 5.0)
    assert snapshot["detections_per_s"] == 2.0
    assert snapshot["detections_late"] == 4
    assert snapshot["latency_ms"]["wait"]["p50"] == pytest.approx(2.0, rel=0.02)
    assert snapshot["latency_ms"]["detect"]["p50"] == pytest.approx(8.0, rel=0.02)
    assert snapshot["detected"] == 0  # outcomes of frames are the ledger's


def test_the_longest_gap_counts_the_start_the_middle_and_the_end() -> None:
    def longest(captured: list[float], end_s: float) -> float:
        stats = run_stats(started_s=100.0).camera("gate")
        for seq, captured_s in enumerate(captured):
            one = frame("gate", seq, captured_s)
            stats.detection(one, batch(one, started_s=captured_s), captured_s + 0.01, False)
        value = stats.snapshot(end_s, end_s - 100.0)["max_detection_gap_s"]
        assert isinstance(value, float)
        return value

    assert longest([103.0, 104.0], 104.5) == 3.0
    assert longest([101.0, 106.0, 107.0], 107.5) == 5.0
    assert longest([101.0, 102.0], 109.0) == 7.0


def test_a_late_detection_out_of_order_makes_no_negative_gap() -> None:
    stats = run_stats().camera("gate")
    for seq, captured_s in ((3, 0.1), (5, 0.5), (4, 0.15), (6, 0.6)):
        one = frame("gate", seq, captured_s)
        stats.detection(one, batch(one, started_s=1.0), 1.2, seq == 4)
    assert stats.snapshot(0.6, 0.6)["max_detection_gap_s"] == 0.4


# -- batches and the detector --------------------------------------------------------------


def test_batches_by_size_kind_and_fill() -> None:
    stats = run_stats()
    frames = [frame("gate", seq, 0.0) for seq in range(8)]
    stats.batch(batch(*frames[:4]), 0.1, failed=False)
    stats.batch(batch(*frames[:2]), 0.1, failed=False)
    stats.batch(batch(*frames[:2], kind=BatchKind.CORRECTION), 0.1, failed=False)
    stats.batch(batch(*frames), 0.2, failed=True)
    snapshot = stats.snapshot(2.0)
    assert snapshot["batches"]["count"] == 3
    assert snapshot["batches"]["sizes"] == {"2": 2, "4": 1}
    assert snapshot["batches"]["mean_size"] == pytest.approx(8 / 3, abs=0.001)
    assert snapshot["batches"]["fill_ratio"] == pytest.approx(1 / 3, abs=0.001)
    assert snapshot["batches"]["corrections"] == 1
    assert snapshot["batches"]["failed"] == 1
    assert snapshot["detector"]["use"] == 0.25  # a failed batch has cost its time too
    assert snapshot["detector"]["images_per_s"] == 4.0


def test_sizes_are_ordered_as_numbers() -> None:
    stats = run_stats()
    for n in (10, 2, 1):
        stats.batch(batch(*(frame("gate", seq, 0.0) for seq in range(n))), 0.01, failed=False)
    assert list(stats.snapshot(1.0)["batches"]["sizes"]) == ["1", "2", "10"]


def test_without_batches_the_means_are_null() -> None:
    batches = run_stats().snapshot(1.0)["batches"]
    assert (batches["count"], batches["mean_size"], batches["fill_ratio"]) == (0, None, None)
    assert batches["sizes"] == {}


# -- duration ------------------------------------------------------------------------------


def test_the_duration_starts_at_readiness_and_ends_at_draining() -> None:
    stats = run_stats(started_s=50.0)
    answer(stats.camera("gate"), 0, 50.5, 0.01)
    assert stats.snapshot(54.0)["duration_s"] == 4.0
    assert stats.snapshot(54.0)["cameras"]["gate"]["fps"] == 0.25
    stats.stop(60.0)
    late = stats.snapshot(99.0)
    assert late["duration_s"] == 10.0
    assert late["cameras"]["gate"]["fps"] == 0.1
    assert late["detector"]["use"] == 0.0


def test_a_snapshot_at_the_moment_of_readiness_divides_by_nothing() -> None:
    stats = run_stats(started_s=50.0)
    stats.camera("gate")
    assert stats.snapshot(50.0)["duration_s"] == 0.0
    assert stats.snapshot(49.0)["duration_s"] == 0.0


def test_gaps_do_not_grow_after_draining_began() -> None:
    stats = run_stats()
    one = frame("gate", 0, 1.0)
    stats.camera("gate").detection(one, batch(one, started_s=1.0), 1.01, False)
    stats.stop(2.0)
    assert stats.snapshot(500.0)["cameras"]["gate"]["max_detection_gap_s"] == 1.0


def test_the_live_numbers_are_of_the_last_seconds() -> None:
    stats = run_stats().camera("gate")
    for seq in range(300):
        captured_s = seq * 0.1
        answer(stats, seq, captured_s, 0.01 if captured_s > 20 else 1.0, detected=seq % 5 == 0)
        if seq % 5 == 0:
            one = frame("gate", seq, captured_s)
            stats.detection(one, batch(one), captured_s + 0.005, late=seq % 10 == 0)
    live = stats.snapshot(30.0, 30.0)["live"]
    assert live["fps"] == pytest.approx(10, abs=0.7)
    assert live["detections_per_s"] == pytest.approx(2, abs=0.7)  # in time and late together
    assert live["answered_in_budget"] == 1.0
    silent = stats.snapshot(60.0, 60.0)["live"]
    assert (silent["fps"], silent["answered_in_budget"]) == (0.0, None)


def test_an_hour_of_frames_keeps_little() -> None:
    stats = run_stats().camera("gate")
    for seq in range(20_000):
        answer(stats, seq, seq * 0.1, 0.01)
    assert stats.ledger.pending == 0
    assert len(stats._recent) < 50


# -- balance -------------------------------------------------------------------------------


def test_a_run_that_accounts_for_everything_has_no_complaint() -> None:
    stats = run_stats()
    answer(stats.camera("gate"), 0, 1.0, 0.01)
    stats.camera("yard").ledger.capture(0, 1.0)  # pending, but fresh
    assert stats.unbalanced(1.5) == []


def test_a_lost_frame_is_reported_by_camera() -> None:
    stats = run_stats()
    answer(stats.camera("gate"), 0, 1.0, 0.01)
    stats.camera("yard").ledger.capture(7, 1.0)
    assert stats.unbalanced(5.9) == []
    [problem] = stats.unbalanced(7.0)
    assert "yard" in problem
    assert "6.0 s" in problem


def test_a_frame_settled_twice_is_reported_with_its_numbers() -> None:
    stats = run_stats()
    camera = stats.camera("gate")
    answer(camera, 0, 1.0, 0.01)
    camera.answered(frame("gate", 0, 1.0), False, 1.02, 0.001)
    [problem] = stats.unbalanced(1.1)
    assert "gate" in problem
    assert "captured 1 != detected 0 + tracked 2" in problem
    assert not stats.snapshot(1.1)["cameras"]["gate"]["balanced"]


# -- the form of issue 2, point 10 ---------------------------------------------------------


def busy_snapshot() -> Snapshot:
    stats = run_stats()
    gate = stats.camera("gate")
    gate.status = CameraStatus("gate", CameraState.RUNNING, "", 1.7e9)
    one = frame("gate", 0, 0.5, ready_s=0.504)
    gate.ledger.capture(0, 0.5)
    gate.detection(one, batch(one, started_s=0.505), 0.515, False)
    gate.answered(one, True, 0.52, 0.001)
    gate.ledger.capture_and_drop(DropReason.MISSED, 2)
    gate.source_lag(0.0123, 0.033)
    stats.batch(batch(one), 0.01, failed=False)
    stats.camera("silent")
    return stats.snapshot(1.0, {"640x384": {"1": 5.0}})


def test_the_snapshot_has_the_keys_that_readers_rely_on() -> None:
    snapshot = busy_snapshot()
    assert {"duration_s", "answered_in_budget", "cameras", "batches", "detector"} <= set(snapshot)
    wanted = {
        "state", "captured", "detected", "tracked", "dropped", "pending", "detections_late",
        "answered_in_budget", "fps", "detections_per_s", "max_detection_gap_s", "source_lag_ms",
        "latency_ms",
    }  # fmt: skip
    for camera in snapshot["cameras"].values():
        assert wanted <= set(camera)
        assert STAGES <= set(camera["latency_ms"])
        for stage in camera["latency_ms"].values():
            assert {"p50", "p95", "p99", "max"} <= set(stage)
    assert {"count", "mean_size", "fill_ratio", "sizes"} <= set(snapshot["batches"])
    assert {"use", "images_per_s", "service_ms"} <= set(snapshot["detector"])
    assert {"rss_mb", "cpu_s", "threads"} <= set(process_snapshot())


def test_the_snapshot_says_what_happened() -> None:
    gate = busy_snapshot()["cameras"]["gate"]
    assert gate["state"] == "running"
    assert (gate["captured"], gate["detected"], gate["tracked"], gate["pending"]) == (3, 1, 0, 0)
    assert gate["dropped"] == {"missed": 2}
    assert gate["source_lag_ms"] == 12.3
    assert gate["latency_ms"]["capture"]["max"] == pytest.approx(4.0)
    assert gate["latency_ms"]["answer"]["max"] == pytest.approx(20.0)
    assert gate["answered_in_budget"] == pytest.approx(1 / 3, abs=1e-4)


def test_a_camera_without_samples_says_null_not_zero() -> None:
    silent = busy_snapshot()["cameras"]["silent"]
    assert silent["state"] == "connecting"
    assert silent["source_lag_ms"] is None
    assert silent["answered_in_budget"] is None
    assert silent["max_detection_gap_s"] is None
    assert all(v is None for stage in silent["latency_ms"].values() for v in stage.values())


def test_the_snapshot_is_json_and_nobody_elses_to_change() -> None:
    stats = run_stats()
    answer(stats.camera("gate"), 0, 0.5, 0.01)
    table = {"640x384": {"1": 5.0}}
    snapshot = stats.snapshot(1.0, table)
    assert orjson.loads(orjson.dumps(snapshot)) == snapshot
    snapshot["detector"]["service_ms"]["640x384"]["1"] = 99.0
    snapshot["cameras"]["gate"]["dropped"]["stale"] = 7
    assert table == {"640x384": {"1": 5.0}}
    assert stats.snapshot(1.0)["cameras"]["gate"]["dropped"] == {}


def test_a_snapshot_may_be_taken_while_all_threads_write() -> None:
    stats = run_stats()
    faults: list[BaseException] = []
    stop = threading.Event()

    def write(name: str) -> None:
        try:
            drawn = random.Random(name)
            for seq in range(1500):
                answer(stats.camera(name), seq, seq * 0.01, drawn.uniform(0, 0.02), seq % 5 == 0)
                one = frame(name, seq, seq * 0.01)
                stats.camera(name).detection(one, batch(one), 0.01, False)
                stats.batch(batch(one), 0.001, failed=False)
        except BaseException as error:
            faults.append(error)

    def read() -> None:
        try:
            while not stop.is_set():
                snapshot = stats.snapshot(20.0)
                for camera in snapshot["cameras"].values():
                    assert camera["balanced"]
                    assert camera["answered_in_budget"] in (None, 1.0)
        except BaseException as error:
            faults.append(error)

    writers = [threading.Thread(target=write, args=(f"c{k}",)) for k in range(3)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join(60)
    stop.set()
    reader.join(60)
    assert faults == []
    assert stats.snapshot(20.0)["batches"]["count"] == 4500
    assert stats.unbalanced(20.0) == []


def test_the_process_tells_what_it_costs() -> None:
    snapshot = process_snapshot()
    assert 5 < snapshot["rss_mb"] < 100_000
    assert snapshot["cpu_s"] > 0
    assert snapshot["threads"] >= snapshot["python_threads"] >= 1


def test_a_camera_that_is_never_detected_shows_the_whole_run_as_its_gap() -> None:
    stats = run_stats().camera("gate")
    one = frame("gate", 0, 0.0)
    stats.ledger.capture(one.seq, one.captured_s)
    stats.answered(one, False, 0.01, 0.001)
    snapshot = stats.snapshot(stats_end_s := 60.0, stats_end_s)
    assert snapshot["max_detection_gap_s"] == 60.0
