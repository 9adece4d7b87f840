"""The cheapest plan that keeps a p99 latency: deadlines without queues, then room for the queues.

What a plan's queues add (`latency.py`) is no linear function of it. But no plan is faster than without queues, so the
joint program under the whole deadline (`proposal.py`) bounds the cost of every plan that keeps it. Plans come from
the same program under deadlines that are ever shorter, each with ever more headroom where requests wait, in pools and
on links that are all but full, step by step where a step helps most for its price; before that one selection after the
other is looked at (`by_selection.py`), after it plans without what made others late (`exclusions.py`). On
large problems, where the program is dear, room on links comes first (`link_headroom.py`), then one price of delay
(`fleet_deadline.py`), and where that leads to no plan headroom around the cheapest one, in the worst quarter of the
pools at once. The cheapest whose p99 fits is the answer, and the gap to that bound is stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jellybean_solver.deadline.by_selection import look_at_selections
from jellybean_solver.deadline.capacity_margin import Room, in_own_figures, with_headroom
from jellybean_solver.deadline.exclusions import look_without
from jellybean_solver.deadline.fleet_deadline import PacedSearch, Planned, least_cost_in_time
from jellybean_solver.demand.demand import Crossings, EdgeKey, Network, Tiers
from jellybean_solver.fleet.proposal import Proposal, propose
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.joint.unqueued_times import link_s, modes, visits_per_request
from jellybean_solver.latency.estimate import Latency, latency, mean_waits_by_pool_s
from jellybean_solver.latency.stations import jobs_at_once
from jellybean_solver.model.deadline_shares import deadline_share
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem, Variant
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock, Outcome
from jellybean_solver.small.assignment import Assignment

DEADLINES = (1.0, 0.7, 0.45, 0.25)  # shares of the deadline that a request may take unqueued
STARTS = (1.0, 0.8)  # shares of the cap on utilisation
STEPS = 8  # of headroom from each start
LONGEST, WIDER = 4, 0.85  # large problems: a quarter of the pools at once, to this share of their load
BUSY, WIDER_LINKS = 0.9, 0.9  # a link's load from which on its queue matters, and what is then allowed of it
POOLS = 2  # tried per step: those where requests wait longest
LEAST_SHARE = 0.05  # of the cap on utilisation

Solve = Callable[[Network, Proposal | None], Plan | None]


@dataclass(frozen=True, slots=True)
class Timely:
    """The cheapest plan found whose p99 fits, and what no such plan costs less than (inf: there is none).

    `fastest`: the least p99 of the plans that were looked at, whether it fits or not. `late`: time ended first.
    """

    plan: Plan | None
    bound: float
    fastest_s: float = math.inf
    late: bool = False


def cheapest_timely(
    problem: Problem,
    deadline_s: float,
    *,
    gap: float,
    clock: Clock,
    solve: Solve,
    planned: Planned,
    first: Plan,
    large: bool,
    known: Plan | None = None,
) -> Timely:
    """Search as above. `first`: the cheapest plan without the deadline; `known`: one that keeps it.

    `solve` is given a restricted network and the proposal that it was restricted by, and returns its cheapest plan;
    without a proposal (on large problems) the cheapest one of the first plan's selection. `planned` makes a plan of a
    search's answer.
    """
    search = _Search(problem, deadline_s, gap, clock, solve, planned)
    if known is not None:
        search.look(known)
    return search.run_large(first) if large else search.run(first)


@dataclass(frozen=True, slots=True)
class _Tried:
    plan: Plan
    latency: Latency
    room: Room

    @property
    def cost(self) -> float:
        return self.plan.cost.total_usd_per_h

    @property
    def slowest_s(self) -> float:
        return max(self.latency.p99_s, self.latency.unqueued_s)


class _Search:
    def __init__(
        self, problem: Problem, deadline_s: float, gap: float, clock: Clock, solve: Solve, planned: Planned
    ) -> None:
        self.problem, self.deadline_s, self.gap, self.clock, self.solve = problem, deadline_s, gap, clock, solve
        self.planned = planned
        self.best: _Tried | None = None
        self.fastest_s = math.inf
        self.late = False

    def run(self, first: Plan) -> Timely:
        bound = first.certificate.bound
        if self._looked(first, Room()).latency.meets(self.deadline_s):
            return self._answer(bound)
        look_at_selections(self.problem, self._value, self._looked_at, self.clock)
        seen: list[object] = []
        for number, share in enumerate(DEADLINES):
            proposal = self._proposal(share * self.deadline_s)
            if number == 0:
                bound = max(bound, proposal.bound)
            if proposal.selection is None or proposal.bound >= self._value():
                break  # shorter deadlines are no cheaper
            if self._late() or self._value() - bound <= self.gap * self._value():
                break
            smaller = restricted(self.problem, proposal)
            choices = _choices(smaller, no_further(self.problem, proposal))
            if choices not in seen:  # else it has been all through
                seen.append(choices)
                for start in STARTS:
                    self._make_room(smaller, proposal, start)
        if self.best is None or self.best.cost - bound > self.gap * self.best.cost:
            look_without(self.problem, first, self._value, self._looked_without, self.clock)
        return self._answer(bound)

    def run_large(self, first: Plan) -> Timely:
        """A price of delay for all, and where that leads to no plan headroom around the first plan; where that is not

        near enough around proposals, which are dear to find: under the whole deadline, and under one that leaves its
        share to the queues.
        """
        bound = first.certificate.bound
        if self._looked(first, Room()).latency.meets(self.deadline_s):
            return self._answer(bound)
        bound = max(bound, least_cost_in_time(self.problem, self.deadline_s, first, self.clock))
        if math.isinf(bound):
            return self._answer(bound)
        paced = PacedSearch(self.problem, self.deadline_s, self.gap, self.clock, self.planned)
        paced.run(first, bound)
        self.fastest_s = min(self.fastest_s, paced.fastest_s)
        if paced.best is not None:
            self._looked(paced.best, Room())
            self._late()
            return self._answer(bound)
        self._widen(self._looked(first, Room()), self._again)
        near = self.best is not None and self.best.cost - bound <= self.gap * self.best.cost
        if near or self._late():
            return self._answer(bound)
        proposal = self._proposal(self.deadline_s)
        bound = max(bound, min(proposal.bound, self._value()))
        if proposal.selection is not None:
            tried = self._widened(proposal)
            if tried is not None and not tried.latency.meets(self.deadline_s):
                left = min(1.0, self.deadline_s / tried.slowest_s) * min(self.deadline_s, tried.latency.unqueued_s)
                proposal = self._proposal(left)
                if proposal.selection is not None and not self._late():
                    self._widened(proposal)
        self._late()
        return self._answer(bound)

    def _widened(self, proposal: Proposal) -> _Tried | None:
        """The first plan of a proposal, if there is one; what follows from it is looked at too."""
        smaller = restricted(self.problem, proposal)

        def attempt(room: Room) -> _Tried | None:
            return self._tried(smaller, proposal, room)

        first = attempt(Room())
        self._widen(first, attempt)
        return first

    def _widen(self, now: _Tried | None, attempt: Callable[[Room], _Tried | None]) -> None:
        """Ever more headroom where requests wait longest: links that are all but full, else the worst pools."""
        for _ in range(STEPS):
            if now is None or now.latency.meets(self.deadline_s) or now.cost >= self._value() or self._late():
                break
            links = self._next_links(now)
            if links is not None and math.isinf(now.latency.p99_s):
                now = attempt(Room(now.room.pools, links))
                continue
            waits = mean_waits_by_pool_s(now.plan)
            ranked = sorted(waits, key=lambda pool: (-waits[pool], pool))
            most = ranked[: max(1, len(ranked) // LONGEST)]
            pools = {**now.room.pools, **{pool: WIDER * self._share(now, pool) for pool in most}}
            now = attempt(Room(pools, now.room.links))

    def _again(self, room: Room) -> _Tried | None:
        plan = self.solve(Network(with_headroom(self.problem, room)), None)
        return self._looked(in_own_figures(self.problem, plan), room) if plan is not None else None

    def _next_links(self, now: _Tried) -> float | None:
        """What is next to be allowed on links; None when none is near its cap."""
        busiest = max((use.use for use in link_uses(now.plan) if use.use is not None), default=0.0)
        return WIDER_LINKS * min(now.room.links, busiest) if busiest > BUSY else None

    def _answer(self, bound: float) -> Timely:
        plan = self.best.plan if self.best is not None else None
        return Timely(plan, bound, self.fastest_s, self.late)

    def _value(self) -> float:
        return self.best.cost if self.best is not None else math.inf

    def _late(self) -> bool:
        self.late = self.late or self.clock.left() == 0.0
        return self.late

    def _proposal(self, deadline_s: float) -> Proposal:
        budget = self._value() * (1 - VALUE_TOLERANCE)
        target = self.problem.accuracy_target
        network = Network(self.problem)
        return propose(network, target, SearchLimits(self.gap, self.clock, budget), deadline_s=deadline_s)

    def _make_room(self, smaller: Problem, proposal: Proposal, start: float) -> None:
        """Headroom where it helps most for its price, until the queues fit or a better plan is no longer cheaper."""
        pools = {pool.name: start for pool in smaller.pools if start < 1.0}
        now = self._tried(smaller, proposal, Room(pools))
        for _ in range(STEPS):
            if now is None or now.cost >= self._value() or now.latency.meets(self.deadline_s) or self._late():
                return
            steps = [
                tried for room in self._more_room(now) if (tried := self._tried(smaller, proposal, room)) is not None
            ]
            before = now
            now = min(steps, key=lambda tried: self._price(tried, before), default=None)

    def _price(self, tried: _Tried, before: _Tried) -> tuple[bool, float]:
        """USD per second that a step takes off what is too long."""
        more = max(tried.cost - before.cost, 1e-9 * before.cost)
        if tried.latency.meets(self.deadline_s):
            return False, tried.cost
        return True, more / max(before.slowest_s - tried.slowest_s, 1e-9 * before.slowest_s)

    def _more_room(self, now: _Tried) -> Iterator[Room]:
        links = self._next_links(now)
        if links is not None:
            yield Room(now.room.pools, links)
        waits = mean_waits_by_pool_s(now.plan)
        ranked = sorted((pool for pool in waits if waits[pool] > 0), key=lambda pool: (-waits[pool], pool))
        for pool in ranked[:POOLS]:
            share = self._next_share(now, pool)
            if share >= LEAST_SHARE:
                yield Room({**now.room.pools, pool: share}, now.room.links)
        if len(ranked) > 1:
            pools = {p: max(LEAST_SHARE, 0.85 * self._share(now, p)) for p in ranked}
            yield Room({**now.room.pools, **pools}, now.room.links)

    def _share(self, now: _Tried, pool: str) -> float:
        loads = [worker.load for worker in now.plan.workers if worker.pool == pool]
        return min(now.room.pools.get(pool, 1.0), max(loads) / self.problem.utilisation)

    def _next_share(self, now: _Tried, pool: str) -> float:
        """What one more worker, or a tenth more, would leave of the load."""
        count = sum(worker.pool == pool for worker in now.plan.workers)
        return self._share(now, pool) * count / (count + max(1, count // 10))

    def _tried(self, smaller: Problem, proposal: Proposal, room: Room) -> _Tried | None:
        network = Network(with_headroom(smaller, room), no_further(self.problem, proposal))
        plan = self.solve(network, proposal)
        return self._looked(in_own_figures(self.problem, plan), room) if plan is not None else None

    def look(self, plan: Plan) -> None:
        """Another search's plan."""
        self._looked(plan, Room())

    def _looked_at(self, network: Network, outcome: Outcome[Assignment], room: Room) -> bool:
        plan = self.planned(network, outcome)
        return plan is not None and self._looked(in_own_figures(self.problem, plan), room).latency.meets(
            self.deadline_s
        )

    def _looked_without(self, network: Network, room: Room) -> tuple[Plan, float | None] | None:
        plan = self.solve(network, Proposal(-math.inf))
        if plan is None:
            return None
        tried = self._looked(in_own_figures(self.problem, plan), room)
        return tried.plan, None if tried.latency.meets(self.deadline_s) else tried.slowest_s

    def _looked(self, plan: Plan, room: Room) -> _Tried:
        tried = _Tried(plan, latency(plan), room)
        self.fastest_s = min(self.fastest_s, tried.slowest_s)
        if tried.latency.meets(self.deadline_s) and tried.cost < self._value():
            self.best = tried
        return tried


