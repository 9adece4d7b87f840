"""Latency and bandwidth between real ranks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.processes.link_speed import LinkSpeed, measure_links  # noqa: E402
from jellybean.training.processes.ranks import Rank  # noqa: E402
from tests.integration.training.ranks import run_ranks  # noqa: E402


class Measure:
    def __init__(self, world: int) -> None:
        self._world = world

    def __call__(self, rank: int) -> LinkSpeed:
        return measure_links(Rank(rank, self._world, torch.device("cpu")))


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_know_the_slowest(world: int) -> None:
    """Twice, as a run may be restarted in the same processes; with three ranks the last has no neighbour to ask."""
    for found in run_ranks(world, [Measure(world), Measure(world)]):
        assert len(set(found)) == 1
        assert 0 < found[0].latency_s < 1
        assert 1e6 < found[0].bytes_per_s < 1e12
        assert found[0].seconds(1e6) == found[0].latency_s + 1e6 / found[0].bytes_per_s
