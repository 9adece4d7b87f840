"""The gateway as its process runs it, in this process, with scripted workers: every port and file of it is real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from jellybean.serving import gateway_main
from jellybean.serving.gateway_arguments import gateway_parser
from jellybean_agent import GATEWAY, PlanView, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from tests.support.scripted_workers import Behaviour, ScriptedWorker, addresses_of, answer, socket_folder, until

Document = Mapping[str, Any]


@dataclass
class RunningGateway:
    """A gateway that serves. `stub`: of its service, at the address of the run's owner."""

    view: PlanView
    workers: dict[str, ScriptedWorker]
    stub: gateway_pb2_grpc.GatewayStub
    channel: grpc.aio.Channel
    address: str  # for clients
    addresses: dict[str, str]
    task: asyncio.Task[None]

    async def infer(self, timeout_s: float = 20.0, **request: Any) -> gateway_pb2.InferResponse:
        """The answer of a request. AioRpcError without one."""
        response: gateway_pb2.InferResponse = await self.stub.Infer(
            gateway_pb2.InferRequest(**request), timeout=timeout_s
        )
        return response

    async def status(self, workflow: str = "") -> gateway_pb2.StatusResponse:
        """Its state and counters."""
        status: gateway_pb2.StatusResponse = await self.stub.Status(gateway_pb2.StatusRequest(workflow=workflow))
        return status

    async def ready(self, state: str = "ready") -> None:
        """Wait for a state."""

        async def has_state() -> bool:
            return (await self.status()).state == state

        await eventually(has_state)

    async def stop(self) -> None:
        """End it as `jellybean down` does."""
        await self.stub.Stop(agent_pb2.DrainRequest(timeout_s=5.0))
        await self.task


@asynccontextmanager
async def running_gateway(
    plan: Document,
    root: Path,
    *options: str,
    behaviours: Mapping[str, Behaviour] = {},
    away: tuple[str, ...] = (),
    sockets: Path | None = None,
    insecure: bool = True,
) -> AsyncIterator[RunningGateway]:
    """Serve a plan; files are in `root`. `options`: of the command line; `sockets`: a folder that stays."""
    view = plan_view(plan)
    async with AsyncExitStack() as ended:
        folder = sockets or await ended.enter_async_context(socket_folder())
        addresses = addresses_of(view, folder)
        for name, document in (("plan.json", plan), ("peers.json", addresses)):
            (root / name).write_text(json.dumps(document), encoding="utf-8")
        workers = {
            worker.name: ScriptedWorker(
                worker.name, view, addresses[worker.name], addresses[GATEWAY], behaviours.get(worker.name, answer)
            )
            for worker in view.serving
        }
        for worker in workers.values():
            worker.others = workers
        told = ["--plan", f"{root}/plan.json", "--peers", f"{root}/peers.json", "--links", f"{root}/links"]
        told += ["--address-file", f"{root}/address", *(["--insecure"] if insecure else []), *options]
        for name, worker in workers.items():
            if name not in away:
                await worker.start()
            ended.push_async_callback(worker.stop)
        (root / "address").unlink(missing_ok=True)
        task = asyncio.create_task(gateway_main.serve(gateway_parser().parse_args(told)))
        ended.push_async_callback(_ended, task)
        await until(lambda: task.done() or (root / "address").exists(), "the gateway's address")
        if task.done():
            task.result()
        channel = await ended.enter_async_context(grpc.aio.insecure_channel(addresses[GATEWAY]))
        address, stub = (root / "address").read_text(encoding="utf-8"), gateway_pb2_grpc.GatewayStub(channel)
        running = RunningGateway(view, workers, stub, channel, address, addresses, task)
        if not away:
            await running.ready()
        yield running
        if not task.done():
            await running.stop()


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until a condition holds that is asked of a process. TimeoutError if it does not."""
    async with asyncio.timeout(30.0):
        while not await condition():
            await asyncio.sleep(0.005)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
