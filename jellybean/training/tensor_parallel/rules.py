"""How operations pass a split on: which of them compute, on each rank's parts, the parts of their value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import fx

from jellybean.pipeline.torch_graph import GraphFacts
from jellybean.training.tensor_parallel.layouts import Split, viewed
from jellybean.training.tensor_parallel.operations import operation_name

Layout: TypeAlias = "Split | tuple[Split, ...] | None"  # of a tensor, of a tuple of tensors; None: every rank has all

_ACTIVATIONS = {"relu", "relu6", "gelu", "silu", "mish", "elu", "selu", "tanh", "sigmoid", "logsigmoid", "leaky_relu"}
_MORE_ACTIVATIONS = {"hardswish", "softplus", "identity", "dropout"}
_COPIES = {"clone", "contiguous", "to", "float", "double", "half", "bfloat16", "type", "type_as", "detach"}
_UNARY = {"neg", "exp", "log", "sqrt", "rsqrt", "square", "pow", "abs", "clamp", "sin", "cos"}
_BINARY = {"add", "iadd", "sub", "isub", "mul", "imul", "div", "idiv", "truediv", "itruediv", "maximum", "minimum"}
ELEMENTWISE = frozenset(_ACTIVATIONS | _MORE_ACTIVATIONS | _COPIES | _UNARY | _BINARY | {"where", "masked_fill"})
SIZES = {"size", "sym_size", "getattr"}


@dataclass(frozen=True)
class Effect:
    """An operation that runs on parts. `out`: the layout of its value.

    `place`: which of its sizes is that of the split dimension, and must become the part's. `whole`: operands of which
    every rank has all, so that each rank computes a part of their gradients.
    """

    out: Layout
    place: int | None = None
    whole: tuple[fx.Node, ...] = ()


@dataclass(frozen=True)
class Needs:
    """An operation that would run on parts if these operands were split, too."""

    operands: tuple[fx.Node, ...]


Outcome: TypeAlias = "Effect | Needs | None"  # None: the operation needs the whole tensors


@dataclass(frozen=True)
class Call:
    """An operation of a graph whose operands have `layouts`. `facts`: of the graph of whole tensors."""

    graph: fx.GraphModule
    node: fx.Node
    layouts: Mapping[fx.Node, Layout]
    facts: GraphFacts
    ways: int

    @property
    def name(self) -> str:
        return operation_name(self.graph, self.node)

    @property
    def shapes(self) -> Mapping[str, Any]:
        """Shapes of whole tensors, by name."""
        return self.facts.shapes

    def shape(self, node: fx.Node | None = None) -> tuple[int, ...]:
        """The shape of a whole operand, by default of the value."""
        return tuple(self.shapes[(node or self.node).name])

    def viewed(self, split: Split) -> Split | None:
        """The split of the value, a view of the first argument, which has this split."""
        given = self.node.args[0]
        fewer: Mapping[str, Any] = self.facts.fewer_shapes
        names = given.name, self.node.name
        smaller = (tuple(fewer[names[0]]), tuple(fewer[names[1]])) if fewer.keys() >= set(names) else None
        return viewed(self.shape(given), self.shape(), split, self.ways, smaller)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or its name."""
        given = self.node.args
        return given[place] if len(given) > place else self.node.kwargs.get(name, default)

    @property
    def tensors(self) -> list[fx.Node]:
        """Its operands that are tensors."""
        return [one for one in self.node.all_input_nodes if isinstance(self.shapes.get(one.name), tuple)]

    def split_first(self) -> Split | None:
        """The split of the first argument, which must be a tensor and alone."""
        first = self.node.args[0] if self.node.args else None
        layout = self.layouts.get(first) if isinstance(first, fx.Node) else None
        others = [one for one in self.node.all_input_nodes if one is not first and self.layouts.get(one) is not None]
        return layout if isinstance(layout, Split) and not others else None


def outcome(call: Call) -> Outcome:
    """What becomes of an operation of which some operand is split."""
    name = call.name
    if name in ELEMENTWISE:
        return _aligned(call, call.tensors, 1)
    rule = _RULES.get(name)
    return rule(call) if rule is not None else None


