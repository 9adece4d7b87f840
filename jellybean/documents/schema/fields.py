"""Pydantic field types of the documents: names, and quantities with units.

In a YAML document a quantity is text with a unit. From Python the same fields accept SI numbers (the unit is in the
field name: `latency_s`), so that the profiler builds documents without formatting text. JSON dumps are text again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar

from annotated_types import GroupedMetadata, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializationInfo,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import core_schema

from jellybean import quantities
from jellybean.quantities import InvalidValueError, QuantityKind

FROM_DOCUMENT = {"document": True}
_EXACT_DIGITS = 17  # significant digits with which any float is parsed back unchanged
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$"
_NAME = re.compile(NAME_PATTERN)


class DocumentModel(BaseModel):
    """Base of all document models: unknown keys are errors, no type coercion, instances are immutable."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True, allow_inf_nan=False
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema, with the bounds of fields whose types have a schema of their own, which pydantic leaves out."""
        found = handler(schema)
        properties = handler.resolve_ref_schema(found).get("properties", {})
        for name, info in cls.model_fields.items():
            key = info.alias or name
            if key in properties:
                properties[key] = _bounded(properties[key], info.metadata)
        return found

    free_paths: ClassVar[tuple[tuple[str, ...], ...]] = ()  # of content in which null is a value; `*` is any key


def _bounded(node: dict[str, Any], constraints: Sequence[Any]) -> dict[str, Any]:
    """The schema of a value with the constraints: of numbers as such, of a quantity above 0 in its pattern."""
    if "anyOf" in node:
        return {**node, "anyOf": [_bounded(option, constraints) for option in node["anyOf"]]}
    found = dict(node)
    for one in constraints:
        if node.get("type") in ("number", "integer"):
            known = {"exclusiveMinimum": "gt", "minimum": "ge", "maximum": "le", "exclusiveMaximum": "lt"}
            found |= {key: getattr(one, bound) for key, bound in known.items() if hasattr(one, bound)}
        elif "pattern" in node and getattr(one, "gt", None) == 0:
            found["pattern"] = quantities.above_zero(found["pattern"])
    return found


def name_problem(text: str) -> InvalidValueError | None:
    """Why a text is not a name; None if it is."""
    if _NAME.fullmatch(text):
        return None
    hint = "use at most 63 letters, digits, '_', '-' and '.', beginning with a letter, a digit or '_'"
    return InvalidValueError(f"{quantities.quoted(text)} is not a valid name", hint)


def _name(text: str) -> str:
    if (problem := name_problem(text)) is not None:
        raise problem
    return text


def from_document(info: ValidationInfo) -> bool:
    """True while a YAML document is validated, False when a model is built in Python."""
    return bool(info.context and info.context.get("document"))


def _check_not_empty(value: Any, info: ValidationInfo) -> Any:
    if not value and not (info.context and info.context.get("partial")):
        raise InvalidValueError("is empty", "add at least one entry")
    return value


class _NotEmpty:
    """Annotation: the collection has at least one item, unless the valid part of a broken document is validated.

    Unlike `min_length`, it reports nothing when the items themselves are invalid.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_after_validator_function(_check_not_empty, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        found.update({"minItems": 1} if found.get("type") == "array" else {"minProperties": 1})
        return found


NOT_EMPTY = _NotEmpty()


def _parser(kind: QuantityKind) -> BeforeValidator:
    def read(value: object, info: ValidationInfo) -> float:
        if from_document(info) or isinstance(value, str):
            return quantities.parse_quantity(kind, value)
        return quantities.parse_number(kind.name, value, "a number in SI units")

    return BeforeValidator(read)


def digits_of(info: SerializationInfo) -> int | None:
    """Number of significant digits to write, from the serialisation context; None writes all digits."""
    context = info.context if isinstance(info.context, dict) else {}
    return context.get("digits")


def is_long(info: SerializationInfo) -> bool:
    """True if the serialisation context asks for the long form of every value."""
    return bool(isinstance(info.context, dict) and info.context.get("long"))


def _formatter(kind: QuantityKind) -> PlainSerializer:
    def write(value: float, info: SerializationInfo) -> str:
        return quantities.format_quantity(kind, value, digits_of(info))

    return PlainSerializer(write, return_type=str, when_used="json")


def _number_formatter(unit: str = "", factor: float = 1.0) -> PlainSerializer:
    def write(value: float, info: SerializationInfo) -> Any:
        if is_long(info):
            return quantities.format_number(value, _EXACT_DIGITS)
        number = quantities.format_number(value * factor, digits_of(info) or 12)
        return f"{number} {unit}" if unit else number

    return PlainSerializer(write, when_used="json")


def schema_of(kind: QuantityKind) -> dict[str, Any]:
    """JSON Schema of a quantity: pattern, example and description, for completion in editors."""
    return {
        "type": "string",
        "pattern": kind.pattern,
        "examples": [kind.example],
        "description": f"A {kind.name}, for example {kind.example}. Units: {', '.join(kind.units)}.",
    }


class _Quantity(GroupedMetadata):
    """Annotation: a number in SI units, written as a quantity of a kind."""

    def __init__(self, kind: QuantityKind) -> None:
        self._kind = kind

    def __iter__(self) -> Iterator[object]:
        yield _parser(self._kind)
        yield _formatter(self._kind)
        yield WithJsonSchema(schema_of(self._kind))


def _parsed_by(read: Callable[[object], float]) -> BeforeValidator:
    return BeforeValidator(read)


def _ratio(value: object) -> float:
    return quantities.parse_number("ratio", value, "4 or 0.3")


def _speed(value: object) -> float:
    if isinstance(value, str):
        return quantities.parse_fraction(value)
    return quantities.parse_number("speed", value, "0.1 or 10 %")


def _price_of_time(value: object, info: ValidationInfo) -> float:
    if from_document(info) or isinstance(value, str):
        return quantities.parse_price_of_time(value)
    return quantities.parse_number(quantities.PRICE_OF_TIME, value, "a number in USD per hour per second")


def _price_of_time_text(value: float, info: SerializationInfo) -> str:
    return quantities.format_price_of_time(value, digits_of(info))


_PRICE_OF_TIME_SCHEMA: dict[str, Any] = {
    "type": "string",
    "pattern": quantities.PRICE_OF_TIME_PATTERN,
    "examples": ["0.02 USD/h per 10 ms"],
    "description": "A price per hour for a length of time, for example 0.02 USD/h per 10 ms.",
}
_PERCENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": 100},
        {"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"},
    ],
    "examples": [56.0],
    "description": "A percentage, for example 56 or 56 %.",
}
_FRACTION_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"}],
    "examples": [0.8, "80 %"],
    "description": "A share between 0 and 1, for example 0.8 or 80 %.",
}
_SPEED_SCHEMA: dict[str, Any] = {**_FRACTION_SCHEMA, "description": "A speed, for example 0.1 or 10 %."}
_POSITIVE_SCHEMA: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0, "examples": [4, 0.3]}

Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
Tiers = Annotated[tuple[Name, ...], Field(strict=False), NOT_EMPTY]
Duration = Annotated[float, _Quantity(quantities.DURATION)]
Size = Annotated[float, _Quantity(quantities.SIZE)]
Bandwidth = Annotated[float, _Quantity(quantities.BANDWIDTH)]
Rate = Annotated[float, _Quantity(quantities.RATE)]
Price = Annotated[float, _Quantity(quantities.PRICE)]
PricePerHour = Annotated[float, _Quantity(quantities.PRICE_PER_H)]
PriceOfTime = Annotated[
    float,
    BeforeValidator(_price_of_time),
    PlainSerializer(_price_of_time_text, return_type=str, when_used="json"),
    WithJsonSchema(_PRICE_OF_TIME_SCHEMA),
]
PricePerGib = Annotated[float, _Quantity(quantities.PRICE_PER_GIB)]
Power = Annotated[float, _Quantity(quantities.POWER)]
EnergyPerGib = Annotated[float, _Quantity(quantities.ENERGY_PER_GIB)]
PricePerWh = Annotated[float, _Quantity(quantities.PRICE_PER_KWH)]
CarbonPerWh = Annotated[float, _Quantity(quantities.CARBON_PER_KWH)]
CarbonPerHour = Annotated[float, _Quantity(quantities.CARBON_PER_H)]
PricePerGram = Annotated[float, _Quantity(quantities.PRICE_PER_T)]
Fraction = Annotated[
    float, _parsed_by(quantities.parse_fraction), _number_formatter(), WithJsonSchema(_FRACTION_SCHEMA)
]
AUTO = 0.0  # `utilisation: auto`, which no other value can be; resources of Kubernetes have the number it stands for


