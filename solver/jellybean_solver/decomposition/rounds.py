"""Rounds of prices: all workflows are solved at some prices, and the relaxed master gives the next ones.

Prices are smoothed between the master's and those of the best bound so far (Wentges 1997), as the master's jump. How
much, follows from whether the bound still rises towards the master's (Pessoa, Sadykov, Uchoa and Vanderbeck 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from jellybean_solver.decomposition.count_cuts import CountCuts
from jellybean_solver.decomposition.local_plan import LocalPlan, slope
from jellybean_solver.decomposition.local_program import Answer, LocalProgram
from jellybean_solver.decomposition.master import Master, MasterPoint
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.settings import DecompositionSettings
from jellybean_solver.decomposition.split import Split
from jellybean_solver.decomposition.work import Work
from jellybean_solver.figures import usd_text
from jellybean_solver.outcome import Clock, relative_gap

AT_ONCE = 50  # workflows that are solved between two looks at the clock


@dataclass(frozen=True)
class Effort:
    """What is asked of a search: a relative `gap`, within a time. `work`: hears how far it is."""

    split: Split
    gap: float
    clock: Clock
    settings: DecompositionSettings
    work: Work

    @property
    def local_gap(self) -> float:
        """The relative gap of exact programs."""
        return self.gap * self.settings.local_gap


class Rounds:
    """Rounds of prices for some of the workflows, each of which stands for `weight`. `programs`: those that are kept.

    `bound`: the best lower bound, reached at the prices `center`. `hoped`: at most what the bound would be at the last
    prices if every workflow's own were exact. `floor`: the relaxed master's last value. `likely`: numbers of common
    workers at which a plan of the bound's cost may be.
    """

    def __init__(
        self,
        effort: Effort,
        pool: Executor,
        numbers: Sequence[int],
        weight: float,
        programs: Mapping[int, LocalProgram],
    ) -> None:
        self.effort, self.split = effort, effort.split
        self.numbers, self.weight = tuple(numbers), weight
        self.master = Master(effort.split, self.numbers, weight)
        self._cuts = CountCuts(effort.split)
        self._pool, self._programs = pool, programs
        self.bound, self.hoped, self.floor = -math.inf, -math.inf, math.inf
        self.impossible: list[int] = []
        self._planned = set[int]()  # workflows that were solved
        self.center = Prices.listed(effort.split)
        self.likely: list[int] = []
        self.next_prices = self.center
        self._counts: Sequence[int] | None = None  # of the last improvement
        self._dearest, self._smoothing = effort.settings.dearest, effort.settings.smoothing
        self._out: Prices | None = None  # the master's last prices
        self._best = -math.inf  # bound at `center`

    @property
    def priced(self) -> int:
        """Number of local plans found."""
        return len(self.master.plans)

    def run(self, prices: Prices, most: int) -> None:
        """At most so many rounds, from these prices on; fewer if they gain little."""
        settings, clock = self.effort.settings, self.effort.clock
        near, little = settings.near * self.effort.gap, settings.progress * self.effort.gap
        idle = 0
        for _ in range(most):
            before = self.floor, self.bound
            if not self._priced(prices, self.numbers):
                return
            point = self.master.relaxed(self._highest(self._dearest))
            self.floor = point.value
            self.effort.work.known(f"bound {usd_text(self.bound)} USD/h")
            self.next_prices = self._next(point)
            is_near = point.is_within and relative_gap(point.value, max(self.hoped, 0.0)) <= near
            gained = (before[0] - self.floor) + (self.bound - before[1]) > little * self.floor
            idle = 0 if gained or not point.is_within else idle + 1
            if is_near or idle == 2 or clock.left() == 0.0:
                return
            prices = self.next_prices

    def improve(self, counts: Sequence[int] | None, numbers: Sequence[int]) -> None:
        """Add the plans of these workflows near the prices of the relaxed master.

        `counts`: of common workers, if fixed. If they are those of the last time, prices are the master's: some plan
        is still cheaper there, or the bound at these numbers is reached.
        """
        settings = self.effort.settings
        point = self.master.relaxed(self._highest(settings.dearest_whole), counts)
        center = self.center if counts is None else self._cuts.tightest(counts)
        again = counts is not None and counts == self._counts
        self._counts = counts
        self._priced(center.between(point.prices, 0.0 if again else settings.smoothing), numbers)

    def _highest(self, factor: float) -> Prices:
        return Prices.highest(self.split, factor, max(self.bound, 0.0))

    def _next(self, point: MasterPoint) -> Prices:
        """Prices between those of the best bound and the master's; the limit rises where the master breaks capacity."""
        settings = self.effort.settings
        if not point.is_within:
            self._dearest *= settings.dearer
        self._out = point.prices
        return self.center.between(point.prices, self._smoothing)

    def _adapt(self, prices: Prices, plans: Sequence[LocalPlan], center: Prices) -> None:
        """Go further towards the master's prices if the bound still rises there, else less far (Pessoa et al. 2018)."""
        if self._out is None:
            return
        over = slope(self.split, plans, prices, self.weight)
        ahead = sum(
            float(own @ (out - old)) for own, out, old in zip(over.parts, self._out.parts, center.parts, strict=True)
        )
        settings = self.effort.settings
        if ahead > 0:
            self._smoothing = max(settings.boldest, self._smoothing - settings.bolder)
        else:
            self._smoothing += settings.warier * (1.0 - self._smoothing)

    def shares(self) -> list[tuple[int, ...]]:
        """The workflows in shares, each of enough of them to make common workers whole."""
        count = max(1, len(self.numbers) // self.effort.settings.share)
        return [self.numbers[start::count] for start in range(count)]

    def _program(self, number: int) -> LocalProgram:
        """A known one; the others are built for each solve, as thousands would not fit into memory."""
        return self._programs.get(number) or LocalProgram(self.split, number, self.effort.local_gap)

    def _priced(self, prices: Prices, numbers: Sequence[int]) -> bool:
        """Add the plans of these workflows; False if one has none at all.

        If time ends, those that are left are not solved, and there is no new bound; but each is solved once, as without
        a plan of every workflow there is none.
        """
        answers: list[tuple[int, Answer]] = []
        for start in range(0, len(numbers), AT_ONCE):
            group = numbers[start : start + AT_ONCE]
            if self.effort.clock.left() == 0.0 and self._planned.issuperset(group):
                continue
            solved = self._pool.map(lambda number: self._program(number).solve(prices), group)
            answers += zip(group, solved, strict=True)
            self._planned.update(group)
            self.effort.work.add(len(group))
        worths = self.split.worths
        must = np.isinf(worths)
        self.impossible = sorted(number for number, answer in answers if answer.plan is None and must[number])
        if self.impossible:
            return False
        plans = [answer.plan for _, answer in answers if answer.plan is not None]
        if len(answers) == len(self.numbers):
            value = self.weight * sum(min(answer.bound, prices.worth * worths[number]) for number, answer in answers)
            paid = [plan for plan in plans if plan.cost_at(prices) <= prices.worth * worths[plan.part]]
            self._adapt(prices, paid, self.center)
            left = {number for number, _ in answers} - {plan.part for plan in paid}
            cost = sum(plan.cost_at(prices) for plan in paid) + prices.worth * float(worths[list(left)].sum())
            self.hoped = prices.bound(self.split, self.weight * cost)
            if (bound := prices.bound(self.split, value)) > self._best:
                self._best, self.center = bound, prices
            self._cuts.add(prices, value)
            bound, self.likely = self._cuts.bound()
            self.bound = max(self.bound, bound)
        dearest = max((plan.cost_at(prices) for plan in plans), default=0.0)
        self.master.add(plans, self.effort.settings.dear * dearest)
        return True
