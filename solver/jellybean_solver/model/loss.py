"""A plan after a loss: of a worker, of a site with all its workers, or of a link.

A gateway closes the routes through what is lost. The requests take the routes that are left, in their proportions, or,
where these would be too much for some worker or link, in those of the plan's fallback for this loss. Children are not
spread any more, as a worker may be missing in the round. Audits are shed: they are no promise to clients.

Of several workflows, those that survive the loss are answered as before. The others get what is left: the fallback
serves a share of their requests, and the rest is refused.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.model.forms import as_planned
from jellybean_solver.model.multi_workflow import restricted, with_slos
from jellybean_solver.model.plan import Fallback, Plan, Route
from jellybean_solver.model.problem import Problem, Terms
from jellybean_solver.model.shed_audits import plan_without_audits, without_audits
from jellybean_solver.model.stated_figures import with_figures
from jellybean_solver.model.targets import LossKind, Slo
from jellybean_solver.model.workflow import Source

REHEARSED = 1e-4  # of all requests take the routes of fallbacks, so that these are known to work when they are needed
MOST_LOSSES = 12  # of workers that a judge sees; of more workers one of each group is lost, the busiest
NOTHING = 1e-9  # share of a workflow's requests that counts as none


@dataclass(frozen=True, slots=True)
class Loss:
    """`of`: a worker, whose `kind` is WORKER in any case; a tier; or the two tiers of a link."""

    kind: LossKind
    of: tuple[str, ...]

    def __str__(self) -> str:
        """The loss in words."""
        return self.of[0] if self.kind is LossKind.WORKER else f"the {self.kind} {' -> '.join(self.of)}"


def crossings(plan: Plan, route: Route) -> frozenset[tuple[str, ...]]:
    """The pairs of tiers between which the data of a request crosses on a route."""
    tier_of = {name: plan.worker_by_name[worker].tier for name, worker in route.workers.items()}
    inputs = (edge for name in route.workers for edge in plan.operator_by_name[name].inputs)
    pairs = {
        (tier_of.get(edge.upstream) or plan.source_by_name[edge.upstream].tier, tier_of[edge.downstream])
        for edge in inputs
    }
    return frozenset(pair for pair in pairs if pair[0] != pair[1])


def losses(plan: Plan, kinds: Iterable[LossKind]) -> tuple[Loss, ...]:
    """What a plan may lose: each (spot) worker; each tier with workers and no source; each link that data crosses."""
    plan = plan_without_audits(plan, plan)
    found: list[Loss] = []
    for kind in kinds:
        if kind in (LossKind.WORKER, LossKind.SPOT_WORKER):
            own = [one for one in plan.workers if kind is LossKind.WORKER or one.terms is Terms.SPOT]
            found += [Loss(LossKind.WORKER, (worker.name,)) for worker in own]
        elif kind is LossKind.SITE:
            sources = {source.tier for source in plan.sources}
            used = {worker.tier for worker in plan.workers}
            found += [Loss(kind, (tier,)) for tier in plan.tiers if tier in used - sources]
        else:
            used_links = {pair for route in plan.routes for pair in crossings(plan, route)}
            found += [Loss(kind, pair) for pair in sorted(used_links)]
    return tuple(dict.fromkeys(found))


def judged_losses(plan: Plan) -> Iterator[Loss]:
    """The losses that are simulated: all, but of many workers the busiest of those with the same operators."""
    every = losses(plan, plan.survives)
    if len(plan.workers) <= MOST_LOSSES:
        yield from every
        return
    groups: dict[tuple[object, ...], list[tuple[float, str]]] = {}
    for worker in plan.workers:
        key = worker.pool, *sorted(worker.rates_per_s), *sorted(worker.variants.items())
        groups.setdefault(key, []).append((worker.load, worker.name))
    kept = {max(own)[1] for own in groups.values()}
    yield from (loss for loss in every if loss.kind is not LossKind.WORKER or loss.of[0] in kept)


def survivors(problem: Problem | Plan, plan: Plan, loss: Loss) -> Collection[str]:
    """The workflows whose targets hold after a loss; the only workflow is called ""."""
    is_spot = loss.kind is LossKind.WORKER and plan.worker_by_name[loss.of[0]].terms is Terms.SPOT
    targets = problem.slo_by_workflow.items()
    return [name for name, slo in targets if slo.survives_loss(loss.kind, is_spot=is_spot)]


def with_routes_of_one_workflow(problem: Problem | Plan, plan: Plan) -> Plan:
    """The plan with the routes that cover several workflows divided, as a loss may close the one part and not others.

    Fallbacks number the routes, and their plan has no others.
    """
    if not problem.workflows or plan.fallbacks:
        return plan
    weights: dict[tuple[tuple[str, str], ...], float] = {}
    for route in plan.routes:
        parts: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for item in route.workers.items():
            parts[problem.workflow_of(item[0])].append(item)
        for part in parts.values():
            key = tuple(part)
            weights[key] = weights.get(key, 0.0) + route.weight
    return replace(plan, routes=tuple(Route(weight, dict(key)) for key, weight in weights.items()))


class RoutesAfterLoss:
    """Which of a plan's routes losses close, and how the requests spread then; the routes are read once.

    `workflow`: of each route, which is of one; the only workflow is called "".
    """

    def __init__(self, problem: Problem | Plan, plan: Plan) -> None:
        """`problem`: whose workflows they are; a plan knows them too, once it is scored."""
        plan = plan_without_audits(problem, plan)
        self.workflow = [problem.workflow_of(next(iter(route.workers), "")) for route in plan.routes]
        self._weights = [route.weight for route in plan.routes]
        self._planned = {fallback.lost: fallback.weights for fallback in plan.fallbacks}
        self._through: defaultdict[tuple[LossKind, tuple[str, ...]], list[int]] = defaultdict(list)
        tier_of = {worker.name: worker.tier for worker in plan.workers}
        for number, route in enumerate(plan.routes):
            used = set(route.workers.values())
            for worker in used:
                self._through[LossKind.WORKER, (worker,)].append(number)
            for tier in {tier_of[worker] for worker in used}:
                self._through[LossKind.SITE, (tier,)].append(number)
            for pair in crossings(plan, route):
                self._through[LossKind.LINK, pair].append(number)

    def closed(self, loss: Loss) -> tuple[int, ...]:
        """The numbers of the routes that a loss closes."""
        return tuple(self._through.get((loss.kind, loss.of), ()))

    def is_planned(self, loss: Loss) -> bool:
        """True if the plan states the weights after a loss."""
        return bool(self._planned.get(str(loss)))

    def weights(self, loss: Loss) -> Sequence[float]:
        """The weights of the plan's routes after a loss. Those of a workflow without a route that is left are 0."""
        if planned := self._planned.get(str(loss)):
            return planned
        left = list(self._weights)
        for number in self.closed(loss):
            left[number] = 0.0
        total = self.shares(left)
        return [
            weight / total[workflow] if weight else 0.0 for weight, workflow in zip(left, self.workflow, strict=True)
        ]

    def shares(self, weights: Sequence[float]) -> Mapping[str, float]:
        """Workflow -> the share of its requests that is answered with these weights of the routes."""
        found = dict.fromkeys(self.workflow, 0.0)
        for workflow, weight in zip(self.workflow, weights, strict=True):
            found[workflow] += weight
        return found


