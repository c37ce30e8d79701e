"""HTTP cameras in the laboratory: MJPEG and live transport streams, good and in trouble.

The scenarios run at the same time (``tests.lab.together``).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import cv2
import pytest

from tests.lab import clips
from tests.lab.servers import http_status, mjpeg_server, mpegts_server
from tests.lab.sink import CollectingSink
from tests.lab.together import Failures, Run, Scenario, run_together
from vidserve.capture.camera import CameraSettings
from vidserve.frames import CameraState

CONNECTING, RUNNING = CameraState.CONNECTING, CameraState.RUNNING
FAILED, STALLED = CameraState.FAILED, CameraState.STALLED
UNAUTHORIZED = CameraState.UNAUTHORIZED


def camera(name: str, url: str) -> CameraSettings:
    """Impatient, so that tests are short."""
    return CameraSettings(name, url, start_s=4.0, stall_s=1.0)


class Scenarios:
    """Every method that is not private is a scenario."""

    def __init__(self, jpegs: list[bytes], ts: Path) -> None:
        self._jpegs = jpegs
        self._ts = ts

    def mjpeg_is_live_and_its_silence_is_a_stall(self) -> Scenario:
        sink = CollectingSink(keyframe_every=4)
        with mjpeg_server(self._jpegs, stop_after=20) as url:
            yield Run(sink, [camera("c", url)], lambda: STALLED in sink.states())
        assert sink.states()[:3] == [CONNECTING, RUNNING, STALLED]
        assert sink.statuses[2].reason == "no frame for 1 s"
        assert sink.sizes == [(320, 180)]
        # Its timestamps are FFmpeg's invention.
        assert all(lag_s is None for _, lag_s, _ in sink.lags)
        sink.check_accounts("c")

    def mjpeg_that_closes_is_asked_again(self) -> Scenario:
        sink = CollectingSink()
        with mjpeg_server(self._jpegs, stop_after=10, then="close") as url:
            yield Run(sink, [camera("c", url)], lambda: sink.states().count(RUNNING) >= 2)
        assert sink.states()[:4] == [CONNECTING, RUNNING, CONNECTING, RUNNING]
        assert "connection lost" in sink.statuses[2].reason
        sink.check_accounts("c")

    def a_transport_stream_is_live_and_its_silence_is_a_stall(self) -> Scenario:
        sink = CollectingSink(keyframe_every=4)
        with mpegts_server(self._ts, 2.0) as asked:
            yield Run(sink, [camera("c", asked.url)], lambda: STALLED in sink.states())
        assert sink.states()[:3] == [CONNECTING, RUNNING, STALLED]
        assert sink.statuses[2].reason == "no frame for 1 s"
        # It came in 2 s, and was not read faster or slower.
        seen_s = sink.frames[-1].captured_s - sink.frames[0].captured_s
        assert 0.5 < seen_s < 3.5
        sink.check_accounts("c")

    def a_transport_stream_that_closes_is_asked_again(self) -> Scenario:
        sink = CollectingSink()
        with mpegts_server(self._ts, 1.0, then="close") as asked:
            yield Run(sink, [camera("c", asked.url)], lambda: sink.states().count(RUNNING) >= 2)
        assert sink.states()[:4] == [CONNECTING, RUNNING, CONNECTING, RUNNING]
        assert "connection lost" in sink.statuses[2].reason
        # Its timestamps begin again: no frame gets an absurd age.
        assert all(0.0 <= frame.ready_s - frame.captured_s < 1.0 for frame in sink.frames)
        sink.check_accounts("c")

    def a_redirect_is_followed(self) -> Scenario:
        sink = CollectingSink()
        with mjpeg_server(self._jpegs) as url, http_status(302, url) as asked:
            yield Run(sink, [camera("c", asked.url)], lambda: RUNNING in sink.states())
        assert sink.states() == [CONNECTING, RUNNING]

    def a_refusal_is_a_state_with_a_reason(self) -> Scenario:
        sink = CollectingSink()
        right = {
            400: (FAILED, ""),
            403: (UNAUTHORIZED, "403"),
            404: (FAILED, "404"),
            500: (FAILED, ""),
            503: (FAILED, ""),
        }
        with contextlib.ExitStack() as stack:
            asked = {status: stack.enter_context(http_status(status)) for status in right}
            settings = [camera(str(status), one.url) for status, one in asked.items()]
            yield Run(
                sink,
                settings,
                lambda: all(len(sink.states(str(status))) > 1 for status in right),
            )
        for status, (state, text) in right.items():
            assert sink.states(str(status)) == [CONNECTING, state], status
            reason = next(s.reason for s in sink.statuses[::-1] if s.camera == str(status))
            assert "127.0.0.1" in reason and text in reason, reason

    def refused_logins_are_tried_once_and_then_slowly(self) -> Scenario:
        sink = CollectingSink()
        began_s = time.monotonic()
        with http_status(401) as wrong, http_status(401) as bare:
            settings = [
                CameraSettings("wrong", wrong.url, username="joe", password="wrong"),
                CameraSettings("bare", bare.url),
            ]
            yield Run(
                sink,
                settings,
                lambda: sink.states().count(UNAUTHORIZED) == 2 and time.monotonic() - began_s > 3.0,
            )
            assert len(wrong.logins) == 1  # an account is locked after a few of these
            assert not bare.logins
            assert len(wrong.paths) <= 2 and len(bare.paths) <= 2  # FFmpeg asks twice
        assert all("401" in s.reason for s in sink.statuses if s.state is UNAUTHORIZED)

    def a_server_that_goes_away_is_asked_more_and_more_slowly(self) -> Scenario:
        sink = CollectingSink()
        began_s = time.monotonic()
        with http_status(503) as asked:
            yield Run(sink, [camera("c", asked.url)], lambda: time.monotonic() - began_s > 3.0)
            assert 2 <= len(asked.paths) <= 5  # after 0.5, 1 and 2 s, a quarter less at most
        assert sink.states() == [CONNECTING, FAILED]


NAMES = [name for name in vars(Scenarios) if not name.startswith("_")]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures[str]:
    jpegs = []
    for index in range(10):
        good, data = cv2.imencode(".jpg", clips.picture(index, 320, 180)[:, :, ::-1])
        assert good
        jpegs.append(data.tobytes())
    ts = clips.write(tmp_path_factory.mktemp("http") / "live.ts", frames=60)
    scenarios = Scenarios(jpegs, ts)
    return run_together({name: getattr(scenarios, name)() for name in NAMES})


@pytest.mark.parametrize("name", NAMES)
def test_http(failures: Failures[str], name: str) -> None:
    failure = failures[name]
    if failure is not None:
        raise failure
