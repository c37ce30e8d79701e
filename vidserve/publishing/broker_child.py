"""The program of the embedded broker's process. Run as a script by ``broker.py``; imports nothing
of vidserve, so that it starts fast.

Arguments: file descriptor of a listening socket, process id of the parent. Its standard input is
a pipe whose other end the parent holds: when that closes, whatever the reason, it ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
import threading

_PR_SET_PDEATHSIG = 1


def _die_with_parent(parent_pid: int) -> None:
    # The pipe can outlive the parent (a forked relative may hold its other end), so the kernel
    # is asked too. It looks at the thread that started us, hence the rule in EmbeddedBroker.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call
        os._exit(0)

    def wait_for_end_of_pipe() -> None:
        while os.read(0, 1024):
            pass
        os._exit(0)  # even if the event loop hangs

    threading.Thread(target=wait_for_end_of_pipe, name="parent", daemon=True).start()


async def _serve(listening: socket.socket) -> None:
    from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
    from amqtt.broker import Broker
    from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType

    name = "default"
    broker = Broker(
        BrokerConfig(
            listeners={name: ListenerConfig(type=ListenerType.EXTERNAL)},
            plugins={"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        )
    )
    await broker.start()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await broker.external_connected(
            StreamReaderAdapter(reader), StreamWriterAdapter(writer), name
        )

    server = await asyncio.start_server(connected, sock=listening)
    await server.serve_forever()


def main() -> None:
    listening_fd, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    # Ctrl-C, and systemd's SIGTERM to the whole service, are for the daemon: it says goodbye
    # through this broker and then closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _die_with_parent(parent_pid)
    logging.disable(logging.CRITICAL)  # else it fills the file that catches our last words
    asyncio.run(_serve(socket.socket(fileno=listening_fd)))


if __name__ == "__main__":
    main()
