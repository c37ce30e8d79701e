"""What goes on, on stderr: one line that changes on a terminal, a line each elsewhere."""

from __future__ import annotations

from vidserve.terminal import StatusLine


class Progress(StatusLine):
    """A context; nothing of it remains on a terminal."""

    def tell(self, what: str) -> None:
        """A few words, without a full stop."""
        if not self.say(f"{what} ..."):
            self.console.print(f"{what} ...", markup=False, soft_wrap=True)

    def simulating(self, cameras: int) -> None:
        """A simulation begins. Only on a terminal: there are dozens."""
        self.say(f"simulating {cameras} camera{'' if cameras == 1 else 's'} ...")
