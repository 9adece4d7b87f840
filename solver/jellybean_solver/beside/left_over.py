"""What a plan leaves of a fleet, as the problem of further workflows: workers, time, memory, bandwidth, budget.

A worker that is paid for but not busy all of its time is a free pool of one worker there. Its service times are longer
by the factor by which its time is shorter, so that a worker's full utilisation is reached just when its time is up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from jellybean_solver.beside.after_losses import PartAfterLosses
from jellybean_solver.beside.kept import Kept
from jellybean_solver.decomposition.split import split
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.forms import as_planned
from jellybean_solver.model.loss import losses
from jellybean_solver.model.loss_checks import RouteLoads
from jellybean_solver.model.margin import longer_time
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Plan, PlannedWorker
from jellybean_solver.model.problem import Link, Pool, Problem, Sharing
from jellybean_solver.model.resources import without_price
from jellybean_solver.model.targets import LossKind
from jellybean_solver.model.workflow import Variant

LEAST_ROOM = 0.02  # share of a worker's most load: less is left unused, as times of fifty times as long and more, among
# those of free workers, are beyond the accuracy of integer programs
LEAST_BANDWIDTH = 1e-6  # fraction of a link's bandwidth, likewise


@dataclass(frozen=True)
class _Rest:
    """Workers of a pool with the same room. `pool`: what is left of them; `slower`: the factor of its service times."""

    pool: Pool
    of: str
    slower: float
    workers: tuple[str, ...]


@dataclass(frozen=True)
class LeftOver:
    """`problem`: of the further workflows, on what is left. `workers`: each of its pools that stands for workers of the
    plan, with their names.
    """

    problem: Problem
    workers: Mapping[str, tuple[str, ...]]


def left_over(problem: Problem, names: Collection[str], kept: Kept) -> LeftOver:
    """The problem of the workflows called `names` beside what is kept.

    Its pools and links are those that these workflows can reach.
    """
    own = restricted(problem, names)
    parts = split(own).parts
    stays = as_planned(restricted(problem, kept.workflows), kept.plan)
    most = _Most(stays, kept.plan, problem.survives)
    tiers = {tier for part in parts for tier in part.tiers}
    reached = {pool.name for part in parts for pool in part.pools}
    staff: dict[str, list[PlannedWorker]] = {name: [] for name in reached}
    for worker in kept.plan.workers:
        if worker.pool in reached:
            staff[worker.pool].append(worker)
    pools: list[Pool] = []
    rests: list[_Rest] = []
    for pool in own.pools:
        if pool.name in reached:
            free = max(0, pool.count - len(staff[pool.name]))
            pools.append(replace(pool, count=free))
            if pool.sharing is Sharing.SHARED:
                rests += _rests(pool, problem.utilisation, staff[pool.name], kept.plan, most.loads)
    links = [link for link in own.links if link.upstream_tier in tiers and link.downstream_tier in tiers]
    spent, carried, uses = 0.0, dict[tuple[str, str], float](), dict[str, float]()
    if _has_common(own, links, kept.plan):
        score = evaluate(stays, kept.plan)
        spent, uses = score.cost.total_usd_per_h, dict(score.plan.uses)
        carried = {use.tiers: use.bytes_per_s for use in link_uses(score.plan, score.flows)}
        carried |= {ends: max(sent, carried.get(ends, 0.0)) for ends, sent in most.carried.items()}
    left = replace(
        own,
        tiers=tuple(tier for tier in own.tiers if tier in tiers),
        operators=tuple(one.with_variants(lambda variant: _variant(variant, rests)) for one in own.operators),
        pools=(*(rest.pool for rest in rests), *pools),
        links=tuple(_links(problem, links, carried)),
        sites={tier: count for tier, count in own.sites.items() if tier in tiers},
        slo=replace(own.slo, budget_usd_per_h=_budget_left(own.slo.budget_usd_per_h, spent)),
        most={name: max(0.0, most - uses.get(name, 0.0)) for name, most in own.most.items()},
    )
    return LeftOver(left, {rest.pool.name: rest.workers for rest in rests})


class _Most:
    """What a plan needs at most, with everything there and after each loss that one of all workflows survives.

    `loads`: of each worker; `carried`: bytes per second of each limited link in all sites, after losses.
    """

    def __init__(self, problem: Problem, plan: Plan, survives: Collection[LossKind]) -> None:
        self.loads = {worker.name: worker.load for worker in plan.workers}
        self.carried: dict[tuple[str, str], float] = {}
        if not survives:
            return
        table, after = RouteLoads(problem, plan), PartAfterLosses(problem, plan)
        for loss in losses(plan, survives):
            weights = np.asarray(after.weights(loss))
            for worker, load in zip(table.workers, (table.busy @ weights).tolist(), strict=True):
                self.loads[worker] = max(load, self.loads[worker])
            for ends, share in zip(table.links, (table.sent @ weights).tolist(), strict=True):
                usable = problem.usable_bytes_per_s(problem.link_by_tiers[ends]) or 0.0
                sent = share * usable * problem.sites.get(ends[0], 1)
                self.carried[ends] = max(sent, self.carried.get(ends, 0.0))


def _has_common(problem: Problem, links: Iterable[Link], kept: Plan) -> bool:
    """True if a budget, a limit, or the bandwidth of one of these links, is for the kept workflows too."""
    tiers = {worker.tier for worker in kept.workers} | {source.tier for source in kept.sources}
    limited = (link for link in links if link.bandwidth_bytes_per_s is not None)
    has_limits = problem.slo.budget_usd_per_h is not None or bool(problem.most)
    return has_limits or any(link.upstream_tier in tiers for link in limited)


def _budget_left(budget: float | None, spent: float) -> float | None:
    return None if budget is None else max(0.0, budget - spent)


def _links(problem: Problem, links: Iterable[Link], carried: Mapping[tuple[str, str], float]) -> Iterator[Link]:
    """The links with the bandwidth that is left; none where nothing is."""
    for link in links:
        ends, limit = (link.upstream_tier, link.downstream_tier), link.bandwidth_bytes_per_s
        used = carried.get(ends, 0.0) / problem.sites.get(ends[0], 1)
        left = None if limit is None else limit - used * limit / (problem.usable_bytes_per_s(link) or limit)
        if limit is None or left is None or left > LEAST_BANDWIDTH * limit:
            yield replace(link, bandwidth_bytes_per_s=left)


def _rests(
    pool: Pool, most: float, workers: Iterable[PlannedWorker], plan: Plan, loads: Mapping[str, float]
) -> Iterator[_Rest]:
    """What is left of a shared pool's workers up to a load of `most`, those of the same room together."""
    alike: dict[tuple[float, float | None, float | None], list[str]] = {}
    for worker in workers:
        room = most - loads[worker.name]
        if room > LEAST_ROOM * most:
            held = [plan.operator_at(name, worker.name) for name in worker.rates_per_s]
            memory = _memory_left(pool.memory_bytes, (one.memory_bytes.get(pool.name, 0.0) for one in held))
            device = _memory_left(
                pool.device_memory_bytes, (one.device_memory_bytes.get(pool.name, 0.0) for one in held)
            )
            alike.setdefault((room, memory, device), []).append(worker.name)
    for (room, memory, device), names in alike.items():
        more = f" and {len(names) - 1} like it" if len(names) > 1 else ""
        name = f"what is left of {names[0]}{more}"  # blanks are in no name of a document
        rest = replace(
            without_price(pool), name=name, count=len(names), memory_bytes=memory, device_memory_bytes=device
        )
        yield _Rest(rest, pool.name, most / room, tuple(names))


def _memory_left(limit: float | None, held: Iterable[float]) -> float | None:
    return None if limit is None else max(0.0, limit - sum(held))


def _variant(variant: Variant, rests: Collection[_Rest]) -> Variant:
    """The variant with a profile for each rest of a worker on whose pool it has one."""
    service, memory, device = dict(variant.service), dict(variant.memory_bytes), dict(variant.device_memory_bytes)
    for rest in rests:
        name = rest.pool.name
        if rest.of in variant.service:
            service[name] = {size: longer_time(time, rest.slower) for size, time in variant.service[rest.of].items()}
        for table in (memory, device):
            if rest.of in table:
                table[name] = table[rest.of]
    return replace(variant, service=service, memory_bytes=memory, device_memory_bytes=device)
