"""Reads the files with ports and targets."""

from __future__ import annotations

import json
from pathlib import Path

from jellybean_agent.errors import PlanViewError, describe_error
from jellybean_agent.system.addresses import parse_address

_MAX_PORT = 65535


def read_ports(path: Path) -> dict[int, str]:
    """Port -> name, of a JSON object. PlanViewError if the file is invalid."""
    found = {}
    for port, name in _read_map(path, "ports to names").items():
        if not (port.isascii() and port.isdigit()) or not 0 < int(port) <= _MAX_PORT:
            raise PlanViewError(f"{path}: {port!r} is no port")
        found[int(port)] = name
    return found


def read_targets(path: Path) -> dict[str, tuple[str, int]]:
    """Name -> host and port, of a JSON object. PlanViewError if the file or an address is invalid."""
    try:
        return {name: parse_address(address) for name, address in _read_map(path, "names to addresses").items()}
    except PlanViewError as error:
        raise error if str(error).startswith(str(path)) else PlanViewError(f"{path}: {error}") from error


def _read_map(path: Path, what: str) -> dict[str, str]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PlanViewError(f"{path}: {describe_error(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise PlanViewError(f"{path}: not a JSON object of {what}")
    return found
