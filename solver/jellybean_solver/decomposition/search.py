"""The cheapest plan of many workflows on one fleet, by prices for what they have in common.

Each workflow alone is a small program. At given prices of the common workers and links all of them are solved apart
(pricing.py); the sum of their bounds less what the capacities earn is a lower bound for the whole problem. The relaxed
master (master.py) combines their local plans and gives the next prices. As it has few rows besides one per workflow,
nearly every workflow gets a single local plan there.

Prices are first found on a sample of the workflows, each of which stands for several, and then all are solved once, for
the bound. They are smoothed between the master's and those of the best bound so far (Wentges 1997), as the master's
jump. Then common workers have to become whole: their numbers are fixed, and some workflows are solved again at the
prices at which the relaxed master meets them. As the cost of other numbers near its optimum is flat, that costs little.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from jellybean_solver.decomposition.assembly import Packing, assembled
from jellybean_solver.decomposition.count_cuts import CountCuts
from jellybean_solver.decomposition.local_plan import LocalPlan
from jellybean_solver.decomposition.master import Master
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.pricing import Group, Pricing
from jellybean_solver.decomposition.split import Split
from jellybean_solver.milp.highs_program import SolveLimits
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.outcome import Clock, relative_gap, termination_of


@dataclass(frozen=True, slots=True)
class DecompositionSettings:
    """Effort of the search. Gaps and shares are relative."""

    threads: int = 2
    sample: int = 60  # workflows on which prices are found first
    sample_rounds: int = 12
    rounds: int = 8  # most times that all workflows are solved
    smoothing: float = 0.5  # share of the best bound's prices in the next ones
    near: float = 0.25  # share of the gap: distance of the relaxed master to the bound at which rounds end
    progress: float = 0.1  # share of the gap: rounds that gain less end
    local_gap: float = 0.1  # share of the gap: of the solve of one workflow
    alike_gap: float = 0.4  # share of the gap: of workflows of equal shape
    dearest: float = 10.0  # highest price of a common worker, over what is paid for it
    dear: float = 20.0  # cost of not serving a workflow, over the highest cost of serving one
    packings: int = 8  # most choices of whole common workers
    few: int = 120  # workflows up to which all of them are solved again between choices
    small_packings: int = 40  # most choices then
    patience: int = 5  # choices in a row that gain little
    integer_s: float = 20.0  # seconds: most of one solve of the integer master


DEFAULT_DECOMPOSITION = DecompositionSettings()


@dataclass(frozen=True)
class Decomposed:
    """What the search found. `plan`: None without one; its cost is a placeholder, `cost` has it. `bound`: lower bound.

    `prices`: those of the best bound. `impossible`: numbers of parts that have no plan of their own. `unserved`: about
    how many parts the common workers and links did not suffice for. `priced`: local plans. `late`: time was up.
    """

    plan: Plan | None
    cost: float
    bound: float
    prices: Prices
    priced: int
    impossible: tuple[int, ...] = ()
    unserved: float = 0.0
    late: bool = False


@dataclass
class DecompositionSearch:
    """One search, to a relative `gap`."""

    split: Split
    gap: float
    clock: Clock
    settings: DecompositionSettings = DEFAULT_DECOMPOSITION
    progress: Callable[[str], None] | None = None

    def run(self) -> Decomposed:
        """Find prices, then a plan for every workflow."""
        every = range(len(self.split.parts))
        prices, known = Prices.listed(self.split), list[LocalPlan]()
        with ThreadPoolExecutor(self.settings.threads) as pool:
            if len(every) > 2 * self.settings.sample:
                sample = self._sample()
                rounds = _Rounds(self, pool, sample, len(every) / len(sample))
                rounds.run(prices, self.settings.sample_rounds)
                prices, known = rounds.center, rounds.master.plans
            rounds = _Rounds(self, pool, every, 1.0)
            rounds.master.add(known, 0.0)
            if not rounds.impossible:
                rounds.run(prices, 1 if len(every) > 2 * self.settings.sample else self.settings.rounds)
            if rounds.impossible:
                return Decomposed(None, math.inf, math.inf, prices, rounds.priced, tuple(rounds.impossible))
            return self._whole(rounds)

    def _sample(self) -> list[int]:
        """Workflows evenly spaced among all, ordered by their rate."""
        rates = [sum(source.rate_per_s for source in part.sources) for part in self.split.parts]
        order = np.argsort(rates, kind="stable")
        return [int(order[at]) for at in np.linspace(0, len(order) - 1, self.settings.sample).round().astype(int)]

    def _whole(self, rounds: _Rounds) -> Decomposed:
        """The best packed plan. Between attempts, some workflows are solved at prices that suit whole workers.

        If workflows are few, all are: that raises the bound, too.
        """
        settings = self.settings
        small = len(self.split.parts) <= settings.few
        groups = itertools.cycle([None] if small else rounds.shares())
        reserve = np.zeros(len(self.split.shared))
        best: tuple[float, list[LocalPlan], Packing] | None = None
        idle, before = 0, (math.inf, -math.inf)
        for attempt in range(settings.small_packings if small else settings.packings):
            plans = rounds.master.chosen(SolveLimits(self.gap * settings.local_gap, self._integer_s()), reserve)
            packing = None if plans is None else Packing(self.split, plans)
            if packing is not None and packing.short:
                reserve += [packing.short.get(pool.name, 0) for pool in self.split.shared]
            elif plans is not None and packing is not None:
                cost = self._cost(plans, packing)
                if best is None or cost < best[0]:
                    best = cost, plans, packing
            value = math.inf if best is None else best[0]
            self.tell(f"whole workers {attempt + 1}: {value:.4f}, bound {rounds.bound:.4f}")
            little = settings.progress * self.gap * value
            idle = 0 if before[0] - value > little or rounds.bound - before[1] > little else idle + 1
            before = value, rounds.bound
            is_near = best is not None and relative_gap(value, rounds.bound) <= settings.near * self.gap
            if is_near or idle > settings.patience or (best is not None and self.clock.left() == 0.0):
                break
            used = None if best is None else [best[2].used.get(pool.name, 0) for pool in self.split.shared]
            rounds.improve(rounds.likely if attempt % 2 == 0 else used, next(groups))
        return self._decomposed(rounds, best)

    def _integer_s(self) -> float:
        left = self.clock.left()
        return self.settings.integer_s if left is None else min(left + 1.0, self.settings.integer_s)

    def _decomposed(self, rounds: _Rounds, best: tuple[float, list[LocalPlan], Packing] | None) -> Decomposed:
        bound, late = max(rounds.bound, 0.0), self.clock.left() == 0.0
        if best is None:
            return Decomposed(None, math.inf, bound, rounds.center, rounds.priced, (), rounds.unserved, late)
        cost, plans, packing = best
        bound = min(bound, cost)
        certificate = Certificate.of(cost, bound, termination_of(cost, bound, out_of_time=late, gap=self.gap))
        plan = assembled(self.split, plans, packing, certificate)
        return Decomposed(plan, cost, bound, rounds.center, rounds.priced, late=late)

    def _cost(self, plans: Sequence[LocalPlan], packing: Packing) -> float:
        price = self.split.problem.unit_usd_per_h
        paid = sum(price(pool) * packing.used.get(pool.name, 0) for pool in self.split.shared)
        return paid + sum(plan.usd_per_h for plan in plans)

    def tell(self, text: str) -> None:
        if self.progress is not None:
            self.progress(text)


class _Rounds:
    """Rounds of prices for some of the workflows, each of which stands for `weight`.

    `bound`: the best lower bound, reached at the prices `center`. `hoped`: at most what the bound would be at the last
    prices if every workflow's own were exact. `floor`: the relaxed master's last value. `likely`: numbers of common
    workers at which a plan of the bound's cost may be.
    """

    def __init__(self, search: DecompositionSearch, pool: Executor, numbers: Sequence[int], weight: float) -> None:
        self.search, self.numbers, self.weight = search, tuple(numbers), weight
        settings, gap = search.settings, search.gap
        self.master = Master(search.split, self.numbers, weight)
        self._cuts = CountCuts(search.split)
        self.pricing = Pricing(search.split, self.numbers, pool, gap * settings.alike_gap, gap * settings.local_gap)
        self.bound, self.hoped, self.floor, self.unserved = -math.inf, -math.inf, math.inf, 0.0
        self.impossible: list[int] = []
        self.center = Prices.listed(search.split)
        self.likely: list[int] = []
        self._best = -math.inf  # bound at `center`

    @property
    def priced(self) -> int:
        """Number of local plans found."""
        return len(self.master.plans)

    def run(self, prices: Prices, most: int) -> None:
        """At most so many rounds, from these prices on; fewer if they gain little."""
        settings, clock = self.search.settings, self.search.clock
        near, little = settings.near * self.search.gap, settings.progress * self.search.gap
        idle = 0
        for number in range(most):
            before = self.floor, self.bound
            if not self._priced(prices, None):
                return
            point = self.master.relaxed()
            self.floor, self.unserved = point.value, point.unserved
            self.search.tell(
                f"round {number + 1}: relaxed {point.value:.4f}, hoped {self.hoped:.4f}, bound {self.bound:.4f}, "
                f"unserved {point.unserved:.2f}, prices {prices.time.round(3)}"
            )
            is_near = point.unserved < 1e-6 and relative_gap(point.value, self.hoped) <= near
            gained = (before[0] - self.floor) + (self.bound - before[1]) > little * self.floor
            idle = 0 if gained or point.unserved > 1e-6 else idle + 1
            if is_near or idle == 2 or clock.left() == 0.0:
                return
            prices = self._near(point.prices)

    def improve(self, counts: Sequence[int] | None, groups: Sequence[Group] | None) -> None:
        """Add the plans of these groups, or of all, near the prices of the relaxed master.

        `counts`: of common workers, if fixed.
        """
        point = self.master.relaxed(counts)
        self._priced(self._near(point.prices), groups)

    def _near(self, prices: Prices) -> Prices:
        """Prices between those of the best bound and others, without the extremes of a master that lacks plans."""
        settings = self.search.settings
        return self.center.between(prices.capped(self.search.split, settings.dearest), settings.smoothing)

    def shares(self) -> list[list[Group]]:
        """The groups by one or a few, each of enough workflows to make common workers whole."""
        found: list[list[Group]] = [[]]
        for group in self.pricing.groups:
            if sum(len(own.numbers) for own in found[-1]) >= self.search.settings.sample:
                found.append([])
            found[-1].append(group)
        return found

    def _priced(self, prices: Prices, groups: Sequence[Group] | None) -> bool:
        """Add the plans of these groups, or of all; False if a workflow has none at all."""
        answers = list(self.pricing.solve(prices, groups))
        self.impossible = sorted(number for number, answer in answers if answer.plan is None)
        if self.impossible:
            return False
        plans = [answer.plan for _, answer in answers if answer.plan is not None]
        if groups is None:
            rent = prices.rent(self.search.split)
            value = self.weight * sum(answer.bound for _, answer in answers)
            self.hoped = self.weight * sum(plan.cost_at(prices) for plan in plans) - rent
            if value - rent > self._best:
                self._best, self.center = value - rent, prices
            self._cuts.add(prices, value)
            self.bound, self.likely = self._cuts.bound()
        self.master.add(plans, self.search.settings.dear * max(plan.cost_at(prices) for plan in plans))
        return True
