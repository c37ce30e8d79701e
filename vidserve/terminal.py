"""One line on stderr that changes, on a terminal; nothing of it remains."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text


class StatusLine:
    """A context. Elsewhere than on a terminal ``say`` does nothing and returns False."""

    def __init__(self, text: str = "") -> None:
        self.console = Console(stderr=True, highlight=False)
        self._status = self.console.status(Text(text)) if self.console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> bool:
        """Show this from now on; False: there is no terminal."""
        if self._status is not None:
            self._status.update(Text(text))
        return self._status is not None
