"""Batches that form at the workers of a plan: their sizes, and the requests that arrive together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.latency.batching import BatchInput, BatchSizes, batch_sizes
from jellybean_solver.latency.plan_arrivals import PlanArrivals
from jellybean_solver.latency.queues import service_variance
from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.model.plan import PlannedWorker
from jellybean_solver.model.workflow import Edge

OperatorWorker = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PlanBatches:
    """By operator and worker: the sizes of its runs, and the mean number of requests that arrive together."""

    runs: Mapping[OperatorWorker, BatchSizes]
    groups: Mapping[OperatorWorker, float]


def plan_batches(arrivals: PlanArrivals) -> PlanBatches:
    """Batch sizes in two passes, as requests of one run arrive together downstream and make batches there larger."""
    plan = arrivals.plan
    runs = {(name, worker.name): BatchSizes() for worker in plan.workers for name in worker.rates_per_s}
    groups: Mapping[OperatorWorker, float] = {}
    batched = any(size > 1 for one in plan.variants for size in one.batch.values())
    for _ in range(2 if batched else 1):
        groups = _groups(arrivals, runs)
        known: dict[object, list[BatchSizes]] = {}  # workers of a fleet are mostly identical: computed once
        for worker in plan.workers:
            inputs = [_batch_input(arrivals, groups, name, worker) for name in worker.rates_per_s]
            figures = tuple((one.per_s, one.group, one.roughness) for one in inputs)
            key = worker.pool, tuple(worker.rates_per_s), rounded_key(figures)
            if key not in known:
                known[key] = batch_sizes(inputs)
            runs |= {(name, worker.name): one for name, one in zip(worker.rates_per_s, known[key], strict=True)}
    return PlanBatches(runs, groups)


def rounded_key(figures: Sequence[Sequence[float]]) -> str:
    """A cache key that is equal for numbers that differ only by rounding errors."""
    return repr([[float(f"{figure:.5g}") for figure in row] for row in figures])


def _batch_input(
    arrivals: PlanArrivals, groups: Mapping[OperatorWorker, float], name: str, worker: PlannedWorker
) -> BatchInput:
    operator = arrivals.plan.operator_at(name, worker.name)
    times, batch = operator.service[worker.pool], operator.batch[worker.pool]
    varied = service_variance(times[batch]) / times[batch].mean_s ** 2 if times[batch].mean_s > 0 else 0.0
    group, roughness = groups[name, worker.name], arrivals.roughness(name, worker)
    return BatchInput(times, batch, worker.rates_per_s[name], group, roughness, arrivals.jobs(name), varied)


def _groups(arrivals: PlanArrivals, runs: Mapping[OperatorWorker, BatchSizes]) -> Mapping[OperatorWorker, float]:
    """(Operator, worker) -> mean number of requests that arrive together there, counting children."""
    found = {pair: arrivals.jobs(pair[0]) for pair in runs}
    names = [worker.name for worker in arrivals.plan.workers]
    for operator in arrivals.plan.operators:
        for edge in operator.inputs:
            if edge.upstream not in arrivals.source_by_name:
                together = _together(arrivals, runs, edge)
                for worker in np.flatnonzero(np.isfinite(together)).tolist():
                    pair = operator.name, names[worker]
                    found[pair] = max(found.get(pair, 1.0), arrivals.jobs(operator.name) * float(together[worker]))
    return found


def _together(arrivals: PlanArrivals, runs: Mapping[OperatorWorker, BatchSizes], edge: Edge) -> Floats:
    """Per worker the mean requests of one upstream run that routes send there: at least 1; NaN if there are none."""
    table, workers = arrivals.table, arrivals.plan.workers
    leave = table.summed(table.at[edge.upstream], table.weight)
    pairs, each = np.unique(table.at[edge.upstream] * len(workers) + table.at[edge.downstream], return_inverse=True)
    go: Floats = np.bincount(each, table.weight).astype(float)
    there, here = np.divmod(pairs, len(workers))
    sizes = [runs[edge.upstream, workers[worker].name].mean for worker in there.tolist()]
    ran = np.array(sizes) / arrivals.jobs(edge.upstream)
    part = np.divide(go, leave[there], out=np.zeros_like(go), where=go > 0)
    mates, come = table.summed(here, go * np.maximum(1.0, ran * part)), table.summed(here, go)
    found: Floats = np.full(len(workers), np.nan)
    found[here] = 1.0
    np.divide(mates, come, out=found, where=come > 0)
    return found
