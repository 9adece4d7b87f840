"""JSON Schema of a document as a structural schema, which is what a CustomResourceDefinition takes. Pure.

References are written out. Where a document may be written in a short form too, the resource takes the long one: a
structural schema gives every value one type. Lists, maps and texts get limits, without which the API server would
refuse rules (CEL) over them as too expensive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
Rules = Mapping[str, Sequence[tuple[str, str]]]  # of a model: what must hold (CEL), and what is told where it does not

MOST_ITEMS = 64
MOST_TEXT, MOST_WORDS = 256, 4096  # characters; of descriptions
LIMITS = {"operators": 256, "sources": 256, "workers": 1024, "links": 256, "end_to_end": 4096}
LIMITS |= {"tiers": 16, "sites": 16}
_KEPT = ("description", "pattern", "minimum", "maximum", "minLength", "enum")
_NAME_TEXT = 63


def structural(schema: Mapping[str, Any], rules: Rules, *, without: Sequence[str] = ()) -> Schema:
    """The schema of a pydantic model, `without` some of its keys. ValueError where a value would have no one type."""
    definitions = schema.get("$defs", {})
    kept = {key: value for key, value in schema.items() if key != "$defs"}
    kept["properties"] = {key: value for key, value in schema["properties"].items() if key not in without}
    kept["required"] = [key for key in schema.get("required", ()) if key not in without]
    return _node(kept, definitions, rules, "")


def _node(node: Mapping[str, Any], definitions: Mapping[str, Any], rules: Rules, key: str) -> Schema:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        found = _node({**definitions[name], **_about(node)}, definitions, rules, key)
        if name in rules:
            found["x-kubernetes-validations"] = [{"rule": rule, "message": text} for rule, text in rules[name]]
        return found
    if "anyOf" in node:
        return _node({**_long_form(node["anyOf"]), **_about(node)}, definitions, rules, key)
    found = {name: node[name] for name in _KEPT if name in node}
    if "const" in node:
        return found | {"type": "string", "enum": [node["const"]]}
    kind = node.get("type")
    if kind == "object":
        return found | _object(node, definitions, rules, key)
    if kind == "array":
        items = _node(node["items"], definitions, rules, "")
        return found | {"type": kind, "items": items, **_least(node, "minItems"), "maxItems": _most(key)}
    return found | _value(node, key)


def _value(node: Mapping[str, Any], key: str) -> Schema:
    if node.get("type") not in ("string", "number", "integer", "boolean"):
        raise ValueError(f"{key or 'a value'} has no one type: {dict(node)}")
    found: Schema = {"type": node["type"]}
    if node["type"] == "string":
        found["maxLength"] = _most_text(node, key)
    if "exclusiveMinimum" in node:  # a flag beside `minimum` in OpenAPI 3.0
        found |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    return found


def _object(node: Mapping[str, Any], definitions: Mapping[str, Any], rules: Rules, key: str) -> Schema:
    if "properties" in node:
        properties = {name: _node(item, definitions, rules, name) for name, item in node["properties"].items()}
        found: Schema = {"type": "object", "properties": properties}
        required = [name for name in node.get("required", ()) if name in properties]
        return found | ({"required": required} if required else {})
    values = list(node.get("patternProperties", {}).values())
    if not values and isinstance(node.get("additionalProperties"), Mapping):
        values = [node["additionalProperties"]]
    if not values:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}  # free text of any form
    each = _node(values[0], definitions, rules, "")
    return {
        "type": "object",
        "additionalProperties": each,
        **_least(node, "minProperties"),
        "maxProperties": _most(key),
    }


def _long_form(options: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The longest of the forms that a document may choose from: names before values, values before texts."""
    return max((option for option in options if option.get("type") != "null"), key=_length)


def _length(option: Mapping[str, Any]) -> int:
    if "const" in option:
        return 0
    if "patternProperties" in option or isinstance(option.get("additionalProperties"), Mapping):
        return 6
    if "$ref" in option or "properties" in option:
        return 5
    return {"array": 4, "number": 3, "integer": 3, "string": 2}.get(str(option.get("type")), 1)


def _about(node: Mapping[str, Any]) -> Schema:
    return {name: node[name] for name in ("description", "minProperties", "minItems") if name in node}


def _least(node: Mapping[str, Any], name: str) -> Schema:
    return {name: node[name]} if name in node else {}


def _most(key: str) -> int:
    return LIMITS.get(key, MOST_ITEMS)


def _most_text(node: Mapping[str, Any], key: str) -> int:
    if "{0,62}" in node.get("pattern", ""):
        return _NAME_TEXT
    return MOST_WORDS if key == "description" else MOST_TEXT
