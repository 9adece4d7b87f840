"""Memory that sums of gradients take beside the gradients: buckets and receive buffers, or torch's flat copy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from jellybean.documents.training.run import TORCH, SyncSpec
from jellybean.training.collectives.interpreter import MessageSettings
from jellybean_solver.pipeline import make_all_reduce

_ELEMENT_BYTES = 4  # of a gradient


def sum_buffer_bytes(sync: SyncSpec, workers: int, gradient_bytes: Sequence[float], *, on_cpu: bool) -> float:
    """Bytes of device memory for the sum of a stage's gradients over `workers` ranks, of the rank with most buffers.

    `gradient_bytes`: by layer; a larger gradient than a bucket is taken as large as its layer. `on_cpu`: the stage is
    in host memory, where the buffers of sums by messages are; those of `torch` are where the stage is.
    """
    total_bytes = sum(gradient_bytes)
    if workers < 2 or not total_bytes or (sync.way != TORCH and not on_cpu):
        return 0.0
    if sync.way == TORCH:
        return total_bytes
    largest_bytes = min(total_bytes, max(sync.bucket_bytes, *gradient_bytes))
    return total_bytes + _receive_buffer_bytes(sync.way, workers, math.ceil(largest_bytes / _ELEMENT_BYTES))


def _receive_buffer_bytes(way: str, workers: int, elements: int) -> float:
    messages, chunks = _largest_round(way, workers)
    segments, size_bytes = MessageSettings().segments(elements, _ELEMENT_BYTES, chunks)
    return float(segments * messages * size_bytes)


@lru_cache(maxsize=32)
def _largest_round(way: str, workers: int) -> tuple[int, int]:
    """(most messages that a participant adds in a round, chunks) of an all-reduce."""
    made = make_all_reduce(way, workers)
    adds = [Counter(one.receiver for one in transfers if one.reduce) for transfers in made.rounds]
    return max(max(each.values(), default=0) for each in adds), made.chunks
