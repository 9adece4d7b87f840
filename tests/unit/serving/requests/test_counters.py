"""Counters of requests: what is over the plan's p99 target."""

from __future__ import annotations

import grpc

from jellybean.serving.gateway.requests.counters import RequestCounters
from jellybean.serving.outcomes import Outcome


def test_answers_over_the_target_of_their_time_are_counted() -> None:
    target: list[float | None] = [0.5]
    counters = RequestCounters(target_s=lambda: target[0])
    for latency_s in (0.4, 0.5, 0.6):
        counters.count(None, latency_s, "")
    counters.count(Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), 9.0, "")  # it has no answer
    assert counters.over_target == 1
    target[0] = 0.1  # another plan: what was counted stays
    counters.count(None, 0.2, "")
    target[0] = None
    counters.count(None, 99.0, "")
    assert counters.over_target == 2
    assert RequestCounters().target_s() is None
