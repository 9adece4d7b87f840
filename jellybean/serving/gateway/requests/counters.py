"""Counters of a gateway's requests since its start, for metrics and `status`."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

from jellybean.serving.outcomes import Outcome, OutcomeKind

LATENCY_BOUNDS_S = tuple(round(0.0005 * 1.3**step, 6) for step in range(46))  # histogram buckets, up to 67 s


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

    @property
    def answered(self) -> int:
        return self.ended[OutcomeKind.ANSWERED]

    @property
    def failed(self) -> int:
        """Requests without an answer: shed, late, cancelled and refused ones included."""
        return sum(self.ended.values()) - self.answered

    def count(self, outcome: Outcome | None, latency_s: float) -> None:
        """Count a request that has ended; `outcome` None: it was answered."""
        self.last_unix_s = time.time()
        self.ended[OutcomeKind.ANSWERED if outcome is None else outcome.kind] += 1
        if outcome is None:
            self.answered_s += latency_s
            self.latencies[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
        else:
            self.failed_s += latency_s

    def count_refused(self, outcome: Outcome) -> None:
        """Count a request that was refused as it arrived, before it was submitted."""
        self.received += 1
        self.count(outcome, 0.0)
