"""Cost of a run so far, over all plans served in it; it never decreases.

Without a ledger it begins with the gateway's process; with one it goes on from what the ledger has of the run.

Workers cost their price while their plan is served; while one plan replaces another, both do. Links cost the bytes
sent, as reported by workers; a worker that is killed goes on counting where it ended if a file keeps its counters.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jellybean.serving.gateway.plans.stated_metrics import link_cost_growth
from jellybean_agent import BYTES_PER_GIB, PlanView

_COST = b"jellybean_network_cost_usd_total{"  # counter of a worker, by operator and tiers
_SINCE = b"jellybean_counted_since_timestamp_seconds{"
_TIERS = re.compile(rb'[{,]tier="(?P<tier>[^"]*)",to_tier="(?P<to_tier>[^"]*)"')


class Billed(Protocol):
    """A plan that costs money while it is served (`ServedPlan`)."""

    @property
    def view(self) -> PlanView: ...
    @property
    def bytes_sent(self) -> Mapping[tuple[str, str, str], int]: ...


@dataclass(slots=True)
class _Bill:
    """Cost of one plan so far.

    `counters`: the workers' cost counters at the last report, which was complete at `reported_s`.
    """

    since_s: float
    usd_per_s: float
    links_usd: float = 0.0
    reported_s: float = -math.inf
    counters: dict[bytes, float] = field(default_factory=dict)
    since: dict[bytes, bytes] = field(default_factory=dict)  # worker's line -> when its counters began


class CostAccount:
    """Cost of all plans together, in USD. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bills: dict[Billed, _Bill] = {}  # of the plans that are served now
        self._workers_usd = self._links_usd = 0.0  # cost of earlier plans
        self._settled = (0.0, 0.0)  # what is added to the workers' and the links' cost that this process has seen
        self._shown = [0.0, 0.0]

    def begin(self, plan: Billed) -> None:
        """Bill a plan's workers from now on."""
        usd_per_h = sum(worker.price_usd_per_h for worker in plan.view.serving)
        self._bills[plan] = _Bill(self._clock(), usd_per_h / 3600)

    def end(self, plan: Billed) -> None:
        """Stop billing a plan's workers."""
        bill = self._bills.pop(plan)
        self._workers_usd += bill.usd_per_s * (self._clock() - bill.since_s)
        self._links_usd += bill.links_usd + _sources_usd(plan)

    @property
    def seen_usd(self) -> tuple[float, float]:
        """What this process has seen of the cost, of workers and of links."""
        return self._own_workers_usd, self._own_links_usd

    def settle(self, paid_usd: tuple[float, float], seen_usd: tuple[float, float]) -> None:
        """Go on from what the ledger says that the run had cost when this process had seen `seen_usd` of it."""
        self._settled = (paid_usd[0] - seen_usd[0], paid_usd[1] - seen_usd[1])

    def report(self, plan: Billed, texts: Iterable[bytes], asked_s: float) -> None:
        """Add the workers' metrics (Prometheus' text format), requested at `asked_s` (monotonic seconds).

        A counter below its last value has begun again, unless its worker says that it counts since the same time.
        One that is read for the first time and has more than the link allows since the plan is billed was counted
        before, and is billed from here on. A report that overlaps a newer one is ignored: its counters may be older.
        """
        bill = self._bills.get(plan)
        if bill is None or asked_s < bill.reported_s:
            return
        bill.reported_s = self._clock()
        own = f'operator="{plan.view.qualified("")}'.encode()  # of several workflows, others pay for theirs
        for text in texts:
            begins = [line.rpartition(b" ") for line in text.splitlines() if line.startswith(_SINCE)]
            goes_on = any(bill.since.get(worker) == at for worker, _, at in begins)
            bill.since.update((worker, at) for worker, _, at in begins)
            for line in (line for line in text.splitlines() if line.startswith(_COST) and own in line):
                labels, _, number = line.rpartition(b" ")
                value, before = float(number), bill.counters.get(labels)
                if before is None:
                    before = 0.0 if value <= self._most_usd(plan, bill, labels) else value
                elif value < before:
                    before = value if goes_on else 0.0
                bill.links_usd += value - before
                bill.counters[labels] = value

    def _most_usd(self, plan: Billed, bill: _Bill, labels: bytes) -> float:
        """The most that a counter of a link can have since the plan is billed."""
        tiers = _TIERS.search(labels)
        if tiers is None:
            return 0.0
        growth = link_cost_growth(plan.view, tiers["tier"].decode(), tiers["to_tier"].decode())
        return growth.within(self._clock() - bill.since_s)

    @property
    def price_usd_per_h(self) -> float:
        """Price of the workers that are billed now, also of those that have not joined or are gone."""
        return 3600 * sum(bill.usd_per_s for bill in list(self._bills.values()))

    @property
    def workers_usd(self) -> float:
        """Cost of workers so far."""
        self._shown[0] = max(self._shown[0], self._own_workers_usd + self._settled[0])
        return self._shown[0]

    @property
    def links_usd(self) -> float:
        """Cost of bytes over links so far."""
        self._shown[1] = max(self._shown[1], self._own_links_usd + self._settled[1])
        return self._shown[1]

    @property
    def _own_workers_usd(self) -> float:
        now_s = self._clock()
        return self._workers_usd + sum(bill.usd_per_s * (now_s - bill.since_s) for bill in list(self._bills.values()))

    @property
    def _own_links_usd(self) -> float:
        return self._links_usd + sum(bill.links_usd + _sources_usd(plan) for plan, bill in list(self._bills.items()))


def _sources_usd(plan: Billed) -> float:
    """Cost in USD of the sources' data that the gateway sent over links."""
    prices = {(link.upstream_tier, link.downstream_tier): link.price_usd_per_gib for link in plan.view.links}
    return sum(
        count / BYTES_PER_GIB * prices.get((tier, to), 0.0) for (_, tier, to), count in list(plan.bytes_sent.items())
    )
