"""Rows of the assignment MILP that price the models each worker must load, given a running plan.

Two exact formulations; each pool takes the one with fewer variables. g and h are sets of models (by operator o).

By sets:      n[h] workers hold exactly h;  k[g, h] of them held g before and need not load the models in g and h
              sum_h k[g, h] <= running workers that hold g;  sum_g k[g, h] <= n[h]
              For given n, k is a transport problem: its optimum is the cheapest matching of workers.
By workers:   n[w] = 1 if worker w serves;  x[w, o] = 1 if it holds o, paid if it did not hold o before
              y[w, o] <= x[w, o] <= n[w], where y is the share of o's requests;  models fit into memory
              Workers w are the running ones, each with its models, and as many empty ones as can be useful.

Both also sum up workers, and replicas per operator, in integer columns, which are better to branch on than their parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pulp

from jellybean_solver.demand.demand import Demand
from jellybean_solver.demand.memory import PoolMemory, fits, together
from jellybean_solver.demand.model_sets import all_model_sets
from jellybean_solver.demand.settings import AssignmentSettings
from jellybean_solver.migration.running_plan import HeldModels, LoadCosts
from jellybean_solver.milp.pulp_program import PulpProgram
from jellybean_solver.model.problem import Pool

HostSet = tuple[str, ...]
TermList = list[tuple[Any, float]]


class WorkerGroups(PulpProgram):
    """The part of the assignment program that counts workers by pool and by group (the models that they hold).

    Variables: `counts`, (pool, group) -> workers; `shares`, (operator, pool, group) -> fraction of its requests.
    `moving`: pool -> migration terms of the objective. `load_rows`, `presence_rows`: (operator, pool) -> a row of it.
    """

    def __init__(self, demand: Demand) -> None:
        super().__init__("worker assignment")
        self.demand = demand
        self.counts: dict[tuple[str, int], Any] = {}
        self.shares: dict[tuple[str, str, int], Any] = {}
        self.moving: dict[str, TermList] = {}
        self.load_rows: dict[tuple[str, str], Any] = {}
        self.presence_rows: dict[tuple[str, str], Any] = {}

    def group(self, index: int, number: int, pool: Pool, hosted: HostSet, most: int) -> Any:
        """Add a group of at most `most` workers that hold the set `hosted`, and the shares they serve.

        Rows: their number covers the load, and a group without workers serves nothing. Returns the variable of their
        number.
        """
        count = self.variable(f"n_{index}_{number}", most, pulp.LpInteger)
        self.counts[pool.name, number] = count
        terms: TermList = [(count, -1.0)]
        for o, name in enumerate(hosted):
            share = self.variable(f"y_{index}_{number}_{o}")
            self.shares[name, pool.name, number] = share
            terms.append((share, self.demand.workers[name][pool.name]))
            row = self.add([(share, 1.0), (count, -1.0)], pulp.LpConstraintLE, 0.0)
            self.presence_rows[name, pool.name] = row
        row = self.add(terms, pulp.LpConstraintLE, 0.0)
        self.load_rows |= {(name, pool.name): row for name in hosted}
        return count


def add_shared_groups(
    model: WorkerGroups,
    index: int,
    pool: Pool,
    memory: PoolMemory,
    busy: Mapping[str, float],
    moves: LoadCosts,
    settings: AssignmentSettings,
) -> bool:
    """Add the workers of a shared pool with their migration cost. False, and nothing added, if that is too large.

    Too large: both formulations exceed the column limits of `settings`. `busy`: operator -> workers that all its
    requests keep busy. `memory`: of the operators' models.
    """
    sets = all_model_sets(memory, settings.matching_sets)
    workers = _workers(pool, busy, moves)
    columns = len(workers) * (1 + len(memory.needs))
    if columns <= settings.matching_columns and (sets is None or columns < len(sets)):
        _by_workers(model, index, pool, memory, moves, workers)
        return True
    if sets is None:
        return False
    for number, hosted in enumerate(sets):
        model.group(index, number, pool, hosted, pool.count)
    add_moves_by_set(model, index, pool, sets, moves)
    for o, name in enumerate(memory.needs):
        having = [model.counts[pool.name, number] for number, hosted in enumerate(sets) if name in hosted]
        _total(model, f"h_{index}_{o}", pool.count, having)
    return True


def add_moves_by_set(model: WorkerGroups, index: int, pool: Pool, sets: Sequence[HostSet], moves: LoadCosts) -> None:
    """The formulation by sets: migration cost of the pool's groups, which exist and are numbered like `sets`."""
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
    """Models held by each worker that may serve: the running workers, then empty ones.

    An empty worker is never better than a running one. More empty workers than all operators need without sharing
    workers are useless.
    """
    running = [held for held, count in moves.held[pool.name].items() for _ in range(min(count, pool.count))]
    alone = sum(max(1, math.ceil(workers)) for workers in busy.values())
    return running + [frozenset()] * min(pool.count - len(running), alone)


