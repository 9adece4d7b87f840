"""A problem whose workflow is audited: the reference's operators beside the others, with a stream of their own.

Nothing else of the solver knows audits: the sources of the audit have the rate of the share, so capacity, memory, cost
and traffic of the audit are in every plan, and in its bound.
"""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver.errors import SolverError
from jellybean_solver.model.audit import AUDIT_PREFIX, Audit, audit_name
from jellybean_solver.model.multi_workflow import renamed_operator
from jellybean_solver.model.problem import Deliver, Operator, Problem, Source


def with_audit(problem: Problem, audit: Audit) -> Problem:
    """The problem with an audit. SolverError if it cannot have one."""
    if problem.workflows or problem.is_for_ways or problem.audit is not None:
        raise SolverError("only a plan of one workflow with one selection, which bears no losses, is audited")
    if any(operator.state for operator in problem.operators):
        raise SolverError("a workflow with states is not audited: the reference would need the states of its own")
    if any(name.startswith(AUDIT_PREFIX) for name in problem.rate_per_s):
        raise SolverError(f"names that begin with {AUDIT_PREFIX} are those of the audit")
    return replace(
        problem,
        sources=(*problem.sources, *(_source(source, audit.share) for source in problem.sources)),
        operators=(*problem.operators, *(_operator(one, audit) for one in problem.operators)),
        audit=audit,
    )


def _source(source: Source, share: float) -> Source:
    return replace(
        source, name=audit_name(source.name), rate_per_s=source.rate_per_s * share, deliver=Deliver.IN_TIME, streams=0
    )


def _operator(operator: Operator, audit: Audit) -> Operator:
    """The operator of the audit with the reference's variant, which fan-out ratios are those of."""
    variant = operator.variant(audit.reference[operator.name])
    return renamed_operator(audit_name, replace(operator, variants=(variant,), forms=()))
