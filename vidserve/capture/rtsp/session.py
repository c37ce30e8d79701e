"""The session with an RTSP server (RFC 2326, and what of 7826 servers speak), TCP interleaved.

Belongs to the capture thread; only ``abort`` is for others.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from vidserve.capture import failures
from vidserve.capture.decoding import Stamp
from vidserve.capture.rtsp import rtcp, sdp
from vidserve.capture.rtsp.connection import Connect, Connection, connect_tcp
from vidserve.capture.rtsp.login import Login
from vidserve.capture.rtsp.pictures import AccessUnit, PictureBuilder
from vidserve.capture.rtsp.wire import Message, Packet
from vidserve.capture.settings import CameraSettings
from vidserve.capture.urls import without_login
from vidserve.clock import Clock
from vidserve.errors import CaptureError, SourceSilent, SourceUnauthorized, SourceUnreachable

logger = logging.getLogger(__name__)

DEFAULT_PORT = 554
MOST_REDIRECTS = 5
REPORT_EVERY_S = 5.0
MOST_ASKED = 100
MOST_STRANGE = 50  # packets that cannot be read, before the first that can
GOODBYE_S = 0.3
_DEFAULT_TIMEOUT_S = 60.0
_REDIRECTS = (301, 302, 303, 305, 307, 308)
_UNSUPPORTED_TRANSPORT = 461


class NotForThisReader(CaptureError):
    """The stream is all right, but another reader has to take it; the message says why."""


class Unit(NamedTuple):
    """A picture, and when its last packet was received."""

    picture: AccessUnit
    stamp: Stamp


class RtspSession:
    """From OPTIONS to TEARDOWN.

    Args:
        settings: Of the camera.
        clock: Tells the time.
        connect: Makes sockets; tests pass one of their own.
    """

    def __init__(
        self, settings: CameraSettings, clock: Clock, connect: Connect = connect_tcp
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._connect = connect
        self._aborted = threading.Event()
        self._connection: Connection | None = None
        parts = urlsplit(str(settings.source))
        username, password = settings.username, settings.password
        if not username and not password:
            username, password = unquote(parts.username or ""), unquote(parts.password or "")
        self._login = Login(username, password)
        self._host = parts.hostname or ""
        self._url = without_login(str(settings.source))
        self._until_s = 0.0
        self._control = ""
        self._alive_method = "OPTIONS"
        self._alive_every_s = _DEFAULT_TIMEOUT_S / 2
        self._alive_next_s = 0.0
        self._alive_again = False  # the next refusal is answered
        self._asked = 0  # by the camera since the last picture
        self._report_next_s = 0.0
        self._own_ssrc = secrets.randbits(32)
        self._sender: tuple[rtcp.Report, float] | None = None  # and when it came
        self._builder: PictureBuilder | None = None
        self._units: deque[Unit] = deque()
        self._waited_s = 0.0
        self.clock_ahead_s: float | None = None

    @property
    def pictures(self) -> PictureBuilder:
        """Counts what was lost; after ``open``."""
        if self._builder is None:
            raise AssertionError("the session is not open")
        return self._builder

    def abort(self) -> None:
        """Make what waits return soon. Any thread."""
        self._aborted.set()
        connection = self._connection
        if connection is not None:
            connection.abort()

    # The beginning.

    def open(self) -> sdp.VideoMedia:
        """Connect, log in, and have the first video track sent. At most ``start_s``.

        Raises:
            NotForThisReader: no H.264 or H.265, or not over this connection.
            SourceUnauthorized, SourceSilent, SourceUnreachable: with a reason for people.
        """
        self._until_s = self._clock.now() + self._settings.start_s
        for _ in range(MOST_REDIRECTS + 1):
            described = self._describe()
            if described is not None:
                media = self._choose(described)
                self._builder = PictureBuilder(media)
                self._set_up(media)
                self._play()
                return media
        raise SourceUnreachable(
            f"{self._host} sends us round in circles ({MOST_REDIRECTS} redirects): check the URL"
        )

    @property
    def _line(self) -> Connection:
        if self._connection is None:
            raise AssertionError("the session is not open")
        return self._connection

    def _describe(self) -> Message | None:
        """The answer to DESCRIBE; None after a redirect, ``_url`` is the new one then."""
        self._hang_up()
        if self._aborted.is_set():
            raise SourceSilent("the source was aborted")
        try:
            parts = urlsplit(self._url)
            port = parts.port or DEFAULT_PORT
        except ValueError as error:
            raise SourceUnreachable(f"the URL is none ({error}): check it") from None
        self._connection = Connection(
            parts.hostname or "", port, self._until_s, self._settings.start_s,
            self._login, self._clock, self._connect, self._aborted,
        )  # fmt: skip
        if self._aborted.is_set():  # between making it and showing it to ``abort``
            raise SourceSilent("the source was aborted")
        options = self._ask("OPTIONS", self._url)
        if options.status in _REDIRECTS and self._redirected(options):
            return None
        offered = {name.strip().upper() for name in options.header("public").split(",")}
        self._alive_method = "GET_PARAMETER" if "GET_PARAMETER" in offered else "OPTIONS"
        described = self._ask("DESCRIBE", self._url, {"Accept": "application/sdp"})
        if described.status in _REDIRECTS and self._redirected(described):
            return None
        self._check(described)
        return described

    def _redirected(self, answer: Message) -> bool:
        """Go where the answer points to; False if it points nowhere."""
        where = answer.header("location")
        if not where:
            return False
        try:
            target = without_login(urljoin(self._url, where))
            new, old = urlsplit(target), urlsplit(self._url)
            moved = (new.hostname, new.port) != (old.hostname, old.port)
        except ValueError:
            raise failures.nonsense(self._line.place, "RTSP") from None
        if new.scheme.lower() != "rtsp":
            raise NotForThisReader("it redirects to something that is not plain RTSP")
        if moved:
            self._login.forget()
        self._url = target
        return True

    def _ask(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        keep: Callable[[Packet], None] | None = None,
    ) -> Message:
        """A request and its answer; with the login once the server asks for it."""
        line = self._line
        line.send(method, url, headers)
        answer = line.answer(self._until_s, keep)
        for _ in range(2):  # the second time only for a nonce that was too old
            if answer.status != 401 or not self._login.given:
                break
            before = self._login.header(method, url) is not None
            if not self._login.challenge(answer.headers.get("www-authenticate", [])):
                raise SourceUnauthorized(
                    f"{line.place} asks for a login of a kind that is not known here: "
                    "allow Basic or Digest in the camera"
                )
            if before and not self._login.stale:
                break
            if self._login.is_basic and line.host != self._host:
                raise SourceUnauthorized(
                    f"{line.place}, to which {self._host} redirects, asks for the password in "
                    "the clear: if you trust it, write its URL into the config"
                )
            line.send(method, url, headers)
            answer = line.answer(self._until_s, keep)
        return answer

    def _check(self, answer: Message) -> None:
        if 200 <= answer.status < 300:
            return
        place = self._line.place
        if answer.status in (401, 403):
            raise failures.refused_login(place, answer.status, self._login.given)
        if answer.status == 404:
            raise failures.no_such_stream(place)
        if answer.status == _UNSUPPORTED_TRANSPORT:
            raise NotForThisReader("the server does not send over this connection (461)")
        if not answer.status:
            raise failures.nonsense(place, "RTSP")
        raise failures.answered(place, f"{answer.status} {answer.reason}".strip())

    def _choose(self, described: Message) -> sdp.VideoMedia:
        base = described.header("content-base") or described.header("content-location")
        if not _is_rtsp(base):
            base = self._url
        control, tracks = sdp.parse(described.body.decode("utf-8", "replace"))
        if not tracks:
            raise NotForThisReader("its description names no video track")
        media = next((track for track in tracks if track.codec), None)
        if media is None:
            raise NotForThisReader(f"it sends {tracks[0].encoding}, not H.264 or H.265")
        session, track = sdp.control_url(base, control), sdp.control_url(base, media.control)
        if not (_is_rtsp(session) and _is_rtsp(track)):
            raise failures.nonsense(self._line.place, "RTSP")
        self._url, self._control = without_login(session), without_login(track)
        return media

    def _set_up(self, media: sdp.VideoMedia) -> None:
        line = self._line
        wanted = "RTP/AVP/TCP;unicast;interleaved=0-1"
        answer = self._ask("SETUP", self._control, {"Transport": wanted})
        self._check(answer)
        transport = answer.header("transport")
        if "tcp" not in transport.lower() and "interleaved" not in transport.lower():
            raise NotForThisReader("the server does not send over this connection")
        channels = re.search(r"interleaved\s*=\s*(\d{1,3})(?:-(\d{1,3}))?", transport)
        first = int(channels.group(1)) if channels else 0
        second = int(channels.group(2)) if channels and channels.group(2) else first + 1
        if max(first, second) > 255:
            raise NotForThisReader(f"it wants to send on channel {max(first, second)}")
        line.splitter.channels = (first, second)
        session, _, rest = answer.header("session").partition(";")
        line.session = session.strip()
        limit = re.search(r"timeout\s*=\s*(\d{1,5})", rest)
        timeout_s = float(limit.group(1)) if limit else _DEFAULT_TIMEOUT_S
        self._alive_every_s = max(1.0, timeout_s / 2)

    def _play(self) -> None:
        self._check(self._ask("PLAY", self._url, {"Range": "npt=0.000-"}, self._keep))
        now_s = self._clock.now()
        self._alive_next_s = now_s + self._alive_every_s
        self._report_next_s = now_s + REPORT_EVERY_S

    # The stream.

    def read(self) -> Unit:
        """The next picture. Waits for ``stall_s`` at most, whatever else comes.

        Raises:
            SourceSilent: nothing came in time.
            SourceUnreachable: the server went away, or ended the session.
            NotForThisReader: packets come, and none of the first ones can be read.
        """
        data_channel = self._channels[0]
        next_found = self._line.splitter.next
        while not self._units:
            found = next_found()
            if found is None:
                self._receive()
            elif isinstance(found, Message):
                self._take(found)
            elif found.channel == data_channel:
                self._keep(found)
            else:
                self._hear(found.payload)
        self._asked = 0
        return self._units.popleft()

    def _keep(self, packet: Packet) -> None:
        """A packet of the stream, also one that came before the answer to PLAY."""
        if packet.channel == self._channels[0]:
            for picture in self.pictures.add(packet.payload):
                stamp = Stamp(self._line.latest.when_s, self._waited_s)
                self._units.append(Unit(picture, stamp))
                self._waited_s = 0.0

    @property
    def _channels(self) -> tuple[int, int]:
        return self._line.splitter.channels or (0, 1)

    def _receive(self) -> None:
        """Wait for more, and do what is due meanwhile."""
        line, stall_s = self._line, self._settings.stall_s
        strange = self.pictures.malformed + self.pictures.foreign
        if strange > MOST_STRANGE and not self.pictures.begun:
            raise NotForThisReader("its packets are of a kind that is not known here")
        before_s = self._waited_s
        began_s = self._clock.now()
        until_s = min(began_s + stall_s - before_s, self._alive_next_s, self._report_next_s)
        came = line.receive(until_s)
        now_s = line.latest.when_s if came else self._clock.now()
        self._waited_s += now_s - began_s
        # What came may be the end of a picture, however long it took (this process may have been
        # stopped meanwhile); if it was none, the next look finds that the time was over before.
        if (before_s if came else self._waited_s) >= stall_s:
            raise SourceSilent(f"no frame for {stall_s:g} s")
        if now_s >= self._alive_next_s:
            self._alive_next_s = now_s + self._alive_every_s
            line.send(self._alive_method, self._url)
            self._alive_again = True
        if now_s >= self._report_next_s:
            self._report_next_s = now_s + REPORT_EVERY_S
            self._report(now_s)

    def _take(self, message: Message) -> None:
        """An answer to a sign of life, or something that the server asks."""
        line = self._line
        if message.method in ("TEARDOWN", "REDIRECT"):
            raise SourceUnreachable(f"the camera ended the session ({message.method})")
        if message.method:
            self._asked += 1
            if self._asked > MOST_ASKED:
                raise SourceUnreachable("the camera asks and asks, and sends no pictures")
            line.decline(message)
        elif message.status == 401 and self._login.given:
            # The nonce grew old. Anything else shows itself by silence.
            self._login.challenge(message.headers.get("www-authenticate", []))
            if self._alive_again:
                self._alive_again = False
                line.send(self._alive_method, self._url)
        elif message.status == 454:
            raise SourceUnreachable("the camera forgot the session (454)")

    def _hear(self, packet: memoryview) -> None:
        """RTCP: the sender's clock, or its good-bye."""
        report = rtcp.parse(packet)
        if report.bye:
            raise SourceUnreachable("the camera ended the stream")
        if report.ssrc is not None:
            self._sender = report, self._line.latest.when_s
            age_s = self._clock.now() - self._line.latest.when_s
            self.clock_ahead_s = report.sender_wall_s - (self._clock.wall() - age_s)

    def _report(self, now_s: float) -> None:
        builder = self.pictures
        if builder.ssrc is None:
            return
        middle, since_s = 0, 0.0
        if self._sender is not None:
            middle, since_s = self._sender[0].middle, now_s - self._sender[1]
        content = rtcp.receiver_report(
            self._own_ssrc, builder.ssrc, builder.highest_seq, builder.lost, middle, since_s
        )
        head = bytes((0x24, self._channels[1])) + len(content).to_bytes(2, "big")
        self._line.send_bytes(head + content)

    # The end.

    def close(self) -> None:
        """Say good-bye, briefly, so that the camera frees its session; free the socket."""
        self._units.clear()
        self._hang_up()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.session:
            with contextlib.suppress(CaptureError):  # it is over anyhow
                connection.send("TEARDOWN", self._url, limit_s=GOODBYE_S)
                if not self._aborted.is_set():
                    connection.answer(self._clock.now() + GOODBYE_S)
        connection.close()


def _is_rtsp(url: str) -> bool:
    """Whether this is a whole URL that one can ask for."""
    try:
        return urlsplit(url).scheme.lower() in ("rtsp", "rtspu") and bool(urlsplit(url).hostname)
    except ValueError:
        return False
