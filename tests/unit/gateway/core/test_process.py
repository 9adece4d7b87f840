"""The gateway's process from its options to its end: what it says by gRPC, HTTP and metrics, and what it keeps."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from jellybean.ledger import By, Ledger, cost, run_cost
from jellybean.serving import gateway_main
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from jellybean_protos.inference.v2 import inference_pb2
from jellybean_solver import Deliver, Link, from_document, to_document
from tests.support.gateway_in_process import RunningGateway, eventually, running_gateway
from tests.support.ports import free_port
from tests.support.scripted_workers import ScriptedWorker, add_up, hold, socket_folder, tensor, until
from tests.support.tiny_models import make_plan, recurrent, scale

INPUTS = {"x": tensor(1, 2, 3, 4)}
Code = grpc.StatusCode
Document = Mapping[str, Any]
INFER = "/inference.GRPCInferenceService/ModelInfer"


def plan_of(root: Path, *workers: str, factor: float = 2.0, **settings: Any) -> Document:
    """`double` on these workers in equal shares; with another factor another plan."""
    operators = {"double": (["x"], scale(root / "models/double.onnx", factor))}
    routes = [(1.0 / len(workers), {"double": worker}) for worker in workers]
    return make_plan(root, operators, routes, **{"sources": {"x": "edge"}, **settings})


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return plan_of(tmp_path_factory.mktemp("plan"), "edge-1")


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """Status and reason of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Metrics by name and values of labels."""
    return {
        (sample.name.removeprefix("jellybean_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def metrics_of(gateway: RunningGateway) -> dict[tuple[str, ...], float]:
    """The metrics that it tells now, with its workers'."""
    return samples((await gateway.stub.Metrics(agent_pb2.MetricsRequest())).text)


def model_request(request_id: str = "", **parameters: str) -> inference_pb2.ModelInferRequest:
    request = inference_pb2.ModelInferRequest(model_name="tiny", id=request_id)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(struct.pack("4f", 1, 2, 3, 4))
    return request


def model_call(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        INFER,
        request_serializer=inference_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=inference_pb2.ModelInferResponse.FromString,
    )


# -- requests ---------------------------------------------------------------------------------------------------------


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


def test_the_inference_protocol(plan: Document, tmp_path: Path) -> None:
    """The first call of a shape is read in full, later ones are not; both have the same answers."""

    async def test() -> None:
        async with running_gateway(plan, tmp_path) as gateway:
            infer = model_call(gateway.channel)
            for request_id in ("a", "b", "b", ""):
                answer = await infer(model_request(request_id), timeout=20.0)
                assert (answer.model_name, answer.model_version) == ("tiny", gateway.view.hash[:12])
                assert answer.id == request_id
                (output,) = answer.outputs
                assert (output.name, output.datatype, list(output.shape)) == ("double", "FP32", [1, 4])
                assert list(answer.raw_output_contents) == [struct.pack("4f", 1, 2, 3, 4)]
            (worker,) = gateway.workers.values()
            assert len(worker.received) == 4
            wrong = model_request()
            wrong.inputs[0].shape[1] = 3
            assert (await refused(infer(wrong, timeout=20.0)))[0] is Code.INVALID_ARGUMENT
            other = model_request()
            other.model_name = "other"
            assert (await refused(infer(other, timeout=20.0)))[0] is Code.NOT_FOUND
            worker.behaviour = lambda worker, message: worker.fail(message, Code.INTERNAL, "broken")
            assert await refused(infer(model_request(), timeout=20.0)) == (
                Code.INTERNAL,
                "worker edge-1, operator double: broken",
            )
            worker.behaviour = hold
            status, reason = await refused(infer(model_request(), timeout=2.0))
            assert status is Code.DEADLINE_EXCEEDED
            assert reason.startswith("no answer of double within ")
            found = await gateway.status()
            assert (found.answered, found.failed, found.expired) == (4, 4, 1)

    run(test())


def test_an_answer_that_the_inference_protocol_cannot_hold(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path) as gateway:
            (worker,) = gateway.workers.values()
            strange = agent_pb2.Tensor(dtype="complex64", shape=[1, 1], data=b"\0" * 8)
            worker.behaviour = lambda worker, message: worker.answer(message, strange)
            for _ in range(2):
                status, reason = await refused(model_call(gateway.channel)(model_request(), timeout=20.0))
                assert status is Code.INTERNAL
                assert "complex64" in reason

    run(test())


