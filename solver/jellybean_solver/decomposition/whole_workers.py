"""From fractions of plans to one plan per workflow, and to whole common workers.

The numbers of common workers are fixed, and some workflows are solved again at the prices at which the relaxed master
meets these numbers; the integer master then chooses among all plans. As the cost of other numbers near its optimum is
flat, whole workers cost little. Where workflows are few, all are solved again, so that the bound rises, too; and the
relaxed master's mixture of plans is also made whole by one program of all workflows (union.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jellybean_solver.decomposition.assembly import Packing
from jellybean_solver.decomposition.local_plan import LocalPlan
from jellybean_solver.decomposition.local_program import LocalProgram
from jellybean_solver.decomposition.rounds import Effort, Rounds
from jellybean_solver.decomposition.union import planned_together
from jellybean_solver.figures import usd_text
from jellybean_solver.fleet.incumbent import is_accurate_enough
from jellybean_solver.milp.highs_program import Floats, SolveLimits
from jellybean_solver.outcome import relative_gap


class WholeWorkers:
    """The search. `best`: cost, a plan per workflow that is served, and their packing onto common workers.

    The cost includes what the workflows are worth that are left out. `best` is None without plans. `programs`: those of
    all workflows that have a plan, if they are few.
    """

    def __init__(self, effort: Effort, rounds: Rounds, programs: Mapping[int, LocalProgram] | None) -> None:
        self.effort, self.rounds, self._programs = effort, rounds, programs
        self.best: tuple[float, list[LocalPlan], Packing] | None = None
        self._reserve = np.zeros(len(effort.split.shared))
        self._before = math.inf, -math.inf
        self._idle = self._idle_costs = 0  # choices in a row that gained little, or little of the cost
        self._over = math.inf  # what the best plans cost beyond the budget

    def run(self) -> None:
        """Choose plans, and improve them, until the gap is closed, time is up or little is gained."""
        settings, rounds = self.effort.settings, self.rounds
        few = self._programs is not None
        shares = itertools.cycle([rounds.numbers] if few else rounds.shares())
        for attempt in range(settings.few_packings if few else settings.packings):
            is_late = self.best is not None and self.effort.clock.left() == 0.0
            if self._programs is not None and not is_late and (attempt == 0 or self.best is None):
                self.together(dict(zip(rounds.master.parts, rounds.master.mixture(), strict=True)))
            self._choose()
            value = math.inf if self.best is None else self.best[0]
            self._say()
            if self._is_done(value):
                break
            is_stuck = self._idle_costs > 0
            rounds.improve(rounds.likely if attempt % 2 == 0 or is_stuck else self._used(), next(shares))

    def _is_done(self, value: float) -> bool:
        settings, bound = self.effort.settings, self.rounds.bound
        little = settings.progress * self.effort.gap * value
        gains = self._before[0] - value > little or bound - self._before[1] > little
        self._idle = 0 if gains else self._idle + 1
        self._idle_costs = 0 if self._before[0] - value > little else self._idle_costs + 1
        self._before = value, bound
        if self._idle > settings.patience:
            return True
        return self.is_near or self.effort.clock.left() == 0.0

    @property
    def is_near(self) -> bool:
        """True if the gap is closed."""
        return self.best is not None and relative_gap(self.best[0], max(self.rounds.bound, 0.0)) <= self.effort.gap

    def _choose(self) -> None:
        """The integer master's plans, if they fit onto the workers; if not, it keeps more in reserve from now on."""
        gap = self.effort.gap * self.effort.settings.local_gap
        plans = self.rounds.master.chosen(SolveLimits(gap, self._most_s()), self._reserve)
        if plans is not None:
            self._pack(plans)

    def _pack(self, plans: list[LocalPlan]) -> None:
        packing = Packing(self.effort.split, plans)
        if packing.short:
            self._reserve += [packing.short.get(pool.name, 0) for pool in self.effort.split.shared]
            return
        paid = self._paid(plans, packing)
        split, served = self.effort.split, {plan.part for plan in plans}
        forgone = sum(split.worths[part] for part in self.rounds.master.parts if part not in served)
        over, cost = max(0.0, paid - split.budget), paid + float(forgone)
        if over > 0.0:  # from now on the workers are paid for that their loads do not fill
            self._reserve = np.maximum(self._reserve, self._unfilled(plans, packing))
        if self.best is None or (over, cost) < (self._over, self.best[0]):
            self._over, self.best = over, (cost, plans, packing)

    def together(self, variants: Mapping[int, Collection[tuple[str, str]]] | None) -> float:
        """Find plans that fit together; returns the bound on the cost of all that may be chosen.

        `variants`: per workflow that has a plan its (operator, variant) pairs; None: all of each.
        """
        if self._programs is None:
            raise AssertionError("only few workflows are planned together")
        programs = list(self._programs.values())
        chosen = [None if variants is None else variants[program.number] for program in programs]
        limits = SolveLimits(self.effort.gap * self.effort.settings.near, self._most_s())
        plans, bound = planned_together(self.effort.split, programs, chosen, limits)
        if plans is None:
            return bound
        parts = self.effort.split.parts
        accurate = [
            plan
            for plan in plans
            if is_accurate_enough(parts[plan.part], parts[plan.part].accuracy_target, plan.selection)
        ]  # rows of accuracy overestimate some models
        self.rounds.master.add(accurate, 0.0)
        if len(accurate) == len(plans):
            self._pack(plans)
        self._say()
        return bound

    def _say(self) -> None:
        cost = "no plan yet" if self.best is None else f"{usd_text(self.best[0])} USD/h"
        self.effort.work.known(f"{cost}, bound {usd_text(self.rounds.bound)}")

    def _used(self) -> list[int] | None:
        if self.best is None:
            return None
        packing = self.best[2]
        return [packing.used.get(pool.name, 0) for pool in self.effort.split.shared]

    def _most_s(self) -> float:
        left = self.effort.clock.left()
        settings = self.effort.settings
        if left is None:
            return settings.integer_s
        least_s = settings.first_plan_s if self.best is None else 0.0
        return min(max(left, least_s), settings.integer_s)

    def _unfilled(self, plans: Sequence[LocalPlan], packing: Packing) -> Floats:
        """Workers of each common shared pool beyond those that the time of their loads takes."""
        used = np.array([float(packing.used.get(pool.name, 0)) for pool in self.effort.split.shared])
        for plan in plans:
            used[plan.time.index] -= plan.time.amount
        unfilled: Floats = np.maximum(used, 0.0)
        return unfilled

    def _paid(self, plans: Sequence[LocalPlan], packing: Packing) -> float:
        price = self.effort.split.problem.unit_usd_per_h
        paid = sum(price(pool) * packing.used.get(pool.name, 0) for pool in self.effort.split.shared)
        return paid + sum(plan.usd_per_h for plan in plans)
