"""The best mixture under a p99 target: a descent over the batch sizes and utilisations of the operators.

From the best plan of all, each step takes the change of one operator (a smaller batch, or less busy workers) that loses
least value per p99 latency gained, until plans are in time; then it takes back what is not needed. A coarse simulation
tells the p99 latency of every step, corrected by what the judge said of the last plan that it saw; the judge decides.
Once a plan is in time, steps are finer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jellybean_solver.deadline.search import Deadline
from jellybean_solver.latency.estimate import latency
from jellybean_solver.milp.interruptible_run import solver_threads
from jellybean_solver.mixture.modes import NO_LIMITS, Modes
from jellybean_solver.model.margin import stressed
from jellybean_solver.model.multi_workflow import on_scale_of
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock
from jellybean_solver.simulation.group_simulation import GroupSimulation

Propose = Callable[[Modes, float], Plan | None]  # arguments: modes, and the value that the plan must be below
EQUAL = 1e-9  # values closer than this are equal


@dataclass(frozen=True, slots=True)
class _Coarse:
    """What the coarse simulation of a plan says. `slowness`: its p99 latency as a multiple of the target.

    `slow`: operators that take a considerable part of a request's time.
    """

    slowness: float
    slow: frozenset[str]


@dataclass(frozen=True)
class _Step:
    """A plan within modes. It is simulated once its latency is asked for: many steps are told apart by their value."""

    modes: Modes
    plan: Plan
    value: float
    simulate: Callable[[Plan], _Coarse]

    @cached_property
    def coarse(self) -> _Coarse:
        """What its coarse simulation says."""
        return self.simulate(self.plan)

    @property
    def slowness(self) -> float:
        """Its p99 latency as a multiple of the target, by the coarse simulation."""
        return self.coarse.slowness


def estimated_slowness(problem: Problem, plan: Plan, deadline: Deadline) -> float:
    """The plan's p99 latency by the closed form as a multiple of the target."""
    return on_scale_of(problem, plan, latency(plan).slowest_s) / deadline.p99_s


