"""What a traced module's operations make, share and overwrite: decides where the module may be cut.

Found by running the graph once on an example. Operations that must be in one stage are merged into a unit: cuts between
units are legal by construction, on every machine and in every run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import fx, nn

from jellybean.errors import JellyBeanError
from jellybean.pipeline.torch_state import same_values, state_kept
from jellybean.pipeline.torch_trace import TracedModule, attribute

Shapes: TypeAlias = "tuple[int, ...] | list[tuple[int, ...]]"  # of a tensor, of several
COMPUTE_OPS = {"call_module", "call_function", "call_method"}
_DRAWS = ("dropout", "rand", "bernoulli", "multinomial", "normal", "uniform", "scaled_dot_product")  # random numbers


class ValueKind(Enum):
    """What an operation returns, as far as crossing a cut is concerned."""

    TENSOR = "tensor"
    INTEGER = "integer"  # crosses as a tensor
    SHAPE = "shape"  # crosses as a tensor
    OTHER = "other"  # cannot cross


@dataclass(frozen=True)
class GraphFacts:
    """Facts about the operations of a traced module, by node name.

    `kinds`: of every computed value. `shared`: operations that depend on the arguments alone, not on weights, random
    numbers or state; every stage repeats those that it needs, so they do not cross. `units`: the other operations,
    merged where they must be in one stage, in topological order. `after`: operation -> earlier ones that write into
    the memory that it reads, beside its arguments. `trained`: operations whose value depends on trained parameters.
    `state`: names of the buffers that operations write. `shapes`: of tensors on the example; of several, a list.
    `fewer_shapes`: the same with fewer rows, if recorded.
    """

    kinds: Mapping[str, ValueKind]
    shared: frozenset[str]
    units: tuple[tuple[str, ...], ...]
    after: Mapping[str, tuple[str, ...]]
    trained: frozenset[str]
    state: frozenset[str]
    shapes: Mapping[str, Shapes] = field(default_factory=dict)
    fewer_shapes: Mapping[str, Shapes] = field(default_factory=dict)


@dataclass
class _Observed:
    """Observations of one operation: storages of its value, and storages that it wrote into."""

    kind: ValueKind
    shapes: Shapes | None = None
    storages: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()


class _Observer(fx.Interpreter):  # type: ignore[misc]  # mypy does not follow torch
    """Runs the graph once; keeps every value, so that no memory is reused."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.observed: dict[fx.Node, _Observed] = {}

    def run_node(self, n: fx.Node) -> Any:
        given = [value for one in n.all_input_nodes for value in tensors_in(self.env[one])]
        versions = [(value, value._version) for value in given]
        state = [(value, value.clone()) for value in self._state(n)]
        value = super().run_node(n)
        # Batch norm writes its statistics without a new version.
        written = {_storage(one) for one, version in versions if one._version != version}
        now = {id(one) for one in self._state(n)}
        written |= {_storage(one) for one, before in state if id(one) not in now or not same_values(one, before)}
        self.observed[n] = _Observed(
            _kind(value), _shapes(value), frozenset(map(_storage, tensors_in(value))), frozenset(written)
        )
        return value

    def _state(self, node: fx.Node) -> list[torch.Tensor]:
        """Buffers that an operation reads, of its arguments or of the submodule that it calls."""
        if node.op == "call_module":
            return list(self.module.get_submodule(str(node.target)).buffers())
        if node.op not in COMPUTE_OPS:
            return []
        read = [self.env[one] for one in node.all_input_nodes if one.op == "get_attr"]
        return [value for value in read if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)]