def _aligned(call: Call, operands: Sequence[fx.Node], least: int) -> Outcome:
    """The rule of broadcasting: all operands are split alike, counted from the last dimension, or have size 1 there.

    `least`: dimensions from the end on that may be split.
    """
    if call.node.name not in call.shapes:
        return None
    dims = len(call.shape())
    layouts = [call.layouts.get(one) for one in operands]
    if any(isinstance(layout, tuple) for layout in layouts):
        return None
    moved = {
        layout.at(layout.dim + dims - len(call.shape(one)))
        for one, layout in zip(operands, layouts, strict=True)
        if isinstance(layout, Split)
    }
    if len(moved) != 1:
        return None
    split = moved.pop()
    if dims - split.dim < least:
        return None
    whole = [one for one, layout in zip(operands, layouts, strict=True) if layout is None]
    wide = tuple(one for one in whole if _size_at(call.shape(one), split.dim - dims) != 1)
    return Needs(wide) if wide else Effect(split, whole=tuple(whole))


def _size_at(shape: Sequence[int], from_end: int) -> int:
    return shape[from_end] if len(shape) >= -from_end else 1


def _matmul(call: Call) -> Outcome:
    if any(len(call.shape(one)) < 2 for one in call.tensors):
        return None
    return _aligned(call, call.tensors, 3)


def _attention(call: Call) -> Outcome:
    heads = [call.argument(place, name) for place, name in enumerate(("query", "key", "value"))]
    missing = tuple(one for one in heads if call.layouts.get(one) is None)
    effect = _aligned(call, [one for one in heads if one not in missing], 3)
    if not isinstance(effect, Effect) or missing:
        return Needs(missing) if missing else effect
    mask = call.argument(3, "attn_mask")
    if not isinstance(mask, fx.Node):
        return effect
    return _aligned(call, [heads[0], mask], 3)


def _softmax(call: Call) -> Outcome:
    split = call.split_first()
    if call.node.op == "call_module":
        dim = call.graph.get_submodule(str(call.node.target)).dim
    else:
        dim = call.argument(1, "dim")
    if split is None or not isinstance(dim, int) or dim % len(call.shape()) == split.dim:
        return None
    return Effect(split)


def _view(call: Call) -> Outcome:
    split = call.split_first()
    if split is None:
        return None
    layout = call.viewed(split)
    if layout is None:
        return None
    return Effect(layout, place=None if call.name == "flatten" else layout.dim)


def _unflatten(call: Call) -> Outcome:
    dim = call.argument(1, "dim")
    if not isinstance(dim, int):
        return None
    split = call.split_first()
    dims = len(call.shape(call.node.args[0]))
    dim %= dims
    layout = call.viewed(split) if split is not None else None
    if split is None or layout is None:
        return None
    return Effect(layout, place=layout.dim - dim if split.dim == dim else None)


def _expand(call: Call) -> Outcome:
    split = call.split_first()
    if split is None:
        return None
    moved = split.at(split.dim + len(call.shape()) - len(call.shape(call.node.args[0])))
    return Effect(moved, place=moved.dim)


def _transpose(call: Call) -> Outcome:
    split = call.split_first()
    dims = [call.argument(1, "dim0"), call.argument(2, "dim1")]
    if split is None or not all(isinstance(dim, int) for dim in dims):
        return None
    one, other = (dim % len(call.shape()) for dim in dims)
    return Effect(split.at({one: other, other: one}.get(split.dim, split.dim)))


def _permute(call: Call) -> Outcome:
    split = call.split_first()
    given = call.node.args[1:] if len(call.node.args) > 2 else call.argument(1, "dims", ())
    order = [given] if isinstance(given, int) else list(given)
    if split is None or not all(isinstance(dim, int) for dim in order):
        return None
    return Effect(split.at([dim % len(order) for dim in order].index(split.dim)))


def _unsqueeze(call: Call) -> Outcome:
    split, dim = call.split_first(), call.argument(1, "dim")
    if split is None or not isinstance(dim, int):
        return None
    return Effect(split.at(split.dim + (dim % len(call.shape()) <= split.dim)))


def _squeeze(call: Call) -> Outcome:
    split, dim = call.split_first(), call.argument(1, "dim")
    if split is None or not isinstance(dim, int):
        return None
    before = call.shape(call.node.args[0])
    dim %= len(before)
    return Effect(split.at(split.dim - (before[dim] == 1 and dim < split.dim)))


