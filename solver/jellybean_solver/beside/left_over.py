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
class Rest:
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


def left_over(problem: Problem, kept: Kept) -> LeftOver:
    """The problem of the workflows that are to be planned, beside what is kept.

    Its pools and links are those that these workflows can reach.
    """
    own = restricted(problem, kept.planned)
    parts = split(own).parts
    stays = as_planned(restricted(problem, kept.workflows), kept.plan)
    most = _Most(stays, kept.plan, problem.survives)
    tiers = {tier for part in parts for tier in part.tiers}
    reached = {pool.name for part in parts for pool in part.pools}
    pools: list[Pool] = []
    rests: list[Rest] = []
    for pool in own.pools:
        if pool.name in reached:
            staff = [worker for worker in kept.plan.workers if worker.pool == pool.name]
            pools.append(replace(pool, count=max(0, pool.count - len(staff))))
            if pool.sharing is Sharing.SHARED:
                rests += _rests(pool, problem.utilisation, staff, kept.plan, most.loads)
    links = [link for link in own.links if link.upstream_tier in tiers and link.downstream_tier in tiers]
    score = evaluate(stays, kept.plan)
    carried = {use.tiers: use.bytes_per_s for use in link_uses(score.plan, score.flows)}
    carried |= {ends: max(sent, carried.get(ends, 0.0)) for ends, sent in most.carried.items()}
    budget, uses = own.slo.budget_usd_per_h, score.plan.uses
    left = replace(
        own,
        tiers=tuple(tier for tier in own.tiers if tier in tiers),
        operators=tuple(one.with_variants(lambda variant: with_profiles(variant, rests)) for one in own.operators),
        pools=(*(rest.pool for rest in rests), *pools),
        links=tuple(_links(problem, links, carried)),
        sites={tier: count for tier, count in own.sites.items() if tier in tiers},
        slo=replace(own.slo, budget_usd_per_h=_less(budget, score.cost.total_usd_per_h)),
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
                sent = share * usable * problem.sites_of(ends[0])
                self.carried[ends] = max(sent, self.carried.get(ends, 0.0))


def _less(limit: float | None, spent: float) -> float | None:
    """What is left of a limit, at least 0; None without one."""
    return None if limit is None else max(0.0, limit - spent)


def _links(problem: Problem, links: Iterable[Link], carried: Mapping[tuple[str, str], float]) -> Iterator[Link]:
    """The links with the bandwidth that is left; none where nothing is."""
    for link in links:
        limit, usable = link.bandwidth_bytes_per_s, problem.usable_bytes_per_s(link)
        if limit is None or usable is None:
            yield link
            continue
        sites = problem.sites_of(link.upstream_tier)
        left = 1.0 - carried.get(link.tiers, 0.0) / sites / usable
        if left > LEAST_BANDWIDTH:
            yield replace(link, bandwidth_bytes_per_s=limit * left)


def _rests(
    pool: Pool, most: float, workers: Iterable[PlannedWorker], plan: Plan, loads: Mapping[str, float]
) -> Iterator[Rest]:
    """What is left of a shared pool's workers up to a load of `most`, those of the same room together."""
    alike: dict[tuple[float, float | None, float | None], list[str]] = {}
    for worker in workers:
        room = most - loads[worker.name]
        if room > LEAST_ROOM * most:
            held = [plan.operator_at(name, worker.name) for name in worker.rates_per_s]
            memory = _less(pool.memory_bytes, sum(one.memory_bytes.get(pool.name, 0.0) for one in held))
            on_device = sum(one.device_memory_bytes.get(pool.name, 0.0) for one in held)
            device = _less(pool.device_memory_bytes, on_device)
            alike.setdefault((room, memory, device), []).append(worker.name)
    for (room, memory, device), names in alike.items():
        more = f" and {len(names) - 1} like it" if len(names) > 1 else ""
        name = f"what is left of {names[0]}{more}"  # blanks are in no name of a document
        rest = replace(
            without_price(pool), name=name, count=len(names), memory_bytes=memory, device_memory_bytes=device
        )
        yield Rest(rest, pool.name, most / room, tuple(names))


def with_profiles(variant: Variant, rests: Collection[Rest]) -> Variant:
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
