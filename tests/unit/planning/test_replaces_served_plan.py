"""A plan that replaces plan.json: whether that had the plan that is served, which only the gateway knows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc

from jellybean.folders import state_folder
from jellybean.planning import PLAN_FILE, PlanFile
from jellybean.serving import RunState
from jellybean.serving.enrolment.rollout import PlanOffer, PlanRollout
from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.service import GatewayService
from jellybean.serving.run_state import write_state
from jellybean_agent import EmulatedLinks, Transport, plan_view
from jellybean_protos.gateway.v1 import gateway_pb2_grpc
from tests.one_gateway import gateways_of
from tests.support.run_processes import idle_process
from tests.support.tiny_models import make_plan, scale


def test_the_gateway_says_which_plan_is_served(tmp_path: Path) -> None:
    operators = {"times": (["x"], scale(tmp_path / "models/times.onnx", 2.0))}
    document = make_plan(tmp_path, operators, [(1.0, {"times": "edge-1"})], sources={"x": "edge"})
    view, address = plan_view(document), f"unix:{tmp_path}/s"
    state_folder(tmp_path)

    async def notes() -> list[str]:
        with EmulatedLinks((), None) as links:
            transport = Transport(view.name, insecure=True)
            network = WorkerNetwork(transport, set(), emulate=False)
            gateway = Gateway(view, {"": address}, links, network)
            server = grpc.aio.server()
            service = GatewayService(
                gateways_of(gateway, network), transport, PlanRollout(PlanOffer(view, b"", {"": address}))
            )
            gateway_pb2_grpc.add_GatewayServicer_to_server(service, server)  # type: ignore[no-untyped-call]
            server.add_insecure_port(address)
            await server.start()
            found = []
            for written in ("before", view.hash):  # `apply` from elsewhere left the state of the run as it was
                (tmp_path / PLAN_FILE).write_text(json.dumps({"hash": written}), encoding="utf-8")
                found.append(await asyncio.to_thread(PlanFile(tmp_path).replaces_served_text, "new"))
            await server.stop(None)
            await gateway.close()
        return found

    with idle_process(tmp_path, address=address) as process:
        write_state(tmp_path, RunState("before", "tiny", "folder", "folder/1", address, processes=(process,)))
        before, served = asyncio.run(notes())
    assert before == ""
    assert f"had the plan that is served, {view.hash[:12]}" in served
