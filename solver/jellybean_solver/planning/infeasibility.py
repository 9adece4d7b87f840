"""Why there is no plan, and the nearest targets for which there is one."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

from jellybean_solver.demand.demand import Network, Tiers
from jellybean_solver.demand.memory import without_memory_limits
from jellybean_solver.figures import plain_text, rate_text, usd_text
from jellybean_solver.fleet.dispatch import is_large, reasons_large
from jellybean_solver.fleet.proposal import propose
from jellybean_solver.fleet.rate_scale import RateScale, largest_rate_scale
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.model.evaluate import Evaluation
from jellybean_solver.model.margin import largest_margin
from jellybean_solver.model.multi_workflow import single_workflow
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.workflow import Workflow
from jellybean_solver.outcome import ACCURACY_SLACK, Clock, Outcome, Selection
from jellybean_solver.planning.capacity_limits import RAISED, binding_limits, share_text
from jellybean_solver.planning.memory_shortage import too_large_for_all
from jellybean_solver.planning.requirements import scaled
from jellybean_solver.planning.structure import structural_reasons

SHAVE = 1e-6  # relative: the reported rate scale is this much below its supremum, so that it is feasible as printed
CROWDED = 1e-3  # feasible rate scales below this are solved with lower rates: the program drops small fractions
FULL = 0.999  # a pool or link with a higher utilisation is called full
ANY_GAP = 1.0  # relative: any plan will do
MOST_NAMED = 4  # if all pools are full, more of them are summarised by their number

Holds = Callable[[Problem], bool]  # True if a changed problem has a feasible plan


@dataclass(frozen=True, slots=True)
class Infeasibility:
    """Sentences that name the binding constraints with figures, and the nearest feasible targets where there are any.

    `nearest_accuracy`: the highest accuracy target that is feasible at these rates (and budget).
    `nearest_rate_scale`: the largest factor on all rates that is feasible at this accuracy (and budget).
    `nearest_p99_s`: the lowest p99 latency of all plans evaluated.
    `breaches`: the budget that the cheapest plan breaks; `refused`: that plan.
    `least_usd_per_h`: lower bound on the cost of any plan that may still exist; inf if infeasibility is proven.
    """

    reasons: tuple[str, ...]
    breaches: tuple[str, ...] = ()
    nearest_accuracy: float | None = None
    nearest_rate_scale: float | None = None
    refused: Plan | None = None
    nearest_p99_s: float | None = None
    least_usd_per_h: float = math.inf


def explain(network: Network, clock: Clock, holds: Holds) -> Infeasibility:
    """Explain why a problem has no plan."""
    structural = tuple(structural_reasons(network))
    if structural:
        return Infeasibility(structural)
    if is_large(network):
        return Infeasibility(tuple(reasons_large(network.problem, clock)))
    explainer = _Explainer(network, clock, holds)
    return Infeasibility(
        (*explainer.accuracy(), *explainer.capacity(), *explainer.nearest()),
        (),
        explainer.stated_accuracy,
        explainer.nearest_rate_scale,
    )


def explain_breaches(network: Network, plan: Plan, evaluation: Evaluation, clock: Clock, holds: Holds) -> Infeasibility:
    """The reasons why the cheapest plan is refused: it breaks the budget, and no plan is cheaper."""
    if is_large(network):
        return Infeasibility(evaluation.breaches, evaluation.breaches, refused=plan)
    explainer = _Explainer(network, clock, holds)
    sure = "no plan is cheaper" if plan.certificate.is_optimal else "no cheaper plan was found in time"
    return Infeasibility(
        (*(f"{breach}; {sure}" for breach in evaluation.breaches), *explainer.nearest()),
        evaluation.breaches,
        explainer.stated_accuracy,
        explainer.nearest_rate_scale,
        plan,
    )


def first_reason(network: Network, clock: Clock) -> str:
    """The first reason why a problem has no plan: structure, accuracy or capacity; empty if it was not found in time.

    Nearest targets are left out, which takes most of the time of `explain`.
    """
    if (reason := next(structural_reasons(network), None)) is not None:
        return reason
    if is_large(network):
        return next(iter(reasons_large(network.problem, clock)), "")
    explainer = _Explainer(network, clock, lambda problem: False)
    return next(itertools.chain(explainer.accuracy(), explainer.capacity()), "")


def _most_that_fits(network: Network) -> float:
    """Upper bound (at most 1) on the feasible factor on all rates: each operator alone on the whole fleet."""
    demand = network.demand({})
    count = {pool.name: pool.count for pool in network.pools}
    return min(
        1.0,
        *(
            sum(count[pool] / busy if busy > 0 else math.inf for pool, busy in demand.workers[name].items())
            for name in network.names
        ),
    )


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

    def __init__(self, network: Network, clock: Clock, holds: Holds) -> None:
        self.network, self.clock, self.holds, self.problem = network, clock, holds, network.problem
        self.target = self.problem.accuracy_target
        budget = self.problem.slo.budget_usd_per_h
        self.budget = math.inf if budget is None else budget
        self.accuracies = _accuracies(self.network) if self.target is not None else []
        reachable = self.target is None or not self.accuracies or self.accuracies[-1][0] >= self.target - ACCURACY_SLACK
        self.base = _most_that_fits(self.network)  # factor on the rates that a scale of 1 in `scaled` stands for
        if self.base > CROWDED:
            self.base = 1.0
        self.scaled: Outcome[RateScale] | None = None
        if reachable:
            self.scaled = self._largest_scale()
            if self.scaled.is_conclusive and self.scaled.found is not None and self.scaled.found.scale <= SHAVE:
                self.base *= SHAVE  # the scale is within the tolerance of 0: solved again with lower rates
                self.scaled = self._largest_scale()

    def _largest_scale(self) -> Outcome[RateScale]:
        network = self.network if self.base == 1.0 else Network(scaled(self.problem, self.base))
        return self._scale_of(network, self.budget)

    def _scale_of(self, network: Network, budget: float) -> Outcome[RateScale]:
        return largest_rate_scale(network, self.target, SearchLimits(0.0, self.clock, budget))

    @property
    def stated_accuracy(self) -> float | None:
        """The nearest accuracy; None for several workflows, because one figure cannot state a target for each."""
        return None if self.problem.workflows else self.nearest_accuracy

    @cached_property
    def fitting(self) -> tuple[float, Selection] | None:
        """The most accurate selection that fits at these rates within the budget, by bisection; None if unknown."""
        best: tuple[float, Selection] | None = None
        low, high = 0, len(self.accuracies)  # invariant: no selection that fits reaches accuracies[high]
        while low < high:
            middle = (low + high) // 2 if best is not None else 0  # first whether any fits
            limits = SearchLimits(ANY_GAP, self.clock, self.budget)
            proposal = propose(self.network, self.accuracies[middle][0], limits)
            if proposal.selection is not None:
                reached = self.problem.accuracy.value(proposal.selection)
                best = (self.accuracies[middle][0] if reached is None else reached), proposal.selection
                low = bisect_right(self.accuracies, best[0] + ACCURACY_SLACK, key=itemgetter(0))
            elif math.isinf(proposal.bound):
                high = middle
            else:
                return None
        return best

    @cached_property
    def nearest_accuracy(self) -> float | None:
        if self.fitting is None:
            return None
        accuracy = self.fitting[0]
        problem = replace(self.problem, slo=replace(self.problem.slo, accuracy=accuracy))
        return accuracy if self.holds(problem) else None

    @cached_property
    def nearest_rate_scale(self) -> float | None:
        if self.scaled is None or self.scaled.selection is None or not self.scaled.is_conclusive:
            return None
        if -self.scaled.value <= SHAVE:
            return None
        scale = -self.scaled.value * (1 - SHAVE) * self.base
        return scale if self.holds(scaled(self.problem, scale)) else None

    def _words(self, selection: Selection) -> str:
        several = [o.name for o in self.problem.operators if len(o.variants) > 1 and o.name in selection]
        chosen = several or list(selection)
        return ", ".join(f"{name} {selection[name]}" for name in chosen)

    def accuracy(self) -> Iterator[str]:
        if self.target is None or self.scaled is not None:
            return
        if not self.accuracies:
            unknown = "the profile knows no complete selection of variants that can run on this infrastructure"
            yield f"accuracy: {unknown}{_with_enough_memory(self.problem, self.target)}"
            return
        if not self.problem.workflows:
            memory = _with_enough_memory(self.problem, self.target)
            yield self._too_low("", self.target, *self.accuracies[-1]) + memory
        for workflow in self.problem.workflows:
            yield from self._too_low_for(workflow)

    def _too_low_for(self, workflow: Workflow) -> Iterator[str]:
        """The best accuracy that one of several workflows reaches, if it is below its target."""
        problem, target = single_workflow(self.problem, workflow), workflow.slo.accuracy
        if target is None:
            return
        known = _accuracies(Network(problem))
        if known and known[-1][0] < target - ACCURACY_SLACK:
            memory = _with_enough_memory(problem, target)
            yield self._too_low(f"{workflow.name}: ", target, *known[-1]) + memory

    def _too_low(self, of: str, target: float, reached: float, selection: Selection) -> str:
        best, asked, words = f"{reached:.6g}", f"{target:.6g}", self._words(selection)
        if best == asked:
            return f"{of}accuracy: no selection is more accurate than {best} ({words})"
        return f"{of}accuracy: the target is {asked}, but the best selection reaches {best} ({words})"

    def capacity(self) -> Iterator[str]:
        if self.scaled is None:
            return
        if not self.scaled.is_conclusive:
            yield "no plan exists; what binds was not found in time"
            return
        found, selection = self.scaled.found, self.scaled.selection
        if selection is None or found is None or (found.scale <= SHAVE and not self._can_be_placed()):
            reached = "the accuracies asked for" if self.problem.workflows else f"accuracy {self.target or 0.0:g}"
            asked = "" if self.target is None else f" that reaches {reached}"
            yield f"no selection of variants{asked} can be placed so that data flows up the tiers over declared links"
            return
        fitting = 0.0 if found.scale <= SHAVE else found.scale * self.base
        limits = binding_limits(self.network, self.budget, fitting, self._scale_without)
        full = self._binding_links(found) if fitting else []
        words = self._fits_at_most(found, selection, full) if fitting else "no plan fits, however low the rates are"
        if not limits and not fitting and self.clock.left() != 0.0:
            within = "" if math.isinf(self.budget) else f" within the budget of {usd_text(self.budget)} USD/h"
            words += f": too few workers for {len(selection)} operators{within}"
        sole = next((limit for limit in limits if not fitting or share_text(limit.scale) == share_text(1.0)), None)
        yield f"capacity: {words}" if sole is None else f"{sole.name}: {words}; {sole.words}"
        yield from (f"{limit.name}: {limit.words}" for limit in limits if limit is not sole)
        yield from self._at_limit(found, selection, full)

    def _scale_without(self, changed: Problem, budget: float) -> Outcome[RateScale]:
        return self._scale_of(Network(changed), budget)

    def _binding_links(self, found: RateScale) -> list[Tiers]:
        """The full links, if more fits without their limits; none if that is not known in time."""
        full = [tiers for tiers, share in found.carried.items() if share > FULL]
        links = tuple(
            replace(link, bandwidth_bytes_per_s=None) if (link.upstream_tier, link.downstream_tier) in full else link
            for link in self.problem.links
        )
        return full if full and self._fits_more(replace(self.problem, links=links), found) else []

    def _utilisation_binds(self, found: RateScale, full: Collection[Tiers]) -> bool:
        """True if more fits with faster workers. Full pools without a link in `full` prove it without a solve."""
        full_pool = any(found.busy[pool.name] > FULL * pool.count for pool in self.network.pools)
        if full_pool and not full:
            return True
        more = self._fits_more(replace(self.problem, utilisation=2.0 * self.problem.utilisation), found)
        return full_pool if more is None else more

    def _fits_more(self, changed: Problem, found: RateScale) -> bool | None:
        """True if a higher rate scale than that of `found` is feasible for the changed problem; None if not in time."""
        factor = min(1.0, 2.0 * self.base)  # above `base`, because a scale is at most 1
        outcome = self._scale_without(scaled(changed, factor), self.budget)
        if not outcome.is_conclusive:
            return None
        return -outcome.value * factor > found.scale * self.base * (1 + RAISED)

    def _can_be_placed(self) -> bool:
        """True if some selection can be placed at tiny rates when every pool has one worker per operator."""
        count = len(self.problem.operators)
        pools = tuple(replace(pool, count=max(pool.count, count)) for pool in self.network.pools)
        links = tuple(replace(link, bandwidth_bytes_per_s=None) for link in self.problem.links)
        roomy = replace(scaled(self.problem, self.base), pools=pools, links=links)
        proposal = propose(Network(roomy), self.target, SearchLimits(ANY_GAP, self.clock))
        return proposal.bound < math.inf

    def _at_limit(self, found: RateScale, selection: Selection, named: Collection[Tiers]) -> Iterator[str]:
        """Pools, operators and links (but for those `named` before) at their limit at the largest feasible rates."""
        full = [pool for pool in self.network.pools if found.busy[pool.name] > FULL * pool.count]
        if len(full) == len(self.network.pools) > MOST_NAMED:
            workers = sum(pool.count * self.problem.sites.get(pool.tier, 1) for pool in full)
            yield f"full pools: all {len(full)}, with {workers} workers"
            return
        if full:
            in_ = {pool.tier: self.problem.in_each(pool.tier) or f" in {pool.tier}" for pool in full}
            yield "full pools: " + ", ".join(f"{pool.name} ({pool.count}{in_[pool.tier]})" for pool in full)
        names = {pool.name for pool in full}
        demand = self.network.demand(selection)
        short = [name for name, workers in demand.workers.items() if set(workers) <= names]
        held = [name for name in short if self.problem.operator_by_name[name].tiers is not None]
        if others := [name for name in short if name not in held]:
            yield f"run short: {', '.join(others)} (can run in no other pool)"
        for name in held:
            tiers = ", ".join(self.problem.operator_by_name[name].tiers or ())
            yield f"run short: {name} (may run in {tiers} only: {', '.join(sorted(demand.workers[name]))})"
        for link, share in found.carried.items():
            if share > FULL and link not in named:
                yield f"full link: {self._link_text(link)}"

    def _link_text(self, tiers: Tiers) -> str:
        """A link with its bandwidth: `edge -> cloud (4 Mbit/s)`."""
        sites = self.problem.sites.get(tiers[0], 1)
        each = "" if sites == 1 else f" from each of {sites:,} sites"
        bandwidth = self.network.bandwidth[tiers] / sites
        return f"{tiers[0]} -> {tiers[1]} ({plain_text(bandwidth * 8e-6, 4)} Mbit/s{each})"

    def _fits_at_most(self, found: RateScale, selection: Selection, full: Collection[Tiers]) -> str:
        """The share of the rates that fits, with the utilisation if it binds, and the links in `full`."""
        scale = found.scale * self.base
        rates = ", ".join(
            f"{s.name} {plain_text(scale * s.rate_per_s, 4)} of {rate_text(s.rate_per_s)}{self.problem.in_each(s.tier)}"
            for s in self.problem.sources
            if not self.problem.is_of_audit(s.name)
        )
        words = f"at most {plain_text(scale, 4)} of the rates fits ({rates}), with {self._words(selection)}"
        if self._utilisation_binds(found, full):
            margin = largest_margin(self.problem.targets)
            words += f", at a utilisation of at most {self.problem.utilisation * margin.work:g}"
            words += f" with {margin.text}" if margin.text else ""
        if full:
            links, verb = ("link", "is") if len(full) == 1 else ("links", "are")
            words += f"; {links} {', '.join(map(self._link_text, full))} {verb} full"
        return words

    def nearest(self) -> Iterator[str]:
        accuracy, scale = self.nearest_accuracy, self.nearest_rate_scale
        if accuracy is not None and self.fitting is not None:
            words = self._words(self.fitting[1])
            if self.problem.workflows:
                lower = f"all accuracy targets {-accuracy:.10g} points lower"
                yield f"nearest: {lower} are feasible at these rates ({words})"
            else:
                yield f"nearest: accuracy {accuracy:.10g} is feasible at these rates ({words})"
        if scale is not None:
            asked = "" if self.target is None else " at this accuracy"
            yield f"nearest: {plain_text(_rounded_down(scale), 4)} times these rates is feasible{asked}"
