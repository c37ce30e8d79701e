"""A real RTSP server (GStreamer) that plays one H.264 clip for ever. Run by the system's python3.

``/usr/bin/python3 rtsp_server.py --clip CLIP.h264 --fps 30 [--user U --password P --digest]
[--port N]`` prints its port on a line of its own, serves ``/stream``, and ends with its stdin.
The clip is a byte stream with an access unit delimiter before each picture, without B-frames
(``clips.annexb`` makes one); the timestamps go on rising over the loops.
"""

import argparse
import sys
import threading
from typing import Any

import gi  # type: ignore[import-not-found,import-untyped,unused-ignore]

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: E402

DELIMITER = b"\x00\x00\x00\x01\x09"


def access_units(path: str) -> list[bytes]:
    """The pictures of the clip, each with its parameter sets."""
    with open(path, "rb") as file:
        data = file.read()
    return [DELIMITER + part for part in data.split(DELIMITER)[1:]]


class Feeder:
    """Pushes pictures into one client pipeline, as it asks for them."""

    def __init__(self, units: list[bytes], fps: float) -> None:
        self.units = units
        self.period = round(Gst.SECOND / fps)
        self.count = 0

    def feed(self, source: Any, _length: int) -> None:
        buffer = Gst.Buffer.new_wrapped(self.units[self.count % len(self.units)])
        buffer.pts = buffer.dts = self.count * self.period
        buffer.duration = self.period
        self.count += 1
        source.emit("push-buffer", buffer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clip", required=True)
    parser.add_argument("--fps", type=float, default=30.0)
    parser.add_argument("--user")
    parser.add_argument("--password", default="")
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    Gst.init(None)
    units = access_units(options.clip)
    feeders = []

    def configure(_factory: Any, media: Any) -> None:
        feeder = Feeder(units, options.fps)
        feeders.append(feeder)
        source = media.get_element().get_by_name("source")
        source.connect("need-data", feeder.feed)

    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(
        "( appsrc name=source is-live=true format=time max-bytes=1 "
        'caps="video/x-h264,stream-format=byte-stream,alignment=au" '
        "! h264parse ! rtph264pay name=pay0 pt=96 config-interval=-1 )"
    )
    factory.set_shared(True)
    factory.connect("media-configure", configure)
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(str(options.port))
    if options.user is not None:
        auth = GstRtspServer.RTSPAuth()
        token = GstRtspServer.RTSPToken()
        token.set_string("media.factory.role", "viewer")
        if options.digest:
            auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
            auth.add_digest(options.user, options.password, token)
        else:
            basic = GstRtspServer.RTSPAuth.make_basic(options.user, options.password)
            auth.add_basic(basic, token)
        permissions = GstRtspServer.RTSPPermissions()
        permissions.add_permission_for_role("viewer", "media.factory.access", True)
        permissions.add_permission_for_role("viewer", "media.factory.construct", True)
        factory.set_permissions(permissions)
        server.set_auth(auth)
    server.get_mount_points().add_factory("/stream", factory)
    server.attach(None)
    print(server.get_bound_port(), flush=True)  # noqa: T201
    loop = GLib.MainLoop()

    def end_with_stdin() -> None:
        sys.stdin.read()
        GLib.idle_add(loop.quit)

    threading.Thread(target=end_with_stdin, daemon=True).start()
    loop.run()


if __name__ == "__main__":
    main()
