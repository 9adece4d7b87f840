"""Baselines: the planning rules that people use without a solver, each solved to its own optimum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.baseline.greedy import greedy, price_per_request
from jellybean_solver.baseline.most_accurate import find_most_accurate
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.figures import distinct_usd
from jellybean_solver.fleet.dispatch import DEFAULT_GAP
from jellybean_solver.model.evaluate import Evaluation, evaluate
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.missing_links import missing_link_text, missing_links
from jellybean_solver.model.multi_workflow import single_workflow
from jellybean_solver.model.plan import Certificate, Cost, Plan
from jellybean_solver.model.problem import Link, Problem
from jellybean_solver.model.reached_accuracy import accuracy_violations
from jellybean_solver.outcome import Clock, Termination
from jellybean_solver.planning.infeasibility import first_reason
from jellybean_solver.planning.many_workflows import has_many_workflows
from jellybean_solver.planning.mixed import solve_mixed
from jellybean_solver.planning.solver import Solution, cheapest, cheapest_solution, finish, limited
from jellybean_solver.small.objectives import Fleet
from jellybean_solver.small.routes import build_plan
from jellybean_solver.time_limit import work_limit

NO_ASSIGNMENT = "no_assignment"  # status of a rule that finds no plan where there may be one
OUT_OF_TIME = "time ended before a plan was found"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A plan made by a simple rule.

    `status`: optimal, gap or time_limit (termination of the solve under the rule; after time_limit there may be no
    plan), found (by a rule without a bound), accuracy_missed, limit_broken, violated (the plan contradicts the
    problem), no_assignment (of a rule that finds none where there may be one) or infeasible. `note`: the target missed,
    limit broken, violation, or gap left by the time limit.
    """

    name: str
    status: str
    cost: Cost | None = None
    accuracy: float | None = None
    selection: Mapping[str, str] | None = None
    note: str = ""
    plans: tuple[Plan, ...] = ()  # one plan, or one for each workflow

    @property
    def cost_usd_per_h(self) -> float | None:
        """Total cost; None if infeasible or no plan was found in time."""
        return None if self.cost is None else self.cost.total_usd_per_h


@dataclass(frozen=True, slots=True)
class _Effort:
    """Relative gap and time limit for each baseline, and the clock."""

    gap: float
    time_limit_s: float | None
    now: Callable[[], float] | None

    def clock(self) -> Clock:
        return limited(self.time_limit_s, self.now)


def baselines(
    problem: Problem,
    *,
    gap: float = DEFAULT_GAP,
    time_limit_s: float | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Baseline, ...]:
    """The cheapest plan under each of four restrictions, and the plan of the greedy rule.

    The restrictions: all operators in the lowest tier, all in the highest tier, the cheapest variants, the most
    accurate variants. With several workflows, an additional first baseline plans one workflow after the other, each on
    the workers that the earlier ones left. Workflows that begin in several tiers cannot all be in the lowest one. For
    many workflows there are none: each rule is one program, and that of many is too large.

    `gap`, `time_limit_s` (for each baseline) and `clock` as for `solve`; SolverError for a limit without a clock. What
    is left when the time limit of the work ends says so.
    """
    effort = _Effort(gap, time_limit_s, clock)
    effort.clock()  # reports a limit without a clock before anything is solved
    if has_many_workflows(problem):
        return ()
    low, high = problem.tiers[0], problem.tiers[-1]
    found = [_one_by_one(problem, "planning one workflow after the other", effort)] if problem.workflows else []
    if not problem.workflows or len({source.tier for source in problem.sources}) == 1:
        found.append(_in_tier(problem, low, f"all in {low}", effort))
    if high != low:
        found.append(_in_tier(problem, high, f"all in {high}", effort))
    fleet = Fleet(Network(problem))
    found.append(_with_variants(fleet, _cheapest_variants(fleet.network), "cheapest variants", effort))
    found.append(_most_accurate(fleet, "most accurate variants", effort))
    found.append(_greedy(problem, "greedy tier by tier"))
    return tuple(found)


