"""Chooses which weights of a model are split over a tensor group, from its graph; or takes what the document names.

A pair of linear layers is split by columns, then by rows, if all operations between them can work on parts: an MLP, or
attention by heads. It costs one all-reduce forward and one backward, without a gather (Shoeybi et al. 2019). Embeddings
are split by vocabulary, with a head that shares their weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from itertools import permutations
from typing import Any

from torch import fx, nn

from jellybean.pipeline.torch_graph import GraphFacts
from jellybean.pipeline.torch_trace import attribute
from jellybean.training.errors import TrainingError
from jellybean.training.tensor_parallel.layouts import Split
from jellybean.training.tensor_parallel.operations import (
    EmbeddingCall,
    LinearCall,
    embedding_call,
    linear_call,
    parameter_names,
)
from jellybean.training.tensor_parallel.rules import Call, Effect, Layout, Needs, outcome

FUSED = (1, 3, 2)  # projections that a linear layer may compute at once: one; queries, keys, values; gate and value


class LayerSplit(Enum):
    """How a layer is split: its outputs, its inputs, its vocabulary, or not at all."""

    COLUMNS = "columns"
    ROWS = "rows"
    VOCABULARY = "vocabulary"
    REPLICATED = "replicated"


@dataclass(frozen=True)
class SplitChoice:
    """`weights`: how each split parameter is split, by name. `layers`: how each layer is, split ones only."""

    weights: dict[str, Split] = field(default_factory=dict)
    layers: dict[str, LayerSplit] = field(default_factory=dict)


@dataclass(frozen=True)
class _Layer:
    """A weight of linear layers or embeddings, and all operations that compute with it."""

    linear: tuple[tuple[fx.Node, LinearCall], ...]
    embedded: tuple[tuple[fx.Node, EmbeddingCall], ...]
    shape: tuple[int, ...]

    def out_dim(self) -> int:
        return self.linear[0][1].out_dim if self.linear else 0


def choose_splits(
    graph: fx.GraphModule, facts: GraphFacts, ways: int, named: Mapping[str, str], *, by_rows: bool = False
) -> SplitChoice:
    """The splits of a model's weights over `ways` ranks.

    `named`: patterns of layers' names -> split; the last that matches counts, others are chosen. `by_rows`: all linear
    layers by columns. TrainingError, with the reason, if a named layer cannot be split so, or nothing can be split.
    """
    splits = _Choice(graph, facts, ways, named).choose(by_rows=by_rows)
    if splits.weights:
        return splits
    sizes = _Choice(graph, facts, 1, named).possible_sizes(by_rows=by_rows)
    raise TrainingError(
        f"tensor: no layer can be split over {ways} processes: {_obstacle(sizes, ways, by_rows=by_rows)}"
    )


def _obstacle(sizes: Mapping[int, Split], ways: int, *, by_rows: bool) -> str:
    """Why nothing is split. `sizes`: what could be, if they were divisible by `ways`."""
    if not sizes:
        pairs = "" if by_rows else " pair of linear layers with operations between them that work on parts, and no"
        return f"there is no{pairs} {'linear layer' if by_rows else 'vocabulary'}; name layers under `tensor: layers`"
    odd = [f"{size:,}" for size, split in sorted(sizes.items()) if not split.fits(size, ways)]
    if not odd:
        return f"the sizes of layers are divisible by {ways}, but the heads or groups between them are not"
    if len(odd) == 1:
        return f"{odd[0]}, the size of the layers, is not divisible by {ways}"
    return f"{', '.join(odd[:-1])} and {odd[-1]}, the sizes of the layers, are not divisible by {ways}"


class _Choice:
    """The choice for one graph; see `choose_splits`."""

    def __init__(self, graph: fx.GraphModule, facts: GraphFacts, ways: int, named: Mapping[str, str]) -> None:
        self._graph, self._facts, self._shapes, self._ways = graph, facts, facts.shapes, ways
        self._names = parameter_names(graph)
        self._nodes = list(graph.graph.nodes)
        self._other_uses: dict[str, str] = {}
        self._layers = self._find_layers()
        self._linear = {node: (name, call) for name, layer in self._layers.items() for node, call in layer.linear}
        self._named = self._match(named)
        self._weights: dict[str, Split] = {}
        self._splits: dict[str, LayerSplit] = {}

    def choose(self, *, by_rows: bool) -> SplitChoice:
        for name, split in self._named.items():
            if split is not LayerSplit.REPLICATED:
                self._assign_named(name, split)
        if by_rows:
            self._all_columns()
        else:
            self._vocabularies()
            for node in self._nodes:
                if node in self._linear and self._is_free(self._linear[node][0]):
                    self._pair(node)
        return SplitChoice(self._weights, self._splits)

    def possible_sizes(self, *, by_rows: bool) -> dict[int, Split]:
        """The sizes that could be split, each by itself; nothing may be chosen yet."""
        regions: dict[fx.Node, int] = {}  # layers by columns
        ends: dict[fx.Node, int] = {}  # layers by rows
        for node, (name, _) in [] if by_rows else self._linear.items():
            tried = map(self._region, ({node: blocks} for blocks in FUSED if self._is_free(name)))
            columns, rows = next(filter(None, tried), ({}, {}))
            regions |= columns
            ends |= rows
        (self._all_columns if by_rows else self._vocabularies)()
        placed = [(name, split.dim, split.blocks) for name, split in self._weights.items() if name in self._layers]
        placed += [(self._linear[node][0], self._linear[node][1].out_dim, blocks) for node, blocks in regions.items()]
        placed += [(self._linear[node][0], self._linear[node][1].in_dim, blocks) for node, blocks in ends.items()]
        return {self._layers[name].shape[dim]: Split(dim, blocks) for name, dim, blocks in placed}

    def _find_layers(self) -> dict[str, _Layer]:
        linear: dict[str, list[tuple[fx.Node, LinearCall]]] = {}
        embedded: dict[str, list[tuple[fx.Node, EmbeddingCall]]] = {}
        biases: dict[str, str] = {}
        for node in self._nodes:
            call, lookup = linear_call(self._graph, node, self._names), None
            if call is not None:
                linear.setdefault(call.weight, []).append((node, call))
                if call.bias is not None and biases.setdefault(call.bias, call.weight) != call.weight:
                    for one, other in permutations((call.weight, biases[call.bias])):
                        self._other_uses.setdefault(one, f"its bias is shared with {layer_name(other)}")
                continue
            lookup = embedding_call(self._graph, node, self._names)
            if lookup is not None:
                embedded.setdefault(lookup.weight, []).append((node, lookup))
                continue
            for name in self._read(node):
                self._other_uses[name] = f"{node.name} needs all of it"
        sizes = {name: tuple(value.shape) for name, value in self._graph.named_parameters()}
        every = dict.fromkeys([*linear, *embedded])
        return {name: _Layer(tuple(linear.get(name, ())), tuple(embedded.get(name, ())), sizes[name]) for name in every}

    def _read(self, node: fx.Node) -> list[str]:
        """Parameters that an operation reads otherwise than as a layer's weight."""
        if node.op == "call_module":
            values: list[Any] = list(self._graph.get_submodule(str(node.target)).parameters())
        elif node.op == "get_attr":
            return []
        else:
            values = [attribute(self._graph, str(one.target)) for one in node.all_input_nodes if one.op == "get_attr"]
        return [
            self._names[id(value)] for value in values if id(value) in self._names and isinstance(value, nn.Parameter)
        ]

    def _match(self, named: Mapping[str, str]) -> dict[str, LayerSplit]:
        splits: dict[str, LayerSplit] = {}
        for pattern, split in named.items():
            matched = [name for name in self._layers if fnmatchcase(layer_name(name), pattern)]
            if not matched:
                known = ", ".join(name_patterns(map(layer_name, self._layers))) or "none"
                raise TrainingError(
                    f"tensor.layers: {pattern!r} matches no linear layer and no embedding of the model; it has {known}"
                )
            for name in matched:
                splits.pop(name, None)
                splits[name] = LayerSplit(split)
        return splits

    def _assign_named(self, name: str, split: LayerSplit) -> None:
        layer = self._layers[name]
        self._check_named(name, layer, split)
        if split is LayerSplit.ROWS:
            self._assign(name, split, Split(1 - layer.out_dim()))
        elif split is LayerSplit.VOCABULARY:
            self._assign(name, split, Split(0))
        else:
            self._assign(name, split, Split(layer.out_dim(), self._fused(name)))

    def _check_named(self, name: str, layer: _Layer, split: LayerSplit) -> None:
        def refuse(why: str) -> TrainingError:
            return TrainingError(f"tensor.layers: {layer_name(name)} cannot be split by {split.value}: {why}")

        if name in self._other_uses:
            raise refuse(self._other_uses[name])
        if (split is LayerSplit.VOCABULARY) != bool(layer.embedded):
            raise refuse("it is an embedding" if layer.embedded else "it is a linear layer")
        dim = {LayerSplit.ROWS: 1 - layer.out_dim(), LayerSplit.VOCABULARY: 0}.get(split, layer.out_dim())
        if layer.shape[dim] % self._ways:
            what = {LayerSplit.ROWS: "inputs", LayerSplit.VOCABULARY: "rows"}.get(split, "outputs")
            raise refuse(f"its {layer.shape[dim]:,} {what} are not divisible by {self._ways}")

    def _fused(self, name: str) -> int:
        """The number of blocks of a named layer's outputs with which following operations work on parts."""
        node = self._layers[name].linear[0][0]
        for blocks in FUSED:
            if self._region({node: blocks}) is not None:
                return blocks
        return 1

    def _assign(self, name: str, kind: LayerSplit, split: Split) -> None:
        """Split a weight, and the bias of a layer whose outputs are split."""
        self._weights[name] = split
        self._splits[layer_name(name)] = kind
        for _, call in self._layers[name].linear:
            if call.bias is not None and split.dim == call.out_dim:
                self._weights[call.bias] = Split(0, split.blocks)

    def _is_free(self, name: str) -> bool:
        return name not in self._weights and name not in self._named and name not in self._other_uses

    def _all_columns(self) -> None:
        for name, layer in self._layers.items():
            if (
                layer.linear
                and not layer.embedded
                and self._is_free(name)
                and not layer.shape[layer.out_dim()] % self._ways
            ):
                self._assign(name, LayerSplit.COLUMNS, Split(layer.out_dim()))

    def _vocabularies(self) -> None:
        for name, layer in self._layers.items():
            tied_rows = all(call.out_dim == 0 for _, call in layer.linear)
            if layer.embedded and tied_rows and self._is_free(name) and not layer.shape[0] % self._ways:
                self._assign(name, LayerSplit.VOCABULARY, Split(0))

    def _pair(self, node: fx.Node) -> None:
        """Split the layer by columns, with others that must be, if what follows works on parts up to layers by rows."""
        for blocks in FUSED:
            region = self._region({node: blocks})
            if region is None:
                continue
            columns, rows = region
            for one, count in columns.items():
                name, call = self._linear[one]
                self._assign(name, LayerSplit.COLUMNS, Split(call.out_dim, count))
            for one, count in rows.items():
                name, call = self._linear[one]
                self._assign(name, LayerSplit.ROWS, Split(call.in_dim, count))
            return

    def _region(self, columns: dict[fx.Node, int]) -> tuple[dict[fx.Node, int], dict[fx.Node, int]] | None:
        """(layers by columns, layers by rows) -> blocks, of the region that begins with `columns`.

        Other layers begin it, too, where an operation needs their outputs split. None if a value would be gathered.
        """
        columns = dict(columns)
        while True:
            if not all(self._may_be(one, LayerSplit.COLUMNS, count) for one, count in columns.items()):
                return None
            end = self._propagate(columns)
            if not isinstance(end, Needs):
                return None if not end else (columns, end)
            sources = {one: source for operand in end.operands for one, source in self._sources(operand).items()}
            if not sources or sources.keys() <= columns.keys():
                return None
            columns |= sources

    def _may_be(self, node: fx.Node, split: LayerSplit, blocks: int) -> bool:
        name, call = self._linear[node]
        layer = self._layers[name]
        if len(layer.linear) > 1 or layer.embedded or name in self._other_uses or name in self._weights:
            return self._named.get(name) is split and name not in self._weights and len(layer.linear) == 1
        dim = call.out_dim if split is LayerSplit.COLUMNS else call.in_dim
        return self._named.get(name, split) is split and Split(dim, blocks).fits(layer.shape[dim], self._ways)

    def _propagate(self, columns: Mapping[fx.Node, int]) -> dict[fx.Node, int] | Needs | None:
        """Layers by rows where the parts of the outputs of `columns` end; what must be split, too; None if neither."""
        layouts: dict[fx.Node, Layout] = {}
        rows: dict[fx.Node, int] = {}
        left = set(columns)
        for node in self._nodes:
            split = any(layouts.get(one) is not None for one in node.all_input_nodes)
            if node in columns:
                if split:
                    return None
                layouts[node] = Split(len(self._shapes[node.name]) - 1, columns[node])
                left.discard(node)
                continue
            if not split:
                continue
            if node in self._linear:
                layout = layouts.get(self._linear[node][1].input)
                dims = len(self._shapes[self._linear[node][1].input.name])
                if not isinstance(layout, Split) or layout.dim != dims - 1:
                    return None
                if layout.block_size is not None or not self._may_be(node, LayerSplit.ROWS, layout.blocks):
                    return None
                rows[node] = layout.blocks
                continue
            effect = outcome(Call(self._graph, node, layouts, self._facts, self._ways)) if node.op != "output" else None
            if not isinstance(effect, Effect):
                return effect
            layouts[node] = effect.out
        return rows

    def _sources(self, node: fx.Node) -> dict[fx.Node, int]:
        """The linear layers from which a whole value comes, each of one block."""
        layers: dict[fx.Node, int] = {}
        pending, visited = [node], set()
        while pending:
            one = pending.pop()
            if one in visited:
                continue
            visited.add(one)
            if one in self._linear:
                layers[one] = 1
            elif one.op in ("placeholder", "get_attr"):
                return {}
            else:
                pending += [
                    other for other in one.all_input_nodes if isinstance(self._shapes.get(other.name), tuple | list)
                ]
        return layers


def name_patterns(names: Iterable[str]) -> list[str]:
    """The names in order, with those that differ in the number of a block only as one pattern: blocks.*.fc1."""
    counts: dict[str, list[str]] = {}
    for name in names:
        *blocks, last = name.split(".")
        pattern = ".".join([*("*" if part.isdigit() else part for part in blocks), last])
        counts.setdefault(pattern, []).append(name)
    return [pattern if len(same) > 1 else same[0] for pattern, same in counts.items()]


def layer_name(weight: str) -> str:
    """The name of the layer that has a weight."""
    return weight.removesuffix(".weight")
