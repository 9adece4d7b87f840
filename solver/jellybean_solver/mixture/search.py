"""The best mixture of selections on a network: a relaxation of how models share workers, then the exact program.

Workers of a shared pool may hold different sets of models. With one count for all of them the program is a relaxation;
if its solution fits on alike workers it is exact. Else the exact program is solved for the instances that the
relaxation uses, and the relaxation's bound stands; if these do not fit at all, for all instances where they are few.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.memory import Memory, PoolMemory
from jellybean_solver.demand.model_sets import largest_model_sets
from jellybean_solver.milp.highs_program import SolveLimits
from jellybean_solver.mixture.modes import NO_LIMITS, Modes
from jellybean_solver.mixture.program import Goal, Held, HeldByPool, MixProgram, Mixture
from jellybean_solver.mixture.ways import Instance, WayTable
from jellybean_solver.model.problem import Sharing
from jellybean_solver.outcome import Clock

MOST_INSTANCES = 14  # of a pool: the sets of so many that a worker can hold are at most some thousand


@dataclass(frozen=True, slots=True)
class MixOutcome:
    """`mixture`: the best found, or None. `bound`: on what the goal minimises; inf if infeasibility is proven."""

    mixture: Mixture | None
    bound: float


def best_mixture(
    table: WayTable,
    goal: Goal,
    *,
    gap: float,
    clock: Clock,
    cutoff: float = math.inf,
    modes: Modes = NO_LIMITS,
) -> MixOutcome:
    """The best mixture of ways. `cutoff`: of what the goal minimises; `modes`: limits of batches and utilisations."""
    if not table.ways:
        return MixOutcome(None, math.inf)
    network, relaxed = table.network, MixProgram(table, goal, None, modes)
    found = relaxed.solve(SolveLimits(gap, clock.left(), cutoff))
    bound = relaxed.bound
    if found is None or _is_exact(network, found):
        return MixOutcome(found, bound)
    used = {instance for seats in found.seats for instance in seats.served}
    exact = MixProgram(table.using(used), goal, _sets(network, used), modes).solve(
        SolveLimits(gap, clock.left(), cutoff)
    )
    if exact is not None or not _are_few(table):
        return MixOutcome(None if exact is None else replace(exact, bound=bound), bound)
    everything = {instance for instance, _ in table.busy}
    program = MixProgram(table, goal, _sets(network, everything), modes)
    exact = program.solve(SolveLimits(gap, clock.left(), cutoff))
    bound = math.inf if program.proven else bound
    return MixOutcome(None if exact is None else replace(exact, bound=bound), bound)


def _are_few(table: WayTable) -> bool:
    """True if all sets of instances that a worker of any pool can hold are few enough to list."""
    by_pool = Counter(pool for _, pool in table.busy)
    return max(by_pool.values(), default=0) <= MOST_INSTANCES


def _is_exact(network: Network, found: Mixture) -> bool:
    """True if the workers of every shared pool can hold all that the pool serves."""
    for seats in found.seats:
        pool = network.problem.pool_by_name[seats.pool]
        if pool.sharing is Sharing.SHARED and len(_sets_of(network, seats.pool, tuple(seats.served))) > 1:
            return False
    return True


def _sets(network: Network, used: set[Instance]) -> HeldByPool:
    found: dict[str, tuple[Held, ...]] = {}
    for pool in network.pools:
        if pool.sharing is Sharing.SHARED:
            runs = tuple(one for one in sorted(used) if pool.name in network.demand(dict([one])).workers[one[0]])
            found[pool.name] = _sets_of(network, pool.name, runs)
    return found


def _sets_of(network: Network, pool: str, instances: tuple[Instance, ...]) -> tuple[Held, ...]:
    """The largest sets of instances that one worker of a pool can hold; of an operator at most one variant."""
    by_name: Mapping[str, Instance] = {"\0".join(one): one for one in instances}
    needs: dict[str, Memory] = {
        key: network.demand({name: variant}).memory_of(name, pool) for key, (name, variant) in by_name.items()
    }
    apart = {
        frozenset((one, other))
        for one, other in itertools.combinations(by_name, 2)
        if by_name[one][0] == by_name[other][0] or frozenset((by_name[one][0], by_name[other][0])) in network.apart
    }
    sets = largest_model_sets(PoolMemory(needs, network.memory_limits[pool]), apart).sets
    return tuple(tuple(by_name[key] for key in one) for one in sets)
