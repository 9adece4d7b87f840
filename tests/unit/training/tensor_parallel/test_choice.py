"""Which layers are split is chosen from the graph; layers that cannot be split as named are refused with the reason."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn

from jellybean.pipeline import TRACERS, CallArguments, graph_facts, trace
from jellybean.training import TrainingError, choose_splits
from jellybean.training.tensor_parallel.layouts import Split
from jellybean.training.tensor_parallel.operations import (
    embedding_call,
    has_convolutions,
    parameter_names,
)


class Attention(nn.Module):
    """Heads from three layers; `across` mixes them before the last one."""

    def __init__(self, heads: int = 4, *, across: bool = False) -> None:
        super().__init__()
        self.heads, self.across = heads, across
        self.query, self.key, self.value, self.back = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x):
        rows, tokens, _ = x.shape
        heads = [
            layer(x).view(rows, tokens, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(rows, tokens, 12)
        return self.back(mixed.softmax(-1) if self.across else mixed)


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 12), nn.LayerNorm(12), nn.Linear(12, 6), nn.Tanh())


def choose(module, ways=2, named=None, tracer="torch.fx", *, by_rows=False, given=None):
    arguments = CallArguments.of((torch.randn(3, 5, 12) if given is None else given,))
    traced = trace(module, arguments, tracer=tracer)
    facts = graph_facts(traced, arguments.tensors)
    found = choose_splits(traced.graph, facts, ways, named or {}, by_rows=by_rows)
    return {name: split.value for name, split in found.layers.items()}, found.weights


@pytest.mark.parametrize("tracer", TRACERS)
def test_pairs_of_layers_are_split_by_columns_then_rows_and_lone_ones_are_not(tracer):
    layers, weights = choose(chain(), tracer=tracer)
    assert layers == {"0": "columns", "2": "rows"}
    assert weights == {"0.weight": Split(0), "0.bias": Split(0), "2.weight": Split(1)}


@pytest.mark.parametrize("tracer", TRACERS)
def test_attention_is_split_by_heads_together(tracer):
    layers, _ = choose(Attention(), tracer=tracer)
    assert layers == {"query": "columns", "key": "columns", "value": "columns", "back": "rows"}


@pytest.mark.parametrize("module", [Attention(3), Attention(across=True)])
def test_attention_is_whole_if_heads_do_not_divide_or_are_mixed(module):
    with pytest.raises(TrainingError, match="no layer can be split over 2 processes"):
        choose(module)


class Residual(nn.Module):
    """Blocks of width 12 and 20, with what comes before and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(12, 12), nn.Linear(12, 3)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"fc1": nn.Linear(12, 20), "fc2": nn.Linear(20, 12)}) for _ in range(5)
        )

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block["fc2"](torch.relu(block["fc1"](x)))
        return self.head(x)


def test_the_sizes_that_do_not_divide_are_named():
    with pytest.raises(TrainingError, match=r"over 8 processes: 12 and 20, the sizes of the layers, are not"):
        choose(Residual(), 8)
    with pytest.raises(TrainingError, match=r"3, 12 and 20, the sizes of the layers, are not divisible by 7$"):
        choose(Residual(), 7, by_rows=True)
    with pytest.raises(TrainingError, match=r"divisible by 2, but the heads or groups between them are not"):
        choose(Attention(3))
    with pytest.raises(TrainingError, match=r"there is no pair of linear layers .* and no vocabulary; name layers"):
        choose(nn.Sequential(nn.Linear(12, 12)))


def test_a_pattern_that_matches_nothing_lists_every_layer():
    with pytest.raises(TrainingError, match=r"it has embed, blocks\.\*\.fc1, blocks\.\*\.fc2, head$"):
        choose(Residual(), named={"nosuch.*": "rows"})


