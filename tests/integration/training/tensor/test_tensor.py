"""Training with split layers equals one device: tensor parallelism, CNN hybrid, with pipelines and replicas."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import OptimizerSpec, SyncSpec
from jellybean.documents.training.tensor import TensorSpec
from tests.integration.training.ranks import run_ranks
from tests.integration.training.tensor.border_case import BORDERS, EACH, BorderPasses
from tests.integration.training.tensor.tensor_case import (
    TOKENS,
    WIDTH,
    WORDS,
    CountedLayer,
    DestroyedGroups,
    Split,
    encoder,
    folded_heads,
    folded_heads_with_dropout,
    in_plain_torch,
    pictures_net,
    single_words,
    words_with_dropout,
)

torch.set_num_threads(1)
TWO, FOUR = TensorSpec(ways=2), TensorSpec(ways=4)
HYBRID = {ways: TensorSpec(ways=ways, conv="data", linear="tensor") for ways in (2, 4)}
ADAM = OptimizerSpec(name="adam", lr=0.01)
NAMED = TensorSpec(
    ways=2,
    layers={
        "*": "replicated",
        "embed": "vocabulary",
        "layers.0.up": "rows",
        "layers.1.down": "columns",
        "layers.1.qkv": "columns",
    },
)
CASES = {
    2: {
        "words": {"tensor": TWO},
        "single precision": {"tensor": TWO, "model": single_words},
        "named layers": {"tensor": NAMED},
        "torch's encoder layer": {"tensor": TWO, "model": encoder},
        "folded heads": {"tensor": TWO, "model": folded_heads},
        "clipped, averaged": {"tensor": TWO, "more": {"clip": 0.3, "ema": 0.9}},
        "recomputed": {"tensor": TWO, "more": {"recompute": True}},
        "chosen after trials": {
            "tensor": TWO,
            "model": pictures_net,
            "more": {"parallel": "auto", "schedule": "auto", "microbatches": None},
        },
        "hybrid": {"tensor": HYBRID[2], "model": pictures_net},
        "hybrid, clipped, averaged": {
            "tensor": HYBRID[2],
            "model": pictures_net,
            "more": {"clip": 0.1, "ema": 0.9},
        },
    },
    4: {
        "words": {"tensor": FOUR},
        "two devices": {"tensor": TWO, "devices": 2},
        "two devices, split backward": {"tensor": TWO, "devices": 2, "more": {"schedule": "zb-h1", "clip": 0.3}},
        "two devices, chimera": {"tensor": TWO, "devices": 2, "more": {"schedule": "chimera", "microbatches": 4}},
        "two devices, interleaved": {
            "tensor": TWO,
            "devices": 2,
            "more": {"schedule": "interleaved", "chunks": 2, "microbatches": 4},
        },
        "two replicas": {"tensor": TWO, "replicas": 2, "more": {"clip": 0.3}},
        "two replicas, ring": {"tensor": TWO, "replicas": 2, "more": {"sync": SyncSpec(way="ring")}},
        "hybrid": {"tensor": HYBRID[4], "model": pictures_net, "more": {"optimizer": ADAM}},
        "hybrid, ring": {"tensor": HYBRID[4], "model": pictures_net, "more": {"sync": SyncSpec(way="ring")}},
        "hybrid, two devices": {"tensor": HYBRID[2], "model": pictures_net, "devices": 2},
        "hybrid, two replicas, clipped": {
            "tensor": HYBRID[2],
            "model": pictures_net,
            "replicas": 2,
            "more": {"clip": 0.1, "sync": SyncSpec(way="tree")},
        },
    },
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of all cases of a number of ranks, run by one start of them."""

    @cache
    def run(world):
        settings = CASES[world].items()
        cases = {name: Split(folder=str(tmp_path_factory.mktemp("run")), **given) for name, given in settings}
        ran = run_ranks(world, list(cases.values()))
        return {name: (case, own) for (name, case), own in zip(cases.items(), ran, strict=True)}

    return run


@pytest.mark.parametrize(
    ("world", "name"),
    [
        pytest.param(world, name, marks=pytest.mark.nightly if world > 2 else pytest.mark.slow)
        for world, named in CASES.items()
        for name in named
    ],
)
def test_training_with_split_layers_equals_one_device(found, world, name):
    case, ranks = found(world)[name]
    expected = in_plain_torch(case)
    tolerance = 1e-5 if case.model is single_words else 1e-10
    assert all(own["losses"] == ranks[0]["losses"] and own["tests"] == ranks[0]["tests"] for own in ranks)
    assert ranks[0]["losses"] == pytest.approx(expected["losses"], rel=tolerance)
    if case.document.ema is None:
        assert [loss for loss, _ in ranks[0]["tests"]] == pytest.approx(expected["tests"], rel=tolerance)
    weights = ranks[0]["weights"]
    assert weights.keys() == expected["weights"].keys()
    for key, value in expected["weights"].items():
        assert float((weights[key] - value).norm() / value.norm()) < tolerance, key


