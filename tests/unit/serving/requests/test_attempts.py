"""A request in flight has one result, whatever messages arrive for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean.serving.gateway.requests.counters import RequestCounters
from jellybean.serving.gateway.requests.in_flight import InFlightRequests
from jellybean.serving.gateway.requests.incomplete_answer import IncompleteAnswer
from jellybean.serving.gateway.tracing import NOT_TRACED, NoTracer
from jellybean.serving.outcomes import Outcome
from jellybean_agent import SharedLimit, encode_tensor
from jellybean_protos.agent.v1 import agent_pb2


class Plan:
    """A served plan with one route, always open; messages are discarded."""

    closed_reason = ""

    def __init__(self, *sinks: str, depth: int = 0) -> None:
        operators = {sink: SimpleNamespace(depth=depth) for sink in sinks}
        self.view = SimpleNamespace(
            sinks=sinks,
            source_outputs={"x": []},
            routes=[{"o": "w"}],
            operators=operators,
            own_name=lambda name: name,
        )

    def draw(self, *, is_new: bool) -> int:
        return 0

    def signature(self, _operator: str) -> None:
        return None

    def refuses(self, *_: object) -> bool:
        return False

    def send(self, *_: object) -> None: ...

    def end_attempt(self, *_: object) -> None: ...

    def bar(self, *_: object) -> None: ...


def _tensor(width: int) -> agent_pb2.Tensor:
    return encode_tensor(np.zeros((1, width), np.float32))


Step = Callable[[InFlightRequests, str], None]  # gets the key of the request's attempt


def _results(served: list[Plan], *steps: Step) -> list[Outcome | None]:
    """What the client of one request receives while the steps are done in order; the last of `served` is current."""
    results: list[Outcome | None] = []

    async def serve() -> None:
        requests = InFlightRequests(
            lambda: served[-1],  # type: ignore[return-value, arg-type]
            RequestCounters(),
            NoTracer(),
            max_in_flight=16,
            timeout_s=60.0,
        )
        requests.submit({"x": _tensor(2)}, None, "", NOT_TRACED, lambda outcome, _: results.append(outcome))
        for step in steps:
            step(requests, next(iter(requests._attempts)))
        assert not requests.count
        assert not requests._attempts

    asyncio.run(serve())
    return results


def test_children_of_unlike_shapes_are_refused_with_the_shapes() -> None:
    def child(index: int, width: int) -> Any:
        path = [agent_pb2.Position(index=index, count=2)]
        return lambda requests, key: requests.receive(
            agent_pb2.Message(request_id=key, upstream="s", tensor=_tensor(width), path=path), "w"
        )

    (outcome,) = _results([Plan("s", depth=1)], child(0, 2), child(1, 3))
    assert outcome is not None
    assert outcome.status is grpc.StatusCode.INTERNAL
    assert "(n, 2)" in outcome.reason
    assert "(n, 3)" in outcome.reason


@pytest.mark.parametrize(
    ("limit_s", "left_s", "status"),
    [
        (60.0, 1.5, grpc.StatusCode.CANCELLED),
        (60.0, 0.5, grpc.StatusCode.DEADLINE_EXCEEDED),
        (1.0, 0.5, grpc.StatusCode.CANCELLED),
        (1.0, 0.05, grpc.StatusCode.DEADLINE_EXCEEDED),
        (1.0, -1.0, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_a_cancellation_just_before_the_deadline_is_late(
    limit_s: float, left_s: float, status: grpc.StatusCode
) -> None:
    """A client's own deadline comes before the gateway's where its call took a while to arrive."""

    def cancel(requests: InFlightRequests, _key: str) -> None:
        (request,) = requests._requests
        request.time_limit_s, request.deadline_s = limit_s, time.monotonic() + left_s
        requests.cancel(request)

    (outcome,) = _results([Plan("s")], cancel)
    assert outcome is not None
    assert outcome.status is status


def test_a_plan_with_other_sinks_does_not_take_a_lost_request_over() -> None:
    served = [Plan("old")]

    def lose(requests: InFlightRequests, key: str) -> None:
        served.append(Plan("new"))
        failure = agent_pb2.Failure(status=14, reason="gone", worker="w")
        requests.receive(agent_pb2.Message(request_id=key, failure=failure), "w")

    (outcome,) = _results(served, lose)
    assert outcome is not None
    assert outcome.status is grpc.StatusCode.INVALID_ARGUMENT
    assert "other sinks" in outcome.reason


def child(index: int, size: int, sender: str = "w", count: int = 65_536) -> Step:
    """A child of the answer, of so many bytes."""
    tensor = agent_pb2.Tensor(dtype="uint8", shape=[1, size], data=bytes(size))
    path = [agent_pb2.Position(index=index, count=count)]
    message = agent_pb2.Message(upstream="s", tensor=tensor, path=path)

    def receive(requests: InFlightRequests, key: str) -> None:
        message.request_id = key
        requests.receive(message, sender)

    return receive


def test_children_without_end_fail_their_request() -> None:
    (outcome,) = _results([Plan("s", depth=1)], *(child(index, 2**24) for index in range(5)))
    assert outcome is not None
    assert outcome.status is grpc.StatusCode.INTERNAL
    assert (
        outcome.reason
        == f"answer of s: the answer has {5 * 2**24} bytes before it is complete, above the limit of {2**26}"
    )


def test_workers_share_the_bytes_of_incomplete_answers() -> None:
    """One that has its share fails its own request; another one's goes on."""
    limit, results = SharedLimit(10_000), dict[str, Outcome | None]()

    async def serve() -> None:
        requests = InFlightRequests(
            lambda: Plan("s", depth=1),  # type: ignore[return-value, arg-type]
            RequestCounters(),
            NoTracer(),
            max_in_flight=16,
            timeout_s=60.0,
            incomplete=limit,
        )

        def submit(name: str) -> str:
            requests.submit({"x": _tensor(2)}, None, "", NOT_TRACED, lambda outcome, _: results.update({name: outcome}))
            return list(requests._attempts)[-1]

        greedy, other = submit("greedy"), submit("other")
        for index in range(7):
            child(index, 600, "box")(requests, greedy)
        assert results == {}
        held = limit.held
        child(1, 600, "box")(requests, greedy)
        assert limit.held == held, "what comes again is not kept"
        child(7, 600, "box")(requests, greedy)
        assert (results["greedy"] or Outcome(grpc.StatusCode.OK, "")).reason.startswith(
            "answer of s: incomplete answers"
        )
        child(0, 600, "honest", count=2)(requests, other)
        assert limit.held > 0
        child(1, 600, "honest", count=2)(requests, other)
        assert results["other"] is None
        assert limit.held == 0

    asyncio.run(serve())


def test_of_what_comes_again_nothing_is_remembered() -> None:
    """A worker may repeat a part for as long as the request has time."""
    limit = SharedLimit(10_000)
    answer = IncompleteAnswer(limit)
    assert not answer.keep("box", 1, 600)
    for _ in range(5):
        assert not answer.keep("box", 0, 0)
    assert len(answer._claims) == 1
    answer.release()
    assert limit.held == 0
