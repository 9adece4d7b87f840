"""Profiles a torch module by layer: forward and backward time, activation bytes, parameter bytes.

The module is traced (`torch_trace`), so skip connections and tied weights are visible. Every operation is timed alone,
forward and backward, on its actual inputs. Operations that cannot be cut apart (`torch_graph`) form one layer, and
operations without weight matrices join the layer before them, as in ONNX graphs.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import fx, nn

from jellybean.errors import JellyBeanError
from jellybean.pipeline.torch_devices import copy_modules, move_module, operation_on
from jellybean.pipeline.torch_graph import (
    COMPUTE_OPS,
    DisjointSets,
    GraphFacts,
    graph_facts,
    merge_cycles,
    parameters_of,
    tensors_in,
)
from jellybean.pipeline.torch_stages import STAGES
from jellybean.pipeline.torch_state import state_kept
from jellybean.pipeline.torch_trace import CallArguments, TracedModule, trace
from jellybean_solver.pipeline import Layer, LayerGraph, layer_graph

RUNS = 5


@dataclass(frozen=True)
class TorchProfile:
    """Layer costs of a torch module.

    `tied`: trained parameter -> the layers that share it. `tracer`: what traced the module. `members`: names
    of each layer's nodes in the traced graph. `trained_bytes`: of each layer's trained parameters. `device`: where the
    layers were timed. `node_seconds`: forward and backward of each node, as timed.
    """

    graph: LayerGraph
    tied: dict[str, tuple[str, ...]]
    tracer: str
    members: tuple[tuple[str, ...], ...]
    trained_bytes: tuple[float, ...]
    device: torch.device
    node_seconds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfileTarget:
    """What layers are timed on: a device, and an autocast type of the computation; None: the weights' own type."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: torch.dtype | None = None


