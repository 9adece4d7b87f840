"""Models that are too large for a worker, as sentences with figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jellybean_solver.demand.memory import StatedMemory, fits, stated_memories
from jellybean_solver.figures import listed, size_text
from jellybean_solver.model.problem import Pool, Problem, Sharing
from jellybean_solver.model.workflow import Operator, Variant
from jellybean_solver.outcome import Selection

MOST_MODELS = 6  # models listed per pool, largest first


def shortage_in_pool(problem: Problem, pool: Pool, selection: Selection) -> str:
    """Each memory of a worker that is too small, and what the models of a selection need of it; empty if they fit.

    In an exclusive pool each worker holds one model: only those that are too large alone are named.
    """
    return "; ".join(filter(None, (_shortage(problem, pool, selection, memory) for memory in stated_memories(pool))))


def _shortage(problem: Problem, pool: Pool, selection: Selection, memory: StatedMemory) -> str:
    needed = {
        f"{operator.name} {variant.name}": memory.taken(variant)
        for operator in problem.operators
        if _may_run(operator, variant := operator.variant(selection[operator.name]), pool)
    }
    if fits(_held(pool, needed.values()), memory.limit):
        return ""
    if pool.sharing is Sharing.EXCLUSIVE:
        needed = {model: size for model, size in needed.items() if not fits(size, memory.limit)}
    largest = sorted(needed, key=lambda model: -needed[model])
    models = listed([f"{model} {size_text(needed[model])}" for model in largest], MOST_MODELS)
    return f"a worker of {pool.name} has {_amount(memory, memory.limit)}, its models need {models}"


def _amount(memory: StatedMemory, size_bytes: float) -> str:
    """Bytes of a memory in words, which say so if it is the device's."""
    return size_text(size_bytes) + (" of device memory" if memory.on_device else "")


def too_large_for_all(problem: Problem, selection: Selection) -> Iterator[str]:
    """One sentence per model of a selection that fits on no worker, with the worker that comes nearest."""
    for operator in problem.operators:
        variant = operator.variant(selection[operator.name])
        pools = [pool for pool in problem.pools if pool.count > 0 and _may_run(operator, variant, pool)]
        if all(_exceeded(variant, pool) for pool in pools):
            yield f"{operator.name} {nearest_worker([(variant, pool) for pool in pools])}"


def nearest_worker(models: Iterable[tuple[Variant, Pool]]) -> str:
    """Of models and workers that do not fit, the pair that lacks the least memory: what it needs, and what there is."""
    short = [(variant, pool, memory) for variant, pool in models for memory in _exceeded(variant, pool)]
    variant, pool, memory = min(short, key=lambda one: one[2].taken(one[0]) - one[2].limit)
    needed = _amount(memory, memory.taken(variant))
    return f"{variant.name} needs {needed}, a worker of {pool.name} has {size_text(memory.limit)}"


def _exceeded(variant: Variant, pool: Pool) -> list[StatedMemory]:
    """The memories of a worker that are too small for a variant."""
    return [memory for memory in stated_memories(pool) if not fits(memory.taken(variant), memory.limit)]


def _held(pool: Pool, sizes: Iterable[float]) -> float:
    """Most bytes that one worker may have to hold: all models of a shared pool, the largest of an exclusive one."""
    return max(sizes, default=0.0) if pool.sharing is Sharing.EXCLUSIVE else sum(sizes)


def _may_run(operator: Operator, variant: Variant, pool: Pool) -> bool:
    """True if the pool may run the variant, whatever its memory."""
    return 1 in variant.service.get(pool.name, ()) and (operator.tiers is None or pool.tier in operator.tiers)
