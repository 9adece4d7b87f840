"""Compares rendered objects with those in the cluster: which must be applied, and whether they belong to us."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.deployed_plan import json_sha256
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER, OWN_PREFIX
from jellybean_k8s.objects import KubeObject

ObjectKey = tuple[str, str]  # kind, name
APPLIED = f"{OWN_PREFIX}/applied"  # annotation: hash of the object as last applied
_NOT_LISTED = ("apiVersion", "kind")  # fields that items of a list response lack
_MAX_SHOWN = 80  # characters of a value in a message


def object_key(item: Mapping[str, Any]) -> ObjectKey:
    """Kind and name."""
    return item["kind"], item["metadata"]["name"]


def with_hash(item: KubeObject) -> KubeObject:
    """A copy annotated with the object's hash, so that a field removed in a later version is detected."""
    found = copy.deepcopy(item)
    found["metadata"]["annotations"] = {**item["metadata"].get("annotations", {}), APPLIED: json_sha256(item)}
    return found


def is_ours(item: Mapping[str, Any], app: str) -> bool:
    """True if the labels of an object in the cluster say that it belongs to this deployment."""
    own = item["metadata"].get("labels") or {}
    return own.get(f"{APP_PREFIX}/managed-by") == FIELD_MANAGER and own.get(f"{APP_PREFIX}/instance") == app


@dataclass(frozen=True, slots=True)
class Changes:
    """Effect of an apply: objects to create, to change, and up to date."""

    new: tuple[KubeObject, ...]
    changed: tuple[KubeObject, ...]
    unchanged: tuple[KubeObject, ...]

    @property
    def to_apply(self) -> frozenset[ObjectKey]:
        """Keys of the objects that an apply must send."""
        return frozenset(object_key(item) for item in (*self.new, *self.changed))


def compare_objects(objects: Iterable[KubeObject], live: Mapping[ObjectKey, KubeObject], app: str) -> Changes:
    """Compare annotated objects with those in the cluster. DeployError if a name belongs to something else."""
    new: list[KubeObject] = []
    changed: list[KubeObject] = []
    unchanged: list[KubeObject] = []
    taken: list[str] = []
    for item in objects:
        there = live.get(object_key(item))
        if there is None:
            new.append(item)
        elif not is_ours(there, app):
            taken.append("/".join(object_key(item)))
        else:
            (unchanged if contains(there, listed(item)) else changed).append(item)
    if taken:
        raise DeployError(
            f"{', '.join(taken)}: exists already, and not of this deployment; give it another `name` in kubernetes.yaml"
        )
    return Changes(tuple(new), tuple(changed), tuple(unchanged))


def listed(item: Mapping[str, Any]) -> dict[str, Any]:
    """The object without the fields that items of a list response lack."""
    return {key: value for key, value in item.items() if key not in _NOT_LISTED}


def contains(live: Any, wanted: Any) -> bool:
    """True if `live` contains everything in `wanted`; server-side defaults and missing empty values are ignored."""
    return difference(live, wanted) is None


def difference(live: Any, wanted: Any, path: str = "") -> str | None:
    """Where `live` first lacks something in `wanted`, and its two values there; None if it contains everything."""
    if isinstance(wanted, Mapping) and isinstance(live or {}, Mapping):
        live, inner = live or {}, {f"{path}.{key}": (live or {}).get(key) for key in wanted}
        fields = zip(inner.items(), wanted.values(), strict=True)
        return next((found for (at, it), item in fields if (found := difference(it, item, at)) is not None), None)
    if isinstance(wanted, list | tuple) and isinstance(live or (), list | tuple) and len(live or ()) == len(wanted):
        items = enumerate(zip(live or (), wanted, strict=True))
        return next((found for i, (it, item) in items if (found := difference(it, item, f"{path}[{i}]"))), None)
    if live == wanted or (live is None and not wanted):
        return None
    return f"{path.removeprefix('.') or 'it'} is {_shown(live)}, the plan has {_shown(wanted)}"


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, sort_keys=True)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def by_key(items: Sequence[KubeObject], kind: str) -> dict[ObjectKey, KubeObject]:
    """Index the items of a list response by (kind, name); `kind` is given, as items lack it."""
    return {(kind, item["metadata"]["name"]): {"kind": kind, **item} for item in items}
