"""Checks that all ranks read the same rows: the inputs of one rank and the targets of another must belong together."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean.training.data.rows import RowDigest
from jellybean.training.errors import TrainingError
from jellybean.training.processes.ranks import gather_from_ranks


def check_same_rows(digests_here: Sequence[RowDigest | None], name: str, when: str) -> None:
    """TrainingError on all ranks if ranks that must have read the same rows have not. A collective call.

    `digests_here`: this rank's digests. `name`: of the data source.
    """
    first: dict[str, tuple[int, str]] = {}
    for rank, digests in enumerate(gather_from_ranks([one for one in digests_here if one is not None])):
        for readers, digest in digests:
            before = first.setdefault(readers, (rank, digest))
            if before[1] != digest:
                raise TrainingError(
                    f"{name} is not deterministic: ranks {before[0]} and {rank} read different rows {when}, so that "
                    "inputs would meet targets of other rows. Every process calls it by itself: give random "
                    "generators a fixed seed, and sort what a folder lists"
                )
