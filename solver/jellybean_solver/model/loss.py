"""A plan after a loss: of a worker, of a site with all its workers, or of a link.

A gateway closes the routes through what is lost. The requests take the routes that are left, in their proportions, or,
where these would be too much for some worker or link, in those of the plan's fallback for this loss. Children are not
spread any more, as a worker may be missing in the round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.model.plan import Plan, Route
from jellybean_solver.model.problem import Problem, Terms
from jellybean_solver.model.stated_figures import with_figures
from jellybean_solver.model.targets import LossKind

REHEARSED = 1e-4  # of all requests take the routes of fallbacks, so that these are known to work when they are needed
MOST_LOSSES = 12  # of workers that a judge sees; of more workers one of each group is lost, the busiest


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
    tier_of = {source.name: source.tier for source in plan.sources}
    tier_of |= {name: plan.worker_by_name[worker].tier for name, worker in route.workers.items()}
    pairs = {
        (tier_of[edge.upstream], tier_of[operator.name]) for operator in plan.operators for edge in operator.inputs
    }
    return frozenset(pair for pair in pairs if pair[0] != pair[1])


def losses(plan: Plan, kinds: Iterable[LossKind]) -> tuple[Loss, ...]:
    """What a plan may lose: each (spot) worker; each tier with workers and no source; each link that data crosses."""
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
    every = losses(plan, plan.slo.survives)
    if len(plan.workers) <= MOST_LOSSES:
        yield from every
        return
    groups: dict[tuple[object, ...], list[tuple[float, str]]] = {}
    for worker in plan.workers:
        key = worker.pool, *sorted(worker.rates_per_s), *sorted(worker.variants.items())
        groups.setdefault(key, []).append((worker.load, worker.name))
    kept = {max(own)[1] for own in groups.values()}
    yield from (loss for loss in every if loss.kind is not LossKind.WORKER or loss.of[0] in kept)


class RoutesAfterLoss:
    """Which of a plan's routes losses close, and how the requests spread then; the routes are read once."""

    def __init__(self, plan: Plan) -> None:
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

    def weights(self, loss: Loss) -> Sequence[float] | None:
        """The weights of the plan's routes after a loss; None if no request can be answered."""
        planned = self._planned.get(str(loss))
        if planned:
            return planned
        left = list(self._weights)
        for number in self.closed(loss):
            left[number] = 0.0
        total = sum(left)
        return [weight / total for weight in left] if total > 0 else None


def plan_after(problem: Problem, plan: Plan, loss: Loss) -> Plan | None:
    """The plan after a loss, with the problem's figures; None if no request can be answered."""
    weights = RoutesAfterLoss(plan).weights(loss)
    if weights is None:
        return None
    taken = zip(plan.routes, weights, strict=True)
    routes = tuple(replace(route, weight=weight) for route, weight in taken if weight > 0)
    used = {name for route in routes for name in route.workers.values()}
    workers = tuple(replace(one, rates_per_s={}) for one in plan.workers if one.name in used)
    return with_figures(problem, replace(plan, routes=routes, workers=workers, spread={}, fallbacks=()))
