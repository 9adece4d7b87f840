"""Workers of an earlier version: the only gateway of a plan serves them, one of several does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean_agent import EmulatedLinks, ReplyAddress, Transport, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.tiny_models import chain

TRANSPORT = Transport("tiny", insecure=True)
REPLY = ReplyAddress.of("127.0.0.1:7001", TRANSPORT)


@pytest.mark.parametrize("reply", [None, REPLY])
@pytest.mark.parametrize("several_gateways", [False, True])
def test_a_worker_that_answers_one_gateway_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: ReplyAddress | None, *, several_gateways: bool
) -> None:
    view = plan_view(chain(tmp_path))

    async def status_of(_plan: ServedPlan, name: str, _worker: object) -> agent_pb2.AgentStatus:
        return agent_pb2.AgentStatus(worker=name, plan=view.hash, protocol=2, several_gateways=several_gateways)

    monkeypatch.setattr(ServedPlan, "_status_of", status_of)

    async def test() -> ServedPlan:
        with EmulatedLinks((), None) as links:
            done = {"on_change": lambda: None, "on_worker_lost": lambda *_: None}
            plan = ServedPlan(view, {}, links, TRANSPORT, **done, reply=reply)
            await plan._describe("edge-1")
            return plan

    worker = asyncio.run(test()).workers["edge-1"]
    if reply is None or several_gateways:
        assert (worker.state, worker.why) == ("ready", "")
    else:
        assert (worker.state, worker.why) == (
            "starting",
            "it answers a single gateway, and the plan has several: update it",
        )
