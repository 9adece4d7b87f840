"""The largest share of the rates that fits, and what limits it.

A limit is named if more fits without it: memory, whole workers per operator, the budget, links, the utilisation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from jellybean_solver.demand.demand import Network, Tiers
from jellybean_solver.figures import plain_text, rate_text, usd_text
from jellybean_solver.fleet.rate_scale import largest_rate_scale
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.model.problem import Problem, Sharing
from jellybean_solver.outcome import Clock, Selection
from jellybean_solver.planning.memory_shortage import shortage_in_pool
from jellybean_solver.planning.requirements import RequirementKind, drop, requirements, scaled

SHAVE = 1e-6  # relative: the reported rate scale is this much below its supremum, so that it is feasible as printed
CROWDED = 1e-3  # feasible rate scales below this are solved with lower rates: the program drops small fractions
RAISED = 1e-4  # relative: a limit without which the rates rise by less is not named
FULL = 0.999  # a pool or link with a higher utilisation is called full
MOST_NAMED = 4  # if all pools are full, more of them are summarised by their number


@dataclass(frozen=True, slots=True)
class RatesThatFit:
    """The largest share (`scale`, at most 1) of all rates that fits, with the load then; 0 if nothing fits.

    `selection`: None if none can be placed. `busy`: pool -> busy workers; `carried`: limited link -> share of its
    bandwidth. `is_known`: False if time ended before the share was proven.
    """

    scale: float
    selection: Selection | None
    busy: Mapping[str, float]
    carried: Mapping[Tiers, float]
    is_known: bool


def rates_that_fit(problem: Problem, clock: Clock) -> RatesThatFit:
    """The largest share of the rates that fits at the accuracy target, within the budget."""
    most = _most_that_fits(Network(problem))
    base = 1.0 if most > CROWDED else most
    found = _fitting(problem, base, clock)
    is_tiny = found.selection is not None and found.is_known and not found.scale
    return _fitting(problem, base * SHAVE, clock) if is_tiny else found


def _fitting(problem: Problem, base: float, clock: Clock) -> RatesThatFit:
    """The same up to the share `base`; 0 if it is within the tolerance of 0, relative to `base`."""
    budget = problem.slo.budget_usd_per_h
    limits = SearchLimits(0.0, clock, math.inf if budget is None else budget)
    network = Network(problem if base == 1.0 else scaled(problem, base))
    outcome = largest_rate_scale(network, problem.accuracy_target, limits)
    found = outcome.found
    if found is None:
        return RatesThatFit(0.0, None, {}, {}, outcome.is_conclusive)
    scale = base * found.scale if found.scale > SHAVE else 0.0
    return RatesThatFit(scale, outcome.selection, found.busy, found.carried, outcome.is_conclusive)


def _most_that_fits(network: Network) -> float:
    """Upper bound (at most 1) on the feasible factor on all rates: each operator alone on the whole fleet."""
    demand = network.demand({})
    count = {pool.name: pool.count for pool in network.pools}
    return min(
        1.0,
        *(
            sum(count[pool] / busy if busy > 0 else math.inf for pool, busy in demand.workers[name].items())
            for name in network.names
        ),
    )


def selection_text(problem: Problem, selection: Selection) -> str:
    """The variants of the operators that have several."""
    several = [o.name for o in problem.operators if len(o.variants) > 1 and o.name in selection]
    return ", ".join(f"{name} {selection[name]}" for name in several or selection)


def _share_text(scale: float) -> str:
    """A share of the rates as text: `all of the rates`, `0.5 of the rates`."""
    return "all of the rates" if scale > 1 - RAISED else f"{scale:.4g} of the rates"


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit without which more fits. `scale`: the share of the rates that fits then; `words` say so, with figures."""

    name: str
    scale: float
    words: str


