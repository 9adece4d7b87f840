"""Children of a fan-out, round-robin over identical workers instead of all to the one on their request's route.

A frame with eighteen cars, all classified by one worker, waits for eighteen runs or for large batches; spread over nine
workers it waits for two. Workers are identical here if they run the same variant in one pool at the same planned rate:
then each still gets its planned share, in the same tier and with the same accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.workflow import EdgeKind

GOLDEN = (5**0.5 - 1) / 2
RATE_TOLERANCE = 1e-6  # relative: planned rates closer than this are equal
Path = Sequence[tuple[int, int]]  # of a child: (index, count) for each open fan-out


def child_operators(plan: Plan) -> tuple[str, ...]:
    """Operators below a fan-out that no gather has closed, in topological order."""
    depth = {source.name: 0 for source in plan.sources}
    for operator in plan.operators:
        edge = operator.inputs[0]
        change = {EdgeKind.EACH: 0, EdgeKind.FAN_OUT: 1, EdgeKind.GATHER: -1}[edge.kind]
        depth[operator.name] = depth[edge.upstream] + change
    return tuple(operator.name for operator in plan.operators if depth[operator.name] > 0)


def identical_workers(plan: Plan) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Operator below a fan-out -> groups of two or more identical workers; empty for a plan with several sites."""
    found: dict[str, tuple[tuple[str, ...], ...]] = {}
    for name in () if plan.sites else child_operators(plan):
        groups: dict[tuple[str, str], list[list[str]]] = {}
        for worker in plan.workers:
            rate = worker.rates_per_s.get(name, 0.0)
            if rate <= 0.0:
                continue
            known = groups.setdefault((worker.pool, plan.operator_at(name, worker.name).variant), [])
            near = next((own for own in known if _is_equal(plan.worker_by_name[own[0]].rates_per_s[name], rate)), None)
            if near is None:
                known.append([worker.name])
            else:
                near.append(worker.name)
        several = tuple(tuple(own) for known in groups.values() for own in known if len(own) > 1)
        if several:
            found[name] = several
    return found


def _is_equal(rate: float, other: float) -> bool:
    return abs(rate - other) <= RATE_TOLERANCE * max(rate, other)


def round_robin_offset(number: int) -> float:
    """Where in [0, 1) of a group the round of a request's children begins, by the request's number.

    Multiples of the golden ratio are spread evenly, so that requests with few children begin all over the round.
    """
    return number * GOLDEN % 1.0


def child_worker(group: Sequence[str], offset: float, path: Path) -> str:
    """The worker of a child: as many places after the request's offset as its index says."""
    return group[(int(offset * len(group)) + sum(index for index, _ in path)) % len(group)]


def spread_complaints(plan: Plan) -> list[str]:
    """Why a plan's groups are not of identical workers; empty if they are."""
    alike = identical_workers(plan)
    return [
        f"spread: {', '.join(group)} are not identical for {name}"
        for name, groups in plan.spread.items()
        for group in groups
        if not any(set(group) <= set(own) for own in alike.get(name, ()))
    ]


def groups_by_worker(plan: Plan) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """(operator, worker) -> the group over which children are spread, where they are."""
    return {(name, worker): group for name, groups in plan.spread.items() for group in groups for worker in group}
