"""Stop: the gateway's process ends, whatever fails and whoever waits for it."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import pytest

from jellybean.serving.enrolment.rollout import PlanOffer, PlanRollout
from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.service import GatewayService
from jellybean.serving.gateway_main import end_of_run, leave
from jellybean_agent import EmulatedLinks, Transport, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from tests.one_gateway import gateways_of
from tests.support.tiny_models import make_plan, scale

LIMIT_S = 20.0


def test_a_caller_that_is_cancelled_during_the_drain_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    operators = {"times": (["x"], scale(tmp_path / "models/times.onnx", 2.0))}
    view = plan_view(make_plan(tmp_path, operators, [(1.0, {"times": "edge-1"})], sources={"x": "edge"}))

    async def run() -> None:
        stop, context = asyncio.Event(), None
        transport, peers = Transport(view.name, insecure=True), {"": "127.0.0.1:9", "edge-1": "127.0.0.1:1"}
        with EmulatedLinks((), None) as links:
            network = WorkerNetwork(transport, set(), emulate=False)
            gateway = Gateway(view, peers, links, network)
            rollout = PlanRollout(PlanOffer(view, b"", peers))
            service = GatewayService(gateways_of(gateway, network), transport, rollout, on_stop=end_of_run(None, stop))
            gateway.start()
            trace = gateway._tracer.begin("request", view, "", has_client=True)
            waiting = gateway._requests.submit(
                {"x": agent_pb2.Tensor()}, LIMIT_S, "", trace, lambda outcome, outputs: None
            )
            call = asyncio.create_task(service.Stop(agent_pb2.DrainRequest(timeout_s=LIMIT_S), context))
            await asyncio.sleep(0)  # the call has begun
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert gateway.status().requests_in_hand == 1
            assert not stop.is_set()
            gateway._requests.cancel(waiting)
            await asyncio.wait_for(stop.wait(), LIMIT_S)
            await gateway.close()

    asyncio.run(run())


def test_a_state_file_that_cannot_be_written_does_not_keep_the_process_from_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".jellybean").write_text("no folder", encoding="utf-8")

    async def run() -> None:
        stop = asyncio.Event()
        await end_of_run(tmp_path, stop)()
        assert stop.is_set()

    asyncio.run(run())
    assert f"`jellybean down {tmp_path}` ends the run" in caplog.text


@pytest.mark.parametrize(("health_port", "told"), [(0, False), (7002, True)])
def test_only_clients_of_a_gateway_in_a_pod_are_told_to_connect_again(health_port: int, told: bool) -> None:
    """At home there is no other gateway that they could connect to."""
    events: list[str] = []

    class Leaving:
        def retire(self) -> None:
            events.append("retired")

        async def drain(self, _drain_s: float) -> int:
            events.append("drained")
            return 0

    options: Any = argparse.Namespace(health_port=health_port, drain_s=0.0)
    leaving: Any = Leaving()
    asyncio.run(leave(options, leaving, leaving))
    assert events == (["retired", "drained"] if told else ["drained"])