@pytest.mark.parametrize("tracer", TRACERS)
def test_convolutions_are_those_of_modules_and_functions(tracer):
    class Function(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(4, 5, 3))

        def forward(self, x):
            return nn.functional.conv1d(x, self.kernel)

    arguments = CallArguments.of((torch.randn(3, 5, 12),))
    models = {Function(): True, nn.Conv1d(5, 4, 3): True, chain(): False}
    for model, convolutions in models.items():
        assert has_convolutions(trace(nn.Sequential(model), arguments, tracer=tracer).graph) is convolutions


def test_the_last_pattern_counts_and_other_layers_are_chosen():
    layers, weights = choose(chain(), named={"*": "replicated", "4": "columns", "0": "rows"})
    assert layers == {"4": "columns", "0": "rows"}
    assert weights["0.weight"] == Split(1)
    assert "0.bias" not in weights
    assert choose(chain(), named={"4": "columns"})[0] == {"4": "columns", "0": "columns", "2": "rows"}


def test_by_rows_all_layers_that_divide_are_split_by_columns():
    assert choose(chain(), 4, by_rows=True)[0] == {"0": "columns", "2": "columns"}  # 6 outputs do not divide


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"4": "columns"}, "4 cannot be split by columns: its 6 outputs are not divisible by 4"),
        ({"2": "vocabulary"}, "2 cannot be split by vocabulary: it is a linear layer"),
        ({"0": "rows"}, None),
        ({"first": "rows"}, "'first' matches no linear layer and no embedding of the model; it has 0, 2, 4"),
    ],
)
def test_what_cannot_be_split_as_named_is_refused_with_the_reason(named, reason):
    if reason is None:
        assert choose(chain(), 4, named)[0]["0"] == "rows"
        return
    with pytest.raises(TrainingError, match=reason):
        choose(chain(), 4, named)


def test_a_weight_that_something_else_reads_is_whole():
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(12, 8), nn.Linear(8, 12)

        def forward(self, x):
            return self.two(torch.relu(self.one(x))) + self.one.weight.square().sum()

    with pytest.raises(TrainingError, match="no layer can be split"):
        choose(Penalised())
    with pytest.raises(TrainingError, match=r"one cannot be split by columns: .* needs all of it"):
        choose(Penalised(), named={"one": "columns"})


def test_an_embedding_and_a_head_that_share_a_weight_are_split_by_vocabulary():
    class Words(nn.Module):
        def __init__(self, words: int) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(words, 12), nn.Linear(12, words, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, words):
            return self.head(self.embed(words))

    words = torch.randint(0, 9, (3, 5))
    assert choose(Words(10), given=words) == ({"embed": "vocabulary"}, {"embed.weight": Split(0)})
    with pytest.raises(TrainingError, match="its 9 rows are not divisible by 2"):
        choose(Words(9), named={"embed": "vocabulary"}, given=words)


def test_layers_that_share_a_bias_are_whole_both_of_them():
    layers = [nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 12), nn.LayerNorm(12)]
    net = nn.Sequential(*layers, nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    net[4].bias = net[0].bias
    assert choose(net)[0] == {"6": "columns", "8": "rows"}
    for name, other in (("0", "4"), ("4", "0")):
        with pytest.raises(TrainingError, match=f"{name} cannot be split by columns: its bias is shared with {other}"):
            choose(net, named={name: "columns"})


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize(("asked", "row"), [(-1, 8), (-3, 6), (2, 2), (None, None)])
def test_the_padding_row_of_torch_s_function_counts_from_the_end_if_negative(tracer, asked, row):
    class LookedUp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(9, 12))

        def forward(self, words):
            return nn.functional.embedding(words, self.weight, padding_idx=asked)

    graph = trace(LookedUp(), CallArguments.of((torch.randint(0, 9, (3, 5)),)), tracer=tracer).graph
    calls = [embedding_call(graph, node, parameter_names(graph)) for node in graph.graph.nodes]
    assert [call.padding for call in calls if call is not None] == [row]
