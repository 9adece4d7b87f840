"""The best mixture under a p99 target: a descent over the batch sizes and utilisations of the operators.

From the best plan of all, each step takes the change of one operator (a smaller batch, or less busy workers) that loses
least value per p99 latency gained, until plans are in time; then it takes back what is not needed. A coarse simulation
tells the p99 latency of every step, corrected by what the judge said of the last plan that it saw; the judge decides.
Once a plan is in time, steps are finer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from jellybean_solver.deadline.search import Deadline
from jellybean_solver.latency.estimate import latency
from jellybean_solver.mixture.modes import NO_LIMITS, Modes
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock
from jellybean_solver.simulation.group_simulation import GroupSimulation

Propose = Callable[[Modes], Plan | None]
EQUAL = 1e-9  # values closer than this are equal


@dataclass(frozen=True, slots=True)
class _Step:
    """A plan within modes; `slowness`: p99 latency as a multiple of the target, by the coarse simulation.

    `slow`: operators that take a considerable part of a request's time.
    """

    modes: Modes
    plan: Plan
    value: float
    slowness: float
    slow: frozenset[str]


class ModeSearch:
    """One search. `in_time`: the best plan that meets the target; `least_slowness`: of all plans judged."""

    def __init__(
        self, problem: Problem, propose: Propose, value: Callable[[Plan], float], deadline: Deadline, clock: Clock
    ) -> None:
        self.problem, self.propose, self.value, self.deadline, self.clock = problem, propose, value, deadline, clock
        self.settings = deadline.settings.mix
        self.in_time: Plan | None = None
        self.least_slowness = math.inf
        self.correction = 1.0
        self.level_step = self.settings.level_step
        self.steps: dict[Hashable, _Step | None] = {}

    def run(self, first: Plan) -> ModeSearch:
        """Search from the best plan without a p99 target on."""
        step = self._step(NO_LIMITS, first)
        if step is None or (step.slowness <= self.settings.judged_below and self._judged(step) <= 1.0):
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
            lower = [*self._lower(step)]
            better = [one for one in (*self._changed(step, down=True), *lower) if one.slowness < step.slowness]
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
        ups = [one for one in self._changed(step, down=False) if self._gains(one, step)]
        return [one for up in ups for one in (up, *self._changed(up, down=True)) if self._gains(one, step)]

    def _gains(self, one: _Step, step: _Step) -> bool:
        return one.value < step.value - EQUAL * max(1.0, abs(step.value))

    def _is_in_time(self, step: _Step) -> bool:
        return step.slowness * self.correction <= self.settings.aim

    def _is_over(self) -> bool:
        return self.clock.left() == 0.0 or len(self.steps) >= self.settings.proposals

    def _changed(self, step: _Step, *, down: bool) -> Iterator[_Step]:
        """The steps that differ by one change of one operator."""
        for name in (name for name in self.problem.operator_by_name if not down or name in step.slow):
            for modes in (*self._other_batches(step, name, down), *self._other_levels(step, name, down)):
                if not self._is_over():
                    found = self._step(modes)
                    if found is not None:
                        yield found

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

    def _lower(self, step: _Step) -> Iterator[_Step]:
        """All operators less busy at once, by one step and by several: it may cost nothing where workers are spare."""
        for factor in (self.level_step, self.level_step**self.settings.several):
            modes = step.modes
            for name in self.problem.operator_by_name:
                modes = modes.with_level(name, modes.levels.get(name, 1.0) * factor)
            if min(modes.levels.values()) >= self.settings.least_level and not self._is_over():
                found = self._step(modes)
                if found is not None:
                    yield found

    def _step(self, modes: Modes, plan: Plan | None = None) -> _Step | None:
        """The step of some modes; None if no plan is within them."""
        key = tuple(sorted(modes.batches.items())), tuple(sorted(modes.levels.items()))
        if key not in self.steps:
            self.deadline.advance(len(self.steps), self.settings.proposals)
            plan = self.propose(modes) if plan is None else plan
            self.steps[key] = None if plan is None else self._simulated(modes, plan)
        return self.steps[key]

    def _simulated(self, modes: Modes, plan: Plan) -> _Step:
        value = self.value(plan)
        if plan.sites or any(operator.batch_delay_s for operator in plan.operators):
            estimated_s = latency(plan).slowest_s
            return _Step(modes, plan, value, estimated_s / self.deadline.p99_s, frozenset(plan.operator_by_name))
        simulation = GroupSimulation(plan)
        slowness = simulation.p99_s() / self.deadline.p99_s
        least_s = self.settings.slow_part * max(simulation.spent_s.values(), default=0.0)
        slow = frozenset(name for name, spent_s in simulation.spent_s.items() if spent_s >= least_s)
        return _Step(modes, plan, value, slowness, slow)

    def _judged(self, step: _Step) -> float:
        """The slowness that decides; corrects those of the next steps."""
        judge = self.deadline.judge
        judged = step.slowness if judge is None else judge(step.plan)
        if step.slowness > 0:
            self.correction = judged / step.slowness
        self.least_slowness = min(self.least_slowness, judged)
        if judged <= 1.0 and (self.in_time is None or self.value(step.plan) < self.value(self.in_time)):
            self.in_time = step.plan
        return judged
