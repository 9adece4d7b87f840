"""Margins: plans that meet their targets although times are longer and rates higher than stated.

Workers are busier by both factors, and links fuller by that of the rates, so a plan may fill less of them; its latency
is judged with the longer times and the higher rates. Workers and links are shared, so of several workflows the largest
margin counts for all (a box of uncertainty: Soyster, 1973).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jellybean_solver.model.multi_workflow import with_slos
from jellybean_solver.model.plan import Plan, PlannedOperator
from jellybean_solver.model.targets import NO_MARGIN, Margin
from jellybean_solver.model.workflow import ServiceTime, Times


def stressed(plan: Plan, margin: Margin | None = None) -> Plan:
    """The plan with longer times and higher rates: by its own margin, or by another one. It states no margin then."""
    factors = plan.margin if margin is None else margin
    if factors == NO_MARGIN:
        return plan
    longer, more = 1.0 + factors.times, 1.0 + factors.rates
    return replace(
        with_slos(plan, lambda _, slo: replace(slo, margin=NO_MARGIN)),
        sources=tuple(replace(source, rate_per_s=more * source.rate_per_s) for source in plan.sources),
        operators=tuple(_slower(operator, longer, more) for operator in plan.operators),
        workers=tuple(
            replace(
                worker,
                rates_per_s={name: more * rate for name, rate in worker.rates_per_s.items()},
                load=factors.work * worker.load,
            )
            for worker in plan.workers
        ),
    )


def _slower(operator: PlannedOperator, longer: float, more: float) -> PlannedOperator:
    service: Mapping[str, Times] = {
        pool: {size: longer_time(time, longer) for size, time in times.items()}
        for pool, times in operator.service.items()
    }
    others = tuple(_slower(one, longer, more) for one in operator.others)
    return replace(operator, service=service, rate_per_s=more * operator.rate_per_s, others=others)


def longer_time(time: ServiceTime, factor: float) -> ServiceTime:
    """A service time so many times as long, with its distribution."""
    quantiles = tuple((share, factor * seconds) for share, seconds in time.quantiles)
    return replace(time, load_s=factor * time.load_s, mean_s=factor * time.mean_s, quantiles=quantiles)
