"""Why there is no plan, and the nearest targets for which there is one."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.memory import without_memory_limits
from jellybean_solver.errors import SolverError
from jellybean_solver.figures import duration_text, plain_text
from jellybean_solver.fleet.dispatch import is_large, reasons_large
from jellybean_solver.model.evaluate import Evaluation
from jellybean_solver.model.multi_workflow import single_workflow
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import ACCURACY_SLACK, Clock, Selection
from jellybean_solver.planning.capacity import SHAVE, Capacity, selection_text
from jellybean_solver.planning.memory_shortage import too_large_for_all
from jellybean_solver.planning.requirements import scaled
from jellybean_solver.planning.structure import structural_reasons

LATE = "no plan that keeps the p99 latency was found in the time allowed; allow more time"

PlanOf = Callable[[Problem], Plan | None]  # the cheapest plan of a changed problem; SolverError if time ends before


@dataclass(frozen=True, slots=True)
class Infeasibility:
    """Sentences that name the binding constraints with figures, and the nearest feasible targets where there are any.

    `nearest_accuracy`: the highest accuracy target that is feasible at these rates (and budget).
    `nearest_rate_scale`: the largest factor on all rates that is feasible at this accuracy (and budget).
    `breaches`: the budget that the cheapest plan breaks; `refused`: that plan.
    `least_usd_per_h`: lower bound on the cost of any plan that may still exist; inf if infeasibility is proven.
    """

    reasons: tuple[str, ...]
    breaches: tuple[str, ...] = ()
    nearest_accuracy: float | None = None
    nearest_rate_scale: float | None = None
    refused: Plan | None = None
    least_usd_per_h: float = math.inf


def explain(network: Network, clock: Clock, plan_of: PlanOf) -> Infeasibility:
    """Explain why a problem has no plan."""
    structural = tuple(structural_reasons(network))
    if structural:
        return Infeasibility(structural)
    if is_large(network):
        return Infeasibility(tuple(reasons_large(network.problem, clock)))
    explainer = _Explainer(network, clock, plan_of)
    return explainer.with_nearest(Infeasibility(tuple(explainer.reasons())))


def explain_breaches(
    network: Network, plan: Plan, evaluation: Evaluation, clock: Clock, plan_of: PlanOf
) -> Infeasibility:
    """The reasons why the cheapest plan is refused: it breaks the budget, and no plan is cheaper."""
    if is_large(network):
        return Infeasibility(evaluation.breaches, evaluation.breaches, refused=plan)
    sure = "no plan is cheaper" if plan.certificate.is_optimal else "no cheaper plan was found in time"
    reasons = tuple(f"{breach}; {sure}" for breach in evaluation.breaches)
    known = Infeasibility(reasons, evaluation.breaches, refused=plan)
    return _Explainer(network, clock, plan_of).with_nearest(known)


def too_slow(problem: Problem, p99_s: float, refused: Plan | None, bound: float, *, proven: bool) -> Infeasibility:
    """That no plan meets a p99 target. `refused`: the best plan without it; `bound`: on the cost of plans in time.

    `proven`: by what requests take without queues; else that a search found none.
    """
    asked = f"a p99 latency of {duration_text(p99_s)}"
    if problem.workflows:
        shares = problem.deadline_shares.items()
        asked = (
            f"p99 latencies of {' and '.join(f'{duration_text(share * p99_s)} for {name}' for name, share in shares)}"
        )
    reason = f"no plan was found that keeps {asked}"
    if proven:
        reason = f"no plan keeps {asked} even with zero queueing delay"
    return Infeasibility((reason,), refused=refused, least_usd_per_h=bound)


def first_reason(network: Network, clock: Clock) -> str:
    """The first reason why a problem has no plan: structure, accuracy or capacity; empty if it was not found in time.

    Nearest targets are left out, which takes most of the time of `explain`.
    """
    if (reason := next(structural_reasons(network), None)) is not None:
        return reason
    if is_large(network):
        return next(iter(reasons_large(network.problem, clock)), "")
    return next(_Explainer(network, clock, lambda problem: None).reasons(), "")


def _rounded_down(scale: float) -> float:
    """Four digits, never more than `scale`: a factor that is feasible as printed."""
    digit = 10.0 ** (math.floor(math.log10(scale)) - 3)
    return math.floor(scale / digit) * digit


def _accuracies(network: Network) -> list[tuple[float, Selection]]:
    """All accuracies that selections reach, in rising order, each with its first selection."""
    found: dict[float, Selection] = {}
    for variants in itertools.product(*network.runnable.values()):
        selection = dict(zip(network.runnable, variants, strict=True))
        if (value := network.problem.accuracy.value(selection)) is not None:
            found.setdefault(value, selection)
    return sorted(found.items(), key=itemgetter(0))


def _too_low(problem: Problem, of: str = "") -> Iterator[str]:
    """That no selection of one workflow reaches its accuracy target, with the best one; `of`: which workflow it is."""
    target = problem.slo.accuracy
    if target is None:
        return
    memory = _with_enough_memory(problem, target)
    known = _accuracies(Network(problem))
    if not known:
        unknown = "the profile knows no complete selection of variants that can run on this infrastructure"
        yield f"{of}accuracy: {unknown}{memory}"
    elif known[-1][0] < target - ACCURACY_SLACK:
        reached, selection = known[-1]
        best, asked, words = f"{reached:.6g}", f"{target:.6g}", selection_text(problem, selection)
        if best == asked:
            yield f"{of}accuracy: no selection is more accurate than {best} ({words}){memory}"
        else:
            yield f"{of}accuracy: the target is {asked}, but the best selection reaches {best} ({words}){memory}"


def _with_enough_memory(problem: Problem, target: float) -> str:
    """The end of a sentence: the least accuracy that meets the target with models too large for all workers.

    Empty if memory is not what keeps the target from being met.
    """
    reachable = _accuracies(Network(without_memory_limits(problem)))
    enough = [(value, selection) for value, selection in reachable if value >= target - ACCURACY_SLACK]
    if not enough or not (models := "; ".join(too_large_for_all(problem, enough[0][1]))):
        return ""
    return f"; with enough memory {enough[0][0]:.6g} would be reached: {models}"


class _Explainer:
    """Reasons and nearest feasible targets of a problem without a plan; each search is run at most once."""

    def __init__(self, network: Network, clock: Clock, plan_of: PlanOf) -> None:
        self.plan_of, self.problem, self.target = plan_of, network.problem, network.problem.accuracy_target
        self.accuracies = [] if self.target is None else _accuracies(network)
        self.capacity = Capacity(self.problem, clock)

    @property
    def is_reachable(self) -> bool:
        """True if a selection reaches the accuracy target."""
        return self.target is None or any(value >= self.target - ACCURACY_SLACK for value, _ in self.accuracies)

    def reasons(self) -> Iterator[str]:
        """Sentences on accuracies that no selection reaches; if there are none, on capacity."""
        if self.is_reachable:
            yield from self.capacity.reasons()
        elif not self.problem.workflows:
            yield from _too_low(self.problem)
        for workflow in () if self.is_reachable else self.problem.workflows:
            yield from _too_low(single_workflow(self.problem, workflow), f"{workflow.name}: ")

    @cached_property
    def nearest(self) -> tuple[float, Selection] | None:
        """The most accurate selection that has a plan at these rates and budget, by bisection; None if unknown."""
        best: tuple[float, Selection] | None = None
        low, high = 0, len(self.accuracies)  # invariant: no plan reaches accuracies[high]
        while low < high:
            middle = (low + high) // 2 if best is not None else 0  # first whether there is any
            slo = replace(self.problem.slo, accuracy=self.accuracies[middle][0])
            try:
                plan = self.plan_of(replace(self.problem, slo=slo))
            except SolverError:
                return None
            if plan is None:
                high = middle
                continue
            reached = self.problem.accuracy.value(plan.selection)
            best = (self.accuracies[middle][0] if reached is None else reached), plan.selection
            low = bisect_right(self.accuracies, best[0] + ACCURACY_SLACK, key=itemgetter(0))
        return best

    @cached_property
    def nearest_rate_scale(self) -> float | None:
        """The largest feasible factor on all rates."""
        most = self.capacity.most if self.is_reachable else None
        if most is None or not most.is_known or not most.scale:
            return None
        scale = most.scale * (1 - SHAVE)
        with suppress(SolverError):
            return scale if self.plan_of(scaled(self.problem, scale)) is not None else None
        return None

    def with_nearest(self, known: Infeasibility) -> Infeasibility:
        """What is known, with the nearest feasible targets."""
        scale, reasons, accuracy = self.nearest_rate_scale, list(known.reasons), None
        if self.nearest is not None:
            accuracy, selection = self.nearest
            target = f"accuracy {accuracy:.10g} is feasible"
            if self.problem.workflows:
                target = f"all accuracy targets {-accuracy:.10g} points lower are feasible"
                accuracy = None  # one figure cannot state a target for each
            reasons.append(f"nearest: {target} at these rates ({selection_text(self.problem, selection)})")
        if scale is not None:
            asked = "" if self.target is None else " at this accuracy"
            reasons.append(f"nearest: {plain_text(_rounded_down(scale), 4)} times these rates is feasible{asked}")
        return replace(known, reasons=tuple(reasons), nearest_accuracy=accuracy, nearest_rate_scale=scale)
