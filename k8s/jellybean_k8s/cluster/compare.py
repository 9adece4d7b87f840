"""What is there against what is wanted: which objects an apply would touch, and that they are ours to touch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.served import digest
from jellybean_k8s.names import APP, MANAGER, OWN

Object = dict[str, Any]
Key = tuple[str, str]  # kind, name
APPLIED = f"{OWN}/applied"  # annotation: hash of the object as it was last applied
_NOT_LISTED = ("apiVersion", "kind")  # items of a list do not say what they are


def key_of(item: Mapping[str, Any]) -> Key:
    """Kind and name."""
    return item["kind"], item["metadata"]["name"]


def stamped(item: Object) -> Object:
    """The object with the hash of itself, by which a field that is no longer wanted is noticed."""
    found = copy.deepcopy(item)
    found["metadata"]["annotations"] = {**item["metadata"].get("annotations", {}), APPLIED: digest(item)}
    return found


def is_ours(item: Mapping[str, Any], app: str) -> bool:
    """Whether an object of a cluster belongs to this deployment, by what its labels say."""
    own = item["metadata"].get("labels") or {}
    return own.get(f"{APP}/managed-by") == MANAGER and own.get(f"{APP}/instance") == app


@dataclass(frozen=True, slots=True)
class Changes:
    """What an apply would do. `changed` are there, but not as wanted."""

    new: tuple[Object, ...]
    changed: tuple[Object, ...]
    unchanged: tuple[Object, ...]

    @property
    def to_apply(self) -> frozenset[Key]:
        """Of these an apply must be sent."""
        return frozenset(key_of(item) for item in (*self.new, *self.changed))


def changes(objects: Iterable[Object], live: Mapping[Key, Object], app: str) -> Changes:
    """Compare stamped objects to those of a cluster. DeployError where a name is taken by somebody else's."""
    new: list[Object] = []
    changed: list[Object] = []
    unchanged: list[Object] = []
    taken: list[str] = []
    for item in objects:
        there = live.get(key_of(item))
        if there is None:
            new.append(item)
        elif not is_ours(there, app):
            taken.append("/".join(key_of(item)))
        else:
            wanted = {key: value for key, value in item.items() if key not in _NOT_LISTED}
            (unchanged if holds(there, wanted) else changed).append(item)
    if taken:
        raise DeployError(
            f"{', '.join(taken)}: there already, and not of this deployment; give it another `name` in kubernetes.yaml"
        )
    return Changes(tuple(new), tuple(changed), tuple(unchanged))


def holds(live: Any, wanted: Any) -> bool:
    """Whether everything wanted is there. What the server adds does not count; what is empty may be left out."""
    if isinstance(wanted, Mapping):
        live = live or {}
        return isinstance(live, Mapping) and all(holds(live.get(key), item) for key, item in wanted.items())
    if isinstance(wanted, list | tuple):
        live = live or ()
        return len(live) == len(wanted) and all(map(holds, live, wanted))
    return bool(live == wanted or (live is None and not wanted))


def by_key(items: Sequence[Object], kind: str) -> dict[Key, Object]:
    """Objects of a list, which do not say their kind, by kind and name."""
    return {(kind, item["metadata"]["name"]): {"kind": kind, **item} for item in items}
