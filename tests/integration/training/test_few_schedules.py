"""Three schedules on two processes equal one device; all of them, with more devices, are in `test_runtime` (slow)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean_solver.pipeline import count_traffic, make_all_reduce
from tests.integration.training.cases import Train, merged
from tests.integration.training.ranks import run_ranks
from tests.integration.training.reference import one_device, relative_error
from tests.integration.training.sum_cases import SumVectors

torch.set_num_threads(1)
EXACT = 1e-5
UNEVEN = [[[3, 1, 4, 2]], [[2, 2, 1, 5]]]  # two iterations of different batch sizes
SYNCHRONOUS = {
    "1f1b, two replicas' sums by a ring": Train("1f1b", 1, [[[3, 1], [1, 2]], [[1, 1], [4, 1]]], sync="ring"),
    "chimera, clipped": Train("chimera", 2, UNEVEN, clip=0.5),
    "zb-v, recomputed": Train("zb-v", 2, UNEVEN, recompute=True),
}
SUMS = SumVectors("ring", 2, 120)


@pytest.fixture(scope="module")
def results():
    """Results of all cases, run by one start of two ranks."""
    return dict(zip((*SYNCHRONOUS, "sums"), run_ranks(2, [*SYNCHRONOUS.values(), SUMS]), strict=True))


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_synchronous_equals_one_device(results, name):
    train = SYNCHRONOUS[name]
    start = {key: value.detach() for key, value in train.chain().named_parameters(remove_duplicate=False)}
    for iteration, weights in enumerate(one_device(train)):
        assert relative_error(merged(results[name], iteration), weights, start) <= EXACT, iteration
    assert all(of_rank["left"] == 0 for of_rank in results[name] if of_rank)


def test_sums_equal_all_reduce_bit_for_bit(results):
    of_ranks = results["sums"]
    traffic = count_traffic(make_all_reduce("ring", 2), 8.0 * SUMS.size)
    assert all(torch.equal(summed, expected) for summed, expected, _, _ in of_ranks)
    assert sum(sent_bytes for _, _, sent_bytes, _ in of_ranks) == traffic.total_bytes
