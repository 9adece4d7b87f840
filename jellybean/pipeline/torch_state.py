"""What a module remembers between calls, beside its weights: buffers, Python values, and generators of random numbers.

A trial of a model must leave no trace, and two runs that are compared must begin alike: a counter in Python, a cached
tensor or a buffer that forward replaces would make the second run another one.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from jellybean.errors import JellyBeanError
from jellybean.pipeline.user_errors import is_users_file

_MAX_ELEMENTS = 2**22  # of a tensor that is no buffer: a larger one is data, and no model's memory
_MAX_WEIGHTS_BYTES = 2**26  # weights that are copied at each trial, so that forward may write into them
_MAX_VALUES = 200_000  # Python values that are looked at; beyond lie data sets
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_UNCHANGEABLE = (*_PLAIN, type, types.ModuleType)
_CONTAINERS = (dict, list, set, deque, bytearray)
_ITERATORS = (itertools.count, itertools.cycle)
_OF_MODULES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")  # attributes of every module
_MISSING = object()


def random_states() -> tuple[Any, ...]:
    """The states of the generators of torch, numpy and Python."""
    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()


def restore_random_states(states: tuple[Any, ...]) -> None:
    """Set the generators to the states that `random_states` returned."""
    torch.default_generator.set_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def same_random_states(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether no number was drawn between two states that `random_states` returned."""
    numpy_same = one[1][2] == other[1][2] and np.array_equal(one[1][1], other[1][1])
    return torch.equal(one[0], other[0]) and numpy_same and bool(one[2] == other[2])


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype hold the same values; NaN is the same as NaN of the same bits."""
    if one.layout is not torch.strided:
        return all(map(same_values, _parts_of_sparse(one), _parts_of_sparse(other)))
    return bool(torch.equal(one, other) or (one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))))


def _parts_of_sparse(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if value.layout is torch.sparse_coo:
        return value._indices(), value._values()
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return value.crow_indices(), value.col_indices(), value.values()
    return value.ccol_indices(), value.row_indices(), value.values()


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)


def seed_generators(seed: int) -> None:
    """Seed the generators of torch, numpy and Python."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # the generator that most code uses
    random.seed(seed)


@dataclass(frozen=True)
class _Holder:
    """A place with values. `owner`: the module that it belongs to; `where`: its name for messages."""

    target: Any
    values: Any
    owner: nn.Module | None
    where: str


