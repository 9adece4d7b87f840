"""Traces a module by torch.fx, and calls as they are the submodules that cannot be followed, or need not be.

torch.fx runs forward once, with symbols for tensors. It records no regions of another precision or gradient mode, no
numbers that Python counts or draws, no assignments, and no hooks of the backward pass. A submodule whose forward has
any of these becomes one operation of the graph, which calls the submodule itself.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from jellybean.errors import JellyBeanError
from jellybean.pipeline.call_form import CallForm, step_into
from jellybean.pipeline.torch_state import random_states, same_random_states, state_kept

PLACE = "place"  # key of a node's meta: which operation of which call it is, whatever else is one operation
COMPUTE_OPS = {"call_module", "call_function", "call_method"}
_INTERNAL = ("_parameters", "_modules", "_buffers", "training")
Place: TypeAlias = tuple[tuple[str, ...], str, str, int]  # modules that are called, operation, target, which of these


@dataclass(frozen=True)
class CalledModules:
    """Submodules that a graph calls as they are.

    `results`: how the tensors of a result nest, by name and number of the call; of those that are no single tensor.
    """

    names: frozenset[str] = frozenset()
    results: Mapping[tuple[str, int], CallForm] = field(default_factory=dict)


def trace_graph(
    call: nn.Module, names: Sequence[str], called: CalledModules, *, root: str, run: Callable[[], Any] | None
) -> tuple[fx.Graph, CalledModules]:
    """The graph of `call`, whose arguments have these names, and the submodules that it calls as they are.

    `root`: name of the model in `call`, which is followed in any case. `run`: runs the model once on an example; then
    submodules that cannot be followed are called as they are. None: all others than `called` must be followed.
    """
    while True:
        tracer = _Tracer(names, called, root)
        try:
            with (
                warnings.catch_warnings(),
                state_kept(call.get_submodule(root)),
                _attributes_restored(call.get_submodule(root)),
                _functions_recorded(tracer),
                _autocast_counted(tracer),
            ):
                warnings.simplefilter("ignore")  # of symbols in the place of tensors
                return tracer.trace(call), called
        except Exception:
            added = tracer.modules_like_failed(called.names) if run is not None else frozenset()
            if run is None or not added:
                raise
            called = called_modules(call, call.get_submodule(root), called.names | added, run)


def called_modules(call: nn.Module, model: nn.Module, names: frozenset[str], run: Callable[[], Any]) -> CalledModules:
    """The submodules of these names, with what they return when the model runs once."""
    results: dict[tuple[str, int], CallForm] = {}
    calls: Counter[str] = Counter()

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _args: Any, result: Any) -> None:
            if not isinstance(result, torch.Tensor):
                results[name, calls[name]] = _form(result)
            calls[name] += 1

        return hook

    with state_kept(model):
        parts = {name: call.get_submodule(name) for name in names}
        hookable = {name: part for name, part in parts.items() if not isinstance(part, torch.jit.ScriptModule)}
        hooks = [part.register_forward_hook(keep(name)) for name, part in hookable.items()]
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
    return CalledModules(names, results)


def _form(result: Any) -> CallForm:
    leaves, spec = pytree.tree_flatten(result)
    places = tuple(number for number, value in enumerate(leaves) if isinstance(value, torch.Tensor))
    constants = tuple(value if isinstance(value, int | float | bool | str) else None for value in leaves)
    return CallForm(spec, places, constants)


class _Tracer(fx.Tracer):  # type: ignore[misc]  # mypy does not follow torch
    """Symbolic tracing of a call with a fixed number of tensors."""

    proxy_buffer_attributes = True  # else a module that updates a buffer does so once, while it is traced

    def __init__(self, names: Sequence[str], called: CalledModules, root: str) -> None:
        super().__init__()
        self._names, self._called, self._root = names, called, root
        self._stack: list[str] = []  # modules whose calls are traced, outermost first
        self._failed: tuple[str, ...] = ()
        self._calls: Counter[str] = Counter()
        self._places: Counter[tuple[tuple[str, ...], str, str]] = Counter()
        self._owned: set[int] | None = None  # the ids of the model's modules
        self._grad, self.autocast_regions = torch.is_grad_enabled(), 0

    def modules_like_failed(self, called: frozenset[str]) -> frozenset[str]:
        """The innermost module that could not be followed, and others of its class; none if there is only the root."""
        for name in reversed(self._failed):
            module = self.root.get_submodule(name)
            if name in called or name == self._root or type(module).__call__ is not nn.Module.__call__:
                continue
            alike = {other for other, part in self.root.named_modules() if type(part) is type(module)}
            return frozenset(alike - {self._root, ""} - called)
        return frozenset()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """True for layers of torch, but for a model that is one itself: parameters keep their names in the model."""
        if module_qualified_name == self._root:
            return False
        return module_qualified_name in self._called.names or bool(super().is_leaf_module(m, module_qualified_name))

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        inputs = [self.create_proxy("placeholder", name, (), {}) for name in self._names]
        return inspect.unwrap(root_fn), [self.root, *inputs]

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A node with its place. JellyBeanError in a region whose mode no graph records."""
        if kind in COMPUTE_OPS and self._stack:
            self._check_region()
        node = super().create_node(kind, target, *args, **kwargs)
        key = (tuple(self._stack), kind, str(getattr(target, "__name__", target)))
        node.meta[PLACE] = (*key, self._places[key])
        self._places[key] += 1
        return node

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._is_function(m):
            with _only_computes(m):
                return forward(*args, **kwargs)
        name = self.path_of_module(m)
        self._stack.append(name)
        try:
            if self.is_leaf_module(m, name):
                return self._called_as_it_is(name, super().call_module(m, forward, args, kwargs))
            self._check_hooks(m, name)
            with _only_computes(m):
                return super().call_module(m, forward, args, kwargs)
        except Exception:
            self._failed = self._failed or tuple(self._stack)
            raise
        finally:
            self._stack.pop()

    def _is_function(self, module: nn.Module) -> bool:
        """Whether a module is none of the model's and has no tensors, as a loss that forward makes."""
        if self._owned is None:
            self._owned = {id(part) for part in self.root.modules()}
        return id(module) not in self._owned and not [*module.parameters(), *module.buffers()]

    def _called_as_it_is(self, name: str, result: fx.Proxy) -> Any:
        """The result of a called module, of the structure that it had when it ran."""
        form = self._called.results.get((name, self._calls[name]))
        self._calls[name] += 1
        if form is None:
            return result
        numbered = pytree.tree_unflatten(range(len(form.constants)), form.spec)
        paths = [path for path, _ in pytree.tree_leaves_with_path(numbered)]
        return form.nest([_part(result, paths[place]) for place in form.places])

    def _check_hooks(self, module: nn.Module, name: str) -> None:
        """JellyBeanError for hooks that a trace drops: of the backward pass, and any of a part that may be called."""
        backward = module._backward_hooks or module._backward_pre_hooks
        if backward or (name != self._root and (module._forward_hooks or module._forward_pre_hooks)):
            raise JellyBeanError(f"{type(module).__name__} has hooks")

    def _check_region(self) -> None:
        region = ""
        if self.autocast_regions:
            region = "torch.autocast"
        elif torch.is_inference_mode_enabled() or torch.is_grad_enabled() != self._grad:
            region = "torch.no_grad, enable_grad or inference_mode"
        if region:
            raise JellyBeanError(f"forward computes in a region of {region}")


