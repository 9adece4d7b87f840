"""Requests that are tried again: lost workers, failed hops, how often, and the retry budget."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from jellybean.serving import OutcomeKind
from jellybean.serving.gateway.gateway import GatewaySettings
from jellybean.serving.gateway.requests.in_flight import RETRY_SHARE
from jellybean.serving.gateway.requests.retry_budget import RetryBudget
from jellybean_agent import PlanView
from tests.support.scripted_workers import answer, hold, run, scale_view, served, tensor, until
from tests.unit.gateway.core.submitted_requests import ask, assert_nothing_is_left, reason_of, refuse

Code = grpc.StatusCode


def test_the_request_of_a_worker_that_is_lost_is_sent_to_another(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, behaviours={"edge-1": hold, "edge-2": hold}) as found:
            asked = ask(found)
            await found.sent()
            (busy,) = (worker for worker in found.workers.values() if worker.received)
            (other,) = (worker for worker in found.workers.values() if not worker.received)
            await busy.stop()
            await found.sent(2)
            (first,), (second,) = busy.received, other.received
            assert first.request_id != second.request_id
            other.answer(first, tensor(0))  # of the attempt that was given up
            other.answer(second, second.tensor)
            assert (await asked)[0] is None
            status = found.gateway.status()
            assert (status.answered, status.retried, status.left_out, status.state) == (1, 1, 1, "degraded")
            assert dict(status.workers) == {busy.name: "gone", other.name: "ready"}
            assert set(status.reasons) == {busy.name}
            assert_nothing_is_left(found)

    run(test())


def test_a_request_waits_until_its_only_worker_is_back(one: PlanView) -> None:
    async def test() -> None:
        async with served(one) as found:
            (worker,) = found.workers.values()
            await worker.stop()
            await until(lambda: found.gateway.status().workers["edge-1"] == "gone")
            assert found.gateway.unavailable_reason.startswith("no route is left: worker edge-1 is gone (")
            asked = ask(found)
            await until(lambda: found.gateway.status().waiting)
            assert found.gateway.status().requests_in_hand == 1
            await worker.start()
            assert (await asked)[0] is None
            assert found.gateway.unavailable_reason == ""
            assert len(found.received) == 1
            assert_nothing_is_left(found)

    run(test())


def test_a_request_that_waits_in_vain_says_for_what(one: PlanView) -> None:
    async def test() -> None:
        async with served(one) as found:
            await found.workers["edge-1"].stop()
            await until(lambda: found.gateway.status().workers["edge-1"] == "gone")
            reason = reason_of(await ask(found, 0.05), Code.DEADLINE_EXCEEDED)
            assert reason.startswith("no route was open within 0.05 s: no route is left: worker edge-1 is gone")
            assert_nothing_is_left(found)

    run(test())


def test_a_lost_request_that_is_late_says_how_it_was_lost(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": refuse(Code.UNAVAILABLE, "no memory")}) as found:
            reason = reason_of(await ask(found, 0.8), Code.DEADLINE_EXCEEDED)  # before the route is probed
            assert reason == "no route was open within 0.8 s: worker edge-1, operator double: no memory"
            assert found.gateway.status().retried == 1
            assert_nothing_is_left(found)

    run(test())


def test_a_route_whose_hop_failed_is_tried_again_after_an_answer(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, behaviours={"edge-1": refuse(Code.UNAVAILABLE, "cut")}) as found:
            for _ in range(6):
                assert (await ask(found))[0] is None
            bad, good = found.workers["edge-1"], found.workers["edge-2"]
            assert (len(bad.received), len(good.received)) == (1, 6)
            bad.behaviour = answer
            while len(bad.received) < 2:  # until the next probe
                assert (await ask(found))[0] is None
                await asyncio.sleep(0.1)
            for _ in range(4):
                assert (await ask(found))[0] is None
            assert len(bad.received) >= 4

    run(test())


def test_a_fault_of_the_request_is_not_tried_again(two: PlanView) -> None:
    async def test() -> None:
        broken = refuse(Code.INVALID_ARGUMENT, "not a picture")
        async with served(two, behaviours={"edge-1": broken, "edge-2": broken}) as found:
            reason = reason_of(await ask(found), Code.INVALID_ARGUMENT)
            assert reason in {f"worker {name}, operator double: not a picture" for name in found.workers}
            assert len(found.received) == 1
            assert found.gateway.counters.ended[OutcomeKind.CLIENT_ERROR] == 1
            assert found.gateway.counters.failed_s > 0
            assert_nothing_is_left(found)

    run(test())


def test_a_request_is_tried_eight_times(tmp_path: Path) -> None:
    view = scale_view(tmp_path, *(f"edge-{number}" for number in range(1, 11)))

    async def test() -> None:
        broken = refuse(Code.UNAVAILABLE, "out of memory")
        async with served(view, behaviours=dict.fromkeys(view.workers, broken)) as found:
            reason = reason_of(await ask(found), Code.UNAVAILABLE)
            assert reason.endswith("operator double: out of memory (tried 8 times)")
            assert len(found.received) == len({message.request_id for message in found.received}) == 8
            assert found.gateway.status().retried == 7
            assert_nothing_is_left(found)

    run(test())


def test_retries_have_a_budget(tmp_path: Path) -> None:
    view = scale_view(tmp_path, "edge-1", "edge-2", "edge-3")

    async def test() -> None:
        broken = refuse(Code.UNAVAILABLE, "cut")
        settings = GatewaySettings(max_in_flight=1)
        async with served(view, settings, behaviours=dict.fromkeys(view.workers, broken)) as found:
            reason = reason_of(await ask(found), Code.UNAVAILABLE)
            assert reason.endswith("operator double: cut (not retried: the retry budget is spent)")
            assert len(found.received) == 2

    run(test())


def test_every_fifth_request_earns_a_retry() -> None:
    budget = RetryBudget(2, RETRY_SHARE)
    assert [budget.take(), budget.take(), budget.take()] == [True, True, False]
    for _ in range(4):
        budget.earn()
    assert not budget.take()
    budget.earn()
    assert budget.take()
