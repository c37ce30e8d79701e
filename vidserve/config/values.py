"""Scalars as they stand in the file, and the strict rule that makes them values.

YAML 1.1 turns ``on`` into true, ``12:30`` into 750 and ``010`` into 8. Here a scalar stays the
text that was written until somebody says what is wanted: text takes it as written; a number
or a flag takes only what has one meaning and explains the rest. Each converter also takes
the Python value itself, so that the schema can be built in code.
"""

from __future__ import annotations

import decimal
import re
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

from vidserve.config.problems import printable
from vidserve.frames import Bucket

REPORTED = "vidserve_reported"
"""Error type of values whose problem has been reported where it was found."""
WRONG = "vidserve_wrong"
"""Error type of our own sentences; ``ctx["items"]`` holds pairs of key (or None) and sentence."""

_NULLS = ("", "~", "null")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)", re.ASCII)
_TRUE_LIKE = ("true", "on", "yes", "y", "1")
_FALSE_LIKE = ("false", "off", "no", "n", "0")
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True, repr=False)
class Scalar:
    """One scalar of the file.

    Attributes:
        text: As written (variables put in). May be a secret: ``repr`` does not show it.
        plain: Written without quotes.
        variables: Names of the environment variables that were put in.
        broken: Has been reported already; every conversion fails without a word.
    """

    text: str
    plain: bool
    variables: tuple[str, ...] = ()
    broken: bool = False

    def __repr__(self) -> str:
        return "Scalar(...)"

    @property
    def is_null(self) -> bool:
        """Nothing was written, or ``~`` or ``null`` without quotes."""
        return self.plain and not self.variables and self.text in _NULLS

    @property
    def shown(self) -> str:
        """For messages about fields that are not secret; never a variable's value."""
        if self.variables:
            return "the value of " + ", ".join(f"${{{name}}}" for name in self.variables)
        return printable(self.text, 40)


def wrong(message: str, key: str | None = None) -> PydanticCustomError:
    """An error with our own sentence, at a key of the model or at the value itself."""
    return wrong_all([(key, message)])


def wrong_all(items: list[tuple[str | None, str]]) -> PydanticCustomError:
    """Several such errors of one model at once: pairs of key and sentence."""
    text = "; ".join(message if key is None else f"{key} {message}" for key, message in items)
    return PydanticCustomError(WRONG, "{text}", {"text": text, "items": items})


def shape(value: object) -> str:
    """What a value is, for people."""
    if isinstance(value, Scalar):
        return "empty" if value.is_null else "a single value"
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "a single value"


def is_null(value: object) -> bool:
    """Whether nothing was given."""
    return value is None or (isinstance(value, Scalar) and value.is_null)


def null_to_none(value: Any) -> Any:
    """For optional fields: an empty value is None, all else is left alone."""
    return None if is_null(value) else value


def to_text(value: Any) -> str:
    """The text as written; ``0123`` stays ``0123`` and ``on`` stays ``on``."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Scalar) or value.is_null:
        raise wrong(f"must be text, but is {shape(value)}")
    _refuse_broken(value)
    return value.text


def to_flag(value: Any) -> bool:
    """``true`` or ``false`` and nothing else."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, Scalar) or value.is_null:
        raise wrong(f"must be true or false, but is {shape(value)}")
    _refuse_broken(value)
    if value.text in ("true", "false") and (value.plain or value.variables):
        return value.text == "true"
    low = value.text.casefold()
    hint = ""
    if low in _TRUE_LIKE:
        hint = " (did you mean true?)"
    elif low in _FALSE_LIKE:
        hint = " (did you mean false?)"
    quoted = "" if value.plain or value.variables else " in quotes"
    raise wrong(f"must be true or false, but is {value.shown}{quoted}{hint}")


def to_int(value: Any) -> int:
    """A decimal whole number without leading zeros."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = _number_text(value, "a whole number")
    if _INT.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    raise wrong(_why_no_number(value, text, "a whole number"))


def to_float(value: Any) -> float:
    """A decimal number, with or without a point."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = _number_text(value, "a number")
    if _FLOAT.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return float(text)
    raise wrong(_why_no_number(value, text, "a number"))


