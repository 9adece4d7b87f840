"""Checks that all ranks read the same rows: the inputs of one rank and the targets of another must belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from jellybean.training.data.rows import RowDigest
from jellybean.training.errors import TrainingError


def check_same_rows(own: Sequence[RowDigest | None], name: str, when: str) -> None:
    """TrainingError on all ranks if ranks that must have read the same rows have not. A collective call.

    `own`: this rank's digests. `name`: of the data source.
    """
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, [one for one in own if one is not None])
    first: dict[str, tuple[int, str]] = {}
    for rank, digests in enumerate(told):
        for readers, digest in digests:
            before = first.setdefault(readers, (rank, digest))
            if before[1] != digest:
                raise TrainingError(
                    f"{name} is not deterministic: ranks {before[0]} and {rank} read different rows {when}, so that "
                    "inputs would meet targets of other rows. Every process calls it by itself: give random "
                    "generators a fixed seed, and sort what a folder lists"
                )
