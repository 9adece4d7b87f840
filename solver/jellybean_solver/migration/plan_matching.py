"""Matching of two plans' workers by the models they hold, not by name.

Workers of a pool are interchangeable. Old and new workers with equal model sets S are matched first; some optimal
matching does so (exchange argument: |S| + |A & B| >= |S & A| + |S & B|, if the two were matched to workers with sets A
and B instead; the same holds for equal sets of operators, of whose models only the unchanged ones count). Other workers
are grouped by model set and matched by a transport problem, whose linear program has integral vertices. Where time
ends first, the pairs of groups are taken by the value that they keep, the greatest first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain

import highspy
import numpy as np

from jellybean_solver.milp.highs_program import Floats, Indices, Program, SolveLimits, run
from jellybean_solver.model.plan import Plan, PlannedWorker
from jellybean_solver.outcome import Clock

DIGITS = 9  # decimals of rates and weights that are compared
COUNT_WEIGHT = 1e-6  # value of any kept model, where the dearest one has 1: breaks ties by the number of models
EXACT = 1e-9  # of the linear program: below `COUNT_WEIGHT`
# Pairs of groups that are matched exactly, even after the time limit: their linear program takes hundredths of seconds.
ALWAYS_EXACT = 4_000
MOST_AT_ONCE = 2**22  # pairs of groups that are looked at together: more take memory, fewer take time
WRITTEN_PER_S = 400_000  # pairs whose program is written in a second, not to be cut short: a million took 2.6 s

Pair = tuple[PlannedWorker | None, PlannedWorker | None]
Colours = Mapping[str, int]  # worker -> colour


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A variant of an operator on a worker. `sha256` and `memory_bytes` are None if the plan does not state them."""

    operator: str
    variant: str
    sha256: str | None = None
    memory_bytes: float | None = field(default=None, compare=False)  # re-measured memory does not change the identity


LoadPrice = Callable[[HostedModel, PlannedWorker], float]  # USD saved on a worker that holds the model; at least 0
Models = frozenset[HostedModel]


def hosted_models(plan: Plan, worker: PlannedWorker) -> Models:
    """The models that a worker of the plan holds: one per operator it serves."""
    found: list[HostedModel] = []
    for name in worker.rates_per_s:
        operator = plan.operator_at(name, worker.name)
        sha256 = operator.model.sha256 if operator.model is not None else None
        found.append(HostedModel(name, operator.variant, sha256, operator.memory_bytes.get(worker.pool)))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """Models that one worker loads and unloads. `before` is None for a new worker, `after` for a stopped one."""

    pool: str
    tier: str
    before: str | None
    after: str | None
    load: tuple[HostedModel, ...]
    unload: tuple[HostedModel, ...]


def worker_changes(before: Plan, after: Plan, pairs: Iterable[Pair]) -> Iterator[WorkerChange]:
    """What each worker loads and unloads, of pairs of workers of two plans."""
    for one, two in pairs:
        had = frozenset[HostedModel]() if one is None else hosted_models(before, one)
        has = frozenset[HostedModel]() if two is None else hosted_models(after, two)
        pool, tier = next((worker.pool, worker.tier) for worker in (one, two) if worker is not None)
        load, unload = (tuple(sorted(models, key=_order)) for models in (has - had, had - has))
        names = [None if worker is None else worker.name for worker in (one, two)]
        yield WorkerChange(pool, tier, names[0], names[1], load, unload)


@dataclass(frozen=True, slots=True)
class Matching:
    """Pairs with each worker of two plans once. `out_of_time`: another matching may keep models of a greater value."""

    pairs: tuple[Pair, ...]
    out_of_time: bool


def match_workers(before: Plan, after: Plan, worth: LoadPrice | None = None, limit: Clock = Clock()) -> Matching:
    """Pairs (worker of `before`, worker of `after`) with each worker once; None beside one that starts or stops.

    In each pool as many workers as possible continue. Among these matchings, the greatest value of kept models is taken
    (by `worth`; without it all models count equally), then the greatest number. Ties go to equal names, then to the
    order in the plans; exchanging the plans exchanges the pairs. At the `limit` workers of unlike models are paired by
    the value of the models that they keep, the greatest first.
    """
    plans = before, after
    colours = colour_workers(before, after)
    models = [{worker.name: hosted_models(plan, worker) for worker in plan.workers} for plan in plans]
    pairs: list[Pair] = []
    out_of_time = False

    def alike(name: str) -> Hashable:
        return None

    for pool in dict.fromkeys((worker.pool, worker.tier) for plan in plans for worker in plan.workers):
        one, two = ([worker for worker in plan.workers if (worker.pool, worker.tier) == pool] for plan in plans)
        for marks in (colours, models):
            found, one, two = _equal(one, two, marks[0].__getitem__, marks[1].__getitem__)
            pairs += found
        left, right = (_kinds(workers, held) for workers, held in zip((one, two), models, strict=True))
        flow, is_late = _transport(left, right, _worths(worth, [*one, *two], [*left, *right]), limit)
        out_of_time = out_of_time or is_late
        before_groups, after_groups = [*left.values()], [*right.values()]
        for (at, to), count in flow.items():
            pairs += [(before_groups[at].pop(0), after_groups[to].pop(0)) for _ in range(count)]
        found, one, two = _equal([*chain(*before_groups)], [*chain(*after_groups)], alike, alike)
        pairs += [*found, *((worker, None) for worker in one), *((None, worker) for worker in two)]
    return Matching(tuple(pairs), out_of_time)


