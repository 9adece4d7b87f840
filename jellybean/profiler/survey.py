"""Surveys the edges with held-out requests: sample inputs per operator, message sizes, children per fan-out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from jellybean.profiler.accuracy import covering_selections
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.flow import Flow
from jellybean.profiler.workload import Inputs, Workload
from jellybean_solver import EdgeKind

MOST_ROWS = 1000  # held-out rows that are run; of more, these many are spread over all
OTHER_ROWS = 60  # the same for variants other than each operator's first, where no fan-out depends on a variant


@dataclass(frozen=True)
class Survey:
    """Sample inputs of each operator, message sizes, and numbers of children of each fan-out.

    The sample inputs come from the first variants of the upstream operators.
    """

    inputs: dict[str, list[Inputs]]
    message_bytes: dict[tuple[str, str], dict[str, float]]  # (operator, variant) -> downstream -> mean bytes
    children: dict[tuple[str, str, str], float]  # (operator, variant, downstream) of a fan-out -> mean count
    child_shares: dict[
        tuple[str, str], tuple[float, ...]
    ]  # (operator, variant) -> share of outputs with 0, 1, ... rows
    rows: dict[str, list[int]] = field(default_factory=dict)  # operator -> the held-out request of each sample input


def survey(workload: Workload, flow: Flow, most_rows: int = MOST_ROWS) -> Survey:
    """Run held-out requests under selections that cover every variant. ProfileError if an operator gets no input.

    A selection runs each of its rows once, and where numbers of children depend on variants all run the same rows, so
    that every row has equal weight in them.
    """
    first, *others = covering_selections(workload)
    rows_of_others = set(surveyed_rows(workload, most_rows if _has_varying_fan_out(workload) else OTHER_ROWS))
    for request in surveyed_rows(workload, most_rows):
        for selection in (first, *(others if request in rows_of_others else ())):
            flow.answer(request, selection)  # selections that agree upstream share the outputs, which count once
    inputs = {name: list(found) for name, found in flow.inputs.items()}
    rows = {name: list(found) for name, found in flow.input_rows.items()}
    missing = [step.name for step in workload.steps if not inputs.get(step.name)]
    if missing:
        raise ProfileError(f"no held-out request reaches {', '.join(missing)}: a fan-out above gave no children at all")
    sizes: dict[tuple[str, str], dict[str, float]] = {}
    for (operator, variant, downstream), count in flow.traffic.messages.items():
        mean = flow.traffic.message_bytes[operator, variant, downstream] / max(1, count)
        sizes.setdefault((operator, variant), {})[downstream] = mean
    shares = {
        (operator, variant): tuple(counts[rows] / counts.total() for rows in range(max(counts) + 1))
        for (operator, variant, _), counts in flow.traffic.fan_outs.items()
    }
    children = {key: flow.traffic.messages[key] / flow.traffic.runs[key] for key in flow.traffic.fan_outs}
    return Survey(inputs, sizes, children, shares, rows)


def _has_varying_fan_out(workload: Workload) -> bool:
    """True if the rows of a fan-out come from an operator that has several variants, or depends on one that has."""
    varying: set[str] = set()
    for step in workload.steps:
        if len(step.models) > 1 or any(edge.upstream in varying for edge in step.inputs):
            varying.add(step.name)
    return any(edge.kind is EdgeKind.FAN_OUT and edge.upstream in varying for edge in workload.edges)


def surveyed_rows(workload: Workload, most_rows: int) -> list[int]:
    """All held-out rows; of more than `most_rows`, as many evenly spread ones, or the first if operators have states.

    A state needs all rows of its stream that come before, so spread rows would run nearly all.
    """
    total = workload.request_count
    if total <= most_rows or workload.stateful:
        return list(range(min(total, most_rows)))
    return [int(row) for row in np.linspace(0, total - 1, most_rows).round()]
