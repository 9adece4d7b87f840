"""Hypothesis strategies for whole planning problems, small enough for brute force.

Values come from short lists of round numbers: exact ties and full workers are then common, near-ties are not.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import strategies as st

from jellybean_solver import (
    AccuracyModel,
    AccuracyRow,
    Edge,
    EdgeKind,
    EndToEnd,
    Independent,
    Link,
    Operator,
    PerOperator,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Variant,
)

TIERS = ("edge", "hub", "cloud")
LOADS_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
PRICES_USD_PER_H = (0.0, 0.1, 0.25, 0.6, 1.0, 2.5)
LINK_USD_PER_GIB = (0.0, 0.05, 0.1, 0.5)
MESSAGE_BYTES = (0.0, 1e4, 2e5, 1e6)
RATES_PER_S = (1.0, 4.0, 10.0, 25.0)
PERCENT = tuple(float(p) for p in range(50, 100, 7))
WORKER_BYTES = (None, 2.0, 2.0, 3.0)
MODEL_BYTES = (0.0, 1.0, 1.0, 1.0, 2.0)
LINK_BYTES_PER_S = (None, 2e4, 3e5, 1e6, 3e6)
BATCHES = ((), (), (2,), (4,), (2, 4))  # sizes beyond 1
BATCH_PARTS = (1.25, 1.0, 0.99, 0.75, 0.5, 0.3)  # of the time that a request takes alone
RATIOS = (0.25, 2.0, 4.0)
SELECTIONS = 8  # at most, so that brute force ends

Levels = dict[str, tuple[float, ...]]  # node -> ratios of its open fan-outs


@st.composite
def problems(
    draw: st.DrawFn, *, max_operators: int = 4, strained: bool = False, limited: bool = False, fanned: bool = False
) -> Problem:
    """A workflow of joins, diamonds, fan-outs and gathers, on pools in one to three tiers, with or without a target.

    `strained`: every variant runs everywhere, all links exist and data is born in the lowest tier, but rates are
    often too high, so that what is infeasible is so for capacity or accuracy. `limited`: workers' memory and links'
    bandwidth are, and some operators and edges may be in some tiers only. `fanned`: an operator of two variants at
    least fans out.
    """
    tiers = TIERS[: draw(st.integers(1, 3))]
    pools = draw(_pools(tiers))
    sources = draw(_sources(tiers[:1] if strained or limited else tiers, 4.0 if strained else 1.0))
    wiring = draw(_wiring(sources, draw(st.integers(2 if fanned else 1, max_operators)), fanned))
    operators: list[Operator] = []
    room = SELECTIONS
    for name, inputs in wiring.items():
        downstream = [other for other, edges in wiring.items() if any(edge.upstream == name for edge in edges)]
        count = draw(st.integers(2 if fanned and not operators else 1, min(3, room)))
        room //= count
        operators.append(
            Operator(
                name,
                inputs,
                tuple(draw(_variant(f"v{i}", pools, downstream, everywhere=strained or limited)) for i in range(count)),
            )
        )
    accuracy = draw(accuracies(tuple(operators)))
    links = draw(_links(tiers, everywhere=strained or limited))
    if limited:
        operators, pools, links = draw(_limits(operators, pools, links, tiers))
    return Problem(
        name="random",
        tiers=tiers,
        sources=sources,
        operators=tuple(operators),
        pools=pools,
        links=links,
        accuracy=accuracy,
        slo=draw(_slo(accuracy, tuple(operators))),
        utilisation=draw(st.sampled_from((0.5, 0.8, 1.0))),
    )


@st.composite
def _limits(
    draw: st.DrawFn,
    operators: list[Operator],
    pools: tuple[Pool, ...],
    links: tuple[Link, ...],
    tiers: tuple[str, ...],
) -> tuple[list[Operator], tuple[Pool, ...], tuple[Link, ...]]:
    somewhere = st.sampled_from((None,) * 9 + (tiers[:1], tiers[:2], tiers[-2:]))

    def variant(one: Variant) -> Variant:
        return replace(one, memory_bytes={pool: draw(st.sampled_from(MODEL_BYTES)) for pool in one.service})

    return (
        [
            replace(
                operator,
                variants=tuple(variant(one) for one in operator.variants),
                tiers=draw(somewhere),
                inputs=tuple(replace(edge, tiers=draw(somewhere)) for edge in operator.inputs),
            )
            for operator in operators
        ],
        tuple(replace(pool, memory_bytes=draw(st.sampled_from(WORKER_BYTES))) for pool in pools),
        tuple(replace(link, bandwidth_bytes_per_s=draw(st.sampled_from(LINK_BYTES_PER_S))) for link in links),
    )


@st.composite
def accuracies(draw: st.DrawFn, operators: tuple[Operator, ...]) -> AccuracyModel:
    """One of the three models, over some of the operators, with gaps."""
    kind = draw(st.sampled_from((EndToEnd, PerOperator, Independent)))
    mentioned = tuple(operator for operator in operators if draw(st.integers(0, 3)) > 0)
    percent = st.sampled_from(PERCENT)
    if kind is EndToEnd:
        names = tuple(operator.name for operator in mentioned)
        rows = itertools.product(*([v.name for v in operator.variants] for operator in mentioned))
        return EndToEnd(names, {row: draw(percent) for row in rows if draw(st.integers(0, 7)) > 0})
    if kind is Independent:
        return Independent({o.name: {v.name: draw(percent) for v in o.variants} for o in mentioned})
    inputs = {
        o.name: tuple(dict.fromkeys(e.upstream for e in o.inputs if any(e.upstream == m.name for m in mentioned)))
        for o in mentioned
    }
    tables = {
        o.name: {
            v.name: tuple(
                AccuracyRow(tuple(draw(percent) for _ in inputs[o.name]), draw(percent))
                for _ in range(draw(st.integers(1, 3)) if inputs[o.name] else 1)
            )
            for v in o.variants
        }
        for o in mentioned
    }
    return PerOperator(inputs, {name: {v: _once(rows) for v, rows in table.items()} for name, table in tables.items()})


def _once(rows: tuple[AccuracyRow, ...]) -> tuple[AccuracyRow, ...]:
    return tuple({row.inputs: row for row in rows}.values())


@st.composite
def with_sites(draw: st.DrawFn, problem: Problem) -> Problem:
    """The same requests in all, born in one to three alike sites of each tier, fewer or as many up the tiers."""
    counts = draw(st.sampled_from(((1, 1, 1), (2, 1, 1), (3, 1, 1), (2, 2, 1), (3, 3, 1), (2, 2, 2))))
    sites = dict(zip(problem.tiers, counts, strict=False))
    sources = tuple(replace(s, rate_per_s=s.rate_per_s / sites[s.tier]) for s in problem.sources)
    return replace(problem, sites=sites, sources=sources)


@st.composite
def with_ratios(draw: st.DrawFn, problem: Problem) -> Problem:
    """Fan-outs of some operators have a ratio for each variant, where no join would then get inputs of unlike rates."""
    varying: list[str] = []
    for operator in problem.operators:
        fans_out = any(e.kind is EdgeKind.FAN_OUT and e.upstream == operator.name for e in problem.edges)
        wanted = fans_out and len(operator.variants) > 1 and draw(st.integers(0, 3)) > 0
        if wanted and joins_agree(problem, {*varying, operator.name}):
            varying.append(operator.name)

    def varied(operator: Operator) -> Operator:
        if operator.name not in varying:
            return operator
        to = [e.downstream for e in problem.edges if e.kind is EdgeKind.FAN_OUT and e.upstream == operator.name]
        ratios = [draw(st.sampled_from(RATIOS)) for _ in operator.variants]
        variants = zip(operator.variants, ratios, strict=True)
        return replace(operator, variants=tuple(replace(v, ratios=dict.fromkeys(to, own)) for v, own in variants))

    return replace(problem, operators=tuple(varied(operator) for operator in problem.operators))


@st.composite
def with_device_memory(draw: st.DrawFn, problem: Problem) -> Problem:
    """The problem with devices of their own memory in some pools, whose models take other sizes of the two memories."""
    pools = tuple(
        replace(pool, device="cuda", device_memory_bytes=draw(st.sampled_from(WORKER_BYTES)))
        if draw(st.booleans())
        else pool
        for pool in problem.pools
    )

    def variant(one: Variant) -> Variant:
        return replace(one, device_memory_bytes={pool: draw(st.sampled_from(MODEL_BYTES)) for pool in one.service})

    operators = (replace(one, variants=tuple(map(variant, one.variants))) for one in problem.operators)
    return replace(problem, pools=pools, operators=tuple(operators))


@st.composite
def mixed_problems(draw: st.DrawFn) -> Problem:
    """Everything at once: batches, memory, sharing, caps of links, residency, sites, ratios, accuracy, budget."""
    problem = draw(with_ratios(draw(with_sites(draw(problems(limited=True, fanned=True))))))
    budget = draw(st.sampled_from((None, None, 0.5, 1.0, 2.0, 5.0)))
    return replace(problem, slo=replace(problem.slo, budget_usd_per_h=budget))


def joins_agree(problem: Problem, varying: set[str]) -> bool:
    """Whether every join's inputs come from the same fan-outs, as far as their ratios may vary."""
    levels: dict[str, tuple[str | float, ...]] = {source.name: () for source in problem.sources}
    for operator in problem.operators:
        after = set()
        for edge in operator.inputs:
            level = levels[edge.upstream]
            if edge.kind is EdgeKind.FAN_OUT:
                level = (*level, edge.upstream if edge.upstream in varying else edge.ratio)
            after.add(level[:-1] if edge.kind is EdgeKind.GATHER else level)
        if len(after) > 1:
            return False
        levels[operator.name] = after.pop()
    return True


