"""A problem whose workflow is audited: the reference's operators beside the others, with a stream of their own.

The sources of the audit have the rate of the share, so its capacity, memory, cost and traffic are in every plan, and in
its bound. Only what leads to the answer that is compared is audited: of several request streams, that answer's.
"""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver.errors import SolverError
from jellybean_solver.model.audit import AUDIT_PREFIX, Audit, audit_name
from jellybean_solver.model.multi_workflow import renamed_operator
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.workflow import Deliver, Operator, Source


def with_audit(problem: Problem, audit: Audit) -> Problem:
    """The problem of one workflow with an audit. SolverError if it cannot have one.

    Several workflows are combined of audited ones (multi_workflow.py).
    """
    if problem.workflows or problem.audit is not None:
        raise SolverError("an audit is of one workflow that has none yet: combine audited workflows")
    if any(name.startswith(AUDIT_PREFIX) for name in problem.rate_per_s):
        raise SolverError(f"names that begin with {AUDIT_PREFIX} are those of the audit")
    needed = _ancestors(problem, audit.answer)
    if any(problem.operator_by_name[name].state for name in needed if name in problem.operator_by_name):
        raise SolverError("a workflow with states is not audited: the reference would need every chunk of a stream")
    sources = (_source(source, audit.share) for source in problem.sources if source.name in needed)
    operators = (_operator(operator, audit, needed) for operator in problem.operators if operator.name in needed)
    return replace(
        problem, sources=(*problem.sources, *sources), operators=(*problem.operators, *operators), audit=audit
    )


def _ancestors(problem: Problem, answer: str) -> frozenset[str]:
    """The operator `answer` and all sources and operators that its answer depends on."""
    needed = {answer}
    for operator in reversed(problem.operators):
        if operator.name in needed:
            needed.update(edge.upstream for edge in operator.inputs)
    return frozenset(needed)


def _source(source: Source, share: float) -> Source:
    return replace(
        source, name=audit_name(source.name), rate_per_s=source.rate_per_s * share, deliver=Deliver.IN_TIME, streams=0
    )


def _operator(operator: Operator, audit: Audit, needed: frozenset[str]) -> Operator:
    """The operator of the audit with the reference's variant, which fan-out ratios are those of."""
    variant = operator.variant(audit.reference[operator.name])
    ratios = {name: ratio for name, ratio in variant.ratios.items() if name in needed}
    sent = {name: size for name, size in variant.message_bytes.items() if name in needed}
    variant = replace(variant, ratios=ratios, message_bytes=sent)
    return renamed_operator(audit_name, replace(operator, variants=(variant,), forms=()))