class _ShapeObserver(fx.Interpreter):  # type: ignore[misc]
    """Runs the graph once and records shapes."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.shapes: dict[str, Shapes] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        shapes = _shapes(value)
        if shapes is not None:
            self.shapes[n.name] = shapes
        return value


def graph_facts(traced: TracedModule, tensors: Iterable[torch.Tensor]) -> GraphFacts:
    """Run the graph on an example and derive the facts. Buffers are restored. JellyBeanError if it cannot be run."""
    observer = _Observer(traced.graph)
    _run(observer, tensors)
    return _Analysis(traced.graph, observer.observed).facts()


def graph_shapes(traced: TracedModule, tensors: Iterable[torch.Tensor]) -> dict[str, Shapes]:
    """As `GraphFacts.shapes`, on another example. Buffers are restored. JellyBeanError if it cannot be run."""
    observer = _ShapeObserver(traced.graph)
    _run(observer, tensors)
    return observer.shapes


def _run(observer: fx.Interpreter, tensors: Iterable[torch.Tensor]) -> None:
    """Run a graph, in which nothing is changed. JellyBeanError if it cannot be run."""
    try:
        with state_kept(observer.module), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of modules that miss a gradient
            observer.run(*(value.clone() for value in tensors))
    except Exception as error:  # the module's operations may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise JellyBeanError(f"the module cannot be run on these inputs: {reason}") from error


@dataclass
class _Analysis:
    """Derives the facts from what was observed."""

    graph: fx.GraphModule
    observed: Mapping[fx.Node, _Observed]
    after: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    conflicts: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)  # pairs that must be in one stage

    def facts(self) -> GraphFacts:
        self._order_writes()
        shared = self._shared()
        operations = [one for one in self.graph.graph.nodes if one.op in COMPUTE_OPS and one not in shared]
        return GraphFacts(
            {one.name: self.observed[one].kind for one in self.graph.graph.nodes if one.op != "output"},
            frozenset(one.name for one in shared),
            tuple(tuple(one.name for one in unit) for unit in self._units(operations)),
            {one.name: tuple(earlier.name for earlier in before) for one, before in self.after.items()},
            frozenset(one.name for one in self._trained()),
            frozenset(name for name, value in self.graph.named_buffers() if _storage(value) in self._written()),
            {one.name: seen.shapes for one, seen in self.observed.items() if seen.shapes is not None},
        )

    def _order_writes(self) -> None:
        """Fill `after` and `conflicts`: a write belongs to one stage with all that read or made the memory before it.

        Later readers may be in later stages: the value crosses as it is after the write.
        """
        holders: dict[int, list[fx.Node]] = {}  # storage -> operations that made or read it so far
        writers: dict[int, list[fx.Node]] = {}
        for node in self.graph.graph.nodes:
            seen = self.observed.get(node)
            if seen is None:
                continue
            touched = {storage for one in node.all_input_nodes for storage in self.observed[one].storages}
            for storage in touched:
                self.after.setdefault(node, []).extend(one for one in writers.get(storage, ()) if one is not node)
            for storage in seen.written:
                self.conflicts += [(node, one) for one in holders.get(storage, ())]
                writers.setdefault(storage, []).append(node)
            for storage in touched | seen.storages | seen.written:
                holders.setdefault(storage, []).append(node)
        self.after = {node: list(dict.fromkeys(earlier)) for node, earlier in self.after.items() if earlier}

    def _shared(self) -> set[fx.Node]:
        """Operations on arguments and constants alone. A write counts for all that hold the memory."""
        state = {_storage(value) for value in (*self.graph.parameters(), *self.graph.buffers())}
        found: set[fx.Node] = set()
        for node in self.graph.graph.nodes:
            seen = self.observed.get(node)
            if seen is None:
                continue
            if node.op == "placeholder":
                found.add(node)
            elif node.op == "get_attr":
                value = attribute(self.graph, str(node.target))
                if not isinstance(value, nn.Parameter):
                    found.add(node)
            elif node.op in ("call_function", "call_method") and not seen.written & state and not _draws(node):
                found |= {node} if all(one in found for one in node.all_input_nodes) else set()
        return self._without_overwritten(found)

    def _without_overwritten(self, shared: set[fx.Node]) -> set[fx.Node]:
        """Without operations whose memory an operation of a single stage overwrites, and what depends on them."""
        while True:
            written = {s for node, seen in self.observed.items() if node not in shared for s in seen.written}
            lost = {
                node
                for node in shared
                if node.op in COMPUTE_OPS
                and (
                    self.observed[node].storages & written
                    or any(one not in shared for one in (*node.all_input_nodes, *self.after.get(node, ())))
                )
            }
            if not lost:
                return shared
            shared = shared - lost

    def _units(self, operations: list[fx.Node]) -> list[list[fx.Node]]:
        """Operations merged where a cut between them is impossible, then where the merged ones would form a cycle."""
        own = set(operations)
        groups = DisjointSets(operations)
        for node in operations:
            if self.observed[node].kind is ValueKind.OTHER:
                for user in node.users:
                    if user in own:
                        groups.join(node, user)
        for one, other in (*self.conflicts, *self._given_and_written()):
            if one in own and other in own:
                groups.join(one, other)
        for one, following in pairwise(operations):
            if not one.users:  # it only writes, into the state of its neighbour
                groups.join(one, following)
        return merge_cycles(operations, groups, self._needs)

    def _given_and_written(self) -> list[tuple[fx.Node, fx.Node]]:
        """Pairs of operations on an argument or a buffer that one of them overwrites: no copy of it may be stale."""
        given = {
            storage
            for node, seen in self.observed.items()
            if node.op in ("placeholder", "get_attr")
            for storage in seen.storages
        }
        pairs = []
        for storage in given & self._written():
            readers = [
                node
                for node, seen in self.observed.items()
                if storage in seen.written
                or any(storage in self.observed[one].storages for one in node.all_input_nodes)
            ]
            pairs += list(pairwise(readers))
        return pairs

    def _written(self) -> set[int]:
        return {storage for seen in self.observed.values() for storage in seen.written}

    def _needs(self, node: fx.Node) -> list[fx.Node]:
        return [*node.all_input_nodes, *self.after.get(node, ())]

    def _trained(self) -> set[fx.Node]:
        found: set[fx.Node] = set()
        for node in self.graph.graph.nodes:
            if any(value.requires_grad for value in parameters_of(self.graph, node)) or any(
                one in found for one in node.all_input_nodes
            ):
                found.add(node)
        return found


class DisjointSets:
    """Disjoint sets of nodes (union-find)."""

    def __init__(self, nodes: Iterable[fx.Node]) -> None:
        self._parent = {node: node for node in nodes}

    def find(self, node: fx.Node) -> fx.Node:
        """The representative of a node's set."""
        while self._parent[node] is not node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def join(self, one: fx.Node, other: fx.Node) -> None:
        """Merge the sets of two nodes."""
        self._parent[self.find(one)] = self.find(other)


