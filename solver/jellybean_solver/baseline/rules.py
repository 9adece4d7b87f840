"""Baselines: the planning rules that people use without a solver, each solved to its own optimum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.baseline.greedy import greedy
from jellybean_solver.baseline.selections import cheapest_selections, most_accurate_selection, of_selection
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.figures import distinct_usd
from jellybean_solver.fleet.dispatch import DEFAULT_GAP
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.multi_workflow import single_workflow, with_slos
from jellybean_solver.model.plan import Cost, Plan
from jellybean_solver.model.problem import Link, Problem, Sharing
from jellybean_solver.model.reached_accuracy import accuracy_violations
from jellybean_solver.outcome import Clock, Selection, Termination
from jellybean_solver.planning.infeasibility import first_reason
from jellybean_solver.planning.many_workflows import has_many_workflows
from jellybean_solver.planning.solve import SolveOptions, solve_with
from jellybean_solver.planning.solver import limited
from jellybean_solver.time_limit import work_limit

NO_ASSIGNMENT = "no_assignment"  # status of a rule that finds no plan where there may be one


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
    options = SolveOptions(gap, time_limit_s, clock, explained=False)
    limited(time_limit_s, clock)  # reports a limit without a clock before anything is solved
    if has_many_workflows(problem):
        return ()
    low, high = problem.tiers[0], problem.tiers[-1]
    found = [_one_by_one(problem, options)] if problem.workflows else []
    if not problem.workflows or len({source.tier for source in problem.sources}) == 1:
        found.append(_in_tier(problem, low, options))
    if high != low:
        found.append(_in_tier(problem, high, options))
    found.append(_with_variants(problem, _cheapest_variants, "cheapest variants", options))
    found.append(_with_variants(problem, _most_accurate_variants, "most accurate variants", options))
    found.append(_greedy(problem))
    return tuple(found)


def _one_by_one(problem: Problem, options: SolveOptions) -> Baseline:
    """The cheapest plan of each workflow in turn, on the workers and bandwidth that the earlier ones leave."""
    name, plans, left = "planning one workflow after the other", list[Plan](), problem
    for workflow in problem.workflows:
        own = replace(single_workflow(problem, workflow), pools=left.pools, links=left.links)
        short = f"infeasible: what is left does not suffice for {workflow.name}"
        plan = _cheapest(own, name, short, options)
        if isinstance(plan, Baseline):
            return plan
        plans.append(plan)
        left = _without(left, plan)
    total = sum((plan.cost for plan in plans), Cost())
    selection = {operator: variant for plan in plans for operator, variant in plan.selection.items()}
    ends = [plan.certificate.termination for plan in plans if not plan.certificate.is_optimal]
    status: str = (*ends, Termination.OPTIMAL)[0]
    note, budget = "", problem.slo.budget_usd_per_h
    if budget is not None and total.total_usd_per_h > budget:
        usd, allowed = distinct_usd(total.total_usd_per_h, budget)
        status, note = "limit_broken", f"budget: {usd} USD/h is more than the {allowed} USD/h allowed"
    return Baseline(name, status, total, None, selection, note, tuple(plans))


def _without(left: Problem, plan: Plan) -> Problem:
    """What is left without the workers and bandwidth that a plan uses."""
    carried = {use.tiers: use.bytes_per_s for use in link_uses(plan)}
    used = Counter(worker.pool for worker in plan.workers)

    def narrower(link: Link) -> Link:
        limit = link.bandwidth_bytes_per_s
        if limit is None:
            return link
        margin = limit / (left.usable_bytes_per_s(link) or limit)
        rest = limit - margin * carried.get(link.tiers, 0.0) / left.sites_of(link.upstream_tier)
        return replace(link, bandwidth_bytes_per_s=max(rest, 1e-9 * limit))  # a full link keeps a negligible bandwidth

    pools = tuple(replace(pool, count=pool.count - used[pool.name]) for pool in left.pools)
    return replace(left, pools=pools, links=tuple(map(narrower, left.links)))


def _in_tier(problem: Problem, tier: str, options: SolveOptions) -> Baseline:
    """The cheapest plan on the workers of one tier."""
    name, pools = f"all in {tier}", tuple(pool for pool in problem.pools if pool.tier == tier)
    restricted = replace(problem, pools=pools)
    plan = _cheapest(restricted, name, f"infeasible with the workers of {tier} alone", options)
    if isinstance(plan, Plan):
        return _scored(problem, name, plan)
    clock = limited(options.time_limit_s, options.clock)
    reason = first_reason(Network(restricted), clock) if plan.status == "infeasible" else ""
    return replace(plan, note=": ".join(filter(None, (plan.note, reason))))


def _with_variants(
    problem: Problem, choose: Callable[[Problem, Clock], Selection | None], name: str, options: SolveOptions
) -> Baseline:
    """The cheapest plan of the selection that `choose` gives, whatever its accuracy."""
    try:
        selection = choose(problem, limited(options.time_limit_s, options.clock))
    except OutOfTimeError as error:
        return Baseline(name, Termination.TIME_LIMIT, note=str(error))
    if selection is None:
        return Baseline(name, "infeasible", note="there is no such selection")
    restricted = with_slos(
        of_selection(problem, selection), lambda _, slo: replace(slo, accuracy=None, mean_accuracy=None)
    )
    plan = _cheapest(restricted, name, "infeasible: the fleet is too small for it", options)
    return plan if isinstance(plan, Baseline) else _scored(problem, name, plan)


def _cheapest_variants(problem: Problem, clock: Clock) -> Selection | None:
    listed = cheapest_selections(Network(problem), None, 1, clock)
    return listed[0][1] if listed else None


def _most_accurate_variants(problem: Problem, clock: Clock) -> Selection | None:
    """The most accurate selection of each workflow."""
    parts = [single_workflow(problem, workflow) for workflow in problem.workflows] or [problem]
    chosen = [most_accurate_selection(part, clock) for part in parts]
    if any(selection is None for selection in chosen):
        return None
    return {name: variant for selection in chosen for name, variant in (selection or {}).items()}


def _greedy(problem: Problem) -> Baseline:
    name = "greedy tier by tier"
    alone = replace(problem, pools=tuple(replace(pool, sharing=Sharing.EXCLUSIVE) for pool in problem.pools))
    try:
        found = greedy(alone, work_limit())
    except OutOfTimeError as error:
        return Baseline(name, Termination.TIME_LIMIT, note=str(error))
    if isinstance(found, str):
        return Baseline(name, NO_ASSIGNMENT, note=f"the rule finds no assignment: {found}")
    return _scored(alone, name, found, "found")


def _cheapest(problem: Problem, name: str, infeasible: str, options: SolveOptions) -> Plan | Baseline:
    """The cheapest plan, even above the budget; or the baseline that says that there is none, or none was found."""
    try:
        solution = solve_with(problem, options)
    except SolverError as error:
        status = Termination.TIME_LIMIT if isinstance(error, OutOfTimeError) else Termination.GAP
        return Baseline(name, status, note=str(error))
    refused = None if solution.infeasibility is None else solution.infeasibility.refused
    return solution.plan or refused or Baseline(name, "infeasible", note=infeasible)


def _scored(problem: Problem, name: str, plan: Plan, status: str = "") -> Baseline:
    """The baseline of a plan, held against the targets of the problem.

    `status`: if it meets them all; by default how its solve ended.
    """
    evaluation, proof = evaluate(problem, plan), plan.certificate
    missed = tuple(accuracy_violations(problem, [(plan.selection, 1.0)]))
    status = status or proof.termination
    late = (f"time ended: up to {proof.gap:.1%} less is not ruled out",) if status == Termination.TIME_LIMIT else ()
    note = "; ".join((*evaluation.complaints, *late))
    if set(evaluation.violations) - set(missed):
        status = "violated"
    elif missed:
        status = "accuracy_missed"
    elif evaluation.breaches:
        status = "limit_broken"
    return Baseline(name, status, evaluation.cost, evaluation.accuracy, plan.selection, note, (plan,))
