"""YAML text -> plain data with the place of everything, and nothing guessed.

PyYAML composes nodes with marks; this file makes dicts, lists and ``Scalar`` of them. Refused:
repeated keys, tags, several documents, keys that are not scalars, endless nesting, aliases
that blow up or bite their tail. Anchors, aliases and merge keys (``<<``) work as usual.
Messages never quote the text: a line may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from vidserve.config.problems import Finding, Marks, Path, Position
from vidserve.config.values import Scalar

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 20_000

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_QUOTED = re.compile(r"(['\"]).{2,}\1", re.DOTALL)

_TAG = "a tag (!...) is not taken; a text that begins with ! needs quotes"
_SENTENCES = (
    (
        "found character '\\t'",
        "a tab cannot be used for indentation: use blanks",
    ),
    (
        "mapping values are not allowed",
        "a ':' is not allowed here: a text with ': ' in it needs quotes, or the indentation is off",
    ),
    (
        "found undefined alias",
        "a * begins an alias, and there is no anchor of that name before it; "
        "a text that begins with * needs quotes",
    ),
    ("could not find expected ':'", "a ':' is missing after the key here or above"),
    ("expected a single document", "a second document begins: one file holds one config"),
    ("but found another document", "a second document begins: one file holds one config"),
    ("expected <block end>", "this does not fit the lines above: indentation, ':' or quotes?"),
    ("expected ',' or", "a ',' or a closing bracket is missing, or a text needs quotes"),
    ("found unexpected end of stream", "a quote is opened and never closed"),
    ("that cannot start any token", "a text that begins with this character needs quotes"),
    ("found unknown escape character", "a \\ in double quotes begins an escape: write \\\\"),
)


@dataclass
class Tree:
    """A parsed file. ``data`` is None if it could not be parsed (then there are findings)."""

    data: dict[str, Any] | None = None
    marks: Marks = field(default_factory=Marks)
    findings: list[Finding] = field(default_factory=list)

    def add(self, path: Path, message: str, position: Position | None = None) -> None:
        """Note something wrong; without a position: at the value."""
        self.findings.append(Finding(path, position or self.marks.of_value(path), message))


class _Refused(Exception):
    """Parsing cannot go on."""

    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


class _Loader(yaml.BaseLoader):
    """Composes nodes; limits the depth and finds tags while the events still show them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.count = 0
        self.tagged: dict[int, yaml.Node] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.depth >= MAX_DEPTH:
            raise _Refused(_position(event.start_mark), f"nested deeper than {MAX_DEPTH} levels")
        self.count += 1
        if self.count > MAX_NODES:
            raise _Refused(_position(event.start_mark), f"holds more than {MAX_NODES} values")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None and getattr(event, "tag", None) is not None:
            self.tagged[id(node)] = node
        return node


def parse_bytes(content: bytes, environ: Mapping[str, str]) -> Tree:
    """Parse the content of a file; never raises for what is in it."""
    if len(content) > MAX_BYTES:
        return _failed(Position(1, 1), f"larger than {MAX_BYTES // 1024} KiB: not a config")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = content[: error.start].decode("utf-8-sig", "replace")
        return _failed(_at_end_of(good), "not UTF-8: save the file as UTF-8")
    return parse_text(text, environ)


def parse_text(text: str, environ: Mapping[str, str]) -> Tree:
    """Parse YAML text.

    Args:
        text: The file's text.
        environ: Where ``${NAME}`` is looked up. ``$${`` stands for a literal ``${``; any other
            dollar is a dollar.

    Returns:
        The tree; with findings where something is wrong. Never raises for what is in ``text``.
    """
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except _Refused as error:
        return _failed(error.position, error.message)
    except yaml.reader.ReaderError as error:
        where = _at_end_of(text[: error.position]) if isinstance(error.position, int) else None
        return _failed(where or Position(1, 1), "holds a character that YAML does not allow")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = _position(mark) if mark else Position(1, 1)
        return _failed(where, _sentence(error) + _dollar_hint(text, where))
    except (ValueError, OverflowError):
        # PyYAML lets chr() and int() fail on absurd escapes and directives.
        where = _position(loader.get_mark()) if loader else Position(1, 1)
        return _failed(where, "an escape or a directive that cannot be read")
    tree = Tree()
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value in ("", "~", "null")):
        tree.add((), "is empty: a config needs keys", Position(1, 1))
        return tree
    if not isinstance(node, yaml.MappingNode):
        message = "must be a mapping (lines of `key: value`)"
        tree.add((), message, _position(node.start_mark))
        return tree
    walk = _Walk(tree, environ, loader.tagged)
    try:
        data = walk.value(node, ())
    except _Refused as error:
        tree.add((), error.message, error.position)
        return tree
    if isinstance(data, dict):  # not so if the whole file has a tag, which is reported
        tree.data = data
    return tree


