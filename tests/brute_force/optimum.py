"""The planning problem solved by enumeration: an oracle that shares no code with the solver.

Every selection, every vector of integer worker counts (of workers by what they hold), and for each a linear program
(SciPy) over the fractions of requests per fully enumerated assignment of all operators to tiers. Where the vectors are
many, they are integer variables of that program instead.

Sites are alike: counts and fractions are those of one site, workers and traffic are paid for in all, and what all
sites send up comes together in a tier without sites.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp

from jellybean_solver import EndToEnd, Independent, Link, PerOperator, Pool, Problem, ServiceTime, Variant
from tests.brute_force import rates as reference_rates

GIB = 1024.0**3
MOST_VECTORS = 60  # of worker counts, to go through one by one
Selection = dict[str, str]
Hosted = frozenset[str]  # the operators whose models a worker holds
Counts = dict[tuple[Hosted, str], int]  # (what they hold, pool) -> workers


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
        few = _vectors(Program(problem, selection)) <= MOST_VECTORS
        cost = cheapest_of(problem, selection, best) if few else cheapest_of_larger(problem, selection)
        if cost is not None and cost < best:
            best, chosen = cost, selection
    return Best(None if chosen is None else best, chosen)


def feasible(problem: Problem, selection: Selection) -> bool:
    """Whether the fleet carries the selection."""
    program = Program(problem, selection)
    return any(program.cost(counts) is not None for counts in _counts(program, largest=True))


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
    program = Program(problem, selection)
    price = {pool.name: pool.price_usd_per_h * problem.sites.get(pool.tier, 1) for pool in problem.pools}
    priced = sorted(
        ((sum(n * price[pool] for (_, pool), n in counts.items()), i, counts)
         for i, counts in enumerate(_counts(program, largest=False))),
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


def cheapest_of_larger(problem: Problem, selection: Selection, paid: str | None = None) -> float | None:
    """As `cheapest_of`, where too many vectors of counts exist: they become integer variables (SciPy's milp).

    `paid`: a pool of which at least one worker must be paid, idle if nothing of the selection can run there.
    """
    program = Program(problem, selection)
    keys = [(hosted, name) for name, sets in program.sets.items() for hosted in sets]
    if not program.joint:
        return None
    pools = {pool.name: pool for pool in problem.pools}
    width = len(program.joint) + len(program.y)
    objective, equal, equals = program.equalities()
    wide = [np.concatenate([row, np.zeros(len(keys))]) for row in equal]
    rows = [LinearConstraint(np.array(wide), equals, equals)]
    for row, limit in program.link_rows():
        rows.append(LinearConstraint(np.concatenate([row, np.zeros(len(keys))]), -np.inf, limit))
    for index, key in enumerate(keys):
        busy = np.zeros(width + len(keys))
        busy[:width] = program.busy_row(key)
        busy[width + index] = -problem.utilisation
        rows.append(LinearConstraint(busy, -np.inf, 0.0))
        for i, (_, pool, hosted) in enumerate(program.y):
            if (hosted, pool.name) == key:
                present = np.zeros(width + len(keys))
                present[len(program.joint) + i], present[width + index] = 1.0, -1.0
                rows.append(LinearConstraint(present, -np.inf, 0.0))
    idle_usd_per_h = 0.0
    if paid is not None and not any(name == paid for _, name in keys):
        idle_usd_per_h, paid = pools[paid].price_usd_per_h * problem.sites.get(pools[paid].tier, 1), None
    for pool in problem.pools:
        held = np.zeros(width + len(keys))
        held[width:] = [1.0 if name == pool.name else 0.0 for _, name in keys]
        rows.append(LinearConstraint(held, 1.0 if pool.name == paid else 0.0, pool.count))
    result = milp(
        np.concatenate([objective, [pools[p].price_usd_per_h * problem.sites.get(pools[p].tier, 1) for _, p in keys]]),
        constraints=rows,
        integrality=np.array([0] * width + [1] * len(keys)),
        options={"mip_rel_gap": 0.0},
    )
    assert result.status in (0, 2), result.message  # optimal or infeasible
    return float(result.fun) + idle_usd_per_h if result.status == 0 else None


def _vectors(program: Program) -> int:
    """How many `_counts` there are."""
    sizes = ((pool.count, len(program.sets[pool.name])) for pool in program.problem.pools)
    return math.prod(math.comb(count + sets, sets) for count, sets in sizes)


def _counts(program: Program, *, largest: bool) -> Iterator[Counts]:
    """All vectors of worker counts; with `largest` only those that no other exceeds."""
    choices: list[list[Counts]] = []
    for pool in program.problem.pools:
        sets = program.sets[pool.name]
        splits = itertools.product(range(pool.count + 1), repeat=len(sets))
        kept = [s for s in splits if (sum(s) == pool.count if largest and sets else sum(s) <= pool.count)]
        choices.append([{(hosted, pool.name): n for hosted, n in zip(sets, split, strict=True)} for split in kept])
    for parts in itertools.product(*choices):
        yield {key: n for part in parts for key, n in part.items()}


def fits_in(pool: Pool, models: Sequence[Variant]) -> bool:
    """True if a worker of the pool can hold these models, in its own memory and in that of its device."""
    for limit, held in (
        (pool.memory_bytes, sum(model.memory_bytes.get(pool.name, 0.0) for model in models)),
        (pool.device_memory_bytes, sum(model.device_memory_bytes.get(pool.name, 0.0) for model in models)),
    ):
        if limit is not None and held > limit * (1 + 1e-9):
            return False
    return True


def _sets(pool: Pool, able: Mapping[str, Variant], largest: bool) -> list[Hosted]:
    """What a worker of the pool can hold: sets that fit, `largest` without those inside another; one if exclusive."""
    sizes = range(1, 2 if pool.sharing.value == "exclusive" else len(able) + 1)
    fitting = [
        frozenset(names)
        for size in sizes
        for names in itertools.combinations(sorted(able), size)
        if fits_in(pool, [able[name] for name in names])
    ]
    return [one for one in fitting if not (largest and any(one < other for other in fitting))]


def _each_s(times: Mapping[int, ServiceTime], *, batches: bool) -> float:
    """A request's part of the batch that plans run: larger only for 2 % less than every smaller one, at the best."""
    each = {size: time.load_s / size for size, time in times.items() if batches or size == 1}
    fewest = next(size for size in sorted(each) if all(other >= 0.98 * each[size] for other in each.values()))
    return each[fewest]


class Program:
    """min traffic s.t. capacity, over joint assignments z and shares y; only the right-hand sides depend on counts."""

    def __init__(self, problem: Problem, selection: Selection, *, largest: bool = True) -> None:
        self.problem = problem
        names = [operator.name for operator in problem.operators]
        self.selection = selection
        rates = reference_rates.rates(problem, selection)
        variant = {o.name: next(v for v in o.variants if v.name == selection[o.name]) for o in problem.operators}
        born = {source.name: source for source in problem.sources}
        links = {(link.upstream_tier, link.downstream_tier): link for link in problem.links}
        order = {tier: i for i, tier in enumerate(problem.tiers)}

        self.joint: list[tuple[dict[str, str], float]] = []
        self.carried: list[dict[tuple[str, str], float]] = []  # bytes per second by link, per joint assignment
        for tiers in itertools.product(problem.tiers, repeat=len(names)):
            at = dict(zip(names, tiers, strict=True)) | {name: source.tier for name, source in born.items()}
            carried = self._traffic(at, rates, variant, links, order)
            if carried is not None:
                cost = sum(sent * 3600.0 / GIB * links[pair].price_usd_per_gib for pair, sent in carried.items())
                self.joint.append((at, cost))
                self.carried.append(carried)
        self.sets: dict[str, list[Hosted]] = {}
        for pool in problem.pools:
            able = {
                operator.name: variant[operator.name]
                for operator in problem.operators
                if pool.name in variant[operator.name].service
                and (operator.tiers is None or pool.tier in operator.tiers)
            }
            self.sets[pool.name] = _sets(pool, able, largest)
        self.y = [
            (name, p, hosted) for name in names for p in problem.pools for hosted in self.sets[p.name] if name in hosted
        ]
        alone = {
            edge.downstream if edge.kind.value == "gather" else edge.upstream
            for operator in problem.operators
            for edge in operator.inputs
            if edge.kind.value != "each"
        }
        self.busy = {
            (n, p.name): rates[n]
            * _each_s(variant[n].service[p.name], batches=n not in alone or variant[n].counts_rows)
            / problem.sites.get(p.tier, 1)
            for n, p, _ in self.y
        }

    def _traffic(
        self,
        at: Mapping[str, str],
        rates: Mapping[str, float],
        variant: Mapping[str, object],
        links: Mapping[tuple[str, str], Link],
        order: Mapping[str, int],
    ) -> dict[tuple[str, str], float] | None:
        born = {source.name: source for source in self.problem.sources}
        carried: dict[tuple[str, str], float] = {}
        for operator in self.problem.operators:
            for edge in operator.inputs:
                pair = at[edge.upstream], at[edge.downstream]
                if edge.tiers is not None and not set(pair) <= set(edge.tiers):
                    return None
                if pair[0] == pair[1]:
                    continue
                if order[pair[0]] > order[pair[1]] or pair not in links:
                    return None
                messages = rates[edge.upstream] * reference_rates.rows(self.problem, edge, self.selection)
                size = (
                    born[edge.upstream].message_bytes
                    if edge.upstream in born
                    else variant[edge.upstream].message_bytes[edge.downstream]  # type: ignore[attr-defined]
                )
                carried[pair] = carried.get(pair, 0.0) + messages * size
        return carried

    def link_rows(self) -> list[tuple[np.ndarray, float]]:
        """Per link with a limit, what each joint assignment puts on it as a share of that limit, and 1."""
        rows = []
        for link in self.problem.links:
            if link.bandwidth_bytes_per_s is not None:
                pair = link.upstream_tier, link.downstream_tier
                all_bytes_per_s = link.bandwidth_bytes_per_s * self.problem.sites.get(link.upstream_tier, 1)
                sent = [one.get(pair, 0.0) / all_bytes_per_s for one in self.carried]
                rows.append((np.array(sent + [0.0] * len(self.y)), 1.0))
        return rows

    def equalities(self) -> tuple[np.ndarray, list[np.ndarray], list[float]]:
        """Objective and the rows that make shares add up to joint assignments."""
        z, y = len(self.joint), len(self.y)
        objective = np.array([cost for _, cost in self.joint] + [0.0] * y)
        equal, equals = [np.array([1.0] * z + [0.0] * y)], [1.0]
        for name in (operator.name for operator in self.problem.operators):
            for tier in self.problem.tiers:
                row = np.zeros(z + y)
                row[:z] = [-1.0 if at[name] == tier else 0.0 for at, _ in self.joint]
                for i, (owner, pool, _) in enumerate(self.y):
                    if owner == name and pool.tier == tier:
                        row[z + i] = 1.0
                equal.append(row)
                equals.append(0.0)
        return objective, equal, equals

    def busy_row(self, key: tuple[Hosted, str]) -> np.ndarray:
        """Seconds per second that the shares keep the workers of `key` busy."""
        row = np.zeros(len(self.joint) + len(self.y))
        for i, (owner, pool, hosted) in enumerate(self.y):
            if (hosted, pool.name) == key:
                row[len(self.joint) + i] = self.busy[owner, pool.name]
        return row

    def cost(self, counts: Counts) -> float | None:
        """Least traffic cost with these workers; None when they do not suffice."""
        if not self.joint:
            return None
        objective, equal, equals = self.equalities()
        links = self.link_rows()
        less = np.array([self.busy_row(key) for key in counts] + [row for row, _ in links])
        limits = [self.problem.utilisation * n for n in counts.values()] + [limit for _, limit in links]
        if not limits:
            return None
        bounds = [(0.0, 1.0)] * len(self.joint)
        bounds += [(0.0, 1.0 if counts[hosted, p.name] > 0 else 0.0) for _, p, hosted in self.y]
        result = linprog(objective, less, limits, np.array(equal), equals, bounds, method="highs")
        return float(result.fun) if result.status == 0 else None
