"""Delivery from the spool, on a real disk: retries delay no other request, ids are per client, waits end at a drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import grpc
import pytest

from jellybean.serving import OutcomeKind
from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.requests.counters import RequestCounters
from jellybean.serving.gateway_main import open_spool
from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool.delivery import DeliverySettings, Key, OnFinal, SpoolDelivery, Tried
from jellybean.serving.spool.spool import Spool
from jellybean_agent import EmulatedLinks, PlanView, StatusError, Transport, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_solver import Deliver
from tests.one_gateway import gateways_of
from tests.support.tiny_models import make_plan
from tests.support.waiting import wait_until_async

Tensors = Mapping[str, agent_pb2.Tensor]
LATE = Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer: stuck", stuck=True)


def of(data: bytes) -> Tensors:
    return {"in": agent_pb2.Tensor(data=data)}


async def serve(key: Key, inputs: Tensors) -> Tried:
    """What says `late` never is in time."""
    return Tried(LATE) if inputs["in"].data == b"late" else Tried(None, of(inputs["in"].data.upper()))


async def ask(delivery: SpoolDelivery, key: Key, inputs: Tensors, limit_s: float) -> tuple[Outcome | None, Tensors]:
    await delivery.keep(key, inputs)
    return await delivery.answer(key, limit_s)


def run(
    path: Path,
    test: Callable[[SpoolDelivery], Awaitable[None]],
    *,
    is_open: bool = True,
    on_final: OnFinal = lambda outcome, latency_s, caller: None,
    settings: DeliverySettings = DeliverySettings(),
) -> None:
    async def whole() -> None:
        found = SpoolDelivery(Spool.open(path), serve, lambda: is_open, on_final, settings)
        found.start()
        try:
            await test(found)
        finally:
            await found.close()

    asyncio.run(whole())


def test_what_is_never_in_time_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def test(found: SpoolDelivery) -> None:
        late = [
            ask(found, Key("", str(number)), of(b"late"), 0.0) for number in range(2 * DeliverySettings().concurrent)
        ]
        assert all(outcome is not None and outcome.kept for outcome, _ in await asyncio.gather(*late))
        outcome, outputs = await ask(found, Key("", "good"), of(b"good"), 60.0)
        assert outcome is None
        assert outputs["in"].data == b"GOOD"

    run(tmp_path / "spool.db", test)


def test_a_worker_that_never_answers_ends_the_retries_with_a_final_failure(tmp_path: Path) -> None:
    settings = DeliverySettings(max_stuck=8, min_pause_s=0.0, max_pause_s=0.0, poll_s=0.001)

    async def test(found: SpoolDelivery) -> None:
        outcome, _ = await ask(found, Key("", "a"), of(b"late"), 60.0)
        assert outcome == Outcome(LATE.status, f"no answer: stuck ({settings.max_stuck} times; not tried again)")

    run(tmp_path / "spool.db", test, settings=settings)


def test_an_id_is_its_caller_s_own(tmp_path: Path) -> None:
    alice, bob, carol = (Key(f"jellybean://flow/client/{name}", "1") for name in ("alice", "bob", "carol"))

    async def test(found: SpoolDelivery) -> None:
        answers = [await ask(found, key, of(data), 60.0) for key, data in ((alice, b"a"), (bob, b"b"))]
        assert [outputs["in"].data for _, outputs in answers] == [b"A", b"B"]
        with pytest.raises(StatusError) as caught:
            await ask(found, carol, {}, 0.0)
        assert caught.value.status is grpc.StatusCode.NOT_FOUND

    run(tmp_path / "spool.db", test)


def test_who_waits_at_the_end_is_told_that_his_request_is_kept(tmp_path: Path) -> None:
    async def test(found: SpoolDelivery) -> None:
        asked = asyncio.create_task(ask(found, Key("", "a"), of(b"x"), 60.0))
        await wait_until_async(lambda: found.spool.waiting)
        await found.close()
        async with asyncio.timeout(20.0):  # less than it was ready to wait
            outcome, _ = await asked
        assert outcome is not None
        assert outcome.kept == "a"

    run(tmp_path / "spool.db", test, is_open=False)


def view_of(root: Path, deliver: Deliver) -> PlanView:
    operators = {"double": (["x"], "0" * 64)}
    return plan_view(make_plan(root, operators, [(1.0, {"double": "edge-1"})], sources={"x": "edge"}, deliver=deliver))


def test_a_plan_that_takes_over_keeps_requests_or_is_refused(tmp_path: Path) -> None:
    """The first plan keeps none; its workers are not there, so no plan takes over within its time."""
    in_time, kept = view_of(tmp_path, Deliver.IN_TIME), view_of(tmp_path, Deliver.EVENTUALLY)
    addresses = {"edge-1": f"unix:{tmp_path}/e.sock"}

    async def refused(spool: Spool | None) -> tuple[str, Outcome | None, Outcome | None]:
        transport = Transport("tiny", None, insecure=True)
        links = EmulatedLinks(in_time.links, tmp_path / "links").open()
        network = WorkerNetwork(transport, set())
        gateway = Gateway(in_time, addresses, links, network, spool=spool)
        gateway.start()
        gateways, views = gateways_of(gateway, network), {kept.name: kept}
        with pytest.raises(StatusError) as caught:
            gateways.expect(kept, views, addresses)
            await gateways.replace(kept, views, addresses, tmp_path / "links", 0.1)
        asked, _ = await gateway.infer({}, 0.1, "of the plan before")
        long, _ = await gateway.infer({}, 0.1, "i" * 257)
        await gateway.close()
        links.close()
        return str(caught.value), asked, long

    reason, _, _ = asyncio.run(refused(None))
    assert "give --spool" in reason
    reason, asked, long = asyncio.run(refused(open_spool(tmp_path / "spool.db", in_time)))
    assert reason.startswith("not ready within 0.1 s")
    assert asked is not None
    assert asked.status is grpc.StatusCode.NOT_FOUND
    assert long is not None
    assert long.reason == "a request's id has 257 bytes; 256 are the most"


def test_a_kept_request_is_received_once_however_often_its_client_asks(tmp_path: Path) -> None:
    view = view_of(tmp_path, Deliver.EVENTUALLY)
    row = {"x": agent_pb2.Tensor(dtype="float32", shape=[1], data=bytes(4))}

    async def test() -> None:
        links = EmulatedLinks(view.links, tmp_path / "links").open()
        network = WorkerNetwork(Transport("tiny", None, insecure=True), set())
        spool = open_spool(tmp_path / "spool.db", view)
        gateway = Gateway(view, {"edge-1": f"unix:{tmp_path}/e.sock"}, links, network, spool=spool)
        gateway.start()
        for inputs in (row, {}, row):  # sent, asked for, sent again: it has no answer, as there are no workers
            outcome, _ = await gateway.infer(inputs, 0.0, "a")
            assert outcome is not None
            assert outcome.kept == "a"
        counters = gateway.counters
        assert (counters.received, sum(counters.ended.values())) == (1, 0)
        await gateway.infer({}, 0.0, "unknown")
        assert (counters.received, counters.ended[OutcomeKind.CLIENT_ERROR]) == (2, 1), "offered is still 1"
        await gateway.close()
        links.close()

    asyncio.run(test())


def test_a_kept_request_has_one_outcome_however_often_its_answer_is_taken(tmp_path: Path) -> None:
    counters = RequestCounters()

    async def test(delivery: SpoolDelivery) -> None:
        for inputs in (of(b"good"), {}, of(b"good"), {}):
            outcome, outputs = await ask(delivery, Key("", "a"), inputs, 60.0)
            assert (outcome, outputs["in"].data) == (None, b"GOOD")
        assert (counters.answered, counters.failed) == (1, 0)

    run(tmp_path / "spool.db", test, on_final=counters.count)


def test_a_gateway_ends_while_plans_before_its_own_are_let_go(tmp_path: Path) -> None:
    view, addresses = view_of(tmp_path, Deliver.IN_TIME), {"edge-1": f"unix:{tmp_path}/e.sock"}

    async def test() -> None:
        transport = Transport("tiny", None, insecure=True)
        links = EmulatedLinks(view.links, tmp_path / "links").open()
        gateway = Gateway(view, addresses, links, WorkerNetwork(transport, set()))
        gateway.start()
        for number in range(3):
            own = EmulatedLinks(view.links, tmp_path / f"links-{number}").open()
            plan = ServedPlan(view, addresses, own, transport, on_change=lambda: None, on_worker_lost=lambda *_: None)
            plan.start()
            gateway.plans.retire(plan)
        await asyncio.sleep(0.0)  # each is under way
        await gateway.close()
        links.close()

    asyncio.run(test())


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_client_that_takes_no_answer_holds_up_its_own_requests_only(tmp_path: Path, count: int) -> None:
    """However many it has sent, and though all of them waited before the first had an answer."""
    crowd, other = "jellybean://w/client/mallory", "jellybean://w/client/alice"

    async def enlarge(key: Key, inputs: Tensors) -> Tried:
        return Tried(None, of(inputs["in"].data * 20_000))

    async def test() -> None:
        found = SpoolDelivery(
            Spool.open(tmp_path / "spool.db", 2**20), enlarge, lambda: True, lambda *_: None, DeliverySettings()
        )
        try:
            for number in range(count):
                await found.keep(Key(crowd, str(number)), of(b"x"))
            found.start()
            outcome, outputs = await ask(found, Key(other, "1"), of(b"y"), 60.0)
            assert (outcome, outputs["in"].data) == (None, b"y" * 20_000)
            assert found.spool.waiting > count // 2 and not found.spool.full
            for number in range(count):
                outcome, outputs = await found.answer(Key(crowd, str(number)), 60.0)
                assert (outcome, outputs["in"].data) == (None, b"x" * 20_000)
            assert found.spool.waiting == 0
        finally:
            await found.close()

    asyncio.run(test())