def _one_by_one(problem: Problem, name: str, effort: _Effort) -> Baseline:
    """The cheapest plan of each workflow in turn, on the workers and bandwidth that the earlier ones leave."""
    total, selection, status = Cost(), dict[str, str](), "optimal"
    left, plans = problem, list[Plan]()
    for workflow in problem.workflows:
        one = replace(single_workflow(problem, workflow), pools=left.pools, links=left.links)
        clock = effort.clock()
        if clock.left() == 0.0:
            return Baseline(name, Termination.TIME_LIMIT, note=OUT_OF_TIME)
        try:
            solution = _cheapest_of_one(one, effort.gap, clock)
        except OutOfTimeError:
            return Baseline(name, Termination.TIME_LIMIT, note=OUT_OF_TIME)
        plan = solution.plan
        if plan is None:
            note = f"infeasible: what is left does not suffice for {workflow.name}"
            return Baseline(name, "infeasible", note=note)
        evaluation = evaluate(one, plan)
        total += plan.cost
        selection |= plan.selection
        plans.append(plan)
        status = status if plan.certificate.is_optimal else plan.certificate.termination
        left = _without(left, plan, evaluation)
    budget = problem.slo.budget_usd_per_h
    if budget is not None and total.total_usd_per_h > budget:
        costs, allowed = distinct_usd(total.total_usd_per_h, budget)
        note = f"budget: {costs} USD/h is more than the {allowed} USD/h allowed"
        return Baseline(name, "limit_broken", total, None, selection, note, tuple(plans))
    return Baseline(name, status, total, None, selection, "", tuple(plans))


def _cheapest_of_one(problem: Problem, gap: float, clock: Clock) -> Solution:
    """The cheapest plan of one workflow, whatever its p99; OutOfTimeError if none was found in time."""
    if not problem.is_for_ways:
        return cheapest_solution(problem, gap, clock, explained=False)

    def solve_one(asked: Problem) -> Solution:
        return cheapest_solution(asked, gap, clock, explained=False)

    return solve_mixed(problem, None, gap=gap, limit=clock, explained=False, solve_one=solve_one)


def _without(problem: Problem, plan: Plan, evaluation: Evaluation) -> Problem:
    """The problem without the workers and bandwidth that the plan uses."""
    carried = {use.tiers: use.bytes_per_s for use in link_uses(evaluation.plan, evaluation.flows)}
    used = Counter(worker.pool for worker in plan.workers)

    def narrower(link: Link) -> Link:
        limit = link.bandwidth_bytes_per_s
        if limit is None:
            return link
        margin = limit / (problem.usable_bytes_per_s(link) or limit)
        rest = limit - margin * carried.get(link.tiers, 0.0) / problem.sites_of(link.upstream_tier)
        return replace(link, bandwidth_bytes_per_s=max(rest, 1e-9 * limit))  # a full link keeps a negligible bandwidth

    pools = tuple(replace(pool, count=pool.count - used[pool.name]) for pool in problem.pools)
    return replace(problem, pools=pools, links=tuple(narrower(link) for link in problem.links))


def _in_tier(problem: Problem, tier: str, name: str, effort: _Effort) -> Baseline:
    pools = tuple(pool for pool in problem.pools if pool.tier == tier)
    fleet = Fleet(Network(replace(problem, pools=pools)))
    if obstacle := _placement_obstacle(problem, tier):
        return Baseline(name, "infeasible", note=f"infeasible: {obstacle}")
    return _solved(fleet, name, problem.accuracy_target, None, f"infeasible with the workers of {tier} alone", effort)


def _placement_obstacle(problem: Problem, tier: str) -> str:
    """Why the structure of a problem keeps operators or data out of a tier, however many workers it has; else empty."""
    for operator in problem.operators:
        if operator.tiers is not None and tier not in operator.tiers:
            return f"{operator.name} may run in {' or '.join(operator.tiers)} only"
    for edge in (edge for operator in problem.operators for edge in operator.inputs):
        if edge.tiers is not None and tier not in edge.tiers:
            return f"data from {edge.upstream} to {edge.downstream} must stay in {' or '.join(edge.tiers)}"
    named = {pool.name for pool in problem.pools if pool.tier == tier and pool.count > 0}
    if not named:
        return f"there are no workers in {tier}"
    for operator in problem.operators:
        if not any(named & set(variant.service) for variant in operator.variants):
            return f"no worker of {tier} has a profile of {operator.name}"
    for source in problem.sources:
        if problem.tier_index[source.tier] > problem.tier_index[tier]:
            return f"data from {source.name}: {source.tier} is above {tier}, and data goes up only"
    links, origins = problem.link_by_tiers, [{source.tier} for source in problem.sources]
    return "; ".join(missing_link_text(links, ends) for ends in missing_links(problem.tiers, links, origins, [tier]))


