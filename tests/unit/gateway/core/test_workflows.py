"""The process of a gateway whose plan is of two workflows, which share their workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from jellybean.documents import load_any_project
from jellybean.planning import plan_project, require_plan
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2
from jellybean_solver import to_document
from tests.support.gateway_in_process import RunningGateway, running_gateway
from tests.support.ports import free_port
from tests.support.scripted_workers import Behaviour, ScriptedWorker, hold, tensor, until
from tests.support.two_scales import make_two_scales

INPUTS = {"x": tensor(1, 2, 3, 4)}
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = make_two_scales(tmp_path_factory.mktemp("two") / "two")
    return json.loads(json.dumps(to_document(require_plan(plan_project(load_any_project(folder), compare=False)))))


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


def at_once(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
    """The first operator's worker answers for the last."""
    workflow = message.downstream.partition("/")[0]
    worker.answer(message, message.tensor, upstream=f"{workflow}/last")


def behaviours(gateway_plan: dict[str, Any], behaviour: Behaviour) -> dict[str, Behaviour]:
    return {worker["name"]: behaviour for worker in gateway_plan["workers"]}


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def received(gateway: RunningGateway) -> list[str]:
    return sorted(message.downstream for worker in gateway.workers.values() for message in worker.received)


def test_each_workflow_has_its_requests(plan: dict[str, Any], tmp_path: Path) -> None:
    async def test() -> None:
        options = ("--spool", f"{tmp_path}/spool.db", "--ledger", f"{tmp_path}/ledger.db", "--live", f"{tmp_path}/live")
        async with running_gateway(plan, tmp_path, *options, behaviours=behaviours(plan, at_once)) as gateway:
            for workflow, count in (("shop", 2), ("yard", 1)):
                for _ in range(count):
                    answer = await gateway.infer(inputs=INPUTS, workflow=workflow)
                    assert dict(answer.outputs) == {"last": INPUTS["x"]}
            assert received(gateway) == ["shop/first", "shop/first", "yard/first"]
            assert await refused(gateway.infer(inputs=INPUTS)) == (
                Code.INVALID_ARGUMENT,
                "this gateway serves shop, yard: say which workflow: `workflow=`, or `--workflow NAME`",
            )
            assert (await refused(gateway.infer(inputs=INPUTS, workflow="other")))[0] is Code.NOT_FOUND
            together = await gateway.status()
            assert (together.answered, list(together.workflows), together.state) == (3, ["shop", "yard"], "ready")
            assert (await gateway.status("shop")).answered == 2
            assert (await gateway.status("yard")).answered == 1
            text = (await gateway.stub.Metrics(agent_pb2.MetricsRequest())).text.decode()
            assert 'jellybean_gateway_requests_total{outcome="answered",workflow="shop"} 2.0' in text
            own = (await gateway.stub.Metrics(agent_pb2.MetricsRequest(workflow="yard"))).text.decode()
            assert "shop" not in own
        assert {path.name for path in tmp_path.glob("spool*.db")} == {"spool-shop.db", "spool-yard.db"}

    run(test())


# The oldest version of aiohttp that is supported has no such keys.
@pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
def test_each_workflow_is_a_model(plan: dict[str, Any], tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        sent = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
        options = ("--http-port", str(port))
        async with (
            running_gateway(plan, tmp_path, *options, behaviours=behaviours(plan, at_once)) as gateway,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):
            for workflow in ("yard", "shop"):
                async with http.post(f"/v2/models/{workflow}/infer", json=sent) as response:
                    assert (response.status, (await response.json())["model_name"]) == (200, workflow)
            assert received(gateway) == ["shop/first", "yard/first"]

    run(test())


def test_a_flood_of_one_leaves_the_other(plan: dict[str, Any], tmp_path: Path) -> None:
    async def test() -> None:
        def one(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
            (hold if message.downstream.startswith("shop/") else at_once)(worker, message)

        options = ("--max-in-hand", "2")
        async with running_gateway(plan, tmp_path, *options, behaviours=behaviours(plan, one)) as gateway:
            asked = [asyncio.create_task(gateway.infer(inputs=INPUTS, workflow="shop")) for _ in range(2)]
            await until(lambda: len(received(gateway)) == 2)
            assert (await refused(gateway.infer(inputs=INPUTS, workflow="shop")))[0] is Code.RESOURCE_EXHAUSTED
            assert (await gateway.infer(inputs=INPUTS, workflow="yard")).outputs
            together = await gateway.status()
            assert (together.requests_in_hand, together.answered, together.refused) == (2, 1, 1)
            busy = [worker for worker in gateway.workers.values() if worker.received]
            assert (await gateway.stub.Drain(agent_pb2.DrainRequest(timeout_s=0.0))).left == 2
            assert (await gateway.status()).state == "draining"
            for worker in busy:
                for message in worker.received:
                    if message.downstream.startswith("shop/"):
                        at_once(worker, message)
            for each in asked:
                assert (await each).outputs

    run(test())


def test_a_worker_that_is_gone_is_gone_for_both(plan: dict[str, Any], tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path, behaviours=behaviours(plan, at_once)) as gateway:
            (server,) = (worker for name, worker in gateway.workers.items() if name.startswith("server"))
            await server.stop()
            await gateway.ready("degraded")
            status = await gateway.status()
            assert status.workers[server.name] == "gone"
            assert status.reasons[server.name]
            document = json.loads((await gateway.stub.Plan(gateway_pb2.PlanRequest())).plan)
            assert document["hash"] == gateway.view.hash

    run(test())