def served_shares(plan: Plan) -> Mapping[Loss, Mapping[str, float]]:
    """For each loss that a plan is asked to bear: workflow -> the share of its requests that is answered then."""
    after = RoutesAfterLoss(plan, plan)
    return {loss: after.shares(after.weights(loss)) for loss in losses(plan, plan.survives)}


def with_less_left(problem: Problem, plan: Plan, parts: Mapping[Loss, float]) -> Plan:
    """The plan with fallbacks that serve a part of what they left to workflows that do not survive a loss.

    Where these are whole streams, it is all or nothing.
    """
    after = RoutesAfterLoss(problem, plan)
    whole = {problem.workflow_of(source.name) for source in problem.sources if source.streams}
    fallbacks: list[Fallback] = []
    for loss in losses(plan, problem.survives):
        weights, kept = after.weights(loss), survivors(problem, plan, loss)
        part = parts.get(loss, 1.0)
        scaled = (
            weight if workflow in kept else weight * (math.floor(part) if workflow in whole else part)
            for weight, workflow in zip(weights, after.workflow, strict=True)
        )
        stated = part < 1.0 or after.is_planned(loss)
        fallbacks.append(Fallback(str(loss), after.closed(loss), tuple(scaled) if stated else ()))
    return replace(plan, fallbacks=tuple(fallbacks))


def plan_after(problem: Problem, plan: Plan, loss: Loss) -> Plan | None:
    """The plan after a loss, with the problem's figures; None if a workflow that survives it is not answered.

    Workflows that do not survive it have no targets then, and the rates of the share of their requests that is served.
    Those of which none is served are left out.
    """
    plan = plan_without_audits(problem, plan)
    problem = without_audits(as_planned(problem, plan))
    plan = with_routes_of_one_workflow(problem, plan)
    after = RoutesAfterLoss(problem, plan)
    weights = after.weights(loss)
    shares = {name: share for name, share in after.shares(weights).items() if share > NOTHING}
    kept = survivors(problem, plan, loss)
    if not shares or any(name in after.workflow and name not in shares for name in kept):
        return None

    def targets(workflow: str, slo: Slo) -> Slo:
        return slo if workflow in kept else Slo(margin=slo.margin)  # how uncertain rates and times are

    def left(source: Source) -> Source:
        share = shares[problem.workflow_of(source.name)]
        return replace(source, rate_per_s=source.rate_per_s * share, streams=round(source.streams * share))

    asked = with_slos(restricted(problem, shares), targets)
    taken = zip(plan.routes, weights, after.workflow, strict=True)
    routes = tuple(
        replace(route, weight=weight / shares[of]) for route, weight, of in taken if weight > 0 and of in shares
    )
    used = {name for route in routes for name in route.workers.values()}
    served = replace(
        with_slos(restricted(plan, shares), targets),
        workers=tuple(replace(one, rates_per_s={}) for one in plan.workers if one.name in used),
        routes=routes,
        spread={},
        fallbacks=(),
    )
    return with_figures(replace(asked, sources=tuple(map(left, asked.sources))), served)
