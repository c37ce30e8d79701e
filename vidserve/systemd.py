"""Messages to systemd: a datagram each, nothing if it is not there. See sd_notify(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Tells systemd how the service is. For the main thread.

    Args:
        environ: Where ``NOTIFY_SOCKET`` and ``WATCHDOG_USEC`` are looked up.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        usec = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s: float | None = int(usec) / 1e6 if usec.isdigit() and usec != "0" else None

    def send(self, **fields: str | int) -> None:
        """Send fields such as ``READY=1``; a systemd that is gone is no error of ours."""
        if self._socket is None:
            return
        text = "\n".join(f"{key}={value}" for key, value in fields.items())
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            self.close()

    def close(self) -> None:
        """Nothing is sent any more. Safe to call twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ready(self, status: str) -> None:
        """The service does its work from now on."""
        self.send(READY=1, STATUS=status)

    def extend_start(self, seconds: float) -> None:
        """Starting takes longer, but goes on."""
        self.send(EXTEND_TIMEOUT_USEC=int(seconds * 1e6))

    def watchdog(self) -> None:
        """The loops make progress."""
        self.send(WATCHDOG=1)

    def stopping(self) -> None:
        """The service ends on purpose."""
        self.send(STOPPING=1)