def test_sequences_of_the_inference_protocol_are_streams(tmp_path: Path) -> None:
    operators = {"remember": (["x"], recurrent(tmp_path / "models/remember.onnx", 0.9))}
    states = {"remember": (("state", "state_next"),)}
    route = [(1.0, {"remember": "edge-1"})]
    document = make_plan(tmp_path, operators, route, sources={"x": "edge"}, states=states)

    async def test() -> None:
        async with running_gateway(document, tmp_path, behaviours={"edge-1": add_up}) as gateway:
            infer = model_call(gateway.channel)

            async def chunk(*, start: bool = False, end: bool = False) -> float:
                request = model_request()
                request.parameters["sequence_id"].int64_param = 7
                request.parameters["sequence_start"].bool_param = start
                request.parameters["sequence_end"].bool_param = end
                answer = await infer(request, timeout=20.0)
                return float(struct.unpack("4f", answer.raw_output_contents[0])[0])

            assert [await chunk(start=True), await chunk(), await chunk(end=True)] == [1.0, 2.0, 3.0]
            assert (await refused(chunk()))[0] is Code.NOT_FOUND
            for _ in range(2):
                assert (await refused(infer(model_request(), timeout=20.0)))[0] is Code.INVALID_ARGUMENT
            stream = gateway_pb2.Stream(id="s", begins=True, chunk=1)
            first = await gateway.infer(inputs=INPUTS, stream=stream)
            assert first.outputs["remember"] == INPUTS["x"]
            again = await gateway.infer(inputs=INPUTS, stream=gateway_pb2.Stream(id="s", chunk=1))
            assert again.outputs == first.outputs
            assert (await gateway.status()).answered == 5

    run(test())


# The oldest version that is supported has no such keys.
@pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
def test_http(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}], "id": "a"}
        async with (
            running_gateway(plan, tmp_path, "--http-port", str(port)) as gateway,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):

            async def get(path: str) -> tuple[int, Any]:
                async with http.get(path) as response:
                    return response.status, json.loads(await response.read() or b"null")

            assert (await get("/v2/health/live"))[0] == (await get("/v2/health/ready"))[0] == 200
            assert (await get("/v2/models/tiny/ready"))[0] == 200
            status, about = await get("/v2/models/tiny")
            assert (status, about["platform"], about["versions"]) == (
                200,
                "jellybean_workflow",
                [gateway.view.hash[:12]],
            )
            assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]
            assert about["outputs"] == [{"name": "double", "datatype": "FP32", "shape": [-1, 4]}]
            assert (await get("/v2/models/other"))[0] == 404
            assert (await get("/v2"))[1]["name"] == "jellybean-gateway"
            async with http.post("/v2/models/tiny/infer", json=body) as response:
                answer = await response.json()
            assert (response.status, answer["id"]) == (200, "a")
            assert answer["outputs"][0]["data"] == [1, 2, 3, 4]
            for wrong, code in (({"inputs": []}, 400), ({**body, "inputs": "x"}, 400)):
                async with http.post("/v2/models/tiny/infer", json=wrong) as response:
                    assert response.status == code
                    assert (await response.json())["error"]
            (worker,) = gateway.workers.values()
            await worker.stop()
            await gateway.ready("degraded")
            assert (await get("/v2/health/ready"))[0] != 200
            assert (await get("/v2/health/live"))[0] == 200

    run(test())


# -- what it tells ----------------------------------------------------------------------------------------------------


def test_metrics(tmp_path: Path) -> None:
    document = plan_of(tmp_path, "cloud-1", links=[Link("edge", "cloud", 0.5, None, 0.0)])

    async def test() -> None:
        port = free_port()
        options = ("--metrics-port", str(port), "--worker-metrics", "--gateways", "2")
        async with running_gateway(document, tmp_path, *options) as gateway, aiohttp.ClientSession() as http:
            (worker,) = gateway.workers.values()
            worker.metrics = b'jellybean_made_up_total{operator="double"} 7\n'
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
                assert found["made_up_total", "double"] == 7
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


# -- another plan -----------------------------------------------------------------------------------------------------


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


# -- what it keeps ----------------------------------------------------------------------------------------------------


def test_a_request_that_is_kept_is_answered_after_the_next_start(tmp_path: Path) -> None:
    document = plan_of(tmp_path, "edge-1", deliver=Deliver.EVENTUALLY)

    async def test() -> None:
        options = ("--spool", f"{tmp_path}/spool.db", "--ledger", f"{tmp_path}/ledger.db", "--live", f"{tmp_path}/live")
        brief = (*options, "--timeout-s", "0.1")
        async with running_gateway(document, tmp_path, *brief, behaviours={"edge-1": hold}) as gateway:
            response = await gateway.infer(inputs=INPUTS, request_id="a")
            assert (response.request_id, response.kept, dict(response.outputs)) == ("a", True, {})
            status = await gateway.status()
            assert (status.kept, status.answered, status.failed) == (1, 0, 0)
            assert status.kept_bytes > 16
            metrics = await metrics_of(gateway)
            assert metrics["gateway_kept",] == 1
            assert metrics["gateway_kept_oldest_seconds",] > 0
        assert (tmp_path / "live").exists(), "the request is counted as received there"
        async with running_gateway(document, tmp_path, *options) as gateway:
            response = await gateway.infer(inputs={}, request_id="a")
            assert dict(response.outputs) == {"double": INPUTS["x"]}
            named = await gateway.infer(inputs=INPUTS)
            assert named.outputs
            for _ in range(2):  # the protocol's ids need not be unique
                assert (await model_call(gateway.channel)(model_request("m"), timeout=20.0)).id == "m"
            status = await gateway.status()
            assert (status.kept, status.answered, status.failed) == (0, 4, 0)
            assert (await refused(gateway.infer(inputs={}, request_id="b")))[0] is Code.NOT_FOUND
        assert not (tmp_path / "live").exists(), "all of it is in the ledger"
        assert requests_of(tmp_path / "ledger.db") == 4

    run(test())


