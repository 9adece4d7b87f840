"""A plan's certificate in words, and what it leaves open as a warning, which commands that do not plan give too."""

from __future__ import annotations

from jellybean.display import formats
from jellybean.report.plans.workflows_summary import stays_text
from jellybean_solver import Objective, Plan, Termination


def proof(plan: Plan) -> str:
    """Text of the optimality certificate."""
    certificate = plan.certificate
    beside = stays_text(plan)
    if certificate.objective_of in (Objective.ENERGY, Objective.CARBON):
        beside = f" in {certificate.objective_of}{beside}"
    if certificate.forgone_usd_per_h:
        beside = f", with what is left out{beside}"
    if certificate.penalty_usd_per_h:
        beside = f", with the penalty{beside}"
    if certificate.termination == Termination.OPTIMAL:
        return f"proven optimal{beside}"
    limited = " (time limit)" if certificate.termination == Termination.TIME_LIMIT else ""
    if certificate.objective_of is Objective.MEAN_ACCURACY:
        points = formats.plain(certificate.bound - certificate.objective)
        return f"at most {points} points below the highest possible accuracy{limited}"
    if certificate.bound <= 0:
        return f"no lower bound{limited}"
    return f"gap {certificate.gap:.2%} to the lower bound{beside}{limited}"


def unproven(plan: Plan) -> str | None:
    """A warning if the plan is not proven optimal; None if it is."""
    proof = plan.certificate
    if proof.is_optimal:
        return None
    if proof.keeps:
        return (
            f"{proof.keeps:,} of its {len(plan.workflows):,} workflows stayed as they were when others were added: if "
            "all are planned anew, they may cost less"
        )
    limited = proof.termination == Termination.TIME_LIMIT
    counted = "cost and penalty" if plan.slo.is_soft else proof.objective_of.value
    why = "the search reached its time limit" if limited else "the search stopped at this gap"
    if proof.objective_of is Objective.MEAN_ACCURACY:
        return f"a mean accuracy up to {proof.bound - proof.objective:.2f} points higher may be possible: {why}"
    if proof.bound <= 0:
        return f"no lower bound on the {counted} was proven: {why}"
    if counted != Objective.COST:
        return f"{counted} of the optimum may be up to {proof.gap:.2%} less than those of this plan: {why}"
    return f"the optimum may cost up to {proof.gap:.2%} less than this plan: {why}"