@pytest.mark.slow
def test_candidates_with_split_layers_are_tried(found):
    """The choice is a number of micro-batches, whose time was measured on both processes."""
    _, ranks = found(2)["chosen after trials"]
    fastest, _, counts = ranks[0]["note"].partition(" (")
    assert fastest.startswith("2 processes are fastest: 1f1b, 1 device x 1 replica x tensor 2, ")
    assert "predicted" not in fastest
    assert counts in ("2 candidates, 1 of them tried)", "2 candidates, all of them tried)")
    assert ranks[0]["layers"] == {"6": "columns", "8": "rows"}


@pytest.mark.nightly
def test_each_process_has_its_part_of_split_weights(found):
    _, ranks = found(4)["words"]
    for own in ranks:
        assert own["shapes"]["embed.weight"] == (WORDS // 4, WIDTH)
        assert own["shapes"]["layers.0.qkv.weight"] == (3 * WIDTH // 4, WIDTH)
        assert own["shapes"]["layers.0.qkv.bias"] == (3 * WIDTH // 4,)
        assert own["shapes"]["layers.0.back.weight"] == (WIDTH, WIDTH // 4)
        assert own["shapes"]["layers.0.back.bias"] == (WIDTH,)
        assert own["shapes"]["norm.weight"] == (WIDTH,)


@pytest.mark.slow
def test_layers_by_name_are_split_as_named_and_no_others(found):
    _, ranks = found(2)["named layers"]
    assert ranks[0]["layers"] == {
        "embed": "vocabulary",
        "layers.0.up": "rows",
        "layers.1.down": "columns",
        "layers.1.qkv": "columns",
    }


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def counted(request):
    """A number of ranks, a counted layer and the borders' passes on them."""
    return request.param, *run_ranks(request.param, [CountedLayer(), BorderPasses()])


def test_a_transformer_layer_sends_two_all_reduces_each_way(counted):
    world, layers, _ = counted
    case = CountedLayer()
    for own in layers:
        for way in ("forward", "backward"):
            assert list(own[way].values()) == [2], own
            assert own[f"{way} bytes"] == 2 * 2 * (world - 1) / world * case.rows * TOKENS * WIDTH * 4
            assert own["priced"][way] == (2, own[f"{way} bytes"])


def _inner_product(kind, values, others):
    """Of a value that all ranks have whole: once, and it is equal on all; of values of each rank: over all ranks."""
    products = [float((value * other).sum()) for value, other in zip(values, others, strict=True)]
    if kind == EACH:
        return sum(products)
    assert all(torch.equal(value, values[0]) for value in values)
    assert all(torch.equal(other, others[0]) for other in others)
    return products[0]


@pytest.mark.parametrize("name", BORDERS)
def test_the_backward_of_a_border_is_conjugate_to_its_forward(counted, name):
    """<border(x), g> = <x, gradient of x>, over all ranks."""
    _, _, ranks = counted
    passes = [own[name] for own in ranks]
    before, after = BORDERS[name]
    outputs = _inner_product(after, [one.output for one in passes], [one.output_gradient for one in passes])
    values = _inner_product(before, [one.value for one in passes], [one.gradient for one in passes])
    assert outputs == values


@pytest.mark.slow
def test_groups_of_split_layers_are_destroyed_with_the_others():
    assert run_ranks(4, [DestroyedGroups()])[0] == [[[True] * 3, [False] * 3]] * 4


@pytest.mark.slow
def test_torchs_attention_layer_is_split_by_heads(found):
    _, ranks = found(2)["torch's encoder layer"]
    assert ranks[0]["layers"] == {
        "0": "vocabulary",
        "1.self_attn.in_proj_weight": "columns",
        "1.self_attn.out_proj": "rows",
        "1.linear1": "columns",
        "1.linear2": "rows",
    }


@pytest.mark.slow
def test_heads_that_are_folded_into_the_rows_are_split(found):
    _, ranks = found(2)["folded heads"]
    heads = {"query": "columns", "key": "columns", "value": "columns", "back": "rows"}
    named = {f"{layer}.{name}": split for layer in (1, 2) for name, split in heads.items()}
    assert ranks[0]["layers"] == {"0": "vocabulary", **named}
    assert ranks[0]["shapes"]["1.query.weight"] == (WIDTH // 2, WIDTH)


@pytest.mark.parametrize("model", [pytest.param(words_with_dropout, marks=pytest.mark.slow), folded_heads_with_dropout])
def test_dropout_is_that_of_one_device(tmp_path, model):
    """Micro-batches have 8, 7 and 7 rows, and the model is traced with 3."""
    cases = [Split(str(tmp_path / str(ways)), TensorSpec(ways=ways), model) for ways in (1, 2)]
    (one,), (two, _) = run_ranks(1, cases[:1])[0], run_ranks(2, cases[1:])[0]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-10)
    plain = in_plain_torch(cases[0])
    assert one["losses"][0] != pytest.approx(plain["losses"][0], rel=1e-4)  # it does drop
