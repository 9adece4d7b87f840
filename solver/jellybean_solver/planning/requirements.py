"""The requirements of a problem as a list, each of which can be dropped or relaxed alone.

If all are dropped, only the structure remains: variants, profiles, tiers and declared links.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from jellybean_solver.figures import plain_text, rate_text, size_text
from jellybean_solver.model.forms import in_forms, without_forms
from jellybean_solver.model.multi_workflow import with_targets
from jellybean_solver.model.problem import Problem, Sharing
from jellybean_solver.model.resources import amount_text
from jellybean_solver.model.targets import NO_MARGIN
from jellybean_solver.model.variant_ratios import plain
from jellybean_solver.model.workflow import Operator, request_s

LEAST_RATE = 1e-6  # factor on all rates used for "no rate", as a rate of 0 has no plan


class RequirementKind(StrEnum):
    """Kinds of requirements, most important to users first. Comments: the unit of `Requirement.value`."""

    ACCURACY = "accuracy"  # percent, at least
    MEAN_ACCURACY = "mean_accuracy"  # percent, at least, of all requests together
    RATE = "rate"  # factor on all rates
    BUDGET = "budget"  # USD per hour, at most
    LIMIT = "limit"  # of a resource, in its unit, at most
    LATENCY_P99 = "latency_p99"  # seconds, at most
    SURVIVE = "survive"  # no value; what may be lost, one at a time, and of several workflows for which one
    MARGIN = "margin"  # no value; times and rates may be higher than stated
    UTILISATION = "utilisation"  # busy share of a worker, at most
    SHARING = "sharing"  # no value; an exclusive pool must not be shared
    BANDWIDTH = "bandwidth"  # bytes per second of a link, at most
    RESIDENCY = "residency"  # no value; tiers where an operator may run, or where an edge's data may be
    MEMORY = "memory"  # bytes of a worker, at most
    DEVICE_MEMORY = "device_memory"  # bytes of a worker's device, at most
    COUNT = "count"  # workers of a pool, at most


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement.

    `subjects`: names of what it applies to: a pool, a link's two tiers, sources, exclusive pools, an operator, or an
    edge's two ends, a resource, or the kind of a loss; for accuracy and latency the workflow if there are several, else
    empty.

    `value` is in the kind's unit; None for sharing, residency, losses and margins, which are either kept or dropped.
    """

    kind: RequirementKind
    subjects: tuple[str, ...] = ()
    value: float | None = None
    words: str = ""


def requirements(problem: Problem, exclusive: Sequence[tuple[str, ...]] | None = None) -> tuple[Requirement, ...]:
    """All requirements that can be relaxed, most important to users first.

    `exclusive`: groups of pools that the user made exclusive by one setting; each group is one requirement. By default
    every exclusive pool is one.
    """
    if exclusive is None:
        exclusive = [(pool.name,) for pool in problem.pools if pool.sharing is Sharing.EXCLUSIVE]
    found = [*_of_workflows(problem), *_of_all_workflows(problem), *_of_fleet(problem), *_of_places(problem)]
    found += [
        Requirement(RequirementKind.SHARING, names, None, f"exclusive workers in {', '.join(names)}")
        for names in exclusive
    ]
    order = list(RequirementKind)
    return tuple(sorted(found, key=lambda requirement: order.index(requirement.kind)))


def _of_workflows(problem: Problem) -> Iterator[Requirement]:
    """Accuracy, rate and latency requirements of each workflow; a single workflow is not named in them."""
    for workflow in problem.workflows or (None,):
        slo = problem.slo if workflow is None else workflow.slo
        subjects, of = ((), "") if workflow is None else ((workflow.name,), f" of {workflow.name}")
        if slo.accuracy is not None:
            words = f"the accuracy target of {slo.accuracy:g}{of}"
            yield Requirement(RequirementKind.ACCURACY, subjects, slo.accuracy, words)
        if slo.mean_accuracy is not None:
            soft = "soft " if slo.hard_mean is None else ""
            words = f"the {soft}target of {slo.mean_accuracy:g} for the mean accuracy{of}"
            yield Requirement(RequirementKind.MEAN_ACCURACY, subjects, slo.mean_accuracy, words)
        sources = [
            source
            for source in problem.sources
            if (workflow is None or problem.workflow_of(source.name) == workflow.name)
            and not problem.is_of_audit(source.name)  # it has a share of the others' rates
        ]
        rates = " and ".join(f"{s.name} {rate_text(s.rate_per_s)}{problem.in_each(s.tier)}" for s in sources)
        yield Requirement(RequirementKind.RATE, tuple(s.name for s in sources), 1.0, f"the rate of {rates}")
        if slo.latency_p99_s is not None:
            words = f"the p99 latency of {slo.latency_p99_s * 1e3:g} ms{of}"
            yield Requirement(RequirementKind.LATENCY_P99, subjects, slo.latency_p99_s, words)
        for kind in slo.survives:
            words = (
                f"that {subjects[0]} survives the loss of any 1 {kind}"
                if subjects
                else f"that any 1 {kind} may be lost"
            )
            yield Requirement(RequirementKind.SURVIVE, (kind.value, *subjects), None, words)


