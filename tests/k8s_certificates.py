"""Certificates of the workers that plans here have, in a folder as `jellybean certs` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from jellybean.serving import LIFE_S, Authority, open_authority
from jellybean_agent import Identity, Role

WORKERS = ("edge-box-1", "edge-box-2", *(f"cloud-{number}" for number in range(1, 5)))
NAMES = ("", *WORKERS)  # the gateway's is empty


def equip(folder: Path, names: Iterable[str] = NAMES, *, life_s: float = LIFE_S, hosts: Iterable[str] = ()) -> Path:
    """Make or renew the certificates of these processes; returns the folder."""
    authority = open_authority(folder / "ca")
    for name in names:
        equip_one(authority, folder, name, life_s=life_s, hosts=hosts)
    return folder


def equip_one(authority: Authority, folder: Path, name: str, *, life_s: float, hosts: Iterable[str] = ()) -> None:
    identity = Identity("digits", Role.AGENT if name else Role.GATEWAY, name)
    own = () if name else hosts
    authority.equip(folder / "agent" / name if name else folder / "gateway", identity, hosts=own, life_s=life_s)
