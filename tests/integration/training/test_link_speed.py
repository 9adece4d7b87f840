"""Latency and bandwidth between real ranks."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import LinkSpeed, Rank
from jellybean.training.processes.link_speed import cost_of_messages, measure_links
from tests.integration.training.ranks import run_ranks


class Measure:
    def __init__(self, world: int) -> None:
        self._world = world

    def __call__(self, rank: int) -> LinkSpeed:
        return measure_links(Rank(rank, self._world, torch.device("cpu")))


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_know_the_slowest(world: int) -> None:
    """Twice, as groups and threads of the first must be gone; with three ranks the middle one has two neighbours."""
    for found in run_ranks(world, [Measure(world), Measure(world)]):
        assert len(set(found)) == 1
        assert 0 < found[0].latency_s < math.inf
        assert 0 < found[0].bytes_per_s < math.inf
        assert found[0].seconds(1e6) == found[0].latency_s + 1e6 / found[0].bytes_per_s


def test_latency_and_bandwidth_from_two_messages():
    """A message of 4 KiB and one of 4 MiB."""
    latency_s, s_per_byte = cost_of_messages(1e-3, 1e-3 + (4 * 2**20 - 4 * 2**10) / 1e9)
    assert (latency_s, 1 / s_per_byte) == (1e-3, pytest.approx(1e9))
    assert cost_of_messages(5e-3, 4e-3)[1] == pytest.approx(4e-3 / (4 * 2**20 - 4 * 2**10))