def _of_all_workflows(problem: Problem) -> Iterator[Requirement]:
    budget = problem.slo.budget_usd_per_h
    if budget is not None:
        yield Requirement(RequirementKind.BUDGET, (), budget, f"the budget of {plain_text(budget)} USD/h")
    for name, most in problem.most.items():
        yield Requirement(RequirementKind.LIMIT, (name,), most, f"the limit of {amount_text(name, most)}")
    margin = problem.margin
    if margin != NO_MARGIN:
        yield Requirement(RequirementKind.MARGIN, (), None, f"the margin of {margin.text}")
    if (cap := problem.utilisation * margin.work) < 1.0:
        yield Requirement(RequirementKind.UTILISATION, (), cap, f"the utilisation cap of {cap:g}")


def _of_fleet(problem: Problem) -> Iterator[Requirement]:
    for link in problem.links:
        if link.bandwidth_bytes_per_s is not None:
            ends = link.tiers
            link_of = "each link" if problem.sites_of(ends[0]) > 1 else "the link"
            words = f"the {plain_text(link.bandwidth_bytes_per_s * 8e-6)} Mbit/s of {link_of} {ends[0]} -> {ends[1]}"
            yield Requirement(RequirementKind.BANDWIDTH, ends, link.bandwidth_bytes_per_s, words)
    for pool in problem.pools:
        if pool.memory_bytes is not None:
            words = f"the {size_text(pool.memory_bytes)} of each worker of {pool.name}"
            yield Requirement(RequirementKind.MEMORY, (pool.name,), pool.memory_bytes, words)
        if pool.device_memory_bytes is not None:
            words = f"the {pool.device_memory_bytes / 2**20:g} MiB of the device of each worker of {pool.name}"
            yield Requirement(RequirementKind.DEVICE_MEMORY, (pool.name,), pool.device_memory_bytes, words)
        workers = "worker" if pool.count == 1 else "workers"
        words = f"the {pool.count} {workers} of {pool.name}{problem.in_each(pool.tier)}"
        yield Requirement(RequirementKind.COUNT, (pool.name,), pool.count, words)


def _of_places(problem: Problem) -> Iterator[Requirement]:
    for operator in problem.operators:
        if operator.tiers is not None:
            words = f"{operator.name} in {' or '.join(operator.tiers)} only"
            yield Requirement(RequirementKind.RESIDENCY, (operator.name,), None, words)
        for edge in operator.inputs:
            if edge.tiers is not None:
                words = f"the data {edge.upstream} -> {edge.downstream} in {' or '.join(edge.tiers)} only"
                yield Requirement(RequirementKind.RESIDENCY, (edge.upstream, edge.downstream), None, words)


def relaxed(problem: Problem, requirement: Requirement, value: float) -> Problem:
    """The problem with the requirement's limit set to `value`, in its kind's unit."""
    return _CHANGES[requirement.kind](problem, requirement.subjects, value)


def scaled(problem: Problem, factor: float, names: Collection[str] | None = None) -> Problem:
    """The problem with the rates of the sources in `names` (None: all sources) multiplied by `factor`.

    An audit keeps its share of the requests.
    """
    sources = tuple(
        replace(source, rate_per_s=source.rate_per_s * factor)
        if names is None or problem.audited_name(source.name) in names
        else source
        for source in problem.sources
    )
    return replace(problem, sources=sources)


def drop(problem: Problem, *dropped: Requirement) -> Problem:
    """The problem without these requirements."""
    changed = problem
    for requirement in dropped:
        value = _NOTHING.get(requirement.kind, math.inf)
        if requirement.kind is RequirementKind.COUNT:
            value = _enough(problem, requirement.subjects[0])
        changed = relaxed(changed, requirement, value)
    return changed


def _enough(problem: Problem, name: str) -> int:
    """An upper bound on the workers of a pool in any plan: each operator alone, with its slowest variant.

    A plan that mixes has a worker more of each variant, one that bears losses twice as many.
    """
    every = [without_forms(problem)]
    for operator in problem.operators:
        every += [own for form in operator.forms if (own := in_forms(problem, {operator.name: form})) is not None]
    needed: dict[str, int] = {}
    for one in every:
        for part, workers in _workers_alone(one, name).items():
            needed[part] = max(workers, needed.get(part, 0))
    most, pool = sum(needed.values()), problem.pool_by_name[name]
    return max(2 * most if problem.survives else most, pool.count)


def _workers_alone(problem: Problem, pool: str) -> dict[str, int]:
    """Operator -> the workers of a pool that it needs at most, if it runs there alone."""
    rates, sites = plain(problem, max).rate_per_s, problem.sites_of(problem.pool_by_name[pool].tier)
    found: dict[str, int] = {}
    for operator in problem.operators:
        known = [variant.service.get(pool, {}) for variant in operator.variants]
        slowest_s = max((request_s(times, batch) for times in known for batch in times), default=0.0)
        found[operator.name] = len(known) if problem.may_mix else 1
        found[operator.name] += math.ceil(rates[operator.name] * slowest_s / problem.utilisation / sites)
    return found


