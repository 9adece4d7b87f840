"""Which boundaries between stages `compress: auto` compresses (WPipe, Yang et al. 2022, compresses all of them)."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean.documents.training import AUTO, TrainingDocument
from jellybean.training.processes.link_speed import LinkSpeed
from jellybean_solver.pipeline import LayerGraph

COMPRESSED = "bfloat16"  # of compress: auto; the range of float32
_SHARE = 0.5  # bytes of a 16-bit tensor over those of float32


def compressions(
    graph: LayerGraph, layers: Sequence[Sequence[int]], document: TrainingDocument, link: LinkSpeed
) -> tuple[str, ...]:
    """The type in which each boundary's tensors are sent.

    With `auto`, compressed where the bandwidth saves more time than both sides need to convert.
    """
    if document.compress != AUTO:
        return (document.compress,) * (len(layers) - 1)
    sizes = graph.boundary_bytes(layers)
    return tuple(
        COMPRESSED if transfer_s(size, COMPRESSED, link) < transfer_s(size, "none", link) else "none" for size in sizes
    )


def transfer_s(size_bytes: float, compress: str, link: LinkSpeed) -> float:
    """Seconds of one message of float32 tensors, conversion included."""
    if compress == "none":
        return link.seconds(size_bytes)
    return link.seconds(_SHARE * size_bytes) + link.convert_s + link.convert_s_per_byte * size_bytes
