"""Less load than the caps allow on some pools and on links: what a latency needs that queues would break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.problem import Link, Problem, Variant


@dataclass(frozen=True, slots=True)
class Room:
    """Shares of the caps that loads may reach: `pools` of that on utilisation, `links` of all links' bandwidths."""

    pools: Mapping[str, float] = field(default_factory=dict)
    links: float = 1.0


def with_headroom(problem: Problem, room: Room) -> Problem:
    """The problem in which a request counts for more where less load is allowed, and links carry less."""
    if room.links < 1.0:
        problem = replace(problem, links=tuple(_narrower(link, room.links) for link in problem.links))
    if not room.pools:
        return problem

    def slowed(variant: Variant) -> Variant:
        service = {
            pool: {size: replace(time, load_s=time.load_s / room.pools.get(pool, 1.0)) for size, time in times.items()}
            for pool, times in variant.service.items()
        }
        return replace(variant, service=service)

    operators = tuple(
        replace(operator, variants=tuple(slowed(variant) for variant in operator.variants))
        for operator in problem.operators
    )
    return replace(problem, operators=operators)


def _narrower(link: Link, share: float) -> Link:
    bandwidth = link.bandwidth_bytes_per_s
    return replace(link, bandwidth_bytes_per_s=None if bandwidth is None else share * bandwidth)


def in_own_figures(problem: Problem, plan: Plan) -> Plan:
    """A plan of a problem with headroom, or fewer batch sizes, with the times, loads and links of the problem."""

    def restored(operator: PlannedOperator) -> PlannedOperator:
        known = problem.operator_by_name[operator.name].variant(operator.variant).service
        service = {pool: {size: known[pool][size] for size in times} for pool, times in operator.service.items()}
        return replace(operator, service=service)

    operators = {operator.name: restored(operator) for operator in plan.operators}

    def loaded(worker: PlannedWorker) -> PlannedWorker:
        load = sum(rate * operators[name].request_s(worker.pool) for name, rate in worker.rates_per_s.items())
        return replace(worker, load=load)

    return replace(
        plan,
        operators=tuple(operators.values()),
        workers=tuple(loaded(worker) for worker in plan.workers),
        links=problem.links,
        utilisation=problem.utilisation,
    )
