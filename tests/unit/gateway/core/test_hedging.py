"""Hedged requests: when a second attempt is made, which answer counts, and the quantile of the delay."""

from __future__ import annotations

from functools import partial

import grpc
import pytest

from jellybean.serving.gateway.gateway import GatewaySettings
from jellybean.serving.gateway.requests.hedging import Hedge
from jellybean_agent import PlanView
from tests.support.scripted_workers import hold, run, served, tensor, until
from tests.unit.gateway.core.submitted_requests import ask, assert_nothing_is_left, reason_of, refuse

Code = grpc.StatusCode


def test_a_slow_request_has_a_second_attempt(two: PlanView) -> None:
    async def test() -> None:
        settings = GatewaySettings(hedge=Hedge("0.02"))
        async with served(two, settings, behaviours=dict.fromkeys(two.workers, hold)) as found:
            asked = ask(found)
            await found.sent(2)
            slow, fast = sorted(found.workers.values(), key=lambda worker: worker.received[0].request_id)
            fast.answer(fast.received[0], tensor(5, 6, 7, 8))
            outcome, outputs = await asked
            assert outcome is None
            assert outputs == {"double": tensor(5, 6, 7, 8)}
            await until(lambda: slow.dropped, "notice of the end")
            assert slow.dropped[0].failure.reason == "another attempt was faster"
            assert not fast.dropped
            status = found.gateway.status()
            assert (status.answered, status.hedged, status.retried) == (1, 1, 0)
            assert_nothing_is_left(found)

    run(test())


def test_a_hedged_request_outlives_the_failure_of_one_attempt(two: PlanView) -> None:
    async def test() -> None:
        settings = GatewaySettings(hedge=Hedge("0.02"))
        for status in (Code.UNAVAILABLE, Code.INTERNAL):
            async with served(two, settings, behaviours=dict.fromkeys(two.workers, hold)) as found:
                asked = ask(found)
                await found.sent(2)
                slow, fast = sorted(found.workers.values(), key=lambda worker: worker.received[0].request_id)
                fast.fail(fast.received[0], status, "broken")
                await until(partial(getattr, fast, "dropped"), "notice of the end")
                slow.answer(slow.received[0], tensor(1, 2, 3, 4))
                assert (await asked)[0] is None
                assert found.gateway.status().retried == 0
                assert_nothing_is_left(found)

    run(test())


def test_a_hedge_needs_another_route_and_a_reserve(one: PlanView, two: PlanView) -> None:
    async def test() -> None:
        for view, most in ((one, 1024), (two, 1)):
            settings = GatewaySettings(max_in_flight=most, hedge=Hedge("0.01"))
            async with served(view, settings, behaviours=dict.fromkeys(view.workers, hold)) as found:
                assert reason_of(await ask(found, 1.0), Code.DEADLINE_EXCEEDED)
                assert len(found.received) == 1
                assert found.gateway.status().hedged == 0

    run(test())


def test_a_request_that_waits_is_not_hedged(one: PlanView, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        settings = GatewaySettings(hedge=Hedge("0.02"))
        broken = refuse(Code.UNAVAILABLE, "cut")
        async with served(one, settings, behaviours={"edge-1": broken}) as found:
            assert reason_of(await ask(found, 1.0), Code.DEADLINE_EXCEEDED)
            assert found.gateway.status().hedged == 0
            assert_nothing_is_left(found)

    run(test())
    assert not [record for record in caplog.records if record.exc_info]


def test_a_quantile_of_latencies_counts_those_that_hedges_cut_short() -> None:
    hedge = Hedge("50%")
    for _ in range(64):
        hedge.record(0.3, is_exact=False)
    assert hedge.after_s == 0.3
    hedge = Hedge("50%")
    for number in range(64):
        assert hedge.after_s == float("inf")
        hedge.record(0.1 if number < 40 else 0.2)
    assert hedge.after_s == 0.1
