"""How long a request takes in a pool with zero queueing delay."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_solver.demand.demand import Network
from jellybean_solver.latency.estimate import unqueued_s
from jellybean_solver.latency.plan_arrivals import jobs_at_once


@dataclass(frozen=True, slots=True)
class Mode:
    """A variant in a pool. `workers`: kept busy by all requests; `job_s`: time of one request without queueing."""

    pool: str
    batch: int
    workers: float
    job_s: float


def modes(network: Network, name: str, variant: str, visits: float) -> tuple[Mode, ...]:
    """One mode per pool that can run the variant, at the batch size of plans, without waiting for a batch to fill.

    `visits`: runs of the operator per request of its stream.
    """
    problem = network.problem
    planned = problem.operator_by_name[name].variant(variant)
    found: list[Mode] = []
    for pool, workers in network.demand({name: variant}).workers[name].items():
        times = problem.times(name, planned, pool)
        found.append(Mode(pool, max(times), workers, unqueued_s(times, max(times), jobs_at_once(visits))))
    return tuple(found)
