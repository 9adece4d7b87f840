"""The cheapest plan that keeps a p99 latency: deadlines without queues, tightened until the queues fit in as well.

What a plan's queues add (`latency.py`) is no linear function of it. But no plan is faster than without queues, so the
joint program under the whole deadline (`latency_rows.py`) bounds the cost of every plan that keeps it. Plans come from the
same program under shorter deadlines and lower loads; the cheapest whose p99 fits is the answer, and the gap to that bound
is stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jellybean_solver.demand import Network
from jellybean_solver.joint import Proposal
from jellybean_solver.large import accurate
from jellybean_solver.latency import Latency, latency
from jellybean_solver.latency_rows import modes, visits_per_request
from jellybean_solver.plan import Plan
from jellybean_solver.problem import Problem, Variant
from jellybean_solver.selection import RELATIVE, Clock

LOADS = (1.0, 0.85, 0.7, 0.5, 0.3)  # shares of the cap on utilisation that are tried
ROUNDS = 5  # deadlines per load
CLOSE = 0.03  # relative; a deadline nearer to one that is too long is not tried

Solve = Callable[[Problem, Proposal], Plan | None]


@dataclass(frozen=True, slots=True)
class Timely:
    """The cheapest plan found whose p99 fits, and what no such plan costs less than (inf: there is none).

    `fastest`: the least p99 of the plans that were looked at, whether it fits or not.
    """

    plan: Plan | None
    bound: float
    fastest_s: float = math.inf
    late: bool = False  # time ended before everything was tried


def cheapest_timely(
    problem: Problem, deadline_s: float, *, gap: float, clock: Clock, solve: Solve, first: Plan | None
) -> Timely:
    """Search as above. `first`: the cheapest plan without the deadline.

    `solve` is given a restricted problem and the proposal that it was restricted by, and returns its cheapest plan.
    """
    return _Search(problem, deadline_s, gap, clock, solve).run(first)


class _Search:
    def __init__(self, problem: Problem, deadline_s: float, gap: float, clock: Clock, solve: Solve) -> None:
        self.problem, self.deadline_s, self.gap, self.clock, self.solve = problem, deadline_s, gap, clock, solve
        self.best: Plan | None = None
        self.fastest_s = math.inf
        self.bound = 0.0

    def run(self, first: Plan | None) -> Timely:
        if first is not None and self._look(first).meets(self.deadline_s):
            return Timely(first, first.certificate.bound, self.fastest_s)
        floor = first.certificate.bound if first is not None else 0.0
        for number, (load, deadline_s) in enumerate(self._tries()):
            if self.clock.left() == 0.0:
                return Timely(self.best, max(self.bound, floor), self.fastest_s, late=True)
            proposal = self._proposal(load, deadline_s)
            if number == 0:
                self.bound = proposal.bound
                if math.isinf(proposal.bound):
                    return Timely(None, math.inf, self.fastest_s)
            self._tell(proposal, load, deadline_s)
            if self._proven(floor):
                break
        return Timely(self.best, max(self.bound, floor), self.fastest_s)

    def _proven(self, floor: float) -> bool:
        value = self.best.cost.total_usd_per_h if self.best is not None else math.inf
        return value - max(self.bound, floor) <= self.gap * value

    def _tries(self) -> Iterator[tuple[float, float]]:
        """(share of the cap on utilisation, deadline): what was told last decides what is tried next."""
        for load in LOADS:
            longest, shortest, deadline_s = math.inf, 0.0, self.deadline_s
            for _ in range(ROUNDS):
                self.told: Latency | None = None
                self.dear = False
                yield load, deadline_s
                if self.dear:  # shorter ones are no cheaper
                    if deadline_s == self.deadline_s:
                        return
                    shortest = deadline_s
                elif self.told is None:
                    shortest = deadline_s
                elif self.told.meets(self.deadline_s):
                    shortest = deadline_s
                    if deadline_s == self.deadline_s:
                        return  # lower loads are no cheaper
                else:
                    longest = deadline_s
                if math.isinf(longest):
                    break
                guess = longest * min(0.9, max(0.4, self.deadline_s / self.told.p99_s)) if self.told else longest
                deadline_s = guess if shortest < guess < longest else (shortest + longest) / 2.0
                if longest - deadline_s < CLOSE * longest:
                    break

    def _proposal(self, load: float, deadline_s: float) -> Proposal:
        problem = replace(self.problem, utilisation=load * self.problem.utilisation)
        budget = self.best.cost.total_usd_per_h * (1 - RELATIVE) if self.best is not None else math.inf
        return accurate(
            Network(problem), self.problem.slo.accuracy, None, budget, self.gap, self.clock, deadline_s=deadline_s
        )

    def _tell(self, proposal: Proposal, load: float, deadline_s: float) -> None:
        value = self.best.cost.total_usd_per_h if self.best is not None else math.inf
        if proposal.selection is None or proposal.bound >= value:
            self.dear = self.best is not None
            return
        plan = self.solve(restricted(self.problem, proposal, load), proposal)
        if plan is None:
            return
        self.told = self._look(plan)
        if self.told.meets(self.deadline_s) and plan.cost.total_usd_per_h < value:
            self.best = plan

    def _look(self, plan: Plan) -> Latency:
        found = latency(plan)
        self.fastest_s = min(self.fastest_s, max(found.p99_s, found.unqueued_s))
        return found


def restricted(problem: Problem, proposal: Proposal, load: float) -> Problem:
    """The problem with nothing slower than the proposal uses, operator by operator, and in the tiers that it uses."""
    network = Network(problem)
    visits = visits_per_request(problem)
    selection = proposal.selection or {}
    operators = []
    for operator in problem.operators:
        name = operator.name
        tiers = {network.tier_of[pool] for own, pool in proposal.pairs if own == name}
        own_modes = modes(network, name, selection[name], visits[name])
        slowest = max(m.job_s for m in own_modes if proposal.batches.get((name, m.pool)) == m.batch)

        def kept(variant: Variant) -> Variant:
            sizes: dict[str, int] = {}
            if variant.name in network.runnable[name]:
                for mode in modes(network, name, variant.name, visits[name]):
                    if mode.job_s <= slowest * (1 + RELATIVE) and network.tier_of[mode.pool] in tiers:
                        sizes[mode.pool] = max(mode.batch, sizes.get(mode.pool, 0))
            service = {
                pool: {size: time for size, time in variant.service[pool].items() if size <= most}
                for pool, most in sizes.items()
            }
            return replace(variant, service=service)

        operators.append(replace(operator, variants=tuple(kept(variant) for variant in operator.variants)))
    return replace(problem, operators=tuple(operators), utilisation=load * problem.utilisation)
