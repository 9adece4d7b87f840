"""What the library's client, the remote ledger and HTTP callers get of a gateway's process, with and without TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import numpy as np
import pytest

from jellybean.ledger import By, LabelledBy, LaterLabel
from jellybean.serving import Authority, Chunk, Client, RemoteLedger, RequestError, open_authority
from jellybean.serving.errors import KeptError
from jellybean_agent import Identity, Role
from jellybean_protos.gateway.v1 import ledger_pb2
from jellybean_solver import Deliver, Link
from tests.support.gateway_in_process import running_gateway
from tests.support.ports import free_port
from tests.support.scripted_workers import hold
from tests.support.tiny_models import make_plan, scale

ROW = np.array([[1, 2, 3, 4]], np.float32)
Document = Mapping[str, Any]
Found = TypeVar("Found")
# The oldest version of aiohttp that is supported has no such keys.
pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
WORKER = """\
jellybean_counted_since_timestamp_seconds{worker="edge-1"} 1000.0
jellybean_requests_total{operator="double",variant="only",worker="edge-1"} 3
jellybean_failures_total{operator="double",variant="only",worker="edge-1"} 1
jellybean_busy_seconds_total{operator="double",variant="only",worker="edge-1"} 0.5
jellybean_link_bytes_total{operator="double",variant="only",worker="edge-1",tier="edge",to_tier="cloud"} 134217728
jellybean_network_cost_usd_total{operator="double",variant="only",worker="edge-1",tier="edge",to_tier="cloud"} 0.0625
"""


def plan_of(root: Path, worker: str = "edge-1", **settings: Any) -> Document:
    operators = {"double": (["x"], scale(root / "models/double.onnx", 2.0))}
    return make_plan(root, operators, [(1.0, {"double": worker})], sources={"x": "edge"}, **settings)


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


async def by_client(address: str, use: Callable[[Client], Found], **settings: Any) -> Found:
    """What a client finds, in a thread of its own."""

    def whole() -> Found:
        with Client(address, **{"timeout_s": 20.0, **settings}) as client:
            return use(client)

    return await asyncio.to_thread(whole)


def error_of(call: Callable[[], object]) -> tuple[str, str]:
    """Status and reason of a call that fails."""
    with pytest.raises(RequestError) as caught:
        call()
    return caught.value.status, caught.value.reason


@pytest.mark.parametrize("options", [(), ("--port", "0")])
def test_a_client(tmp_path: Path, options: tuple[str, ...]) -> None:
    """At the owner's socket, by our own protocol, and at the clients' port, by gRPC."""

    def use(client: Client) -> None:
        (answer,) = client.infer({"x": ROW}, request_id="a").values()
        assert np.array_equal(answer, ROW)
        (answer,) = client.infer({"x": ROW}, headers={"traceparent": "00-1-2-3"}).values()
        assert np.array_equal(answer, ROW)
        assert error_of(lambda: client.infer({"x": ROW}, request_id="a")) == (
            "ALREADY_EXISTS",
            "request 'a' was answered already",
        )
        assert error_of(lambda: client.infer({"x": ROW[:, :2]}))[0] == "INVALID_ARGUMENT"
        assert error_of(lambda: client.infer({"x": ROW}, chunk=Chunk("s", begins=True)))[0] == "UNIMPLEMENTED"
        status = client.status()
        assert (status.answered, status.failed) == (2, 3)

    async def test() -> None:
        async with running_gateway(plan_of(tmp_path), tmp_path, *options) as gateway:
            await by_client(gateway.address, use, workflow="tiny")
            if options:
                return
            (worker,) = gateway.workers.values()
            worker.behaviour = hold
            late = await by_client(
                gateway.address, lambda client: error_of(lambda: client.infer({"x": ROW})), timeout_s=0.3
            )
            assert late[0] == "DEADLINE_EXCEEDED"

    run(test())


def test_the_owners_client(tmp_path: Path) -> None:
    (tmp_path / "workflow.yaml").write_text("kind: Workflow", encoding="utf-8")

    def use(client: Client) -> None:
        assert json.loads(client.plan())["name"] == "tiny"
        assert "jellybean_gateway_requests_total" in client.metrics()
        assert client.project_files() == {"workflow.yaml": b"kind: Workflow"}
        assert error_of(client.report_store)[0] == "FAILED_PRECONDITION"
        status, reason = error_of(lambda: RemoteLedger(client).cost(By.DAY))
        assert (status, "this gateway writes no ledger" in reason) == ("FAILED_PRECONDITION", True)
        assert client.drain(0.0) == 0
        assert error_of(lambda: client.infer({"x": ROW})) == (
            "UNAVAILABLE",
            "the gateway is draining: it takes no new requests",
        )
        assert client.stop(1.0) == 0

    async def test() -> None:
        options = ("--project-file", f"workflow.yaml={tmp_path}/workflow.yaml")
        async with running_gateway(plan_of(tmp_path), tmp_path, *options) as gateway:
            await by_client(gateway.address, use)
            await gateway.task

    run(test())


def test_a_kept_request(tmp_path: Path) -> None:
    def use(client: Client) -> None:
        with pytest.raises(KeptError) as caught:
            client.infer({"x": ROW}, request_id="a")
        assert caught.value.request_id == "a"
        with pytest.raises(KeptError):
            client.answer("a")

    def later(client: Client) -> None:
        (answer,) = client.answer("a").values()
        assert np.array_equal(answer, ROW)

    async def test() -> None:
        document = plan_of(tmp_path, deliver=Deliver.EVENTUALLY)
        options = ("--spool", f"{tmp_path}/spool.db", "--timeout-s", "0.1")
        async with running_gateway(document, tmp_path, *options, behaviours={"edge-1": hold}) as gateway:
            await by_client(gateway.address, use)
        async with running_gateway(document, tmp_path, *options[:2]) as gateway:
            await by_client(gateway.address, later)

    run(test())


def test_a_remote_ledger(tmp_path: Path) -> None:
    """What was served and paid, and labels for it."""
    plan = plan_of(tmp_path, links=[Link("edge", "cloud", 0.5, None, 0.0)])

    def use(client: Client) -> None:
        ledger = RemoteLedger(client)
        for name in "abc":
            client.infer({"x": ROW}, request_id=name)
        found = client.label({"a": 6, "b": 3})
        assert found == {"a": 0.0, "b": 1.0}  # `double` answers its input, whose largest is the last
        assert error_of(lambda: client.label({"a": 3}))[0] == "ALREADY_EXISTS"
        assert error_of(lambda: client.label({"unknown": 3}))[0] == "NOT_FOUND"
        outcomes = ledger.label("tiny", [LaterLabel("c", "3"), LaterLabel("d", "3")])
        assert [outcome.verdict for outcome in outcomes] == [1.0, None]
        assert error_of(lambda: ledger.label("other", [LaterLabel("c", "3")]))[0] == "NOT_FOUND"
        accuracies = ledger.accuracy(LabelledBy.ALL, "tiny")
        assert [(line.labels, round(line.accuracy, 1)) for line in accuracies.lines] == [(3, 66.7)]
        assert [line.labels for line in ledger.accuracy(LabelledBy.ALL, "other").lines] == [0]
        for wrong, said in (
            (LaterLabel("", "3"), "label 1 has no id: which request is it for?"),
            (LaterLabel("i" * 257, "3"), "label 1: its id has 257 bytes, and may have 256"),
            (LaterLabel("c", "3" * 4097), "label 1: its label has 4097 bytes, and may have 4096"),
        ):
            assert error_of(lambda wrong=wrong: ledger.label("tiny", [wrong])) == ("INVALID_ARGUMENT", said)
        many = ledger_pb2.LabelRequest(labels=[ledger_pb2.RequestLabel(id="c", label="3")] * 1001)
        assert error_of(lambda: client.ask_ledger("Label", many)) == (
            "INVALID_ARGUMENT",
            "1001 labels in one call: at most 1000 are taken, send the others in further calls",
        )
        (point,) = ledger.accuracy_timeline("tiny", 3600)
        assert point.accuracy.labels == 3
        for ask in (lambda: ledger.accuracy_timeline("tiny", 5), lambda: ledger.timeline(9)):
            assert error_of(ask)[0] == "INVALID_ARGUMENT"
        assert error_of(lambda: ledger.timeline(5)) == (
            "INVALID_ARGUMENT",
            "pieces of 5 s: the ledger has none shorter than 10 s",
        )

    def after(client: Client) -> None:
        ledger = RemoteLedger(client)
        (of_client,) = ledger.cost(By.CLIENT)
        assert (of_client.name, of_client.done, of_client.failed) == ("", 3, 0)
        (operator, *_) = ledger.cost(By.OPERATOR)
        assert (operator.name, operator.done, operator.failed) == ("double", 3, 1)
        assert operator.traffic_usd == pytest.approx(0.0625)
        counts = ledger.counts(None)
        assert counts is not None
        assert sum(received.requests for received in counts.received) == 3
        assert sum(work.completed for work in counts.work if (work.operator, work.worker) == ("double", "edge-1")) == 3
        assert [event.kind.value for event in ledger.events()]
        time = ledger.served_time()
        assert time is not None
        assert ledger.timeline(10)
        assert ledger.audits("tiny", json.loads(client.plan())["hash"]) == ()

    async def test() -> None:
        options = ("--ledger", f"{tmp_path}/ledger.db", "--live", f"{tmp_path}/live", "--metric", "top1")
        async with running_gateway(plan, tmp_path, *options) as gateway:
            gateway.workers["edge-1"].metrics = WORKER.encode()
            await by_client(gateway.address, use)
        async with running_gateway(plan, tmp_path, *options) as gateway:
            await by_client(gateway.address, after)

    run(test())


def test_labels_over_http(tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        options = ("--ledger", f"{tmp_path}/ledger.db", "--live", f"{tmp_path}/live", "--metric", "top1")
        async with (
            running_gateway(plan_of(tmp_path), tmp_path, *options, "--http-port", str(port)),
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):

            async def post(path: str, body: Any) -> tuple[int, Any]:
                async with http.post(path, data=body if isinstance(body, bytes) else json.dumps(body)) as response:
                    return response.status, await response.json()

            for name in "ab":
                tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
                assert (await post("/v2/models/tiny/infer", {"id": name, "inputs": [tensor]}))[0] == 200
            labels = "/v2/models/tiny/labels"
            assert await post(labels, {"id": "a", "label": 3}) == (
                200,
                {"labelled": 1, "right": 1.0, "outcomes": [{"id": "a", "verdict": 1.0}]},
            )
            status, found = await post(labels, {"labels": [{"id": "b", "label": 0}, {"id": "c", "label": 0}]})
            assert (status, found["labelled"], found["right"]) == (200, 1, 0.0)
            assert found["outcomes"][0] == {"id": "b", "verdict": 0.0}
            assert "problem" in found["outcomes"][1]
            for wrong, said in (
                (b"{", "not JSON: "),
                (5, "a JSON object"),
                ({"id": "a"}, "labels[0]: an object with id and label is meant"),
                ({"id": 1, "label": 2}, "labels[0]: id and client are texts"),
                ({"id": "a", "label": None}, "labels[0]: its label is a number, a list of numbers, or text"),
                ({"id": "a", "label": 2, "more": 3}, "labels[0]: an object"),
            ):
                status, found = await post(labels, wrong)
                assert (status, found["error"].startswith(said)) == (400, True), found
            assert (await post("/v2/models/other/labels", {"id": "a", "label": 3}))[0] == 404
            other = {"id": "a", "label": 3, "client": "ann"}
            assert (await post(labels, other))[0] == 403

    run(test())


def test_http_tells_what_is_wrong(tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        async with (
            running_gateway(plan_of(tmp_path), tmp_path, "--http-port", str(port)) as gateway,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):

            async def ask(method: str, path: str, data: bytes | None = None, **headers: str) -> tuple[int, Any]:
                async with http.request(method, path, data=data, headers=headers) as response:
                    return response.status, await response.json()

            version = gateway.view.hash[:12]
            assert (await ask("GET", f"/v2/models/tiny/versions/{version}/ready"))[0] == 200
            assert (await ask("GET", "/v2/models/tiny/versions/1"))[0] == 404
            assert (await ask("GET", "/v2/models/tiny/config"))[1]["name"] == "tiny"
            (figures,) = (await ask("GET", "/v2/models/tiny/stats"))[1]["model_stats"]
            assert figures["name"] == "tiny"
            assert (await ask("POST", "/v2/repository/index"))[1] == [
                {"name": "tiny", "version": version, "state": "READY", "reason": ""}
            ]
            assert (await ask("POST", "/v2/repository/index", b"[]"))[0] == 400
            assert (await ask("POST", "/v2/repository/index", b"{"))[0] == 400
            assert (await ask("POST", "/v2/repository/models/tiny/load"))[0] not in {200, 500}
            assert await ask("GET", "/v3") == (404, {"error": "GET /v3: Not Found; see /v2"})
            status, found = await ask("GET", "/v2", Host="example.org")
            assert (status, found["error"].partition(": ask ")[0]) == (403, "host 'example.org' is not this machine")
            infer = "/v2/models/tiny/infer"
            assert (await ask("POST", infer, b"{}", **{"Inference-Header-Content-Length": "x"}))[0] == 400
            sent = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
            body: dict[str, Any] = {"inputs": [sent]}
            text = json.dumps(body).encode()
            headers = {"Inference-Header-Content-Length": str(len(text))}
            async with http.post(infer, data=text + ROW.tobytes(), headers=headers) as response:
                assert response.status == 200
                assert (await response.json())["outputs"][0]["data"] == [1, 2, 3, 4]
            body["parameters"] = {"binary_data_output": True}
            text = json.dumps(body).encode()
            headers = {"Inference-Header-Content-Length": str(len(text))}
            async with http.post(infer, data=text + ROW.tobytes(), headers=headers) as response:
                length = int(response.headers["Inference-Header-Content-Length"])
                found_bytes = await response.read()
            assert found_bytes[length:] == ROW.tobytes()
            assert json.loads(found_bytes[:length])["outputs"][0]["parameters"] == {"binary_data_size": 16}

    run(test())


def certificates(root: Path) -> tuple[Authority, Path]:
    """An authority, and the folder of the gateway's certificate."""
    authority = open_authority(root / "ca")
    authority.equip(root / "gateway", Identity("tiny", Role.GATEWAY))
    return authority, root / "gateway"


