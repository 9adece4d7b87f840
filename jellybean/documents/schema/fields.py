"""Field types of the documents: names, and quantities that take human units.

In a document a quantity needs its unit. From Python the same fields take SI numbers, as their names say
(`latency_s`), so the profiler builds documents without formatting text. Dumped as JSON they are human again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializationInfo,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import core_schema

from jellybean.documents.schema import units
from jellybean.documents.schema.units import Kind, UnitError

FROM_DOCUMENT = {"document": True}
_EXACT = 17  # digits by which any float reads back
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$"
_NAME = re.compile(NAME_PATTERN)


class Strict(BaseModel):
    """Base of all document models: nothing unknown, nothing coerced, nothing changed afterwards."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True, allow_inf_nan=False
    )


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        hint = "names have letters, digits, '_', '-' and '.', at most 63, and begin with a letter, digit or '_'"
        raise UnitError(f"{units.shown(text)} is no name", hint)
    return text


def from_document(info: ValidationInfo) -> bool:
    """Whether a YAML document is read, rather than a model built in Python."""
    return bool(info.context and info.context.get("document"))


def _filled(value: Any, info: ValidationInfo) -> Any:
    if not value and not (info.context and info.context.get("partial")):
        raise UnitError("is empty", "at least one is needed")
    return value


class _NotEmpty:
    """At least one item; only the sound rest of a broken document may have none.

    Unlike `min_length`, it says nothing when the items themselves are wrong.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_after_validator_function(_filled, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        found.update({"minItems": 1} if found.get("type") == "array" else {"minProperties": 1})
        return found


NOT_EMPTY = _NotEmpty()


def _reader(kind: Kind) -> BeforeValidator:
    def read(value: object, info: ValidationInfo) -> float:
        if from_document(info) or isinstance(value, str):
            return units.parse_quantity(kind, value)
        return units.parse_number(kind.name, value, "a number in SI units")

    return BeforeValidator(read)


def digits_of(info: SerializationInfo) -> int | None:
    """Significant digits to write, from the serialisation context; None writes all."""
    context = info.context if isinstance(info.context, dict) else {}
    return context.get("digits")


def is_long(info: SerializationInfo) -> bool:
    """Whether every value is to be written in its long form, from the serialisation context."""
    return bool(isinstance(info.context, dict) and info.context.get("long"))


def _writer(kind: Kind) -> PlainSerializer:
    def write(value: float, info: SerializationInfo) -> str:
        return units.format_quantity(kind, value, digits_of(info))

    return PlainSerializer(write, return_type=str, when_used="json")


def _number_writer(unit: str = "", factor: float = 1.0) -> PlainSerializer:
    def write(value: float, info: SerializationInfo) -> Any:
        if is_long(info):
            return units.format_number(value, _EXACT)
        number = units.format_number(value * factor, digits_of(info) or 12)
        return f"{number} {unit}" if unit else number

    return PlainSerializer(write, when_used="json")


def schema_of(kind: Kind) -> dict[str, Any]:
    """JSON Schema of a quantity, with the pattern and examples that editors complete from."""
    return {
        "type": "string",
        "pattern": kind.pattern,
        "examples": [kind.example],
        "description": f"A {kind.name}, for example {kind.example}. Units: {', '.join(kind.units)}.",
    }


def _plain(read: Callable[[object], float]) -> BeforeValidator:
    return BeforeValidator(read)


def _ratio(value: object) -> float:
    return units.parse_number("ratio", value, "4 or 0.3")


def _speed(value: object) -> float:
    return units.parse_number("speed", value, "0.1")


_PERCENT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\s*-?[0-9.]+\s*%\s*$"}],
    "examples": [56.0],
    "description": "A percentage, for example 56 or 56 %.",
}
_FRACTION_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"}],
    "examples": [0.8, "80 %"],
    "description": "A share between 0 and 1, for example 0.8 or 80 %.",
}
_POSITIVE_SCHEMA: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0, "examples": [4, 0.3]}

Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
Duration = Annotated[float, _reader(units.DURATION), _writer(units.DURATION), WithJsonSchema(schema_of(units.DURATION))]
Size = Annotated[float, _reader(units.SIZE), _writer(units.SIZE), WithJsonSchema(schema_of(units.SIZE))]
Bandwidth = Annotated[
    float, _reader(units.BANDWIDTH), _writer(units.BANDWIDTH), WithJsonSchema(schema_of(units.BANDWIDTH))
]
Rate = Annotated[float, _reader(units.RATE), _writer(units.RATE), WithJsonSchema(schema_of(units.RATE))]
Price = Annotated[float, _reader(units.PRICE), _writer(units.PRICE), WithJsonSchema(schema_of(units.PRICE))]
PricePerHour = Annotated[
    float, _reader(units.PRICE_PER_H), _writer(units.PRICE_PER_H), WithJsonSchema(schema_of(units.PRICE_PER_H))
]
PricePerGib = Annotated[
    float, _reader(units.PRICE_PER_GIB), _writer(units.PRICE_PER_GIB), WithJsonSchema(schema_of(units.PRICE_PER_GIB))
]
Fraction = Annotated[float, _plain(units.parse_fraction), _number_writer(), WithJsonSchema(_FRACTION_SCHEMA)]
Noise = Annotated[float, _plain(units.parse_fraction), _number_writer("%", 100.0), WithJsonSchema(_FRACTION_SCHEMA)]
Percent = Annotated[float, _plain(units.parse_percent), _number_writer(), WithJsonSchema(_PERCENT_SCHEMA)]
Ratio = Annotated[float, _plain(_ratio), _number_writer(), WithJsonSchema(_POSITIVE_SCHEMA)]
Speed = Annotated[float, _plain(_speed), _number_writer(), WithJsonSchema(_POSITIVE_SCHEMA)]
