"""Traces a torch module into a graph of operations, whatever its signature, and checks the graph against the module.

The graph takes the tensors of the module's arguments as a flat list and returns the tensors of its result as a tuple,
so that it can be cut between any two operations. torch.fx is tried first: it keeps submodules and autograd functions as
they are, names no device, and starts in milliseconds. torch.export follows where torch.fx cannot. A graph counts only
if its outputs are the module's, and, in training mode, its gradients.
"""

from __future__ import annotations

import keyword
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from jellybean.errors import JellyBeanError
from jellybean.pipeline.call_form import CallForm
from jellybean.pipeline.torch_fx import PLACE, CalledModules, called_modules, trace_graph
from jellybean.pipeline.torch_gradients import gradient_digests
from jellybean.pipeline.torch_saved import TemporaryFileError, activations_in_file
from jellybean.pipeline.torch_state import seed_generators, state_kept
from jellybean.pipeline.user_errors import user_frame

MAX_DIFFERENCE = 1e-4  # between the graph's and the module's outputs and gradients, relative to the largest value
MOST_WEIGHTS = 1 / 2  # share in one submodule that is called as it is; where one has more, a cut must lie inside it
TRACERS = ("torch.fx", "torch.export")
_OF_GRAPHS = {"graph", "code", "meta", *(name for name in dir(fx.GraphModule) if not hasattr(nn.Module, name))}
_INNER = "module."  # prefix of the user's module in the traced call
_Results: TypeAlias = tuple[list[torch.Tensor], list[torch.Tensor | None], list[torch.Tensor]]  # `_results`


@dataclass(frozen=True)
class CallArguments:
    """The arguments of one call of a module: its tensors in order, their names, and how they nest.

    `args`, `kwargs` may nest tuples, lists and dicts; anything that is not a tensor is a constant of the trace.
    """

    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    form: CallForm

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> CallArguments:
        """The arguments of `module(*args, **kwargs)`."""
        leaves, spec = pytree.tree_flatten_with_path((tuple(args), dict(kwargs or {})))
        constants = tuple(None if isinstance(value, torch.Tensor) else value for _, value in leaves)
        tensors = [(path, value) for path, value in leaves if isinstance(value, torch.Tensor)]
        places = tuple(number for number, (_, value) in enumerate(leaves) if isinstance(value, torch.Tensor))
        names = tuple(_argument_name(path[1:]) for path, _ in tensors)
        return CallArguments(tuple(value for _, value in tensors), names, CallForm(spec, places, constants))

    def call(self, module: Callable[..., Any]) -> Any:
        """Call the module with copies of the tensors: its forward may write into them."""
        return self.form.call(module, [value.clone() for value in self.tensors])

    def rows(self, size: int) -> tuple[torch.Tensor, ...]:
        """The first `size` rows of every tensor that has a row per sample."""
        return tuple(value[:size] if value.dim() else value for value in self.tensors)


@dataclass(frozen=True)
class TracedModule:
    """A module as a graph of operations.

    `graph`: takes the arguments' tensors one by one and returns a tuple of tensors; it shares its parameters and
    buffers, by name, with the module. `result`: how these tensors nest in what the module returns; parts that are
    no tensors (caches) are left out as None. `tracer`: which of TRACERS made it. `called`: submodules of the user's
    that are one operation.
    """

    graph: fx.GraphModule
    arguments: CallForm
    result: CallForm
    tracer: str
    called: CalledModules = field(default_factory=CalledModules)


