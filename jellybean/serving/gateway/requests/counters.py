"""Counters of a gateway's requests since its start, for metrics and `status`."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

import grpc

from jellybean.serving.outcomes import Outcome

LATENCY_BOUNDS_S = tuple(round(0.0005 * 1.3**step, 6) for step in range(46))  # histogram buckets, up to 67 s
CLIENT_ERRORS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.CANCELLED,
    }
)


@dataclass(slots=True)
class RequestCounters:
    """Requests by outcome, and their latencies. Latency counts from the call to its answer."""

    answered: int = 0
    failed: int = 0  # refused requests included
    refused: int = 0  # of the failed: refused because too many were in flight
    expired: int = 0  # no answer within the time limit
    wrong: int = 0  # of the failed: invalid requests, and those that the client cancelled
    retried: int = 0  # attempts after a lost one
    hedged: int = 0  # attempts beside a slow one
    answered_s: float = 0.0  # sum of the latencies of answered requests
    failed_s: float = 0.0
    last_unix_s: float = 0.0  # end of the last request; 0: none yet
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))  # answers per bucket

    def count(self, outcome: Outcome | None, latency_s: float) -> None:
        """Count a request that has ended; `outcome` None: it was answered."""
        self.last_unix_s = time.time()
        if outcome is None:
            self.answered += 1
            self.answered_s += latency_s
            self.latencies[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
        else:
            self.failed += 1
            self.failed_s += latency_s
            self.expired += outcome.status is grpc.StatusCode.DEADLINE_EXCEEDED
            self.wrong += outcome.status in CLIENT_ERRORS
