"""Several workflows on one fleet as one problem, and one workflow of such a problem as a problem of its own.

The graph is the disjoint union of the workflows' graphs. Sources and operators are called WORKFLOW/NAME. The accuracy
of the union is the smallest margin of a workflow's accuracy above its target, so that one search meets all targets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from jellybean_solver.errors import SolverError
from jellybean_solver.model.accuracy import AccuracyModel, EndToEnd, Independent, Margins, PerOperator
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.targets import Slo
from jellybean_solver.model.workflow import WORKFLOW_SEPARATOR, Edge, Form, Operator, Variant, Workflow, qualified_name

T = TypeVar("T")
ProblemOrPlan = TypeVar("ProblemOrPlan", Problem, Plan)


def combine_workflows(name: str, problems: Mapping[str, Problem], budget_usd_per_h: float | None = None) -> Problem:
    """Combine several workflows (name -> problem) on one fleet into one problem.

    `hop_s` is the longest of the problems; the budgets of the single problems are ignored. SolverError if the fleets
    differ or `problems` is empty.
    """
    if not problems:
        raise SolverError("there is no workflow to plan")
    first = next(iter(problems.values()))
    for workflow, problem in problems.items():
        if problem.objective is not first.objective:
            raise SolverError(f"{workflow} and {next(iter(problems))} have unlike objectives: one plan has one")
        if _fleet(problem) != _fleet(first):
            raise SolverError(f"{workflow} is not on the fleet of {next(iter(problems))}: one plan is of one fleet")
    parts = {workflow: _qualified(workflow, problem) for workflow, problem in problems.items()}
    return replace(
        first,
        name=name,
        sources=tuple(source for part in parts.values() for source in part.sources),
        operators=tuple(operator for part in parts.values() for operator in part.operators),
        accuracy=Margins({workflow: part.accuracy for workflow, part in parts.items()}),
        slo=Slo(budget_usd_per_h=budget_usd_per_h),
        hop_s=max(part.hop_s for part in parts.values()),
        workflows=tuple(
            Workflow(workflow, replace(part.slo, budget_usd_per_h=None), audit=part.audit)
            for workflow, part in parts.items()
        ),
        audit=None,
        stale_profiles=tuple(f"{name}: {text}" for name, part in parts.items() for text in part.stale_profiles),
    )


def restricted(of: ProblemOrPlan, names: Collection[str]) -> ProblemOrPlan:
    """A problem or plan with some of its workflows only, on the whole fleet. Workers and routes of a plan stay."""
    return replace(
        of,
        **of.nodes(lambda name: of.workflow_of(name) in names),
        workflows=tuple(workflow for workflow in of.workflows if workflow.name in names),
    )


def single_workflow(problem: Problem, workflow: Workflow) -> Problem:
    """The problem with one of its workflows only, on the whole fleet; names keep the prefix WORKFLOW/."""
    return replace(
        restricted(problem, [workflow.name]),
        name=workflow.name,
        accuracy=problem.accuracy_of(workflow.name),
        slo=workflow.slo,
        workflows=(),
        audit=workflow.audit,
    )


def with_targets(problem: Problem, name: str, **targets: Any) -> Problem:
    """The problem with changed targets (fields of `Slo`) for the workflow called `name`."""
    return with_slos(problem, lambda workflow, slo: replace(slo, **targets) if workflow == name else slo)


def with_slos(of: ProblemOrPlan, change: Callable[[str, Slo], Slo]) -> ProblemOrPlan:
    """A problem or plan with changed targets, given the name and the targets of each workflow."""
    if not of.workflows:
        return replace(of, slo=change("", of.slo))
    return replace(of, workflows=tuple(replace(one, slo=change(one.name, one.slo)) for one in of.workflows))


def with_deadlines(of: ProblemOrPlan, targets_s: Mapping[str, float | None]) -> ProblemOrPlan:
    """A problem or plan with these p99 latency targets, by workflow as in `deadlines_s`; others keep theirs."""
    return with_slos(of, lambda name, slo: replace(slo, latency_p99_s=targets_s.get(name, slo.latency_p99_s)))


def of_promised(of: ProblemOrPlan) -> ProblemOrPlan:
    """A problem or plan without the deadlines that a search tries in the place of soft targets."""
    return with_slos(of, lambda _, slo: replace(slo, latency_p99_s=slo.promised_p99_s))


def on_scale_of(problem: Problem, plan: Plan, seconds: float) -> float:
    """A latency on the scale of the plan's longest deadline on that of the problem's, of which it may lack some.

    0 if no workflow of the plan has a deadline, but one of the problem has.
    """
    longest, own = problem.deadline_s, plan.deadline_s
    if longest is None or not plan.workflows:
        return seconds
    return 0.0 if own is None else seconds * longest / own


def all_served(problem: Problem) -> Problem:
    """The problem of which no workflow may be left out, whatever it is worth."""
    return replace(problem, workflows=tuple(replace(one, worth_usd_per_h=None) for one in problem.workflows))


def of_one_selection(problem: Problem) -> Problem:
    """The problem of which all requests of a workflow get one selection, which reaches what the mean has to be."""

    def single(_: str, slo: Slo) -> Slo:
        least = None if slo.mean_accuracy is None else max(slo.mean_accuracy, slo.accuracy or 0.0)
        accuracy = slo.accuracy if least is None else least
        return replace(slo, accuracy=accuracy, mean_accuracy=None, penalty_usd_per_h=None)

    return with_slos(problem, single)


def _fleet(problem: Problem) -> tuple[object, ...]:
    return problem.tiers, problem.pools, problem.links, problem.utilisation, dict(problem.sites)


def renamed_operator(called: Callable[[str], str], operator: Operator) -> Operator:
    """The operator with itself, its upstreams, its downstreams and its forms renamed."""

    def edge(one: Edge) -> Edge:
        return replace(one, upstream=called(one.upstream), downstream=called(one.downstream))

    def form(one: Form) -> Form:
        accuracy = None if one.accuracy is None else _renamed_model(called, one.accuracy)
        parts = tuple(renamed_operator(called, part) for part in one.operators)
        return replace(one, operators=parts, accuracy=accuracy)

    return replace(
        operator,
        name=called(operator.name),
        inputs=tuple(map(edge, operator.inputs)),
        variants=tuple(_renamed_variant(called, variant) for variant in operator.variants),
        forms=tuple(map(form, operator.forms)),
    )


def _renamed_variant(called: Callable[[str], str], variant: Variant) -> Variant:
    stage, model = variant.stage, variant.model
    if model is not None and model.ports is not None:
        ports = model.ports
        inputs = {called(upstream): name for upstream, name in ports.inputs.items()}
        gathered = {called(upstream): name for upstream, name in ports.gathered_rows.items()}
        model = replace(model, ports=replace(ports, inputs=inputs, gathered_rows=gathered))
    return replace(
        variant,
        model=model,
        message_bytes={called(name): size for name, size in variant.message_bytes.items()},
        ratios={called(name): ratio for name, ratio in variant.ratios.items()},
        stage=None if stage is None else replace(stage, operator=called(stage.operator)),
    )


def _qualified(workflow: str, problem: Problem) -> Problem:
    called = partial(qualified_name, workflow)

    if problem.workflows or any(WORKFLOW_SEPARATOR in name for name in problem.rate_per_s):
        raise SolverError(f"{workflow}: names of sources and operators must hold no {WORKFLOW_SEPARATOR!r} yet")
    return replace(
        problem,
        sources=tuple(replace(source, name=called(source.name)) for source in problem.sources),
        operators=tuple(renamed_operator(called, one) for one in problem.operators),
        accuracy=_renamed_model(called, problem.accuracy),
    )


def _renamed_model(called: Callable[[str], str], model: AccuracyModel) -> AccuracyModel:
    """The accuracy model with its operators renamed."""

    def keyed(table: Mapping[str, T]) -> dict[str, T]:
        return {called(name): value for name, value in table.items()}

    if isinstance(model, EndToEnd):
        return EndToEnd(tuple(map(called, model.operators)), model.table)
    if isinstance(model, Independent):
        return Independent(keyed(model.table))
    if isinstance(model, PerOperator):
        inputs = {name: tuple(map(called, ups)) for name, ups in model.inputs.items()}
        return PerOperator(keyed(inputs), keyed(model.tables))
    raise SolverError(f"no other names can be given to the accuracy model {type(model).__name__}")
