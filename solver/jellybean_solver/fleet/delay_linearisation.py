"""Delay of a request as linear rows of the joint LP, given where its operators run (columns y, g: joint_lp.py).

    t[o]   completion time of operator o: mean seconds over all requests, at most the deadline less the hops
    t[o] >= t[u] + sum_{c, k} seconds[c, k] y[c, k] + sum_{c, t} link_s[(u, o), c, t] g[(u, o), c, t]  (edges u -> o)

With zero queueing delay the rows count what more than 1 % of the requests visit (guaranteed_jobs.py), and hold for
every plan all of whose routes meet the deadline, so lower bounds stay valid. With queueing delay (`queued_s`) they are
a heuristic that leads to plans which meet it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.worker_classes import WorkerClasses
from jellybean_solver.latency.batching import BatchInput, batch_sizes, service_of, utilisation_in_batches
from jellybean_solver.latency.guaranteed_jobs import guaranteed_jobs, least_link_s, least_run_s
from jellybean_solver.latency.plan_arrivals import jobs_at_once
from jellybean_solver.latency.queues import Traffic, WorkStream, service_log_mgf, service_variance, station
from jellybean_solver.latency.route_table import RouteTable
from jellybean_solver.latency.stations import MOST_UTILISATION
from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.model.critical_path import completion_times
from jellybean_solver.model.flows import link_s
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.streams import visits_per_request
from jellybean_solver.model.workflow import Edge, Times, request_s

ROUTES = 3.0  # assumed number of routes through a worker, of equal weight


@dataclass(frozen=True, slots=True)
class Pace:
    """A deadline for the delay rows.

    `left_s`: seconds that the deadline leaves for all but hops. `theta`: Chernoff parameter of estimate.py in 1/s; 0
    for zero queueing delay. `known`: cached seconds of (operator, variant, pool); `jobs`: cached jobs by operator.
    """

    left_s: float
    theta: float = 0.0
    known: dict[tuple[str, str, str], float] = field(default_factory=dict, compare=False)
    jobs: dict[str, float] = field(default_factory=dict, compare=False)

    def seconds(self, network: Network, kinds: WorkerClasses) -> Floats:
        """Seconds of one request by choice (row) and worker class (column); inf where the choice cannot run."""
        found = np.full(kinds.workers.shape, math.inf)
        for row, (name, variant) in enumerate(kinds.choices):
            for column in np.flatnonzero(kinds.runs[row]).tolist():
                pools = kinds.kinds[column].pools
                told = pools if self.theta == 0 else pools[:1]  # a bound needs the fastest pool of the class
                found[row, column] = min(self.taken_s(network.problem, name, variant, pool.name) for pool in told)
        return found

    def taken_s(self, problem: Problem, name: str, variant: str, pool: str) -> float:
        """Seconds that one request spends at an operator, run as `variant` in a pool."""
        key = name, variant, pool
        if key not in self.known:
            times = problem.times(name, problem.operator_by_name[name].variant(variant), pool)
            jobs = self._jobs(problem)[name]
            self.known[key] = (
                queued_s(times, jobs, problem.utilisation, self.theta) if self.theta > 0 else least_run_s(times, jobs)
            )
        return self.known[key]

    def sending_s(self, problem: Problem, edge: Edge, tiers: tuple[str, str], message_bytes: float) -> float:
        """Seconds that the messages of one request on an edge take between two tiers."""
        jobs = self._jobs(problem)
        if self.theta > 0:
            return link_s(problem, tiers, message_bytes * jobs[edge.downstream])
        return least_link_s(problem, edge, tiers, message_bytes, jobs)

    def _jobs(self, problem: Problem) -> Mapping[str, float]:
        """Jobs of one request by operator: all that come at once, or with zero queueing delay the guaranteed ones."""
        if not self.jobs and self.theta > 0:
            self.jobs.update({name: jobs_at_once(visits) for name, visits in visits_per_request(problem).items()})
        elif not self.jobs:
            self.jobs.update(guaranteed_jobs(problem))
        return self.jobs

    def of_plan(self, problem: Problem, plan: Plan) -> float:
        """The least `left_s` in seconds under which the rows allow the plan."""
        table = RouteTable(plan)
        sources = {source.name: source.message_bytes for source in problem.sources}

        def mean_run_s(name: str) -> float:
            pools = plan.operator_by_name[name].service
            own = {pool: self.taken_s(problem, name, plan.selection[name], pool) for pool in pools}
            by_worker = np.array([own.get(worker.pool, 0.0) for worker in plan.workers])
            return float(table.weight @ by_worker[table.at[name]])

        def mean_link_s(edge: Edge) -> float:
            sent = sources.get(edge.upstream)
            if sent is None:
                sent = plan.operator_by_name[edge.upstream].message_bytes[edge.downstream]
            pairs, each = table.crossings(edge)
            times = np.array([self.sending_s(problem, edge, pair, sent) for pair in pairs])
            return float(table.weight @ times[each])

        ready = completion_times(problem.operators, mean_run_s, mean_link_s)
        shares = {name: problem.deadline_share(name) for name in plan.operator_by_name}
        return max(ready[name] / share for name, share in shares.items() if share is not None)


def queued_s(times: Times, jobs_at_once: float, load: float, theta: float) -> float:
    """Seconds that an operator adds to the Chernoff bound of a request's latency: log E exp(theta T) / theta.

    T is wait plus runs on one of many workers that serve this operator only, at utilisation `load`.
    """
    batch = max(times)
    per_s = load / request_s(times, batch)
    fed = BatchInput(times, batch, per_s, jobs_at_once, 0.0, jobs_at_once)
    (found,) = batch_sizes([fed])
    service, count = service_of(times, found.mean), jobs_at_once / found.mean
    full = per_s * times[batch].mean_s / batch
    used = min(MOST_UTILISATION, load + max(0.0, utilisation_in_batches(times, per_s, found.mean) - full))
    piece = WorkStream(
        stream=0,
        weight=1.0,
        per_s=per_s / jobs_at_once,
        seconds=service.mean_s * count,
        variance=service_variance(service) * count,
        size=max(1.0, 1.0 / count),
        squares=1.0 / ROUTES,
    )
    waits = station(Traffic([piece], 0.0, [0.0], [1.0]), load, used).own
    tilt = np.array([theta])
    runs_count = max(1.0, jobs_at_once / found.seen)
    own = service_log_mgf(service, tilt * runs_count) + found.turn.log_mgf(tilt, service)
    return float((own + waits.log_mgf(tilt))[0]) / theta