def test_a_failure_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its reason; a request that is kept has not failed yet."""
    caplog.set_level(logging.INFO, "jellybean.gateway")
    document = plan_of(tmp_path, "edge-1", deliver=Deliver.EVENTUALLY)

    async def test() -> None:
        options = ("--spool", f"{tmp_path}/spool.db", "--timeout-s", "0.1")
        async with running_gateway(document, tmp_path, *options, behaviours={"edge-1": hold}) as gateway:
            assert (await gateway.infer(inputs=INPUTS, request_id="kept")).kept
            refusal = gateway.infer(inputs={"x": tensor(1)}, request_id="wrong")
            assert (await refused(refusal))[0] is Code.INVALID_ARGUMENT
            caplog.set_level(logging.ERROR, "jellybean.gateway")
            await gateway.stub.Drain(agent_pb2.DrainRequest(timeout_s=0.0))
            assert await refused(gateway.infer(inputs=INPUTS, request_id="late")) == (
                Code.UNAVAILABLE,
                "the gateway is draining: it takes no new requests",
            )

    run(test())
    failures = [record for record in caplog.records if record.getMessage().startswith("a request was refused: ")]
    assert [record.levelname for record in failures] == ["INFO"]
    (record,) = failures
    assert record.getMessage().startswith("a request was refused: source x: ")


def test_a_gateway_keeps_requests_only_where_it_is_told(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path) as gateway:
            assert (await gateway.infer(inputs=INPUTS, request_id="a")).outputs
            assert (await refused(gateway.infer(inputs={}, request_id="a")))[0] is Code.ALREADY_EXISTS
            status = await gateway.status()
            assert (status.kept, status.kept_bytes) == (0, 0)

    run(test())


def requests_of(path: Path) -> int | None:
    """Answered requests of all clients, as the ledger has them."""
    ledger = Ledger(str(path), "test")
    try:
        return sum(line.done or 0 for line in cost(ledger, By.CLIENT))
    finally:
        ledger.close()


@pytest.mark.parametrize("several", [(), ("--ledger-deployment", "all")])
def test_the_ledger_has_what_was_served(tmp_path: Path, several: tuple[str, ...]) -> None:
    document = plan_of(tmp_path, "cloud-1", links=[Link("edge", "cloud", 0.5, None, 0.0)])

    async def test() -> None:
        options = ("--ledger", f"{tmp_path}/ledger.db", "--live", f"{tmp_path}/live", "--ledger-run", "first", *several)
        async with running_gateway(document, tmp_path, *options) as gateway:
            for _ in range(3):
                await gateway.infer(inputs=INPUTS)

            async def is_written() -> bool:
                return (await metrics_of(gateway))["ledger_unwritten",] == 0

            await eventually(is_written)
        found = Ledger(str(tmp_path / "ledger.db"), "test")
        workers_usd, links_usd = run_cost(found, "first", "tiny")
        found.close()
        assert workers_usd > 0
        assert links_usd == pytest.approx(3 * 16 / 2**30 * 0.5)
        assert not (tmp_path / "live").exists()
        async with running_gateway(document, tmp_path, *options) as gateway:  # which goes on with what was paid

            async def goes_on() -> bool:
                return (await metrics_of(gateway))["gateway_cost_usd_total", "links"] == pytest.approx(links_usd)

            await eventually(goes_on)

    run(test())


def test_what_could_not_be_written_is_written_later(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        options = ("--ledger", f"{tmp_path}/away/ledger.db", "--live", f"{tmp_path}/live")
        async with running_gateway(plan, tmp_path, *options) as gateway:

            async def is_unwritten() -> bool:
                return (await metrics_of(gateway))["ledger_unwritten",] > 0

            await eventually(is_unwritten)
            assert (await gateway.infer(inputs=INPUTS, request_id="a")).outputs
            (tmp_path / "away").mkdir()
        assert requests_of(tmp_path / "away/ledger.db") == 1
        assert not (tmp_path / "live").exists()

    run(test())


# -- its end ----------------------------------------------------------------------------------------------------------


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
