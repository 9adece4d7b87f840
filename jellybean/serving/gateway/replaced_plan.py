"""The plan that has replaced the one which a gateway was started with, kept for its next start.

It stands for the given plan only: who starts the gateway with another one means that.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from jellybean_agent import GATEWAY, PlanViewError, describe_error, plan_view, read_plan, write_private_file
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
_FILE = "replaced.json"


class Replaced:
    """Where it is kept: a folder of this gateway's own. `plan` and `peers` are the files to serve."""

    def __init__(self, folder: Path, plan: Path, peers: Path) -> None:
        """PlanViewError when the given plan is none; a kept one that cannot be read is told and left."""
        self._folder, self._given = folder, read_plan(plan).hash
        self.plan, self.peers = plan, peers
        self._own = _own_address(peers)
        try:
            kept = json.loads((folder / _FILE).read_bytes())
            if kept["instead_of"] != self._given:
                LOG.info("%s is served: the plan kept in %s replaced another one", plan, folder)
                return
            found = plan_view(kept["plan"])
            for name in ("plan", "peers"):
                write_private_file(folder / f"{name}.json", json.dumps(kept[name]).encode())
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError, PlanViewError) as error:
            LOG.error("%s: the plan that replaced %s cannot be read: %s", folder / _FILE, plan, describe_error(error))
            return
        self.plan, self.peers = folder / "plan.json", folder / "peers.json"
        LOG.info("plan %s is served, which replaced that of %s", found.hash[:12], plan)

    def keep(self, request: gateway_pb2.ReplaceRequest) -> None:
        """A plan has taken over; the gateway's own address stays. What is in the way is logged."""
        peers = {**request.peers, **self._own}
        kept = {"instead_of": self._given, "plan": json.loads(request.plan), "peers": peers}
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private_file(self._folder / _FILE, json.dumps(kept).encode())
        except OSError as error:
            text = "%s: %s; the next start serves the plan before, unless another replaces this one"
            LOG.error(text, self._folder / _FILE, describe_error(error))


def _own_address(peers: Path) -> dict[str, str]:
    try:
        return {GATEWAY: json.loads(peers.read_bytes())[GATEWAY]}
    except (OSError, ValueError, KeyError, TypeError):  # whoever reads the addresses says so
        return {}
