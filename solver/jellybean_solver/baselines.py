"""What people do without a planner, each at its best: the figures to hold a plan against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jellybean_solver.decomposition import build_plan
from jellybean_solver.demand import Network
from jellybean_solver.evaluate import Evaluation, accuracy_violation, evaluate
from jellybean_solver.greedy import greedy, price_per_request
from jellybean_solver.objectives import Fleet, MostAccurate
from jellybean_solver.plan import Certificate, Cost, Plan
from jellybean_solver.problem import Problem
from jellybean_solver.selection import BeamSearch
from jellybean_solver.solve import cheapest, finish


@dataclass(frozen=True, slots=True)
class Baseline:
    """A plan made by a simple rule.

    `status`: optimal (of its restriction), found (by a rule that proves nothing), accuracy_missed, limit_broken,
    violated (it contradicts the problem) or infeasible. `note` names what is missed, broken or violated.
    """

    name: str
    status: str
    cost: Cost | None
    accuracy: float | None
    selection: Mapping[str, str] | None
    note: str

    @property
    def cost_usd_per_h(self) -> float | None:
        """Total; None when infeasible."""
        return None if self.cost is None else self.cost.total_usd_per_h


def baselines(problem: Problem) -> tuple[Baseline, ...]:
    """All near the data, all in the cloud, cheapest and most accurate variants, each the exact optimum; greedy."""
    low, high = problem.tiers[0], problem.tiers[-1]
    found = [_in_tier(problem, low, f"all in {low}")]
    if high != low:
        found.append(_in_tier(problem, high, f"all in {high}"))
    fleet = Fleet(Network(problem))
    found.append(_with_variants(fleet, _cheapest_variants(fleet.network), "cheapest variants"))
    found.append(_with_variants(fleet, _most_accurate_variants(fleet), "most accurate variants"))
    found.append(_greedy(problem, "greedy tier by tier"))
    return tuple(found)


def _in_tier(problem: Problem, tier: str, name: str) -> Baseline:
    pools = tuple(pool for pool in problem.pools if pool.tier == tier)
    fleet = Fleet(Network(replace(problem, pools=pools)))
    return _solved(fleet, name, problem.slo.accuracy, None, f"infeasible with the workers of {tier} alone")


def _with_variants(fleet: Fleet, selection: Mapping[str, str] | None, name: str) -> Baseline:
    if selection is None:
        return Baseline(name, "infeasible", None, None, None, "there is no such selection")
    return _solved(fleet, name, None, selection, "infeasible: the fleet is too small for it")


def _solved(
    fleet: Fleet, name: str, target: float | None, fixed: Mapping[str, str] | None, infeasible: str
) -> Baseline:
    outcome = cheapest(fleet, target, fixed=fixed)
    if outcome.found is None:
        accuracy = None if fixed is None else fleet.network.problem.accuracy.value(fixed)
        return Baseline(name, "infeasible", None, accuracy, fixed, infeasible)
    plan, evaluation = finish(fleet.network, outcome)
    return _scored(fleet.network.problem, name, "optimal", plan, evaluation)


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
    note = "; ".join(evaluation.complaints)
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


def _most_accurate_variants(fleet: Fleet) -> Mapping[str, str] | None:
    network = fleet.network
    if not all(network.runnable.values()):
        return None
    search: BeamSearch[object] = BeamSearch(network, MostAccurate(fleet, fits=False))
    return search.run().selection
