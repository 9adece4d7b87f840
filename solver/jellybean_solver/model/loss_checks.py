"""Whether a plan's workers and links can do what its routes bring after a loss, for many losses of many workers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from jellybean_solver.model.flows import flows
from jellybean_solver.model.loss import (
    REHEARSED,
    Loss,
    RoutesAfterLoss,
    losses,
    survivors,
    with_routes_of_one_workflow,
)
from jellybean_solver.model.plan import Plan, Route
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.route_drawing import own_routes
from jellybean_solver.model.selection_shares import selection_shares
from jellybean_solver.model.shed_audits import plan_without_audits, without_audits
from jellybean_solver.model.streams import whole_streams
from jellybean_solver.model.targets import LIMIT_TOLERANCE, Slo

Floats = npt.NDArray[np.float64]
WHOLE = 1e-6  # of a stream: less is a rounding error


class RouteLoads:
    """What each route brings if all requests take it, by the figures of the plan.

    `busy`: (worker, route) -> share of the worker's time; `sent`: (link, route) -> share of its bandwidth; `accuracy`:
    of each route's selection, in percent; NaN if it is not known. `routes_of`: numbers of each workflow's routes.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan, self.streams = problem, plan, whole_streams(problem)
        self.workers = {worker.name: number for number, worker in enumerate(plan.workers)}
        limited = [link for link in problem.links if link.bandwidth_bytes_per_s is not None]
        self.links = {link.tiers: number for number, link in enumerate(limited)}
        self.busy: Floats = np.zeros((len(self.workers), len(plan.routes)))
        self.sent: Floats = np.zeros((len(self.links), len(plan.routes)))
        self.accuracy: Floats = np.full(len(plan.routes), np.nan)
        self.routes_of: dict[str, list[int]] = {}
        for number, route in enumerate(plan.routes):
            self._fill(number, replace(route, weight=1.0))

    def _fill(self, number: int, route: Route) -> None:
        problem, plan = self.problem, replace(self.plan, routes=(route,))
        (part,) = selection_shares(plan)
        for name, at in route.workers.items():
            worker = plan.worker_by_name[at]
            each = plan.operator_at(name, at).request_s(worker.pool) / plan.sites_of(worker.tier)
            self.busy[self.workers[at], number] += part.rates_per_s[name] * each
        for flow in flows(plan):
            if flow.tiers in self.links:
                most = problem.usable_bytes_per_s(problem.link_by_tiers[flow.tiers]) or 0.0
                share = flow.bytes_per_s / most / plan.sites_of(flow.upstream_tier)
                self.sent[self.links[flow.tiers], number] += share
        workflow = problem.workflow_of(next(iter(route.workers)))
        self.routes_of.setdefault(workflow, []).append(number)
        value = problem.accuracy_of(workflow).value(part.selection)
        self.accuracy[number] = np.nan if value is None else value

    def complaints(self, weights: Sequence[float], kept: Collection[str], tolerance: float) -> Iterator[str]:
        """What would be too much with these weights of the routes, at most one sentence for each kind of limit.

        `kept`: workflows whose targets must hold. `tolerance`: relative excess of a limit that does not count.
        """
        taken, cap = np.asarray(weights), self.problem.utilisation
        loads = self.busy @ taken
        if loads.size and (most := float(loads.max())) > cap * (1 + tolerance):
            busiest = self.plan.workers[int(loads.argmax())].name
            yield f"{busiest} would be busy {most:.4f} of the time, above the cap of {cap:g}"
        carried = self.sent @ taken
        if carried.size and (most := float(carried.max())) > 1 + tolerance:
            link = " -> ".join([*self.links][int(carried.argmax())])
            yield f"the link {link} would carry {(most - 1) * 100:.1f} % more than its bandwidth"
        for streams in self.streams:
            routes = [replace(route, weight=own) for route, own in zip(self.plan.routes, weights, strict=True)]
            counts = [streams.count * own for own in own_routes(routes, streams.operators).values()]
            if any(abs(count - round(count)) > WHOLE for count in counts):
                yield f"{streams.operators[0]} would have routes with part of a stream"
        for name, slo in self.problem.slo_by_workflow.items():
            if name in kept and slo.mean_accuracy is not None:
                yield from self._inaccurate(name, slo, taken, tolerance)

    def carried_share(self, before: Floats, after: Floats) -> float:
        """The largest share, up to 1, of a change of the routes' weights that all workers and links can carry."""
        limits = ((self.busy, self.problem.utilisation), (self.sent, 1.0))
        shares = [1.0]
        for table, limit in limits:
            free, more = limit * (1.0 + LIMIT_TOLERANCE / 2.0) - table @ before, table @ (after - before)
            shares += (np.maximum(0.0, free[more > 0.0]) / more[more > 0.0]).tolist()
        return min(shares)

    def _inaccurate(self, workflow: str, slo: Slo, taken: Floats, tolerance: float) -> Iterator[str]:
        least = slo.mean_accuracy or 0.0
        if slo.penalty_usd_per_h is not None:
            least = min(least, self._usual_accuracy(workflow))  # soft: as much as with everything there
        if not (reached := self._accuracy(workflow, taken)) >= least * (1 - tolerance):
            of = f"{workflow}: " if workflow else ""
            yield f"{of}the mean accuracy would be {reached:.4f}, below {least:g}"

    def _accuracy(self, workflow: str, weights: Sequence[float] | Floats) -> float:
        own = self.routes_of.get(workflow, [])
        return float(self.accuracy[own] @ np.asarray(weights)[own])

    def _usual_accuracy(self, workflow: str) -> float:
        """The least mean accuracy with everything there, as up to `REHEARSED` of the requests rehearse fallbacks."""
        stated = self._accuracy(workflow, [route.weight for route in self.plan.routes])
        every = {str(one): one for one in losses(self.plan, self.problem.survives)}
        fallbacks = [one for one in self.plan.fallbacks if one.weights and one.lost in every]
        kept = [one for one in fallbacks if workflow in survivors(self.problem, self.plan, every[one.lost])]
        if not kept:
            return stated
        each = REHEARSED / len(fallbacks)
        rehearsed = sum(self._accuracy(workflow, one.weights) for one in kept)
        return min(stated, (stated - each * rehearsed) / (1.0 - each * len(kept)))


def losses_that_break(problem: Problem, plan: Plan, tolerance: float) -> Iterator[tuple[Loss, str]]:
    """Each loss that the targets name and that the plan does not bear, with the reason in words."""
    if not problem.survives:
        return
    plan = with_routes_of_one_workflow(problem, plan_without_audits(problem, plan))
    problem = without_audits(problem)
    loads, planned = RouteLoads(problem, plan), {fallback.lost: fallback for fallback in plan.fallbacks}
    routes = RoutesAfterLoss(problem, plan)
    for loss in losses(plan, problem.survives):
        weights, closed = routes.weights(loss), routes.closed(loss)
        if planned and (str(loss) not in planned or planned[str(loss)].closes != closed):
            yield loss, "the plan says of other routes that they are closed"
        kept, shares = survivors(problem, plan, loss), routes.shares(weights)
        for name in kept:
            if (share := shares.get(name, 0.0)) < 1.0 - tolerance:
                of = f" of {name}" if name else ""
                yield loss, f"{f'only {share:.2%} of the requests are' if share else 'no request is'} answered{of}"
        if any(weights[number] for number in closed):
            yield loss, "its fallback uses it"
        for reason in loads.complaints(weights, kept if all(map(shares.get, kept)) else (), tolerance):
            yield loss, reason
