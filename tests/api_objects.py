"""Object semantics of a Kubernetes API server: patches, selectors, field managers."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import jsonschema

from jellybean_k8s.manifests.quantities import with_canonical_quantities

Object = dict[str, Any]
Fields = set[tuple[str, ...]]
FIXED_FIELDS = ("selector", "serviceName", "podManagementPolicy")  # of a StatefulSet
_IDENTITY = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}


class Refused(Exception):
    """A response other than 2xx, with a Status body."""

    def __init__(self, code: int, reason: str, message: str, causes: list[Object] | None = None) -> None:
        self.status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self.status |= {"reason": reason, "message": message, "details": {"causes": causes or []}}
        self.code = code


def pruned(schema: Object, value: Any) -> Any:
    """Prune fields of a custom resource that its schema does not have."""
    if isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        return {key: pruned(properties[key], item) for key, item in value.items() if key in properties}
    if isinstance(value, dict) and "additionalProperties" in schema:
        return {key: pruned(schema["additionalProperties"], item) for key, item in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [pruned(schema["items"], item) for item in value]
    return value


def json_patched(there: Object, steps: list[Object]) -> Object:
    """RFC 6902, as far as kopf asks for it; 422 where a test fails."""
    found = copy.deepcopy(there)
    for step in steps:
        *path, last = (part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:])
        at: Any = found
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        name: Any = (len(at) if last == "-" else int(last)) if isinstance(at, list) else last
        if step["op"] == "test":
            if at[name] != step["value"]:
                raise Refused(422, "Invalid", "the server rejected our request due to a failed test")
        elif step["op"] == "remove":
            del at[name]
        elif isinstance(at, list) and step["op"] == "add":
            at.insert(name, step["value"])
        else:
            at[name] = step["value"]
    return found


def half(body: Object, *, status: bool) -> Object:
    """The part of a patch that applies: the status, or everything else."""
    return {key: value for key, value in body.items() if (key == "status") == status}


def owner(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def selected(item: Object, selector: str) -> bool:
    own = item["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        if "!=" in term:
            key, _, value = term.partition("!=")
            if own.get(key) == value:
                return False
        else:
            key, _, value = term.partition("=")
            if own.get(key) != value:
                return False
    return True


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Paths of values; of list items with names by name, as server-side apply tells them apart; other lists whole."""
    if isinstance(value, dict):
        found: dict[tuple[str, ...], str] = {}
        for key, item in value.items():
            found |= leaves(item, (*path, key))
        return {at: text for at, text in found.items() if at not in _IDENTITY}
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        found = {}
        for item in value:
            found |= leaves(item, (*path, f"[{item['name']}]"))
        return found
    return {path: json.dumps(value, sort_keys=True)}


def laid_over(there: Any, over: Any) -> Any:
    if isinstance(there, dict) and isinstance(over, dict):
        return {**there, **{key: laid_over(there.get(key), item) for key, item in over.items()}}
    return copy.deepcopy(over)


def merged(there: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    found = dict(there) if isinstance(there, dict) else {}
    for key, item in patch.items():
        if item is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), item)
    return found


def drop(item: Any, path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        if key.startswith("["):
            item = next((part for part in item if part.get("name") == key[1:-1]), None) if item else None
        else:
            item = item.get(key) if isinstance(item, dict) else None
        if item is None:
            return
    if isinstance(item, dict):
        item.pop(path[-1], None)


def normalised(item: Any) -> Any:
    """An object as the server stores it: quantities in their canonical form."""
    return with_canonical_quantities(item)


def refuse_duplicates(value: Any, path: str = "") -> None:
    """Refused if a list whose items an apply merges by a key has two of one key."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in _MERGED and isinstance(item, list):
                _refuse_twice([one.get(_MERGED[key]) for one in item if isinstance(one, dict)], f"{path}.{key}")
            refuse_duplicates(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            refuse_duplicates(item, path)


_MERGED = {  # list of a pod -> key of its items: x-kubernetes-list-map-keys of Kubernetes' OpenAPI
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def _refuse_twice(keys: Sequence[Any], path: str) -> None:
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise Refused(500, "InternalError", f"{path}: duplicate entries for key {sorted(map(str, twice))}")


def without_version(item: Object) -> Object:
    meta = {key: value for key, value in item["metadata"].items() if key not in ("resourceVersion", "generation")}
    return {**item, "metadata": meta}


def cause(manager: str, path: tuple[str, ...], version: str) -> Object:
    return {
        "reason": "FieldManagerConflict",
        "message": f'conflict with "{manager}" using {version}',
        "field": "." + ".".join(path),
    }


def validate(schema: Object, item: Object, name: str) -> None:
    """Refused unless an object is valid under its OpenAPI schema."""
    for error in jsonschema.Draft4Validator(schema).iter_errors(item):
        where = ".".join(map(str, error.path))
        raise Refused(422, "Invalid", f"{item['kind']} {name!r} is invalid: {where}: {error.message}")


def refuse_changed_fields(before: Object, after: Object, name: str) -> None:
    """Refused if a field of a StatefulSet's spec differs that no update may change."""
    for fixed in FIXED_FIELDS:
        if before["spec"].get(fixed) != after["spec"].get(fixed):
            raise Refused(422, "Invalid", f"StatefulSet {name!r} is invalid: spec: Forbidden: updates to {fixed}")


def set_status(generation: int, replicas: int, ready: int) -> Object:
    """The status of a StatefulSet or Deployment."""
    return {
        "observedGeneration": generation,
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": ready,
        "availableReplicas": ready,
    }


def refuse_conflicts(others: dict[str, Fields], changed: Sequence[tuple[str, ...]], version: str) -> None:
    """Refused if an apply changes fields that belong to other managers; `others`: manager -> its fields."""
    causes = [cause(other, path, version) for path in changed for other in others if path in others[other]]
    if causes:
        raise Refused(409, "Conflict", f"Apply failed with {len(causes)} conflicts", causes)
