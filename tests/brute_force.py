"""The planning problem solved by enumeration: an oracle that shares no code with the solver.

Every selection, every vector of integer worker counts, and for each a linear program (SciPy) over the fractions of
requests per fully enumerated assignment of all operators to tiers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp

from jellybean_solver.accuracy import EndToEnd, Independent, PerOperator
from jellybean_solver.problem import Problem

GIB = 1024.0**3
Selection = dict[str, str]
Counts = dict[tuple[str, str], int]  # (operator or "*", pool)


@dataclass(frozen=True)
class Best:
    """Cheapest cost (None: infeasible)."""

    cost: float | None
    selection: Selection | None


def cheapest(problem: Problem) -> Best:
    """The cheapest plan's cost in USD per hour."""
    best, chosen = float("inf"), None
    for selection in selections(problem):
        value = accuracy(problem, selection)
        if problem.slo.accuracy is not None and (value is None or value < problem.slo.accuracy - 1e-9):
            continue
        cost = cheapest_of(problem, selection, best)
        if cost is not None and cost < best:
            best, chosen = cost, selection
    return Best(None if chosen is None else best, chosen)


def feasible(problem: Problem, selection: Selection) -> bool:
    """Whether the fleet carries the selection."""
    program = _Program(problem, selection)
    return any(program.cost(counts) is not None for counts in _counts(problem, largest=True))


def best_feasible_accuracy(problem: Problem) -> float | None:
    """The highest accuracy that the fleet carries at these rates."""
    known = ((accuracy(problem, selection), selection) for selection in selections(problem))
    for value, selection in sorted(((v, s) for v, s in known if v is not None), key=lambda item: -item[0]):
        if feasible(problem, selection):
            return value
    return None


def selections(problem: Problem) -> Iterator[Selection]:
    """All of them."""
    names = [operator.name for operator in problem.operators]
    for row in itertools.product(*([v.name for v in o.variants] for o in problem.operators)):
        yield dict(zip(names, row, strict=True))


def accuracy(problem: Problem, selection: Selection) -> float | None:
    """By the definition of each model."""
    model = problem.accuracy
    if isinstance(model, EndToEnd):
        return model.table.get(tuple(selection[name] for name in model.operators))
    if isinstance(model, Independent):
        factors = [variants[selection[name]] / 100 for name, variants in model.table.items()]
        return float(np.prod(factors)) * 100 if factors else None
    assert isinstance(model, PerOperator)
    known: dict[str, float] = {}
    for operator in problem.operators:  # topological
        if operator.name not in model.tables:
            continue
        got = tuple(known[name] for name in model.inputs[operator.name])
        rows = {row.inputs: row.output for row in model.tables[operator.name][selection[operator.name]]}
        below = [out for point, out in rows.items() if all(p <= g for p, g in zip(point, got, strict=True))]
        if got not in rows and not below:
            return None
        known[operator.name] = rows[got] if got in rows else max(below)
    fed = {name for names in model.inputs.values() for name in names}
    return min((value for name, value in known.items() if name not in fed), default=None)


def cheapest_of(problem: Problem, selection: Selection, below: float = float("inf")) -> float | None:
    """One selection's cheapest cost under `below`."""
    if not feasible(problem, selection):
        return None
    program = _Program(problem, selection)
    price = {pool.name: pool.price_usd_per_h for pool in problem.pools}
    priced = sorted(
        ((sum(n * price[pool] for (_, pool), n in counts.items()), i, counts)
         for i, counts in enumerate(_counts(problem, largest=False))),
        key=lambda item: item[:2],
    )  # fmt: skip
    best: float | None = None
    for compute, _, counts in priced:
        if compute >= min(below, best if best is not None else below):
            break
        traffic = program.cost(counts)
        if traffic is not None and compute + traffic < min(below, best if best is not None else below):
            best = compute + traffic
    return best


def cheapest_of_larger(problem: Problem, selection: Selection) -> float | None:
    """As `cheapest_of`, where too many vectors of counts exist: they become integer variables (SciPy's milp)."""
    program = _Program(problem, selection)
    keys = list(next(_counts(problem, largest=True)))
    if not program.joint:
        return None
    pools = {pool.name: pool for pool in problem.pools}
    width = len(program.joint) + len(program.y)
    objective, equal, equals = program.equalities()
    wide = [np.concatenate([row, np.zeros(len(keys))]) for row in equal]
    rows = [LinearConstraint(np.array(wide), equals, equals)]
    for index, (owner, name) in enumerate(keys):
        busy = np.zeros(width + len(keys))
        busy[:width] = program.busy_row((owner, name))
        busy[width + index] = -problem.utilisation
        rows.append(LinearConstraint(busy, -np.inf, 0.0))
        for i, (user, pool) in enumerate(program.y):
            if pool.name == name and owner in ("*", user):
                present = np.zeros(width + len(keys))
                present[len(program.joint) + i], present[width + index] = 1.0, -1.0
                rows.append(LinearConstraint(present, -np.inf, 0.0))
    for pool in problem.pools:
        held = np.zeros(width + len(keys))
        held[width:] = [1.0 if name == pool.name else 0.0 for _, name in keys]
        rows.append(LinearConstraint(held, 0.0, pool.count))
    result = milp(
        np.concatenate([objective, [pools[name].price_usd_per_h for _, name in keys]]),
        constraints=rows,
        integrality=np.array([0] * width + [1] * len(keys)),
        options={"mip_rel_gap": 0.0},
    )
    return float(result.fun) if result.status == 0 else None


