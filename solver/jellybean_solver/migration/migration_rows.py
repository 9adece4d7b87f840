"""Rows of the assignment MILP that price the models each worker must load, given a running plan.

Two exact formulations; each pool takes the one with fewer variables. g and h are sets of models (by operator o).

By sets:      n[h] workers hold exactly h;  k[g, h] of them held g before and need not load the models in g and h
              sum_h k[g, h] <= running workers that hold g;  sum_g k[g, h] <= n[h]
              For given n, k is a transport problem: its optimum is the cheapest matching of workers.
By workers:   n[w] = 1 if worker w serves;  x[w, o] = 1 if it holds o, paid if it did not hold o before
              y[w, o] <= x[w, o] <= n[w], where y is the share of o's requests;  models fit into memory
              Workers w are the running ones, each with its models, and as many empty ones as can be useful.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jellybean_solver.demand.demand import Demand
from jellybean_solver.demand.memory import PoolMemory, fits, together
from jellybean_solver.demand.model_sets import all_model_sets
from jellybean_solver.demand.settings import AssignmentSettings
from jellybean_solver.migration.running_plan import HeldModels, LoadCosts
from jellybean_solver.milp.highs_program import Program
from jellybean_solver.model.problem import Pool

HostSet = tuple[str, ...]


class WorkerGroups:
    """The part of the assignment program that counts workers by pool and by group (the models that they hold).

    Columns: `counts`, (pool, group) -> workers; `shares`, (operator, pool, group) -> fraction of its requests.
    `moving`: pool -> column -> its migration cost. `load_rows`, `presence_rows`: (operator, pool) -> a row of it.
    """

    def __init__(self, demand: Demand, prices: Mapping[str, float]) -> None:
        """`prices`: pool -> USD per hour of a worker."""
        self.program, self.demand, self.prices = Program(), demand, prices
        self.counts: dict[tuple[str, int], int] = {}
        self.shares: dict[tuple[str, str, int], int] = {}
        self.moving: dict[str, dict[int, float]] = {}
        self.load_rows: dict[tuple[str, str], int] = {}
        self.presence_rows: dict[tuple[str, str], int] = {}

    def group(self, number: int, pool: str, hosted: HostSet, most: int) -> int:
        """Add a group of at most `most` workers that hold the set `hosted`, and the shares they serve.

        Rows: their number covers the load, and a group without workers serves nothing. Returns the column of their
        number.
        """
        program = self.program
        count = self.counts[pool, number] = program.column(self.prices[pool], most, integer=True)
        load = program.row(-math.inf, 0.0, [count], -1.0)
        for name in hosted:
            share = self.shares[name, pool, number] = program.column()
            program.fill([load], [share], self.demand.workers[name][pool])
            self.load_rows[name, pool] = load
            self.presence_rows[name, pool] = program.row(-math.inf, 0.0, [share, count], [1.0, -1.0])
        return count


def add_shared_groups(
    model: WorkerGroups,
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
        _by_workers(model, pool, memory, moves, workers)
        return True
    if sets is None:
        return False
    for number, hosted in enumerate(sets):
        model.group(number, pool.name, hosted, pool.count)
    add_moves_by_set(model, pool.name, sets, moves)
    return True


def add_moves_by_set(model: WorkerGroups, pool: str, sets: Sequence[HostSet], moves: LoadCosts) -> None:
    """The formulation by sets: migration cost of the pool's groups, which exist and are numbered like `sets`."""
    program, costs = model.program, model.moving.setdefault(pool, {})
    into: list[list[int]] = [[] for _ in sets]
    for before, count in moves.held[pool].items():
        out: list[int] = []
        for number, hosted in enumerate(sets):
            saved = moves.cost_usd_per_h(before.intersection(hosted), pool)
            if saved > 0:
                going_on = program.column()
                costs[going_on] = -saved
                into[number].append(going_on)
                out.append(going_on)
        if out:
            program.row(-math.inf, count, out)
    for number, hosted in enumerate(sets):
        workers = model.counts[pool, number]
        costs[workers] = moves.cost_usd_per_h(hosted, pool)
        if into[number]:
            row = program.row(-math.inf, 0.0, into[number])
            program.fill([row], [workers], -1.0)


def _workers(pool: Pool, busy: Mapping[str, float], moves: LoadCosts) -> list[HeldModels]:
    """Models held by each worker that may serve: the running workers, then empty ones.

    An empty worker is never better than a running one. More empty workers than all operators need without sharing
    workers are useless.
    """
    running = [held for held, count in moves.held[pool.name].items() for _ in range(min(count, pool.count))]
    alone = sum(max(1, math.ceil(workers)) for workers in busy.values())
    return running + [frozenset()] * min(pool.count - len(running), alone)


def _by_workers(
    model: WorkerGroups, pool: Pool, memory: PoolMemory, moves: LoadCosts, workers: Sequence[HeldModels]
) -> None:
    program, names, costs = model.program, tuple(memory.needs), model.moving.setdefault(pool.name, {})
    all_needed, limits = together(memory.needs.values()), memory.limits
    scarce = [at for at, limit in enumerate(limits) if not fits(all_needed[at], limit)]
    previous = 0  # the column of the worker before
    for number, held in enumerate(workers):
        count = model.group(number, pool.name, names, 1)
        full = {at: program.row(-math.inf, 0.0, [count], -(limits[at] or 0.0)) for at in scarce}
        for name in names:
            holds = program.column(0.0, 1.0, integer=True)
            program.row(-math.inf, 0.0, [model.shares[name, pool.name, number], holds], [1.0, -1.0])
            program.row(-math.inf, 0.0, [holds, count], [1.0, -1.0])
            for at, row in full.items():
                program.fill([row], [holds], memory.needs[name][at])
            if name not in held:
                costs[holds] = moves.load_usd_per_h[name, pool.name]
        if number > 0 and workers[number - 1] == held:  # symmetry breaking: the first of identical workers serve
            program.row(-math.inf, 0.0, [count, previous], [1.0, -1.0])
        previous = count


def add_least_loads(model: WorkerGroups, pool: str, busy: Mapping[str, float], moves: LoadCosts) -> None:
    """Add a lower bound on migration cost: replicas of each operator beyond those that the pool's workers hold.

    `busy`: operator -> workers that all its requests keep busy.
    """
    costs = model.moving.setdefault(pool, {})
    for name, workers in busy.items():
        loads = model.program.column(integer=True)
        costs[loads] = moves.load_usd_per_h[name, pool]
        shares = [share for (owner, place, _), share in model.shares.items() if (owner, place) == (name, pool)]
        for needed in (1.0, workers):
            row = model.program.row(-math.inf, moves.holding(name, pool), shares, needed)
            model.program.fill([row], [loads], -1.0)