class Capacity:
    """Why a fleet does not serve all of the rates."""

    def __init__(self, problem: Problem, clock: Clock) -> None:
        self.problem, self.clock, self.network = problem, clock, Network(problem)
        self.budget = problem.slo.budget_usd_per_h

    @cached_property
    def most(self) -> RatesThatFit:
        """What fits of the rates."""
        return rates_that_fit(self.problem, self.clock)

    def reasons(self) -> Iterator[str]:
        """Sentences on what binds."""
        most, target = self.most, self.problem.accuracy_target
        if not most.is_known:
            yield "no plan exists; what binds was not found in time"
            return
        if most.selection is None or (not most.scale and not self._can_be_placed()):
            reached = "the accuracies asked for" if self.problem.workflows else f"accuracy {target or 0.0:g}"
            asked = "" if target is None else f" that reaches {reached}"
            yield f"no selection of variants{asked} can be placed so that data flows up the tiers over declared links"
            return
        limits = list(self._limits())
        full = [link for link, share in most.carried.items() if share > FULL] if most.scale else []
        if full and self._without(RequirementKind.BANDWIDTH) is None:
            full = []
        words = self._fits_at_most(most.selection, full) if most.scale else "no plan fits, however low the rates are"
        if not limits and not most.scale and self.clock.left() != 0.0:
            within = "" if self.budget is None else f" within the budget of {usd_text(self.budget)} USD/h"
            words += f": too few workers for {len(most.selection)} operators{within}"
        sole = next((limit for limit in limits if not most.scale or limit.scale > 1 - RAISED), None)
        yield f"capacity: {words}" if sole is None else f"{sole.name}: {words}; {sole.words}"
        yield from (f"{limit.name}: {limit.words}" for limit in limits if limit is not sole)
        yield from self._at_limit(most.selection, full)

    def _without(self, *kinds: RequirementKind) -> RatesThatFit | None:
        """What fits without all requirements of some kinds, if that is more."""
        changed = self._dropped(*kinds)
        return None if changed is self.problem else self._if_more(changed)

    def _dropped(self, *kinds: RequirementKind) -> Problem:
        """The problem without all requirements of some kinds."""
        return drop(self.problem, *(one for one in requirements(self.problem) if one.kind in kinds))

    def _if_more(self, changed: Problem) -> RatesThatFit | None:
        """What fits of a changed problem's rates, if that is known to be more than of the problem's."""
        found = rates_that_fit(changed, self.clock)
        return found if found.is_known and found.scale > self.most.scale * (1 + RAISED) else None

    def _limits(self) -> Iterator[_Limit]:
        """Limits other than workers, links and utilisation, without each of which alone more fits."""
        if (more := self._without(RequirementKind.MEMORY, RequirementKind.DEVICE_MEMORY)) is not None:
            short = (shortage_in_pool(self.problem, pool, more.selection or {}) for pool in self.network.pools)
            needs = "; ".join(filter(None, short))
            yield _Limit("memory", more.scale, f"with enough memory {_share_text(more.scale)} would fit: {needs}")
        if (more := self._without(RequirementKind.SHARING)) is not None:
            exclusive = ", ".join(pool.name for pool in self.network.pools if pool.sharing is Sharing.EXCLUSIVE)
            changed = f"if exclusive pools ({exclusive}), which give each operator whole workers, were shared"
            yield _Limit("sharing", more.scale, f"{_share_text(more.scale)} would fit {changed}")
        if self.budget is not None and (more := self._without(RequirementKind.BUDGET)) is not None:
            above = f"without the budget of {usd_text(self.budget)} USD/h"
            yield _Limit("budget", more.scale, f"{above} {_share_text(more.scale)} would fit")

    def _can_be_placed(self) -> bool:
        """True if some selection can be placed at low rates when every pool has one worker per operator."""
        count = len(self.problem.operators)
        pools = tuple(replace(pool, count=max(pool.count, count)) for pool in self.network.pools)
        roomy = replace(self._dropped(RequirementKind.BANDWIDTH, RequirementKind.BUDGET), pools=pools)
        return rates_that_fit(roomy, self.clock).scale > 0.0

    def _fits_at_most(self, selection: Selection, full: Collection[Tiers]) -> str:
        """The share of the rates that fits, with the utilisation if it binds, and the links in `full`."""
        problem, scale = self.problem, self.most.scale
        rates = ", ".join(
            f"{s.name} {plain_text(scale * s.rate_per_s, 4)} of {rate_text(s.rate_per_s)}{problem.in_each(s.tier)}"
            for s in problem.sources
            if not problem.is_of_audit(s.name)
        )
        words = f"at most {plain_text(scale, 4)} of the rates fits ({rates}), with {selection_text(problem, selection)}"
        if self._if_more(replace(problem, utilisation=2.0 * problem.utilisation)) is not None:
            margin = problem.margin
            words += f", at a utilisation of at most {problem.utilisation * margin.work:g}"
            words += f" with {margin.text}" if margin.text else ""
        if full:
            links, verb = ("link", "is") if len(full) == 1 else ("links", "are")
            words += f"; {links} {', '.join(map(self._link_text, full))} {verb} full"
        return words

    def _at_limit(self, selection: Selection, named: Collection[Tiers]) -> Iterator[str]:
        """Pools, operators and links (but for those `named` before) at their limit at the largest feasible rates."""
        problem, busy, pools = self.problem, self.most.busy, self.network.pools
        full = [pool for pool in pools if busy[pool.name] > FULL * pool.count]
        if len(full) == len(pools) > MOST_NAMED:
            workers = sum(pool.count * problem.sites_of(pool.tier) for pool in full)
            yield f"full pools: all {len(full)}, with {workers} workers"
            return
        if full:
            in_ = {pool.tier: problem.in_each(pool.tier) or f" in {pool.tier}" for pool in full}
            yield "full pools: " + ", ".join(f"{pool.name} ({pool.count}{in_[pool.tier]})" for pool in full)
        names = {pool.name for pool in full}
        demand = self.network.demand(selection)
        short = [name for name, workers in demand.workers.items() if set(workers) <= names]
        tiers_of = {name: problem.operator_by_name[name].tiers for name in short}
        if others := [name for name, tiers in tiers_of.items() if tiers is None]:
            yield f"run short: {', '.join(others)} (can run in no other pool)"
        for name, tiers in tiers_of.items():
            if tiers is not None:
                able = ", ".join(sorted(demand.workers[name]))
                yield f"run short: {name} (may run in {', '.join(tiers)} only: {able})"
        for link, share in self.most.carried.items():
            if share > FULL and link not in named:
                yield f"full link: {self._link_text(link)}"

    def _link_text(self, tiers: Tiers) -> str:
        """A link with its bandwidth: `edge -> cloud (4 Mbit/s)`."""
        sites = self.problem.sites_of(tiers[0])
        each = "" if sites == 1 else f" from each of {sites:,} sites"
        bandwidth = self.network.bandwidth[tiers] / sites
        return f"{tiers[0]} -> {tiers[1]} ({plain_text(bandwidth * 8e-6, 4)} Mbit/s{each})"