def _counts(problem: Problem, *, largest: bool) -> Iterator[Counts]:
    """All vectors of worker counts; with `largest` only those that no other exceeds."""
    names = [operator.name for operator in problem.operators]
    choices: list[list[Counts]] = []
    for pool in problem.pools:
        if pool.sharing.value == "shared":
            numbers = [pool.count] if largest else range(pool.count + 1)
            choices.append([{("*", pool.name): n} for n in numbers])
        else:
            splits = itertools.product(range(pool.count + 1), repeat=len(names))
            kept = [s for s in splits if (sum(s) == pool.count if largest else sum(s) <= pool.count)]
            choices.append([{(name, pool.name): n for name, n in zip(names, split, strict=True)} for split in kept])
    for parts in itertools.product(*choices):
        yield {key: n for part in parts for key, n in part.items()}


class _Program:
    """min traffic s.t. capacity, over joint assignments z and shares y; only the right-hand sides depend on counts."""

    def __init__(self, problem: Problem, selection: Selection) -> None:
        self.problem = problem
        names = [operator.name for operator in problem.operators]
        rates: dict[str, float] = {source.name: source.rate_per_s for source in problem.sources}
        for operator in problem.operators:
            rates[operator.name] = rates[operator.inputs[0].upstream] * operator.inputs[0].ratio
        variant = {o.name: next(v for v in o.variants if v.name == selection[o.name]) for o in problem.operators}
        born = {source.name: source for source in problem.sources}
        links = {(link.upstream_tier, link.downstream_tier): link.price_usd_per_gib for link in problem.links}
        order = {tier: i for i, tier in enumerate(problem.tiers)}

        self.joint: list[tuple[dict[str, str], float]] = []
        for tiers in itertools.product(problem.tiers, repeat=len(names)):
            at = dict(zip(names, tiers, strict=True)) | {name: source.tier for name, source in born.items()}
            cost = self._traffic(at, rates, variant, links, order)
            if cost is not None:
                self.joint.append((at, cost))
        self.y = [(name, pool) for name in names for pool in problem.pools if pool.name in variant[name].service]
        self.busy = {(n, p.name): rates[n] * variant[n].service[p.name][1].load_s for n, p in self.y}

    def _traffic(
        self,
        at: Mapping[str, str],
        rates: Mapping[str, float],
        variant: Mapping[str, object],
        links: Mapping[tuple[str, str], float],
        order: Mapping[str, int],
    ) -> float | None:
        born = {source.name: source for source in self.problem.sources}
        total = 0.0
        for operator in self.problem.operators:
            for edge in operator.inputs:
                pair = at[edge.upstream], at[edge.downstream]
                if pair[0] == pair[1]:
                    continue
                if order[pair[0]] > order[pair[1]] or pair not in links:
                    return None
                messages = rates[edge.upstream] * (edge.ratio if edge.kind.value == "fan_out" else 1.0)
                size = (
                    born[edge.upstream].message_bytes
                    if edge.upstream in born
                    else variant[edge.upstream].message_bytes[edge.downstream]  # type: ignore[attr-defined]
                )
                total += messages * size * 3600.0 / GIB * links[pair]
        return total

    def equalities(self) -> tuple[np.ndarray, list[np.ndarray], list[float]]:
        """Objective and the rows that make shares add up to joint assignments."""
        z, y = len(self.joint), len(self.y)
        objective = np.array([cost for _, cost in self.joint] + [0.0] * y)
        equal, equals = [np.array([1.0] * z + [0.0] * y)], [1.0]
        for name in (operator.name for operator in self.problem.operators):
            for tier in self.problem.tiers:
                row = np.zeros(z + y)
                row[:z] = [-1.0 if at[name] == tier else 0.0 for at, _ in self.joint]
                for i, (owner, pool) in enumerate(self.y):
                    if owner == name and pool.tier == tier:
                        row[z + i] = 1.0
                equal.append(row)
                equals.append(0.0)
        return objective, equal, equals

    def busy_row(self, key: tuple[str, str]) -> np.ndarray:
        """Seconds per second that the shares keep the workers of `key` busy."""
        row = np.zeros(len(self.joint) + len(self.y))
        for i, (owner, pool) in enumerate(self.y):
            if pool.name == key[1] and key[0] in ("*", owner):
                row[len(self.joint) + i] = self.busy[owner, pool.name]
        return row

    def cost(self, counts: Counts) -> float | None:
        """Least traffic cost with these workers; None when they do not suffice."""
        if not self.joint:
            return None
        objective, equal, equals = self.equalities()
        less = np.array([self.busy_row(key) for key in counts])
        limits = [self.problem.utilisation * n for n in counts.values()]
        number = {(o, p.name): counts.get(("*", p.name), counts.get((o, p.name), 0)) for o, p in self.y}
        bounds = [(0.0, 1.0)] * len(self.joint)
        bounds += [(0.0, 1.0 if number[o, p.name] > 0 else 0.0) for o, p in self.y]
        result = linprog(objective, less, limits, np.array(equal), equals, bounds, method="highs")
        return float(result.fun) if result.status == 0 else None
