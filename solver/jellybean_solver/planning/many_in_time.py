"""Many workflows with p99 targets: the cheapest plan of all, in which those that are late are planned again in time.

One search for a plan of all of them in time would be too large. So the late ones are taken out of the cheapest plan, a
few at a time, and planned within their targets beside the others, which stay (beside/). That may make others late, by
the estimate or in simulation; then these follow, in a few rounds in which what is estimated must leave a margin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jellybean_solver.beside.kept import kept_part
from jellybean_solver.beside.left_over import left_over
from jellybean_solver.beside.merged import merged
from jellybean_solver.deadline.search import Deadline
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.figures import listed
from jellybean_solver.latency.estimate import p99_by_workflow
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.margin import stressed
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock
from jellybean_solver.planning.infeasibility import Infeasibility
from jellybean_solver.planning.solver import Solution, certified

AT_ONCE = 4  # late workflows that are planned again together
ROUNDS = 4  # times that late ones are looked for
TIGHTER = 0.85  # factor on what the estimate may be, after a plan that is in time by the estimate is late in simulation

SolveInTime = Callable[[Problem, float], Solution]  # a problem, and the share of its targets that may be used


def in_time(problem: Problem, cheapest: Solution, deadline: Deadline, limit: Clock, solve: SolveInTime) -> Solution:
    """The solution of many workflows in time. `cheapest`: that without regard to p99 targets; `solve`: plans a few.

    OutOfTimeError if time ends before a plan in time was found.
    """
    plan = cheapest.plan
    if plan is None:
        return cheapest
    margin = 1.0
    for _ in range(ROUNDS):
        late = _late(problem, plan, margin)
        for start in range(0, len(late), AT_ONCE):
            if limit.left() == 0.0:
                raise OutOfTimeError(f"{len(late) - start} of {len(problem.workflows)} workflows were still late")
            found = _again(problem, plan, late[start : start + AT_ONCE], margin, solve)
            if isinstance(found, Infeasibility):
                return replace(cheapest, plan=None, infeasibility=found)
            plan = found
        if _late(problem, plan, margin):
            continue
        if deadline.judge is None or deadline.judge(plan) <= 1.0:
            bound = 0.0 if cheapest.certificate is None else cheapest.certificate.bound
            return replace(cheapest, plan=certified(plan, bound))
        margin *= TIGHTER
    reason = f"{listed(_late(problem, plan, margin))} stay late in every plan that was tried"
    return replace(cheapest, plan=None, infeasibility=Infeasibility((reason,), (reason,)))


def _late(problem: Problem, plan: Plan, margin: float) -> Sequence[str]:
    """Workflows whose estimated p99 is above `margin` of their target, the latest first."""
    targets: Mapping[str, float | None] = problem.deadlines_s
    found = p99_by_workflow(stressed(plan))
    over = {name: p99_s / target for name, p99_s in found.items() if (target := targets.get(name)) is not None}
    return sorted((name for name, share in over.items() if share > margin), key=lambda name: -over[name])


def _again(
    problem: Problem, plan: Plan, names: Sequence[str], margin: float, solve: SolveInTime
) -> Plan | Infeasibility:
    """The plan with these workflows planned again; why they have no plan in time beside the others."""
    kept = kept_part(problem, plan, names)
    left = left_over(problem, kept)
    solution = solve(left.problem, margin)
    if solution.plan is None:
        found = solution.infeasibility
        reasons = () if found is None else found.reasons
        reason = f"{listed(names)}: no plan in time was found beside the other workflows"
        return Infeasibility((reason, *reasons), (reason,))
    whole = merged(problem, kept, solution.plan, left)
    return evaluate(problem, whole).checked(whole, within_budget=False)
