"""What one box may send to another: what the route of the request lets its worker say, and in its own name only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from jellybean.serving import open_authority
from jellybean_agent import (
    DELIVER_METHOD,
    GATEWAY,
    CertificateFolder,
    Identity,
    Inboxes,
    PlanView,
    Policy,
    Role,
    StreamSource,
    Transport,
    agent_service_handler,
    encode_tensor,
    plan_view,
    protocol_metadata,
)
from jellybean_agent.worker.message_rights import MAX_ID_CHARS, MessageRights
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.tiny_models import fan_out, gather, make_plan
from tests.unit.agent.worker.timed_worker import HASH, Worker, with_worker

KEY = "0a1b2c3d-0123456789abcdef-7"
X = encode_tensor(np.ones((1, 2), np.float32))


Places = Sequence[tuple[int, int]]


def message(upstream: str, downstream: str, route: int = 0, *, path: Places = (), **more: Any) -> agent_pb2.Message:
    positions = [agent_pb2.Position(index=index, count=count) for index, count in path]
    told = {
        "request_id": KEY,
        "upstream": upstream,
        "downstream": downstream,
        "route": route,
        "path": positions,
    }
    return agent_pb2.Message(**{**told, **more})


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    """`double` on edge-1 or on edge-2, then `triple`, on cloud-1 or on cloud-2."""
    routes = [
        (0.5, {"double": "edge-1", "triple": "cloud-1"}),
        (0.3, {"double": "edge-2", "triple": "cloud-1"}),
        (0.2, {"double": "edge-2", "triple": "cloud-2"}),
    ]
    operators = {"double": (["x"], HASH), "triple": (["double"], HASH)}
    return plan_view(make_plan(tmp_path_factory.mktemp("two"), operators, routes, sources={"x": "edge"}))


def excess(view: PlanView, worker: str, sender: str, told: Any, **source: str) -> str:
    return MessageRights(view, worker).excess(told, StreamSource(sender, **source))


def test_outputs_come_from_the_worker_of_the_route(two: PlanView) -> None:
    told = message("double", "triple", 1)
    assert not excess(two, "cloud-1", "edge-2", told)
    assert "another process runs on the route" in excess(two, "cloud-1", "edge-1", told)
    assert "another process runs" in excess(two, "cloud-1", "edge-2", message("double", "triple", 0))
    assert "another process runs" in excess(two, "cloud-1", "edge-2", message("triple", "triple", 1))
    assert "another process runs" in excess(two, "cloud-1", "edge-2", message("nothing", "triple", 1))


def test_sources_come_from_gateways_only(two: PlanView) -> None:
    told = message("x", "double", 0)
    assert not excess(two, "edge-1", GATEWAY, told)
    for sender in ("edge-2", "edge-1", "cloud-1", "?"):
        assert "another process runs" in excess(two, "edge-1", sender, told)
    assert "outputs of an operator" in excess(two, "cloud-1", GATEWAY, message("double", "triple"))


def test_a_route_leads_to_one_worker_of_the_next_operator(two: PlanView) -> None:
    """A box may not choose the machine that pays for what follows."""
    assert not excess(two, "cloud-2", "edge-2", message("double", "triple", 2))
    assert "leads to another worker" in excess(two, "cloud-2", "edge-2", message("double", "triple", 1))


@pytest.mark.parametrize("route", [3, 2**31, 2**32 - 1])
def test_a_route_that_the_plan_does_not_have(two: PlanView, route: int) -> None:
    assert excess(two, "cloud-1", "edge-2", message("double", "triple", route))


def test_only_a_gateway_gives_requests_up(two: PlanView) -> None:
    told = message("", "", failure=agent_pb2.Failure(worker="edge-2", reason="given up"))
    assert not excess(two, "cloud-1", GATEWAY, told)
    assert "only their gateway" in excess(two, "cloud-1", "edge-2", told)


def test_a_gateway_has_its_own_requests(two: PlanView) -> None:
    told = message("x", "double", request_id=f"89abcdef.{KEY}")
    assert not excess(two, "edge-1", GATEWAY, told, gateway="89abcdef")
    assert "another gateway" in excess(two, "edge-1", GATEWAY, told, gateway="01234567")
    assert "another gateway" in excess(two, "edge-1", GATEWAY, told)


def test_ids_are_no_longer_than_a_gateway_s(two: PlanView) -> None:
    for name in ("request_id", "stream", "after"):
        for size, is_long in ((MAX_ID_CHARS, False), (2**20, True)):
            told = message("double", "triple", 1, **{"stream": "s", name: "r" * size})
            assert ("longer" in excess(two, "cloud-1", "edge-2", told)) is is_long


def test_of_children_that_are_spread_each_worker_has_its_own(tmp_path: Path) -> None:
    operators = {
        "split": (["x"], HASH),
        "each": ([fan_out("split", "each")], HASH),
        "sum": ([gather("each", "sum")], HASH),
    }
    routes = [(1.0, {"split": "cloud-1", "each": worker, "sum": "cloud-1"}) for worker in ("edge-1", "edge-2")]
    plan = plan_view(make_plan(tmp_path, operators, [(0.5, route) for _, route in routes], sources={"x": "edge"}))
    group = ("edge-1", "edge-2")
    view = replace(plan, groups={("each", name): group for name in group})
    number = view.table.spread(0)
    runs = {index: view.table.worker(number, "each", ((index, 4),), KEY) for index in range(4)}
    assert set(runs.values()) == set(group)
    for index, worker in runs.items():
        child = message("each", "sum", number, path=[(index, 4)])
        assert not excess(view, "cloud-1", worker, child)
        assert excess(view, "cloud-1", next(name for name in group if name != worker), child)
        given = message("split", "each", number, path=[(index, 4)])
        assert not excess(view, worker, "cloud-1", given)
    long = message("each", "sum", number, path=[(0, 4)] * 1000)
    assert [bool(excess(view, "cloud-1", name, long)) for name in group].count(False) <= 1


def test_a_forged_message_fails_no_request_and_is_counted(tmp_path: Path) -> None:
    """What a foreign box says of a request neither runs nor ends it, even if it comes first and cannot be read."""

    async def test(worker: Worker) -> None:
        for name in ("edge-2", "edge-2", "cloud-9"):
            worker.receive("r0", 9, "add", sender=name)
            worker.receive("r0", 9, "add", sender=name, route=7)
            worker.receive("r0", 9, "nothing", sender=name)
        failure = agent_pb2.Message(request_id="r0", failure=agent_pb2.Failure(reason="x"), plan=worker.view.hash)
        worker.driver.receive(failure, StreamSource("edge-2"))
        worker.receive("r0", 1, "add")
        worker.driver.receive(failure, StreamSource("edge-2"))
        await asyncio.sleep(5)
        assert worker.gateway.answers == {"r0": 2.0}
        assert not worker.gateway.failures
        assert worker.driver.claims.counts == {"edge-2": 8, "?": 3}
        assert worker.driver.claims.note("edge-2").startswith("claims refused: 8; the last: it gives up")

    routes = [(1.0, {"add": "edge-1"}), (0.0, {"add": "edge-2"})]
    with_worker(
        make_plan(tmp_path, {"add": (["x"], HASH)}, routes, sources={"x": "edge"}),
        "edge-1",
        tmp_path,
        test,
    )


@pytest.mark.parametrize("stated", [(), ("edge-1", "edge-2"), ("edge-2",)])
def test_the_certificate_says_who_sends(tmp_path: Path, stated: tuple[str, ...]) -> None:
    """Whatever names the headers of a stream have: the last of two was believed, and one without was nobody's."""
    authority = open_authority(tmp_path / "ca")
    for name in ("edge-1", "cloud-1"):
        authority.equip(tmp_path / name, Identity("w", Role.AGENT, name))
    ours, theirs = (Transport("w", CertificateFolder(tmp_path / name)) for name in ("cloud-1", "edge-1"))
    senders: list[str] = []

    async def run() -> grpc.StatusCode:
        inboxes = Inboxes(lambda _, source: senders.append(source.sender), lambda _: False)
        server = ours.server(Policy("w", ("edge-1", "edge-2")))
        server.add_generic_rpc_handlers((agent_service_handler(),))
        server.add_raw_stream(DELIVER_METHOD, inboxes.deliver_raw)
        address = f"127.0.0.1:{ours.bind(server, '127.0.0.1:0')}"
        await server.start()
        async with theirs.channel(address, "cloud-1") as channel:
            metadata = (*protocol_metadata(), *(("jellybean-sender", name) for name in stated))
            call: Any = channel.stream_stream(DELIVER_METHOD)(metadata=metadata, timeout=20)
            if not stated:
                await call.read()
                await call.write(agent_pb2.Message(request_id="r").SerializeToString())
            await call.done_writing()
            code: grpc.StatusCode = await call.code()
        await server.stop(0)
        return code

    code = asyncio.run(run())
    assert (code, senders) == ((grpc.StatusCode.PERMISSION_DENIED, []) if stated else (grpc.StatusCode.OK, ["edge-1"]))


def test_streams_of_workflows_are_apart(tmp_path: Path) -> None:
    routes = [(1.0, {"shop/a": "edge-1", "shop/b": "cloud-1", "yard/a": "edge-1", "yard/b": "cloud-1"})]
    edges = (("a", "x"), ("b", "a"))
    operators = {f"{flow}/{name}": ([f"{flow}/{up}"], HASH) for flow in ("shop", "yard") for name, up in edges}
    plan = plan_view(make_plan(tmp_path, operators, routes, sources={"shop/x": "edge", "yard/x": "edge"}))
    view = replace(plan, workflows=("shop", "yard"))
    told = message("shop/a", "shop/b")
    assert not excess(view, "cloud-1", "edge-1", told, workflow="shop")
    assert "on the stream of another" in excess(view, "cloud-1", "edge-1", told, workflow="yard")
