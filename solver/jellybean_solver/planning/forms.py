"""Forms: the ways to run an operator as several, of which a plan may choose one instead of a variant.

A model that is cut in two is a head and a tail; a cascade is four operators. The last operator of a form keeps the
operator's name, so that its readers, accuracies and clients do not change. A problem in which forms are chosen is an
ordinary problem; `form_search` finds the best choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jellybean_solver.model.accuracy import AccuracyModel, EndToEnd, Independent, PerOperator
from jellybean_solver.model.multi_workflow import Margins, qualified_model, renamed_operator
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Edge, Operator, Problem, Variant, qualified_name


@dataclass(frozen=True, slots=True)
class Form:
    """Operators in topological order, each of one variant, that together stand for the one that the last is named as.

    `accuracy`: of the workflow with this form; None if it is that of the last operator's variant. `has_one_output`:
    readers get the only output of the last operator, whatever output they name. `stale_profiles`: as of a problem.
    """

    operators: tuple[Operator, ...]
    accuracy: AccuracyModel | None = None
    has_one_output: bool = False
    stale_profiles: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The operator that it stands for."""
        return self.operators[-1].name

    @property
    def is_cut(self) -> bool:
        """True for a model that is cut in two."""
        return self.operators[-1].variants[0].stage is not None

    def readers(self, upstream: str) -> tuple[str, ...]:
        """The operators of the form that read an operator or source outside it."""
        return tuple(one.name for one in self.operators if any(edge.upstream == upstream for edge in one.inputs))


Forms = Mapping[str, tuple[Form, ...]]  # operator -> its forms
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
    first = replace(operator, name=name, inputs=early, variants=(head,))
    return Form((first, replace(operator, inputs=(*late, Edge(name, operator.name)), variants=(tail,))))


def problem_in_forms(problem: Problem, choice: Choice) -> Problem | None:
    """The problem with each operator of `choice` in its form. None if the accuracy of that combination is not known."""
    if not choice:
        return problem
    accuracy = _accuracy(problem, choice)
    if accuracy is None:
        return None
    operators = [part for one in problem.operators for part in _parts(one, choice)]
    stale = (*problem.stale_profiles, *(text for form in choice.values() for text in form.stale_profiles))
    return replace(
        problem,
        operators=tuple(_connected(one, choice) for one in operators),
        accuracy=accuracy,
        stale_profiles=tuple(dict.fromkeys(stale)),
    )


def _parts(operator: Operator, choice: Choice) -> tuple[Operator, ...]:
    return choice[operator.name].operators if operator.name in choice else (operator,)


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
    model = problem.accuracy
    own = [form for form in choice.values() if form.accuracy is not None]
    if not isinstance(model, Margins):
        return _of_one_workflow(model, own)
    changed: dict[str, AccuracyModel] = {}
    for workflow, base in model.models.items():
        forms = [form for form in own if problem.workflow_of(form.name) == workflow]
        found = _of_one_workflow(base, forms) if forms else base
        if found is None:
            return None
        changed[workflow] = found
    return replace(model, models={**model.models, **changed})


def _of_one_workflow(model: AccuracyModel, forms: list[Form]) -> AccuracyModel | None:
    """The accuracy model of a workflow with these forms, each of which has one of its own."""
    models = {form.name: form.accuracy for form in forms if form.accuracy is not None}
    known = list(models.values())
    if len(known) < 2:
        return known[0] if known else model
    parts = {part.name: form.name for form in forms for part in form.operators}
    if all(isinstance(one, EndToEnd) and not one.table for one in known):
        return EndToEnd((), {})  # nothing was measured of any of them
    independent = [one for one in known if isinstance(one, Independent)]
    if len(independent) == len(known):
        table = _merged({name: getattr(one, "table", {}) for name, one in models.items()}, parts)
        return None if table is None else Independent(table)
    by_inputs = [one for one in known if isinstance(one, PerOperator)]
    if len(by_inputs) == len(known):
        inputs = _merged({name: getattr(one, "inputs", {}) for name, one in models.items()}, parts)
        tables = _merged({name: getattr(one, "tables", {}) for name, one in models.items()}, parts)
        return None if inputs is None or tables is None else PerOperator(inputs, tables)
    return None


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


def qualified_forms(workflow: str, forms: Forms) -> Forms:
    """The forms of one workflow with its operators renamed to WORKFLOW/NAME, as `combine_workflows` does."""
    called = partial(qualified_name, workflow)

    def renamed(form: Form) -> Form:
        return replace(
            form,
            operators=tuple(renamed_operator(called, one) for one in form.operators),
            accuracy=None if form.accuracy is None else qualified_model(form.accuracy, workflow),
            stale_profiles=tuple(f"{workflow}: {text}" for text in form.stale_profiles),
        )

    return {called(name): tuple(map(renamed, own)) for name, own in forms.items()}


def choices(forms: Forms, most: float = math.inf) -> Iterator[Choice]:
    """Choices of forms, those of fewer forms first, so that the first has none; at most so many of them."""
    names = [name for name, own in forms.items() if own]
    every = (
        dict(zip(chosen, one, strict=True))
        for number in range(len(names) + 1)
        for chosen in itertools.combinations(names, number)
        for one in itertools.product(*(forms[name] for name in chosen))
    )
    return itertools.islice(every, None if math.isinf(most) else int(most))


def number_of_choices(forms: Forms) -> int:
    """How many choices there are."""
    return math.prod(1 + len(own) for own in forms.values())


def chosen_in(plan: Plan, forms: Forms) -> Choice:
    """Operator -> the form that a plan uses, for forms that are still among `forms`."""
    planned = {one.name: (one.variant, one.stage, one.model if one.stage else None) for one in plan.operators}

    def is_used(form: Form) -> bool:
        parts = ((part.name, part.variants[0]) for part in form.operators)
        return all(planned.get(name) == (own.name, own.stage, own.model if own.stage else None) for name, own in parts)

    return {name: form for name, own in forms.items() for form in own if is_used(form)}


def problem_as_planned(problem: Problem, forms: Forms, plan: Plan) -> Problem:
    """The problem in the forms that the plan uses, so that plan and problem have the same operators."""
    return problem_in_forms(problem, chosen_in(plan, forms)) or problem


def forms_of(problem: Problem, forms: Forms) -> Forms:
    """The forms of the operators that a problem has."""
    return {name: own for name, own in forms.items() if own and name in problem.operator_by_name}


def kinds_text(forms: Forms) -> str:
    """What the forms are, in words: `model cut or cascade`."""
    every = itertools.chain.from_iterable(forms.values())
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
