"""A request to a gateway and scripted workers: answers, ids, routes in turn, and requests that are refused."""

from __future__ import annotations

import grpc
import numpy as np

from jellybean.serving import OutcomeKind
from jellybean.serving.gateway.gateway import GatewaySettings
from jellybean.serving.gateway.requests.admission import RequestAdmission
from jellybean.serving.outcomes import Result
from jellybean.serving.spool.delivery import Key
from jellybean_agent import PlanView, decode_tensor
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.scripted_workers import INPUTS, answer, hold, run, served, tensor, until
from tests.unit.gateway.core.submitted_requests import ask, assert_nothing_is_left, reason_of

Code = grpc.StatusCode


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


def test_answered_ids_are_remembered_up_to_a_number() -> None:
    admission, most = RequestAdmission(16), 65_536
    for number in range(most + 1):
        key = Key("", str(number))
        admission.add(key, 1)
        admission.remove(key, 1, answered=True)
    assert admission.refusal(Key("", "0"), 1, 0) is None
    assert admission.refusal(Key("", "1"), 1, 0) is not None
