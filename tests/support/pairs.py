"""Strategies of two small workflows on one fleet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from jellybean_solver import Edge, Independent, Operator, Problem, Variant
from tests.strategies import problems, with_ratios

Pair = tuple[Problem, Problem]


@st.composite
def pairs(draw: st.DrawFn, *, limited: bool = False) -> Pair:
    """Two small workflows, of names that they have in common, on the fleet of the first; some ratios are by variant."""
    small = st.booleans().flatmap(lambda fanned: problems(max_operators=2, limited=limited, fanned=fanned))
    first, second = draw(small), draw(small)
    return draw(with_ratios(_on(first, first))), draw(with_ratios(_on(first, second)))


def _on(fleet: Problem, problem: Problem) -> Problem:
    """The problem's workflow on another fleet, with at most two variants each: what is not there is left out."""
    pools = {pool.name for pool in fleet.pools}

    def tiers(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return names if names is not None and set(names) <= set(fleet.tiers) else None

    def variant(one: Variant) -> Variant:
        service = {pool: times for pool, times in one.service.items() if pool in pools}
        return replace(one, service=service, memory_bytes={p: m for p, m in one.memory_bytes.items() if p in pools})

    def edge(one: Edge) -> Edge:
        return replace(one, tiers=tiers(one.tiers))

    def operator(one: Operator) -> Operator:
        inputs, variants = tuple(edge(e) for e in one.inputs), tuple(variant(v) for v in one.variants[:2])
        return replace(one, inputs=inputs, variants=variants, tiers=tiers(one.tiers))

    return replace(
        fleet,
        sources=tuple(replace(s, tier=s.tier if s.tier in fleet.tiers else fleet.tiers[0]) for s in problem.sources),
        operators=tuple(operator(one) for one in problem.operators),
        accuracy=problem.accuracy,
        slo=problem.slo,
    )


def measured(problem: Problem) -> Problem:
    """The problem with accuracies of all selections: later variants are better, most of them dearer."""
    table = {
        operator.name: {variant.name: 70.0 + 30.0 * number for number, variant in enumerate(operator.variants)}
        for operator in problem.operators
    }
    return replace(problem, accuracy=Independent(table))