@dataclass
class _Cost:
    """Measured cost of one node: seconds, and bytes of its outputs (`sent_bytes`) and inputs (`read_bytes`)."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    sent_bytes: int = 0
    read_bytes: int = 0


def profile_module(
    module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any] | None = None, *, runs: int = RUNS
) -> TorchProfile:
    """Profile a module on the example arguments of one micro-batch, in its current mode (train or eval).

    Buffers are restored afterwards. JellyBeanError if no tracer can follow the module.
    """
    arguments = CallArguments.of(args, kwargs)
    traced = trace(module, arguments)
    return profile_traced(traced, graph_facts(traced, arguments.tensors), arguments.tensors, runs=runs)


def profile_traced(
    traced: TracedModule,
    facts: GraphFacts,
    tensors: Sequence[torch.Tensor],
    *,
    runs: int = RUNS,
    target: ProfileTarget | None = None,
) -> TorchProfile:
    """Profile a traced module; see `profile_module`.

    `target`: another device than the module's is used by one operation at a time, so that the module need not fit.
    """
    target = target or ProfileTarget()
    try:
        with state_kept(traced.graph):
            costs = _NodeTimer(traced.graph, facts, runs, target).costs(*tensors)
    except Exception as error:  # the module's operators may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise JellyBeanError(f"the module cannot be run on these inputs: {reason}") from error
    return _Layers(traced, facts, costs).profile(target.device)


@dataclass(frozen=True)
class _Operation:
    """A node as a call. `args`, `kwargs`: with nodes in the place of values. `parameters`: values of some nodes.

    `trained`: the parameters that take gradients.
    """

    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    parameters: Mapping[fx.Node, torch.Tensor]
    trained: Sequence[torch.Tensor]


class _NodeTimer(fx.Interpreter):  # type: ignore[misc]  # mypy does not follow torch
    """Interprets a traced graph and measures the time of each node on its own, several times.

    Timed runs get copies of their arguments, so that an operation that writes in place is timed on the same values
    each time; then it runs once more on the real ones.
    """

    def __init__(self, graph: fx.GraphModule, facts: GraphFacts, runs: int, target: ProfileTarget) -> None:
        super().__init__(graph, garbage_collect_values=True)
        self._facts, self._runs, self._target = facts, runs, target
        self._on_cpu = target.device.type == "cpu"
        self._found: dict[fx.Node, _Cost] = {}

    def costs(self, *tensors: torch.Tensor) -> dict[fx.Node, _Cost]:
        with torch.no_grad():
            self.run(*(value.clone() for value in tensors))
        return self._found

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in COMPUTE_OPS or n.name in self._facts.shared:
            return super().run_node(n)
        operation = self._operation(n)
        times = [self._time_once(operation) for _ in range(self._runs + 1)][1:]
        read_bytes = sum(_nbytes(value) for one in n.all_input_nodes for value in tensors_in(self.env[one]))
        outputs = super().run_node(n)
        self._found[n] = _Cost(
            median(one for one, _ in times),
            median(two for _, two in times),
            sum(_nbytes(value) for value in tensors_in(outputs)),
            read_bytes,
        )
        return outputs

    def _operation(self, node: fx.Node) -> _Operation:
        """The operation, with its parameters on the target's device."""
        if node.op == "call_module":
            part = self.module.get_submodule(str(node.target))
            part = self._moved_module(part)
            return _Operation(part, node.args, node.kwargs, {}, [p for p in part.parameters() if p.requires_grad])
        target, args, kwargs = operation_on(node, self._target.device)
        run = target if node.op == "call_function" else lambda one, *rest, **more: getattr(one, target)(*rest, **more)
        read = {one: self.env[one] for one in node.all_input_nodes if one.op == "get_attr"}
        parameters = {one: self._moved(value) for one, value in read.items() if isinstance(value, nn.Parameter)}
        return _Operation(run, args, kwargs, parameters, [p for p in parameters.values() if p.requires_grad])

    def _moved_module(self, part: nn.Module) -> nn.Module:
        return part if self._on_cpu else move_module(copy_modules({0: part})[0], self._target.device)

    def _moved(self, value: nn.Parameter) -> torch.Tensor:
        if self._on_cpu:
            return value
        return value.detach().to(self._target.device).requires_grad_(value.requires_grad)

    def _time_once(self, operation: _Operation) -> tuple[float, float]:
        """(forward, backward) seconds of one run; backward computes the gradients of inputs and parameters.

        Backward is 0 if the operation has nothing to differentiate.
        """
        leaves: list[torch.Tensor] = []
        with torch.enable_grad():  # the graph is run without, and a clone would then lead to no leaf
            args, kwargs = fx.node.map_arg(
                (operation.args, operation.kwargs),
                lambda one: operation.parameters[one] if one in operation.parameters else self._copied(one, leaves),
            )
        device, precision = self._target.device, self._target.precision
        with torch.enable_grad(), torch.autocast(device.type, precision) if precision else nullcontext():
            began = _now(device)
            outputs = operation.run(*args, **kwargs)
            done = _now(device)
        sources = [*leaves, *operation.trained]
        roots = [value for value in tensors_in(outputs) if value.requires_grad]
        if not roots or not sources:
            return _seconds(began, done), 0.0
        gradients = [torch.ones_like(value) for value in roots]
        returned = _now(device)
        torch.autograd.backward(roots, gradients)  # of all leaves: a reentrant checkpoint takes no choice of them
        finished = _now(device)
        for value in operation.trained:
            value.grad = None
        return _seconds(began, done), _seconds(returned, finished)

    def _copied(self, node: fx.Node, leaves: list[torch.Tensor]) -> Any:
        """A copy of a node's value. The values of trained nodes are clones of autograd leaves, added to `leaves`."""
        trained = node.name in self._facts.trained

        def copy_value(value: Any) -> Any:
            if isinstance(value, nn.Module):  # a part of the graph that runs under other settings, such as no_grad
                return self._moved_module(value)
            if not isinstance(value, torch.Tensor):
                return value
            copied = value.detach().to(self._target.device, copy=True)
            if not trained or not (value.is_floating_point() or value.is_complex()):
                return copied
            leaves.append(copied.requires_grad_())
            return copied.clone()  # the operation may write in place, which autograd forbids for leaves

        return fx.node.map_aggregate(self.env[node], copy_value)


