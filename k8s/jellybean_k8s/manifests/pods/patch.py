"""Merges a patch into a pod template, as `kubectl patch` merges strategically. Pure.

Maps are merged by key; null removes a key; lists whose items Kubernetes tells apart are merged by that key, other
lists are replaced. What makes a deployment find its pods may not be changed: such a patch is refused with its path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.pod_settings import is_own_annotation, is_own_label
from jellybean_k8s.objects import KubeObject, KubeObjectView

MERGE_KEYS = {  # list of a pod -> the key of its items, Kubernetes' `patchMergeKey`
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_KEPT = ("containers", "initContainers", "volumes", "volumeMounts", "ports", "env")  # lists whose items may not go
_SET_BY_CONTROLLERS = ("hostname", "subdomain")  # by which agents find each other
Problem = tuple[str, str]  # path in the patch, reason


def patched(template: KubeObjectView, patch: Mapping[str, Any], path: str) -> KubeObject:
    """The template with the patch merged into it. DeployError, at `path`, for what a patch may not change."""
    problems = list(patch_problems(patch))
    found = dict(template)
    if not problems:
        found = _merged(template, patch, path, "")
        problems = list(_lost(template["spec"], found.get("spec") or {}, "spec."))
    if problems:
        raise DeployError("\n".join(f"{path}.{at}: {reason}" for at, reason in problems))
    return found


def patch_problems(patch: Mapping[str, Any]) -> Iterator[Problem]:
    """What a patch may not change in any template."""
    for key, part in patch.items():
        if key not in ("metadata", "spec"):
            yield key, "is not part of a pod template: write metadata or spec"
        elif not isinstance(part, Mapping):
            yield key, "is not a map: write `key: value` pairs"
        elif key == "metadata":
            yield from _metadata_problems(part)
        else:
            yield from (
                (f"spec.{name}", "is a name by which agents find each other: remove it")
                for name in _SET_BY_CONTROLLERS
                if name in part
            )


def _metadata_problems(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    own = {"labels": is_own_label, "annotations": is_own_annotation}
    for key, values in metadata.items():
        if key not in own:
            yield f"metadata.{key}", "sets name their pods: a patch may have labels and annotations here"
        elif not isinstance(values, Mapping):
            yield f"metadata.{key}", "is not a map: write `key: value` pairs"
        else:
            for name, value in values.items():
                if own[key](name):
                    yield f"metadata.{key}[{name}]", "the deployment finds its pods by it: remove it"
                elif not isinstance(value, str | None):
                    yield f"metadata.{key}[{name}]", f"is not text: quote it: '{value}'"


def _merged(there: Any, change: Any, path: str, key: str) -> Any:
    if isinstance(change, Mapping):
        found = dict(there) if isinstance(there, Mapping) else {}
        for name, item in change.items():
            if item is None:
                found.pop(name, None)
            else:
                found[name] = _merged(found.get(name), item, f"{path}.{name}", name)
        return found
    if isinstance(change, list | tuple) and key in MERGE_KEYS:
        return _merged_list(there if isinstance(there, list) else [], change, path, MERGE_KEYS[key])
    return change


def _merged_list(there: Sequence[Any], change: Sequence[Any], path: str, key: str) -> list[Any]:
    """The items of `there` in their order, each with its change, then the new ones."""
    found = {item[key]: item for item in there}
    for position, item in enumerate(change):
        if not isinstance(item, Mapping) or not isinstance(item.get(key), str | int):
            raise DeployError(f"{path}[{position}]: has no {key}, by which such items are merged: add it")
        name = item[key]
        found[name] = _merged(found.get(name), item, f"{path}[{name}]", "")
    return list(found.values())


def _lost(before: KubeObjectView, after: Any, path: str) -> Iterator[Problem]:
    """Items of our lists that are gone, and variables of ours with other values."""
    for key in _KEPT:
        left = after.get(key) if isinstance(after, Mapping) else None
        name = MERGE_KEYS[key]
        known = {item[name]: item for item in left} if isinstance(left, list) else {}
        for item in before.get(key) or ():
            at = f"{path}{key}[{item[name]}]" if known else f"{path}{key}"
            if item[name] not in known:
                yield at, "is needed: a patch may change it, not remove it"
                break
            if key == "env" and known[item[name]] != item:
                yield at, "is set by JellyBean: remove it"
            yield from _lost(item, known[item[name]], f"{at}.")