def _by_workers(
    model: WorkerGroups,
    index: int,
    pool: Pool,
    memory: PoolMemory,
    moves: LoadCosts,
    workers: Sequence[HeldModels],
) -> None:
    names, terms = tuple(memory.needs), model.moving.setdefault(pool.name, [])
    all_needed, limits = together(memory.needs.values()), memory.limits
    scarce = [at for at, limit in enumerate(limits) if not fits(all_needed[at], limit)]
    replicas: dict[str, list[Any]] = {name: [] for name in names}
    before: Any = None
    for number, held in enumerate(workers):
        count = model.group(index, number, pool, names, 1)
        used: dict[int, TermList] = {at: [(count, -(limits[at] or 0.0))] for at in scarce}
        for o, name in enumerate(names):
            holds = model.variable(f"x_{index}_{number}_{o}", 1, pulp.LpInteger)
            model.add([(model.shares[name, pool.name, number], 1.0), (holds, -1.0)], pulp.LpConstraintLE, 0.0)
            model.add([(holds, 1.0), (count, -1.0)], pulp.LpConstraintLE, 0.0)
            for at, terms_of in used.items():
                terms_of.append((holds, memory.needs[name][at]))
            replicas[name].append(holds)
            if name not in held:
                terms.append((holds, moves.load_usd_per_h[name, pool.name]))
        for terms_of in used.values():
            model.add(terms_of, pulp.LpConstraintLE, 0.0)
        if number > 0 and workers[number - 1] == held:  # symmetry breaking: the first of identical workers serve
            model.add([(count, 1.0), (before, -1.0)], pulp.LpConstraintLE, 0.0)
        before = count
    for o, columns in enumerate(replicas.values()):
        _total(model, f"h_{index}_{o}", pool.count, columns)
    _total(model, f"h_{index}", pool.count, [model.counts[pool.name, number] for number in range(len(workers))])


def _total(model: WorkerGroups, name: str, most: int, parts: Sequence[Any]) -> None:
    if len(parts) > 1:
        total = model.variable(name, most, pulp.LpInteger)
        model.add([(total, -1.0), *((part, 1.0) for part in parts)], pulp.LpConstraintEQ, 0.0)


def add_least_loads(model: WorkerGroups, index: int, pool: str, busy: Mapping[str, float], moves: LoadCosts) -> None:
    """Add a lower bound on migration cost: replicas of each operator beyond those that the pool's workers hold.

    `busy`: operator -> workers that all its requests keep busy.
    """
    paid = model.moving.setdefault(pool, [])
    for o, (name, workers) in enumerate(busy.items()):
        loads = model.variable(f"l_{index}_{o}", category=pulp.LpInteger)
        paid.append((loads, moves.load_usd_per_h[name, pool]))
        shares = [share for (owner, place, _), share in model.shares.items() if (owner, place) == (name, pool)]
        for needed in (1.0, workers):
            terms = [(share, needed) for share in shares]
            model.add([*terms, (loads, -1.0)], pulp.LpConstraintLE, moves.holding(name, pool))
