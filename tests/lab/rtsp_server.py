"""A real RTSP server (GStreamer) for tests. Run by the system's python3, from the repository.

``/usr/bin/python3 -m tests.lab.rtsp_server --clip A.units [--clip B.units] [--mounts 8]`` plays
clips over and over, with rising timestamps; without a clip it shows a test picture with a clock
in it (``clock_picture``). It prints its port on a line of its own, serves ``/stream`` and
``/stream0`` .. ``/streamN``, and ends with its stdin. Each line of stdin is a command in JSON,
answered by a line of JSON; see ``Lab.command``. ``rtsp_process.RtspServer`` speaks to it.
"""

import argparse
import json
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gi  # type: ignore[import-not-found,import-untyped,unused-ignore]

from tests.lab.rtsp_media import Clip, ClipFeeder, Disturbance, PictureFeeder, load

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: E402

PARSERS = {"h264": "h264parse", "h265": "h265parse"}
PAYLOADERS = {"h264": "rtph264pay", "h265": "rtph265pay"}


class Mount:
    """One path of the server; all its clients share one pipeline."""

    def __init__(self, options: argparse.Namespace, clips: list[Clip]) -> None:
        self.options = options
        self.clips = clips
        self.disturbance = Disturbance()
        self.clip = 0
        self.feeder: ClipFeeder | PictureFeeder | None = None

    def launch(self) -> str:
        """The pipeline's description."""
        codec = self.clips[0].codec if self.clips else self.options.codec
        pay = f"{PAYLOADERS[codec]} name=pay0 pt=96 config-interval=-1"
        if self.clips:
            caps = f"video/x-{codec},stream-format=byte-stream,alignment=au"
            source = f'appsrc name=source is-live=true format=time max-bytes=1 caps="{caps}"'
            return f"( {source} ! {PARSERS[codec]} ! {pay} )"
        width, height, fps = self.options.width, self.options.height, round(self.options.fps)
        caps = f"video/x-raw,format=I420,width={width},height={height},framerate={fps}/1"
        source = "appsrc name=source is-live=true do-timestamp=true format=time max-bytes=1"
        bframes = self.options.b_frames
        if codec == "h264":
            coder = f"x264enc speed-preset=ultrafast key-int-max={fps} threads=1 bframes={bframes}"
            coder += " b-adapt=false rc-lookahead=0 sync-lookahead=0"
        else:
            lookahead = bframes + 1 if bframes else 0
            coder = f"x265enc speed-preset=ultrafast key-int-max={fps} option-string="
            coder += f'"bframes={bframes}:b-adapt=0:rc-lookahead={lookahead}'
            coder += ':pools=none:frame-threads=1"'
        coder += "" if bframes else " tune=zerolatency"
        if codec == "h264":
            # Left alone they agree on the baseline profile, which has no B-frames.
            coder += " ! video/x-h264,profile=main"
        return f'( {source} caps="{caps}" ! {coder} ! {PARSERS[codec]} ! {pay} )'

    def configure(self, _factory: Any, media: Any) -> None:
        """A first client has come: GStreamer has made a pipeline."""
        if self.clips:
            self.feeder = ClipFeeder(self.clips, self.clip)
        else:
            options = self.options
            self.feeder = PictureFeeder(options.width, options.height, options.fps)
        element = media.get_element()
        element.get_by_name("source").connect("need-data", self.feeder.feed)
        self.disturbance.attach(element.get_by_name("pay0").get_static_pad("src"))


class Lab:
    """The server and what may be done to it; the main thread's."""

    def __init__(self, options: argparse.Namespace) -> None:
        clips = [load(Path(path), options.fps) for path in options.clip]
        self.server = GstRtspServer.RTSPServer()
        self.server.set_address("127.0.0.1")
        self.server.set_service(str(options.port))
        self.connections = 0
        self._close_after_s = options.close_after_s
        self.server.connect("client-connected", self._connected)
        permissions = self._ask_for_login(options) if options.user is not None else None
        self.mounts = [Mount(options, clips) for _ in range(max(1, options.mounts))]
        points = self.server.get_mount_points()
        for number, mount in enumerate(self.mounts):
            factory = GstRtspServer.RTSPMediaFactory()
            factory.set_launch(mount.launch())
            factory.set_shared(True)
            factory.connect("media-configure", mount.configure)
            if permissions is not None:
                factory.set_permissions(permissions)
            points.add_factory(f"/stream{number}", factory)
            if number == 0:
                points.add_factory("/stream", factory)
        self.server.attach(None)

    def _ask_for_login(self, options: argparse.Namespace) -> Any:
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
        self.server.set_auth(auth)
        return permissions

    def _connected(self, _server: Any, client: Any) -> None:
        self.connections += 1
        if self._close_after_s is not None:
            GLib.timeout_add(round(self._close_after_s * 1000), lambda: client.close() and False)

    def _clients(self, close: bool) -> int:
        found = []

        def each(_server: Any, client: Any) -> Any:
            found.append(client)
            return GstRtspServer.RTSPFilterResult.KEEP

        self.server.client_filter(each)
        if close:
            for client in found:
                client.close()
        return len(found)

    def command(self, line: str) -> dict[str, int]:
        """Do what a line of JSON asks; ``mount`` limits it to one, by number.

        ``{"do": "mute", "on": true}`` stops sending with the sessions open;
        ``{"do": "disturb", "loss": 0.05, "reorder": 0.01}`` shares of packets;
        ``{"do": "clip", "index": 1}`` goes on with another clip; ``{"do": "close"}`` closes the
        connections; ``{"do": "stats"}`` only counts.

        Returns:
            Clients now, connections, and packets sent, lost and late, so far.
        """
        asked = json.loads(line)
        number = asked.get("mount")
        mounts = self.mounts if number is None else [self.mounts[number]]
        for mount in mounts:
            if asked["do"] == "mute":
                mount.disturbance.muted = asked["on"]
            elif asked["do"] == "disturb":
                mount.disturbance.loss = asked["loss"]
                mount.disturbance.reorder = asked["reorder"]
            elif asked["do"] == "clip":
                mount.clip = asked["index"]
                if mount.feeder is not None:
                    mount.feeder.wanted = mount.clip
        clients = self._clients(close=asked["do"] == "close")
        all_of_them = [mount.disturbance for mount in mounts]
        return {
            "clients": clients,
            "connections": self.connections,
            "sent": sum(one.sent for one in all_of_them),
            "lost": sum(one.lost for one in all_of_them),
            "late": sum(one.late for one in all_of_them),
        }


def tell(text: str) -> None:
    """A line to whoever started this."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Iterable[str] | None = None) -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clip", action="append", default=[])
    parser.add_argument("--fps", type=float, default=30.0)
    parser.add_argument("--codec", choices=list(PARSERS), default="h264")
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--height", type=int, default=180)
    parser.add_argument("--b-frames", type=int, default=0)
    parser.add_argument("--mounts", type=int, default=1)
    parser.add_argument("--close-after-s", type=float)
    parser.add_argument("--user")
    parser.add_argument("--password", default="")
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    Gst.init(None)
    lab = Lab(parser.parse_args(list(arguments) if arguments is not None else None))
    tell(str(lab.server.get_bound_port()))
    loop = GLib.MainLoop()

    def obey(line: str) -> bool:
        tell(json.dumps(lab.command(line)))
        return False

    def listen() -> None:
        for line in sys.stdin:
            GLib.idle_add(obey, line)
        GLib.idle_add(loop.quit)

    threading.Thread(target=listen, daemon=True).start()
    loop.run()


if __name__ == "__main__":
    main()
