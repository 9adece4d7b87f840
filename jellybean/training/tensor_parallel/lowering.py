"""Rewrites a stage's graph, whose operations are on whole tensors, for one rank of a tensor group.

Linear layers and embeddings with split weights compute parts, operations that can (`rules`) pass the parts on, and
before any other one the whole tensor is gathered. So every graph can be rewritten; which weights are split decides what
it costs. With `rows` the ranks have different rows outside split layers (CNN hybrid).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from jellybean.pipeline.torch_graph import GraphFacts
from jellybean.pipeline.torch_trace import attribute
from jellybean.training.errors import TrainingError
from jellybean.training.tensor_parallel.conjugate_collectives import (
    Enter,
    Gather,
    GatherForParts,
    LookUp,
    PartOfAttention,
    PartOfDropout,
    Reduce,
    Scatter,
)
from jellybean.training.tensor_parallel.group import TensorGroup
from jellybean.training.tensor_parallel.layouts import Split
from jellybean.training.tensor_parallel.operations import (
    EmbeddingCall,
    LinearCall,
    embedding_call,
    linear_call,
    operation_name,
    parameter_names,
    parameter_of,
)
from jellybean.training.tensor_parallel.rows import EnterRows, LeaveRows, RowCounts
from jellybean.training.tensor_parallel.rules import ELEMENTWISE, SIZES, Call, Effect, Layout, outcome


@dataclass(frozen=True)
class PlacedBorder:
    """A module put before or in place of operation `at`; what it sums or gathers has the whole shape of value `of`."""

    at: str
    of: str
    module: nn.Module


@dataclass(frozen=True)
class LoweredStage:
    """A stage for one rank. `layouts`: of the values that it passes on, by name; those that are split.

    `on_parts`: operations that compute parts. `split`: operations whose values are split.
    """

    module: fx.GraphModule
    layouts: dict[str, Layout]
    on_parts: frozenset[str]
    split: frozenset[str]
    borders: tuple[PlacedBorder, ...]


def lower(
    module: fx.GraphModule,
    splits: Mapping[int, Split],
    facts: GraphFacts,
    group: TensorGroup,
    received: Mapping[str, Layout],
    *,
    by_rows: bool = False,
    last: bool = True,
) -> LoweredStage:
    """Rewrite a stage. `splits`: of its parameters, by identity. `facts`: of the whole graph.

    `received`: layouts of the values from the stage before, by name. `by_rows`: the ranks have different rows. `last`:
    the values that it returns are the model's.
    """
    return _Lowering(module, splits, facts, group, received, by_rows=by_rows, last=last).run()


class _Lowering:
    """The rewrite of one stage; see `lower`."""

    def __init__(
        self,
        module: fx.GraphModule,
        splits: Mapping[int, Split],
        facts: GraphFacts,
        group: TensorGroup,
        received: Mapping[str, Layout],
        *,
        by_rows: bool,
        last: bool,
    ) -> None:
        self._module, self._group, self._last = module, group, last
        self._facts, self._shapes = facts, facts.shapes
        self._received = received
        self._rows = RowCounts(group) if by_rows else None
        names = parameter_names(module)
        self._names = names
        self._splits = {names[key]: split for key, split in splits.items() if key in names}
        self._graph = fx.Graph()
        self._made: dict[str, nn.Module] = {}
        self._copies: dict[fx.Node, fx.Node] = {}
        self._layouts: dict[fx.Node, Layout] = {}
        self._borders: dict[tuple[fx.Node, str], fx.Node] = {}  # a value after a border, which several may read
        self._computed: set[str] = set()
        self._placed: list[PlacedBorder] = []
        self._current = ""

    def run(self) -> LoweredStage:
        passed_on: dict[str, Layout] = {}
        for node in self._module.graph.nodes:
            self._current = node.name
            if node.op == "output":
                passed_on = self._output(node)
            else:
                self._operation(node)
        for name, border in self._made.items():
            self._module.add_module(name, border)
        self._graph.lint()
        lowered = fx.GraphModule(self._module, self._graph, self._module._get_name())
        for name in self._made:
            delattr(self._module, name)
        split = frozenset(node.name for node, layout in self._layouts.items() if layout is not None)
        return LoweredStage(lowered, passed_on, frozenset(self._computed), split, tuple(self._placed))

    def _operation(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._keep(node, self._graph.node_copy(node), self._received.get(node.name))
            return
        if node.op == "get_attr":
            name = self._names.get(id(attribute(self._module, str(node.target))), "")
            self._keep(node, self._graph.node_copy(node), self._splits.get(name))
            return
        linear = linear_call(self._module, node, self._names)
        if linear is not None and linear.weight in self._splits:
            self._linear(node, linear, self._splits[linear.weight])
            return
        embedding = embedding_call(self._module, node, self._names)
        if embedding is not None and embedding.weight in self._splits:
            self._embedding(node, embedding)
            return
        self._check_weights(node)
        call = Call(self._module, node, self._layouts, self._facts, self._group.ways)
        split = any(self._layouts.get(one) is not None for one in node.all_input_nodes)
        effect = outcome(call) if split else None
        if isinstance(effect, Effect) and self._is_possible(node, effect):
            self._on_parts(node, call.name, effect)
        else:
            self._keep(node, self._graph.node_copy(node, self._whole), None)

    def _is_possible(self, node: fx.Node, effect: Effect) -> bool:
        """By rows, only values of all rows may meet: elementwise operations of parts."""
        if operation_name(self._module, node) in SIZES:
            return self._rows is None
        return self._rows is None or (operation_name(self._module, node) in ELEMENTWISE and not effect.whole)

    def _check_weights(self, node: fx.Node) -> None:
        if node.op == "call_module":
            owned = self._module.get_submodule(str(node.target)).parameters()
            names = [self._names.get(id(value), "") for value in owned]
            wrong = next((name for name in names if name in self._splits), None)
            if wrong is not None:
                raise TrainingError(f"{wrong} is split over processes, and {node.target} needs all of it")

    def _linear(self, node: fx.Node, linear: LinearCall, split: Split) -> None:
        self._computed.add(node.name)
        if split.dim == linear.out_dim:
            given = self._for_columns(linear.input)
            output = self._graph.node_copy(
                node, lambda one: given if one is linear.input else self._copies[one]
            )  # with its part of the weight
            self._keep(node, output, Split(len(self._shapes[node.name]) - 1, split.blocks))
            return
        place = Split(len(self._shapes[linear.input.name]) - 1, split.blocks)
        given = self._part(linear.input, place)
        if node.op == "call_module":
            weight = self._graph.get_attr(f"{node.target}.weight")
            bias = self._graph.get_attr(f"{node.target}.bias") if linear.bias is not None else None
        else:
            order = [*node.args, *(node.kwargs[name] for name in ("input", "weight", "bias") if name in node.kwargs)]
            weight, bias = self._operand(order, linear.weight), self._operand(order, linear.bias)
        product = (
            self._graph.call_function(torch.nn.functional.linear, (given, weight))
            if linear.out_dim == 0
            else self._graph.call_function(torch.matmul, (given, weight))
        )
        total = self._border(Reduce(self._group), node, product, *(() if bias is None else (bias,)))
        self._keep(node, total, None)

    def _operand(self, operands: Sequence[Any], name: str | None) -> fx.Node | None:
        for one in operands:
            if name is not None and parameter_of(self._module, one, self._names) == name:
                return self._copies[one]
        return None

    def _embedding(self, node: fx.Node, embedding: EmbeddingCall) -> None:
        if node.op == "call_module":
            weight = self._graph.get_attr(f"{node.target}.weight")
        else:
            weight = self._operand([*node.args, *node.kwargs.values()], embedding.weight)
        indices = self._whole(embedding.input)
        self._keep(node, self._border(LookUp(self._group, embedding.padding), node, indices, weight), None)

    def _on_parts(self, node: fx.Node, name: str, effect: Effect) -> None:
        whole = set(effect.whole)
        given = {one: self._entered(one) if one in whole else self._copies[one] for one in node.all_input_nodes}
        split = effect.out
        if name in SIZES:
            self._sizes(node, name)
            return
        if name == "dropout" and self._rows is None and isinstance(split, Split):
            self._keep(node, self._dropout(node, given, split), split)
            return
        if name == "scaled_dot_product_attention" and isinstance(split, Split):
            p = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
            if p:
                args = fx.node.map_arg(node.args, given.__getitem__)
                kwargs = fx.node.map_arg(node.kwargs, given.__getitem__)
                border = self._name(PartOfAttention(self._group, split, float(p)), node)
                self._keep(node, self._graph.call_module(border, args, kwargs), split)
                return
        self._computed.add(node.name)
        copied = self._graph.node_copy(node, given.__getitem__)
        if effect.place is not None:
            dims = len(self._shapes[node.name])
            _PartSizes(self._graph, self._group.ways).divide(name, dims, copied, effect.place)
        self._keep(node, copied, split)

    def _sizes(self, node: fx.Node, name: str) -> None:
        """Sizes are those of the whole tensor: a method's own result, times `ways` at the split dimension."""
        value = node.args[0]
        layout = self._layouts[value]
        size = self._graph.node_copy(node, self._copies.__getitem__)
        if isinstance(layout, Split) and (name != "getattr" or node.args[1] == "shape"):
            dims = len(self._shapes[value.name])
            if name == "getattr" or (len(node.args) == 1 and "dim" not in node.kwargs):
                size = self._graph.call_function(whole_shape, (size, layout.dim, self._group.ways))
            else:
                dim = node.args[1] if len(node.args) > 1 else node.kwargs["dim"]
                if dim % dims == layout.dim:
                    size = self._graph.call_function(_times, (size, self._group.ways))
        self._keep(node, size, None)

    def _dropout(self, node: fx.Node, given: Mapping[fx.Node, fx.Node], split: Split) -> fx.Node:
        if node.op == "call_module":
            layer = self._module.get_submodule(str(node.target))
            border = PartOfDropout(self._group, split, layer.p)
        else:
            is_operator = isinstance(node.target, torch._ops.OpOverload)
            order = ("input", "p", "train") if is_operator else ("input", "p", "training", "inplace")
            arguments = {**dict(zip(order, node.args, strict=False)), **node.kwargs}
            active = arguments.get("train", arguments.get("training", True))
            border = PartOfDropout(self._group, split, float(arguments.get("p", 0.5)), bool(active))
        return self._border(border, node, given[node.all_input_nodes[0]])

    def _output(self, node: fx.Node) -> dict[str, Layout]:
        """Return the values; in an inner stage split ones as they are, unless ranks have different rows."""
        keep = not self._last and self._rows is None
        layouts = {
            one.name: self._layouts[one] for one in node.all_input_nodes if keep and self._layouts.get(one) is not None
        }
        self._graph.output(fx.node.map_arg(node.args[0], self._copies.__getitem__ if keep else self._whole))
        return layouts

    def _keep(self, node: fx.Node, copied: fx.Node, layout: Layout) -> None:
        self._copies[node] = copied
        self._layouts[node] = layout

    def _whole(self, node: fx.Node) -> fx.Node:
        layout = self._layouts.get(node)
        if not isinstance(layout, Split):
            if layout is not None:
                raise TrainingError(f"{node.name}: parts of several tensors are used as one; name other layers")
            return self._copies[node]
        if self._rows is not None and node.op != "get_attr":
            return self._once(node, "whole", lambda: LeaveRows(self._rows, layout))
        return self._once(node, "whole", lambda: Gather(self._group, layout))

    def _entered(self, node: fx.Node) -> fx.Node:
        return self._once(node, "entered", lambda: Enter(self._group))

    def _for_columns(self, node: fx.Node) -> fx.Node:
        layout = self._layouts.get(node)
        if isinstance(layout, Split):
            return self._once(node, "for columns", lambda: GatherForParts(self._group, layout))
        if self._rows is not None:
            return self._once(node, "for columns", lambda: EnterRows(self._rows))
        return self._entered(node)

    def _part(self, node: fx.Node, split: Split) -> fx.Node:
        if self._layouts.get(node) == split:
            return self._copies[node]
        whole = self._whole(node)
        key = (node, f"part {split}")
        if key not in self._borders:
            self._borders[key] = self._border(Scatter(self._group, split), node, whole)
        return self._borders[key]

    def _once(self, node: fx.Node, kind: str, make: Any) -> fx.Node:
        if (node, kind) not in self._borders:
            self._borders[node, kind] = self._border(make(), node, self._copies[node])
        return self._borders[node, kind]

    def _border(self, border: nn.Module, of: fx.Node, *args: fx.Node | None) -> fx.Node:
        return self._graph.call_module(self._name(border, of), args)

    def _name(self, border: nn.Module, of: fx.Node) -> str:
        name = f"border_{len(self._made)}"
        self._made[name] = border
        self._placed.append(PlacedBorder(self._current, of.name, border))
        return name


