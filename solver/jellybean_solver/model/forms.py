"""Forms: the ways to run an operator as several, of which a plan may choose one instead of a variant.

A model that is cut in two is a head and a tail; a cascade is four operators. The last operator of a form keeps the
operator's name, so that its readers, accuracies and clients do not change. A problem in which forms are chosen is an
ordinary problem, without forms; `planning/form_search.py` finds the best choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from jellybean_solver.model.accuracy import AccuracyModel, EndToEnd, Margins
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.workflow import Edge, Form, Operator, Variant

Choice = Mapping[str, Form]  # operator -> the form chosen; operators without one run a variant


def head_name(operator: str) -> str:
    """Name of the operator that runs the first layers of a cut model of `operator`."""
    return f"{operator}.head"


def cut_form(operator: Operator, head: Variant, tail: Variant, head_inputs: Collection[str]) -> Form:
    """A model in two stages. `head_inputs`: upstreams whose data the head reads; the tail reads the other inputs.

    The head's messages go to the operator; the tail has the variant's own name and messages.
    """
    name = head_name(operator.name)
    early = tuple(replace(edge, downstream=name) for edge in operator.inputs if edge.upstream in head_inputs)
    late = tuple(edge for edge in operator.inputs if edge.upstream not in head_inputs)
    plain = replace(operator, forms=())
    first = replace(plain, name=name, inputs=early, variants=(head,))
    return Form((first, replace(plain, inputs=(*late, Edge(name, operator.name)), variants=(tail,))))


def in_forms(problem: Problem, choice: Choice) -> Problem | None:
    """The problem with each operator of `choice` in its form, and without other forms.

    None if the accuracy of that combination is not known.
    """
    if not problem.has_forms:
        return problem
    accuracy = _accuracy(problem, choice)
    if accuracy is None:
        return None
    operators = [part for one in problem.operators for part in _parts(one, choice)]
    return replace(problem, operators=tuple(_connected(one, choice) for one in operators), accuracy=accuracy)


def _parts(operator: Operator, choice: Choice) -> tuple[Operator, ...]:
    return choice[operator.name].operators if operator.name in choice else (replace(operator, forms=()),)


def _connected(operator: Operator, choice: Choice) -> Operator:
    """The operator, whose messages to chosen operators go to the parts of their forms that read it."""
    inputs = tuple(
        replace(edge, output=None) if edge.upstream in choice and choice[edge.upstream].has_one_output else edge
        for edge in operator.inputs
    )
    variants = tuple(_redirected(variant, operator.name, choice) for variant in operator.variants)
    return replace(operator, inputs=inputs, variants=variants)


def _redirected(variant: Variant, name: str, choice: Choice) -> Variant:
    def sent(figures: Mapping[str, float]) -> dict[str, float]:
        found: dict[str, float] = {}
        for down, figure in figures.items():
            form = choice.get(down)
            inside = form is None or any(part.name == name for part in form.operators)
            readers = (down,) if form is None or inside else form.readers(name)
            found |= dict.fromkeys(readers, figure)
        return found

    if not any(down in choice for down in variant.message_bytes):
        return variant
    return replace(variant, message_bytes=sent(variant.message_bytes), ratios=sent(variant.ratios))


def _accuracy(problem: Problem, choice: Choice) -> AccuracyModel | None:
    """The accuracy model of a problem with these forms; None if that of the combination is not known."""
    models: dict[str, AccuracyModel] = {}
    for workflow in problem.slo_by_workflow:
        forms = [form for form in choice.values() if problem.workflow_of(form.name) == workflow]
        found = _of_one_workflow(problem.accuracy_of(workflow), forms)
        if found is None:
            return None
        models[workflow] = found
    return Margins(models) if problem.workflows else models[""]


def _of_one_workflow(model: AccuracyModel, forms: list[Form]) -> AccuracyModel | None:
    """The accuracy model of a workflow with these forms, of which those count that have one of their own."""
    models = {form.name: form.accuracy for form in forms if form.accuracy is not None}
    known = list(models.values())
    if len(known) < 2:
        return known[0] if known else model
    kind: Any = type(known[0])
    if any(type(one) is not kind for one in known):
        return None
    if kind is EndToEnd:  # nothing was measured of any of them, or of no combination
        return None if any(getattr(one, "table", {}) for one in known) else EndToEnd((), {})
    parts = {part.name: form.name for form in forms for part in form.operators}
    tables = [
        _merged({name: getattr(one, table.name) for name, one in models.items()}, parts) for table in fields(kind)
    ]
    merged: AccuracyModel | None = None if None in tables else kind(*tables)
    return merged


def _merged(tables: Mapping[str, Mapping[str, Any]], parts: Mapping[str, str]) -> dict[str, Any] | None:
    """One table of those of several forms: each has the figures of its parts, and all agree on the other operators.

    None if they do not. `parts`: operator -> the form that it is a part of.
    """
    merged: dict[str, Any] = {}
    for form, table in tables.items():
        for name, figures in table.items():
            if parts.get(name, form) != form:
                continue
            if merged.setdefault(name, figures) != figures:
                return None
    return merged


def without_forms(problem: Problem) -> Problem:
    """The problem in which each operator runs a variant."""
    return in_forms(problem, {}) or problem


def choices(problem: Problem, most: float = math.inf) -> Iterator[Choice]:
    """Choices of forms, those of fewer forms first, so that the first has none; at most so many of them."""
    forms = {operator.name: operator.forms for operator in problem.operators if operator.forms}
    every = (
        dict(zip(chosen, one, strict=True))
        for number in range(len(forms) + 1)
        for chosen in itertools.combinations(forms, number)
        for one in itertools.product(*(forms[name] for name in chosen))
    )
    return itertools.islice(every, None if math.isinf(most) else int(most))


def number_of_choices(problem: Problem) -> int:
    """How many choices there are."""
    return math.prod(1 + len(operator.forms) for operator in problem.operators)


def chosen_in(plan: Plan, problem: Problem) -> Choice:
    """Operator -> the form that a plan uses, for forms that the problem still has."""
    planned = {one.name: (one.variant, one.stage, one.model if one.stage else None) for one in plan.operators}

    def is_used(form: Form) -> bool:
        parts = ((part.name, part.variants[0]) for part in form.operators)
        return all(planned.get(name) == (own.name, own.stage, own.model if own.stage else None) for name, own in parts)

    return {form.name: form for operator in problem.operators for form in operator.forms if is_used(form)}


def as_planned(problem: Problem, plan: Plan) -> Problem:
    """The problem in the forms that the plan uses, so that plan and problem have the same operators."""
    if not problem.has_forms:
        return problem
    return in_forms(problem, chosen_in(plan, problem)) or without_forms(problem)


def kinds_text(problem: Problem) -> str:
    """What the forms are, in words: `model cut or cascade`."""
    every = (form for operator in problem.operators for form in operator.forms)
    return " or ".join(dict.fromkeys("model cut" if form.is_cut else "cascade" for form in every))


@dataclass(frozen=True, slots=True)
class PlannedCut:
    """A model that a plan cuts after layer `layers` of `of`; a message across the cut has `crossing_bytes` bytes."""

    operator: str
    variant: str
    layers: int
    of: int
    crossing_bytes: float


def planned_cuts(plan: Plan) -> tuple[PlannedCut, ...]:
    """The models that a plan cuts, in the operators' order."""
    found: list[PlannedCut] = []
    for head in plan.operators:
        if head.stage is not None and head.name == head_name(head.stage.operator):
            stage = head.stage
            sent = head.message_bytes[stage.operator]
            found.append(PlannedCut(stage.operator, stage.variant, stage.last, stage.layers, sent))
    return tuple(found)
