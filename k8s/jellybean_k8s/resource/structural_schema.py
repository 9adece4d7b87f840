"""Converts the JSON Schema of a document to the structural schema of a CustomResourceDefinition. Pure.

References are inlined. Where documents have a short and a long form, the resource takes the long form, as a structural
schema has one type per value. Lists, maps and strings get size limits, without which the API server rejects CEL rules
over them as too expensive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
SchemaRules = Mapping[str, Sequence[tuple[str, str]]]  # model -> (CEL rule, message if it is violated)

MAX_ITEMS = 64
MAX_TEXT_LENGTH, MAX_DESCRIPTION_LENGTH = 256, 4096  # characters of strings, and of descriptions
LIMITS = {"operators": 256, "sources": 256, "workers": 1024, "links": 256, "end_to_end": 4096}
LIMITS |= {"tiers": 16, "sites": 16}
_COPIED_KEYS = ("description", "pattern", "minimum", "maximum", "minLength", "enum")
_NAME_TEXT = 63


def structural_schema(schema: Mapping[str, Any], rules: SchemaRules, *, without: Sequence[str] = ()) -> Schema:
    """Convert the schema of a pydantic model, omitting the keys `without`. ValueError if a value has several types."""
    definitions = schema.get("$defs", {})
    kept = {key: value for key, value in schema.items() if key != "$defs"}
    kept["properties"] = {key: value for key, value in schema["properties"].items() if key not in without}
    kept["required"] = [key for key in schema.get("required", ()) if key not in without]
    return _node(kept, definitions, rules, "")


def without_descriptions(schema: Schema) -> Schema:
    """The same schema without its texts."""
    found = {key: value for key, value in schema.items() if key != "description"}
    if "properties" in schema:
        found["properties"] = {key: without_descriptions(value) for key, value in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = without_descriptions(schema[key])
    return found


def _node(node: Mapping[str, Any], definitions: Mapping[str, Any], rules: SchemaRules, key: str) -> Schema:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        found = _node({**definitions[name], **_described(node)}, definitions, rules, key)
        if name in rules:
            found["x-kubernetes-validations"] = [{"rule": rule, "message": text} for rule, text in rules[name]]
        return found
    if "anyOf" in node:
        return _node({**_long_form(node["anyOf"]), **_described(node)}, definitions, rules, key)
    found = {name: node[name] for name in _COPIED_KEYS if name in node}
    if "const" in node:
        return found | {"type": "string", "enum": [node["const"]]}
    kind = node.get("type")
    if kind == "object":
        return found | _object(node, definitions, rules, key)
    if kind == "array":
        items = _node(node["items"], definitions, rules, "")
        return found | {"type": kind, "items": items, **_minimum(node, "minItems"), "maxItems": _max_items(key)}
    return found | _value(node, key)


def _value(node: Mapping[str, Any], key: str) -> Schema:
    if node.get("type") not in ("string", "number", "integer", "boolean"):
        raise ValueError(f"{key or 'a value'} has no one type: {dict(node)}")
    found: Schema = {"type": node["type"]}
    if node["type"] == "string":
        found["maxLength"] = _max_length(node, key)
    if "exclusiveMinimum" in node:  # OpenAPI 3.0 has a boolean `exclusiveMinimum` beside `minimum`
        found |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    return found


def _object(node: Mapping[str, Any], definitions: Mapping[str, Any], rules: SchemaRules, key: str) -> Schema:
    if "properties" in node:
        properties = {name: _node(item, definitions, rules, name) for name, item in node["properties"].items()}
        found: Schema = {"type": "object", "properties": properties}
        required = [name for name in node.get("required", ()) if name in properties]
        return found | ({"required": required} if required else {})
    values = list(node.get("patternProperties", {}).values())
    if not values and isinstance(node.get("additionalProperties"), Mapping):
        values = [node["additionalProperties"]]
    if not values:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}  # any content
    each = _node(values[0], definitions, rules, "")
    return {
        "type": "object",
        "additionalProperties": each,
        **_minimum(node, "minProperties"),
        "maxProperties": _max_items(key),
    }


def _long_form(options: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The most explicit of alternative forms: maps by name before lists, lists before numbers and strings."""
    return max((option for option in options if option.get("type") != "null"), key=_length)


def _length(option: Mapping[str, Any]) -> int:
    if "const" in option:
        return 0
    if "patternProperties" in option or isinstance(option.get("additionalProperties"), Mapping):
        return 6
    if "$ref" in option or "properties" in option:
        return 5
    return {"array": 4, "number": 3, "integer": 3, "string": 2}.get(str(option.get("type")), 1)


def _described(node: Mapping[str, Any]) -> Schema:
    return {name: node[name] for name in ("description", "minProperties", "minItems") if name in node}


def _minimum(node: Mapping[str, Any], name: str) -> Schema:
    return {name: node[name]} if name in node else {}


def _max_items(key: str) -> int:
    return LIMITS.get(key, MAX_ITEMS)


def _max_length(node: Mapping[str, Any], key: str) -> int:
    if "maxLength" in node:
        return int(node["maxLength"])
    if "{0,62}" in node.get("pattern", ""):
        return _NAME_TEXT
    return MAX_DESCRIPTION_LENGTH if key == "description" else MAX_TEXT_LENGTH
