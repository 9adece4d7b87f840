"""The cheapest or most accurate mixture of selections, by one program over everything: shares no code with the solver.

A share of the requests for every selection with every assignment of its operators to tiers, and a whole number of
workers for every choice of one variant, or none, of each operator that a worker of a pool can hold.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_matrix

from jellybean_solver import Operator, Plan, Pool, Problem, Slo, Variant
from tests.brute_force import optimum
from tests.brute_force import rates as reference_rates

GIB = 1024.0**3
Held = tuple[str | None, ...]  # a variant, or none, of each operator
Lost = tuple[str, Any]  # ("worker", (pool, held)), ("site", tier) or ("link", (tier, tier)); ("", None): nothing
T = TypeVar("T")


@dataclass(frozen=True)
class Way:
    """A selection, a tier for each operator, and what follows if all requests of its workflow take this way."""

    selection: dict[str, str]
    tiers: dict[str, str]
    accuracy: float
    usd_per_h: float
    sent: dict[tuple[str, str], float]
    pairs: frozenset[tuple[str, str]]  # of tiers between which its data flows
    rates: dict[str, float]
    workflow: str = ""

    def of(self, workflow: str) -> Way:
        """The way with the names that it has in a problem of several workflows."""

        def called(values: dict[str, T]) -> dict[str, T]:
            return {f"{workflow}/{name}": value for name, value in values.items()}

        selection, tiers, rates = called(self.selection), called(self.tiers), called(self.rates)
        return replace(self, selection=selection, tiers=tiers, rates=rates, workflow=workflow)


def ways(problem: Problem, *, measured: bool) -> Iterator[Way]:
    """All whose data can flow and whose accuracy is not below the least one; `measured`: and known."""
    names = [operator.name for operator in problem.operators]
    for selection in optimum.selections(problem):
        accuracy = optimum.accuracy(problem, selection)
        least = problem.slo.accuracy
        if accuracy is None and (measured or least is not None):
            continue
        if accuracy is not None and least is not None and accuracy < least - 1e-9:
            continue
        rates = reference_rates.rates(problem, selection)
        for row in itertools.product(problem.tiers, repeat=len(names)):
            tiers = dict(zip(names, row, strict=True))
            found = _traffic(problem, selection, tiers, rates)
            if found is not None:
                yield Way(selection, tiers, accuracy or 0.0, *found, rates)


def _traffic(
    problem: Problem, selection: dict[str, str], tiers: dict[str, str], rates: dict[str, float]
) -> tuple[float, dict[tuple[str, str], float], frozenset[tuple[str, str]]] | None:
    """USD per hour, bytes per second by link, and the links; None when data cannot flow so."""
    sources = {source.name: source for source in problem.sources}
    links = {(link.upstream_tier, link.downstream_tier): link for link in problem.links}
    usd, sent, pairs = 0.0, dict.fromkeys(links, 0.0), set()
    for operator in problem.operators:
        if operator.tiers is not None and tiers[operator.name] not in operator.tiers:
            return None
        for edge in operator.inputs:
            source = sources.get(edge.upstream)
            start, end = source.tier if source else tiers[edge.upstream], tiers[operator.name]
            if edge.tiers is not None and not {start, end} <= set(edge.tiers):
                return None
            if start == end:
                continue
            upward = problem.tiers.index(start) < problem.tiers.index(end)
            if not upward or (start, end) not in links:
                return None
            size = (
                source.message_bytes if source else _of(problem, edge.upstream, selection).message_bytes[operator.name]
            )
            bytes_per_s = rates[edge.upstream] * reference_rates.rows(problem, edge, selection) * size
            usd += bytes_per_s * 3600.0 / GIB * links[start, end].price_usd_per_gib
            sent[start, end] += bytes_per_s
            pairs.add((start, end))
    return usd, sent, frozenset(pairs)


def _of(problem: Problem, name: str, selection: dict[str, str]) -> Variant:
    operator = next(o for o in problem.operators if o.name == name)
    return next(v for v in operator.variants if v.name == selection[name])


def _request_s(problem: Problem, name: str, variant: Variant, pool: Pool) -> float:
    """At the smallest batch size that no other one undercuts by more than 2 %.

    Alone where rows fan out or gather, unless the variant counts those of each request.
    """
    times = variant.service[pool.name]
    kinds = [(e, e.kind.value) for o in problem.operators for e in o.inputs]
    alone = any((e.upstream == name and k == "fan_out") or (e.downstream == name and k == "gather") for e, k in kinds)
    if alone and not variant.counts_rows:
        return times[1].load_s
    least = min(time.load_s / size for size, time in times.items())
    size = min(size for size, time in times.items() if time.load_s / size * 0.98 <= least)
    return times[size].load_s / size


def best(problem: Problem, *, most_accurate: bool) -> float | None:
    """USD per hour, or the mean accuracy in percent; None if no mixture is feasible.

    With losses to bear and no mean accuracy, the best of one selection for all requests.
    """
    mixes = most_accurate or problem.slo.mean_accuracy is not None
    values = [
        Program(case, group).best(most_accurate=most_accurate)
        for case in cases(problem)
        for group in groups(case, mixes=mixes)
    ]
    known = [value for value in values if value is not None]
    return (max(known) if most_accurate else min(known)) if known else None


def best_of_several(
    together: Problem, parts: dict[str, Problem], audits: Mapping[str, str] = MappingProxyType({})
) -> float | None:
    """USD per hour of several workflows, which `parts` has one by one, with penalties; None if nothing is feasible.

    A workflow with a mean accuracy mixes selections, another one does not. What is left out counts its worth; a plan
    serves some workflow. After a loss a workflow that does not survive it is served as far as the others leave workers.
    `audits`: part that is the audit of another -> that one, with which it is left out.
    """
    mixes = [name for name, part in parts.items() if part.slo.mean_accuracy is not None]
    programs = (one for case in cases(together) for one in programs_of_several(case, parts, mixes, audits))
    costs = [(program.best(most_accurate=False), program.forgone) for program in programs]
    return min((cost + forgone for cost, forgone in costs if cost is not None), default=None)


def most_accurate_of_several(together: Problem, parts: dict[str, Problem]) -> float | None:
    """The highest mean, in percent, over workflows of their mean accuracies; one that is left out counts as 0."""
    found = [program.best(most_accurate=True) for program in programs_of_several(together, parts, [*parts])]
    return max((total / len(parts) for total in found if total is not None), default=None)


def programs_of_several(
    together: Problem,
    parts: dict[str, Problem],
    mixes: Collection[str],
    audits: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Program]:
    """A program for each choice of who is left out, and of the selection of those not in `mixes`."""
    worths = {one.name: one.worth_usd_per_h for one in together.workflows}
    by_workflow = [
        [
            *([way.of(name) for way in group] for group in groups(part, mixes=name in mixes)),
            *([[]] if worths[name] is not None else []),
        ]
        for name, part in parts.items()
    ]
    for chosen in itertools.product(*by_workflow):
        is_served = {name: bool(group) for name, group in zip(parts, chosen, strict=True)}
        if any(chosen) and all(is_served[name] == is_served[of] for name, of in audits.items()):
            yield Program(together, [way for group in chosen for way in group])


def most_served(together: Problem, parts: dict[str, Problem], plan: Plan, lost: Lost) -> float:
    """The largest sum of the served shares of workflows that do not survive a loss, on a plan's workers.

    A worker runs what it runs on any route of the plan. Lost is one of the workers of a pool that run the same.
    """
    running: Counter[tuple[str, Held]] = Counter(
        (worker.pool, running_on(together, plan, worker.name)) for worker in plan.workers
    )
    found: list[Way] = []
    for name in (workflow.name for workflow in plan.workflows):
        mixes = parts[name].slo.mean_accuracy is not None
        own = [way.of(name) for group in groups(parts[name], mixes=mixes) for way in group]
        found += [way for way in own if mixes or all(plan.selection[one] == v for one, v in way.selection.items())]
    program = Program(together, found, lambda _, pool: [held for name, held in running if name == pool.name])
    for group, count in running.items():
        program.rows.append(({program.counts[group]: 1.0}, float(count), float(count)))
    taken = zip(program.after[lost], found, strict=True)
    goal = {column: -1.0 for column, way in taken if not program.holds(way.workflow, lost)}
    return _solved(program.columns, program.rows, goal, sign=-1.0) or 0.0


def running_on(problem: Problem, plan: Plan, worker: str) -> Held:
    """The variant of each operator that a worker runs on any route of a plan."""
    names = {name for route in plan.routes for name, at in route.workers.items() if at == worker}
    return tuple(plan.operator_at(one.name, worker).variant if one.name in names else None for one in problem.operators)


def cases(problem: Problem) -> list[Problem]:
    """The problem; for each soft mean accuracy with losses to bear, once with the mean met and once with it missed."""

    def targets(slo: Slo) -> list[Slo]:
        both = slo.survives and slo.penalty_usd_per_h is not None
        return [slo, replace(slo, penalty_usd_per_h=None)] if both else [slo]

    if not problem.workflows:
        return [replace(problem, slo=slo) for slo in targets(problem.slo)]
    return [
        replace(problem, workflows=tuple(replace(w, slo=slo) for w, slo in zip(problem.workflows, chosen, strict=True)))
        for chosen in itertools.product(*(targets(workflow.slo) for workflow in problem.workflows))
    ]


def groups(problem: Problem, *, mixes: bool) -> list[list[Way]]:
    """The ways that requests may mix: all, or without `mixes` those of each selection."""
    found = list(ways(problem, measured=mixes))
    parts = [found] if mixes else [[w for w in found if w.selection == one] for one in optimum.selections(problem)]
    return [part for part in parts if part]


class Program:
    """Columns are (cost, most, whole); rows are (column -> value, least, most).

    Requests spread once with everything there and once after each loss, over the same workers. `sets`: what one worker
    may hold; `unlimited`: columns of costs that the budget does not limit.
    """

    def __init__(
        self,
        problem: Problem,
        all_ways: list[Way],
        sets: Callable[[Problem, Pool], Iterable[Held]] | None = None,
    ) -> None:
        self.problem, self.ways = problem, all_ways
        self.columns: list[tuple[float, float, bool]] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.most = {o.name: max(1.0, *(way.rates.get(o.name, 0.0) for way in all_ways)) for o in problem.operators}
        self.counts: dict[tuple[str, Held], int] = {}
        for pool in problem.pools:
            held = list((sets or largest_sets)(problem, pool))
            price = pool.price_usd_per_h * problem.sites.get(pool.tier, 1)
            own = {(pool.name, one): self.column(price, float(pool.count), whole=True) for one in held}
            self.counts |= own
            self.rows.append((dict.fromkeys(own.values(), 1.0), -math.inf, float(pool.count)))
        self.slos = {workflow.name: workflow.slo for workflow in problem.workflows} or {"": problem.slo}
        soft = {name: slo.penalty_usd_per_h for name, slo in self.slos.items() if slo.penalty_usd_per_h is not None}
        self.worths = {one.name: one.worth_usd_per_h for one in problem.workflows} or {"": None}
        self.served = {way.workflow for way in all_ways}
        self.forgone = sum(worth or 0.0 for name, worth in self.worths.items() if name not in self.served)
        self.lacking = {
            name: self.column(penalty, 100.0, whole=False) for name, penalty in soft.items() if name in self.served
        }
        self.unlimited = set(self.lacking.values())
        self.flow = self._flow(("", None))
        losses = [*self._losses()]
        self.after = {lost: self._flow(lost) for lost in losses}
        for name, lacks in self.lacking.items():  # no flow lacks more than the first
            mean = self.slos[name].mean_accuracy
            if mean is not None and any(self.holds(name, lost) for lost in losses):
                row = self._accuracies(self.flow, name)
                self.rows.append((row | {lacks: 1.0}, -math.inf, mean + 1e-9))

    def best(self, *, most_accurate: bool) -> float | None:
        accuracies = {column: way.accuracy for column, way in zip(self.flow, self.ways, strict=True)}
        costs = {index: cost for index, (cost, _, _) in enumerate(self.columns) if cost}
        paid = {index: cost for index, cost in costs.items() if index not in self.unlimited}
        if self.problem.slo.budget_usd_per_h is not None:
            self.rows.append((paid, -math.inf, self.problem.slo.budget_usd_per_h))
        goal = {index: -value for index, value in accuracies.items()} if most_accurate else costs
        return _solved(self.columns, self.rows, goal, sign=-1.0 if most_accurate else 1.0)

    def _losses(self) -> Iterator[Lost]:
        for kind in dict.fromkeys(kind for name in sorted(self.served) for kind in self.slos[name].survives):
            if kind.value in ("worker", "spot worker"):
                spot = {pool.name for pool in self.problem.pools if pool.terms.value == "spot"}
                yield from (("worker", group) for group in self.counts if kind.value == "worker" or group[0] in spot)
            elif kind.value == "site":
                without_sources = set(self.problem.tiers) - {source.tier for source in self.problem.sources}
                yield from (("site", tier) for tier in sorted(without_sources))
            else:
                yield from (("link", (link.upstream_tier, link.downstream_tier)) for link in self.problem.links)

    def holds(self, workflow: str, lost: Lost) -> bool:
        """True if the workflow's targets hold with everything there, or after this loss."""
        kind, what = lost
        stated = {one.value for one in self.slos[workflow].survives}
        spot = kind == "worker" and any(p.name == what[0] and p.terms.value == "spot" for p in self.problem.pools)
        return not kind or kind in stated or (spot and "spot worker" in stated)

    def _flow(self, lost: Lost) -> list[int]:
        """How requests spread; the columns of the ways."""
        kind, what = lost
        taken = [self.column(0.0 if kind else way.usd_per_h, 1.0, whole=False) for way in self.ways]
        for name, worth in self.worths.items():
            own = [column for column, way in zip(taken, self.ways, strict=True) if way.workflow == name]
            if own or worth is None:
                self.rows.append((dict.fromkeys(own, 1.0), 1.0 if self.holds(name, lost) else 0.0, 1.0))
        for column, way in zip(taken, self.ways, strict=True):
            crossed = {tuple(pair) for pair in way.pairs}
            if (kind == "site" and what in way.tiers.values()) or (kind == "link" and what in crossed):
                self.rows.append(({column: 1.0}, 0.0, 0.0))
        served = self._served(lost)
        self._meet(taken, served)
        self._links(taken)
        for name, slo in self.slos.items():
            is_served = self.worths[name] is None or name in self.served
            if slo.mean_accuracy is not None and is_served and self.holds(name, lost):
                lacks = {self.lacking[name]: 1.0} if name in self.lacking else {}
                self.rows.append((self._accuracies(taken, name) | lacks, slo.mean_accuracy - 1e-9, math.inf))
        return taken

    def _accuracies(self, taken: list[int], workflow: str) -> dict[int, float]:
        return {column: way.accuracy for column, way in zip(taken, self.ways, strict=True) if way.workflow == workflow}

    def _served(self, lost: Lost) -> dict[tuple[str, str, str], dict[int, float]]:
        """Operator, variant, tier -> the columns of what workers serve of it, each within what its workers can do."""
        found: dict[tuple[str, str, str], dict[int, float]] = {}
        pools = {pool.name: pool for pool in self.problem.pools}
        for (name, held), count in self.counts.items():
            pool = pools[name]
            left = {count: -1.0}
            if lost == ("worker", (name, held)):
                left[self._has_any(count, float(pool.count))] = 1.0
            sites, load = self.problem.sites.get(pool.tier, 1), dict(left)
            for operator, chosen in zip(self.problem.operators, held, strict=True):
                if chosen is not None:
                    column = self.column(0.0, math.inf, whole=False)
                    taken_s = _request_s(self.problem, operator.name, _variant(operator, chosen), pool)
                    load[column] = taken_s / self.problem.utilisation / sites
                    found.setdefault((operator.name, chosen, pool.tier), {})[column] = 1.0
                    present = {of: value * self.most[operator.name] for of, value in left.items()}
                    self.rows.append(({column: 1.0, **present}, -math.inf, 0.0))
            self.rows.append((load, -math.inf, 0.0))
        return found

    def _has_any(self, count: int, most: float) -> int:
        column = self.column(0.0, 1.0, whole=True)
        self.rows.append(({count: 1.0, column: -max(most, 1.0)}, -math.inf, 0.0))
        return column

    def column(self, cost: float, most: float, *, whole: bool) -> int:
        """A new column."""
        self.columns.append((cost, most, whole))
        return len(self.columns) - 1

    def _meet(self, taken: list[int], served: dict[tuple[str, str, str], dict[int, float]]) -> None:
        """What workers serve is what the ways bring; a variant that no worker of a tier can run is on no way."""
        for operator in self.problem.operators:
            for variant, tier in itertools.product(operator.variants, self.problem.tiers):
                row = dict(served.get((operator.name, variant.name, tier), {}))
                able = bool(row)
                for column, way in zip(taken, self.ways, strict=True):
                    if (way.selection.get(operator.name), way.tiers.get(operator.name)) == (variant.name, tier):
                        row[column] = -way.rates[operator.name]
                        if not able:
                            self.rows.append(({column: 1.0}, 0.0, 0.0))
                self.rows.append((row, 0.0, 0.0))

    def _links(self, taken: list[int]) -> None:
        for link in self.problem.links:
            if link.bandwidth_bytes_per_s is not None:
                pair = link.upstream_tier, link.downstream_tier
                all_sites = link.bandwidth_bytes_per_s * self.problem.sites.get(link.upstream_tier, 1)
                used = {column: way.sent[pair] / all_sites for column, way in zip(taken, self.ways, strict=True)}
                self.rows.append((used, -math.inf, 1.0))


