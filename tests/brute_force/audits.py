"""Audited workflows as workflows of their own, with one selection, for the programs over everything."""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver import Audit, Deliver, EndToEnd, Problem, Slo, combine_workflows
from tests.brute_force import mixture_optimum


def audit_of(problem: Problem, audit: Audit) -> Problem:
    """What the audit of a problem runs, as a problem: what its answer depends on, for its share of the requests."""
    needed, grown = {audit.answer}, True
    while grown:
        more = {edge.upstream for one in problem.operators if one.name in needed for edge in one.inputs}
        grown, needed = not more <= needed, needed | more
    sources = [one for one in problem.sources if one.name in needed]
    return replace(
        problem,
        sources=tuple(
            replace(one, rate_per_s=audit.share * one.rate_per_s, deliver=Deliver.IN_TIME, streams=0) for one in sources
        ),
        operators=tuple(
            replace(one, variants=tuple(v for v in one.variants if v.name == audit.reference[one.name]))
            for one in problem.operators
            if one.name in needed
        ),
        accuracy=EndToEnd((), {}),
        slo=Slo(),
    )


def best(
    problems: dict[str, Problem],
    audits: dict[str, Audit],
    budget_usd_per_h: float | None = None,
    worths: dict[str, float] | None = None,
) -> float | None:
    """USD per hour, with penalties and worths. An audit is left out with its workflow, and survives no loss."""
    names = {f"audit-of-{name}": name for name in audits}
    parts = problems | {name: audit_of(problems[of], audits[of]) for name, of in names.items()}
    together = combine_workflows("together", parts, budget_usd_per_h)
    known = dict(worths or {}) | {name: 0.0 for name, of in names.items() if of in (worths or {})}
    workflows = tuple(replace(one, worth_usd_per_h=known.get(one.name)) for one in together.workflows)
    return mixture_optimum.best_of_several(replace(together, workflows=workflows), parts, names)
