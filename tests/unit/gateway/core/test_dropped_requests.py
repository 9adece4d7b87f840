"""Requests that workers drop: past their deadline, or cancelled by their client."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from jellybean.serving import OutcomeKind
from jellybean.serving.gateway.gateway import GatewaySettings
from jellybean.serving.gateway.requests.in_flight import answer_limit_s
from jellybean_agent import PlanView
from tests.support.scripted_workers import hold, run, served, until
from tests.unit.gateway.core.submitted_requests import ask, assert_nothing_is_left, reason_of

Code = grpc.StatusCode


def test_a_late_request_is_dropped_by_its_workers(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            reason = reason_of(await ask(found, 1.0), Code.DEADLINE_EXCEEDED)
            assert reason == "no answer of double within 1 s: overloaded or stuck"
            worker = found.workers["edge-1"]
            await until(lambda: worker.dropped, "notice of the end")
            (message,), (dropped,) = worker.received, worker.dropped
            assert (dropped.request_id, dropped.plan) == (message.request_id, one.hash)
            assert (dropped.failure.status, dropped.failure.reason) == (4, reason)
            worker.answer(message, message.tensor)  # too late
            assert (await ask(found, 1.0))[0] is not None
            status = found.gateway.status()
            assert (status.answered, status.failed, status.expired) == (0, 2, 2)
            assert_nothing_is_left(found)

    run(test())


def test_the_gateways_time_limit_holds_without_the_clients(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, GatewaySettings(timeout_s=0.05), behaviours={"edge-1": hold}) as found:
            for limit_s in (None, 60.0):
                assert "within 0.05 s" in reason_of(await ask(found, limit_s), Code.DEADLINE_EXCEEDED)

    run(test())


def test_a_request_whose_client_is_gone_is_dropped_by_its_workers(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            asked = ask(found)
            await found.sent()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            worker = found.workers["edge-1"]
            await until(lambda: worker.dropped, "notice of the end")
            failure = worker.dropped[0].failure
            assert (failure.status, failure.reason) == (1, "the client cancelled")
            assert found.gateway.counters.ended[OutcomeKind.CANCELLED] == 1
            assert_nothing_is_left(found)

    run(test())


def test_the_reason_of_a_failure_reaches_the_client_in_time() -> None:
    assert [answer_limit_s(limit_s) for limit_s in (60.0, 2.0, 1.0)] == pytest.approx([59.8, 1.8, 0.9])