def _worths(
    worth: LoadPrice | None, workers: Sequence[PlannedWorker], held: Sequence[Models]
) -> Mapping[HostedModel, float]:
    """What each model is worth that is kept on a worker of the pool; above 0.

    `workers`: of one pool, not empty if any models are `held`.
    """
    models = frozenset().union(*held)
    price = {model: worth(model, workers[0]) for model in models} if worth is not None else {}
    most = max(price.values(), default=0.0)
    count = COUNT_WEIGHT if most > 0 else 1.0
    return {model: count + (price[model] / most if most > 0 else 0.0) for model in sorted(models, key=_order)}


def colour_workers(before: Plan, after: Plan) -> tuple[Colours, Colours]:
    """Worker -> colour in each plan, by colour refinement on both plans together.

    Workers of equal colour have equal operators, equal rates, and equal routes up to workers of equal colour. Model
    files are left out, and so are variants of operators that have one in each plan: another one changes no route. Of
    operators that a plan mixes variants of, workers of equal colour run the same one.
    """
    plans = (before, after)
    mixed = {operator.name for plan in plans for operator in plan.operators if operator.others}
    numbers: dict[Hashable, int] = {}
    marks: list[Colours] = [
        {one.name: numbers.setdefault(_variants_of(plan, one, mixed), len(numbers)) for one in plan.workers}
        for plan in plans
    ]
    known = len(numbers)
    routes = [_sorted_routes(plan) for plan in plans]
    while True:
        numbers, passed = {}, dict[Hashable, int]()
        marks = [_refined(*one, numbers, passed) for one in zip(plans, routes, marks, strict=True)]
        if len(numbers) == known:
            return marks[0], marks[1]
        known = len(numbers)


def _variants_of(plan: Plan, worker: PlannedWorker, names: AbstractSet[str]) -> Hashable:
    """The variants that a worker runs of some operators."""
    return tuple(
        (name, plan.operator_at(name, worker.name).variant) for name in sorted(names & worker.rates_per_s.keys())
    )


def routes_by_colour(plan: Plan, marks: Colours) -> Counter[Hashable]:
    """The plan's routes with workers replaced by colours: equal for plans that differ only in the names of workers."""
    return Counter(_coloured(route, marks) for route in _sorted_routes(plan))


_SortedRoute = tuple[float, tuple[str, ...], tuple[str, ...]]  # rounded weight, operators in order, their workers


def _sorted_routes(plan: Plan) -> list[_SortedRoute]:
    found: list[_SortedRoute] = []
    for route in plan.routes:
        names = tuple(sorted(route.workers))
        found.append((round(route.weight, DIGITS), names, tuple(route.workers[name] for name in names)))
    return found


def _coloured(route: _SortedRoute, marks: Colours) -> Hashable:
    weight, names, workers = route
    return weight, names, tuple(map(marks.__getitem__, workers))


def _refined(
    plan: Plan,
    routes: Sequence[_SortedRoute],
    marks: Colours,
    numbers: dict[Hashable, int],
    passed: dict[Hashable, int],
) -> dict[str, int]:
    """The next colours. `numbers`, `passed`: of this round's colours and routes by colour, which both plans share."""
    passing: defaultdict[str, Counter[Hashable]] = defaultdict(Counter)
    for route in routes:
        number = passed.setdefault(_coloured(route, marks), len(passed))
        for operator, worker in zip(*route[1:], strict=True):
            passing[worker][operator, number] += 1
    found: dict[str, int] = {}
    for planned in plan.workers:
        rates = frozenset((name, round(rate, DIGITS)) for name, rate in planned.rates_per_s.items())
        seen = frozenset(passing[planned.name].items())
        mark = (marks[planned.name], planned.pool, planned.tier, rates, seen)
        found[planned.name] = numbers.setdefault(mark, len(numbers))
    return found


