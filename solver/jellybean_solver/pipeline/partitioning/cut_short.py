"""The end of a partitioner's search at the time limit of the work, with the best partition that it has by then."""

from __future__ import annotations

from jellybean_solver.pipeline.partitioning.stages import PartitionStage
from jellybean_solver.time_limit import work_limit

MANY = 12  # cuts; a search over fewer takes milliseconds
Found = tuple[float, tuple[PartitionStage, ...]]  # objective in seconds, and stages


class CutShortError(Exception):
    """The time limit ended a search. `found`: its best partition; None without one."""

    def __init__(self, found: Found | None = None) -> None:
        super().__init__()
        self.found = found


def is_out_of_time() -> bool:
    """True once the time limit of the work has passed."""
    return work_limit().left() == 0.0


def check_time(cuts: int = MANY) -> None:
    """CutShortError once the time limit of the work has passed. Searches call it between steps of milliseconds.

    `cuts`: number of those searched. A search over few ends anyway, so that there is a partition whatever the limit.
    """
    if cuts >= MANY and is_out_of_time():
        raise CutShortError
