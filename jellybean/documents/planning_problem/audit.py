"""The audit of a planning problem: which selection is the reference, and how often others should agree with it."""

from __future__ import annotations

from collections.abc import Mapping

from jellybean.documents.layout import WORKFLOW_FILE, profile_command
from jellybean.documents.project import Project
from jellybean.documents.schema.profiles import AccuracyProfile
from jellybean.errors import DocumentError, DocumentProblem
from jellybean_solver import ACCURACY_TOLERANCE, Audit, Problem, with_audit


def audited(project: Project, problem: Problem) -> Problem:
    """The problem with the audit that its workflow asks for, if it does. DocumentError as of `stated_audit`."""
    return problem if project.workflow.slo.audit is None else with_audit(problem, stated_audit(project, problem))


def stated_audit(project: Project, problem: Problem) -> Audit:
    """The audit that a workflow asks for, with the reference by its `problem`. DocumentError if that is not known."""
    share = project.workflow.slo.audit or 0.0
    from jellybean_solver import most_accurate_selection  # its module loads programs, which few commands need

    best = most_accurate_selection(problem)
    accuracy = None if best is None else problem.accuracy.value(best)
    profile = project.profiles.accuracy if project.profiles is not None else None
    answer = project.workflow.labelled_answer
    if best is None or accuracy is None or profile is None or answer is None:
        raise DocumentError([_unknown(project)])
    reference = _measured_reference(problem, profile, accuracy)
    choices = tuple(name for name, spec in project.workflow.operators.items() if len(spec.variants) > 1)
    agreements = {} if reference is None else _agreements(profile, choices)
    metric = project.workflow.metric or "exact_match"
    requests = profile.requests or 0
    return Audit(share, reference or best, metric, answer, accuracy, choices, agreements, requests)


def _unknown(project: Project) -> DocumentProblem:
    file = project.directory / WORKFLOW_FILE
    message = "an audit compares answers with those of the most accurate selection, but no accuracy was measured"
    hint = f"write labels and metric, then run: {profile_command(file)}; or remove the audit"
    return DocumentProblem(str(file), None, None, "slo.audit", message, hint)


def _measured_reference(problem: Problem, profile: AccuracyProfile, most: float) -> Mapping[str, str] | None:
    """The selection that agreements were measured with, unless another one is more accurate by now, or it is none."""
    found: dict[str, str] = {}
    for operator in problem.operators:
        names = [variant.name for variant in operator.variants]
        chosen = names[0] if len(names) == 1 else (profile.reference or {}).get(operator.name)
        if chosen not in names:
            return None
        found[operator.name] = chosen
    accuracy = problem.accuracy.value(found)
    return found if accuracy is not None and accuracy >= most - ACCURACY_TOLERANCE else None


def _agreements(profile: AccuracyProfile, choices: tuple[str, ...]) -> Mapping[tuple[str, ...], float]:
    return {
        tuple(row.selection[name] for name in choices): row.agreement
        for row in profile.end_to_end or ()
        if row.agreement is not None and all(name in row.selection for name in choices)
    }
