"""One program over everything: shares no code with the solver.

A column for the share of the requests of every block (a workflow, in a site if sites differ) that every pattern serves:
a selection of variants with a tier for each operator. A whole number of workers for every set of models that one can
hold. Requests spread once with everything there and once after each loss, over the same workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_matrix

Model = tuple[str, str]  # operator and variant
Held = tuple[Model, ...]
Pair = tuple[str, str]  # of tiers
Row = dict[int, float]
NOBODY = -1
LITTLE = 1e-9
MOST_SETS = 2000  # of models that a worker of a pool may hold: each is an integer column, and more take minutes


@dataclass(frozen=True)
class Pattern:
    """How requests of a block are served. `rates`: of all, if all requests of the block take this pattern.

    `selection`: all requests of a block have one; of a block that mixes it is what cannot be mixed. `crossed`: the
    pairs of tiers that data crosses, with bytes per second.
    """

    block: str
    selection: str
    accuracy: float
    usd_per_h: float
    rates: Mapping[tuple[str, Model], float]  # tier and model
    crossed: Mapping[Pair, float]
    uses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workers:
    """A pool. `price_usd_per_h`: of a worker in each of its `sites`; `seconds`: model -> time of one request."""

    name: str
    tier: str
    count: int
    price_usd_per_h: float
    seconds: Mapping[Model, float]
    sites: int = 1
    limit_bytes: float | None = None
    memory_bytes: Mapping[Model, float] = field(default_factory=dict)
    is_exclusive: bool = False
    is_spot: bool = False
    uses: Mapping[str, float] = field(default_factory=dict)

    def can_hold(self, models: Held) -> bool:
        """True if a worker may hold these models: one variant of an operator, within the memory."""
        if len({operator for operator, _ in models}) < len(models) or (self.is_exclusive and len(models) > 1):
            return False
        needed = sum(self.memory_bytes.get(model, 0.0) for model in models)
        return self.limit_bytes is None or needed <= self.limit_bytes * (1 + LITTLE)


@dataclass(frozen=True)
class Block:
    """Who is served. `group`: those of one are served together or left out, at the sum of their worths.

    `mixes`: requests may get unlike selections. `losses`: `worker`, `spot worker`, `site`, `link`.
    """

    name: str
    group: str
    mixes: bool = False
    mean_accuracy: float | None = None
    penalty_usd_per_h: float | None = None
    worth_usd_per_h: float | None = None
    losses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fleet:
    """`links`: pair of tiers -> bytes per second of all sites, None without a limit. `limits`: of what is used."""

    pools: tuple[Workers, ...]
    links: Mapping[Pair, float | None]
    source_tiers: frozenset[str]
    utilisation: float
    budget_usd_per_h: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Optimum:
    """`value`: of the best solution; `bound`: no solution is better. `left_out`: groups that are not served."""

    value: float
    bound: float
    left_out: frozenset[str] = frozenset()


Sets = Callable[[Workers, list[Model], frozenset[str]], list[Held]]
Lost = tuple[str, object]  # kind, and what: (pool, held), a tier or a pair of tiers


class Program:
    """Columns are (cost, most, is_whole); rows are (column -> value, least, most). `sets`: what a worker may hold."""

    def __init__(
        self, fleet: Fleet, blocks: Iterable[Block], patterns: Iterable[Pattern], sets: Sets | None = None
    ) -> None:
        self.sets = sets or largest_sets
        self.fleet, self.blocks, self.patterns = fleet, tuple(blocks), tuple(patterns)
        self.columns: list[tuple[float, float, bool]] = []
        self.rows: list[tuple[Row, float, float]] = []
        self.constant = 0.0
        self.unlimited: set[int] = set()  # columns of costs that nobody pays, or that a budget is not for
        self._add_served()
        self._add_selections()
        self._add_workers()
        self.lacking = {
            block.name: self._unpaid(block.penalty_usd_per_h, 100.0)
            for block in self.blocks
            if block.penalty_usd_per_h is not None
        }
        self.flow = self._flow(self.blocks, ("", None))
        for lost, blocks_of in self._losses():
            self._flow(blocks_of, lost)
        self._require_no_more_lacking()

    def column(self, cost: float, most: float, *, whole: bool = False) -> int:
        """A new column."""
        self.columns.append((cost, most, whole))
        return len(self.columns) - 1

    def row(self, row: Row, least: float, most: float) -> None:
        self.rows.append((row, least, most))

    def _unpaid(self, cost: float, most: float, *, whole: bool = False) -> int:
        column = self.column(cost, most, whole=whole)
        self.unlimited.add(column)
        return column

    def _add_served(self) -> None:
        """A binary column for each group that may be left out; the others are served."""
        self.served: dict[str, int] = {}
        for group in {block.group: None for block in self.blocks}:
            worths = [one.worth_usd_per_h for one in self.blocks if one.group == group]
            stated = [worth for worth in worths if worth is not None]
            if stated:
                self.served[group] = self.column(-sum(stated), 1.0, whole=True)
                self.unlimited.add(self.served[group])
                self.constant += sum(stated)

    def _is_served(self, block: Block, factor: float = 1.0) -> tuple[Row, float]:
        """A multiple of whether a block is served: columns, and a constant."""
        column = self.served.get(block.group, NOBODY)
        return ({}, factor) if column == NOBODY else ({column: factor}, 0.0)

    def _add_selections(self) -> None:
        """A binary column for each selection of a block."""
        self.chosen: dict[tuple[str, str], int] = {}
        for block in self.blocks:
            for name in {one.selection: None for one in self.patterns if one.block == block.name}:
                self.chosen[block.name, name] = self.column(0.0, 1.0, whole=True)

    def _add_workers(self) -> None:
        self.counts: dict[tuple[str, Held], int] = {}
        self.pools = {pool.name: pool for pool in self.fleet.pools}
        used = {(tier, model) for pattern in self.patterns for tier, model in pattern.rates}
        for pool in self.fleet.pools:
            models = sorted(model for model in pool.seconds if (pool.tier, model) in used)
            columns = {
                (pool.name, held): self.column(pool.price_usd_per_h, float(pool.count), whole=True)
                for held in self.sets(pool, models, self._alone())
            }
            self.counts |= columns
            self.row(dict.fromkeys(columns.values(), 1.0), -math.inf, float(pool.count))

    def _alone(self) -> frozenset[str]:
        """Operators of which only one variant is in use, whichever it is: of blocks that do not mix."""
        mixing = {block.name for block in self.blocks if block.mixes}
        return frozenset(model[0] for one in self.patterns if one.block not in mixing for _, model in one.rates)

    def _losses(self) -> Iterator[tuple[Lost, tuple[Block, ...]]]:
        kinds = {kind: None for block in self.blocks for kind in block.losses}
        for kind in kinds:
            blocks = tuple(block for block in self.blocks if kind in block.losses)
            if kind in ("worker", "spot worker"):
                spot = {pool.name for pool in self.fleet.pools if pool.is_spot}
                yield from ((("worker", one), blocks) for one in self.counts if kind == "worker" or one[0] in spot)
            elif kind == "site":
                tiers = {pool.tier for pool in self.fleet.pools} - self.fleet.source_tiers
                yield from ((("site", tier), blocks) for tier in sorted(tiers))
            else:
                yield from ((("link", pair), blocks) for pair in self.fleet.links)

    def _flow(self, blocks: tuple[Block, ...], lost: Lost) -> dict[int, Pattern]:
        """How the requests of the blocks spread: the columns of their patterns."""
        kind, what = lost
        names = {block.name for block in blocks}
        patterns = [one for one in self.patterns if one.block in names]
        taken = {self.column(0.0 if kind else one.usd_per_h, 1.0): one for one in patterns}
        for block in blocks:
            shares = {column: 1.0 for column, one in taken.items() if one.block == block.name}
            row, constant = self._is_served(block, -1.0)
            self.row(shares | row, -constant, -constant)
            self._require_accuracy(block, {column: taken[column].accuracy for column in shares})
        for selection, chosen in self.chosen.items():
            own = {column: 1.0 for column, one in taken.items() if (one.block, one.selection) == selection}
            self.row(own | {chosen: -1.0}, -math.inf, 0.0)
        for block in blocks:
            choices = {column: 1.0 for (name, _), column in self.chosen.items() if name == block.name}
            if choices and not kind:
                self.row(choices, -math.inf, 1.0)
        for column, one in taken.items():
            if (kind == "site" and what in {tier for tier, _ in one.rates}) or (kind == "link" and what in one.crossed):
                self.row({column: 1.0}, 0.0, 0.0)
        self._serve(taken, lost)
        for pair, limit in self.fleet.links.items():
            if limit is not None:
                used = {column: one.crossed.get(pair, 0.0) / limit for column, one in taken.items()}
                self.row(used, -math.inf, 1.0)
        return taken

    def _require_accuracy(self, block: Block, accuracies: Row) -> None:
        if block.mean_accuracy is not None:
            lacks = {self.lacking[block.name]: 1.0} if block.name in self.lacking else {}
            row, constant = self._is_served(block, -(block.mean_accuracy - LITTLE))
            self.row(accuracies | lacks | row, -constant, math.inf)

    def _require_no_more_lacking(self) -> None:
        """After a loss no more of a soft mean is lacking than before: it is what the first flow lacks, exactly."""
        for block in self.blocks:
            if not block.losses or block.name not in self.lacking or block.mean_accuracy is None:
                continue
            lacks, some = self.lacking[block.name], self.column(0.0, 1.0, whole=True)
            accuracies = {column: one.accuracy for column, one in self.flow.items() if one.block == block.name}
            self.row({lacks: 1.0, some: -100.0}, -math.inf, 0.0)
            self.row(accuracies | {lacks: 1.0, some: 100.0}, -math.inf, block.mean_accuracy + LITTLE + 100.0)

    def _serve(self, taken: dict[int, Pattern], lost: Lost) -> None:
        """What workers serve of each model is what the patterns bring, within what the workers are able to do."""
        serving: dict[tuple[str, Model], Row] = {}
        most = {
            key: max(one.rates.get(key, 0.0) for one in self.patterns)
            for key in {key for one in taken.values() for key in one.rates}
        }
        for (name, held), count in self.counts.items():
            pool, there = self.pools[name], {count: 1.0}
            if lost == ("worker", (name, held)):
                some = self.column(0.0, 1.0, whole=True)
                self.row({count: 1.0, some: -max(float(pool.count), 1.0)}, -math.inf, 0.0)
                there[some] = -1.0
            load: Row = {column: -value for column, value in there.items()}
            for model in held:
                key = pool.tier, model
                if key in most:
                    column = self.column(0.0, math.inf)
                    load[column] = pool.seconds[model] / self.fleet.utilisation / pool.sites
                    serving.setdefault(key, {})[column] = 1.0
                    present = {index: -value * most[key] for index, value in there.items()}
                    self.row({column: 1.0} | present, -math.inf, 0.0)
            self.row(load, -math.inf, 0.0)
        for key in most:
            brought = {column: -one.rates[key] for column, one in taken.items() if key in one.rates}
            self.row(serving.get(key, {}) | brought, 0.0, 0.0)
            if key not in serving:
                for column in brought:
                    self.row({column: 1.0}, 0.0, 0.0)

    def best(self, *, most_accurate: bool = False, limit_s: float = 20.0) -> Optimum | None:
        """The least cost with penalties and forgone worth, or the highest mean accuracy; None: nothing is feasible."""
        costs = {index: cost for index, (cost, _, _) in enumerate(self.columns) if cost}
        if self.fleet.budget_usd_per_h is not None:
            paid = {index: cost for index, cost in costs.items() if index not in self.unlimited}
            self.row(paid, -math.inf, self.fleet.budget_usd_per_h)
        for name, most in self.fleet.limits.items():
            used = {column: self.pools[pool].uses.get(name, 0.0) for (pool, _), column in self.counts.items()}
            used |= {column: one.uses.get(name, 0.0) for column, one in self.flow.items()}
            self.row(used, -math.inf, most)
        number = len({block.group for block in self.blocks})
        goal = {index: -one.accuracy / number for index, one in self.flow.items()} if most_accurate else costs
        found = solved(self.columns, self.rows, goal, limit_s)
        if found is None:
            return None
        value, bound, at = found
        gone = frozenset(group for group, column in self.served.items() if at[column] < 0.5)
        if most_accurate:
            return Optimum(-value, -bound, gone)
        return Optimum(value + self.constant, bound + self.constant, gone)


def largest_sets(pool: Workers, models: list[Model], alone: frozenset[str]) -> list[Held]:
    """The most that one worker may hold; less is never better than more, at one price.

    `alone`: operators of which a plan uses one variant, so that without limits a worker holds all of them at once.
    """
    if pool.limit_bytes is None and not pool.is_exclusive:
        together = [model for model in models if model[0] in alone]
        rest = [model for model in models if model[0] not in alone]
        by_operator = [[one for one in rest if one[0] == name] for name in dict.fromkeys(name for name, _ in rest)]
        _require_few(pool, math.prod(map(len, by_operator)))
        found = [(*together, *held) for held in itertools.product(*by_operator)]
    else:
        found = _choices(pool, models)
    sets = [frozenset(held) for held in found if held]
    return [held for held, own in zip([h for h in found if h], sets, strict=True) if not any(own < one for one in sets)]


def all_sets(pool: Workers, models: list[Model], alone: frozenset[str]) -> list[Held]:
    """All that one worker may hold, where holding more is not free."""
    return [held for held in _choices(pool, models) if held]


def _choices(pool: Workers, models: list[Model]) -> list[Held]:
    """All sets of models that fit. TimeoutError if they are too many for a program."""
    found: list[Held] = [()]
    for model in models:
        found += [(*held, model) for held in found if pool.can_hold((*held, model))]
        _require_few(pool, len(found))
    return found


def _require_few(pool: Workers, number: int) -> None:
    if number > MOST_SETS:
        raise TimeoutError(f"a worker of {pool.name} may hold {number:,} sets of models")


def solved(
    columns: list[tuple[float, float, bool]], rows: list[tuple[Row, float, float]], goal: Row, limit_s: float
) -> tuple[float, float, np.ndarray] | None:
    """Value, lower bound and solution of the least value; None: nothing is feasible. TimeoutError if unknown."""
    if any(not least <= 0.0 <= most for row, least, most in rows if not row):
        return None
    rows = [row for row in rows if row[0]]
    at = [(number, column, value) for number, (row, _, _) in enumerate(rows) for column, value in row.items()]
    numbers, indices, values = zip(*at, strict=True)
    matrix = coo_matrix((values, (numbers, indices)), shape=(len(rows), len(columns))).tocsr()
    cost = np.zeros(len(columns))
    for column, value in goal.items():
        cost[column] = value
    for presolve in (True, False):  # HiGHS' presolve calls some feasible programs infeasible (HiGHS issues 2432, 3090)
        answer = milp(
            cost,
            constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
            bounds=(np.zeros(len(columns)), np.array([most for _, most, _ in columns])),
            integrality=np.array([int(whole) for _, _, whole in columns]),
            options={"mip_rel_gap": 0.0, "presolve": presolve, "time_limit": limit_s},
        )
        if answer.x is not None:
            bound = float(answer.fun) if answer.success or answer.mip_dual_bound is None else answer.mip_dual_bound
            return float(answer.fun), bound, answer.x
        if answer.status == 1:
            raise TimeoutError("the oracle's time ended before it had a solution")
    return None