def test_clients_with_certificates(tmp_path: Path) -> None:
    authority, own = certificates(tmp_path)
    authority.equip(tmp_path / "ann", Identity("tiny", Role.CLIENT, "ann"))
    authority.equip(tmp_path / "admin", Identity("tiny", Role.ADMIN, "admin"))

    def as_ann(client: Client) -> None:
        assert client.infer({"x": ROW}, request_id="a")
        assert error_of(lambda: client.drain(0.0))[0] == "PERMISSION_DENIED"

    def as_admin(client: Client) -> None:
        assert client.infer({"x": ROW}, request_id="a")  # of another client
        assert "jellybean_certificate" in client.metrics()

    async def test() -> None:
        port = free_port()
        options = ("--port", "0", "--http-port", str(port), "--tls", str(own))
        async with running_gateway(plan_of(tmp_path), tmp_path, *options, insecure=False) as gateway:
            await by_client(gateway.address, as_ann, tls=tmp_path / "ann")
            await by_client(gateway.address, as_admin, tls=tmp_path / "admin")
            context = ssl.create_default_context(cafile=str(tmp_path / "ann" / "ca.crt"))
            context.check_hostname = False
            context.load_cert_chain(tmp_path / "ann" / "tls.crt", tmp_path / "ann" / "tls.key")
            async with aiohttp.ClientSession(f"https://127.0.0.1:{port}") as http:
                async with http.get("/v2/health/ready", ssl=context) as response:
                    assert response.status == 200
                nobody = ssl.create_default_context(cafile=str(tmp_path / "ann" / "ca.crt"))
                nobody.check_hostname = False
                with pytest.raises(aiohttp.ClientError):
                    async with http.get("/v2/health/ready", ssl=nobody) as response:
                        await response.read()
            assert (await gateway.status()).answered == 2

    run(test())
