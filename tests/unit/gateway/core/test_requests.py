"""What becomes of a request: a real gateway and scripted workers, which speak over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from jellybean.serving import OutcomeKind
from jellybean.serving.gateway.gateway import GatewaySettings
from jellybean.serving.gateway.requests.admission import Admission
from jellybean.serving.gateway.requests.hedging import Hedge
from jellybean.serving.gateway.requests.in_flight import RETRY_SHARE, answer_limit_s
from jellybean.serving.gateway.requests.retry_budget import RetryBudget
from jellybean.serving.outcomes import Result
from jellybean.serving.spool.delivery import Key
from jellybean_agent import PlanView, decode_tensor
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.scripted_workers import ScriptedWorker, Served, answer, hold, scale_view, served, tensor, until

INPUTS = {"x": tensor(1, 2, 3, 4)}
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    return scale_view(tmp_path_factory.mktemp("one"), "edge-1")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    return scale_view(tmp_path_factory.mktemp("two"), "edge-1", "edge-2")


def refuse(status: grpc.StatusCode, reason: str) -> Callable[[ScriptedWorker, agent_pb2.Message], None]:
    return lambda worker, message: worker.fail(message, status, reason)


def ask(
    found: Served, time_left_s: float | None = 20.0, request_id: str = "", caller: str = ""
) -> asyncio.Task[Result]:
    return asyncio.create_task(found.gateway.infer(INPUTS, time_left_s, request_id, caller))


def reason_of(result: Result, status: grpc.StatusCode) -> str:
    """Why a request has no answer, if it has this status."""
    outcome, outputs = result
    assert outcome is not None
    assert (outcome.status, dict(outputs)) == (status, {})
    return outcome.reason


def assert_nothing_is_left(found: Served) -> None:
    """No request is counted, waits or keeps an attempt at any plan any more, and a new one is admitted."""
    status = found.gateway.status()
    assert (status.requests_in_hand, status.waiting) == (0, 0)
    assert not found.gateway.plans.served.has_attempts
    assert status.answered + status.failed == found.gateway.counters.received


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


def test_an_answer(one: PlanView) -> None:
    async def test() -> None:
        seen: list[object] = []
        async with served(one) as found:
            gateway = found.gateway
            gateway.on_inputs = lambda view, inputs: seen.append((view, dict(inputs)))
            gateway.on_outputs = lambda view, outputs: seen.append((view, dict(outputs)))
            gateway.on_answer = lambda key, attempt, outputs: seen.append(
                (key, attempt and attempt.route, dict(outputs))
            )
            outcome, outputs = await ask(found, request_id="a", caller="ann")
            assert outcome is None
            assert np.array_equal(decode_tensor(outputs["double"]), [[1, 2, 3, 4]])
            (message,) = found.received
            assert (message.upstream, message.downstream, message.route, message.plan) == ("x", "double", 0, one.hash)
            assert 0 < message.left_s < 20.0
            assert seen == [
                (one, INPUTS),
                (one, {"double": INPUTS["x"]}),
                (Key("ann", "a"), 0, {"double": INPUTS["x"]}),
            ]
            status = gateway.status()
            assert (status.workflow, status.plan, status.state) == ("tiny", one.hash, "ready")
            assert (status.answered, status.failed, status.retried, status.hedged) == (1, 0, 0, 0)
            assert dict(status.workers) == {"edge-1": "ready"}
            assert not status.reasons
            assert not found.workers["edge-1"].dropped
            assert gateway.counters.answered_s > 0
            assert (gateway.counters.failed_s, sum(gateway.counters.latencies)) == (0.0, 1)
            assert_nothing_is_left(found)

    run(test())


def test_an_answer_without_an_id_is_named_by_the_answers_id(one: PlanView) -> None:
    async def test() -> None:
        keys: list[Key] = []
        async with served(one) as found:
            found.gateway.on_answer = lambda key, *_: keys.append(key)
            for _ in range(2):  # the same answer id may be used again
                assert (await found.gateway.infer(INPUTS, None, caller="ann", answer_id="7"))[0] is None
            assert (await found.gateway.infer(INPUTS, None, caller="ann"))[0] is None
            assert keys == [Key("ann", "7"), Key("ann", "7")]

    run(test())


def test_both_routes_are_taken_in_turn(two: PlanView) -> None:
    async def test() -> None:
        async with served(two) as found:
            for _ in range(10):
                assert (await ask(found))[0] is None
            assert {name: len(worker.received) for name, worker in found.workers.items()} == {"edge-1": 5, "edge-2": 5}

    run(test())


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


def test_a_late_request_is_dropped_by_its_workers(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            reason = reason_of(await ask(found, 0.05), Code.DEADLINE_EXCEEDED)
            assert reason == "no answer of double within 0.05 s: overloaded or stuck"
            worker = found.workers["edge-1"]
            await until(lambda: worker.dropped, "notice of the end")
            (message,), (dropped,) = worker.received, worker.dropped
            assert (dropped.request_id, dropped.plan) == (message.request_id, one.hash)
            assert (dropped.failure.status, dropped.failure.reason) == (4, reason)
            worker.answer(message, message.tensor)  # too late
            assert (await ask(found, 0.05))[0] is not None
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
                assert reason_of(await ask(found, 0.1), Code.DEADLINE_EXCEEDED)
                assert len(found.received) == 1
                assert found.gateway.status().hedged == 0

    run(test())


def test_an_id_is_used_once(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            first = ask(found, request_id="a", caller="ann")
            (message,) = await found.sent()
            assert "request 'a' is in flight already" in reason_of(
                await ask(found, 1.0, "a", "ann"), Code.ALREADY_EXISTS
            )
            other = ask(found, request_id="a", caller="bob")
            await found.sent(2)
            for each in found.received:
                found.workers["edge-1"].answer(each, message.tensor)
            assert (await first)[0] is (await other)[0] is None
            assert "request 'a' was answered already" in reason_of(
                await ask(found, 1.0, "a", "ann"), Code.ALREADY_EXISTS
            )
            late = await ask(found, 0.05, "b", "ann")
            assert reason_of(late, Code.DEADLINE_EXCEEDED)
            again = ask(found, 0.05, "b", "ann")  # it has no answer, so its id is free
            assert reason_of(await again, Code.DEADLINE_EXCEEDED)
            long = "é" * 129
            assert reason_of(await ask(found, 1.0, long), Code.INVALID_ARGUMENT) == (
                "a request's id has 258 bytes; 256 are the most"
            )
            assert found.gateway.counters.received == 7

    run(test())


def test_a_full_gateway_refuses(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, GatewaySettings(max_in_flight=2), behaviours={"edge-1": hold}) as found:
            asked = [ask(found), ask(found)]
            await found.sent(2)
            reason = reason_of(await ask(found), Code.RESOURCE_EXHAUSTED)
            assert reason == "overloaded: 2 requests are in flight, the most this gateway takes"
            assert found.gateway.status().refused == 1
            for message in found.received:
                found.workers["edge-1"].answer(message, message.tensor)
            for each in asked:
                assert (await each)[0] is None
            found.workers["edge-1"].behaviour = answer
            assert (await ask(found))[0] is None
            assert_nothing_is_left(found)

    run(test())


def test_inputs_that_do_not_fit_are_refused_at_once(one: PlanView) -> None:
    async def test() -> None:
        async with served(one) as found:
            for inputs in ({"x": tensor(1, 2)}, {"y": tensor(1, 2, 3, 4)}, {}):
                assert reason_of(await found.gateway.infer(inputs, 5.0), Code.INVALID_ARGUMENT)
            assert not found.received
            assert found.gateway.counters.ended[OutcomeKind.CLIENT_ERROR] == 3
            answered: list[Result] = []
            checked = found.gateway.submit(
                {"x": tensor(1, 2)}, 5.0, Key("", ""), lambda *result: answered.append(result), are_checked=True
            )
            assert checked is not None  # who says that they fit is believed
            await until(lambda: answered)

    run(test())


def test_an_answer_that_cannot_be_read_is_an_error(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            asked = ask(found)
            (message,) = await found.sent()
            found.workers["edge-1"].answer(message, tensor(0), upstream="another")  # of no sink
            path = [agent_pb2.Position(index=0, count=2)]
            found.workers["edge-1"].answer(message, tensor(0), path=path)
            assert reason_of(await asked, Code.INTERNAL).startswith("answer of double: ")
            assert_nothing_is_left(found)

    run(test())


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


def test_a_plan_with_other_sources_ends_a_request_that_was_checked_before(one: PlanView) -> None:
    async def test() -> None:
        async with served(one) as found:
            results: list[Result] = []
            found.gateway.submit(
                {"y": tensor(1)}, 5.0, Key("", ""), lambda *result: results.append(result), are_checked=True
            )
            assert reason_of(results[0], Code.INVALID_ARGUMENT) == "the plan that has taken over has other sources"
            assert_nothing_is_left(found)

    run(test())


def test_a_request_that_waits_is_not_hedged(one: PlanView, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        settings = GatewaySettings(hedge=Hedge("0.02"))
        broken = refuse(Code.UNAVAILABLE, "cut")
        async with served(one, settings, behaviours={"edge-1": broken}) as found:
            assert reason_of(await ask(found, 0.1), Code.DEADLINE_EXCEEDED)
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


def test_answered_ids_are_remembered_up_to_a_number() -> None:
    admission, most = Admission(16), 65_536
    for number in range(most + 1):
        key = Key("", str(number))
        admission.add(key, 1)
        admission.remove(key, 1, answered=True)
    assert admission.refusal(Key("", "0"), 1, 0) is None
    assert admission.refusal(Key("", "1"), 1, 0) is not None


def test_the_reason_of_a_failure_reaches_the_client_in_time() -> None:
    assert [answer_limit_s(limit_s) for limit_s in (60.0, 2.0, 1.0)] == pytest.approx([59.8, 1.8, 0.9])


def test_every_fifth_request_earns_a_retry() -> None:
    budget = RetryBudget(2, RETRY_SHARE)
    assert [budget.take(), budget.take(), budget.take()] == [True, True, False]
    for _ in range(4):
        budget.earn()
    assert not budget.take()
    budget.earn()
    assert budget.take()
