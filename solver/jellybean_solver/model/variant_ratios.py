"""Ratios that depend on the variants: what is left of them once some variants are chosen.

A better detector finds more in each frame, so all that follows runs more often. Such a problem is a union of problems
with plain ratios, one for each choice of ratios. Lower ratios ask less of the fleet everywhere, so the problem with the
least of all bounds each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from jellybean_solver.model.problem import Operator, Problem, with_ratios


def settled(problem: Problem, chosen: Mapping[str, str]) -> Problem:
    """The problem with the ratios of the variants chosen (operator -> variant), and those with the same ratios only.

    The problem itself where they decide nothing.
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
    """The problem with the least (or most) ratios that its variants leave, whichever are chosen."""
    if not problem.varying:
        return problem
    stripped = (
        replace(operator, variants=tuple(replace(variant, ratios={}) for variant in operator.variants))
        for operator in with_ratios(problem.operators, pick)
    )
    return replace(problem, operators=tuple(stripped))
