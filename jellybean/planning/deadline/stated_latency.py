"""A predicted p99 latency, and in words which target a plan misses: by how much, and what is busiest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jellybean.display import formats
from jellybean.planning.simulation import load_by_link, load_by_worker, unloaded_latency_s
from jellybean_solver import Plan, margin_of_plan, stressed


@dataclass(frozen=True, slots=True)
class PredictedLatency:
    """Predicted latencies in seconds, p99 with its confidence interval, from `simulations` of `requests` each.

    `complete`: made by the definition; otherwise simulations were left out because a decision needed no more, or for
    lack of time. Without any `simulations` the p99 is the closed form, its interval the range of the closed form's
    error, and the others are nan.
    """

    p50_s: float
    p90_s: float
    p99_s: float
    low_s: float
    high_s: float
    simulations: int
    requests: int
    complete: bool = True


def breach_text(plan: Plan, predicted: Mapping[str, PredictedLatency], targets_s: Mapping[str, float]) -> str:
    """The missed target with the largest excess, as text; "about" if its p99 is not of all simulations.

    `predicted`, `targets_s`: p99 latencies, and hard targets in seconds, by workflow.
    """
    plan, margin = stressed(plan), margin_of_plan(plan).text
    worst = max(targets_s, key=lambda name: predicted[name].p99_s / targets_s[name])
    p99 = predicted[worst]
    prefix = f"{worst}: " if worst else ""
    whole = formats.interval(p99.p99_s, p99.low_s, p99.high_s)
    stated = whole if p99.complete else f"about {formats.duration(p99.p99_s)}"
    made = f"{formats.count(p99.simulations, 'simulation')} of {p99.requests:,} requests"
    if not p99.simulations:
        made = "in closed form, as there was no time for a simulation"
    unloaded_s = unloaded_latency_s(plan, workflow=worst)  # nan if there is no time for that
    unloaded = f"mean latency over all routes with zero queueing delay {formats.duration(unloaded_s)}; "
    within = f" with {margin}" if margin else ""
    return (
        f"{prefix}p99 latency{within} would be {stated}, above the SLO of {formats.duration(targets_s[worst])} "
        f"({made}; {unloaded if math.isfinite(unloaded_s) else ''}{_busiest(plan)})"
    )


def _busiest(plan: Plan) -> str:
    """The busiest worker with its utilisation; the busiest link with its share of the bandwidth if that is higher."""
    workers, links = load_by_worker(plan), load_by_link(plan)
    worker = max(workers, key=workers.__getitem__)
    link = max(links, key=links.__getitem__, default=None)
    if link is None or links[link] <= workers[worker]:
        return f"busiest worker {worker} at utilisation {workers[worker]:.2f}"
    bandwidth = plan.link_by_tiers[link].bandwidth_bytes_per_s or math.inf
    share = f"{links[link]:.1%}".replace("%", " %")
    return f"busiest link {' -> '.join(link)} at {share} of {formats.plain(bandwidth * 8e-6)} Mbit/s"