def _variant(operator: Operator, name: str) -> Variant:
    return next(v for v in operator.variants if v.name == name)


def largest_sets(problem: Problem, pool: Pool) -> Iterator[Held]:
    """The most that one worker of a pool may hold: of each operator one variant or none, within its memory.

    Less is never better than more, at one price.
    """
    found = list(all_sets(problem, pool))
    for held in found:
        if not any(one != held and all(x in (None, y) for x, y in zip(held, one, strict=True)) for one in found):
            yield held


def all_sets(problem: Problem, pool: Pool) -> Iterator[Held]:
    """All that one worker of a pool may hold, within its memory."""
    able = [
        [None, *(v.name for v in operator.variants if 1 in v.service.get(pool.name, {}))]
        if operator.tiers is None or pool.tier in operator.tiers
        else [None]
        for operator in problem.operators
    ]
    for held in itertools.product(*able):
        chosen = [(o.name, one) for o, one in zip(problem.operators, held, strict=True) if one is not None]
        if not chosen or (pool.sharing.value == "exclusive" and len(chosen) > 1):
            continue
        needed = sum(_of(problem, name, {name: one}).memory_bytes.get(pool.name, 0.0) for name, one in chosen)
        if pool.memory_bytes is None or needed <= pool.memory_bytes * (1 + 1e-9):
            yield held


def _solved(
    columns: list[tuple[float, float, bool]],
    rows: list[tuple[dict[int, float], float, float]],
    goal: dict[int, float],
    sign: float,
) -> float | None:
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
            options={"mip_rel_gap": 0.0, "presolve": presolve},
        )
        if answer.success:
            return sign * float(answer.fun)
    return None
