"""What a plan's certificate leaves open, as a sentence; commands that do not plan say it too."""

from __future__ import annotations

from jellybean_solver import Objective, Plan, Termination


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
