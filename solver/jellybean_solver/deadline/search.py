"""The cheapest plan that meets a p99 latency target: propose, estimate, judge, restrict.

The first proposal is the cheapest plan of all. A plan that misses its target is late because of its slowest path: a
variant on a pool, a link between two tiers, two operators of a request that wait for each other on one worker, a queue.
At least one of them must change, so the search branches (slowest_path.py): each child forbids one of them, or leaves a
margin of capacity where requests wait, and the cheapest plan under that restriction is the next proposal. Fleets have
too many such places to forbid them one by one: their first child instead lowers the limit on the delay of all requests
(fleet_proposals.py). A margin is halved if it led to a plan in time, or if no plan leaves it free. A restriction never
lowers the cost of the cheapest plan, so nodes are pruned by the incumbent's cost.

The estimate (latency/estimate.py) orders the tree and selects the plans to simulate. If there is a judge (a
simulation), its result decides whether a plan meets the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

from jellybean_solver.deadline.restriction import Restriction
from jellybean_solver.deadline.settings import DEFAULT_SETTINGS, DeadlineSettings
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.margin import stressed
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.stated_figures import with_figures
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock

LATER = 1_000  # added to the rank of a node whose margin was halved since no plan left it free: siblings come first

# Simulated p99 latency as a multiple of its target; with several workflows, the largest multiple.
Judge = Callable[[Plan], float]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A p99 latency target in seconds. Without a `judge`, the estimate decides whether a plan meets the target.

    `below`: USD per hour from which on a plan is of no use, whatever its latency; it may fall while plans are judged.
    """

    p99_s: float
    judge: Judge | None = None
    settings: DeadlineSettings = DEFAULT_SETTINGS
    # Called before each proposal: proposals made, and at most to be made in all, which the first plan in time changes.
    advance: Callable[[float, float], None] = lambda done, most: None
    below: Callable[[], float] = lambda: math.inf


class Proposals(Protocol):
    """Makes plans under restrictions."""

    def propose(self, restriction: Restriction, budget: float) -> Plan | None:
        """The cheapest plan found under a restriction and a budget in USD per hour; None if there is none.

        The plan has the restricted problem's figures: `with_figures` converts it.
        """

    def branch(self, plan: Plan, slowness: float, restriction: Restriction) -> Iterable[Restriction]:
        """Further restrictions, best first, each of which rules out `plan`, which was proposed under `restriction`.

        `slowness`: the plan's p99 latency as a multiple of the target.
        """


@dataclass(frozen=True, slots=True)
class DeadlineOutcome:
    """`plan`: the cheapest found that meets the target, or None. `fastest`: the plan of least p99 latency.

    `slowness`: p99 latency of `fastest` as a multiple of the target. `out_of_time`: the time limit ended the search.
    """

    plan: Plan | None
    fastest: Plan
    slowness: float
    out_of_time: bool


@dataclass(frozen=True, slots=True)
class _Node:
    """A restriction to be tried, derived from a parent plan.

    `cost` (USD per hour), `slowness`: of the parent. `looser`: the restriction under which the parent was proposed.
    `rank`: among the restrictions derived from the same parent, best first.
    """

    cost: float
    slowness: float
    rank: int
    restriction: Restriction
    looser: Restriction


