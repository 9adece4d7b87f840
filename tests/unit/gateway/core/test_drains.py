"""Requests while a gateway starts, drains or ends, and while a worker or a workflow leaves."""

from __future__ import annotations

import asyncio

import grpc

from jellybean_agent import PlanView
from tests.support.scripted_workers import hold, run, served, tensor, until
from tests.unit.gateway.core.submitted_requests import ask, reason_of

Code = grpc.StatusCode


def test_a_gateway_that_is_starting_says_for_whom_it_waits(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, away=("edge-1", "edge-2")) as found:
            reason = reason_of(await ask(found), Code.UNAVAILABLE)
            assert reason == (
                "still starting: 0 of 2 workers are ready, waiting for edge-1, edge-2; no worker of double is there"
            )
            assert found.gateway.status().state == "starting"
            found.gateway.plans.block("edge-1", "its disk is full")
            assert "waiting for edge-1 (its disk is full), edge-2;" in found.gateway.unavailable_reason
            await found.workers["edge-2"].start()
            await until(lambda: not found.gateway.unavailable_reason)
            assert found.gateway.status().state == "degraded"
            assert (await ask(found))[0] is None
            assert found.gateway.status().reasons["edge-1"] == "its disk is full"
            await found.workers["edge-1"].start()
            await until(lambda: found.gateway.status().state == "ready")
            assert not found.gateway.status().reasons

    run(test())


def test_a_worker_that_leaves_finishes_what_it_has(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, behaviours=dict.fromkeys(two.workers, hold)) as found:
            asked = [ask(found), ask(found)]
            await found.sent(2)
            leaving, staying = found.workers["edge-1"], found.workers["edge-2"]
            leaving.drain()
            await until(lambda: found.gateway.status().workers["edge-1"] == "draining")
            assert found.gateway.status().reasons["edge-1"] == "it was asked to leave"
            more = ask(found)
            await until(lambda: len(staying.received) == 2)
            assert leaving.has_streams
            leaving.answer(leaving.received[0], tensor(1, 2, 3, 4))
            await until(lambda: not leaving.has_streams, "the end of the stream")
            for message in staying.received:
                staying.answer(message, message.tensor)
            for each in (*asked, more):
                assert (await each)[0] is None
            assert found.gateway.status().retried == 0
            assert staying.has_streams

    run(test())


def test_a_gateway_that_drains_answers_what_it_has(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            asked = ask(found)
            await found.sent()
            draining = asyncio.create_task(found.gateway.drain(20.0))
            await asyncio.sleep(0)
            reason = reason_of(await ask(found), Code.UNAVAILABLE)
            assert reason == "the gateway is draining: it takes no new requests"
            assert found.gateway.status().state == "draining"
            found.workers["edge-1"].answer(found.received[0], tensor(1, 2, 3, 4))
            assert (await asked)[0] is None
            assert await draining == 0

    run(test())


def test_the_soonest_of_two_drains_ends_both(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            ask(found)
            await found.sent()
            draining = asyncio.create_task(found.gateway.drain(20.0))
            await asyncio.sleep(0)
            assert await found.gateway.drain(0.0) == 1
            assert await draining == 1

    run(test())


def test_the_end_fails_what_is_in_flight(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            asked = ask(found)
            await found.sent()
            await found.gateway.close()
            assert reason_of(await asked, Code.UNAVAILABLE) == "the gateway is shutting down"

    run(test())


def test_a_workflow_that_is_left_out_finishes_what_it_has(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            asked = ask(found)
            await found.sent()
            found.gateway.leave_out()
            reason = reason_of(await ask(found), Code.UNAVAILABLE)
            assert reason == "the plan that is served now leaves this workflow out"
            finished = asyncio.create_task(found.gateway.finished())
            await asyncio.sleep(0.03)
            assert not finished.done()
            found.workers["edge-1"].answer(found.received[0], tensor(1, 2, 3, 4))
            assert (await asked)[0] is None
            await finished

    run(test())
