"""What people do without a planner, each at its best: the figures to hold a plan against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.decomposition import build_plan
from jellybean_solver.demand import Network
from jellybean_solver.errors import SolverError
from jellybean_solver.evaluate import Evaluation, accuracy_violation, evaluate
from jellybean_solver.greedy import greedy, price_per_request
from jellybean_solver.large import GAP
from jellybean_solver.objectives import Fleet, MostAccurate
from jellybean_solver.plan import Certificate, Cost, Plan
from jellybean_solver.problem import Problem
from jellybean_solver.selection import BeamSearch, Clock
from jellybean_solver.solve import cheapest, finish

OUT_OF_TIME = "time ended before a plan was found"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A plan made by a simple rule.

    `status`: optimal, gap or time_limit (of its restriction; the last also without a plan), found (by a rule that
    proves nothing), accuracy_missed, limit_broken, violated (it contradicts the problem) or infeasible. `note` names
    what is missed, broken or violated, and what time left open.
    """

    name: str
    status: str
    cost: Cost | None
    accuracy: float | None
    selection: Mapping[str, str] | None
    note: str

    @property
    def cost_usd_per_h(self) -> float | None:
        """Total; None when infeasible or not found in time."""
        return None if self.cost is None else self.cost.total_usd_per_h


@dataclass(frozen=True, slots=True)
class _Effort:
    """What each baseline may take."""

    gap: float
    time_limit_s: float | None
    now: Callable[[], float] | None

    def clock(self) -> Clock:
        if self.time_limit_s is None or self.now is None:
            return Clock()
        return Clock(self.now, self.now() + self.time_limit_s)


def baselines(
    problem: Problem,
    *,
    gap: float = GAP,
    time_limit_s: float | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Baseline, ...]:
    """All near the data, all in the cloud, cheapest and most accurate variants, each the optimum of its kind; greedy.

    `gap`, `time_limit_s` (of each) and `clock` as for `solve`; a limit needs a clock, or SolverError. The greedy rule
    searches nothing and takes no limit.
    """
    if time_limit_s is not None and clock is None:
        raise SolverError("a time limit needs a clock: baselines(problem, time_limit_s=5, clock=time.monotonic)")
    effort = _Effort(gap, time_limit_s, clock)
    low, high = problem.tiers[0], problem.tiers[-1]
    found = [_in_tier(problem, low, f"all in {low}", effort)]
    if high != low:
        found.append(_in_tier(problem, high, f"all in {high}", effort))
    fleet = Fleet(Network(problem))
    found.append(_with_variants(fleet, _cheapest_variants(fleet.network), "cheapest variants", effort))
    found.append(_most_accurate(fleet, "most accurate variants", effort))
    found.append(_greedy(problem, "greedy tier by tier"))
    return tuple(found)


def _in_tier(problem: Problem, tier: str, name: str, effort: _Effort) -> Baseline:
    pools = tuple(pool for pool in problem.pools if pool.tier == tier)
    fleet = Fleet(Network(replace(problem, pools=pools)))
    return _solved(fleet, name, problem.slo.accuracy, None, f"infeasible with the workers of {tier} alone", effort)


def _with_variants(fleet: Fleet, selection: Mapping[str, str] | None, name: str, effort: _Effort) -> Baseline:
    if selection is None:
        return Baseline(name, "infeasible", None, None, None, "there is no such selection")
    return _solved(fleet, name, None, selection, "infeasible: the fleet is too small for it", effort)


def _most_accurate(fleet: Fleet, name: str, effort: _Effort) -> Baseline:
    """The search for the selection, then for its cheapest plan, each within the limit."""
    if not all(fleet.network.runnable.values()):
        return _with_variants(fleet, None, name, effort)
    search: BeamSearch[object] = BeamSearch(fleet.network, MostAccurate(fleet, fits=False), clock=effort.clock())
    outcome = search.run()
    if not outcome.finished:
        return Baseline(name, "time_limit", None, None, None, "time ended before the most accurate variants were known")
    return _with_variants(fleet, outcome.selection, name, effort)


def _solved(
    fleet: Fleet,
    name: str,
    target: float | None,
    fixed: Mapping[str, str] | None,
    infeasible: str,
    effort: _Effort,
) -> Baseline:
    outcome = cheapest(fleet, target, fixed=fixed, gap=effort.gap, clock=effort.clock())
    if outcome.found is None:
        accuracy = None if fixed is None else fleet.network.problem.accuracy.value(fixed)
        if outcome.finished:
            return Baseline(name, "infeasible", None, accuracy, fixed, infeasible)
        late = outcome.stopped == "time_limit"
        note = OUT_OF_TIME if late else "no plan was found, nor proven that there is none"
        return Baseline(name, outcome.stopped, None, accuracy, fixed, note)
    plan, evaluation = finish(fleet.network, outcome)
    return _scored(fleet.network.problem, name, plan.certificate.termination, plan, evaluation)


def _greedy(problem: Problem, name: str) -> Baseline:
    found = greedy(problem)
    if found is None:
        return Baseline(name, "infeasible", None, None, None, "the rule finds no assignment")
    network, selection, assignment = found
    unproven = Certificate(assignment.cost, 0.0, 1.0, "gap")
    plan = build_plan(network, selection, assignment, unproven)
    return _scored(network.problem, name, "found", plan, evaluate(network.problem, plan))


def _scored(problem: Problem, name: str, status: str, plan: Plan, evaluation: Evaluation) -> Baseline:
    missed = tuple(accuracy_violation(problem, evaluation.accuracy))
    open_ = plan.certificate.gap
    late = (f"time ended: up to {open_:.1%} less is not ruled out",) if status == "time_limit" else ()
    note = "; ".join((*evaluation.complaints, *late))
    if set(evaluation.violations) - set(missed):
        status = "violated"
    elif missed:
        status = "accuracy_missed"
    elif evaluation.breaches:
        status = "limit_broken"
    return Baseline(name, status, evaluation.cost, evaluation.accuracy, plan.selection, note)


def _cheapest_variants(network: Network) -> dict[str, str] | None:
    """Per operator the least price per throughput on any pool; then the least time."""
    if not all(network.runnable.values()):
        return None
    return {
        operator.name: min(
            network.runnable[operator.name],
            key=lambda variant, o=operator: price_per_request(network, o, variant),  # type: ignore[misc]
        )
        for operator in network.problem.operators
    }
