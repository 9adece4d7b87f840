"""Figures of a workflow that its models or its profiles contradict. No errors, but plans are off by as much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from jellybean.display import formats
from jellybean.documents.checks.model_fit import Models
from jellybean.documents.checks.tensors import Tensor, shape_text
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean_agent import unserved_reason
from jellybean_solver import Edge, EdgeKind

_MOST_TIMES = 2  # a message of up to this many times its tensor is no note: it may have headers
TOLERANCE = 0.05  # relative difference that is no note: figures are rounded, and held-out data are a sample


def ratio_notes(
    workflow: WorkflowDocument, edges: Mapping[str, tuple[Edge, ...]], profiles: ProfilesDocument
) -> Iterator[str]:
    """Notes on edges whose ratio in the workflow differs from the mean of the children in the profiles.

    An operator that fans out several outputs has none, as its profile does not say which of them the children are of.
    """
    fan_outs = [edge for given in edges.values() for edge in given if edge.kind is EdgeKind.FAN_OUT]
    for edge in fan_outs:
        spec = workflow.operators.get(edge.upstream)
        outputs = {other.output for other in fan_outs if other.upstream == edge.upstream}
        if spec is None or len(outputs) != 1:
            continue
        written = next(one for one in workflow.operators[edge.downstream].inputs if one.upstream == edge.upstream)
        for variant in spec.variants:
            profile = profiles.operators.get(edge.upstream, {}).get(variant)
            mean = profile.mean_children if profile is not None else 0.0
            ratio = written.by_variant.get(variant, written.ratio)
            if ratio is None or mean <= 0 or abs(ratio - mean) <= TOLERANCE * mean:
                continue
            of = f" {variant}" if len(spec.variants) > 1 else ""
            yield (
                f"{edge.downstream}: workflow.yaml says ratio {ratio:g} from {edge.upstream}{of}, profiles.yaml has "
                f"{mean:.3g} children; rates and loads of the plan will be off by that much (ratio: measured takes "
                "what was measured)"
            )


def message_notes(workflow: WorkflowDocument, edges: Mapping[str, tuple[Edge, ...]], models: Models) -> Iterator[str]:
    """Notes on sources whose message is smaller or far larger than the tensor of fixed sizes that a model takes.

    Where a model leaves sizes open, as for pictures, texts and files of any length, held-out rows may be padded, so
    they say nothing about the size of a request.
    """
    for name, source in workflow.sources.items():
        reader = _fixed_reader(name, edges, models)
        if reader is None:
            continue
        operator, tensor = reader
        size = np.dtype(tensor.dtype).itemsize * math.prod(size or 1 for size in (tensor.shape or ())[1:])
        if not (1 - TOLERANCE) * size <= source.message_bytes <= _MOST_TIMES * size:
            yield (
                f"sources.{name}.message is {formats.size(source.message_bytes)}, but {operator} takes "
                f"{formats.size(size)} a request ({tensor.dtype} {shape_text((1, *(tensor.shape or ())[1:]))}); prices "
                f"and times of the network will be off by that much: write message: {size} B"
            )


def _fixed_reader(source: str, edges: Mapping[str, tuple[Edge, ...]], models: Models) -> tuple[str, Tensor] | None:
    """An operator that reads a source with a model whose input has fixed sizes, and that input's tensor."""
    for operator, given in edges.items():
        for index, edge in enumerate(given):
            if edge.upstream != source or edge.kind is not EdgeKind.EACH:
                continue
            for model in models.get(operator, {}).values():
                if len(model.inputs) != len(given):
                    continue
                tensor = model.input_for(source, index).tensor
                if tensor.shape and None not in tensor.shape[1:] and not unserved_reason(tensor.dtype):
                    return operator, tensor
    return None