def to_input_shape(value: Any) -> Bucket:
    """``640x384``: width x height in pixels, multiples of 32."""
    if isinstance(value, Bucket):
        return value
    text = to_text(value)
    shown = value.shown if isinstance(value, Scalar) else text
    try:
        bucket = Bucket.parse(text)
    except ValueError:
        raise wrong(f"must be width x height such as 640x384, but is {shown}") from None
    if any(side < 32 or side > 4096 or side % 32 for side in bucket):
        raise wrong(f"must have sides that are multiples of 32, 32 to 4096, but is {shown}")
    return bucket


def to_tuple(value: Any) -> Any:
    """A list as a tuple; a single value is refused with the list that it should be."""
    if isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(value, Scalar) and not value.is_null:
        _refuse_broken(value)
        raise wrong(f"must be a list (did you mean [{value.shown}]?)")
    raise wrong(f"must be a list, but is {shape(value)}")


def _refuse_broken(value: Scalar) -> None:
    if value.broken:
        raise PydanticCustomError(REPORTED, "reported")


def _number_text(value: Any, wanted: str) -> str:
    """The text of a scalar that may be a number, after the checks that need no number."""
    if not isinstance(value, Scalar) or value.is_null:
        raise wrong(f"must be {wanted}, but is {shape(value)}")
    _refuse_broken(value)
    if not value.plain and not value.variables:
        bare = _FLOAT.fullmatch(value.text)
        hint = f" (did you mean {printable(value.text, 20)} without quotes?)" if bare else ""
        raise wrong(f"must be {wanted}, but is text in quotes{hint}")
    return value.text


def _why_no_number(value: Scalar, text: str, wanted: str) -> str:
    """Says what is ambiguous about a scalar that looks like a number but has two meanings."""
    start = f"must be {wanted}, but is {value.shown}"
    if value.variables:
        return f"must be {wanted}, but {value.shown} is not"
    sign, digits = ("-", text[1:]) if text[:1] == "-" else ("", text.lstrip("+"))
    if len(text) > _MOST_DIGITS:
        return f"{start}: too long"
    if re.fullmatch(r"0[0-7]+", digits):
        octal, tens = int(digits, 8), int(digits)
        return (
            f"{start}: with a leading zero this is {octal} to some and {tens} to others: "
            f"write {sign}{octal} or {sign}{tens}"
        )
    if re.fullmatch(r"0[0-9]+(\.[0-9]*)?", digits, re.ASCII):
        return f"{start}: write it without leading zeros"
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", digits):
        return f"{start}: hexadecimal is not taken (did you mean {sign}{int(digits, 16)}?)"
    if re.fullmatch(r"0[bB][01]+|0[oO][0-7]+", digits):
        return f"{start}: write it decimal (did you mean {sign}{int(digits, 0)}?)"
    if re.fullmatch(r"[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?", digits, re.ASCII):
        return f"{start}: write it without _ (did you mean {sign}{digits.replace('_', '')}?)"
    if re.fullmatch(r"[0-9]+(:[0-9]+)+(\.[0-9]*)?", digits, re.ASCII):
        return f"{start}: YAML 1.1 reads that in base 60; write one plain number"
    if re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]{1,2}", digits, re.ASCII):
        plain = f"{decimal.Decimal(digits):f}"
        return f"{start}: write it without an exponent (did you mean {sign}{plain}?)"
    if re.fullmatch(r"\.?(inf|nan|infinity)", digits, re.IGNORECASE):
        return f"{start}: it must be finite"
    if re.fullmatch(r"[0-9]+,[0-9]+", digits, re.ASCII):
        return f"{start}: the decimal sign is a point (did you mean {text.replace(',', '.')}?)"
    if found := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(%|[a-zA-Z]{1,3})", digits, re.ASCII):
        return f"{start}: write the number alone, its unit is in the key (is {found[1]} meant?)"
    if _FLOAT.fullmatch(text):
        return f"{start}: it must have no fraction"
    return start
