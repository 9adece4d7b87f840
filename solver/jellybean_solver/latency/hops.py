"""How much of a request's time messages between processes take, with zero queueing delay."""

from __future__ import annotations

from jellybean_solver.model.critical_path import completion_times
from jellybean_solver.model.flows import link_s
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.workflow import Edge


def unqueued_and_hops_s(plan: Plan) -> tuple[float, float]:
    """Seconds of a request on the most used route with zero queueing delay, and how many of them are hops.

    The children of a fan-out are taken to run at once. With several workflows the slowest one counts.
    """
    total_s = _unqueued_s(plan, plan.hop_s)
    return total_s, total_s - _unqueued_s(plan, 0.0)


def _unqueued_s(plan: Plan, hop_s: float) -> float:
    used: dict[str, str] = {}  # operator -> its worker on the most used route
    for route in sorted(plan.routes, key=lambda one: -one.weight):
        used = {**route.workers, **used}
    workers = {operator.name: plan.worker_by_name[used[operator.name]] for operator in plan.operators}
    tiers = {source.name: source.tier for source in plan.sources}
    tiers |= {name: worker.tier for name, worker in workers.items()}
    source_bytes = {source.name: source.message_bytes for source in plan.sources}

    def run_s(name: str) -> float:
        return plan.operator_at(name, workers[name].name).service[workers[name].pool][1].mean_s

    def message_s(edge: Edge) -> float:
        if edge.upstream in source_bytes:
            sent_bytes = source_bytes[edge.upstream]
        elif workers[edge.upstream] is workers[edge.downstream]:
            return 0.0
        else:
            upstream = plan.operator_at(edge.upstream, workers[edge.upstream].name)
            sent_bytes = upstream.message_bytes[edge.downstream]
        return hop_s + link_s(plan, (tiers[edge.upstream], tiers[edge.downstream]), sent_bytes)

    completed_s = completion_times(plan.operators, run_s, message_s)
    return max(at_s for name, at_s in completed_s.items() if not plan.is_of_audit(name)) + hop_s
