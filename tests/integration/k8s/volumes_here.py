"""Mounts the volumes of pods that run as local processes: Secrets, and ConfigMaps whose addresses become local."""

from __future__ import annotations

import ipaddress
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

_ADDRESS_FILES = ("peers.json", "targets.json")  # name -> HOST:PORT


def mount_config_map(folder: Path, data: Mapping[str, str], own: str, addresses: Mapping[str, str]) -> None:
    """Mount a ConfigMap in the pod of address `own`. `addresses`: by the first label of a DNS name."""
    for name, text in data.items():
        local = _with_local_addresses(text, own, addresses) if name in _ADDRESS_FILES else text
        (folder / name).write_text(local, encoding="utf-8")


def _with_local_addresses(text: str, own: str, addresses: Mapping[str, str]) -> str:
    return json.dumps({name: _local(place, own, addresses) for name, place in json.loads(text).items()})


def _local(place: str, own: str, addresses: Mapping[str, str]) -> str:
    host, colon, port = place.rpartition(":")
    if host in ("127.0.0.1", "localhost"):
        return f"{own}{colon}{port}"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"{addresses[first_label(place)]}{colon}{port}"
    return place  # outside of the cluster


def first_label(place: str) -> str:
    """The first label of the DNS name in HOST:PORT: the name of a pod or Service."""
    return place.partition(":")[0].partition(".")[0]


def mount_secret(folder: Path, files: Mapping[str, bytes]) -> None:
    """Mount a Secret as a kubelet does: its files in a new folder, to which one link is moved at once."""
    version = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    for name, content in files.items():
        (version / name).write_bytes(content)
        (version / name).chmod(0o440)  # for the pod's group
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data", name))
    before = (folder / "..data").resolve()
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")
    if before.name != "..data":
        shutil.rmtree(before)
