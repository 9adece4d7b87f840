"""Why a problem has no plan at any rates and targets: operators that no worker can run, and data that cannot flow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from jellybean_solver.demand.demand import Network
from jellybean_solver.model.missing_links import Ends, missing_link_text
from jellybean_solver.model.problem import Link, Problem
from jellybean_solver.model.workflow import Operator
from jellybean_solver.planning.memory_shortage import nearest_worker
from jellybean_solver.planning.requirements import RequirementKind, drop, requirements
from jellybean_solver.small.tree_bounds import can_flow

Item = TypeVar("Item")

JOINTLY_BLOCKED = "no assignment of operators to tiers lets all data flow up the tiers over declared links"


def structural_reasons(network: Network) -> Iterator[str]:
    """Sentences on operators that no pool can run, or else on data that cannot flow to them.

    A link is recommended only if data can flow with it.
    """
    problem = network.problem
    unplaceable = [operator for operator in problem.operators if not network.runnable[operator.name]]
    for operator in unplaceable:
        yield f"operator {operator.name} cannot run anywhere: {_placement_obstacle(problem, operator)}"
    if unplaceable or can_flow(network, network.demand({})):
        return
    missing = _missing(problem)
    linked = _linked(problem, missing)
    if _flows(linked):
        links = next(([pair] for pair in missing if _flows(_linked(problem, [pair]))), None)
        links = links or _needed(missing, lambda pairs: _flows(_linked(problem, pairs)))
        hints = (missing_link_text(problem.link_by_tiers, ends) for ends in links)
        yield "; ".join((_obstacle_to_data(problem), *hints))
    else:  # no link would help: the reason is that which remains when all are declared
        yield _obstacle_to_data(linked)


def _placement_obstacle(problem: Problem, operator: Operator) -> str:
    """Why no pool can run any variant: no profile, residency, no workers, or memory."""
    names = ", ".join(variant.name for variant in operator.variants)
    known = [(v, pool) for v in operator.variants for pool in problem.pools if pool.name in v.service]
    allowed = [(v, pool) for v, pool in known if operator.tiers is None or pool.tier in operator.tiers]
    staffed = [(v, pool) for v, pool in allowed if pool.count > 0]
    if staffed:
        return f"memory: even {nearest_worker(staffed)}"
    has_workers = any(pool.count > 0 for _, pool in known)
    of = names if has_workers else f"its variants ({names})"
    none = f"no worker pool has a profile of {of}"
    if allowed:
        idle = ", ".join(dict.fromkeys(f"{pool.name} (count 0)" for _, pool in allowed))
        none = f"the pools with a profile of {of} have no workers: {idle}"
    return f"it may run in {', '.join(operator.tiers or ())} only, where {none}" if has_workers else none


def _obstacle_to_data(problem: Problem) -> str:
    """That data cannot flow to an operator, or to all at once, and the residencies that forbid it, none to spare."""
    members = [one for one in requirements(problem) if one.kind is RequirementKind.RESIDENCY]
    conflict = _needed(members, lambda kept: not _flows(drop(problem, *(one for one in members if one not in kept))))
    blocked = _blocked_operator(Network(problem)) or JOINTLY_BLOCKED
    return ": ".join(filter(None, (blocked, ", and ".join(member.words for member in conflict))))


def _blocked_operator(network: Network) -> str:
    """The first operator without a tier that all its inputs reach; empty if every operator has one."""
    problem = network.problem
    tiers: dict[str, list[str]] = {source.name: [source.tier] for source in problem.sources}
    demand = network.demand({})
    for operator in problem.operators:
        able = list(dict.fromkeys(network.tier_of[pool] for pool in demand.workers[operator.name]))
        tiers[operator.name] = [
            tier
            for tier in able
            if all(any(problem.may_cross(edge, up, tier) for up in tiers[edge.upstream]) for edge in operator.inputs)
        ]
        if not tiers[operator.name]:
            origins = "; ".join(f"{edge.upstream} in {' or '.join(tiers[edge.upstream])}" for edge in operator.inputs)
            return (
                f"operator {operator.name} can only run in tier {' or '.join(able)}, where its inputs cannot flow "
                f"({origins}), as data goes up the tiers over declared links"
            )
    return ""


def _missing(problem: Problem) -> Sequence[Ends]:
    """Pairs of tiers that no link connects and one may, those of nearest tiers first."""
    pairs = itertools.combinations(problem.tiers, 2)
    missing = [pair for pair in pairs if pair not in problem.link_by_tiers]
    return sorted(missing, key=lambda pair: problem.tier_index[pair[1]] - problem.tier_index[pair[0]])


def _linked(problem: Problem, pairs: Collection[Ends]) -> Problem:
    return replace(problem, links=(*problem.links, *(Link(*pair) for pair in pairs)))


def _flows(problem: Problem) -> bool:
    network = Network(problem)
    return can_flow(network, network.demand({}))


def _needed(items: Sequence[Item], holds: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Items for which `holds` is true and none of which can be left out (deletion filter, last items first)."""
    kept = list(items)
    for item in reversed(items):
        fewer = [other for other in kept if other != item]
        if holds(fewer):
            kept = fewer
    return kept
