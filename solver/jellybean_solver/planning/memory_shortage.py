"""Models that are too large for a worker, as sentences with figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from jellybean_solver.demand.model_sets import fits
from jellybean_solver.figures import size_text
from jellybean_solver.model.problem import Operator, Pool, Problem, Sharing, Variant
from jellybean_solver.outcome import Selection

MOST_MODELS = 6  # models listed per pool, largest first


def without_memory_limits(problem: Problem) -> Problem:
    """The problem with enough memory on every worker."""
    return replace(problem, pools=tuple(replace(pool, memory_bytes=None) for pool in problem.pools))


def memory_may_bind(problem: Problem, pool: Pool) -> bool:
    """True if models of operators that can share a worker of the pool may exceed its memory."""
    largest = (
        max((v.memory_bytes.get(pool.name, 0.0) for v in o.variants if _may_run(o, v, pool)), default=0.0)
        for o in problem.operators
    )
    return not fits(_held(pool, largest), pool.memory_bytes)


def shortage_in_pool(problem: Problem, pool: Pool, selection: Selection) -> str:
    """The memory of a worker of a pool, and what the models of a selection need there; empty if they fit.

    In an exclusive pool each worker holds one model: only those that are too large alone are named.
    """
    needed = {
        f"{operator.name} {variant.name}": variant.memory_bytes.get(pool.name, 0.0)
        for operator in problem.operators
        if _may_run(operator, variant := operator.variant(selection[operator.name]), pool)
    }
    if fits(_held(pool, needed.values()), pool.memory_bytes):
        return ""
    if pool.sharing is Sharing.EXCLUSIVE:
        needed = {model: size for model, size in needed.items() if not fits(size, pool.memory_bytes)}
    largest = sorted(needed, key=lambda model: -needed[model])[:MOST_MODELS]
    listed = ", ".join(f"{model} {size_text(needed[model])}" for model in largest)
    more = f" and {len(needed) - MOST_MODELS} more" if len(needed) > MOST_MODELS else ""
    return f"a worker of {pool.name} has {size_text(pool.memory_bytes or 0.0)}, its models need {listed}{more}"


def too_large_for_all(problem: Problem, selection: Selection) -> Iterator[str]:
    """One sentence per model of a selection that fits on no worker, with the worker that comes nearest."""
    for operator in problem.operators:
        variant = operator.variant(selection[operator.name])
        pools = [pool for pool in problem.pools if pool.count > 0 and _may_run(operator, variant, pool)]
        if not any(fits(variant.memory_bytes.get(pool.name, 0.0), pool.memory_bytes) for pool in pools):
            yield f"{operator.name} {nearest_worker([(variant, pool) for pool in pools])}"


def nearest_worker(models: Iterable[tuple[Variant, Pool]]) -> str:
    """Of models and workers that do not fit, the pair that lacks the least memory: what it needs, and what there is."""
    variant, pool = min(models, key=lambda one: _needs(*one) - (one[1].memory_bytes or 0.0))
    worker = f"a worker of {pool.name} has {size_text(pool.memory_bytes or 0.0)}"
    return f"{variant.name} needs {size_text(_needs(variant, pool))}, {worker}"


def _needs(variant: Variant, pool: Pool) -> float:
    return variant.memory_bytes.get(pool.name, 0.0)


def _held(pool: Pool, sizes: Iterable[float]) -> float:
    """Most bytes that one worker may have to hold: all models of a shared pool, the largest of an exclusive one."""
    return max(sizes, default=0.0) if pool.sharing is Sharing.EXCLUSIVE else sum(sizes)


def _may_run(operator: Operator, variant: Variant, pool: Pool) -> bool:
    """True if the pool may run the variant, whatever its memory."""
    return 1 in variant.service.get(pool.name, ()) and (operator.tiers is None or pool.tier in operator.tiers)
