"""Worker types whose figures no profiling run measured: they may describe another device than the type's own."""

from __future__ import annotations

from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.workflow import WorkflowDocument


def never_measured(
    workflow: WorkflowDocument, infrastructure: InfrastructureDocument, profiles: ProfilesDocument
) -> tuple[str, ...]:
    """The worker types with latencies by hand or from another source, in the order of their pools.

    Only rows of variants that `profile` could measure count: those with a model or a function.
    """
    sources: dict[str, bool] = {}  # worker type -> some run measured it
    for operator, variants in profiles.operators.items():
        specs = workflow.operators[operator].variants if operator in workflow.operators else {}
        for variant, profile in variants.items():
            if variant not in specs or (specs[variant].model is None and specs[variant].python is None):
                continue
            for worker_type in profile.latency:
                origin = profile.provenance.latency.get(worker_type)
                is_measured = origin is not None and not origin.by_hand
                sources[worker_type] = sources.get(worker_type, False) or is_measured
    types = dict.fromkeys(pool.type or name for name, pool in infrastructure.workers.items())
    return tuple(name for name in types if sources.get(name) is False)
