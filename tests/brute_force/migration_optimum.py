"""Re-planning solved by enumeration: an oracle that shares no code with the solver's way.

`cheapest_move` tries every selection and every way in which each pool's workers can hold models; what they must load is
the least over all matchings of single workers (SciPy's assignment). `cheapest_move_of_larger` has a binary variable for
every model on every worker.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linear_sum_assignment, milp

from jellybean_solver import Plan, Problem
from tests.brute_force.optimum import GIB, Counts, Program, Selection, accuracy, selections

Model = tuple[str, str, str | None]  # operator, variant, SHA-256


@dataclass(frozen=True)
class Prices:
    """As documents state them; `gib` None: what the links to the top tier cost."""

    start: float
    gib: float | None
    horizon_h: float


def cheapest_move(problem: Problem, before: Plan, prices: Prices) -> float | None:
    """The least cost over the horizon with the way there; None when no plan meets the targets."""
    best: float | None = None
    for selection in _accurate(problem):
        program = Program(problem, selection, largest=False)
        price = {pool.name: pool.price_usd_per_h for pool in problem.pools}
        ways: list[tuple[float, float, int, Counts]] = []
        for index, counts in enumerate(_holdings(program)):
            compute = sum(n * price[pool] for (_, pool), n in counts.items())
            ways.append(
                (compute * prices.horizon_h + moved(problem, before, prices, selection, counts), compute, index, counts)
            )
        for total, compute, _, counts in sorted(ways, key=lambda way: way[:3]):
            if best is not None and total >= best:
                break
            traffic = program.cost(counts)
            budget = problem.slo.budget_usd_per_h
            if traffic is None or (budget is not None and compute + traffic > budget * (1 + 1e-9)):
                continue
            whole = total + traffic * prices.horizon_h
            best = whole if best is None else min(best, whole)
    return best


def moved(problem: Problem, before: Plan, prices: Prices, selection: Selection, counts: Counts) -> float:
    """What these workers must load that go on from `before`: the cheapest matching of single workers, by pool."""
    total = 0.0
    for pool in problem.pools:
        old = held_before(before, pool.name, pool.tier)
        new = [hosted for (hosted, name), n in counts.items() if name == pool.name for _ in range(n)]
        if not new:
            continue
        loads = np.zeros((len(new), len(old) + len(new)))  # each may start empty
        for row, hosted in enumerate(new):
            for column in range(loads.shape[1]):
                had = old[column] if column < len(old) else frozenset()
                loads[row, column] = sum(
                    replica(problem, prices, selection, name, pool.name, pool.tier)
                    for name in hosted
                    if key(problem, selection, name) not in had
                )
        total += float(loads[linear_sum_assignment(loads)].sum())
    return total


def replica(problem: Problem, prices: Prices, selection: Mapping[str, str], name: str, pool: str, tier: str) -> float:
    """USD of one model on one worker."""
    variant = _variant(problem, selection, name)
    size = variant.memory_bytes.get(pool, 0.0)
    if variant.model is not None and variant.model.size_bytes is not None:
        size = variant.model.size_bytes
    return prices.start + size / GIB * (prices.gib if prices.gib is not None else _way_up(problem, tier) or 0.0)


def _way_up(problem: Problem, tier: str) -> float | None:
    if tier == problem.tiers[-1]:
        return 0.0
    ways = [
        link.price_usd_per_gib + rest
        for link in problem.links
        if link.upstream_tier == tier and (rest := _way_up(problem, link.downstream_tier)) is not None
    ]
    return min(ways, default=None)


def held_before(before: Plan, pool: str, tier: str) -> list[frozenset[Model]]:
    """What each worker of the running plan holds in a pool."""
    models = {o.name: (o.name, o.variant, o.model.sha256 if o.model else None) for o in before.operators}
    there = [worker for worker in before.workers if (worker.pool, worker.tier) == (pool, tier)]
    return [frozenset(models[name] for name in worker.rates_per_s) for worker in there]


def key(problem: Problem, selection: Mapping[str, str], name: str) -> Model:
    """A model by content."""
    model = _variant(problem, selection, name).model
    return name, selection[name], model.sha256 if model else None


def _variant(problem, selection, name):  # type: ignore[no-untyped-def]
    operator = next(operator for operator in problem.operators if operator.name == name)
    return next(variant for variant in operator.variants if variant.name == selection[name])


def _accurate(problem: Problem) -> Iterator[Selection]:
    for selection in selections(problem):
        value = accuracy(problem, selection)
        if problem.slo.accuracy is None or (value is not None and value >= problem.slo.accuracy - 1e-9):
            yield selection


def _holdings(program: Program) -> Iterator[Counts]:
    """All ways in which each pool's workers can hold models."""
    choices: list[list[Counts]] = []
    for pool in program.problem.pools:
        sets = program.sets[pool.name]
        ways = (
            Counter(way)
            for used in range(pool.count + 1)
            for way in itertools.combinations_with_replacement(sets, used)
        )
        choices.append([{(hosted, pool.name): way[hosted] for hosted in sets} for way in ways])
    for parts in itertools.product(*choices):
        yield {pair: n for part in parts for pair, n in part.items()}


