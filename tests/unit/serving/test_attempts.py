"""A request in hand ends once and is told about, whatever comes back for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np

from jellybean.serving.gateway.attempts import Trying
from jellybean.serving.outcomes import Outcome
from jellybean_agent.tensors.tensors import encode_tensor
from jellybean_protos.agent.v1 import agent_pb2


class Fleet:
    """One route that is always open; what is sent goes nowhere."""

    closed = ""

    def __init__(self, *sinks: str, depth: int = 0) -> None:
        operators = {sink: SimpleNamespace(depth=depth) for sink in sinks}
        self.view = SimpleNamespace(sinks=sinks, source_outputs={"x": []}, routes=[{"o": "w"}], operators=operators)

    def draw(self) -> int:
        return 0

    def signature(self, _operator: str) -> None:
        return None

    def send(self, *_: object) -> None: ...

    def over(self, *_: object) -> None: ...

    def bar(self, *_: object) -> None: ...


def _tensor(width: int) -> agent_pb2.Tensor:
    return encode_tensor(np.zeros((1, width), np.float32))


def _told(fleet: Fleet, *steps: Any) -> list[Outcome | None]:
    """What the client hears of a request while each step is done to (what is in hand, the key of its attempt)."""
    said: list[Outcome | None] = []

    async def serve() -> None:
        trying = Trying(16, 60.0, None)
        trying._fleet = fleet  # type: ignore[assignment]
        trying._take_in_hand({"x": _tensor(2)}, None, "", lambda outcome, _: said.append(outcome))
        for step in steps:
            step(trying, next(iter(trying._attempts)))
        assert not trying._requests
        assert not trying._attempts

    asyncio.run(serve())
    return said


def test_children_of_unlike_shapes_are_refused_with_the_shapes() -> None:
    def child(index: int, width: int) -> Any:
        path = [agent_pb2.Position(index=index, count=2)]
        return lambda trying, key: trying.receive(
            agent_pb2.Message(request_id=key, upstream="s", tensor=_tensor(width), path=path)
        )

    (outcome,) = _told(Fleet("s", depth=1), child(0, 2), child(1, 3))
    assert outcome is not None
    assert outcome.status is grpc.StatusCode.INTERNAL
    assert "(n, 2)" in outcome.reason
    assert "(n, 3)" in outcome.reason


def test_a_plan_with_other_sinks_does_not_take_a_lost_request_over() -> None:
    def lose(trying: Trying, key: str) -> None:
        trying._fleet = Fleet("new")  # type: ignore[assignment]
        trying.receive(agent_pb2.Message(request_id=key, failure=agent_pb2.Failure(status=14, reason="gone")))

    (outcome,) = _told(Fleet("old"), lose)
    assert outcome is not None
    assert outcome.status is grpc.StatusCode.INVALID_ARGUMENT
    assert "other sinks" in outcome.reason
