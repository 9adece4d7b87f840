"""The best mixture of selections on a network: a relaxation of how models share workers, then the exact program.

Workers of a shared pool may hold different sets of models. With one count for all of them the program is a
relaxation; if its solution fits on alike workers, with whole streams, it is exact. Else the exact program is solved
for the instances that the relaxation uses, and the relaxation's bound stands; if that leaves a gap, for all instances
where they are few. Where loads from a running plan are priced, the exact program has all sets of models of a pool, not
only the largest ones; a pool with too many has a lower bound of the loads in their place.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.memory import Memory, PoolMemory
from jellybean_solver.demand.model_sets import all_model_sets, largest_model_sets
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.milp.highs_program import SolveLimits
from jellybean_solver.mixture.modes import NO_LIMITS, Modes
from jellybean_solver.mixture.program import HeldByPool, MixProgram
from jellybean_solver.mixture.seats import Goal, HeldSets, Lost, Mixture
from jellybean_solver.mixture.ways import Instance, WayTable
from jellybean_solver.model.problem import Sharing, Terms
from jellybean_solver.model.targets import LossKind
from jellybean_solver.outcome import Clock

MOST_INSTANCES = 14  # of a pool: the sets of so many that a worker can hold are at most some thousand
FEW_WAYS = 50  # of whole streams: on 108 ways the program of all instances takes minutes to save at most 0.5 %


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
    running: RunningPlan | None = None,
    assignment: AssignmentSettings = DEFAULT_ASSIGNMENT,
) -> MixOutcome:
    """The best mixture of ways. `cutoff`: of what the goal minimises; `modes`: limits of batches and utilisations.

    With a `running` plan the cost includes that of the models that its workers must load; `assignment` says up to how
    many sets of models are matched.
    """
    if not table.ways:
        return MixOutcome(None, math.inf)
    search = _Search(table.network, goal, modes, gap, clock, cutoff, running, assignment.matching_sets)
    relaxed = search.run(table, None)
    found, bound = relaxed.mixture, relaxed.bound
    if found is None or search.is_exact(table, found):
        return relaxed
    used = {one for seats in found.all_seats for one in seats.served}
    exact = search.run(table.using(used), search.sets(used)).mixture
    is_closed = exact is not None and exact.value - bound <= gap * max(abs(exact.value), abs(bound))
    if not is_closed and _are_few(table, exact):
        everything = {instance for instance, _ in table.busy}
        outcome = search.run(table, search.sets(everything))
        both = [one for one in (exact, outcome.mixture) if one is not None]
        exact, bound = min(both, key=lambda one: one.value, default=None), max(bound, outcome.bound)
    return MixOutcome(None if exact is None else replace(exact, bound=bound), bound)


@dataclass(frozen=True, slots=True)
class _Search:
    """Runs of the program with one goal. `cutoff`: of what it minimises. `running`: what loads are priced from.

    `matching_sets`: most sets of instances of a pool whose loads are priced.
    """

    network: Network
    goal: Goal
    modes: Modes
    gap: float
    clock: Clock
    cutoff: float
    running: RunningPlan | None
    matching_sets: int

    def run(self, table: WayTable, held: HeldByPool | None) -> MixOutcome:
        """The best mixture, with a flow after each loss that can happen to it.

        Workers that a solution does not have cannot be lost, so their losses are added where a solution has them. Each
        program leaves out losses, and with them rows, so each one's bound holds for all.
        """
        losses, bound = [*self._lost_places(table)], -math.inf
        while self.clock.left() != 0.0:
            try:
                program = MixProgram(table, self.goal, held, self.modes, losses, self.running, self.clock)
            except OutOfTimeError:
                break
            found = program.solve(SolveLimits(self.gap, self.clock.left(), self.cutoff))
            if not program.is_restricted:
                bound = max(bound, math.inf if program.proven else program.bound)
            lost = () if found is None else self._lost_workers(found)
            more = [one for one in lost if one not in program.after]
            if not more:
                return MixOutcome(None if found is None else program.with_most_served(found, self.clock), bound)
            losses += more
        return MixOutcome(None, bound)

    def _lost_places(self, table: WayTable) -> Iterator[Lost]:
        """The losses of tiers without sources and of links, where a way takes them."""
        sources = {source.tier for source in table.network.problem.sources}
        tiers = {tier for way in table.ways for tier in way.tiers} - sources
        links = {pair for way in table.ways for pair in way.sent}
        for kind in self.goal.survives:
            if kind is LossKind.SITE:
                yield from (Lost(kind, (tier,)) for tier in table.network.problem.tiers if tier in tiers)
            elif kind is LossKind.LINK:
                yield from (Lost(kind, pair) for pair in sorted(links))

    def _lost_workers(self, found: Mixture) -> Iterator[Lost]:
        """The losses of one of the workers that hold the same instances, for all that a mixture has."""
        every = LossKind.WORKER in self.goal.survives
        if every or LossKind.SPOT_WORKER in self.goal.survives:
            for pool, held in found.groups:
                if every or self.network.problem.pool_by_name[pool].terms is Terms.SPOT:
                    yield Lost(LossKind.WORKER, (pool,), held)

    def is_exact(self, table: WayTable, found: Mixture) -> bool:
        """True if the workers of every pool can hold all that it serves, with whole streams, and loading it is free."""
        served: dict[str, set[Instance]] = {}
        for seats in found.all_seats:
            served.setdefault(seats.pool, set()).update(seats.served)

        def is_exact(pool: str, instances: set[Instance]) -> bool:
            if any(table.has_streams_of_unlike_rates(name) for name, _ in instances):
                return False
            if self.network.problem.pool_by_name[pool].sharing is Sharing.EXCLUSIVE:
                return True
            if len(instances) > 1 and any(name in table.streams for name, _ in instances):
                return False
            sets = _sets_of(self.network, pool, tuple(sorted(instances)))
            return len(sets.sets) <= 1 and not self._has_paid_loads(pool, instances)

        return all(is_exact(pool, instances) for pool, instances in served.items())

    def sets(self, used: set[Instance]) -> HeldByPool:
        """The sets of instances that workers of shared pools may hold.

        All of them where loading has a price, unless they are too many; else the largest.
        """
        found: dict[str, HeldSets] = {}
        workers = {one: self.network.demand(dict([one])).workers[one[0]] for one in sorted(used)}
        for pool in (pool for pool in self.network.pools if pool.sharing is Sharing.SHARED):
            runs = tuple(one for one, by_pool in workers.items() if pool.name in by_pool)
            most = self.matching_sets if self._has_paid_loads(pool.name, runs) else None
            found[pool.name] = _sets_of(self.network, pool.name, runs, most)
        return found

    def _has_paid_loads(self, pool: str, instances: Iterable[Instance]) -> bool:
        """True if loading any of the instances in a pool has a price."""
        running = self.running
        return running is not None and any(running.load_usd_per_h(*one, pool) > 0 for one in instances)


def _are_few(table: WayTable, known: Mixture | None) -> bool:
    """True if all sets of instances that a worker of any pool can hold are few enough to list.

    Whole streams on many ways are searched with all instances only where no mixture is `known`.
    """
    if known is not None and table.streams and len(table.ways) > FEW_WAYS:
        return False
    by_pool = Counter(pool for _, pool in table.busy)
    return max(by_pool.values(), default=0) <= MOST_INSTANCES


def _sets_of(network: Network, pool: str, instances: tuple[Instance, ...], most: int | None = None) -> HeldSets:
    """The largest sets of instances that one worker of a pool can hold; of an operator at most one variant.

    `most`: all sets instead, unless they are more than that.
    """
    by_name: Mapping[str, Instance] = {"\0".join(one): one for one in instances}
    needs: dict[str, Memory] = {
        key: network.demand({name: variant}).memory[name][pool] for key, (name, variant) in by_name.items()
    }
    apart = {
        frozenset((one, other))
        for one, other in itertools.combinations(by_name, 2)
        if by_name[one][0] == by_name[other][0] or frozenset((by_name[one][0], by_name[other][0])) in network.apart
    }
    memory = PoolMemory(needs, network.memory_limits[pool])
    every = None if most is None else all_model_sets(memory, most, apart)
    sets = largest_model_sets(memory, apart).sets if every is None else every
    return HeldSets(tuple(tuple(by_name[key] for key in one) for one in sets), every is not None)
