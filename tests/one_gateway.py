"""The gateways of a process that serves one workflow, from a gateway that a test has made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.gateways import Gateways
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.served_workflow import ServedWorkflow
from jellybean_agent import PlanView


def gateways_of(gateway: Gateway, network: WorkerNetwork) -> Gateways:
    """The gateway as the only one of its process."""

    async def make(_view: PlanView, _addresses: Mapping[str, str], _links: Path | None) -> ServedWorkflow:
        raise AssertionError("a plan of one workflow needs no other gateway")

    found = Gateways(gateway.view, network, make)
    found.adopt(ServedWorkflow(gateway))
    return found
