"""Counters of a gateway's requests since its start, for metrics and `status`."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from jellybean.ledger.columns import LATENCY_BOUNDS_S
from jellybean.serving.outcomes import Outcome, OutcomeKind


class RequestLog(Protocol):
    """Counts the requests of each client where they outlive this process.

    `client`: its URI; empty without certificates.
    """

    def received(self, client: str) -> None:
        """Count a request that arrived."""
        ...

    def ended(self, kind: OutcomeKind, latency_s: float, client: str) -> None:
        """Count a request that has ended."""
        ...


@dataclass(slots=True)
class RequestCounters:
    """Requests by outcome, and their latencies. Latency counts from the call to its answer."""

    received: int = 0  # requests that arrived, whatever became of them
    ended: dict[OutcomeKind, int] = field(default_factory=lambda: dict.fromkeys(OutcomeKind, 0))
    retried: int = 0  # attempts after a lost one
    hedged: int = 0  # attempts beside a slow one
    answered_s: float = 0.0  # sum of the latencies of answered requests
    failed_s: float = 0.0
    last_unix_s: float = 0.0  # end of the last request; 0: none yet
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))  # answers per bucket
    over_target: int = 0  # answers later than the p99 target of the plan at that time
    target_s: Callable[[], float | None] = lambda: None  # that target; None: the plan has none
    log: RequestLog | None = None  # counts them too

    @property
    def answered(self) -> int:
        return self.ended[OutcomeKind.ANSWERED]

    @property
    def failed(self) -> int:
        """Requests without an answer: shed, late, cancelled and refused ones included."""
        return sum(self.ended.values()) - self.answered

    def receive(self, client: str) -> None:
        """Count a request that arrived."""
        self.received += 1
        if self.log is not None:
            self.log.received(client)

    def count(self, outcome: Outcome | None, latency_s: float, client: str) -> None:
        """Count a request that has ended; `outcome` None: it was answered."""
        self.last_unix_s = time.time()
        kind = OutcomeKind.ANSWERED if outcome is None else outcome.kind
        self.ended[kind] += 1
        if self.log is not None:
            self.log.ended(kind, latency_s, client)
        if outcome is None:
            self.answered_s += latency_s
            self.latencies[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
            target_s = self.target_s()
            self.over_target += target_s is not None and latency_s > target_s
        else:
            self.failed_s += latency_s

    def count_refused(self, outcome: Outcome, client: str) -> None:
        """Count a request that was refused as it arrived, before it was submitted."""
        self.receive(client)
        self.count(outcome, 0.0, client)