def merge_cycles(
    nodes: list[fx.Node], groups: DisjointSets, needs: Callable[[fx.Node], Iterable[fx.Node]]
) -> list[list[fx.Node]]:
    """The groups in topological order, with those that need each other merged (strongly connected components)."""
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        members.setdefault(groups.find(node), []).append(node)
    inside = set(nodes)
    upstream = {
        group: {groups.find(one) for node in own for one in needs(node) if one in inside} - {group}
        for group, own in members.items()
    }
    place = {node: number for number, node in enumerate(nodes)}
    return [
        sorted((node for group in component for node in members[group]), key=place.__getitem__)
        for component in _components(upstream)
    ]


def _components(upstream: Mapping[fx.Node, set[fx.Node]]) -> list[list[fx.Node]]:
    """Strongly connected components, upstream first (Tarjan's algorithm, without recursion)."""
    index: dict[fx.Node, int] = {}
    low: dict[fx.Node, int] = {}
    stack: list[fx.Node] = []
    on_stack: set[fx.Node] = set()
    found: list[list[fx.Node]] = []
    for root in upstream:
        work = [(root, iter(sorted(upstream[root], key=lambda one: one.name)))] if root not in index else []
        if work:
            index[root] = low[root] = len(index)
            stack.append(root)
            on_stack.add(root)
        while work:
            node, following = work[-1]
            nearest = next(following, None)
            if nearest is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[fx.Node] = []
                    while not component or component[-1] is not node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    found.append(component)
            elif nearest not in index:
                index[nearest] = low[nearest] = len(index)
                stack.append(nearest)
                on_stack.add(nearest)
                work.append((nearest, iter(sorted(upstream[nearest], key=lambda one: one.name))))
            elif nearest in on_stack:
                low[node] = min(low[node], index[nearest])
    return found


def parameters_of(graph: fx.GraphModule, node: fx.Node) -> list[nn.Parameter]:
    """Parameters that an operation reads; those of a called submodule included."""
    if node.op == "call_module":
        return list(graph.get_submodule(str(node.target)).parameters())
    if node.op not in COMPUTE_OPS:
        return []
    read = [attribute(graph, str(one.target)) for one in node.all_input_nodes if one.op == "get_attr"]
    return [value for value in read if isinstance(value, nn.Parameter)]


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    found: list[torch.Tensor] = []
    fx.node.map_aggregate(values, lambda v: found.append(v) if isinstance(v, torch.Tensor) else None)
    return found


def _kind(value: Any) -> ValueKind:
    if isinstance(value, torch.Tensor):
        crosses = value.layout is torch.strided and not value.is_quantized and not value.is_nested
        return ValueKind.TENSOR if crosses else ValueKind.OTHER
    if isinstance(value, torch.Size):
        return ValueKind.SHAPE
    return ValueKind.INTEGER if isinstance(value, int) and not isinstance(value, bool) else ValueKind.OTHER


def _shapes(value: Any) -> Shapes | None:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, tuple | list) and value and all(isinstance(one, torch.Tensor) for one in value):
        return [tuple(one.shape) for one in value]
    return None


def _storage(value: torch.Tensor) -> int:
    if value.layout is not torch.strided:  # sparse: its indices and values are never views of another tensor
        return id(value)
    return int(value.untyped_storage()._cdata)


def _draws(node: fx.Node) -> bool:
    """True if the operation may draw random numbers, by its name."""
    name = str(getattr(node.target, "__name__", node.target)).lower()
    return any(part in name for part in _DRAWS)
