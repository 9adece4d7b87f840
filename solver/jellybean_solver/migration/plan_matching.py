"""Matching of two plans' workers by the models they hold, not by name.

Workers of a pool are interchangeable. Old and new workers with equal model sets S are matched first; some optimal
matching does so (exchange argument: |S| + |A & B| >= |S & A| + |S & B|, if the two were matched to workers with sets A
and B instead; the same holds for equal sets of operators, of whose models only the unchanged ones count). Other workers
are grouped by model set and matched by a transport problem, whose linear program has integral vertices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import pulp

from jellybean_solver.errors import SolverError
from jellybean_solver.model.plan import Plan, PlannedWorker
from jellybean_solver.outcome import Clock

DIGITS = 9  # decimals of rates and weights that are compared
COUNT_WEIGHT = 1e-6  # value of any kept model, where the dearest one has 1: breaks ties by the number of models

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
class Matching:
    """Pairs with each worker of two plans once. `out_of_time`: workers that share models were paired in order."""

    pairs: tuple[Pair, ...]
    out_of_time: bool


def match_workers(before: Plan, after: Plan, worth: LoadPrice | None = None, limit: Clock = Clock()) -> Matching:
    """Pairs (worker of `before`, worker of `after`) with each worker once; None beside one that starts or stops.

    In each pool as many workers as possible continue. Among these matchings, the greatest value of kept models is taken
    (by `worth`; without it all models count equally), then the greatest number. Ties go to equal names, then to the
    order in the plans; exchanging the plans exchanges the pairs. At the `limit`, which is not that of the work, the
    workers of unlike models are paired in order: what is priced by the matching has no limit.
    """
    one_colours, two_colours = colour_workers(before, after)
    one_models, two_models = ({w.name: hosted_models(plan, w) for w in plan.workers} for plan in (before, after))
    pairs: list[Pair] = []
    out_of_time = False
    for pool in dict.fromkeys((worker.pool, worker.tier) for worker in (*before.workers, *after.workers)):
        one = [worker for worker in before.workers if (worker.pool, worker.tier) == pool]
        two = [worker for worker in after.workers if (worker.pool, worker.tier) == pool]
        for keys in (
            (lambda w: (one_colours[w.name], w.name), lambda w: (two_colours[w.name], w.name)),
            (lambda w: one_colours[w.name], lambda w: two_colours[w.name]),
            (lambda w: (one_models[w.name], w.name), lambda w: (two_models[w.name], w.name)),
            (lambda w: one_models[w.name], lambda w: two_models[w.name]),
        ):
            found, one, two = _equal(one, two, *keys)
            pairs += found
        value = _value(worth, [*one, *two], [one_models[w.name] for w in one] + [two_models[w.name] for w in two])
        rest = _overlapping(one, two, one_models, two_models, value, limit)
        pairs += rest.pairs
        out_of_time = out_of_time or rest.out_of_time
    return Matching(tuple(pairs), out_of_time)


def _value(
    worth: LoadPrice | None, workers: Sequence[PlannedWorker], held: Sequence[Models]
) -> Callable[[Models], float]:
    """The function that values a set of models kept on a worker of the pool; every model adds to the value.

    `workers`: of one pool, not empty if any models are `held`.
    """
    models = frozenset().union(*held)
    price = {model: worth(model, workers[0]) for model in models} if worth is not None else {}
    most = max(price.values(), default=0.0)
    count = COUNT_WEIGHT if most > 0 else 1.0
    each = {model: count + (price[model] / most if most > 0 else 0.0) for model in models}
    return lambda kept: sum(each[model] for model in kept)


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
    return Counter(_route(route.weight, route.workers, marks) for route in plan.routes)


def _route(weight: float, workers: Mapping[str, str], marks: Colours) -> Hashable:
    return round(weight, DIGITS), tuple(sorted((name, marks[worker]) for name, worker in workers.items()))


_SortedRoute = tuple[float, tuple[str, ...], tuple[str, ...]]  # rounded weight, operators in order, their workers


def _sorted_routes(plan: Plan) -> list[_SortedRoute]:
    found: list[_SortedRoute] = []
    for route in plan.routes:
        names = tuple(sorted(route.workers))
        found.append((round(route.weight, DIGITS), names, tuple(route.workers[name] for name in names)))
    return found


def _refined(
    plan: Plan,
    routes: Sequence[_SortedRoute],
    marks: Colours,
    numbers: dict[Hashable, int],
    passed: dict[Hashable, int],
) -> dict[str, int]:
    """The next colours. `numbers`, `passed`: of this round's colours and routes by colour, which both plans share."""
    passing: defaultdict[str, Counter[Hashable]] = defaultdict(Counter)
    for weight, names, workers in routes:
        key = (weight, names, tuple(map(marks.__getitem__, workers)))
        number = passed.setdefault(key, len(passed))
        for operator, worker in zip(names, workers, strict=True):
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
    one_key: Callable[[PlannedWorker], Hashable],
    two_key: Callable[[PlannedWorker], Hashable],
) -> tuple[list[Pair], list[PlannedWorker], list[PlannedWorker]]:
    """Pairs of workers with equal keys, in order, and the unpaired workers of `one` and of `two`."""
    waiting: defaultdict[Hashable, list[PlannedWorker]] = defaultdict(list)
    for worker in reversed(two):
        waiting[two_key(worker)].append(worker)
    pairs: list[Pair] = []
    rest: list[PlannedWorker] = []
    for worker in one:
        alike = waiting[one_key(worker)]
        if alike:
            pairs.append((worker, alike.pop()))
        else:
            rest.append(worker)
    taken = {other.name for _, other in pairs if other is not None}
    return pairs, rest, [worker for worker in two if worker.name not in taken]


