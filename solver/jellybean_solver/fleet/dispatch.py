"""Chooses the search for problems with too many selections or (operator, pool) pairs to enumerate.

Without a running plan the fleet search (search.py) solves them. With one, the exact MILP proposes a selection and its
pools (proposal.py), and that selection is then assigned exactly over these pools. Either way the lower bound holds for
the whole problem, and the outcome states the gap to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from jellybean_solver.demand.demand import Network, restricted
from jellybean_solver.demand.memory import stated_memories, without_memory_limits
from jellybean_solver.fleet.proposal import Proposal, propose
from jellybean_solver.fleet.search import FleetSearch
from jellybean_solver.fleet.settings import DEFAULT_SETTINGS, SearchLimits
from jellybean_solver.fleet.worker_classes import worker_classes
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock, Outcome, termination_of
from jellybean_solver.small.assignment import Assignment, assign

MOST_SELECTIONS = 5_000
MOST_PAIRS = 400  # (operator, pool) pairs up to which a selection is assigned without worker classes
DEFAULT_GAP = 1e-3  # relative gap for large fleets; smaller problems are solved exactly
ANY = 0.5  # relative gap of a solve that only asks whether there is a plan
MANY_TIMES = 1_000  # factor on the number of workers, to test whether too few workers make a problem infeasible


def is_large(network: Network, fixed: Mapping[str, str] | None = None) -> bool:
    """True if there are too many selections or (operator, pool) pairs to enumerate. `fixed`: operator -> variant."""
    selections = math.prod(len(variants) for name, variants in network.runnable.items() if name not in (fixed or {}))
    return selections > MOST_SELECTIONS or has_many_places(network)


def has_many_places(network: Network) -> bool:
    """True if there are too many (operator, pool) pairs to treat each pool by itself."""
    return len(network.names) * len(network.pools) > MOST_PAIRS


def default_gap(network: Network) -> float:
    """The relative gap if the user sets none: 0 up to the middle size (settings.py), `DEFAULT_GAP` beyond."""
    if not is_large(network):
        return 0.0
    choices = [(name, variant) for name in network.names for variant in network.runnable[name]]
    classes = worker_classes(network, choices, [network.demand(dict([choice])) for choice in choices])
    return 0.0 if int(classes.runs.sum()) <= DEFAULT_SETTINGS.middle_size else DEFAULT_GAP


def cheapest_large(
    network: Network,
    target: float | None,
    *,
    fixed: Mapping[str, str] | None,
    gap: float,
    clock: Clock,
    budget: float = math.inf,
    running: RunningPlan | None = None,
) -> Outcome[Assignment]:
    """Search for the cheapest plan to a relative `gap`, within a budget in USD per hour.

    `target`: accuracy in percent; `fixed`: operator -> variant, where given. With a `running` plan the cost includes
    the migration from it.
    """
    if running is None:
        return FleetSearch(network, target, fixed or {}, SearchLimits(gap, clock, budget)).run()
    proposal = propose(network, target, SearchLimits(gap, clock, budget), fixed=fixed, running=running)
    if proposal.selection is None:
        ended = termination_of(math.inf, proposal.bound, out_of_time=True)
        return Outcome(math.inf, None, None, proposal.bound, 0, ended)
    found = _assigned(network, proposal, budget, gap / 10.0, clock, running)
    value = found.cost if found is not None else math.inf
    bound = min(proposal.bound, value)
    ended = termination_of(value, bound, gap=gap, out_of_time=clock.left() == 0.0)
    return Outcome(value, found, proposal.selection, bound, 1, ended)


def _assigned(
    network: Network, proposal: Proposal, budget: float, gap: float, clock: Clock, running: RunningPlan | None
) -> Assignment | None:
    """The cheapest assignment of the proposed selection to the (operator, pool) pairs that the proposal uses.

    If its models do not fit there, more pools are allowed: first all that are in use, then all. None if none fits.
    """
    selection = proposal.selection or {}
    demand = network.demand(selection)
    moves = running.moves(selection) if running is not None else None
    used = {pool for _, pool in proposal.pairs}
    wider = {(name, pool) for name in network.names for pool in used}
    every = {(name, pool.name) for name in network.names for pool in network.pools}
    for pairs in (proposal.pairs, wider, every):
        left = clock.left()
        limit_s = None if left is None else left + 1.0
        attempt = assign(network, restricted(demand, pairs), gap=gap, time_limit_s=limit_s, moves=moves, budget=budget)
        if attempt.assignment is not None:
            return attempt.assignment
    return None


def reasons_large(problem: Problem, clock: Clock) -> Iterator[str]:
    """One sentence on an infeasible problem: which single requirement, if dropped, lets a quick search find a plan."""
    roomy = replace(problem, links=tuple(replace(link, bandwidth_bytes_per_s=None) for link in problem.links))
    many = replace(problem, pools=tuple(replace(pool, count=MANY_TIMES * pool.count) for pool in problem.pools))
    target = problem.accuracy_target
    changes = [
        ("with unlimited bandwidth on the links", roomy, target),
        (f"with {MANY_TIMES:,} times as many workers", many, target),
    ]
    if any(tuple(stated_memories(pool)) for pool in problem.pools):
        changes.append(("with enough memory on every worker", without_memory_limits(problem), target))
    if target is not None:
        changes.insert(0, (f"without the accuracy target of {target:g}", problem, None))
    alone = []
    for name, changed, asked in changes:
        found = cheapest_large(Network(changed), asked, fixed=None, gap=ANY, clock=clock)
        if found.found is not None:
            alone.append(name)
    wanted = "" if target is None else f"the accuracy target of {target:g}, "
    told = f"no plan meets {wanted}the rates, the links' bandwidths, the workers' memory and their numbers together"
    ways = (
        f"a plan was found {', or '.join(alone)}, all else unchanged"
        if alone
        else "giving up one of them was not found to be enough"
    )
    yield f"{told}; {ways}"
