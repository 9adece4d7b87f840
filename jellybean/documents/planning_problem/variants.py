"""A variant's planning figures in each pool, from its profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean.documents.flow import Flow
from jellybean.documents.schema.infrastructure import InfrastructureDocument, WorkerPoolSpec
from jellybean.documents.schema.profiles import (
    BatchProfile,
    VariantProfile,
    latency_statistic,
)
from jellybean.documents.schema.workflow import VariantSpec, WorkflowDocument
from jellybean_solver import (
    EdgeKind,
    ModelRef,
    ServiceTime,
    Times,
    Variant,
    best_batch,
    quantile_mean,
)


def build_variant(
    name: str,
    model: ModelRef | None,
    profile: VariantProfile,
    infrastructure: InfrastructureDocument,
    readers: Sequence[str],
    max_batch: int,
    ratios: Mapping[str, float],
) -> Variant:
    """The solver's variant: service times for batches up to `max_batch` requests, memory for the batches plans use.

    `readers`: operators that read its output. `ratios`: downstream operator -> fan-out ratio, if it depends on the
    variant.
    """
    service: dict[str, Times] = {}
    memory: dict[str, float] = {}
    device_memory: dict[str, float] = {}
    for pool, worker in infrastructure.workers.items():
        batches = profile.latency.get(worker.type or pool)
        if batches is None or worker.count == 0:
            continue
        sizes = [size for size in sorted(batches) if size <= max_batch and _fits(batches[size], size, worker)]
        service[pool] = {size: service_time(batches[size], infrastructure.limits.load_from) for size in sizes}
        used = [batches[size] for size in sizes if size <= best_batch(service[pool])]
        for figures, measured in (
            (memory, [batch.memory_bytes for batch in used]),
            (device_memory, [batch.device_memory_bytes for batch in used]),
        ):
            if known := [size_bytes for size_bytes in measured if size_bytes is not None]:
                figures[pool] = max(known)
    messages = {reader: profile.bytes_to(reader) or 0.0 for reader in readers}
    return Variant(name, service, messages, memory, model, profile.children, ratios, device_memory_bytes=device_memory)


def fan_out_ratios(
    workflow: WorkflowDocument, operator: str, variant: str, profile: VariantProfile
) -> dict[str, float]:
    """Downstream operator -> fan-out ratio of this variant, for fan-outs whose ratio depends on the variant."""
    ratios: dict[str, float] = {}
    for downstream, spec in workflow.operators.items():
        for edge in spec.inputs:
            if edge.upstream == operator and edge.measured:
                ratios[downstream] = profile.mean_children
            elif edge.upstream == operator and edge.by_variant:
                ratios[downstream] = edge.by_variant[variant]
    return ratios


def _fits(measured: BatchProfile, size: int, worker: WorkerPoolSpec) -> bool:
    """True if a batch fits into an empty worker's memories. Size 1 always passes: the solver reports missing memory."""
    pairs = (
        (measured.memory_bytes, worker.memory_bytes),
        (measured.device_memory_bytes, worker.worker_device_memory_bytes),
    )
    return size == 1 or all(loaded is None or limit is None or loaded <= limit for loaded, limit in pairs)


def service_time(measured: BatchProfile, load_from: str) -> ServiceTime:
    """Service time of one batch. If no mean was measured, it is that of the piecewise linear quantile function.

    `load_from`: name of the statistic that planning uses as load (`limits.load_from`).
    """
    load_s = latency_statistic(measured, load_from)
    mean_s = measured.mean_s if measured.mean_s is not None else _mean_of(measured.quantiles)
    return ServiceTime(load_s if load_s is not None else mean_s, mean_s, measured.quantiles)


def _mean_of(quantiles: tuple[tuple[float, float], ...]) -> float:
    """Mean in seconds of the quantile function that the simulator samples from, given (probability, seconds) points.

    The function is linear between the points, constant below the first and extrapolated above the last.
    """
    first, last = quantiles[0][1], quantiles[-1]
    if len(quantiles) == 1:
        return first
    (left, low), (right, high) = quantiles[-2], last
    slope = (high - low) / (right - left)
    return quantile_mean(((0.0, first), *quantiles, (1.0, high + slope * (1.0 - right))))


def counts_rows(operator: str, spec: VariantSpec, flow: Flow) -> bool:
    """True if the rows of a batch can be told apart by request; a variant without a model is planned as if so."""
    edges = [edge for edges in flow.edges.values() for edge in edges]
    fans_out = any(edge.upstream == operator and edge.kind is EdgeKind.FAN_OUT for edge in edges)
    gathers = any(edge.downstream == operator and edge.kind is EdgeKind.GATHER for edge in edges)
    return spec.port_names.can_batch(fans_out=fans_out, gathers=gathers) or not spec.is_served


def readers_by_upstream(flow: Flow) -> Mapping[str, list[str]]:
    """Source or operator -> the operators that read it."""
    readers: dict[str, list[str]] = {}
    for edges in flow.edges.values():
        for edge in edges:
            readers.setdefault(edge.upstream, []).append(edge.downstream)
    return readers


def max_batch_size(
    operator: str, variant: str, workflow: WorkflowDocument, infrastructure: InfrastructureDocument, flow: Flow
) -> int:
    """Largest batch of a variant, in requests; 1 if it gathers or fans out and does not count each request's rows."""
    if not counts_rows(operator, workflow.operators[operator].variants[variant], flow):
        return 1
    limit = infrastructure.limits.batch
    return min(limit, workflow.operators[operator].batch or limit)