class _FlatCall(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Calls a module with flat tensors, and keeps how its result nests."""

    def __init__(self, module: nn.Module, form: CallForm) -> None:
        super().__init__()
        self.module, self.form = module, form
        results: list[CallForm] = []
        self.results, self._record = (lambda: results), results.append  # torch.export undoes changes of attributes

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        leaves, spec = pytree.tree_flatten(self.form.call(self.module, tensors))
        places = tuple(n for n, value in enumerate(leaves) if isinstance(value, torch.Tensor | fx.Proxy))
        kept = set(places)
        constants = tuple(
            value if number not in kept and isinstance(value, int | float | bool | str) else None
            for number, value in enumerate(leaves)
        )
        self._record(CallForm(spec, places, constants))
        return tuple(leaves[place] for place in places)


def trace(
    module: nn.Module,
    arguments: CallArguments,
    *,
    tracer: str | None = None,
    check: bool = True,
    tracers: Sequence[str] = TRACERS,
    called: CalledModules | None = None,
) -> TracedModule:
    """The module's graph, for any batch size of at least 1: of the first tracer whose graph computes what it computes.

    `arguments`: an example of at least two samples. `tracers`: in the order in which they are tried. `tracer`: trust
    this one, unchecked. `check`: False for the first tracer that does not fail. `called`: the only submodules of the
    user's that the graph may call as they are; None: all that cannot be followed. JellyBeanError, with the line that
    cannot be followed, if there is none.
    """
    if tracer is not None:
        try:
            return _traced_by(tracer, module, arguments, called or CalledModules())
        except Exception as error:  # user code may raise anything when it is traced
            raise JellyBeanError(f"{tracer} cannot follow {type(module).__name__} again: {_reason(error)}") from error
    expected = _expected(module, arguments) if check else {}
    reasons, coarse = [], None
    for name in tracers:
        try:
            traced, difference = _compared(name, module, arguments, called, expected)
        except TemporaryFileError:
            raise
        except Exception as error:  # noqa: BLE001  # user code may raise anything when it is traced
            reasons.append(f"{name}: {_reason(error)}")
            continue
        if not difference and _is_fine(traced, module):
            return traced
        coarse = coarse or (traced if not difference else None)
        reasons.append(f"{name}: {difference}")
    if coarse is not None:
        return coarse
    _check_names(module)
    raise JellyBeanError(
        f"neither torch.fx nor torch.export can follow {type(module).__name__}; change what they name\n"
        + "\n".join(f"  - {reason}" for reason in reasons)
    )


def _check_names(module: nn.Module) -> None:
    """JellyBeanError for a name of a submodule that the code of a graph cannot have."""
    for path, _ in module.named_modules():
        parts = path.split(".")
        taken = next((part for part in parts if keyword.iskeyword(part)), "")
        if not taken and parts[0] in _OF_GRAPHS:
            taken = parts[0]
        if taken:
            raise JellyBeanError(
                f"a graph of {type(module).__name__} cannot have a submodule of the name {taken!r}, which Python or "
                f"torch.fx keeps for itself: rename {path}"
            )


def _compared(
    tracer: str,
    module: nn.Module,
    arguments: CallArguments,
    called: CalledModules | None,
    expected: Mapping[int, _Results],
) -> tuple[TracedModule, str]:
    """The graph by a tracer, and how it differs from the module; modules that fail in it are called as they are.

    Symbols are no tuples and no tensors: a forward that asks for the type of a value is followed where it never goes.
    """
    traced = _traced_by(tracer, module, arguments, called)
    while True:
        try:
            return traced, _trace_difference(module, traced, arguments, expected)
        except TemporaryFileError:
            raise
        except Exception:
            names = _failing_modules(module, traced, arguments) if called is None and tracer == TRACERS[0] else set()
            if not names:
                raise
            traced = trace_calling(module, arguments, traced.called.names | names)


def _failing_modules(module: nn.Module, traced: TracedModule, arguments: CallArguments) -> set[str]:
    """The innermost module of the user's whose operation fails in the graph, and others of its class; or none."""
    failing = _FailingOperation(traced.graph)
    with state_kept(module), torch.no_grad(), suppress(Exception):
        failing.run(*(value.clone() for value in arguments.tensors))
    stack = failing.node.meta[PLACE][0] if failing.node is not None and PLACE in failing.node.meta else ()
    for name in reversed(stack):
        part = submodule(module, name)
        if part is not module and not type(part).__module__.startswith("torch.nn"):
            alike = {other for other, own in module.named_modules() if type(own) is type(part) and own is not module}
            return {f"{_INNER}{other}" for other in alike} - traced.called.names
    return set()


class _FailingOperation(fx.Interpreter):  # type: ignore[misc]  # mypy does not follow torch
    """Runs a graph, and keeps the operation that fails."""

    node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.node = n
        return super().run_node(n)


def trace_calling(module: nn.Module, arguments: CallArguments, names: frozenset[str]) -> TracedModule:
    """The graph by torch.fx that calls the submodules of these names as they are, and others that it cannot follow.

    JellyBeanError if the model's own forward cannot be followed.
    """
    call = _FlatCall(module, arguments.form)
    run = _runs(call, arguments)
    try:
        called = called_modules(call, module, names, run)
        return _trace_fx(module, arguments, called, run)
    except Exception as error:  # user code may raise anything when it is traced
        raise JellyBeanError(_reason(error)) from error


def submodule(module: nn.Module, name: str) -> nn.Module:
    """The submodule that `CalledModules` names."""
    return module.get_submodule(name.removeprefix(_INNER))


def _runs(call: _FlatCall, arguments: CallArguments) -> Callable[[], Any]:
    return lambda: call(*(value.clone() for value in arguments.tensors))


def _traced_by(tracer: str, module: nn.Module, arguments: CallArguments, called: CalledModules | None) -> TracedModule:
    if tracer == "torch.fx":
        run = _runs(_FlatCall(module, arguments.form), arguments) if called is None else None
        return _trace_fx(module, arguments, called or CalledModules(), run)
    return _trace_export(module, arguments)


def _is_fine(traced: TracedModule, module: nn.Module) -> bool:
    """Whether no submodule that is called as it is has so many of the weights that a cut should lie inside it."""
    parts = [submodule(module, name) for name in traced.called.names]
    most = max((sum(value.numel() for value in part.parameters()) for part in parts), default=0)
    return bool(most <= MOST_WEIGHTS * sum(value.numel() for value in module.parameters()))


def _trace_fx(
    module: nn.Module, arguments: CallArguments, called: CalledModules, run: Callable[[], Any] | None
) -> TracedModule:
    """`called`: submodules that are called as they are; with `run` (see trace_graph), others too."""
    call = _FlatCall(module, arguments.form)
    graph, called = trace_graph(call, arguments.names, called, root=_INNER.rstrip("."), run=run)
    return replace(_traced(call, graph, call, "torch.fx"), called=called)


def _trace_export(module: nn.Module, arguments: CallArguments) -> TracedModule:
    call = _FlatCall(module, arguments.form)
    free = tuple({0: torch.export.Dim.AUTO} if value.dim() else {} for value in arguments.tensors)
    try:
        logging.disable(logging.CRITICAL)  # torch.export logs its failures; trace() reports them in one line
        with (
            state_kept(module),  # what forward sets is else there after a failure, and other ranks trace without it
            warnings.catch_warnings(),
            redirect_stdout(StringIO()),  # it prints graphs
            redirect_stderr(StringIO()),
        ):
            warnings.simplefilter("ignore")
            program = torch.export.export(call, arguments.tensors, dynamic_shapes=(free,), strict=False)
            exported = program.module()
    finally:
        logging.disable(logging.NOTSET)
    graph = exported.graph
    for part in [exported, *(own for own in exported.modules() if isinstance(own, fx.GraphModule))]:
        _erase_guards(part)
    names = iter(arguments.names)
    for node in graph.nodes:
        if node.op == "placeholder":
            node.target = next(names)
    return _traced(call, graph, exported, "torch.export")


def _erase_guards(exported: fx.GraphModule) -> None:
    """Without the guards on the example's sizes and types: the check against the module replaces them."""
    for node in reversed(list(exported.graph.nodes)):
        if not node.users and (node.target == "_guards_fn" or "_assert" in str(node.target)):
            exported.graph.erase_node(node)
    exported.recompile()


def _traced(call: _FlatCall, graph: fx.Graph, root: nn.Module, tracer: str) -> TracedModule:
    """The graph over the module's own parameters and buffers, by their names in the module."""
    own = dict(call.named_parameters(remove_duplicate=False)) | dict(call.named_buffers(remove_duplicate=False))
    first = {id(value): name for name, value in (*call.named_parameters(), *call.named_buffers())}  # of tied ones
    values: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = own.get(str(node.target))
            value = attribute(root, str(node.target)) if value is None else value
            node.target = first.get(id(value), str(node.target)).removeprefix(_INNER)
            values[node.target] = value
    graph.set_codegen(fx.graph.CodeGen())  # plain arguments, not nested ones
    module = fx.GraphModule(values, graph, "Traced")
    module.graph.eliminate_dead_code(_has_effects)
    module.recompile()
    return TracedModule(module, call.form, call.results()[-1], tracer)  # type: ignore[no-untyped-call]


def _has_effects(node: fx.Node) -> bool:
    """True if an operation must stay even if nothing reads its value: modules have a state, and `x.add_(1)` writes."""
    in_place = str(node.target).endswith("_") and not str(node.target).endswith("__")
    return bool(
        node.op == "call_module"
        or node.is_impure()
        or (node.op == "call_method" and in_place)
        or {"inplace", "out"} & node.kwargs.keys()
    )


def check_trace(module: nn.Module, traced: TracedModule, arguments: CallArguments) -> str:
    """How the graph's outputs, gradients or buffers differ from the module's, or "". Both run with one random seed.

    A second batch, one sample smaller, shows whether the trace is valid for one size only; it is left out if the module
    itself cannot take it. Buffers are restored. JellyBeanError if the module cannot be run.
    """
    return _trace_difference(module, traced, arguments, _expected(module, arguments))


def _expected(module: nn.Module, arguments: CallArguments) -> dict[int, _Results]:
    """The module's own results by batch size."""
    found: dict[int, _Results] = {}
    whole = max((len(value) for value in arguments.tensors if value.dim()), default=1)
    for size in dict.fromkeys((whole, max(1, whole - 1))):
        try:
            found[size] = _results(
                module, lambda given: flat_tensors(arguments.form.call(module, given)), arguments.rows(size)
            )
        except TemporaryFileError:
            raise
        except Exception as error:  # a smaller batch may be too small, as for batch norm
            if size == whole:
                raise JellyBeanError(f"the module cannot be run on these inputs: {_reason(error)}") from error
    return found


def _trace_difference(
    module: nn.Module, traced: TracedModule, arguments: CallArguments, expected: Mapping[int, _Results]
) -> str:
    for size, wanted in expected.items():
        # Not by a call of the module: torch.fx prints the traceback of one that fails.
        found = _results(module, lambda given: list(traced.graph.forward(*given)), arguments.rows(size))
        for what, one, other in zip(("outputs", "gradients", "buffers"), wanted, found, strict=True):
            if len(one) != len(other):
                return f"it has {len(other)} {what}, and the module {len(one)}"
            far = max((_difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
            if not far <= MAX_DIFFERENCE:
                return f"its {what} differ from the module's by {far:.2g} with a batch of {size}"
    return ""


def flat_tensors(result: Any) -> list[torch.Tensor]:
    """The tensors in a module's result, in order."""
    return [value for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]


def _results(
    module: nn.Module, run: Callable[[Sequence[torch.Tensor]], list[Any]], tensors: Sequence[torch.Tensor]
) -> _Results:
    """Outputs, digests of gradients for a fixed weighting of the outputs, and buffers afterwards.

    Gradients are those of the trained parameters, of a module in training mode.
    """
    weights = [value for value in module.parameters() if value.requires_grad and module.training]
    saved = activations_in_file((*module.parameters(), *module.buffers())) if weights else nullcontext()
    with state_kept(module), saved:
        with torch.set_grad_enabled(bool(weights)):
            seed_generators(0)
            outputs = flat_tensors(run([value.clone() for value in tensors]))
        roots = [value for value in outputs if value.requires_grad]
        gradients: list[torch.Tensor | None] = []
        if roots and weights:
            coming = [torch.linspace(0.5, 1.5, one.numel(), dtype=one.dtype).reshape(one.shape) for one in roots]
            gradients = gradient_digests(roots, coming, weights)
        buffers = [value.clone() if value.layout is torch.strided else value.to_dense() for value in module.buffers()]
        return [value.detach() for value in outputs], gradients, buffers


def _difference(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """Largest difference, relative to the largest value; infinite if only one exists or the shapes differ."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    if one.shape != other.shape:
        return float("inf")
    if not one.numel() or torch.equal(one, other):
        return 0.0
    one, other = one.double(), other.double()
    both_undefined = ~torch.isfinite(one) & (torch.isnan(one) == torch.isnan(other))
    apart = torch.where(both_undefined, 0.0, (one - other).abs())
    scale = torch.nan_to_num(one.abs(), 0.0, 0.0, 0.0).max()
    return float(apart.max() / max(float(scale), 1e-6))


def _reason(error: Exception) -> str:
    """The error in one line, with the line of the user's code that caused it."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    frame = user_frame(error, libraries=True)
    return f"{text} ({frame.filename}:{frame.lineno}: {frame.line})" if frame is not None else text


def _argument_name(path: Sequence[Any]) -> str:
    """A valid identifier for a tensor's place: `attention_mask`, `input_0`, `batch_x`."""
    parts = [str(getattr(one, "key", getattr(one, "idx", one))) for one in path]
    name = "_".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)
    return name if name[:1].isalpha() else f"input_{name}"


def attribute(module: nn.Module, target: str) -> Any:
    """The attribute that a dotted path names."""
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value
