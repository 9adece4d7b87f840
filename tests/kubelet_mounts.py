"""What a kubelet cannot mount: a pod stays where it is while a Secret, one of its keys or a ConfigMap is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def unmounted(pod: Mapping[str, Any], secrets: Iterable[Any], config_maps: Iterable[Any]) -> str:
    """The words of the kubelet's FailedMount; empty if all volumes of the pod can be mounted, and its certificate read.

    The init container of a worker reads `N.crt` and `N.key`, by its number, and fails without them.
    """
    keys = {item["metadata"]["name"]: set(item.get("data") or {}) for item in secrets}
    maps = {item["metadata"]["name"] for item in config_maps}
    number = pod["metadata"]["name"].rpartition("-")[2]
    for volume in pod["spec"]["volumes"]:
        if "configMap" in volume and volume["configMap"]["name"] not in maps:
            return f'MountVolume.SetUp failed: configmap "{volume["configMap"]["name"]}" not found'
        if "secret" not in volume:
            continue
        name = volume["secret"]["secretName"]
        if name not in keys:
            return f'MountVolume.SetUp failed: secret "{name}" not found'
        names = {"tls"} if "tls.crt" in keys[name] else {number}
        if lacking := {f"{one}.{part}" for one in names for part in ("crt", "key")} - keys[name]:
            return f"Init:Error: {', '.join(sorted(lacking))}: no such file"
    return ""
