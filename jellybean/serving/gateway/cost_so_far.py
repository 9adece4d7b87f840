"""What a run has cost since its gateway started, whatever plan it serves by now: never less than before.

Workers cost their price while their plan is served, the whole time that two plans are. Links cost what crossed them, as
far as workers were asked: what one sent between the last time and its death is not known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jellybean_agent import BYTES_PER_GIB, PlanView

_COST = b"jellybean_network_cost_usd_total{"  # of a worker, by operator and tiers


class Serving(Protocol):
    """The workers of one plan (`Fleet`)."""

    @property
    def view(self) -> PlanView: ...
    @property
    def crossed(self) -> Mapping[tuple[str, str, str], int]: ...


@dataclass(slots=True)
class _Bill:
    """Of one plan. `seen`: workers' counters when they were asked last, which `seen_s` was over."""

    since_s: float
    usd_per_s: float
    links_usd: float = 0.0
    seen_s: float = -math.inf
    seen: dict[bytes, float] = field(default_factory=dict)


class Spent:
    """Of all plans together, in USD. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[Serving, _Bill] = {}
        self._workers_usd = self._links_usd = 0.0  # of plans that are served no more

    def begin(self, fleet: Serving) -> None:
        """A plan's workers are there from now on."""
        usd_per_h = sum(worker.price_usd_per_h for worker in fleet.view.serving)
        self._open[fleet] = _Bill(self._clock(), usd_per_h / 3600)

    def end(self, fleet: Serving) -> None:
        """They are let go."""
        bill = self._open.pop(fleet)
        self._workers_usd += bill.usd_per_s * (self._clock() - bill.since_s)
        self._links_usd += bill.links_usd + _own_usd(fleet)

    def saw(self, fleet: Serving, texts: Iterable[bytes], asked_s: float) -> None:
        """What its workers tell, in Prometheus' text format. A counter that is below what it was has started again.

        Two may ask at once, and who is answered last may have older counters: such an answer is left to the next one.
        """
        bill = self._open.get(fleet)
        if bill is None or asked_s < bill.seen_s:
            return
        bill.seen_s = self._clock()
        for line in (line for text in texts for line in text.splitlines() if line.startswith(_COST)):
            labels, _, number = line.rpartition(b" ")
            value, was = float(number), bill.seen.get(labels, 0.0)
            bill.links_usd += value - was if value >= was else value
            bill.seen[labels] = value

    @property
    def workers_usd(self) -> float:
        now_s = self._clock()
        return self._workers_usd + sum(bill.usd_per_s * (now_s - bill.since_s) for bill in list(self._open.values()))

    @property
    def links_usd(self) -> float:
        return self._links_usd + sum(bill.links_usd + _own_usd(fleet) for fleet, bill in list(self._open.items()))


def _own_usd(fleet: Serving) -> float:
    """What the sources' data cost that the gateway sent."""
    prices = {(link.upstream_tier, link.downstream_tier): link.price_usd_per_gib for link in fleet.view.links}
    return sum(
        count / BYTES_PER_GIB * prices.get((tier, to), 0.0) for (_, tier, to), count in list(fleet.crossed.items())
    )
