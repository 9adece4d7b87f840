"""The audits of a plan: what each says of its workflow, selection by selection where the plan mixes variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jellybean_protos import plan_format
from jellybean_solver.model.audit import Audit, AuditedSelection, PlannedAudit
from jellybean_solver.model.plan import Plan, whole_selection
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.reached_accuracy import Shares
from jellybean_solver.model.workflow import WORKFLOW_SEPARATOR


def planned_audits(problem: Problem, plan: Plan, selections: Shares) -> Mapping[str, PlannedAudit]:
    """Workflow -> its audit, with the agreement that is expected of the plan's `selections`."""
    return {name: _planned(problem, plan, name, audit, selections) for name, audit in problem.audits.items()}


def _planned(problem: Problem, plan: Plan, workflow: str, audit: Audit, selections: Shares) -> PlannedAudit:
    chosen = list(_selections(problem, plan, workflow, audit, selections))
    known = [one.share * one.agreement for one in chosen if one.agreement is not None]
    agreement = sum(known) if known and len(known) == len(chosen) else None
    requests = 0 if agreement is None else audit.requests
    several = tuple(chosen) if len(chosen) > 1 else ()
    return PlannedAudit(audit.share, audit.metric, audit.answer, audit.accuracy, agreement, requests, several)


def _selections(
    problem: Problem, plan: Plan, workflow: str, audit: Audit, selections: Shares
) -> Iterator[AuditedSelection]:
    """The selections that requests of the workflow get."""
    model = problem.accuracy_of(workflow)
    parts = [
        ({name: variant for name, variant in selection.items() if problem.workflow_of(name) == workflow}, share)
        for selection, share in selections
    ]
    parts = [(own, share) for own, share in parts if own]
    total = sum(share for _, share in parts)
    for own, share in parts:
        planned = [plan.operator_by_name[name].with_variant(variant) for name, variant in own.items()]
        whole = {_local(name): variant for name, variant in whole_selection(planned).items()}
        mixed = {_local(one.name): own[one.name] for one in plan.operators if one.others and one.name in own}
        agreement = audit.agreements.get(tuple(whole[name] for name in audit.choices))
        part = share / total if len(parts) > 1 else 1.0
        yield AuditedSelection(plan_format.selection_text(mixed), part, model.value(own), agreement)


def _local(name: str) -> str:
    """The name of a source or operator in its workflow."""
    return name.rpartition(WORKFLOW_SEPARATOR)[2]
