"""Groups a plan's workers so that each group can be one StatefulSet.

A route names concrete workers, and the branches of a request join at one of them, so a pod must be one worker of the
plan and keep its address (docs/adr/0008). Workers are called `pool-1`, `pool-2`, ...; consecutively numbered workers of
one pool and site form a group, whose pods have the workers' numbers as ordinals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jellybean_solver import ModelRef, Plan, PlannedOperator, PlannedWorker, tier_at

_NUMBERED = re.compile(r"(.*-)(0|[1-9][0-9]*)")
_MAX_NUMBER = 99_999  # larger numbers do not fit into a pod's name


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Workers `prefix``first`, `prefix``first + 1`, ...; with `first` None, the single worker `prefix`.

    `site`: None if the tier has one site. `needs_bytes`: the most memory that the models of one worker need.
    `device`, `device_options`: on which its models run, as in the plan (`cpu`, `cuda:1`).
    """

    pool: str
    tier: str
    site: str | None
    prefix: str
    first: int | None
    count: int
    operators: tuple[str, ...]  # run by some worker of the group
    models: tuple[ModelRef, ...]
    needs_bytes: float
    memory_bytes: float | None  # memory of a worker
    load: float  # mean utilisation
    device: str
    device_options: tuple[tuple[str, str], ...]

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of its workers in the plan, by number."""
        if self.first is None:
            return (self.prefix,)
        return tuple(f"{self.prefix}{number}" for number in range(self.first, self.first + self.count))


def worker_groups(plan: Plan) -> tuple[WorkerGroup, ...]:
    """Groups of all workers that some route uses, in the plan's order of pools, per site."""
    used = {worker for route in plan.routes for worker in route.workers.values()}
    serving = [worker for worker in plan.workers if worker.name in used]
    found: list[WorkerGroup] = []
    for pool in dict.fromkeys(worker.pool for worker in serving):
        workers = [worker for worker in serving if worker.pool == pool]
        tier = workers[0].tier
        sites = plan.sites.get(tier, 1)
        for first, run in _runs(workers):
            group = _group(plan, pool, first, run)
            if sites == 1:
                found.append(group)
            else:
                found += [_in_site(group, tier_at(plan.sites, tier, site)) for site in range(sites)]
    return tuple(found)


def _runs(workers: list[PlannedWorker]) -> Iterator[tuple[int | None, list[PlannedWorker]]]:
    """Split workers into runs of consecutive numbers: (first number, workers); (None, [worker]) without a number."""
    numbered: dict[tuple[str, int], PlannedWorker] = {}
    for worker in workers:
        match = _NUMBERED.fullmatch(worker.name)
        if match is None or int(match[2]) > _MAX_NUMBER:
            yield None, [worker]
        else:
            numbered[match[1], int(match[2])] = worker
    run: list[PlannedWorker] = []
    for prefix, number in sorted(numbered):
        run.append(numbered[prefix, number])
        if (prefix, number + 1) not in numbered:
            yield number + 1 - len(run), run
            run = []


def _group(plan: Plan, pool: str, first: int | None, run: list[PlannedWorker]) -> WorkerGroup:
    runs: dict[str, set[str]] = {worker.name: set() for worker in run}
    for route in plan.routes:
        for operator, worker in route.workers.items():
            if worker in runs:
                runs[worker].add(operator)
    here = [
        [plan.operator_at(name, worker) for name in plan.operator_by_name if name in of] for worker, of in runs.items()
    ]
    needs = [sum(operator.memory_bytes.get(pool, 0.0) for operator in own) for own in here]
    variants = [
        one
        for one in plan.variants
        if any(one.name == o.name and one.variant == o.variant for own in here for o in own)
    ]
    name = run[0].name
    return WorkerGroup(
        pool=pool,
        tier=run[0].tier,
        site=None,
        prefix=name if first is None else name[: -len(str(first))],
        first=first,
        count=len(run),
        operators=tuple(dict.fromkeys(operator.name for operator in variants)),
        models=tuple(dict.fromkeys(model for model in map(_model, variants) if model is not None)),
        needs_bytes=max(needs),
        memory_bytes=run[0].memory_bytes,
        load=sum(worker.load for worker in run) / len(run),
        device=run[0].device,
        device_options=run[0].device_options,
    )


def _model(operator: PlannedOperator) -> ModelRef | None:
    """The operator's model file; None for a Python function, which is part of the agent's image."""
    return operator.model if operator.model is not None and operator.model.python is None else None


def _in_site(group: WorkerGroup, site: str) -> WorkerGroup:
    return replace(group, site=site, prefix=f"{site}/{group.prefix}")  # the naming of `worker_at`
