"""Accuracy of a selection, and the most that a partial selection can still reach.

Profiles state accuracy in one of three ways: measured end to end per selection; per operator as a function of its
inputs' accuracies (JellyBean, VLDB 2023, section 4); one independent figure per operator. An operator that an accuracy
model does not mention has no influence.

Invariant of all three, which the proof of optimality needs: for every completion of a partial selection whose value
is known, value(completion) <= upper_bound(partial).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Protocol

from jellybean_solver.model.targets import Slo


class AccuracyModel(Protocol):
    """Interface of accuracy models for model selection; accuracies are percentages."""

    def value(self, selection: Mapping[str, str]) -> float | None:
        """Accuracy of a complete selection (operator -> variant) in percent; None if it was not measured."""
        ...

    def upper_bound(self, partial: Mapping[str, str]) -> float | None:
        """Upper bound on the accuracy of all completions of `partial`; None if no completion was measured."""
        ...


@dataclass(frozen=True)
class EndToEnd:
    """Accuracy measured per selection. `table`: variants in the order of `operators` -> accuracy in percent."""

    operators: tuple[str, ...]
    table: Mapping[tuple[str, ...], float]

    def value(self, selection: Mapping[str, str]) -> float | None:
        """The measured accuracy of a selection in percent; None if it was not measured."""
        return self.table.get(tuple(selection[name] for name in self.operators))

    def upper_bound(self, partial: Mapping[str, str]) -> float | None:
        """The highest accuracy measured for a selection that contains `partial`; None if there is none."""
        fixed = tuple(index for index, name in enumerate(self.operators) if name in partial)
        best = self._best.get(fixed)
        if best is None:
            best = {}
            for row, accuracy in self.table.items():
                variants = tuple(row[index] for index in fixed)
                best[variants] = max(accuracy, best.get(variants, accuracy))
            self._best[fixed] = best  # not before: other threads take what is there for complete
        return best.get(tuple(partial[self.operators[index]] for index in fixed))

    @cached_property
    def _best(self) -> dict[tuple[int, ...], dict[tuple[str, ...], float]]:
        """Numbers of operators -> their variants -> the highest accuracy with these; filled as they are asked for."""
        return {}


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One measured point of an operator: the accuracies of its inputs, in order, and of its output, in percent."""

    inputs: tuple[float, ...]
    output: float


@dataclass(frozen=True)
class PerOperator:
    """An operator's accuracy as a function of its inputs' accuracies (JellyBean, VLDB 2023).

    `inputs`: operator -> the operators whose accuracies index its rows, in order (none for an operator fed by sources
    only). `tables`: operator -> variant -> rows. Operators that feed no other operator are the answers; with several
    answers the accuracy is the lowest of them. For inputs between measured points, the output is the largest one
    measured with inputs that are all at most as accurate.
    """

    inputs: Mapping[str, tuple[str, ...]]
    tables: Mapping[str, Mapping[str, tuple[AccuracyRow, ...]]]

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """Operators that feed no other operator; the workflow's accuracy is the lowest of theirs."""
        feeding = {name for names in self.inputs.values() for name in names}
        return tuple(name for name in self.tables if name not in feeding)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Operators in topological order."""
        return tuple(TopologicalSorter({name: self.inputs.get(name, ()) for name in self.tables}).static_order())

    def value(self, selection: Mapping[str, str]) -> float | None:
        """The lowest accuracy of the answers in percent; None if an operator's inputs lie below all measured points."""
        if not self.tables:
            return None
        known: dict[str, float] = {}
        for name in self.order:
            rows = self.tables[name].get(selection[name], ())
            output = _measured(rows, tuple(known[upstream] for upstream in self.inputs.get(name, ())))
            if output is None:
                return None
            known[name] = output
        return min(known[name] for name in self.answers)

    def upper_bound(self, partial: Mapping[str, str]) -> float | None:
        """The accuracy in percent if each operator without a variant has the best one; None if no point applies."""
        best = self._best(partial)
        return None if not best else min(best[name] for name in self.answers)

    def _best(self, partial: Mapping[str, str]) -> dict[str, float] | None:
        best: dict[str, float] = {}
        for name in self.order:
            limits = tuple(best[upstream] for upstream in self.inputs.get(name, ()))
            variants = (partial[name],) if name in partial else tuple(self.tables[name])
            rows = (row for variant in variants for row in self.tables[name].get(variant, ()))
            reachable = [row.output for row in rows if _dominates(limits, row.inputs)]
            if not reachable:
                return None
            best[name] = max(reachable)
        return best


@dataclass(frozen=True)
class Independent:
    """Each variant has an accuracy (operator -> variant -> percent); the workflow's accuracy is their product."""

    table: Mapping[str, Mapping[str, float]]

    def value(self, selection: Mapping[str, str]) -> float | None:
        """The product of the selected variants' accuracies, in percent."""
        return self.upper_bound({name: selection[name] for name in self.table})

    def upper_bound(self, partial: Mapping[str, str]) -> float | None:
        """The product in percent, with the best variant of each operator that is not in `partial`."""
        if not self.table:
            return None
        product = 100.0
        for name, variants in self.table.items():
            percent = variants.get(partial[name]) if name in partial else self._best[name]
            if percent is None:
                return None
            product *= percent / 100.0
        return product

    @cached_property
    def _best(self) -> Mapping[str, float | None]:
        """Operator -> the accuracy of its best variant; None without variants."""
        return {name: max(variants.values(), default=None) for name, variants in self.table.items()}


@dataclass(frozen=True)
class Margins:
    """Accuracy of several workflows: the smallest margin above a target, in percent points.

    `models` and `targets` by workflow; a problem states its own targets, and a workflow without one is ignored.
    Workflows share no operator, so the minimum of their upper bounds is an upper bound on the smallest margin.
    """

    models: Mapping[str, AccuracyModel]
    targets: Mapping[str, float] = field(default_factory=dict)

    def above(self, slos: Mapping[str, Slo]) -> Margins:
        """The margins above these targets (by workflow), of these workflows only."""
        models = {name: model for name, model in self.models.items() if name in slos}
        return Margins(models, {name: slo.accuracy for name, slo in slos.items() if slo.accuracy is not None})

    def value(self, selection: Mapping[str, str]) -> float | None:
        """The smallest margin; None if no workflow has a target, or a workflow with a target has unknown accuracy."""
        return self._least({name: self.models[name].value(selection) for name in self.targets})

    def upper_bound(self, partial: Mapping[str, str]) -> float | None:
        """The smallest of the workflows' upper bounds on their margins; None as for `value`."""
        return self._least({name: self.models[name].upper_bound(partial) for name in self.targets})

    def _least(self, known: Mapping[str, float | None]) -> float | None:
        margins = [value - self.targets[name] for name, value in known.items() if value is not None]
        return min(margins) if margins and len(margins) == len(known) else None


def _measured(rows: tuple[AccuracyRow, ...], inputs: tuple[float, ...]) -> float | None:
    exact = [row.output for row in rows if row.inputs == inputs]
    if exact:
        return exact[0]
    return max((row.output for row in rows if _dominates(inputs, row.inputs)), default=None)


def _dominates(above: tuple[float, ...], below: tuple[float, ...]) -> bool:
    return all(high >= low for high, low in zip(above, below, strict=True))