def cheapest_move_of_larger(problem: Problem, before: Plan, prices: Prices) -> float | None:
    """As `cheapest_move`, worker by worker: running workers, each with what it holds, and empty ones."""
    found = [_of_larger(problem, before, prices, selection) for selection in _accurate(problem)]
    return min((cost for cost in found if cost is not None), default=None)


def _of_larger(problem: Problem, before: Plan, prices: Prices, selection: Selection) -> float | None:
    single = _Single(problem, before, prices, selection)
    return single.solve() if single.program.joint else None


class _Single:
    """Columns: joint assignments, shares, models held, workers used."""

    def __init__(self, problem: Problem, before: Plan, prices: Prices, selection: Selection) -> None:
        self.problem, self.prices, self.selection = problem, prices, selection
        self.program = Program(problem, selection)
        self.workers = [
            (pool, had)
            for pool in problem.pools
            for had in held_before(before, pool.name, pool.tier) + [frozenset[Model]()] * pool.count
        ]
        names = [operator.name for operator in problem.operators]
        able = {(name, pool.name) for name, pool, _ in self.program.y}
        self.places = [
            (name, w) for w, (pool, _) in enumerate(self.workers) for name in names if (name, pool.name) in able
        ]
        self.z, self.y = len(self.program.joint), len(self.places)
        self.width = self.z + 2 * self.y + len(self.workers)
        self.running, self.moving = np.zeros(self.width), np.zeros(self.width)  # USD/h, USD
        self.running[: self.z] = [traffic for _, traffic in self.program.joint]
        self.rows: list[tuple[np.ndarray, float, float]] = []
        self._served(names)
        for w in range(len(self.workers)):
            self._worker(w)
        for pool in problem.pools:
            own = {self._used(w): 1.0 for w, (at, _) in enumerate(self.workers) if at == pool}
            self._row(own, -np.inf, pool.count)
        for line, limit in self.program.link_rows():
            self._row({i: line[i] for i in range(self.z)}, -np.inf, limit)

    def solve(self) -> float | None:
        if self.problem.slo.budget_usd_per_h is not None:
            self.rows.append((self.running, -np.inf, self.problem.slo.budget_usd_per_h))
        lines, low, high = zip(*self.rows, strict=True)
        result = milp(
            self.running * self.prices.horizon_h + self.moving,
            constraints=LinearConstraint(np.array(lines), low, high),
            integrality=np.array([0] * (self.z + self.y) + [1] * (self.width - self.z - self.y)),
            bounds=(np.zeros(self.width), np.ones(self.width)),
            options={"mip_rel_gap": 0.0},
        )
        return float(result.fun) if result.status == 0 else None

    def _row(self, terms: Mapping[int, float], low: float, high: float) -> None:
        line = np.zeros(self.width)
        for column, value in terms.items():
            line[column] = value
        self.rows.append((line, low, high))

    def _used(self, worker: int) -> int:
        return self.z + 2 * self.y + worker

    def _served(self, names: list[str]) -> None:
        self._row(dict.fromkeys(range(self.z), 1.0), 1.0, 1.0)
        for name, tier in itertools.product(names, self.problem.tiers):
            terms = {i: -1.0 for i, (at, _) in enumerate(self.program.joint) if at[name] == tier}
            for i, (own, w) in enumerate(self.places):
                if own == name and self.workers[w][0].tier == tier:
                    terms[self.z + i] = 1.0
            self._row(terms, 0.0, 0.0)

    def _worker(self, w: int) -> None:
        pool, had = self.workers[w]
        used, own = self._used(w), [(i, name) for i, (name, at) in enumerate(self.places) if at == w]
        self.running[used] = pool.price_usd_per_h
        busy = {self.z + i: self.program.busy[name, pool.name] for i, name in own}
        self._row({**busy, used: -self.problem.utilisation}, -np.inf, 0.0)
        for i, name in own:
            held = self.z + self.y + i
            self._row({self.z + i: 1.0, held: -1.0}, -np.inf, 0.0)
            self._row({held: 1.0, used: -1.0}, -np.inf, 0.0)
            if key(self.problem, self.selection, name) not in had:
                tier = pool.tier
                self.moving[held] = replica(self.problem, self.prices, self.selection, name, pool.name, tier)
        if pool.sharing.value == "exclusive":
            self._row({self.z + self.y + i: 1.0 for i, _ in own}, -np.inf, 1.0)
        variants = {i: _variant(self.problem, self.selection, o) for i, o in own}
        for limit, which in ((pool.memory_bytes, "memory_bytes"), (pool.device_memory_bytes, "device_memory_bytes")):
            if limit is not None:
                needed = {self.z + self.y + i: getattr(v, which).get(pool.name, 0.0) for i, v in variants.items()}
                self._row(needed, -np.inf, limit * (1 + 1e-9))