def _with_variants(fleet: Fleet, selection: Mapping[str, str] | None, name: str, effort: _Effort) -> Baseline:
    if selection is None:
        return Baseline(name, "infeasible", note="there is no such selection")
    return _solved(fleet, name, None, selection, "infeasible: the fleet is too small for it", effort)


def _most_accurate(fleet: Fleet, name: str, effort: _Effort) -> Baseline:
    """The cheapest plan with the most accurate selection of each workflow; each search has the full time limit."""
    if not all(fleet.network.runnable.values()):
        return _with_variants(fleet, None, name, effort)
    problem = fleet.network.problem
    chosen: dict[str, str] = {}
    for part in [single_workflow(problem, workflow) for workflow in problem.workflows] or [problem]:
        own = Network(part)
        try:
            selection = find_most_accurate(own, effort.clock())
        except OutOfTimeError:
            return Baseline(name, "time_limit", note="time ended before the most accurate variants were known")
        if selection is None:
            return _with_variants(fleet, None, name, effort)
        chosen |= selection
    return _with_variants(fleet, chosen, name, effort)


def _solved(
    fleet: Fleet,
    name: str,
    target: float | None,
    fixed: Mapping[str, str] | None,
    infeasible: str,
    effort: _Effort,
) -> Baseline:
    clock = effort.clock()
    if clock.left() == 0.0:  # building the program takes time, too
        return Baseline(name, Termination.TIME_LIMIT, None, None, fixed, OUT_OF_TIME)
    outcome = cheapest(fleet, target, fixed=fixed, gap=effort.gap, clock=clock)
    if outcome.found is None:
        accuracy = None if fixed is None else fleet.network.problem.accuracy.value(fixed)
        if outcome.is_conclusive:
            reason = "" if fixed is not None or clock.left() == 0.0 else first_reason(fleet.network, clock)
            return Baseline(
                name, "infeasible", None, accuracy, fixed, f"{infeasible}: {reason}" if reason else infeasible
            )
        late = outcome.termination == Termination.TIME_LIMIT
        note = OUT_OF_TIME if late else "no plan was found, nor proven that there is none"
        return Baseline(name, outcome.termination, None, accuracy, fixed, note)
    plan, evaluation = finish(fleet.network, outcome)
    return _scored(fleet.network.problem, name, plan.certificate.termination, plan, evaluation)


def _greedy(problem: Problem, name: str) -> Baseline:
    try:
        found = greedy(problem, work_limit())
    except OutOfTimeError:
        return Baseline(name, Termination.TIME_LIMIT, note=OUT_OF_TIME)
    if isinstance(found, str):
        return Baseline(name, NO_ASSIGNMENT, note=f"the rule finds no assignment: {found}")
    network, selection, assignment = found
    unproven = Certificate.of(assignment.cost, 0.0, Termination.GAP)
    plan = build_plan(network, selection, assignment, unproven)
    return _scored(network.problem, name, "found", plan, evaluate(network.problem, plan))


def _scored(problem: Problem, name: str, status: str, plan: Plan, evaluation: Evaluation) -> Baseline:
    missed = tuple(accuracy_violations(problem, [(plan.selection, 1.0)]))
    open_ = plan.certificate.gap
    late = (f"time ended: up to {open_:.1%} less is not ruled out",) if status == "time_limit" else ()
    note = "; ".join((*evaluation.complaints, *late))
    if set(evaluation.violations) - set(missed):
        status = "violated"
    elif missed:
        status = "accuracy_missed"
    elif evaluation.breaches:
        status = "limit_broken"
    return Baseline(name, status, evaluation.cost, evaluation.accuracy, plan.selection, note, (plan,))


def _cheapest_variants(network: Network) -> dict[str, str] | None:
    """Operator -> its variant of least price per throughput on any pool, then of least time; None if one cannot run."""
    if not all(network.runnable.values()):
        return None
    return {
        operator.name: min(
            network.runnable[operator.name],
            key=lambda variant, o=operator: price_per_request(network, o, variant),  # type: ignore[misc]
        )
        for operator in network.problem.operators
    }