def no_further(problem: Problem, proposal: Proposal) -> Crossings:
    """Per edge the pairs of tiers that are no slower than those that the proposal uses."""
    visits = visits_per_request(problem)
    found: dict[EdgeKey, frozenset[Tiers]] = {}
    for edge in problem.edges:
        key = (edge.upstream, edge.downstream)
        upstream = problem.operator_by_name.get(edge.upstream)
        if upstream is not None and deadline_share(problem, edge.upstream) is not None:
            sizes = [variant.message_bytes[edge.downstream] for variant in upstream.variants]
            size = max(sizes)  # the order of the links by time hardly depends on it
            times = {
                tiers: link_s(problem, tiers, size * jobs_at_once(visits[edge.downstream]))
                for tiers in ((up, down) for up in problem.tiers for down in problem.tiers)
                if problem.can_flow(*tiers)
            }
            slowest = max(times[tiers] for own, tiers in proposal.flows if own == key)
            found[key] = frozenset(tiers for tiers, time in times.items() if time <= slowest)
    return found


def restricted(problem: Problem, proposal: Proposal) -> Problem:
    """The problem with nothing slower than the proposal uses, operator by operator, and in the tiers that it uses."""
    network = Network(problem)
    visits = visits_per_request(problem)
    selection = proposal.selection or {}
    operators = []
    for operator in problem.operators:
        name = operator.name
        if deadline_share(problem, name) is None:
            operators.append(operator)
            continue
        tiers = {network.tier_of[pool] for own, pool in proposal.pairs if own == name}
        own_modes = modes(network, name, selection[name], visits[name])
        slowest_s = max(m.job_s for m in own_modes if (name, m.pool) in proposal.pairs)
        variants = tuple(_no_slower(network, name, v, visits[name], slowest_s, tiers) for v in operator.variants)
        operators.append(replace(operator, variants=variants))
    return replace(problem, operators=tuple(operators))


def _choices(smaller: Problem, crossings: Crossings) -> object:
    """What a restricted problem leaves open."""
    pools = [(o.name, v.name, pool) for o in smaller.operators for v in o.variants for pool in v.service]
    return pools, dict(crossings)


def _no_slower(
    network: Network, name: str, variant: Variant, visits: float, slowest_s: float, tiers: set[str]
) -> Variant:
    kept: set[str] = set()
    if variant.name in network.runnable[name]:
        for mode in modes(network, name, variant.name, visits):
            if mode.job_s <= slowest_s * (1 + VALUE_TOLERANCE) and network.tier_of[mode.pool] in tiers:
                kept.add(mode.pool)
    return replace(variant, service={pool: times for pool, times in variant.service.items() if pool in kept})