@dataclass
class ModuleState:
    """A copy of what a module remembers, taken when this is made."""

    module: nn.Module
    _holders: list[_Holder] = field(default_factory=list)
    _tensors: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _generators: list[tuple[Callable[[Any], Any], Any]] = field(default_factory=list)
    _norms: list[tuple[torch.Tensor, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random_states()
        walk = _Walk(self)
        weights = list(self.module.parameters())
        self._trained = [(value, value.requires_grad) for value in weights]
        walk.seen |= {id(value) for value in weights}
        if sum(value.nbytes for value in weights) <= _MAX_WEIGHTS_BYTES:
            self._tensors += [(value, value.detach().clone()) for value in weights if _is_dense(value)]
        else:
            self._norms = [(value, _norm(value)) for value in weights if _is_dense(value)]
        for name, part in self.module.named_modules():
            walk.add_module(part, name)

    def restore(self) -> None:
        """Give the module back what it remembered.

        JellyBeanError if a call wrote into weights that are too large to be copied.
        """
        for holder in self._holders:
            _refill(holder.target, holder.values)
        for value, trained in self._trained:
            if value.requires_grad != trained:  # forward may thaw or freeze a weight
                value.requires_grad_(trained)
        with torch.no_grad():
            for value, before in self._tensors:
                if value.shape != before.shape or value.dtype != before.dtype:
                    value.data = before.clone()
                elif not same_values(value, before):
                    value.detach().copy_(before)
        for set_state, state in self._generators:
            set_state(state)
        restore_random_states(self._random)
        written = {id(value) for value, before in self._norms if _norm(value) != before}
        for name, value in self.module.named_parameters():
            if id(value) in written:
                raise JellyBeanError(
                    f"forward writes into the weight {name}, of a model with more than {_MAX_WEIGHTS_BYTES >> 20} MiB "
                    "of weights, which trials of it do not restore: write into a buffer, or before training"
                )

    def changes(self) -> list[tuple[nn.Module | None, str]]:
        """(module, name) of the Python numbers, texts and sizes of containers that are others now.

        The module is None for values outside of modules: of a class or a Python module.
        """
        return [
            (holder.owner, f"{holder.where}{name}" if holder.where.endswith(".") else holder.where)
            for holder in self._holders
            for name in _differences(holder.target, holder.values)
        ]


@contextmanager
def state_kept(module: nn.Module) -> Iterator[None]:
    """Context after which a module, the generators of random numbers and autograd's mode are as before it.

    A forward that sets the mode by itself (`set_grad_enabled`), and fails or is not followed to its end, leaves it so.
    """
    state = ModuleState(module)
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        try:
            yield
        finally:
            state.restore()


@contextmanager
def globals_kept() -> Iterator[None]:
    """Context after which the global names of the user's Python modules are bound to what they were before it.

    A function that is called once more may bind one to another model, and a loss may read the first by it.
    """
    modules = [one for one in list(sys.modules.values()) if is_users_file(getattr(one, "__file__", None))]
    before = [dict(vars(one)) for one in modules]
    try:
        yield
    finally:
        for one, values in zip(modules, before, strict=True):
            for name, value in values.items():
                if vars(one).get(name, _MISSING) is not value:
                    setattr(one, name, value)


class _Walk:
    """Finds the places that a module can remember something in, each once."""

    def __init__(self, state: ModuleState) -> None:
        self._state, self.seen, self._count = state, set[int](), 0

    def add_module(self, module: nn.Module, name: str) -> None:
        """Its attributes, buffers and hooks, its class, and the Python module that the class is written in."""
        if id(module) in self.seen:
            return
        self.seen.add(id(module))
        for _, value in module.named_buffers(recurse=False):
            if id(value) not in self.seen:
                self.seen.add(id(value))
                if not _is_dense(value):  # a forward can only replace it
                    continue
                self._state._tensors.append((value, value.detach().clone()))
        if not isinstance(module, torch.jit.ScriptModule):  # its attributes are not Python's
            self._add_attributes(module, name)

    def _add_attributes(self, module: nn.Module, name: str) -> None:
        kind = type(module).__name__
        for own in _OF_MODULES:
            values = module.__dict__.get(own)
            if values is not None:
                self._hold(values, None, f"{own} of {kind} {name}")
        self._hold(module.__dict__, module, "self.")
        for key, value in list(module.__dict__.items()):
            if key not in _OF_MODULES:
                self._add(value, module, f"self.{key}")
        for value in module._parameters.values():
            if value is not None:
                self._add(value._backward_hooks, module, "a hook's memory")
        for cls in type(module).__mro__:
            self._add_class(cls)

    def _add_class(self, cls: type) -> None:
        """Attributes of a class of the user's, and the global values beside it."""
        python = sys.modules.get(cls.__module__)
        if id(cls) in self.seen or not is_users_file(getattr(python, "__file__", None)):
            return
        self.seen.add(id(cls))
        self._hold_names(cls, cls.__name__)
        for name, value in list(vars(cls).items()):
            self._add(value, None, f"{cls.__name__}.{name}")
        if python is not None and id(python) not in self.seen:
            self.seen.add(id(python))
            self._hold_names(python, python.__name__)
            for name, value in list(vars(python).items()):
                if isinstance(value, type):
                    self._add_class(value)
                elif not name.startswith("__"):
                    self._add(value, None, f"{python.__name__}.{name}")

    def _hold_names(self, target: type | types.ModuleType, name: str) -> None:
        """The plain values among the attributes of a class or a Python module."""
        values = {key: value for key, value in vars(target).items() if _is_plain(value) and not key.startswith("__")}
        self._state._holders.append(_Holder(target, values, None, f"{name}."))

    def _hold(self, target: Any, owner: nn.Module | None, where: str) -> None:
        self._state._holders.append(_Holder(target, _copied(target), owner, where))

    def _add(self, value: Any, owner: nn.Module | None, where: str) -> None:
        """A value that may be changed, and what it refers to."""
        if isinstance(value, _UNCHANGEABLE) or id(value) in self.seen or self._count >= _MAX_VALUES:
            return
        self._count += 1
        self.seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if not isinstance(value, nn.Parameter) and value.numel() <= _MAX_ELEMENTS and _is_dense(value):
                self._state._tensors.append((value, value.detach().clone()))
            return
        if isinstance(value, nn.Module):
            for name, part in value.named_modules():
                self.add_module(part, name)
            return
        generator = _generator(value)
        if generator is not None:
            self._state._generators.append(generator)
        for held, name in _held(value, where):
            self._hold(held, owner, name)
        for part in _parts(value):
            self._add(part, owner, where)


def _generator(value: Any) -> tuple[Callable[[Any], Any], Any] | None:
    """How a generator's state is set, and the state; None for other values."""
    if isinstance(value, random.Random):
        return value.setstate, value.getstate()
    if isinstance(value, np.random.RandomState | torch.Generator):
        return value.set_state, value.get_state()
    if isinstance(value, np.random.Generator):
        return functools.partial(setattr, value.bit_generator, "state"), value.bit_generator.state
    return None


def _held(value: Any, where: str) -> list[tuple[Any, str]]:
    """(container, its name) of what a value can be changed in."""
    if isinstance(value, _CONTAINERS):
        return [(value, where)]
    if isinstance(value, types.FunctionType):
        return [(cell, f"a variable of {value.__qualname__}") for cell in value.__closure__ or ()]
    return [(value.__dict__, f"{type(value).__name__}.")] if _is_users_object(value) else []


def _parts(value: Any) -> list[Any]:
    """What a value refers to."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | set | deque | tuple | frozenset):
        return list(value)
    if _is_users_object(value):
        return list(value.__dict__.values())
    return _parts_of_callable(value)


def _parts_of_callable(value: Any) -> list[Any]:
    if isinstance(value, types.FunctionType):
        return [_content(cell) for cell in value.__closure__ or ()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, staticmethod | classmethod | property):
        return [value.fget if isinstance(value, property) else value.__func__]
    return []


def _norm(value: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(value.detach()))


def _is_dense(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and value.device.type != "meta"


def _is_plain(value: Any) -> bool:
    return isinstance(value, (*_PLAIN, *_ITERATORS))


def _is_users_object(value: Any) -> bool:
    if isinstance(value, types.FunctionType) or not hasattr(value, "__dict__"):
        return False
    python = sys.modules.get(type(value).__module__)
    return isinstance(value, types.SimpleNamespace) or is_users_file(getattr(python, "__file__", None))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _copied(target: Any) -> Any:
    """The values in a container; iterators as copies, since they advance."""
    if isinstance(target, types.CellType):
        return _stilled(_content(target))
    if isinstance(target, dict):
        return {key: _stilled(value) for key, value in target.items()}
    return type(target)(_stilled(value) for value in target) if isinstance(target, list) else copy.copy(target)


def _stilled(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, _ITERATORS) else value


def _refill(target: Any, values: Any) -> None:
    if isinstance(target, types.CellType):
        if values is not _MISSING:
            target.cell_contents = _stilled(values)
    elif isinstance(target, type | types.ModuleType):
        for name, value in values.items():
            if vars(target).get(name, _MISSING) is not value:
                setattr(target, name, _stilled(value))
    elif isinstance(target, dict | set):
        if target != values if isinstance(target, set) else not _is_same(target, values):
            target.clear()
            target.update(_copied(values))
    elif isinstance(target, deque):
        target.clear()
        target.extend(values)
    else:
        target[:] = _copied(values)


def _is_same(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """True if two dicts have the same objects in the same order, and none that advances by itself."""
    return list(one) == list(other) and all(
        value is other[key] and not isinstance(value, _ITERATORS) for key, value in one.items()
    )


def _differences(target: Any, values: Any) -> list[str]:
    """Names of the plain values in a container that are others now, or "" where its size is."""
    if isinstance(target, types.CellType):
        return [""] if _differs(_content(target), values) else []
    if isinstance(target, type | types.ModuleType):
        return [name for name, value in values.items() if _differs(vars(target).get(name, _MISSING), value)]
    if isinstance(target, dict):
        names = [*values, *(name for name in target if name not in values)]
        return [str(name) for name in names if _differs(target.get(name, _MISSING), values.get(name, _MISSING))]
    if isinstance(target, list | deque):
        pairs = zip(target, values, strict=False)
        return [""] if len(target) != len(values) or any(_differs(one, other) for one, other in pairs) else []
    return [""] if len(target) != len(values) else []


def _differs(one: Any, other: Any) -> bool:
    if isinstance(one, _ITERATORS) and isinstance(other, _ITERATORS):
        return repr(one) != repr(other)
    if one is other or not (_is_plain(one) or _is_plain(other)):
        return False
    if not (_is_plain(one) and _is_plain(other)):
        return True
    return bool(one != other and not (_is_nan(one) and _is_nan(other)))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
