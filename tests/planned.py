"""Operators of plans made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean_solver import Edge, PlannedOperator, ServiceTime


def planned_operator(
    name: str,
    inputs: Sequence[Edge],
    variant: str,
    rate_per_s: float,
    service: Mapping[str, ServiceTime],
    message_bytes: Mapping[str, float] | None = None,
    *,
    batch: int = 1,
) -> PlannedOperator:
    """`service`: pool -> what a run takes there, be it of one request or of `batch`. Without a model, or memory."""
    return PlannedOperator(
        name,
        tuple(inputs),
        variant,
        dict.fromkeys(service, batch),
        rate_per_s,
        {pool: {1: time, batch: time} for pool, time in service.items()},
        message_bytes or {},
        {},
    )
