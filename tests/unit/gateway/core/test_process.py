"""The gateway's process from its options to its end: requests, metrics, health, permissions and a drain."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jellybean.serving import gateway_main
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from jellybean_solver import Link
from tests.support.gateway_in_process import Document, eventually, running_gateway
from tests.support.ports import free_port
from tests.support.scripted_workers import INPUTS, hold, run, tensor, until
from tests.unit.gateway.core.process_calls import model_call, model_request, plan_of, refused, samples

Code = grpc.StatusCode


def test_a_request_and_its_id(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path) as gateway:
            named = await gateway.infer(inputs=INPUTS, request_id="a")
            assert (named.request_id, dict(named.outputs), named.kept) == ("a", {"double": INPUTS["x"]}, False)
            first, second = [await gateway.infer(inputs=INPUTS, workflow="tiny") for _ in range(2)]
            assert len(first.request_id) == len(second.request_id) == 32
            assert first.request_id != second.request_id
            assert await refused(gateway.infer(inputs=INPUTS, request_id="a")) == (
                Code.ALREADY_EXISTS,
                "request 'a' was answered already",
            )
            status, reason = await refused(gateway.infer(inputs=INPUTS, workflow="other"))
            assert (status, reason) == (Code.NOT_FOUND, "no workflow 'other' is served here, but tiny")
            status, reason = await refused(gateway.infer(inputs=INPUTS, stream=gateway_pb2.Stream(id="s")))
            assert status is Code.UNIMPLEMENTED
            found = await gateway.status("tiny")
            assert (found.answered, found.failed, found.plan) == (3, 2, gateway.view.hash)
            assert (await refused(gateway.status("other")))[0] is Code.NOT_FOUND

    run(test())


def test_a_call_that_its_client_ends_is_dropped_by_the_worker(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path, behaviours={"edge-1": hold}) as gateway:
            (worker,) = gateway.workers.values()
            general = partial(gateway.stub.Infer, gateway_pb2.InferRequest(inputs=INPUTS))
            fast = partial(model_call(gateway.channel), model_request())
            for number, begin in enumerate((general, fast), 1):
                call = begin(timeout=20.0)
                await until(lambda number=number: len(worker.received) == number, "the request")
                call.cancel()
                await until(lambda number=number: len(worker.dropped) == number, "notice of the end")
                assert worker.dropped[-1].failure.status == 1
                assert worker.dropped[-1].request_id == worker.received[-1].request_id
            status = await gateway.status()
            assert (status.requests_in_hand, status.failed) == (0, 2)

    run(test())


def test_metrics(tmp_path: Path) -> None:
    document = plan_of(tmp_path, "cloud-1", links=[Link("edge", "cloud", 0.5, None, 0.0)])

    async def test() -> None:
        port = free_port()
        options = ("--metrics-port", str(port), "--worker-metrics", "--gateways", "2")
        async with running_gateway(document, tmp_path, *options) as gateway, aiohttp.ClientSession() as http:
            (worker,) = gateway.workers.values()
            worker.metrics = b'jellybean_expired_total{operator="double",worker="cloud-1"} 7\n'
            for _ in range(3):
                await gateway.infer(inputs=INPUTS)
            assert (await refused(gateway.infer(inputs={"x": tensor(1)})))[0] is Code.INVALID_ARGUMENT
            told = await gateway.stub.Metrics(agent_pb2.MetricsRequest())
            async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
                scraped = await response.read()
            for text in (told.text, scraped):
                found = samples(text)
                assert found["gateway_requests_total", "answered"] == 3
                assert sum(value for key, value in found.items() if key[0] == "gateway_requests_total") == 4
                assert found["gateway_received_total",] == 4
                assert found["gateway_latency_seconds_count",] == found["gateway_latency_seconds_bucket", "+Inf"] == 3
                assert found["gateway_latency_seconds_sum",] > 0
                assert found["gateway_in_hand",] == found["gateway_waiting",] == found["gateway_kept",] == 0
                assert found["gateway_workers", "ready"] == found["gateway_worker_ready", "cloud-1"] == 1
                assert found["gateway_workers", "gone"] == 0
                assert found["gateway_link_bytes_total", "x", "edge", "cloud"] == 3 * 16
                assert found["gateway_cost_usd_total", "links"] == pytest.approx(3 * 16 / 2**30 * 0.5)
                assert found["gateway_price_usd_per_h",] == pytest.approx(0.1)
                assert found["plan_info", gateway.view.hash, "optimal", "tiny"] == 1
                assert found["expired_total", "double", "cloud-1"] == 7
            assert samples(scraped)["gateway_replicas",] == 2
            assert (await refused(gateway.stub.Metrics(agent_pb2.MetricsRequest(workflow="other"))))[
                0
            ] is Code.NOT_FOUND

    run(test())


def test_health_follows_the_workers(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path, away=("edge-1",)) as gateway:
            check = health_pb2_grpc.HealthStub(gateway.channel).Check
            serving = health_pb2.HealthCheckResponse.SERVING

            async def is_serving() -> bool:
                return (await check(health_pb2.HealthCheckRequest())).status == serving

            assert not await is_serving()
            (worker,) = gateway.workers.values()

            async def is_away() -> bool:
                return not await is_serving()

            await worker.start()
            await eventually(is_serving)
            await worker.stop()
            await eventually(is_away)

    run(test())


def test_clients_may_not_do_what_the_owner_may(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            running_gateway(plan, tmp_path, "--port", "0") as gateway,
            grpc.aio.insecure_channel(gateway.address) as channel,
        ):
            assert gateway.address.startswith("127.0.0.1:")
            client = gateway_pb2_grpc.GatewayStub(channel)
            assert (await client.Infer(gateway_pb2.InferRequest(inputs=INPUTS))).outputs
            for call in (client.Drain, client.Stop):
                assert (await refused(call(agent_pb2.DrainRequest())))[0] is Code.PERMISSION_DENIED
            assert (await refused(client.Replace(gateway_pb2.ReplaceRequest())))[0] is Code.PERMISSION_DENIED
            assert not gateway.task.done()
            assert json.loads((await gateway.stub.Plan(gateway_pb2.PlanRequest())).plan)["name"] == "tiny"

    run(test())


def test_a_drained_gateway_answers_what_it_has_and_refuses_the_rest(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path, behaviours={"edge-1": hold}) as gateway:
            (worker,) = gateway.workers.values()
            asked = asyncio.create_task(gateway.infer(inputs=INPUTS))
            await until(lambda: worker.received)
            assert (await gateway.stub.Drain(agent_pb2.DrainRequest(timeout_s=0.0))).left == 1
            assert (await gateway.status()).state == "draining"
            assert await refused(gateway.infer(inputs=INPUTS)) == (
                Code.UNAVAILABLE,
                "the gateway is draining: it takes no new requests",
            )
            worker.answer(worker.received[0], tensor(1, 2, 3, 4))
            assert (await asked).outputs
            assert not gateway.task.done()

    run(test())


def test_a_plan_that_is_none_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    (tmp_path / "peers.json").write_text("{}", encoding="utf-8")
    files = ["--plan", f"{tmp_path}/plan.json", "--peers", f"{tmp_path}/peers.json", "--links", f"{tmp_path}/links"]
    assert gateway_main.main(files) == 2
    assert capsys.readouterr().err.startswith("gateway: ")
