"""Fan-out ratios that depend on the variant: the problem that remains once some variants are chosen.

A better detector finds more objects per frame, so downstream operators run more often. Such a problem is a union of
problems with fixed ratios, one for each combination of ratios. Lower ratios mean lower rates and loads everywhere, so
the cost of the problem with the smallest ratios is a lower bound on the cost of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from jellybean_solver.model.problem import Problem
from jellybean_solver.model.workflow import Operator, with_ratios


def settled(problem: Problem, chosen: Mapping[str, str]) -> Problem:
    """The problem with the fan-out ratios of the `chosen` variants (operator -> variant).

    Of a chosen operator only variants with the same ratios remain. Returns `problem` unchanged if no ratio depends on
    the chosen variants.
    """
    decided = {name: chosen[name] for name in problem.varying if name in chosen}
    kept = {name: _alike(problem.operator_by_name[name], variant) for name, variant in decided.items()}
    if all(kept[name] == problem.operator_by_name[name] for name in kept):
        return problem
    return replace(problem, operators=tuple(kept.get(operator.name, operator) for operator in problem.operators))


def _alike(operator: Operator, chosen: str) -> Operator:
    ratios = {variant.name: variant.ratios for variant in operator.variants}
    if chosen not in ratios:
        return operator
    return replace(operator, variants=tuple(v for v in operator.variants if v.ratios == ratios[chosen]))


def plain(problem: Problem, pick: Callable[..., float] = min) -> Problem:
    """The problem with fixed ratios: for each fan-out, `pick` (min or max) of the variants' ratios."""
    if not problem.varying:
        return problem
    stripped = (
        replace(operator, variants=tuple(replace(variant, ratios={}) for variant in operator.variants))
        for operator in with_ratios(problem.operators, pick)
    )
    return replace(problem, operators=tuple(stripped))
