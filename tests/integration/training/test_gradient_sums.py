"""Sums of gradients by messages equal all_reduce, each way and on any number of processes; bytes equal the counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import MESSAGE_WAYS, TORCH, SyncSpec
from jellybean.training.collectives.buffer_memory import sum_buffer_bytes
from jellybean_solver.pipeline import count_traffic, make_all_reduce
from tests.integration.training.cases import Train, merged
from tests.integration.training.nets import cut_evenly
from tests.integration.training.ranks import run_ranks
from tests.integration.training.reference import one_device, relative_error
from tests.integration.training.sum_cases import BufferBytes, Overlap, SumVectors, TwoSumsAtOnce

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
BF16 = torch.bfloat16
WAYS = list(MESSAGE_WAYS)
VECTORS = {
    (way, workers, size): SumVectors(way, workers, size)
    for way in WAYS
    for workers in (2, 3, 4)
    for size in (0, 1, 5, 120, 12 * 333, 4567)
} | {(way, 4, 3_000_000): SumVectors(way, 4, 3_000_000, small=False) for way in WAYS}
AT_ONCE = {
    (way, name): TwoSumsAtOnce(way, members)
    for way in WAYS
    for name, members in {"overlapping": ((0, 1, 2), (1, 2, 3)), "same": ((0, 1, 2, 3), (0, 1, 2, 3))}.items()
}
BUFFERS = {
    (way, workers, bucket_bytes): BufferBytes(way, workers, layers, bucket_bytes)
    for way in WAYS
    for workers in (2, 3, 4)
    for bucket_bytes, layers in {4000: (1000, 400, 200), 4096: (1100,), 64 * 2**20: (6 * 2**20, 2 * 2**20)}.items()
}
OVERLAP = {way: Overlap(way) for way in WAYS}
TWO_REPLICAS = [[[3, 1, 4, 2], [1, 2, 2, 6]], [[2, 2, 1, 5], [1, 1, 1, 1]]]
TRAINED = {
    "three replicas": Train("1f1b", 1, [[[3, 1], [1, 2], [2, 2]], [[1, 1], [4, 1], [2, 3]]]),
    "stages of two replicas, tied": Train("1f1b", 2, TWO_REPLICAS),
    "chimera's two copies, tied": Train("chimera", 4, [[[3, 1, 4, 2]], [[2, 2, 1, 5]]]),
    "chimera and replicas, tied, clipped": Train("chimera", 2, TWO_REPLICAS, clip=0.5),
    "split backward": Train("zb-v", 2, TWO_REPLICAS),
    "several stages a device, recomputed": Train("interleaved", 2, TWO_REPLICAS, recompute=True),
    "without a flush": Train("pipedream-2bw", 2, [[[1, 2] * 4, [2, 2] * 4]], tied=False),
    "master copies": Train("1f1b", 2, TWO_REPLICAS, tied=False, single=True, precision=BF16, short=BF16),
}


def _by(way: str, train: Train) -> Train:
    return Train(**{**vars(train), "sync": way})


@pytest.fixture(scope="module")
def found():
    """Results of all cases, run by one start of four ranks."""
    trained = {(way, name): _by(way, train) for name, train in TRAINED.items() for way in (TORCH, *MESSAGE_WAYS)}
    groups = [VECTORS, AT_ONCE, OVERLAP, trained, BUFFERS]
    results = iter(run_ranks(4, [case for group in groups for case in group.values()]))
    return [{key: next(results) for key in group} for group in groups]


@pytest.mark.parametrize("key", VECTORS, ids=str)
def test_sums_of_whole_numbers_equal_all_reduce_bit_for_bit(found, key):
    way, workers, size = key
    results = [own for own in found[0][key] if own is not None]
    assert len(results) == workers
    for summed, expected, _, numbers in results:
        assert torch.equal(summed, expected)
        assert torch.equal(numbers, results[0][3])  # of any numbers all workers get the same bits
    traffic = count_traffic(make_all_reduce(way, workers), 8.0 * size)
    sent = [sent_bytes for _, _, sent_bytes, _ in results]
    assert sum(sent) == traffic.total_bytes
    if size % 12 == 0:  # chunks of equal size
        assert sent == list(traffic.sent)


@pytest.mark.parametrize("key", AT_ONCE, ids=str)
def test_ranks_may_start_the_sums_of_two_groups_in_any_order(found, key):
    members = AT_ONCE[key].members
    for rank, turns in enumerate(found[1][key]):
        for turn, sums in enumerate(turns):
            for stage, value in enumerate(sums):
                ranks = members[stage] if rank in members[stage] else (rank,)
                assert torch.equal(value, torch.full((3, 500), sum(10.0**one for one in ranks) * (1 + stage + turn)))


@pytest.mark.parametrize("key", BUFFERS, ids=str)
def test_the_predicted_memory_is_that_of_the_rank_with_most_buffers(found, key):
    case = BUFFERS[key]
    sync = SyncSpec(way=case.way, bucket=case.bucket_bytes)
    predicted = sum_buffer_bytes(sync, case.workers, [4.0 * size for size in case.layers], on_cpu=True)
    assert predicted == max(own for own in found[4][key] if own is not None)


@pytest.mark.parametrize("way", WAYS)
def test_a_bucket_is_summed_while_the_backward_runs(found, way):
    for opened, gradients, expected in found[2][way]:
        assert opened
        assert relative_error(gradients, expected, {name: torch.zeros_like(v) for name, v in expected.items()}) < 1e-12


def _start(train: Train) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in train.chain().named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("way", WAYS)
def test_training_equals_all_reduce_and_one_device(found, way, name):
    train = TRAINED[name]
    expected, got = (merged(found[3][one, name]) for one in (TORCH, way))
    tolerance = 1e-2 if train.short else 1e-9
    assert relative_error(got, expected, _start(train)) <= tolerance
    if train.schedule.flushes and not train.short:
        assert relative_error(got, one_device(train)[-1], _start(train)) <= 1e-9


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("way", WAYS)
def test_bytes_of_training_are_those_of_the_counts(found, way, name):
    """Each stage's gradients over its copies, each shared weight's over the ranks that hold it, in every update."""
    train, replicas = TRAINED[name], len(TRAINED[name].sizes[0])
    schedule = train.schedule
    cut = cut_evenly(train.chain(), schedule.stages, (torch.zeros(3, 6, dtype=train.dtype),))
    updates = len(train.sizes) * schedule.microbatches // schedule.period

    def total_bytes(stages: list[int], size_bytes: float) -> float:
        devices = {places[stage] for places in schedule.device_of for stage in stages}
        return count_traffic(make_all_reduce(way, replicas * len(devices)), size_bytes).total_bytes

    parameters = [dict(stage.module.named_parameters()) for stage in cut.stages]
    expected = sum(total_bytes([n], sum(map(_bytes, own.values()))) for n, own in enumerate(parameters))
    for names in cut.tied.values():
        stage, weight = next(iter(names.items()))
        expected += total_bytes(list(names), _bytes(parameters[stage][weight]))
    assert sum(own["sent_bytes"] for own in found[3][way, name] if own) == expected * updates
    assert all(own["sent_bytes"] is None for own in found[3][TORCH, name] if own)


def _bytes(value: torch.Tensor) -> float:
    return float(value.nbytes)