def more_workers(problem: Problem) -> Problem:
    """The same problem with one worker more in every pool."""
    return replace(problem, pools=tuple(replace(pool, count=pool.count + 1) for pool in problem.pools))


@st.composite
def _pools(draw: st.DrawFn, tiers: tuple[str, ...]) -> tuple[Pool, ...]:
    pools: list[Pool] = []
    for index in range(draw(st.integers(1, 4))):
        alone = sum(p.sharing is Sharing.EXCLUSIVE for p in pools) < 3 and draw(st.booleans())
        pools.append(
            Pool(
                f"p{index}",
                draw(st.sampled_from(tiers)),
                draw(st.integers(1, 2 if alone else 3)),
                draw(st.sampled_from(PRICES_USD_PER_H)),
                Sharing.EXCLUSIVE if alone else Sharing.SHARED,
            )
        )
    return tuple(pools)


@st.composite
def _sources(draw: st.DrawFn, tiers: tuple[str, ...], factor: float) -> tuple[Source, ...]:
    rate = draw(st.sampled_from(RATES_PER_S)) * factor
    return tuple(
        Source(f"s{i}", draw(st.sampled_from((tiers[0], *tiers[:2]))), rate, draw(st.sampled_from(MESSAGE_BYTES)))
        for i in range(draw(st.integers(1, 2)))
    )