def _part(result: fx.Proxy, path: Sequence[Any]) -> Any:
    for step in path:
        function, key = step_into(step)
        result = result.tracer.create_proxy("call_function", function, (result, key), {})
    return result


@contextmanager
def _only_computes(module: nn.Module) -> Iterator[None]:
    """Context of a module's forward. JellyBeanError if it changes the module's attributes, or draws random numbers."""
    before, generators = _attributes(module), random_states()
    yield
    changed = sorted(name for name, value in _attributes(module).items() if before.get(name) != value)
    if changed:
        raise JellyBeanError(f"forward of {type(module).__name__} changes self.{', self.'.join(changed)}")
    if not same_random_states(generators, random_states()):
        raise JellyBeanError(f"forward of {type(module).__name__} draws random numbers of no operation on its inputs")


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What forward may change: plain values, the identity of others, and the size of containers."""
    values = {name: value for name, value in module.__dict__.items() if name not in _INTERNAL}
    return {name: _sign(value) for name, value in (values | module._buffers).items()}


def _sign(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | bytes | type(None)):
        return value
    return (id(value), len(value) if isinstance(value, dict | list | set) else 0)


@contextmanager
def _attributes_restored(module: nn.Module) -> Iterator[None]:
    """Restore attributes of all submodules. JellyBeanError if a value computed in the trace was assigned to one.

    torch.fx records no assignments, so such a graph would not update the module's state.
    """
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    places = [own for part in parts for own in (part.__dict__, part._buffers, part._parameters)]
    kept = [dict(own) for own in places]
    try:
        yield
    finally:
        assigned = {
            name
            for own, before in zip(places, kept, strict=True)
            for name, value in own.items()
            if isinstance(value, fx.Proxy | torch.Tensor) and value is not before.get(name)
        }
        for own, before in zip(places, kept, strict=True):
            own.clear()
            own.update(before)
    if assigned:
        raise JellyBeanError(f"the module assigns a computed value to self.{', self.'.join(sorted(assigned))}")


@contextmanager
def _functions_recorded(tracer: fx.Tracer) -> Iterator[None]:
    """Record a torch.autograd.Function as one operation, with its own gradient, and do not trace into it."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        function = original.__get__(None, cls)
        if not any(isinstance(value, fx.Proxy) for value in pytree.tree_leaves((args, kwargs))):
            return function(*args, **kwargs)

        def run(*given: Any, **more: Any) -> Any:  # torch.fx writes functions of torch by name, and this one has none
            return function(*given, **more)

        run.__name__ = cls.__name__
        return tracer.create_proxy("call_function", run, args, kwargs)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = original


@contextmanager
def _autocast_counted(tracer: _Tracer) -> Iterator[None]:
    """Count the regions of autocast that forward is in."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    def counted_enter(region: Any) -> Any:
        tracer.autocast_regions += 1
        return enter(region)

    def counted_leave(region: Any, *reason: Any) -> Any:
        tracer.autocast_regions -= 1
        return leave(region, *reason)

    torch.autocast.__enter__, torch.autocast.__exit__ = counted_enter, counted_leave
    try:
        yield
    finally:
        torch.autocast.__enter__, torch.autocast.__exit__ = enter, leave
