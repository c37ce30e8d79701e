"""What is wrong in a config file, and where: problems, positions, suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Way to a value from the top of the file: ``("cameras", "gate", "ignore", 0)``."""


@dataclass(frozen=True, order=True)
class Position:
    """A place in a file, counted from 1."""

    line: int
    column: int


START = Position(1, 1)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong (or, among the notes, worth knowing). Never holds a secret.

    Attributes:
        file: The config file as it was named.
        line, column: Counted from 1.
        key: Dotted path of the value (``cameras.gate.fps``); ``file`` or ``yaml`` where the
            text as a whole is meant.
        message: What is wrong, for people.
        camera: The camera in whose block it is; None means that it concerns the whole config.
    """

    file: str
    line: int
    column: int
    key: str
    message: str
    camera: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.key}: {self.message}"


@dataclass(frozen=True)
class Finding:
    """A problem that does not know its file yet: a path, a place and a sentence."""

    path: Path
    position: Position
    message: str


@dataclass
class Marks:
    """Where each key and each value stands in the file.

    Attributes:
        keys, values: Their first characters.
        instead: Words to show for values that came from the environment.
    """

    keys: dict[Path, Position] = field(default_factory=dict)
    values: dict[Path, Position] = field(default_factory=dict)
    instead: dict[Path, str] = field(default_factory=dict)

    def of_value(self, path: Path) -> Position:
        """Of the value, or of the nearest thing around it that is in the file."""
        return self.values.get(self.known(path), START)

    def of_key(self, path: Path) -> Position:
        """Of the key, or (items of lists) of the nearest thing around it."""
        return self.keys.get(path) or self.of_value(path)

    def known(self, path: Path) -> Path:
        """The longest part of ``path`` that is in the file."""
        while path and path not in self.values:
            path = path[:-1]
        return path


def is_secret(path: Path) -> bool:
    """Whether a value, or what stands in its place, must not be shown."""
    at = 2 if path[:1] == ("cameras",) else 1  # a camera may be named "password"
    return path[at : at + 1] == ("password",)


def dotted(path: Path) -> str:
    """``cameras.gate.ignore[0]``; control characters are shown escaped."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + printable(part)
    return text or "file"


def printable(text: str, limit: int = 80) -> str:
    """``text`` fit for one line of a terminal: nothing unprintable, not endless."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(shown) > limit:
        shown = shown[: limit - 3] + "..."
    return shown or "''"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean X?)`` for the nearest known word, or an empty string."""
    by_fold = {item.casefold(): item for item in known}
    close = difflib.get_close_matches(word[:80].casefold(), list(by_fold), n=1, cutoff=0.6)
    return f" (did you mean {by_fold[close[0]]}?)" if close else ""
