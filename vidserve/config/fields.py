"""Types of the schema's fields: how a scalar of the file becomes a value, and its bounds."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    Tag,
    WithJsonSchema,
)

from vidserve.config import checks
from vidserve.config.source import Source, to_source
from vidserve.config.values import (
    is_null,
    null_to_none,
    to_flag,
    to_float,
    to_input_shape,
    to_int,
    to_text,
    to_tuple,
    wrong,
)
from vidserve.frames import Bucket

ONE, MAP = "~one", "~map"
"""Tags of alternatives; they appear in pydantic's error paths and are taken out of ours."""


def shape_tag(value: Any) -> str:
    return MAP if isinstance(value, dict | BaseModel) else ONE


def _secret(value: Any) -> SecretStr:
    return value if isinstance(value, SecretStr) else SecretStr(to_text(value))


def _section(value: Any) -> Any:
    """An empty section (all its lines commented out) is the same as none: the defaults."""
    return {} if is_null(value) else value


def _no_empty_section(value: Any) -> Any:
    """Where the presence of a section means something, an empty one is ambiguous."""
    if is_null(value):
        raise wrong("is empty: write {} for its defaults, or remove it")
    return value


def _of_length(count: int, pattern: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        items = to_tuple(value)
        if len(items) != count:
            raise wrong(f"must be {pattern}, but has {len(items)} items")
        return items

    return BeforeValidator(check)


def _polygons(value: Any) -> Any:
    """One polygon where a list of them is wanted is the usual slip: say it once."""
    items = to_tuple(value)
    first = items[0] if items else None
    if isinstance(first, list | tuple) and first and not isinstance(first[0], list | tuple):
        raise wrong("must be a list of polygons: put one more pair of [ ] around this one")
    return items


def _single_to_tuple(value: Any) -> Any:
    return to_tuple(value) if isinstance(value, list | tuple) else (value,)


Text: TypeAlias = Annotated[
    str,
    BeforeValidator(to_text),
    Field(min_length=1, max_length=4096),
    checks.validator(checks.no_controls),
]
Secret: TypeAlias = Annotated[SecretStr, BeforeValidator(_secret)]
Flag: TypeAlias = Annotated[bool, BeforeValidator(to_flag)]
Whole: TypeAlias = Annotated[int, BeforeValidator(to_int)]
Number: TypeAlias = Annotated[float, BeforeValidator(to_float), Field(allow_inf_nan=False)]
Optional: BeforeValidator = BeforeValidator(null_to_none)
AsText: BeforeValidator = BeforeValidator(to_text)
AsTuple: BeforeValidator = BeforeValidator(to_tuple)
SingleToTuple: BeforeValidator = BeforeValidator(_single_to_tuple)
Section: BeforeValidator = BeforeValidator(_section)
Present: BeforeValidator = BeforeValidator(_no_empty_section)

ByShape = Discriminator(shape_tag)

Share: TypeAlias = Annotated[Number, Field(gt=0, le=1)]
Confidence: TypeAlias = Annotated[
    Annotated[Share, Tag(ONE)] | Annotated[dict[Text, Share], Tag(MAP)], ByShape
]
Labels: TypeAlias = Annotated[
    tuple[Text, ...], AsTuple, Field(min_length=1), checks.validator(checks.no_repeats)
]
Relative: TypeAlias = Annotated[Number, Field(ge=0, le=1)]
Point: TypeAlias = Annotated[tuple[Relative, Relative], _of_length(2, "a point [x, y]")]
Crop: TypeAlias = Annotated[
    tuple[Relative, Relative, Relative, Relative], _of_length(4, "[x1, y1, x2, y2]")
]
CameraName: TypeAlias = Annotated[str, AsText, checks.validator(checks.named_well)]
Polygon: TypeAlias = Annotated[
    tuple[Point, ...],
    AsTuple,
    Field(min_length=3, max_length=1000),
    checks.validator(checks.simple),
]
Polygons: TypeAlias = Annotated[
    tuple[Polygon, ...], BeforeValidator(_polygons), Field(max_length=100)
]
Port: TypeAlias = Annotated[Whole, Field(ge=1, le=65535)]
Interval: TypeAlias = Annotated[Whole, Field(ge=1, le=1000)]
ImageSizes: TypeAlias = Annotated[
    tuple[Annotated[Whole, Field(ge=32, le=4096), checks.validator(checks.stride)], ...],
    SingleToTuple,
    Field(min_length=1, max_length=8),
    checks.validator(checks.falling),
]
Timeout: TypeAlias = Annotated[Number, Field(ge=0.1, le=3600)]
InputShape: TypeAlias = Annotated[
    Bucket,
    PlainValidator(to_input_shape),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+x[0-9]+$"}),
]
SourceField: TypeAlias = Annotated[
    Source,
    PlainValidator(to_source),
    PlainSerializer(str),
    WithJsonSchema({"type": ["string", "integer"]}),
]
