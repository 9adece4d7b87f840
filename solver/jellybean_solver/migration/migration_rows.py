"""Rows of the assignment that price the models each worker must load, given a running plan.

Workers of a pool are distinguished in the way that needs fewer variables; both are exact.

By sets:      n[h] workers hold exactly h;  k[g, h] of them held g before and save what g and h share
              sum_h k[g, h] <= running workers that hold g;  sum_g k[g, h] <= n[h]
              With n given the rest is a transport problem: the least over all matchings of workers.
By workers:   n[w] = 1 if worker w serves;  x[w, o] = 1 if it holds o, paid where it did not hold o before
              y[w, o] <= x[w, o] <= n[w];  models fit into memory
              Workers w are the running ones, each with its models, and as many empty ones as can be useful.

Both also sum up workers, and replicas per operator, in integer columns that branch better than their parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pulp

from jellybean_solver.demand.model_sets import all_model_sets, fits
from jellybean_solver.migration.running_plan import HeldModels, LoadCosts
from jellybean_solver.model.problem import Pool

MOST_COLUMNS = 400  # per pool, for the formulation by workers

HostSet = tuple[str, ...]
TermList = list[tuple[Any, float]]


class AssignmentModel(Protocol):
    """The part of the assignment program that rows are added to."""

    counts: dict[tuple[str, int], Any]  # (pool, group) -> workers
    shares: dict[tuple[str, str, int], Any]  # (operator, pool, group) -> fraction of its requests
    moving: dict[str, TermList]  # pool -> migration terms of the objective

    def add(self, terms: TermList, sense: int, right: float) -> Any:
        """Add a row."""
        ...

    def variable(self, name: str, high: float | None = None, category: str = pulp.LpContinuous) -> Any:
        """Add a variable with lower bound 0."""
        ...

    def group(self, index: int, number: int, pool: Pool, hosted: HostSet, most: int) -> Any:
        """Add at most `most` workers that may hold one set, and their served shares; returns their count."""
        ...


def add_shared_groups(
    model: AssignmentModel,
    index: int,
    pool: Pool,
    memory_bytes: Mapping[str, float],
    busy: Mapping[str, float],
    moves: LoadCosts,
) -> bool:
    """Add the workers of a shared pool with their migration; False (nothing added) if both ways need too many columns.

    `busy`: workers kept busy by all requests of an operator.
    """
    sets = all_model_sets(memory_bytes, pool.memory_bytes)
    workers = _workers(pool, busy, moves)
    columns = len(workers) * (1 + len(memory_bytes))
    if columns <= MOST_COLUMNS and (sets is None or columns < len(sets)):
        _by_workers(model, index, pool, memory_bytes, moves, workers)
        return True
    if sets is None:
        return False
    for number, hosted in enumerate(sets):
        model.group(index, number, pool, hosted, pool.count)
    add_moves_by_set(model, index, pool, sets, moves)
    for o, name in enumerate(memory_bytes):
        having = [model.counts[pool.name, number] for number, hosted in enumerate(sets) if name in hosted]
        _total(model, f"h_{index}_{o}", pool.count, having)
    return True


def add_moves_by_set(model: AssignmentModel, index: int, pool: Pool, sets: Sequence[HostSet], moves: LoadCosts) -> None:
    """By sets: migration of groups that exist already, numbered as their sets."""
    terms = model.moving.setdefault(pool.name, [])
    into: list[TermList] = [[] for _ in sets]
    for kind, (before, count) in enumerate(moves.held[pool.name].items()):
        out: TermList = []
        for number, hosted in enumerate(sets):
            saved = moves.cost_usd_per_h(before.intersection(hosted), pool.name)
            if saved > 0:
                going_on = model.variable(f"k_{index}_{kind}_{number}")
                terms.append((going_on, -saved))
                into[number].append((going_on, 1.0))
                out.append((going_on, 1.0))
        if out:
            model.add(out, pulp.LpConstraintLE, count)
    for number, hosted in enumerate(sets):
        workers = model.counts[pool.name, number]
        terms.append((workers, moves.cost_usd_per_h(hosted, pool.name)))
        if into[number]:
            model.add([*into[number], (workers, -1.0)], pulp.LpConstraintLE, 0.0)


def _workers(pool: Pool, busy: Mapping[str, float], moves: LoadCosts) -> list[HeldModels]:
    """Models held by each worker that could serve: the running workers, then empty ones.

    An empty worker is never better than a running one. More empty workers than one per operator's need are useless:
    they would hold no fewer models.
    """
    running = [held for held, count in moves.held[pool.name].items() for _ in range(min(count, pool.count))]
    alone = sum(max(1, math.ceil(workers)) for workers in busy.values())
    return running + [frozenset()] * min(pool.count - len(running), alone)


def _by_workers(
    model: AssignmentModel,
    index: int,
    pool: Pool,
    memory_bytes: Mapping[str, float],
    moves: LoadCosts,
    workers: Sequence[HeldModels],
) -> None:
    names, terms = tuple(memory_bytes), model.moving.setdefault(pool.name, [])
    limited = not fits(sum(memory_bytes.values()), pool.memory_bytes)
    replicas: dict[str, list[Any]] = {name: [] for name in names}
    before: Any = None
    for number, held in enumerate(workers):
        count = model.group(index, number, pool, names, 1)
        used: TermList = [(count, -(pool.memory_bytes or 0.0))]
        for o, name in enumerate(names):
            holds = model.variable(f"x_{index}_{number}_{o}", 1, pulp.LpInteger)
            model.add([(model.shares[name, pool.name, number], 1.0), (holds, -1.0)], pulp.LpConstraintLE, 0.0)
            model.add([(holds, 1.0), (count, -1.0)], pulp.LpConstraintLE, 0.0)
            used.append((holds, memory_bytes[name]))
            replicas[name].append(holds)
            if name not in held:
                terms.append((holds, moves.load_usd_per_h[name, pool.name]))
        if limited:
            model.add(used, pulp.LpConstraintLE, 0.0)
        if number > 0 and workers[number - 1] == held:  # symmetry breaking: of identical workers the first ones serve
            model.add([(count, 1.0), (before, -1.0)], pulp.LpConstraintLE, 0.0)
        before = count
    for o, columns in enumerate(replicas.values()):
        _total(model, f"h_{index}_{o}", pool.count, columns)
    _total(model, f"h_{index}", pool.count, [model.counts[pool.name, number] for number in range(len(workers))])


def _total(model: AssignmentModel, name: str, most: int, parts: Sequence[Any]) -> None:
    if len(parts) > 1:
        total = model.variable(name, most, pulp.LpInteger)
        model.add([(total, -1.0), *((part, 1.0) for part in parts)], pulp.LpConstraintEQ, 0.0)


def add_least_loads(model: AssignmentModel, index: int, pool: str, busy: Mapping[str, float], moves: LoadCosts) -> None:
    """A lower bound on migration: replicas of each operator beyond those that the pool holds. `busy` as above."""
    paid = model.moving.setdefault(pool, [])
    for o, (name, workers) in enumerate(busy.items()):
        loads = model.variable(f"l_{index}_{o}", category=pulp.LpInteger)
        paid.append((loads, moves.load_usd_per_h[name, pool]))
        shares = [share for (owner, place, _), share in model.shares.items() if (owner, place) == (name, pool)]
        for needed in (1.0, workers):
            terms = [(share, needed) for share in shares]
            model.add([*terms, (loads, -1.0)], pulp.LpConstraintLE, moves.holding(name, pool))
