"""The p99 latency of a plan compared with its target, hard or soft, and the cost of meeting the target."""

from __future__ import annotations

from typing import Any

from jellybean.display import formats
from jellybean.planning.planned import Planned
from jellybean.planning.simulated_deadline import cost_of
from jellybean.report.plans.plan_view import p99_lines
from jellybean_solver import Objective, distinct_usd, plan_differences


def latency_lines(planned: Planned) -> tuple[str, ...]:
    """One line per p99 target, and one on the cheapest plan if that missed a target. Empty without p99 targets."""
    plan, judged = planned.plan, planned.judged
    if plan is None or judged is None:
        return ()
    lines = [*p99_lines(judged)]
    if planned.cheapest is not None and plan.certificate.objective_of is Objective.MEAN_ACCURACY:
        best, late = planned.cheapest.plan, planned.cheapest
        slowest_s = max(p99.p99_s for p99 in late.p99.values())
        lines.append(
            f"  {formats.plain((best.accuracy or 0.0) - (plan.accuracy or 0.0))} points below the most accurate plan "
            f"({formats.accuracy(best.accuracy)}), whose p99 latency is {formats.duration(slowest_s)}"
        )
    elif planned.cheapest is not None:
        cheapest, late = planned.cheapest.plan, planned.cheapest
        cheapest_cost, increase = cost_of(cheapest), cost_of(plan) - cost_of(cheapest)
        share = f" ({_share(increase / cheapest_cost)})" if cheapest_cost > 0 else ""
        missed = ", ".join(
            f"p99 latency{f' of {name}' if name else ''} is {formats.interval(p99.p99_s, p99.low_s, p99.high_s)}"
            for name, p99 in late.p99.items()
            if p99.p99_s > late.targets_s[name]
        )
        penalty = sum(late.penalties_usd_per_h.values())
        missed += f", which counts {formats.usd(penalty)} USD/h" if penalty else ""
        changes = "; ".join(plan_differences(cheapest, plan)) or "shares of the requests"
        relation = f"{formats.usd(increase)} USD/h{share} more than" if increase > 0 else "instead of"
        before = distinct_usd(cheapest_cost, cost_of(plan))[0]
        lines.append(f"  {relation} the cheapest plan ({before}), whose {missed}; changed: {changes}")
    return tuple(lines)


def _share(fraction: float) -> str:
    return f"{fraction:.0%}" if fraction >= 0.01 else f"{fraction:.1%}"


def latency_json(planned: Planned) -> dict[str, Any] | None:
    """The p99 latencies compared with their targets, as JSON values; None without p99 targets."""
    plan, judged = planned.plan, planned.judged
    if plan is None or judged is None:
        return None
    result: dict[str, Any] = {"reached": judged.to_list(), "cheapest_without": None}
    if planned.cheapest is not None:
        cheapest, late = planned.cheapest.plan, planned.cheapest
        result["cheapest_without"] = {
            "cost_usd_per_h": cost_of(cheapest),
            "dearer_usd_per_h": cost_of(plan) - cost_of(cheapest),
            "simulated_s": {name: p99.p99_s for name, p99 in late.p99.items()},
            **({"penalty_usd_per_h": sum(late.penalties_usd_per_h.values())} if late.penalties_usd_per_h else {}),
            "differences": list(plan_differences(cheapest, plan)),
        }
    return result
