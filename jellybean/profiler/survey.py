"""Surveys the edges with held-out requests: sample inputs per operator, message sizes, children per fan-out."""

from __future__ import annotations

from dataclasses import dataclass, field

from jellybean.profiler.accuracy import covering_selections
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.flow import Flow
from jellybean.profiler.workload import Inputs, Workload
from jellybean_solver import EdgeKind


@dataclass(frozen=True, slots=True)
class SurveyLimits:
    """Maximum numbers of held-out requests that are run."""

    first_variants: int = 1000  # with the first variant of each operator
    other_variants: int = 60  # with the other variants, if the number of children does not depend on the variant


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


def survey(workload: Workload, flow: Flow, limits: SurveyLimits = SurveyLimits()) -> Survey:
    """Run held-out requests under selections that cover every variant. ProfileError if an operator gets no input."""
    covering = covering_selections(workload)
    total = min(workload.request_count, limits.first_variants)
    for request in range(total):
        flow.answer(request, covering[0])
    inputs = {name: list(found) for name, found in flow.inputs.items()}
    rows = {name: list(found) for name, found in flow.input_rows.items()}
    missing = [step.name for step in workload.steps if not inputs.get(step.name)]
    if missing:
        raise ProfileError(f"no held-out request reaches {', '.join(missing)}: a fan-out above gave no children at all")
    splits = {edge.upstream for edge in workload.edges if edge.kind is EdgeKind.FAN_OUT}
    varied = any(step.name in splits and len(step.models) > 1 for step in workload.steps)
    for request in range(total if varied else min(total, limits.other_variants)):
        for selection in covering[1:]:
            flow.answer(request, selection)
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
