"""Links of a plan in virtual time: one message at a time over the bandwidth, then the latency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jellybean_solver.errors import SolverError
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Link
from jellybean_solver.simulation.interfaces import Observer
from jellybean_solver.simulation.result import Window


@dataclass(slots=True)
class _LinkState:
    """When a link is idle again, and its busy seconds in the window."""

    link: Link
    free_s: float = 0.0
    busy_s: float = 0.0


class Links:
    """The links of every site."""

    def __init__(self, plan: Plan, window: Window, observer: Observer | None) -> None:
        self._window, self._observer = window, observer
        self._states = {
            (link.upstream_tier, site, link.downstream_tier): _LinkState(link)
            for link in plan.links
            for site in range(plan.sites.get(link.upstream_tier, 1))
        }
        edges = [edge for operator in plan.operators for edge in operator.inputs]
        self._bytes = {(op.name, down): size for op in plan.operators for down, size in op.message_bytes.items()}
        self._bytes |= {(s.name, e.downstream): s.message_bytes for s in plan.sources for e in edges}

    def send(self, upstream_tier: str, site: int, downstream_tier: str, message: Any, now: float) -> float:
        """Send a message from a site; returns when it arrives. A marker for "no child" takes no bandwidth."""
        state = self._states.get((upstream_tier, site, downstream_tier))
        if state is None:
            raise SolverError(
                f"the plan sends data from tier {upstream_tier} to {downstream_tier}, but there is no link"
            )
        start_s = max(now, state.free_s)
        bandwidth = state.link.bandwidth_bytes_per_s
        marker = message.path and any(children == 0 for _, children in message.path)
        if bandwidth and not marker:
            state.free_s = start_s + self._bytes[message.upstream, message.downstream] / bandwidth
            state.busy_s += self._window.overlap(start_s, state.free_s)
            if self._observer is not None:
                self._observer.busy(f"{upstream_tier}->{downstream_tier}", start_s, state.free_s)
            start_s = state.free_s
        return start_s + state.link.latency_s

    def busy_s(self) -> Iterator[tuple[str, float]]:
        """Name of each link ("edge->cloud") and its busy seconds in the window, site by site."""
        for (upstream_tier, _, downstream_tier), state in self._states.items():
            yield f"{upstream_tier}->{downstream_tier}", state.busy_s