def _equal(
    one: Sequence[PlannedWorker],
    two: Sequence[PlannedWorker],
    one_mark: Callable[[str], Hashable],
    two_mark: Callable[[str], Hashable],
) -> tuple[list[Pair], list[PlannedWorker], list[PlannedWorker]]:
    """Pairs of workers of equal mark, and the unpaired workers of `one` and of `two`.

    Those of equal names are paired first, then the others in order. `one_mark`, `two_mark`: of a worker's name.
    """
    pairs: list[Pair] = []
    for named in (True, False):
        waiting: defaultdict[Hashable, list[PlannedWorker]] = defaultdict(list)
        for worker in reversed(two):
            waiting[two_mark(worker.name), named and worker.name].append(worker)
        rest: list[PlannedWorker] = []
        for worker in one:
            alike = waiting[one_mark(worker.name), named and worker.name]
            if alike:
                pairs.append((worker, alike.pop()))
            else:
                rest.append(worker)
        left = {worker.name for workers in waiting.values() for worker in workers}
        one, two = rest, [worker for worker in two if worker.name in left]
    return pairs, [*one], [*two]


Kinds = dict[Models, list[PlannedWorker]]


def _kinds(workers: Sequence[PlannedWorker], models: Mapping[str, Models]) -> Kinds:
    """Workers grouped by the models they hold; the order of the groups depends on the models alone."""
    found: Kinds = defaultdict(list)
    for worker in workers:
        found[models[worker.name]].append(worker)
    return dict(sorted(found.items(), key=lambda item: sorted(map(_order, item[0]))))


_Flow = dict[tuple[int, int], int]  # (group before, group after), by their numbers -> workers that continue so


def _transport(left: Kinds, right: Kinds, worths: Mapping[HostedModel, float], limit: Clock) -> tuple[_Flow, bool]:
    """How many workers of each group continue in each other one, for the greatest kept value.

    And whether the `limit` came first, so that another flow may keep more.
    """
    if _ordered(left) > _ordered(right):  # solve the same problem whichever plan comes first
        flow, is_late = _transport(right, left, worths, limit)
        return {(at, to): count for (to, at), count in flow.items()}, is_late
    ways = _Ways.of(left, right, worths)
    if not len(ways.value):
        return {}, False
    left_s = None if len(ways.value) <= ALWAYS_EXACT else limit.left()
    is_late = left_s is not None and left_s <= len(ways.value) / WRITTEN_PER_S
    exact = None if is_late else _exact_flow(ways, left_s)
    return (_greedy_flow(ways), True) if exact is None else (exact, False)


@dataclass(frozen=True, slots=True)
class _Ways:
    """The pairs of groups that have models in common. `value`: of what one worker keeps; `counts`: of each group."""

    before: Indices
    after: Indices
    value: Floats
    counts: tuple[Floats, ...]

    @classmethod
    def of(cls, left: Kinds, right: Kinds, worths: Mapping[HostedModel, float]) -> _Ways:
        columns = {model: column for column, model in enumerate(worths)}
        holds = [np.zeros((len(kinds), len(columns))) for kinds in (left, right)]
        for kinds, held in zip((left, right), holds, strict=True):
            for row, models in enumerate(kinds):
                held[row, [columns[model] for model in models]] = 1.0
        worth, rows = holds[0] * np.array([*worths.values()]), max(1, MOST_AT_ONCE // max(1, len(right)))
        parts = [np.empty((3, 0))]
        for first in range(0, len(left), rows):
            value = worth[first : first + rows] @ holds[1].T
            at, to = np.nonzero(value)
            parts.append(np.array((at + first, to, value[at, to])))
        at, to, value = np.concatenate(parts, axis=1)
        counts = tuple(np.array([len(workers) for workers in kinds.values()], float) for kinds in (left, right))
        return cls(at.astype(int), to.astype(int), value, counts)


def _exact_flow(ways: _Ways, time_limit_s: float | None) -> _Flow | None:
    """The optimum of the transport problem; None if time ends first."""
    program = Program()
    columns = program.add_columns(-ways.value)
    for at, counts in zip((ways.before, ways.after), ways.counts, strict=True):
        rows = program.add_rows(np.full(len(counts), -np.inf), counts, len(counts))
        program.fill(rows[at], columns, 1.0)
    model = program.model(SolveLimits(time_limit_s=time_limit_s), relaxed=True)
    for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        model.setOptionValue(option, EXACT)
    run(model)
    solution = program.answer(model, relaxed=True)
    if solution.values is None or model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    many = np.rint(solution.values).astype(int)
    taken = np.flatnonzero(many > 0)
    return {(int(ways.before[one]), int(ways.after[one])): int(many[one]) for one in taken}


def _greedy_flow(ways: _Ways) -> _Flow:
    """As many workers as there are of each pair of groups, in the order of the value that they keep."""
    flow: _Flow = {}
    before, after = (counts.astype(int) for counts in ways.counts)
    for one in np.argsort(-ways.value, kind="stable").tolist():
        at, to = int(ways.before[one]), int(ways.after[one])
        if (count := min(int(before[at]), int(after[to]))) > 0:
            flow[at, to] = count
            before[at] -= count
            after[to] -= count
    return flow


def _ordered(kinds: Kinds) -> list[list[tuple[str, str, str]]]:
    return [sorted(map(_order, kind)) for kind in kinds]


def _order(model: HostedModel) -> tuple[str, str, str]:
    return model.operator, model.variant, model.sha256 or ""
