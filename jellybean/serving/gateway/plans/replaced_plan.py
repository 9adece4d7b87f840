"""The plan that replaced the one given on the gateway's command line, kept in a folder for the gateway's next start.

It is used only while the command line gives a plan that it replaced: another plan on the command line takes precedence.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from jellybean_agent import GATEWAY, PlanViewError, describe_error, plan_view, read_plan, write_private_file
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
_FILE = "replaced.json"


@dataclass(frozen=True, slots=True)
class ReplacedPlan:
    """The files to serve (`plan`, `peers`), and the folder in which a later replacement is stored (`folder`)."""

    folder: Path
    replaced: list[str]  # hashes of the plan on the command line, and of those that replaced it and were replaced
    own_address: dict[str, str]
    plan: Path
    peers: Path

    @classmethod
    def read(cls, folder: Path, plan: Path, peers: Path) -> Self:
        """The kept plan, or the given files where none is kept for `plan`.

        PlanViewError when `plan` is no plan. A kept plan that cannot be read is logged and ignored.
        """
        given = read_plan(plan).hash
        kept_plan, kept_peers = _restore(folder, given, plan) or (plan, peers)
        replaced = list(dict.fromkeys((given, read_plan(kept_plan).hash)))
        return cls(folder, replaced, _own_address(peers), kept_plan, kept_peers)

    def keep(self, request: gateway_pb2.ReplaceRequest) -> None:
        """Keep a plan that has taken over; the gateway's own address stays. A failure to write is logged."""
        peers = {**request.peers, **self.own_address}
        document = json.loads(request.plan)
        kept = {"instead_of": self.replaced, "plan": document, "peers": peers}
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private_file(self.folder / _FILE, json.dumps(kept).encode())
        except OSError as error:
            text = "%s: %s; the next start serves the plan before, unless another replaces this one"
            LOG.error(text, self.folder / _FILE, describe_error(error))
        self.replaced.append(plan_view(document).hash)


def forget_replaced_plan(folder: Path) -> None:
    """Forget the plan kept in `folder`: the next start serves the plan that it is given."""
    (folder / _FILE).unlink(missing_ok=True)


def _restore(folder: Path, given: str, plan: Path) -> tuple[Path, Path] | None:
    """Write the kept plan and peers as files of their own; None when there is none for the given plan."""
    try:
        kept = json.loads((folder / _FILE).read_bytes())
        if given not in kept["instead_of"]:  # a list of hashes; before, it was a single one
            LOG.info("%s is served: the plan kept in %s replaced another one", plan, folder)
            return None
        view = plan_view(kept["plan"])
        for name in ("plan", "peers"):
            write_private_file(folder / f"{name}.json", json.dumps(kept[name]).encode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, PlanViewError) as error:
        LOG.error("%s: the plan that replaced %s cannot be read: %s", folder / _FILE, plan, describe_error(error))
        return None
    LOG.info("plan %s is served, which replaced that of %s", view.hash[:12], plan)
    return folder / "plan.json", folder / "peers.json"


def _own_address(peers: Path) -> dict[str, str]:
    try:
        return {GATEWAY: json.loads(peers.read_bytes())[GATEWAY]}
    except (OSError, ValueError, KeyError, TypeError):  # `read_peers` reports it
        return {}
