"""The device of a worker in infrastructure.yaml: an execution provider of onnxruntime, with its options."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from jellybean.documents.schema.fields import DocumentModel
from jellybean.quantities import InvalidValueError, describe_value
from jellybean_agent import DEVICE_NAMES, Device

_HINT = f"write {', '.join(DEVICE_NAMES)}, with a number for GPUs (cuda:1), or the name of an execution provider"


class DeviceSpec(DocumentModel):
    """The long form: a device and options of its provider, as onnxruntime documents them."""

    provider: str = Field(description=_HINT)
    options: dict[str, str] = Field(
        default={}, description="Options of the provider, or of the session where their names begin with session."
    )


def _device(value: Any) -> Any:
    if isinstance(value, Device):
        return value
    options: Any = {}
    if isinstance(value, str):
        name = value
    elif isinstance(value, dict) and set(value) <= {"provider", "options"} and isinstance(value.get("provider"), str):
        name, options = value["provider"], value.get("options") or {}
    else:
        raise InvalidValueError(f"{describe_value(value)} is no device", _HINT)
    if not isinstance(options, dict):
        raise InvalidValueError(f"{describe_value(options)} is no map of options", "write options: {name: value}")
    for option, text in options.items():
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise InvalidValueError(f"option {option}: {describe_value(text)} is no text", "write it in quotes")
    pairs = tuple(sorted((str(option), str(text)) for option, text in options.items()))
    try:
        return Device(name, pairs)
    except ValueError as error:
        raise InvalidValueError(str(error), _HINT) from error


def _short(value: Device) -> Any:
    return {"provider": value.name, "options": dict(value.options)} if value.options else value.name


DeviceField = Annotated[
    Device,
    BeforeValidator(_device, json_schema_input_type=str | DeviceSpec),
    PlainSerializer(_short),
]