def _utilisation(value: object) -> float:
    if value == "auto":
        return AUTO
    found = quantities.parse_fraction(value)
    if not AUTO < found <= 1:
        raise quantities.InvalidValueError(
            f"{quantities.describe_value(value)} is not above 0 and at most 1", "write for example 0.8, or auto"
        )
    return found


def _utilisation_text(value: float, info: SerializationInfo) -> Any:
    return "auto" if value == AUTO and not is_long(info) else value


Utilisation = Annotated[
    float,
    _parsed_by(_utilisation),
    PlainSerializer(_utilisation_text, when_used="json"),
    WithJsonSchema(_bounded({"anyOf": [{"const": "auto"}, *_FRACTION_SCHEMA["anyOf"]]}, [Gt(0), Le(1)])),
]
PercentShare = Annotated[
    float, _parsed_by(quantities.parse_fraction), _number_formatter("%", 100.0), WithJsonSchema(_FRACTION_SCHEMA)
]


def _audit_share(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 < value <= 100:
        raise quantities.InvalidValueError(f"{value:g} is above 1, which is 100 %", f"write {value:g} % for {value:g}")
    found = quantities.parse_fraction(value)
    if found > 1:
        raise quantities.InvalidValueError(f"{quantities.describe_value(value)} is above 100 %", "write at most 100 %")
    if found <= 0:
        raise quantities.InvalidValueError(
            f"{quantities.describe_value(value)} is not above 0 %", "leave the key out for none"
        )
    return found


AuditShare = Annotated[float, _parsed_by(_audit_share), _number_formatter("%", 100.0), WithJsonSchema(_FRACTION_SCHEMA)]
Percent = Annotated[
    float,
    _parsed_by(quantities.parse_percent),
    Field(ge=0, le=100),
    _number_formatter(),
    WithJsonSchema(_PERCENT_SCHEMA),
]
Ratio = Annotated[float, _parsed_by(_ratio), _number_formatter(), WithJsonSchema(_POSITIVE_SCHEMA)]
Speed = Annotated[float, _parsed_by(_speed), _number_formatter(), WithJsonSchema(_SPEED_SCHEMA)]
