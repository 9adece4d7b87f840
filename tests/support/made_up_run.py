"""Counters of a made-up run that grow by chance, as a ledger reads them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from jellybean.ledger import (
    COLUMNS,
    KINDS,
    LATENCIES,
    RECEIVED,
    BilledPlan,
    BilledWorker,
    Moment,
    Reading,
    RequestKey,
    Sent,
    SentKey,
    Work,
    WorkKey,
)

WORKERS = (
    BilledWorker("store-1/box", "store", "store-1", 0.36, {"detect": 0.5}, {"detect": "small"}),
    BilledWorker("gpu", "cloud", "", 3.6, {"detect": 0.1, "read": 0.4}, {"detect": "big", "read": "only"}),
)
PLAN = BilledPlan("p1", "flow", WORKERS, {("store", "cloud"): 9.0})
DAY_S = 86_400.0
BEGIN_S = 20_000 * DAY_S
PLACES = (("detect", "small", "store-1/box"), ("detect", "big", "gpu"), ("read", "only", "gpu"))


class Serving:
    """Counters of a run that go on growing by chance; `read` takes a reading at seconds after the begin."""

    def __init__(self, seed: int = 0, clients: Sequence[str] = ("ann", "bob")) -> None:
        self._rng = random.Random(seed)
        self.requests = {RequestKey("flow", name): [0] * COLUMNS for name in clients}
        self.work = {WorkKey("p1", o, v, w): [0.0, 0.0, 0.0] for o, v, w in PLACES}
        self.sent_bytes = 0.0

    def read(self, at_s: float) -> Reading:
        for row in self.requests.values():
            answered, shed = self._rng.randrange(20), self._rng.randrange(3)
            row[RECEIVED] += answered + shed
            row[KINDS["answered"]] += answered
            row[KINDS["shed"]] += shed
            row[LATENCIES + self._rng.randrange(4)] += answered
        for counts in self.work.values():
            counts[0] += self._rng.randrange(50)
            counts[2] += self._rng.random()
        self.sent_bytes += self._rng.random() * 2**20
        key = SentKey("p1", "detect", "small", "store-1/box", "store", "cloud")
        return Reading(
            Moment(BEGIN_S + at_s, 100.0 + at_s, "boot"), "run", (PLAN,), "p1",
            {key: Work(*counts, "s") for key, counts in self.work.items()}, {key: Sent(self.sent_bytes, "s")},
            {key: tuple(row) for key, row in self.requests.items()}, "file",
        )  # fmt: skip

    def usd(self, seconds: float) -> float:
        """What all of it cost, by hand."""
        return seconds * (0.36 + 3.6) / 3600 + self.sent_bytes / 2**30 * 9.0
