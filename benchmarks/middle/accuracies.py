"""Random accuracy models of every kind, monotone in the variants' size but for noise, and targets within reach."""

from __future__ import annotations

import itertools
import math
import random

from jellybean_solver import AccuracyModel, AccuracyRow, EndToEnd, Independent, Operator, PerOperator

SAMPLES = 200  # selections that a target is drawn from
LEVELS = (0.0, 70.0, 85.0, 95.0)  # inputs' accuracies that an operator was measured at


def accuracy_model(rng: random.Random, operators: tuple[Operator, ...], measured: int) -> AccuracyModel:
    """One of the three kinds. `measured`: how many operators an end-to-end table covers."""
    kind = rng.choice((Independent, Independent, PerOperator, EndToEnd))
    mentioned = [operator for operator in operators if rng.random() < 0.9] or [operators[0]]
    percents = {operator.name: _percents(rng, operator) for operator in mentioned}
    if kind is EndToEnd:
        covered = sorted(rng.sample(mentioned, min(len(mentioned), measured)), key=operators.index)
        return _end_to_end(rng, covered, percents)
    if kind is PerOperator:
        return _per_operator(mentioned, percents)
    return Independent(percents)


def reachable_target(rng: random.Random, model: AccuracyModel, operators: tuple[Operator, ...]) -> float | None:
    """A target that a share of the random selections reaches, between half of them and a few."""
    drawn = [{o.name: rng.choice(o.variants).name for o in operators} for _ in range(SAMPLES)]
    drawn.append({o.name: o.variants[-1].name for o in operators})
    known = sorted(value for selection in drawn if (value := model.value(selection)) is not None)
    return known[int((len(known) - 1) * rng.uniform(0.5, 0.98))] if known else None


def _percents(rng: random.Random, operator: Operator) -> dict[str, float]:
    loss = rng.uniform(0.5, 6.0)
    return {
        variant.name: round(100.0 - loss * 0.6**index * rng.uniform(0.85, 1.15), 3)
        for index, variant in enumerate(operator.variants)
    }


def _end_to_end(rng: random.Random, covered: list[Operator], percents: dict[str, dict[str, float]]) -> EndToEnd:
    """A table with noise in which one selection of eight was not measured."""
    table = {}
    for row in itertools.product(*([v.name for v in o.variants] for o in covered)):
        product = math.prod(percents[o.name][v] / 100.0 for o, v in zip(covered, row, strict=True))
        if rng.random() < 0.875:
            table[row] = round(100.0 * product + rng.uniform(-0.3, 0.3), 3)
    return EndToEnd(tuple(o.name for o in covered), table)


def _per_operator(mentioned: list[Operator], percents: dict[str, dict[str, float]]) -> PerOperator:
    """An operator's accuracy grows with its own and with that of its worst input, in steps."""
    names = {operator.name for operator in mentioned}
    inputs = {o.name: tuple(dict.fromkeys(e.upstream for e in o.inputs if e.upstream in names)) for o in mentioned}
    tables = {
        name: {variant: _rows(own, len(inputs[name])) for variant, own in percents[name].items()} for name in inputs
    }
    return PerOperator(inputs, tables)


def _rows(own: float, inputs: int) -> tuple[AccuracyRow, ...]:
    if not inputs:
        return (AccuracyRow((), own),)
    return tuple(AccuracyRow((level,) * inputs, round(own * (0.5 + 0.5 * _next(level) / 100.0), 3)) for level in LEVELS)


def _next(level: float) -> float:
    """The middle between a level and the next, which stands for the inputs measured there."""
    above = [*LEVELS[1:], 100.0][LEVELS.index(level)]
    return (level + above) / 2.0
