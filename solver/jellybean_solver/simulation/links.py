"""Links of a plan in virtual time: one message at a time over the bandwidth, then the latency."""

from __future__ import annotations

from typing import Any

from jellybean_solver.errors import SolverError
from jellybean_solver.model.plan import Plan
from jellybean_solver.simulation.interfaces import Observer


class Links:
    """The links of every site, each with the time at which it is idle again."""

    def __init__(self, plan: Plan, observer: Observer | None) -> None:
        self._observer = observer
        self._links = {link.tiers: link for link in plan.links}
        self._idle_s: dict[tuple[str, int, str], float] = {}
        edges = [edge for operator in plan.operators for edge in operator.inputs]
        self._bytes = {
            (one.name, one.variant, down): size for one in plan.variants for down, size in one.message_bytes.items()
        }
        self._bytes |= {(s.name, "", e.downstream): s.message_bytes for s in plan.sources for e in edges}

    def send(
        self, upstream_tier: str, site: int, downstream_tier: str, message: Any, now: float, variant: str = ""
    ) -> float:
        """Send a message from a site; returns when it arrives. A marker for "no child" takes no bandwidth.

        `variant`: of the operator that sends it; empty for a source.
        """
        link = self._links.get((upstream_tier, downstream_tier))
        if link is None:
            raise SolverError(
                f"the plan sends data from tier {upstream_tier} to {downstream_tier}, but there is no link"
            )
        one = upstream_tier, site, downstream_tier
        start_s = max(now, self._idle_s.get(one, 0.0))
        marker = message.path and any(children == 0 for _, children in message.path)
        if link.bandwidth_bytes_per_s and not marker:
            end_s = start_s + self._bytes[message.upstream, variant, message.downstream] / link.bandwidth_bytes_per_s
            if self._observer is not None:
                self._observer.busy(f"{upstream_tier}->{downstream_tier}", start_s, end_s)
            self._idle_s[one] = start_s = end_s
        return start_s + link.latency_s