def _pieces(call: Call) -> Outcome:
    """chunk, split: along another dimension, or so that each piece is a number of blocks."""
    split, dim = call.split_first(), call.argument(2, "dim", 0)
    shapes = call.shapes.get(call.node.name)
    if split is None or not isinstance(dim, int) or not isinstance(shapes, list):
        return None
    dims = len(call.shape(call.node.args[0]))
    if dim % dims != split.dim:
        return Effect((split,) * len(shapes))
    blocks, left = divmod(split.blocks, len(shapes))
    if left or split.block_size is not None or len({tuple(shape) for shape in shapes}) > 1:
        return None
    return Effect((Split(split.dim, blocks),) * len(shapes), place=0 if call.name != "chunk" else None)


def _unbind(call: Call) -> Outcome:
    split, dim = call.split_first(), call.argument(1, "dim", 0)
    shapes = call.shapes.get(call.node.name)
    if split is None or not isinstance(dim, int) or not isinstance(shapes, list):
        return None
    dim %= len(call.shape(call.node.args[0]))
    return None if dim == split.dim else Effect((split.at(split.dim - (dim < split.dim)),) * len(shapes))


def _select(call: Call) -> Outcome:
    split, dim = call.split_first(), call.argument(1, "dim", 0)
    if split is None or not isinstance(dim, int):
        return None
    dim %= len(call.shape(call.node.args[0]))
    return None if dim == split.dim else Effect(split.at(split.dim - (dim < split.dim)))


def _slice(call: Call) -> Outcome:
    split, dim = call.split_first(), call.argument(1, "dim", 0)
    if split is None or not isinstance(dim, int) or dim % len(call.shape()) == split.dim:
        return None
    return Effect(split)


def _item(call: Call) -> Outcome:
    value, index = call.node.args
    layout = call.layouts.get(value)
    if isinstance(layout, tuple):
        return Effect(layout[index]) if isinstance(index, int) else None
    parts = list(index) if isinstance(index, tuple) else [index]
    if not isinstance(layout, Split) or not all(
        part is None or isinstance(part, int | slice | type(...)) for part in parts
    ):
        return None
    dims = len(call.shape(value))
    if ... in parts:
        place = parts.index(...)
        used = sum(part is not None and part is not ... for part in parts)
        parts[place : place + 1] = [slice(None)] * (dims - used)
    old = new = 0
    for part in parts:
        if part is not None and old == layout.dim:
            if part != slice(None):
                return None
            return Effect(layout.at(new))
        old, new = old + (part is not None), new + (not isinstance(part, int))
    return Effect(layout.at(new + layout.dim - old))


def _joined(call: Call) -> Outcome:
    given, dim = call.argument(0, "tensors", ()), call.argument(1, "dim", 0)
    if not isinstance(given, list | tuple) or not isinstance(dim, int):
        return None
    layouts = {call.layouts.get(one) for one in given}
    if None in layouts and len(layouts) == 2:
        return Needs(tuple(one for one in given if call.layouts.get(one) is None))
    split = layouts.pop()
    if layouts or not isinstance(split, Split) or dim % len(call.shape()) == split.dim:
        return None
    return Effect(split)


def _whole_sizes(call: Call) -> Outcome:
    """Sizes and other attributes are those of the whole tensor."""
    if call.name == "getattr" and call.node.args[1] not in ("shape", "dtype", "device", "ndim"):
        return None
    return Effect(None)


_RULES: Mapping[str, Callable[[Call], Outcome]] = {
    "matmul": _matmul,
    "bmm": _matmul,
    "scaled_dot_product_attention": _attention,
    "softmax": _softmax,
    "view": _view,
    "reshape": _view,
    "flatten": _view,
    "unflatten": _unflatten,
    "expand": _expand,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "chunk": _pieces,
    "split": _pieces,
    "unbind": _unbind,
    "select": _select,
    "slice": _slice,
    "getitem": _item,
    "cat": _joined,
    "concat": _joined,
    "dim": _whole_sizes,
    **dict.fromkeys(SIZES, _whole_sizes),
}