class DeadlineSearch:
    """One search from the cheapest plan `first` on. `is_near`: True for a cost in USD per hour that ends the search."""

    def __init__(
        self,
        problem: Problem,
        deadline: Deadline,
        first: Plan,
        clock: Clock,
        is_near: Callable[[float], bool],
    ) -> None:
        self.problem, self.deadline, self.clock, self.is_near = problem, deadline, clock, is_near
        self.first = self.fastest = first
        self.incumbent: Plan | None = None
        self.least_saving = 0.0 if deadline.judge is None else deadline.settings.least_saving
        self.open: list[_Node] = []
        self.visited: set[Restriction] = set()
        self.tried = 0
        self.branched: set[Hashable] = set()
        self.judged: dict[Hashable, float] = {}
        self.first_slowness = self.least_slowness = self._slowness(first)
        self.offer(first, self.first_slowness)

    def run(self, proposals: Proposals, *, most: int, improvements: int) -> DeadlineOutcome:
        """Propose at most `most` plans until one is in time, then at most `improvements` cheaper ones.

        A restriction without a plan counts as a fraction of a proposal.
        """
        if self.first_slowness > 1.0:
            self._branch(proposals, self.first, self.first_slowness, Restriction(), 0.0)
        made, left = 0.0, float(most)
        while self.open and left > 0 and self.clock.left() != 0.0 and not self._is_done():
            node = min(self.open, key=self._priority)
            self.open.remove(node)
            self.deadline.advance(made, made + left)
            if node.cost >= self.cutoff() * (1.0 - self.least_saving):
                continue
            had_plan = self.incumbent is not None
            effort = 1.0 if self._try(proposals, node) else 1.0 / self.deadline.settings.empty_proposals
            made, left = made + effort, left - effort
            left = left if had_plan or self.incumbent is None else improvements
        if self.incumbent is None and self.deadline.judge is not None:
            self.least_slowness = self._judged(self.fastest, self.deadline.judge)
        return DeadlineOutcome(self.incumbent, self.fastest, self.least_slowness, self.clock.left() == 0.0)

    def meets(self, plan: Plan) -> bool:
        """True if the judge finds the plan in time, or without a judge the estimate. It may become the incumbent."""
        judge = self.deadline.judge
        slowness = self._slowness(plan) if judge is None else self._judged(plan, judge)
        self.offer(plan, slowness)
        return slowness <= 1.0

    def cutoff(self) -> float:
        """USD per hour that a plan must stay below to become the incumbent."""
        own = math.inf if self.incumbent is None else self.incumbent.cost.total_usd_per_h * (1.0 - VALUE_TOLERANCE)
        return min(own, self.deadline.below())

    def _try(self, proposals: Proposals, node: _Node) -> bool:
        """Propose a plan under the node's restriction and add its child nodes. False if there is no such plan."""
        self.tried += 1
        proposed = proposals.propose(node.restriction, self.cutoff())
        if proposed is None:
            self._halve_margin(node, node.slowness, node.rank + LATER)
            return False
        plan = with_figures(self.problem, proposed)
        slowness = self._slowness(plan)
        self.offer(plan, slowness)
        if slowness <= 1.0:
            self._halve_margin(node, 1.0, 0)
        else:
            self._branch(proposals, plan, slowness, node.restriction, node.cost)
        return True

    def _branch(self, proposals: Proposals, plan: Plan, slowness: float, restriction: Restriction, cost: float) -> None:
        key = _fingerprint(plan)
        if key in self.branched:  # the plan was branched under other restrictions: its children would propose the same
            return
        self.branched.add(key)
        cost = max(cost, plan.cost.total_usd_per_h)
        for rank, child in enumerate(proposals.branch(plan, slowness, restriction)):
            self._add(_Node(cost, slowness, rank, child, restriction))

    def _halve_margin(self, node: _Node, slowness: float, rank: int) -> None:
        between = node.restriction.halfway(node.looser, self.deadline.settings)
        if between is not None:
            self._add(_Node(node.cost, slowness, rank, between, node.looser))

    def _add(self, node: _Node) -> None:
        if node.restriction not in self.visited:
            self.visited.add(node.restriction)
            self.open.append(node)

    def _priority(self, node: _Node) -> tuple[float, float]:
        """Sort key of open nodes: the lowest is tried next.

        With an incumbent, the likely cost of a plan in time, interpolated between the first plan and the incumbent.
        Without one, slowness and slowness x cost alternately.
        """
        if self.incumbent is None or not 1.0 < self.first_slowness < math.inf:
            return node.slowness * (node.cost if self.tried % 2 else 1.0), node.rank
        paid = self.incumbent.cost.total_usd_per_h - self.first.cost.total_usd_per_h
        return node.cost + paid * (node.slowness - 1.0) / (self.first_slowness - 1.0), node.rank

    def _slowness(self, plan: Plan) -> float:
        """p99 latency as a multiple of the target: simulated if the plan may become the incumbent, else estimated."""
        estimate = latency(stressed(plan))
        slowness = estimate.slowest_s / self.deadline.p99_s
        if estimate.meets(self.deadline.p99_s):
            slowness = min(1.0, slowness)
        if self.deadline.judge is None or plan.cost.total_usd_per_h >= self.cutoff():
            return slowness
        settings = self.deadline.settings
        most = settings.judged_above if len(self.judged) < settings.simulations else 1.0
        return self._judged(plan, self.deadline.judge) if slowness <= most else slowness

    def _judged(self, plan: Plan, judge: Judge) -> float:
        key = _fingerprint(plan)
        if key not in self.judged:
            self.judged[key] = judge(plan)
        return self.judged[key]

    def offer(self, plan: Plan, slowness: float) -> None:
        """Record a plan: as incumbent if it is in time and cheaper, as `fastest` if it has the least slowness."""
        if slowness < self.least_slowness:
            self.fastest, self.least_slowness = plan, slowness
        if slowness <= 1.0 and plan.cost.total_usd_per_h < self.cutoff():
            self.incumbent = plan

    def _is_done(self) -> bool:
        return self.incumbent is not None and self.is_near(self.incumbent.cost.total_usd_per_h)


def _fingerprint(plan: Plan) -> Hashable:
    """A key that is equal for plans with equal variants, batches and rates per worker and operator."""
    workers = ((w.name, *((name, round(rate, 6)) for name, rate in w.rates_per_s.items())) for w in plan.workers)
    batches = ((one.variant, *one.batch.items()) for one in plan.variants)
    variants = ((worker.name, *worker.variants.items()) for worker in plan.workers if worker.variants)
    return tuple(batches), tuple(workers), tuple(variants)
