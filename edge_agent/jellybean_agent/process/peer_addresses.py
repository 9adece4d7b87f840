"""Reads the file with the addresses of a plan's processes."""

from __future__ import annotations

import json
from pathlib import Path

from jellybean_agent.errors import PlanViewError, describe_error
from jellybean_agent.transport.channels import Transport


def read_peer_addresses(path: Path, transport: Transport) -> dict[str, str]:
    """Worker name -> address; the gateway's has an empty name. PlanViewError if the file or an address is invalid."""
    try:
        peers = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PlanViewError(f"{path}: {describe_error(error)}") from error
    if not isinstance(peers, dict) or not all(isinstance(address, str) for address in peers.values()):
        raise PlanViewError(f"{path}: not a map of worker names to addresses")
    return {str(name): transport.check(address) for name, address in peers.items()}
