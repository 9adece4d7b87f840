"""What a box may state of its speed: what was asked, in numbers, within the time that has passed."""

from __future__ import annotations

import pytest

from jellybean.profiler.remote.worker_agent import problem_of_response
from jellybean_protos.agent.v1 import agent_pb2

ASKED = agent_pb2.Subject(points=[agent_pb2.TimedPoint(batch=2, seconds=1.0, blocks=[0, 3])])
Response, Timed = agent_pb2.MeasureResponse, agent_pb2.TimedBlock


def accepted(*names: str) -> Response:
    return Response(accepted=agent_pb2.Accepted(lacking=[agent_pb2.Lacking(sha256=name) for name in names]))


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (Response(timed=Timed(batch=2, block=3, seconds=[0.5, 0.4])), ""),
        (Response(timed=Timed(batch=1, block=3, seconds=[0.5])), "not asked for"),
        (Response(timed=Timed(batch=2, block=1, seconds=[0.5])), "not asked for"),
        (Response(), "not asked for"),
        (Response(timed=Timed(batch=2, block=0)), "are none"),
        (Response(timed=Timed(batch=2, block=0, seconds=[0.1, float("nan")])), "are none"),
        (Response(timed=Timed(batch=2, block=0, seconds=[-0.1])), "are none"),
        (Response(timed=Timed(batch=2, block=0, seconds=[float("inf")])), "are none"),
        (Response(timed=Timed(batch=2, block=0, seconds=[0.6, 0.5])), "longer than the time"),
        (Response(memory_bytes=2.0**30), ""),
        (Response(memory_bytes=2.0**30, device_memory_bytes=2.0**33), ""),
        (Response(memory_bytes=-1.0), "no machine"),
        (Response(memory_bytes=float("nan")), "no machine"),
        (Response(memory_bytes=1e308), "no machine"),
        (Response(memory_bytes=1.0, device_memory_bytes=float("inf")), "no machine"),
        (accepted("a"), ""),
        (accepted("b"), "not offered"),
        (accepted("a", "a"), "not offered"),
    ],
)
def test_a_measurement_is_compared_with_what_was_asked(response: Response, problem: str) -> None:
    found = problem_of_response(ASKED, {"a": b""}, response, 1.0)
    assert (problem in found) if problem else (found == "")
