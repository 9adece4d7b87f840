"""What a change from a running plan can reach of a fleet: the workers that run, and as many more as may be started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Pool, Problem
from jellybean_solver.model.workflow import WORKFLOW_SEPARATOR


def startable(problem: Problem, running: Plan) -> Problem:
    """The problem of a change from a running plan, in which no pool starts more than `max_starts` workers a site.

    Workers of a pool are alike, and those that run go on first, so a limit of the pool's count says just that.
    """
    counts = Counter(worker.pool for worker in running.workers)
    pools = tuple(_reached(pool, counts[pool.name]) for pool in problem.pools)
    return problem if pools == problem.pools else replace(problem, pools=pools)


def _reached(pool: Pool, running: int) -> Pool:
    if pool.max_starts is None:
        return pool
    return replace(pool, count=min(pool.count, running + pool.max_starts))


def unstartable(problem: Problem, running: Plan) -> Iterator[str]:
    """A sentence for each pool of which a change from a running plan cannot have all workers."""
    reached = startable(problem, running).pool_by_name
    for pool in problem.pools:
        if (count := reached[pool.name].count) < pool.count:
            key = f"workers.{pool.name.rpartition(WORKFLOW_SEPARATOR)[2]}.max_starts"
            yield (
                f"{count} of the {pool.count} workers of {pool.name} can be used: a change starts at most "
                f"{pool.max_starts} beside those that run ({key})"
            )
