"""Logging of the process: one line a message; systemd adds time and priority itself."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

# sd-daemon(3): the journal reads a priority in angle brackets at the start of a line.
_PRIORITIES = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


class _JournalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        priority = _PRIORITIES.get(record.levelno, 6)
        lines = super().format(record).splitlines()
        return "\n".join(f"<{priority}>{line}" for line in lines)


def set_up(level: str = "INFO", environ: Mapping[str, str] = os.environ) -> None:
    """Log to stderr: with time on a terminal, with priorities under systemd."""
    handler = logging.StreamHandler(sys.stderr)
    if "JOURNAL_STREAM" in environ:
        handler.setFormatter(_JournalFormatter("%(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # The broker library and others tell more than anybody asked for.
    for name in ("amqtt", "transitions", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