class ModeSearch:
    """One search. `in_time`: the best plan that meets the target."""

    def __init__(
        self, problem: Problem, propose: Propose, value: Callable[[Plan], float], deadline: Deadline, clock: Clock
    ) -> None:
        self.problem, self.propose, self.value, self.deadline, self.clock = problem, propose, value, deadline, clock
        self.settings = deadline.settings.mix
        self.in_time: Plan | None = None
        self.correction, self.proposed = 1.0, 0
        self.level_step = self.settings.level_step
        self.steps: dict[Modes, _Step | None] = {}
        self.worse_than: dict[Modes, float] = {}  # modes of which no plan is below this value

    def run(self, first: Plan) -> ModeSearch:
        """Search from the best plan without a p99 target on."""
        step = _Step(NO_LIMITS, first, self.value(first), self._coarse)
        self.steps[NO_LIMITS] = step
        if step.slowness <= self.settings.judged_below and self._judged(step) <= 1.0:
            return self
        judged = math.inf
        for _ in range(self.settings.judgements):
            found = self._descend(step) if judged > 1.0 else step
            if found is None:
                break
            before, step = step, self._improve(found)
            if judged <= 1.0 and step is before:
                break
            judged = self._judged(step)
            if judged <= 1.0:
                self.level_step = self.settings.finer_step
        if judged <= 1.0:
            self._refine(step)
        elif self.in_time is None:
            self._judge_fastest()
        return self

    def _judge_fastest(self) -> None:
        """Let the judge see the fastest plan, even if time ended: it then knows the nearest target of a plan."""
        known = [step for step in self.steps.values() if step is not None]
        if known:
            self._judged(min(known, key=lambda step: step.slowness))

    def _refine(self, step: _Step) -> None:
        """Better plans that the coarse simulation puts near the target, on either side: the judge sees the best first.

        Its figures scatter by several percent, so that among the plans that it rejects some are in time. After one that
        is late, only faster ones are seen, and once there are none, those of half the step.
        """
        slowest, finest = self.settings.near / self.correction, math.sqrt(self.level_step)
        for _ in range(self.settings.refinements):
            near = [one for one in self._better(step) if one.slowness < slowest]
            if not near and self.level_step < finest:
                self.level_step = finest
                near = [one for one in self._better(step) if one.slowness < slowest]
            if not near or self._is_over():
                return
            one = min(near, key=lambda one: one.value)
            if self._judged(one) <= 1.0:
                step = one
            else:
                slowest = one.slowness

    def _descend(self, step: _Step) -> _Step | None:
        """The first step that is in time, by the cheapest changes; None if there is none, or time ends."""
        while step.slowness * self.correction > self.settings.aim:
            if self._is_over():
                return None
            lower = self._found([*self._lower(step)])
            down = self._found([*self._changed(step, down=True)])
            better = [one for one in (*down, *lower) if one.slowness < step.slowness]
            if not better and not lower:
                return None
            step = min(better, key=lambda one: self._price(step, one)) if better else lower[-1]
        return step

    def _price(self, step: _Step, one: _Step) -> tuple[float, float]:
        """Value lost per slowness that is still in the way; then the slowness."""
        in_time = self.settings.aim / self.correction
        return (one.value - step.value) / (step.slowness - max(one.slowness, in_time)), one.slowness

    def _improve(self, step: _Step) -> _Step:
        """The step after taking back changes that are not needed: one operator up, and another down for it."""
        while not self._is_over():
            better = [one for one in self._better(step) if self._is_in_time(one)]
            if not better:
                return step
            step = min(better, key=lambda one: one.value)
        return step

    def _better(self, step: _Step) -> list[_Step]:
        """The steps of a better value: one operator up, alone or with another down."""
        below = step.value - EQUAL * max(1.0, abs(step.value))
        ups = self._found([*self._changed(step, down=False)], below)
        downs = [modes for up in ups for modes in self._changed(up, down=True)]
        return [*ups, *self._found(downs, below)]

    def _is_in_time(self, step: _Step) -> bool:
        return step.slowness * self.correction <= self.settings.aim

    def _is_over(self) -> bool:
        return self.clock.left() == 0.0 or self.proposed >= self.settings.proposals

    def _changed(self, step: _Step, *, down: bool) -> Iterator[Modes]:
        """The modes that differ by one change of one operator."""
        for name in (name for name in step.plan.operator_by_name if not down or name in step.coarse.slow):
            yield from self._other_batches(step, name, down)
            yield from self._other_levels(step, name, down)

    def _other_batches(self, step: _Step, name: str, down: bool) -> Iterator[Modes]:
        """The next larger batch size of an operator, or the next two smaller ones."""
        sizes = self._sizes(name)
        used = max(size for one in step.plan.operator_by_name[name].variants for size in one.batch.values())
        most = min(step.modes.batches.get(name, sizes[-1]), used if down else sizes[-1])
        others = [size for size in sizes if size < most][-2:] if down else [size for size in sizes if size > most][:1]
        return (step.modes.with_batch(name, size) for size in others)

    def _sizes(self, name: str) -> list[int]:
        """The batch sizes that plans may use for an operator, ascending."""
        operator = self.problem.operator_by_name[name]
        times = (self.problem.times(name, variant, pool) for variant in operator.variants for pool in variant.service)
        return sorted({size for one in times for size in one} | {1})

    def _other_levels(self, step: _Step, name: str, down: bool) -> Iterator[Modes]:
        """A step up for an operator's utilisation, or one and several steps down."""
        level = step.modes.levels.get(name, 1.0)
        steps = (self.level_step, self.level_step**self.settings.several) if down else (1.0 / self.level_step,)
        others = (min(1.0, level * one) for one in steps)
        allowed = (other for other in others if other != level and other >= self.settings.least_level)
        return (step.modes.with_level(name, other) for other in allowed)

    def _lower(self, step: _Step) -> Iterator[Modes]:
        """All operators less busy at once, by one step and by several: it may cost nothing where workers are spare."""
        for factor in (self.level_step, self.level_step**self.settings.several):
            modes = step.modes
            for name in step.plan.operator_by_name:
                modes = modes.with_level(name, modes.levels.get(name, 1.0) * factor)
            if min(modes.levels.values()) >= self.settings.least_level:
                yield modes

    def _found(self, candidates: Sequence[Modes], below: float = math.inf) -> list[_Step]:
        """The steps of modes whose plans have a value up to `below`, each planned once, some at the same time."""
        wanted = [modes for modes in dict.fromkeys(candidates) if not self._is_known(modes, below)]
        with solver_threads(self.settings.threads) as pool:  # HiGHS lets other threads run
            for modes, plan in zip(wanted, pool.map(lambda modes: self._plan(modes, below), wanted), strict=True):
                if plan is not None:
                    self.steps[modes] = _Step(modes, plan, self.value(plan), self._coarse)
                elif below < math.inf:
                    self.worse_than[modes] = below
                else:
                    self.steps[modes] = None
        found = (self.steps.get(modes) for modes in dict.fromkeys(candidates))
        return [step for step in found if step is not None and step.value <= below]

    def _plan(self, modes: Modes, below: float) -> Plan | None:
        if self._is_over():
            return None
        self.deadline.advance(self.proposed, self.settings.proposals)
        self.proposed += 1
        return self.propose(modes, below)

    def _is_known(self, modes: Modes, below: float) -> bool:
        return modes in self.steps or below <= self.worse_than.get(modes, -math.inf)

    def _coarse(self, plan: Plan) -> _Coarse:
        if plan.sites or any(operator.batch_delay_s for operator in plan.operators):
            return _Coarse(estimated_slowness(self.problem, plan, self.deadline), frozenset(plan.operator_by_name))
        simulation = GroupSimulation(stressed(plan))
        slowness = on_scale_of(self.problem, plan, simulation.slowest_s()) / self.deadline.p99_s
        least_s = self.settings.slow_part * max(simulation.spent_s.values(), default=0.0)
        slow = frozenset(name for name, spent_s in simulation.spent_s.items() if spent_s >= least_s)
        return _Coarse(slowness, slow)

    def _judged(self, step: _Step) -> float:
        """The slowness that decides; corrects those of the next steps."""
        judge = self.deadline.judge
        judged = step.slowness if judge is None else judge(step.plan)
        if step.slowness > 0:
            self.correction = judged / step.slowness
        if judged <= 1.0 and (self.in_time is None or self.value(step.plan) < self.value(self.in_time)):
            self.in_time = step.plan
        return judged