Change = Callable[[Problem, tuple[str, ...], float], Problem]  # a problem, a requirement's subjects, its new value


def _finite(value: float) -> float | None:
    """A limit as problems state it: None without one."""
    return value if math.isfinite(value) else None


def _slo(field: str) -> Change:
    return lambda problem, subjects, value: _with_target(problem, subjects, field, _finite(value))


def _with_target(problem: Problem, subjects: Sequence[str], field: str, value: Any) -> Problem:
    """The problem with another target. `subjects`: the workflow, of several."""
    if subjects:
        return with_targets(problem, subjects[0], **{field: value})
    return replace(problem, slo=replace(problem.slo, **{field: value}))


def _limit(problem: Problem, subjects: tuple[str, ...], value: float) -> Problem:
    most = {**problem.most, subjects[0]: value}
    return replace(problem, most={name: limit for name, limit in most.items() if math.isfinite(limit)})


def _pool(field: str, stated: Callable[[float], object] = _finite) -> Change:
    """A change of a field of pools. `stated`: a value as they state it."""

    def apply(problem: Problem, subjects: tuple[str, ...], value: float) -> Problem:
        changed: dict[str, Any] = {field: stated(value)}
        pools = tuple(replace(pool, **changed) if pool.name in subjects else pool for pool in problem.pools)
        return replace(problem, pools=pools)

    return apply


def _link(problem: Problem, subjects: tuple[str, ...], value: float) -> Problem:
    links = tuple(
        replace(link, bandwidth_bytes_per_s=_finite(value)) if ends == subjects else link
        for link in problem.links
        for ends in [link.tiers]
    )
    return replace(problem, links=links)


def _unspared(problem: Problem, subjects: tuple[str, ...], value: float) -> Problem:
    kind, *workflow = subjects
    survives = problem.slo_by_workflow["".join(workflow)].survives
    return _with_target(problem, workflow, "survives", tuple(one for one in survives if one.value != kind))


def _busier(problem: Problem, subjects: tuple[str, ...], value: float) -> Problem:
    return replace(problem, utilisation=value / problem.margin.work)


def _without_margin(problem: Problem, subjects: tuple[str, ...], value: float) -> Problem:
    work = problem.margin.work
    for workflow in problem.workflows:
        problem = with_targets(problem, workflow.name, margin=NO_MARGIN)
    slo = replace(problem.slo, margin=NO_MARGIN)
    return replace(problem, slo=slo, utilisation=problem.utilisation * work)


def _anywhere(problem: Problem, subjects: tuple[str, ...], value: float) -> Problem:
    name = subjects[-1]  # the operator whose residency it is, or whose input's

    def freed(part: Operator, upstreams: Collection[str]) -> Operator:
        if len(subjects) == 1:
            return replace(part, tiers=None)
        inputs = (replace(edge, tiers=None) if edge.upstream in upstreams else edge for edge in part.inputs)
        return replace(part, inputs=tuple(inputs))

    def changed(operator: Operator) -> Operator:
        if operator.name != name:
            return operator
        forms = []
        for form in operator.forms:
            upstreams = {subjects[0], *(part.name for part in form.operators)}  # the data may be passed on inside
            forms.append(replace(form, operators=tuple(freed(part, upstreams) for part in form.operators)))
        return replace(freed(operator, subjects[:1]), forms=tuple(forms))

    return replace(problem, operators=tuple(map(changed, problem.operators)))


_NOTHING = {  # of all other kinds: inf; without a mean to reach, requests may still get unlike variants
    RequirementKind.RATE: LEAST_RATE,
    RequirementKind.UTILISATION: 1.0,
    RequirementKind.MEAN_ACCURACY: 0.0,
}

_CHANGES: dict[RequirementKind, Change] = {
    RequirementKind.ACCURACY: _slo("accuracy"),
    RequirementKind.MEAN_ACCURACY: _slo("mean_accuracy"),
    RequirementKind.SURVIVE: _unspared,
    RequirementKind.RATE: lambda problem, subjects, value: scaled(problem, value, subjects),
    RequirementKind.BUDGET: _slo("budget_usd_per_h"),
    RequirementKind.LIMIT: _limit,
    RequirementKind.LATENCY_P99: _slo("latency_p99_s"),
    RequirementKind.MARGIN: _without_margin,
    RequirementKind.UTILISATION: _busier,
    RequirementKind.SHARING: _pool("sharing", lambda _: Sharing.SHARED),
    RequirementKind.BANDWIDTH: _link,
    RequirementKind.MEMORY: _pool("memory_bytes"),
    RequirementKind.DEVICE_MEMORY: _pool("device_memory_bytes"),
    RequirementKind.RESIDENCY: _anywhere,
    RequirementKind.COUNT: _pool("count", int),
}
