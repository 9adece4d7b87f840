"""Plans made by hand of which only matters which models their workers hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jellybean_solver import Cost, Edge, ModelRef, Plan, PlannedWorker, Route, ServiceTime, Sharing, Source
from tests import report_plans
from tests.planned import planned_operator

FLEETS = {  # each worker holds another set of models: those of number i before, and after
    "one model in common": lambda i: ([f"a{i}", "all"], [f"b{i}", "all"]),
    "neighbours": lambda i: ([f"a{i}", f"a{i + 1}", "all"], [f"a{i}", f"a{i + 2}", "all"]),
    "by halves": lambda i: ([f"a{i}", "all", "left"[: i % 2 * 4] or "right"], [f"a{i // 2}", f"b{i}", "all"]),
}


def hosting(workers: Mapping[str, Sequence[str]], variants: Mapping[str, str] | None = None) -> Plan:
    """A plan whose workers (`pool-1`) hold these operators; what flows is of no interest."""
    names = sorted({name for names in workers.values() for name in names})
    pools = {worker.rsplit("-", 1)[0] for worker in workers}
    service = dict.fromkeys(pools, ServiceTime(0.01, 0.01))
    operators = tuple(
        replace(
            planned_operator(name, (Edge("camera", name),), (variants or {}).get(name, "v"), 10.0, service),
            memory_bytes=dict.fromkeys(pools, 100.0),
            model=ModelRef(f"{name}.onnx", "ab" * 32),
        )
        for name in names
    )
    planned = tuple(
        PlannedWorker(worker, worker.rsplit("-", 1)[0], "edge", 1.0, Sharing.SHARED, dict.fromkeys(held, 1.0), 0.1)
        for worker, held in workers.items()
    )
    route = {name: next(worker for worker, held in workers.items() if name in held) for name in names}
    return replace(
        report_plans.one_worker(),
        sources=(Source("camera", "edge", 10.0, 1.0),),
        operators=operators,
        workers=planned,
        routes=(Route(1.0, route),),
        cost=Cost(float(len(workers)), 0.0),
    )
