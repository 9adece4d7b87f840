"""Another plan for a gateway that runs: it takes over, does not come up, or is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from jellybean.serving import gateway_main
from jellybean_protos.gateway.v1 import gateway_pb2
from jellybean_solver import Deliver, from_document, to_document
from tests.support.gateway_in_process import Document, RunningGateway, eventually, running_gateway
from tests.support.scripted_workers import INPUTS, ScriptedWorker, hold, run, socket_folder, tensor, until
from tests.unit.gateway.core.process_calls import metrics_of, plan_of, refused

Code = grpc.StatusCode


async def other_worker(gateway: RunningGateway, document: Document, folder: Path, name: str) -> ScriptedWorker:
    """The worker of another plan, at an address of its own."""
    view = gateway_main.workflow_views(document).popitem()[1]
    return ScriptedWorker(name, view, f"unix:{folder}/other", gateway.addresses[""])


def replacing(document: Document, worker: ScriptedWorker, timeout_s: float = 20.0) -> gateway_pb2.ReplaceRequest:
    data = json.dumps(document).encode()
    return gateway_pb2.ReplaceRequest(plan=data, peers={worker.name: worker.address}, timeout_s=timeout_s)


def test_another_plan_takes_over_and_is_served_at_the_next_start(plan: Document, tmp_path: Path) -> None:
    after = plan_of(tmp_path, "edge-7", factor=3.0)

    async def test() -> None:
        options = ("--replaced", f"{tmp_path}/replaced")
        async with socket_folder() as sockets, running_gateway(plan, tmp_path, *options, sockets=sockets) as gateway:
            (before,) = gateway.workers.values()
            before.behaviour = hold
            asked = asyncio.create_task(gateway.infer(inputs=INPUTS))
            await until(lambda: before.received)
            worker = await other_worker(gateway, after, sockets, "edge-7")
            await worker.start()
            replaced = gateway.stub.Replace(replacing(after, worker))

            async def has_switched() -> bool:
                return (await gateway.status()).plan == worker.view.hash

            await eventually(has_switched)
            answered = await gateway.infer(inputs=INPUTS)
            assert answered.outputs
            assert len(worker.received) == 1
            before.answer(before.received[0], tensor(9, 9, 9, 9))  # which is in flight still
            assert (await asked).outputs["double"] == tensor(9, 9, 9, 9)
            assert (await replaced).before == gateway.view.hash
            await until(lambda: not before.has_streams, "the end of the plan before")
            status = await gateway.status()
            assert (status.plan, dict(status.workers)) == (worker.view.hash, {"edge-7": "ready"})
            assert (status.answered, status.failed) == (2, 0)
            assert json.loads((await gateway.stub.Plan(gateway_pb2.PlanRequest())).plan) == after
            assert (await metrics_of(gateway))["gateway_price_usd_per_h",] == pytest.approx(0.1)
            await worker.stop()
            await gateway.stop()
            away = running_gateway(plan, tmp_path, *options, away=("edge-1",), sockets=sockets)
            async with away as again:
                assert (await again.status()).plan == worker.view.hash

    run(test())


def test_a_plan_that_does_not_come_up_is_left(plan: Document, tmp_path: Path) -> None:
    after = plan_of(tmp_path, "edge-7", factor=3.0)

    async def test() -> None:
        options = ("--replaced", f"{tmp_path}/replaced")
        async with running_gateway(plan, tmp_path, *options) as gateway, socket_folder() as folder:
            worker = await other_worker(gateway, after, folder, "edge-7")
            status, reason = await refused(gateway.stub.Replace(replacing(after, worker, 0.2)))
            assert status is Code.DEADLINE_EXCEEDED
            assert reason.startswith("not ready within 0.2 s: edge-7")
            assert (await gateway.status()).plan == gateway.view.hash
            assert (await gateway.infer(inputs=INPUTS)).outputs
            assert not (tmp_path / "replaced").exists()
            metrics = await metrics_of(gateway)
            assert metrics["gateway_price_usd_per_h",] == pytest.approx(0.1)

    run(test())


def test_plans_that_cannot_take_over(plan: Document, tmp_path: Path) -> None:
    after = plan_of(tmp_path, "edge-7", factor=3.0)
    kept = plan_of(tmp_path, "edge-1", factor=3.0, deliver=Deliver.EVENTUALLY)

    async def test() -> None:
        async with running_gateway(plan, tmp_path) as gateway, socket_folder() as folder:
            worker = await other_worker(gateway, after, folder, "edge-7")
            for document, said in (
                (
                    to_document(replace(from_document(after), name="others")),
                    "the gateway serves tiny, the plan is of others",
                ),
                (kept, "a source has `deliver: eventually`"),
            ):
                status, reason = await refused(gateway.stub.Replace(replacing(document, worker)))
                assert (status, said in reason) == (Code.FAILED_PRECONDITION, True), reason
            request = replacing(after, worker)
            request.peers.clear()
            assert (await refused(gateway.stub.Replace(request)))[1] == "no address of edge-7"
            request.plan = b"{"
            assert (await refused(gateway.stub.Replace(request)))[0] is Code.INVALID_ARGUMENT
            assert (await gateway.status()).plan == gateway.view.hash

    run(test())
