"""Models cut in two: the first layers on one worker, the rest on another, chosen together with variants and places.

A cut variant is two operators in a row: the head has a name of its own, the tail keeps the operator's name, so that
accuracy models and downstream operators do not change. The best cut is the optimum of a union of problems: one for
each choice of cuts, and one without cuts. The answer is the cheapest plan of all problems; its lower bound is the
smallest of theirs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.model.multi_workflow import qualified_variant
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Edge, Operator, Problem, Variant, qualified_name
from jellybean_solver.outcome import VALUE_TOLERANCE, Termination, termination_of
from jellybean_solver.planning.solve import SolveOptions, solve_with
from jellybean_solver.planning.solver import Solution, limited
from jellybean_solver.small.objectives import Fleet

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


def solve_cut(problem: Problem, cuts: Cuts, options: SolveOptions = SolveOptions()) -> Solution:
    """As `solve`, over all choices of cuts; if there is no plan, the reasons are those of the problem without cuts."""
    if not any(cuts.values()):
        return solve_with(problem, options)
    limit = limited(options.time_limit_s, options.clock)

    def solved(candidate: Problem, *, explained: bool = False) -> Solution:
        return solve_with(candidate, replace(options, time_limit_s=limit.left(), explained=explained))

    union = _Union(problem, solved)
    candidates = [cut_problem(problem, choice) for choice in choices(cuts)]
    union.walk(candidates)
    if union.best is not None:
        return union.answer(union.best)
    if union.late is not None:
        raise union.late
    whole = solved(problem, explained=options.explained)
    why = whole.infeasibility
    if why is None:  # a plan of whole models after all; it has a certificate of its own
        return whole
    note = f"that is with all models whole; with one cut in two, none of {len(candidates) - 1} ways gives a plan either"
    why = replace(why, reasons=(*why.reasons, note), least_usd_per_h=union.bound)
    return replace(whole, infeasibility=why, selections_tried=union.tried + whole.selections_tried)


class _Union:
    """Best-first search over problems: the incumbent's cost is the budget of the next one; ends at the lower bound."""

    def __init__(self, problem: Problem, solved: Callable[[Problem], Solution]) -> None:
        self.problem, self.solved = problem, solved
        self.best: Plan | None = None
        self.bound = math.inf  # least lower bound of the candidates solved or pruned so far
        self.tried = 0
        self.late: OutOfTimeError | None = None

    def walk(self, candidates: Sequence[Problem]) -> None:
        """Solve the candidates, lowest bound first; those whose bound is not below the incumbent are pruned."""
        bounded = sorted((least_usd_per_h(one), number) for number, one in enumerate(candidates))
        for least, number in bounded:
            if least == math.inf or (self.best is not None and least >= self.value * (1 - VALUE_TOLERANCE)):
                self.bound = min(self.bound, least)
                continue
            self.bound = min(self.bound, max(least, self._try(candidates[number])))

    @property
    def value(self) -> float:
        return math.inf if self.best is None else self.best.cost.total_usd_per_h

    def _try(self, candidate: Problem) -> float:
        """Solve a candidate below the incumbent's cost; returns its lower bound."""
        slo, budget = self.problem.slo, self.problem.slo.budget_usd_per_h
        if self.best is not None:
            candidate = replace(candidate, slo=replace(slo, budget_usd_per_h=min(self.value, budget or math.inf)))
        try:
            found = self.solved(candidate)
        except OutOfTimeError as error:
            self.late = error
            return 0.0
        self.tried += found.selections_tried
        if found.plan is None:
            return _least_of_refused(candidate, found)
        if found.plan.cost.total_usd_per_h < self.value * (1 - VALUE_TOLERANCE):
            self.best = replace(found.plan, slo=slo)
        return found.plan.certificate.bound

    def answer(self, plan: Plan) -> Solution:
        """The best plan, with the certificate of the union."""
        value, bound = self.value, min(self.value, self.bound)
        late = self.late is not None or plan.certificate.termination == Termination.TIME_LIMIT
        certificate = Certificate.of(value, bound, termination_of(value, bound, out_of_time=late))
        best = replace(plan, certificate=certificate)
        return Solution(certificate.termination, best, None, self.tried, certificate)


def _least_of_refused(candidate: Problem, found: Solution) -> float:
    """Lower bound in USD per hour of a candidate without a plan; inf if no plan of it can be feasible."""
    refused, budget = found.infeasibility, candidate.slo.budget_usd_per_h
    if refused is None or not refused.breaches or found.certificate is None:
        return refused.least_usd_per_h if refused is not None else math.inf
    bound = found.certificate.bound
    return bound if budget is None or bound <= budget else math.inf


def least_usd_per_h(problem: Problem) -> float:
    """Lower bound in USD per hour on the cost of every plan of a problem, without solving it."""
    return Fleet(Network(problem)).cost_bound({})