@st.composite
def _links(draw: st.DrawFn, tiers: tuple[str, ...], *, everywhere: bool) -> tuple[Link, ...]:
    pairs = itertools.combinations(tiers, 2)
    return tuple(
        Link(low, high, draw(st.sampled_from(LINK_USD_PER_GIB)))
        for low, high in pairs
        if everywhere or draw(st.integers(0, 7)) > 0
    )


@st.composite
def _wiring(draw: st.DrawFn, sources: tuple[Source, ...], count: int, fanned: bool) -> dict[str, tuple[Edge, ...]]:
    """Operators with inputs whose rates agree: joins take inputs of one level, or gather those one level deeper.

    `fanned`: the first fans out into the second.
    """
    levels: Levels = {source.name: () for source in sources}
    wiring: dict[str, tuple[Edge, ...]] = {}
    for index in range(count):
        name = f"o{index}"
        chosen = fanned and index == 1
        first = "o0" if chosen else draw(st.sampled_from(sorted(levels)))
        level = levels[first]
        kinds = [EdgeKind.EACH, EdgeKind.EACH, EdgeKind.FAN_OUT] + ([EdgeKind.GATHER] if level else [])
        kind = EdgeKind.FAN_OUT if chosen else draw(st.sampled_from(kinds))
        if kind is EdgeKind.FAN_OUT:
            ratio = draw(st.sampled_from(RATIOS))
            edges, level = [Edge(first, name, kind, ratio)], (*level, ratio)
        elif kind is EdgeKind.GATHER:
            edges, level = [Edge(first, name, kind, 1 / level[-1])], level[:-1]
        else:
            edges = [Edge(first, name)]
        if kind is not EdgeKind.FAN_OUT:
            for other in sorted(levels):
                joinable = levels[other] == level or (
                    len(levels[other]) == len(level) + 1 and levels[other][:-1] == level
                )
                if other != first and joinable and draw(st.booleans()):
                    same = levels[other] == level
                    edges.append(
                        Edge(other, name) if same else Edge(other, name, EdgeKind.GATHER, 1 / levels[other][-1])
                    )
        levels[name] = level
        wiring[name] = tuple(edges)
    return wiring


@st.composite
def _variant(
    draw: st.DrawFn, name: str, pools: tuple[Pool, ...], downstream: list[str], *, everywhere: bool
) -> Variant:
    loads = {pool.name: draw(st.sampled_from(LOADS_S)) for pool in pools if everywhere or draw(st.integers(0, 7)) > 0}
    return Variant(
        name,
        {pool: draw(_times(load)) for pool, load in loads.items()},
        {other: draw(st.sampled_from(MESSAGE_BYTES)) for other in downstream},
        counts_rows=draw(st.booleans()),
    )


@st.composite
def _times(draw: st.DrawFn, load_s: float) -> dict[int, ServiceTime]:
    """Some with batches that save a part of each request's time; little enough is not worth a larger batch."""
    parts = {size: draw(st.sampled_from(BATCH_PARTS)) for size in draw(st.sampled_from(BATCHES))}
    return {size: ServiceTime(size * load_s * part, size * load_s * part) for size, part in {1: 1.0, **parts}.items()}


@st.composite
def _slo(draw: st.DrawFn, accuracy: AccuracyModel, operators: tuple[Operator, ...]) -> Slo:
    selections = (
        dict(zip((o.name for o in operators), row, strict=True))
        for row in itertools.product(*([v.name for v in o.variants] for o in operators))
    )
    values = sorted({value for selection in selections if (value := accuracy.value(selection)) is not None})
    if not values or draw(st.integers(0, 3)) == 0:
        return Slo()
    return Slo(accuracy=draw(st.sampled_from(values)) + draw(st.sampled_from((-0.5, 0.0, 0.0, 0.5))))
