"""Pydantic's errors as sentences for people. Input values appear only where they are public."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vidserve.config.fields import MAP, ONE
from vidserve.config.problems import Finding, Marks, Path, did_you_mean, is_secret, printable
from vidserve.config.values import REPORTED, WRONG, Scalar, shape

_FOLLOWING = (REPORTED, "default_factory_not_called")
"""Types of errors that only follow from another one that is reported."""

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def findings(
    error: ValidationError, model: type[BaseModel], at: Path, marks: Marks
) -> list[Finding]:
    """Every error of a validation with its place.

    Args:
        error: What pydantic raised.
        model: The model that was validated.
        at: Where in the file the model's data stands.
        marks: Places of the file.
    """
    result = []
    details = error.errors(include_url=False)
    for detail in details:
        given = detail["input"]
        if detail["type"] in _FOLLOWING or (isinstance(given, Scalar) and given.broken):
            continue
        inner = tuple(part for part in detail["loc"] if part not in (ONE, MAP, "[key]"))
        if detail["type"] == WRONG:
            result += _own(detail, marks.known(at + inner), marks)
        else:
            result.append(_finding(detail, model, at, inner, marks))
    return list(dict.fromkeys(result))


def _own(detail: ErrorDetails, path: Path, marks: Marks) -> list[Finding]:
    """Errors with our own sentences, at a key of the value or at the value."""
    result = []
    for key, message in detail["ctx"]["items"]:
        where = path if key is None else (*path, key)
        result.append(Finding(where, marks.of_value(where), message))
    return result


def _finding(
    detail: ErrorDetails, model: type[BaseModel], at: Path, inner: Path, marks: Marks
) -> Finding:
    context: Mapping[str, Any] = detail.get("ctx", {})
    kind = detail["type"]
    path = at + inner
    if kind == "extra_forbidden":
        known = _fields(_model_at(model, inner[:-1]))
        hint = did_you_mean(str(inner[-1]), known) or _belongs_elsewhere(str(inner[-1]), model)
        if not hint and len(known) <= 10:
            hint = f" (known: {', '.join(known)})"
        return Finding(path, marks.of_key(path), f"unknown key{hint}")
    if kind == "missing":
        return Finding(path, marks.of_key(path[:-1]), "is missing")
    # What does not stand in the file by itself (a single size taken as a list) is shown whole.
    path = marks.known(path)
    given = detail["input"]
    if is_secret(path):
        shown = "a secret"
    elif path in marks.instead:
        shown = marks.instead[path]
    else:
        shown = given.shown if isinstance(given, Scalar) else printable(str(given), 40)
    return Finding(path, marks.of_value(path), _sentence(kind, context, given, shown))


def _sentence(kind: str, context: Mapping[str, Any], given: object, shown: str) -> str:
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        hint = ""
        if bound == "le" and context[bound] == 1:
            hint = _percent(shown)
        return f"must be {words} {context[bound]:g}, but is {shown}{hint}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context["expected"]))
        hint = did_you_mean(shown, choices) if isinstance(given, str) else ""
        return f"must be {' or '.join(choices)}, but is {shown}{hint}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"must be a mapping (key: value), but is {shape(given)}"
    if kind in ("tuple_type", "list_type"):
        return f"must be a list, but is {shape(given)}"
    if kind in ("string_too_short", "too_short") and isinstance(given, str | Scalar):
        return "must not be empty"
    if kind in ("string_too_long", "too_long") and isinstance(given, str | Scalar):
        return f"is longer than {context['max_length']} characters"
    if kind == "too_short":
        least = context["min_length"]
        if least == 1:
            return "must not be an empty list: fill it or remove the key"
        return f"must have at least {least} items, but has {context['actual_length']}"
    if kind == "too_long":
        return f"must have at most {context['max_length']} items"
    return f"is not taken ({kind.replace('_', ' ')})"


def _percent(shown: str) -> str:
    """35 instead of 0.35 is a usual slip."""
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", shown, re.ASCII) and 1 < float(shown) <= 100:
        return f" (did you mean {float(shown) / 100:g}?)"
    return ""


def _fields(model: type[BaseModel] | None) -> list[str]:
    return list(model.model_fields) if model else []


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model that stands at ``path`` below ``model``; items and names are passed over."""
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or part not in current.model_fields:
            continue
        assert isinstance(part, str)
        current = _inner_model(current.model_fields[part].annotation)
    return current


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``X | None``, ``tuple[X, ...]``, ``dict[str, X]``, ``Annotated[X, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in typing.get_args(annotation):
        if found := _inner_model(part):
            return found
    return None


def _belongs_elsewhere(key: str, model: type[BaseModel]) -> str:
    """A key that is right, but in another section."""
    homes = [
        name
        for name, info in model.model_fields.items()
        if key in _fields(_inner_model(info.annotation))
    ]
    if not homes:
        return ""
    return (
        " (did you mean "
        + " or ".join(f"{home}.{'<name>.' * (home == 'cameras')}{key}" for home in homes)
        + "?)"
    )