class _Layers:
    """Joins the units of a graph to layers, and adds up their costs."""

    def __init__(self, traced: TracedModule, facts: GraphFacts, costs: dict[fx.Node, _Cost]) -> None:
        graph = traced.graph
        self._tracer, self._facts, self._costs = traced.tracer, facts, costs
        self._nodes = {node.name: node for node in graph.graph.nodes}
        self._parameter_names = {id(value): name for name, value in graph.named_parameters()}
        self._weights = {node: parameters_of(graph, node) for node in costs}
        self._layers = self._joined()
        if not self._layers:
            raise JellyBeanError("no operation of the module depends on its inputs")
        self._layer_of = {node: number for number, own in enumerate(self._layers) for node in own}

    def profile(self, device: torch.device) -> TorchProfile:
        names = self._names()
        layers = [(str(number), self._layer(number, name)) for number, name in enumerate(names)]
        graph = layer_graph(layers, [(str(up), str(down)) for up, down in sorted(self._edges())])
        place = {id(layer): number for number, (_, layer) in enumerate(layers)}
        order = [place[id(layer)] for layer in graph.layers]
        return TorchProfile(
            graph,
            self._tied(names),
            self._tracer,
            tuple(tuple(node.name for node in self._layers[number]) for number in order),
            tuple(self._bytes(number, trained=True) for number in order),
            device,
            {node.name: (cost.forward_s, cost.backward_s) for node, cost in self._costs.items()},
        )

    def _joined(self) -> list[list[fx.Node]]:
        """Units, joined to the layer before if they have no weight matrix, one input, and do not enlarge it."""
        units = [[self._nodes[name] for name in unit] for unit in self._facts.units]
        nodes = [node for node in self._nodes.values() if node in self._costs]
        groups = DisjointSets(nodes)
        for unit in units:
            for node in unit[1:]:
                groups.join(unit[0], node)
        for unit in units if self._tracer != STAGES else ():  # given stages are layers as they are
            before = {one for node in unit for one in self._needs(node) if one in self._costs and one not in unit}
            matrix = any(sum(side > 1 for side in value.shape) > 1 for node in unit for value in self._weights[node])
            if len(before) != 1 or matrix:
                continue
            (follows,) = before
            users = {groups.find(user) for user in follows.users if user in self._costs}
            enlarges = max(self._costs[node].sent_bytes for node in unit) > self._costs[follows].sent_bytes
            if users <= {groups.find(unit[0]), groups.find(follows)} and not enlarges:
                groups.join(unit[0], follows)
        return merge_cycles(nodes, groups, self._needs)

    def _needs(self, node: fx.Node) -> list[fx.Node]:
        return [*node.all_input_nodes, *(self._nodes[name] for name in self._facts.after.get(node.name, ()))]

    def _edges(self) -> set[tuple[int, int]]:
        pairs = {
            (self._layer_of[one], number)
            for node, number in self._layer_of.items()
            for one in self._needs(node)
            if one in self._layer_of
        }
        return {(up, down) for up, down in pairs if up != down}

    def _layer(self, number: int, name: str) -> Layer:
        own = self._layers[number]
        sent = [node for node in own if any(self._layer_of.get(user) != number for user in node.users)]
        return Layer(
            name,
            sum(self._costs[node].forward_s for node in own),
            sum(self._costs[node].backward_s for node in own),
            float(sum(self._costs[node].sent_bytes for node in sent)),
            self._bytes(number),
        )

    def _bytes(self, number: int, *, trained: bool = False) -> float:
        """Bytes of a layer's parameters, each counted once; only the trained ones if `trained`."""
        own = {id(value): value for node in self._layers[number] for value in self._weights[node]}
        return float(sum(_nbytes(value) for value in own.values() if value.requires_grad or not trained))

    def _names(self) -> list[str]:
        """The layers' names: of the first submodule with a weight, else of the first operation; unique."""
        named = [_name(next((n for n in own if self._weights[n]), own[0])) for own in self._layers]
        count = Counter(named)
        firsts = [next((n for n in own if self._weights[n]), own[0]).name for own in self._layers]
        return [
            name if count[name] == 1 or name not in named[:number] else f"{name}:{first}"
            for number, (name, first) in enumerate(zip(named, firsts, strict=True))
        ]

    def _tied(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        users: dict[str, dict[str, None]] = {}
        for node, number in self._layer_of.items():
            for value in self._weights[node]:
                if not value.requires_grad:
                    continue
                users.setdefault(self._parameter_names[id(value)], {})[names[number]] = None
        return {name: tuple(layers) for name, layers in users.items() if len(layers) > 1}


def _name(node: fx.Node) -> str:
    """The submodule that an operation belongs to, or the operation's own name."""
    if node.op == "call_module":
        return str(node.target)
    path = [str(one[0]) for one in (node.meta.get("nn_module_stack") or {}).values()]
    deepest = path[-1].removeprefix("L['self'].").removeprefix("module").strip(".") if path else ""
    return deepest or node.name


@dataclass(frozen=True)
class _HostInstant:
    """The wall clock, this thread's CPU time, and how often the thread was preempted so far."""

    wall_s: float
    thread_s: float
    preemptions: int

    @staticmethod
    def now() -> _HostInstant:
        return _HostInstant(time.perf_counter(), time.thread_time(), _preemptions())

    def seconds_to(self, later: _HostInstant) -> float:
        """Wall time, or the CPU time if other programs took the thread's core meanwhile and it computes alone."""
        if later.preemptions > self.preemptions and torch.get_num_threads() == 1:
            return later.thread_s - self.thread_s
        return later.wall_s - self.wall_s


def _preemptions() -> int:
    """How often the scheduler took the core from this thread; 0 where the system does not count it by thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if sys.platform == "linux" else 0


def _now(device: torch.device) -> Any:
    """The time when the device gets here: an event on a GPU, else an instant of the host."""
    if device.type != "cuda":
        return _HostInstant.now()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _seconds(began: Any, ended: Any) -> float:
    if isinstance(began, _HostInstant):
        return began.seconds_to(ended)
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def _nbytes(value: torch.Tensor) -> int:
    return int(value.numel() * value.element_size())