class _Walk:
    """Makes plain data of nodes and notes the places."""

    def __init__(
        self, tree: Tree, environ: Mapping[str, str], tagged: Mapping[int, yaml.Node]
    ) -> None:
        self._tree = tree
        self._tagged = tagged
        self._environ = environ
        self._nodes = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        where = _position(node.start_mark)
        if self._nodes > MAX_NODES:
            raise _Refused(where, f"holds more than {MAX_NODES} values, aliases followed")
        self._tree.marks.values.setdefault(path, where)
        if id(node) in self._tagged:
            self._tree.add(path, _TAG, where)
            return Scalar("", True, broken=True)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, where)
        if id(node) in self._open:
            raise _Refused(where, "an anchor that holds an alias of itself")
        if len(self._open) >= MAX_DEPTH:
            raise _Refused(where, f"nested deeper than {MAX_DEPTH} levels, aliases followed")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, key_node, value_node in self._pairs(node, path):
            here = (*path, name)
            self._tree.marks.keys[here] = _position(key_node.start_mark)
            result[name] = self.value(value_node, here)
        return result

    def _pairs(self, node: yaml.MappingNode, path: Path) -> list[tuple[str, yaml.Node, yaml.Node]]:
        """Keys and values, the node's own first, then what it merges in (first one wins)."""
        own: dict[str, tuple[str, yaml.Node, yaml.Node]] = {}
        merged: list[yaml.MappingNode] = []
        merging = False
        for key_node, value_node in node.value:
            self._nodes += 1
            where = _position(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self._tree.add(path, "a key must be a single value, not a list or a mapping", where)
                continue
            if id(key_node) in self._tagged:
                self._tree.add(path, _TAG, where)
                continue
            name = key_node.value
            is_merge = name == "<<" and key_node.style is None
            if any("\ud800" <= c <= "\udfff" for c in name):
                self._tree.add(path, "a key holds half a character (a lone surrogate)", where)
                continue
            if name in own:
                first = _position(own[name][1].start_mark)
                message = f"repeated key: first given in line {first.line}"
                self._tree.add((*path, name), message, where)
                continue
            own[name] = (name, key_node, value_node)
            if is_merge:
                merging = True
                merged += self._merged(value_node, path)
        if merging:
            del own["<<"]
        for other in merged:
            if id(other) in self._open:
                raise _Refused(_position(other.start_mark), "a mapping that merges itself")
            if len(self._open) >= MAX_DEPTH or self._nodes > MAX_NODES:
                raise _Refused(_position(other.start_mark), "too many merges (<<)")
            self._open.add(id(other))
            try:
                for pair in self._pairs(other, path):
                    own.setdefault(pair[0], pair)
            finally:
                self._open.discard(id(other))
        return list(own.values())

    def _merged(self, node: yaml.Node, path: Path) -> list[yaml.MappingNode]:
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        mappings = [item for item in items if isinstance(item, yaml.MappingNode)]
        if len(mappings) != len(items):
            where = _position(node.start_mark)
            message = "a merge takes an alias of a mapping, or a list of them"
            self._tree.add((*path, "<<"), message, where)
        return mappings

    def _scalar(self, node: yaml.ScalarNode, path: Path, where: Position) -> Scalar:
        text: str = node.value
        plain = node.style is None
        used: list[str] = []
        broken = False

        def put_in(found: re.Match[str]) -> str:
            nonlocal broken
            if found[0] == "$${":
                return "${"
            name = found[1]
            if not found[0].endswith("}") or not _NAME.fullmatch(name):
                message = "${ begins a variable: write ${NAME}, or $${ for a literal ${"
            elif name not in self._environ:
                message = f"the environment variable {name} is not set"
            else:
                used.append(name)
                return self._environ[name]
            self._tree.add(path, message, where)
            broken = True
            return ""

        text = _VARIABLE.sub(put_in, text)
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
            whose = f"the value of ${{{used[0]}}}" if used else "the text"
            self._tree.add(path, f"{whose} holds a NUL or is not valid UTF-8", where)
            broken = True
        scalar = Scalar(text, plain, tuple(used), broken)
        if used:
            self._tree.marks.instead[path] = scalar.shown
        return scalar


def _failed(position: Position, message: str) -> Tree:
    return Tree(findings=[Finding((), position, message)])


def _position(mark: yaml.Mark) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _at_end_of(text: str) -> Position:
    return Position(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


def _sentence(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's complaint for people, without a word of the file (it may be a password)."""
    problem = error.problem or error.context or "cannot be read"
    for start, sentence in _SENTENCES:
        if start in problem:
            return sentence
    return "cannot be read: " + _QUOTED.sub("'...'", problem)


def _dollar_hint(text: str, position: Position) -> str:
    lines = text.splitlines()
    line = lines[position.line - 1] if position.line <= len(lines) else ""
    return ' (inside { } or [ ] write "${NAME}" in quotes)' if "${" in line else ""