@dataclass(frozen=True)
class _PartSizes:
    """Sizes that operations take as arguments, in a graph that computes 1 / `ways` of them."""

    graph: fx.Graph
    ways: int

    def divide(self, name: str, dims: int, copied: fx.Node, place: int) -> None:
        """Make one of the sizes among a copied operation's arguments that of a part. `dims`: of its result."""
        first, *rest = copied.args
        if rest and isinstance(rest[-1], list | tuple) and name != "split":
            *before, sizes = rest
            copied.args = (first, *before, type(sizes)(self._divided(sizes, place, copied)))
        elif rest and name == "unflatten":
            copied.args = (first, rest[0], *self._divided(rest[1:], place, copied))
        elif name == "split":
            size = rest[0] if rest else copied.kwargs["split_size"]
            sizes = size if isinstance(size, list | tuple) else [size]
            parts = [self._quotient(one, copied) for one in sizes]
            copied.args = (first, type(size)(parts) if isinstance(size, list | tuple) else parts[0], *rest[1:])
        elif len(rest) == 1 and isinstance(rest[0], fx.Node) and dims > 1:
            with self.graph.inserting_before(copied):
                copied.args = (first, self.graph.call_function(part_shape, (rest[0], place, self.ways)))
        elif rest:
            copied.args = (first, *self._divided(rest, place, copied))
        else:
            key = next(iter(copied.kwargs))
            copied.kwargs = {**copied.kwargs, key: self._divided(copied.kwargs[key], place, copied)}

    def _divided(self, sizes: Sequence[Any], place: int, user: fx.Node) -> list[Any]:
        divided = list(sizes)
        divided[place] = self._quotient(divided[place], user)
        return divided

    def _quotient(self, size: Any, user: fx.Node) -> Any:
        if isinstance(size, int):
            return size if size == -1 else size // self.ways
        with self.graph.inserting_before(user):
            return self.graph.call_function(_over, (size, self.ways))


def whole_shape(shape: torch.Size, dim: int, ways: int) -> torch.Size:
    """The shape of the whole tensor, from that of a part."""
    return torch.Size(size * ways if place == dim else size for place, size in enumerate(shape))


def part_shape(shape: Sequence[int], dim: int, ways: int) -> list[int]:
    """The shape of a part, from that of the whole tensor."""
    return [size // ways if place == dim and size != -1 else size for place, size in enumerate(shape)]


def _times(size: int, ways: int) -> int:
    return size * ways


def _over(size: int, ways: int) -> int:
    return size // ways