def _overlapping(
    one: Sequence[PlannedWorker],
    two: Sequence[PlannedWorker],
    one_models: Mapping[str, Models],
    two_models: Mapping[str, Models],
    value: Callable[[Models], float],
    limit: Clock,
) -> Matching:
    """Pairs of workers with different models: a matching of greatest kept value, then the remaining ones in order."""
    left, right = _kinds(one, one_models), _kinds(two, two_models)
    if _ordered(left) > _ordered(right):  # solve the same problem whichever plan comes first
        swapped = _overlapping(two, one, two_models, one_models, value, limit)
        return replace(swapped, pairs=tuple((a, b) for b, a in swapped.pairs))
    pairs: list[Pair] = []
    continuing = _transport(left, right, value, limit)
    for (kind, other), count in (continuing or {}).items():
        for _ in range(count):
            pairs.append((left[kind].pop(0), right[other].pop(0)))
    one = [worker for workers in left.values() for worker in workers]
    two = [worker for workers in right.values() for worker in workers]
    both, one, two = _equal(one, two, lambda worker: worker.name, lambda worker: worker.name)
    many = min(len(one), len(two))
    pairs += [*both, *zip(one[:many], two[:many], strict=True)]
    pairs += [*((worker, None) for worker in one[many:]), *((None, worker) for worker in two[many:])]
    return Matching(tuple(pairs), continuing is None)


Kinds = dict[Models, list[PlannedWorker]]


def _kinds(workers: Sequence[PlannedWorker], models: Mapping[str, Models]) -> Kinds:
    """Workers grouped by the models they hold; the order of the groups depends on the models alone."""
    found: Kinds = defaultdict(list)
    for worker in workers:
        found[models[worker.name]].append(worker)
    return dict(sorted(found.items(), key=lambda item: sorted(map(_order, item[0]))))


def _transport(
    left: Kinds, right: Kinds, value: Callable[[Models], float], limit: Clock
) -> Mapping[tuple[Models, Models], int] | None:
    """(models before, models after) -> number of workers that continue so, for the greatest kept value.

    None if the `limit` comes first.
    """
    kept = {(kind, other): value(kind & other) for kind in left for other in right if kind & other}
    if not kept:
        return {}
    if limit.left() == 0.0:
        return None
    problem = pulp.LpProblem("match", pulp.LpMaximize)
    flow = {pair: problem.add_variable(f"x{index}", 0) for index, pair in enumerate(kept)}
    problem.setObjective(pulp.lpSum(worth * flow[pair] for pair, worth in kept.items()))
    for side, kinds in enumerate((left, right)):
        of_kind: defaultdict[Models, list[pulp.LpVariable]] = defaultdict(list)
        for pair, x in flow.items():
            of_kind[pair[side]].append(x)
        for kind, workers in kinds.items():
            problem += pulp.lpSum(of_kind[kind]) <= len(workers)
    exact = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9, "timeLimit": limit.left()}
    status = problem.solve(pulp.HiGHS(mip=False, msg=False, threads=1, random_seed=0, **exact))
    if status != pulp.LpStatusOptimal and limit.left() == 0.0:
        return None
    if status != pulp.LpStatusOptimal:
        raise SolverError(f"HiGHS ended with {pulp.LpStatus[status]} on matching workers; please report this problem")
    return {pair: round(x.value()) for pair, x in flow.items() if round(x.value()) > 0}


def _ordered(kinds: Kinds) -> list[list[tuple[str, str, str]]]:
    return [sorted(map(_order, kind)) for kind in kinds]


def _order(model: HostedModel) -> tuple[str, str, str]:
    return model.operator, model.variant, model.sha256 or ""
