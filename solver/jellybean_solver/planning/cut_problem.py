"""Models cut in two, as data: the first layers on one worker, the rest on another.

A cut variant is two operators in a row: the head has a name of its own, the tail keeps the operator's name, so that
accuracy models and downstream operators do not change. `cut_models` searches for the best cuts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from jellybean_solver.errors import SolverError
from jellybean_solver.model.multi_workflow import qualified_variant
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Edge, Operator, Problem, Variant, qualified_name

MOST_CHOICES = 512


@dataclass(frozen=True, slots=True)
class Cut:
    """A variant as two stages. `head_inputs`: upstreams whose data the head reads; the tail reads the other inputs.

    The head's messages go to the operator; the tail has the variant's own name and messages.
    """

    head: Variant
    tail: Variant
    head_inputs: tuple[str, ...]


Cuts = Mapping[str, tuple[Cut, ...]]  # operator -> its variants' cuts
Choice = Mapping[str, Cut]  # operator -> the cut chosen; operators without one run whole models


def head_name(operator: str) -> str:
    """Name of the operator that runs the first layers of a cut model of `operator`."""
    return f"{operator}.head"


def cut_problem(problem: Problem, choice: Choice) -> Problem:
    """The problem with the operators of `choice` replaced by head and tail, each with a single variant."""
    moved = {(up, name): head_name(name) for name, cut in choice.items() for up in cut.head_inputs}
    operators: list[Operator] = []
    for operator in problem.operators:
        cut = choice.get(operator.name)
        stages = (operator,) if cut is None else _stages(operator, cut)
        for one in stages:
            variants = tuple(_redirected(variant, operator.name, moved) for variant in one.variants)
            operators.append(replace(one, variants=variants))
    return replace(problem, operators=tuple(operators))


def _stages(operator: Operator, cut: Cut) -> tuple[Operator, Operator]:
    name = head_name(operator.name)
    early = tuple(replace(edge, downstream=name) for edge in operator.inputs if edge.upstream in cut.head_inputs)
    late = tuple(edge for edge in operator.inputs if edge.upstream not in cut.head_inputs)
    both = operator.tiers, operator.batch_delay_s
    head = Operator(name, early, (cut.head,), *both)
    return head, Operator(operator.name, (*late, Edge(name, operator.name)), (cut.tail,), *both)


def _redirected(variant: Variant, name: str, moved: Mapping[tuple[str, str], str]) -> Variant:
    """The variant with its messages sent to heads; `moved`: (operator, downstream) -> the downstream's head."""
    sent = {moved.get((name, down), down): size for down, size in variant.message_bytes.items()}
    ratios = {moved.get((name, down), down): ratio for down, ratio in variant.ratios.items()}
    return variant if sent == variant.message_bytes else replace(variant, message_bytes=sent, ratios=ratios)


def qualified_cuts(workflow: str, cuts: Cuts) -> Cuts:
    """The cuts of one workflow with its operators renamed to WORKFLOW/NAME, as `combine_workflows` does."""
    called = partial(qualified_name, workflow)

    def cut(one: Cut) -> Cut:
        head, tail = (qualified_variant(workflow, stage) for stage in (one.head, one.tail))
        return Cut(head, tail, tuple(map(called, one.head_inputs)))

    return {called(name): tuple(map(cut, found)) for name, found in cuts.items()}


def choices(cuts: Cuts) -> Iterator[Choice]:
    """Every choice of cuts; first the one in which all models are whole. SolverError for more than `MOST_CHOICES`."""
    number = math.prod(1 + len(found) for found in cuts.values())
    if number > MOST_CHOICES:
        raise SolverError(f"{number:,} ways to cut models are more than {MOST_CHOICES}; give fewer operators cuts")
    for chosen in itertools.product(*((None, *found) for found in cuts.values())):
        yield {name: cut for name, cut in zip(cuts, chosen, strict=True) if cut is not None}


def chosen_in(plan: Plan, cuts: Cuts) -> Choice:
    """Operator -> the cut that a plan uses, for cuts that are still among `cuts`."""
    heads = {operator.name: (operator.stage, operator.model) for operator in plan.operators}
    return {
        name: cut
        for name, found in cuts.items()
        for cut in found
        if heads.get(head_name(name)) == (cut.head.stage, cut.head.model)
    }


def problem_as_planned(problem: Problem, cuts: Cuts, plan: Plan) -> Problem:
    """The problem after the cuts that the plan uses, so that plan and problem have the same operators."""
    return cut_problem(problem, chosen_in(plan, cuts))


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
