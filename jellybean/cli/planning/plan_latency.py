"""What a plan's p99 latency is, beside its target, and what it costs to keep it."""

from __future__ import annotations

from typing import Any

from jellybean.display import figures as units
from jellybean.planning.project_plan import Planned
from jellybean.planning.simulated_deadline import cost_of
from jellybean_solver import p99_by_workflow, plan_differences


def latency_lines(planned: Planned) -> tuple[str, ...]:
    """A line for each p99 asked for; where a cheaper plan broke one, one on what that plan is. No p99, no lines."""
    plan, judged = planned.plan, planned.judged
    if plan is None or judged is None:
        return ()
    closed = p99_by_workflow(plan)
    lines = [
        f"p99 latency{_of(name)} {units.duration(p99_s)} <= {units.duration(judged.targets_s[name])} "
        f"(simulated; closed form {units.duration(closed[name])})"
        for name, p99_s in judged.p99_s.items()
    ]
    if planned.cheapest is not None:
        cheapest, late = planned.cheapest
        before, more = cost_of(cheapest), cost_of(plan) - cost_of(cheapest)
        share = f" ({more / before:.0%})" if before > 0 else ""
        broken = ", ".join(
            f"p99 latency{_of(name)} would be {units.duration(p99_s)}"
            for name, p99_s in late.p99_s.items()
            if p99_s > late.targets_s[name]
        )
        told = "; ".join(plan_differences(cheapest, plan)) or "other shares of the requests"
        dearer = f"which costs {units.usd(more)} USD/h{share} more than" if more > 0 else "unlike"
        lines.append(f"  {dearer} the cheapest plan ({units.usd(before)}), whose {broken}; changed: {told}")
    return tuple(lines)


def latency_json(planned: Planned) -> dict[str, Any] | None:
    """JSON values; None where no p99 is asked for."""
    plan, judged = planned.plan, planned.judged
    if plan is None or judged is None:
        return None
    closed = p99_by_workflow(plan)
    found: dict[str, Any] = {
        "reached": [
            {
                "workflow": name,
                "simulated_s": p99_s,
                "closed_form_s": closed[name],
                "target_s": judged.targets_s[name],
            }
            for name, p99_s in judged.p99_s.items()
        ],
        "cheapest_without": None,
    }
    if planned.cheapest is not None:
        cheapest, late = planned.cheapest
        found["cheapest_without"] = {
            "cost_usd_per_h": cost_of(cheapest),
            "dearer_usd_per_h": cost_of(plan) - cost_of(cheapest),
            "simulated_s": dict(late.p99_s),
            "differences": list(plan_differences(cheapest, plan)),
        }
    return found


def _of(workflow: str) -> str:
    return f" of {workflow}" if workflow else ""
