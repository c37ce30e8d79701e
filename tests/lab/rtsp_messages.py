"""What an RTSP client asks, and what is said to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_REASONS = {
    200: "OK", 301: "Moved Permanently", 302: "Moved Temporarily", 400: "Bad Request",
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 454: "Session Not Found",
    461: "Unsupported Transport", 500: "Internal Server Error", 501: "Not Implemented",
    503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What a client asked.

    Attributes:
        method, url: Of the first line.
        headers: By name in lower case.
        body: Of ``Content-Length`` bytes.
        connection: The index of its connection in ``ScriptedRtsp.connections``.
        at_s: When it was read, monotonic.
    """

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    connection: int
    at_s: float


@dataclass(frozen=True)
class Answer:
    """What is said to one request.

    Attributes:
        status, reason: Of the first line; the usual reason by default.
        headers: In order; a name may come twice. ``CSeq`` is added unless it is given.
        body: With a ``Content-Length`` if not empty, unless that is given.
        raw: Sent as it is in place of all this.
        silent: Nothing is sent.
        hang_up: The connection is closed afterwards.
        cuts: Places at which the answer is cut into separate writes.
    """

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    reason: str | None = None
    raw: bytes | None = None
    silent: bool = False
    hang_up: bool = False
    cuts: Sequence[int] = ()

    def to_bytes(self, request: Request) -> bytes:
        """What goes over the wire."""
        if self.raw is not None:
            return self.raw
        names = {name.lower() for name, _ in self.headers}
        lines = [f"RTSP/1.0 {self.status} {self.reason or _REASONS.get(self.status, 'Status')}"]
        if "cseq" not in names:
            lines.append(f"CSeq: {request.headers.get('cseq', '0')}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.body and "content-length" not in names:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode() + self.body


SILENT = Answer(silent=True)
