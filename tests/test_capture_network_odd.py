"""Servers that are no cameras at all, over RTSP and HTTP: never running, soon over, one reason.

They run at the same time (``tests.lab.together``); each takes a core while it is read.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable

import pytest

from tests.lab import rtp
from tests.lab.scripted_rtsp import Answer, ScriptedRtsp
from tests.lab.servers import (
    RTSP_READERS,
    babbling_server,
    endless_header_server,
    endless_headers_server,
    hanging_up_server,
    http_status,
)
from tests.lab.sink import CollectingSink
from tests.lab.together import Failures, Run, Scenario, run_together
from vidserve.capture.camera import CameraSettings
from vidserve.frames import CameraState

Server = Callable[[], contextlib.AbstractContextManager[int]]
OK = b"RTSP/1.0 200 OK\r\nCSeq: 1\r\n"
ODD: dict[str, Server] = {
    "noise": babbling_server,
    "a header line without an end": endless_header_server,
    "headers without an end": endless_headers_server,
    "hangs up": hanging_up_server,
    "a body of less than nothing": lambda: babbling_server(OK + b"Content-Length: -5\r\n\r\n"),
    "a body of 100 GB": lambda: babbling_server(OK + b"Content-Length: 99999999999\r\n\r\n"),
    "a body of words": lambda: babbling_server(OK + b"Content-Length: many\r\n\r\n"),
    "http": lambda: babbling_server(b"HTTP/1.1 400 Bad Request\r\n\r\n", b""),
    "ssh": lambda: babbling_server(b"SSH-2.0-OpenSSH_9.2\r\n", b""),
    "packets unasked": lambda: babbling_server(block=b"$\x00\x00\x04abcd"),
}
ODD_HTTP: dict[str, Server] = {
    "noise": babbling_server,
    "a header line without an end": lambda: endless_header_server("HTTP"),
    "headers without an end": lambda: endless_headers_server("HTTP"),
    "hangs up": hanging_up_server,
    "rtsp": lambda: babbling_server(OK + b"\r\n", b""),
    "a page without an end": lambda: babbling_server(
        b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n", b"<p>camera</p>\n" * 400
    ),
}


def odd(scheme: str, reader: str, server: Server) -> Scenario:
    sink = CollectingSink()
    with server() as port:
        url = f"{scheme}://127.0.0.1:{port}/x"
        settings = CameraSettings("c", url, reader=reader, start_s=2.0, stall_s=1.0)
        yield Run(sink, [settings], lambda: len(sink.states()) > 1)
    assert sink.states()[1] in (CameraState.FAILED, CameraState.STALLED)
    assert not sink.frames
    reason = sink.statuses[1].reason
    assert len(reason) > 10 and "internal" not in reason, reason


def redirects_in_a_circle(reader: str) -> Scenario:
    sink = CollectingSink()
    with ScriptedRtsp(rtp.sdp("h264")) as server:
        server.on("DESCRIBE", Answer(302, [("Location", server.url)], hang_up=True))
        settings = CameraSettings("c", server.url, reader=reader, start_s=2.0, stall_s=1.0)
        yield Run(sink, [settings], lambda: len(sink.states()) > 1)
        asked = len(server.asked("DESCRIBE"))
    assert sink.states()[1] in (CameraState.FAILED, CameraState.STALLED)
    # FFmpeg follows without a limit, as fast as it can, until its time is over.
    assert reader == "pyav" or asked <= 20


def http_redirects_in_a_circle() -> Scenario:
    sink = CollectingSink()
    with http_status(302, "/video") as asked:
        settings = CameraSettings("c", asked.url, start_s=2.0, stall_s=1.0)
        yield Run(sink, [settings], lambda: len(sink.states()) > 1)
        count = len(asked.paths)
    assert sink.states()[1] in (CameraState.FAILED, CameraState.STALLED)
    assert count <= 40


NAMES = [
    *(f"{reader}: {name}" for reader in RTSP_READERS for name in [*ODD, "circle"]),
    *(f"http: {name}" for name in [*ODD_HTTP, "circle"]),
]


@pytest.fixture(scope="module")
def failures() -> Failures[str]:
    scenarios: dict[str, Scenario] = {}
    for reader in RTSP_READERS:
        scenarios |= {f"{reader}: {name}": odd("rtsp", reader, one) for name, one in ODD.items()}
        scenarios[f"{reader}: circle"] = redirects_in_a_circle(reader)
    scenarios |= {f"http: {name}": odd("http", "auto", one) for name, one in ODD_HTTP.items()}
    scenarios["http: circle"] = http_redirects_in_a_circle()
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = run_together(scenarios)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    assert grown_mb < 500, f"{grown_mb:.0f} MB more"
    return found


@pytest.mark.parametrize("name", NAMES)
def test_no_camera(failures: Failures[str], name: str) -> None:
    failure = failures[name]
    if failure is not None:
        raise failure
