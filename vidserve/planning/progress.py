"""What goes on, on stderr: one line that changes on a terminal, a line each elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status


class Progress:
    """A context; nothing of it remains on a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        if self._console.is_terminal:
            self._status = self._console.status("")

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

    def tell(self, what: str) -> None:
        """A few words, without a full stop."""
        if self._status is not None:
            self._status.update(f"{what} ...")
        else:
            self._console.print(f"{what} ...", markup=False, soft_wrap=True)

    def simulating(self, cameras: int) -> None:
        """A simulation begins. Only on a terminal: there are dozens."""
        if self._status is not None:
            self._status.update(f"simulating {cameras} camera{'' if cameras == 1 else 's'} ...")
