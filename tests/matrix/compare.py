"""Compares answers with the oracle: feasibility and cost are equal within the stated gap.

p99 latencies are unknown to the oracle: with a target a plan costs at least as much as it says, and keeps the target.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

from tests.brute_force.pattern_program import Optimum
from tests.matrix.draft import Draft, scaled
from tests.matrix.moving import cheapest_change
from tests.matrix.oracle import best
from tests.matrix.questions import INFEASIBLE, PLANNED, TRACE, Answer

EXACT, MIXED = 1e-6, 3e-4  # relative: programs of mixtures and losses are solved to 1e-5, the oracle to its tolerances
RATE_STEP = 0.006  # the highest rates are searched to 0.5 %
HORIZON_H = 24.0


def disagreements(question: str, draft: Draft, answer: Answer) -> list[str]:
    """What the oracle contradicts, in words. `draft`: as the question was asked about it.

    TimeoutError if its program is too large, or takes too long.
    """
    if answer.status not in (PLANNED, INFEASIBLE) or question not in CHECKS:
        return []
    return list(CHECKS[question](draft, answer))


def _is_timed(draft: Draft) -> bool:
    """True if latencies matter, so that the oracle has only a bound."""
    return any(one.latency_p99_s is not None or one.objective == "latency" for one in draft.workflows)


def _is_relaxed(draft: Draft) -> bool:
    """True if the oracle knows less than the plan, so that it has only a bound: the latency, or that streams are whole.

    Workers take whole streams of an operator with a state in any case; with mixtures and losses routes do, too.
    """
    has_state = any(operator.has_state for one in draft.workflows for operator in one.operators)
    by_ways = bool(draft.limits) or any(one.may_mix or one.survive for one in draft.workflows)
    return _is_timed(draft) or (has_state and (by_ways or draft.counts != "cost"))


def _tolerance(draft: Draft) -> float:
    is_mixed = any(one.may_mix or one.survive for one in draft.workflows) or bool(draft.limits)
    is_mixed |= draft.counts != "cost" and draft.budget_usd_per_h is not None
    return MIXED if is_mixed else EXACT


def _plan(draft: Draft, answer: Answer) -> Iterator[str]:
    """Of the commands `plan` and `explain`."""
    if draft.workflows[0].objective == "rate":
        yield from _highest_rate(draft, answer)
        return
    known = best(draft)
    yield from _feasibility(draft, answer, known)
    if answer.status != PLANNED or known is None:
        return
    found = answer.found.get("plan", answer.found)
    yield from _value(draft, found["certificate"], known)
    stated = answer.found.get("latency_p99") or []
    for reached in stated.get("reached", []) if isinstance(stated, dict) else stated:
        is_hard = all(one.latency_penalty_usd_per_h_s is None for one in draft.workflows)
        if is_hard and reached["simulated_s"] > reached["target_s"] * 1.001:
            yield f"p99 {reached['simulated_s']} s above its target of {reached['target_s']} s"


def _feasibility(draft: Draft, answer: Answer, known: Optimum | None) -> Iterator[str]:
    if known is None and answer.status == PLANNED:
        yield "planned, but nothing is feasible"
    is_soft = all(one.latency_penalty_usd_per_h_s is not None for one in draft.workflows if one.latency_p99_s)
    is_exact = not _is_relaxed(draft) or (is_soft and not _is_relaxed(_at_cost(draft, is_timed=False)))
    if known is not None and answer.status == INFEASIBLE and is_exact:
        yield f"infeasible, but {known.value:.8g} is feasible"


def _value(draft: Draft, certificate: dict[str, Any], known: Optimum, scale: float = 1.0) -> Iterator[str]:
    """Compare value and bound of a certificate. `scale`: of its figures to those of the oracle."""
    value, bound, little = certificate["objective"] * scale, certificate["bound"] * scale, _tolerance(draft)
    if draft.workflows[0].objective == "mean_accuracy":
        value, bound, known = -value, -bound, Optimum(-known.value, -known.bound)
    margin = little * abs(known.value) + 1e-6
    if value < known.bound - margin:
        yield f"value {value:.8g} is better than the best, {known.bound:.8g}"
    if not _is_relaxed(draft) and bound > known.value + margin:
        yield f"bound {bound:.8g} is above the best, {known.value:.8g}"
    if not _is_relaxed(draft) and certificate["termination"] == "optimal" and value > known.value + margin:
        yield f"value {value:.8g}, called optimal, is worse than the best, {known.value:.8g}"


def _highest_rate(draft: Draft, answer: Answer) -> Iterator[str]:
    """The rates are feasible, and clearly higher ones are not."""
    if any(operator.has_state for one in draft.workflows for operator in one.operators):
        return
    if answer.status == INFEASIBLE:
        if not _is_relaxed(draft) and best(scaled(_at_cost(draft), 0.05)) is not None:
            yield "no rates are feasible, but a twentieth of those of the documents is"
        return
    lower, higher = (_at_rates(draft, answer.found["overrides"], 1 + by) for by in (-1e-9, RATE_STEP))
    known = best(lower)
    if known is None:
        yield f"the rates are not feasible: {answer.found['overrides']}"
        return
    if answer.found["certificate"]["objective"] < known.bound * (1 - _tolerance(draft)) - 1e-6:
        yield f"the plan for the highest rates costs less than {known.bound:.8g}"
    is_proven = "no plan was found" in answer.found["best"]
    if is_proven and not _is_relaxed(draft) and best(higher) is not None:
        yield f"higher rates are feasible than {answer.found['overrides']}"


def _at_rates(draft: Draft, options: list[str], factor: float) -> Draft:
    """The project at a factor on the rates of options, which name sources as `--set` does."""
    found = _at_cost(draft)
    stated = dict(text.split("=", 1) for text in options)
    rates = {name: float(value.removesuffix("/s")) * factor for name, value in stated.items() if ".rate" in name}
    for workflow in found.workflows:
        for source in workflow.sources:
            own = f"sources.{source.name}.rate"
            name = f"{workflow.name}.{own}" if draft.is_several else own
            source.rate_per_s = rates.get(name, source.rate_per_s)
            for row in found.rows if workflow is found.workflows[0] and source.name == "camera" else ():
                row.rate_per_s = rates.get(f"{row.name}.{name}", row.rate_per_s)
    return found


def _at_cost(draft: Draft, *, is_timed: bool = True, counts: str = "cost") -> Draft:
    """The project with the cost as objective, or what counts instead, in which everybody is served.

    `is_timed`: with its p99 latencies.
    """
    found = copy.deepcopy(draft)
    for one in (*found.workflows, *found.rows):
        one.worth_usd_per_h = None
    for workflow in found.workflows:
        workflow.objective = counts
        if not is_timed:
            workflow.latency_p99_s = workflow.latency_penalty_usd_per_h_s = None
    return found


def _from(draft: Draft, answer: Answer) -> Iterator[str]:
    """The best change costs as much as the oracle says, over the horizon and with what is loaded."""
    objective = draft.workflows[0].objective
    if objective in ("rate", "latency"):
        return
    yield from _feasibility(draft, answer, best(draft))
    change = answer.found.get("replan", {})
    levels = {one.priority for one in (*draft.workflows, *draft.rows)}
    if answer.status != PLANNED or not change.get("best") or objective == "mean_accuracy" or len(levels) > 1:
        return
    known = cheapest_change(draft, answer.found["before"], HORIZON_H)
    if known is None:
        return
    usd, bound = change["best"]["total_usd"] / HORIZON_H, change["bound_usd"] / HORIZON_H
    margin = _tolerance(draft) * known.value + 1e-5
    if usd < known.bound - margin:
        yield f"changed for {usd:.8g} USD/h, below {known.bound:.8g}"
    if not _is_relaxed(draft) and bound > known.value + margin:
        yield f"bound {bound:.8g} is above the best, {known.value:.8g}"


def _add(draft: Draft, answer: Answer) -> Iterator[str]:
    """What is served stays, so the whole costs at least as much as the best plan."""
    if answer.status != PLANNED or draft.workflows[0].objective != draft.counts:
        return
    known = best(draft)
    if known is None:
        yield "planned, but nothing is feasible"
    elif answer.found["certificate"]["objective"] < known.bound - _tolerance(draft) * known.value - 1e-6:
        yield f"added for {answer.found['certificate']['objective']:.8g}, below {known.bound:.8g}"


def _calendar(draft: Draft, answer: Answer) -> Iterator[str]:
    if _is_relaxed(draft) or any(operator.has_state for one in draft.workflows for operator in one.operators):
        return
    known = [best(scaled(draft, factor)) for factor in TRACE]
    values = [one.value for one in known if one is not None]
    if answer.status == INFEASIBLE:
        if len(values) == len(known):
            yield "no calendar, but there is a plan for each period"
        return
    if len(values) < len(known):
        yield "a calendar, but no plan for some period"
        return
    total, little = math.fsum(values), _tolerance(draft)
    if answer.found["bound_usd"] > total * (1 + little) + 1e-6:
        yield f"bound {answer.found['bound_usd']:.8g} is above the best plans, {total:.8g}"
    is_soft = any(one.penalty_usd_per_h is not None or one.worth_usd_per_h is not None for one in draft.workflows)
    if not is_soft and answer.found["total_usd"] < total * (1 - little) - 1e-6:
        yield f"total {answer.found['total_usd']:.8g} is below the best plans, {total:.8g}"


def _frontier(draft: Draft, answer: Answer) -> Iterator[str]:
    """Each corner is the cheapest plan in which all have this accuracy. Budget and p99 are looked at afterwards."""
    if answer.status != PLANNED or len({one.may_mix for one in draft.workflows}) > 1:
        return
    for corner in answer.found["corners"]:
        least = _at_cost(draft, is_timed=False, counts=draft.counts)
        asked = _with_accuracy(least, corner.get("target", corner["accuracy"]))
        asked.budget_usd_per_h, asked.limits = None, {}
        known, cost = best(asked), corner["cost_usd_per_h"]["total"]
        if known is None:
            yield f"accuracy {corner['accuracy']:.8g} is not feasible"
            continue
        margin = MIXED * known.value + 1e-6
        if cost < known.bound - margin:
            yield f"{cost:.8g} USD/h for {corner['accuracy']:.8g}, below {known.bound:.8g}"
        if not _is_relaxed(asked) and corner["bound_usd_per_h"] > known.value + margin:
            yield f"bound {corner['bound_usd_per_h']:.8g} of {corner['accuracy']:.8g} is above {known.value:.8g}"


def _with_accuracy(draft: Draft, accuracy: float) -> Draft:
    """The project in which each workflow and site has this accuracy as target: the mean where it mixes variants."""
    target = accuracy - 1e-6
    for row in draft.rows:
        row.accuracy = None
    for workflow in draft.workflows:
        workflow.penalty_usd_per_h = None
        if workflow.mean_accuracy is not None:
            workflow.mean_accuracy = target
        else:
            workflow.accuracy = target
    return draft


def _curve(draft: Draft, answer: Answer) -> Iterator[str]:
    """Each point of a curve of two figures is feasible, and not cheaper than the best plan for its other figure."""
    has_state = any(operator.has_state for one in draft.workflows for operator in one.operators)
    mixing = {one.may_mix for one in draft.workflows}
    if answer.status != PLANNED or len(mixing) > 1 or draft.workflows[0].objective == "mean_accuracy":
        return
    of = {answer.found["x"], answer.found["y"]}
    if has_state and "rate" in of:
        return
    for point in answer.found["points"]:
        if not point["feasible"]:
            continue
        asked = _at_cost(draft, is_timed=False)
        if "cost" in of:
            asked.budget_usd_per_h = None
        if "accuracy" in of:
            asked = _with_accuracy(asked, point["fixed"])
        if "rate" in of:
            stated = _first_rate(draft)
            asked = scaled(asked, point["rate"] / stated * (1 - 1e-9))
        known = best(asked)
        if known is None:
            yield f"the point at {point['fixed']:.6g} is not feasible"
        elif "cost" in of and point["cost"] < known.value * (1 - MIXED) - _penalties(draft, known) - 1e-6:
            yield f"the point at {point['fixed']:.6g} for {point['cost']:.8g}, below {known.bound:.8g}"


def _first_rate(draft: Draft) -> float:
    """The rate of the first source of a plan, which curves name."""
    rate = draft.rows[0].rate_per_s if draft.rows else None
    return draft.workflows[0].sources[0].rate_per_s if rate is None else rate


def _penalties(draft: Draft, known: Optimum) -> float:
    """What may be penalty of the best plan's value."""
    return known.value if any(one.penalty_usd_per_h is not None for one in draft.workflows) else 0.0


CHECKS: dict[str, Callable[[Draft, Answer], Iterator[str]]] = {
    "plan": _plan,
    "explain": _plan,
    "from": _from,
    "add": _add,
    "calendar": _calendar,
    "frontier": _frontier,
    "of latency-cost": _curve,
    "of rate-cost": _curve,
    "of accuracy-rate": _curve,
}
