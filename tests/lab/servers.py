"""All servers of the laboratory under one name; see the modules they come from."""

from __future__ import annotations

from tests.lab.http_servers import (
    HttpRequests,
    http_server,
    http_status,
    mjpeg_server,
    mpegts_server,
)
from tests.lab.rtsp_process import SYSTEM_PYTHON, RtspServer, ServerStats, need_rtsp
from tests.lab.scripted_rtsp import ScriptedRtsp
from tests.lab.tcp_servers import (
    Relay,
    babbling_server,
    endless_header_server,
    endless_headers_server,
    hanging_up_server,
    refusing_port,
    serving,
    silent_server,
    tcp_stream,
)

# The readers that every RTSP test is run with.
RTSP_READERS = ["pyav", "rtsp"]

__all__ = [
    "RTSP_READERS",
    "SYSTEM_PYTHON",
    "HttpRequests",
    "Relay",
    "RtspServer",
    "ScriptedRtsp",
    "ServerStats",
    "babbling_server",
    "endless_header_server",
    "endless_headers_server",
    "hanging_up_server",
    "http_server",
    "http_status",
    "mjpeg_server",
    "mpegts_server",
    "need_rtsp",
    "refusing_port",
    "serving",
    "silent_server",
    "tcp_stream",
]
