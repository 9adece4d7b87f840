"""Python functions as variants: which may run here, where their source is, and their inputs and outputs.

Nothing here imports a module that a plan names. The module's source is located as an import would, then read, hashed
and parsed: inputs and outputs stand as literals in the function's decorator (`steps.step`), so that they are known
without running the function.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from jellybean_agent.errors import ModelError, describe_error
from jellybean_agent.tensors.dtypes import WIRE_DTYPES, is_text, unserved_reason
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import MAX_TENSOR_RANK

BUILTIN_STEPS_MODULE = "jellybean_agent.steps"  # part of the agent: its steps are always allowed
ALLOW_PYTHON_FLAG = "--allow-python"
_FUNCTION = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*:[A-Za-z]\w*", re.ASCII)
_MAX_SOURCE_BYTES = 2**22
_MAX_SIZE = 2**31 - 1  # largest size of one dimension
_HOW = "write for example my_steps:crop"
_FORM = '@step(inputs={"picture": ("uint8", (-1, 28, 28))}, outputs={...}), with nothing computed'


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """The source of a module that is installed here; the module has not been imported."""

    module: str
    path: Path
    text: bytes
    is_package: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a function with given arguments."""

    inputs: tuple[TensorPort, ...]
    outputs: tuple[TensorPort, ...]


def split_function_name(function: str) -> tuple[str, str]:
    """Module and name of `module:name`. ModelError for other texts; nested and private names are not allowed."""
    if not _FUNCTION.fullmatch(function) or len(function) > 200:
        raise ModelError(
            f"{function[:60]!r} names no function of a module: {_HOW}; no dots behind the colon, no '_' first"
        )
    module, _, name = function.partition(":")
    return module, name


def parse_allow_list(functions: Iterable[str]) -> frozenset[str]:
    """The functions that a machine's owner allows to run on it. ModelError for an invalid name."""
    found = frozenset(functions)
    for function in found:
        split_function_name(function)
    return found


def is_builtin(function: str) -> bool:
    """True if a function is one of the agent's own steps, which are always allowed."""
    return split_function_name(function)[0] == BUILTIN_STEPS_MODULE


def python_refusal(function: str, allowed: frozenset[str], how: str = "") -> str | None:
    """Why a function may not run here; None if it may. `how`: text that says how to allow it (default: the flag)."""
    if is_builtin(function) or function in allowed:
        return None
    advice = how or f"give {ALLOW_PYTHON_FLAG} {function}"
    return f"python {function} is not allowed here, and was not imported: if the machine's owner agrees, {advice}"


@dataclass(frozen=True, slots=True)
class PythonStep:
    """A function with its arguments (JSON) that may run here. ModelError unless it is in the allow-list."""

    function: str
    arguments: str = "{}"
    allowed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Check the allow-list."""
        if (reason := python_refusal(self.function, self.allowed)) is not None:
            raise ModelError(reason)

    def __str__(self) -> str:
        return self.function

    @property
    def key(self) -> str:
        """Text that is equal for equal functions with equal arguments."""
        return f"{self.function} {self.arguments}"


def arguments_of(text: str) -> dict[str, Any]:
    """Arguments by name. ModelError unless the text is a JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"arguments that are no JSON: {describe_error(error)}") from error
    if not isinstance(found, dict):
        raise ModelError("arguments that are no JSON object")
    return found


def step_folders(allowed: Iterable[str], folders: Sequence[str]) -> list[str]:
    """Those of the folders that have a module of an allowed function that is not installed.

    Only they may be put on the import path: in others, a file with the name of a library that is not installed would
    run unasked.
    """
    needed = []
    for folder in folders:
        for module in {split_function_name(function)[0] for function in allowed}:
            with contextlib.suppress(ModelError):
                if find_module_source(module, [folder]).path.is_relative_to(folder):
                    needed.append(folder)
                    break
    return needed


def find_module_source(module: str, folders: Sequence[str] = ()) -> ModuleSource:
    """The source that importing the module would execute, found without importing. ModelError if there is none.

    `folders`: where modules that are not installed are looked for.
    """
    importlib.invalidate_caches()
    spec, name = _find_spec(module, None)
    if spec is None and folders:
        spec, name = _find_spec(module, folders)
    if spec is None:
        raise ModelError(f"there is no module {name} here: install it where this runs, or put it on PYTHONPATH")
    path = Path(spec.origin or "")
    if path.suffix != ".py" or not path.is_file():
        raise ModelError(f"module {module} has no Python source here")
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise ModelError(f"module {module}: {path}: {describe_error(error)}") from error
    if len(text) > _MAX_SOURCE_BYTES:
        raise ModelError(f"module {module}: {path} has more than {_MAX_SOURCE_BYTES} bytes")
    return ModuleSource(module, path, text, spec.submodule_search_locations is not None)


def require_source(function: str, sha256: str) -> ModuleSource:
    """The installed source of a function's module. ModelError unless it has the planned sha256."""
    source = find_module_source(split_function_name(function)[0])
    if source.sha256 != sha256:
        raise ModelError(
            f"python {function}: {source.path} has sha256 {source.sha256[:12]}..., the plan says {sha256[:12]}...: "
            "another version is installed here; install the planned one, or plan again"
        )
    return source


def _find_spec(module: str, places: Sequence[str] | None) -> tuple[ModuleSpec | None, str]:
    """The module's spec, or None with the name of the part that is missing. `places`: None for the import path."""
    spec: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            spec = next((found for one in sys.meta_path if (found := one.find_spec(name, places)) is not None), None)
        except KeyError as error:  # a namespace package in a namespace package is found only by importing
            raise ModelError(f"module {module}: the folder of {name} needs an __init__.py") from error
        if spec is None:
            break
        places = spec.submodule_search_locations or []
    return spec, name


def step_signature(source: ModuleSource, function: str, arguments: Mapping[str, Any]) -> Signature:
    """A function's inputs and outputs, read from its decorator. ModelError where they are not declared correctly."""
    _, name = split_function_name(function)
    definition = _definition(source, name)
    declared = _declared(definition, function)
    parameters = _parameters(definition, function)
    unknown = sorted(set(arguments) - set(parameters.names))
    if unknown and not parameters.takes_more:
        known = ", ".join(parameters.names) or "none"
        raise ModelError(f"{function} takes no argument {unknown[0]!r}; it takes: {known}")
    missing = [one for one in parameters.required if one not in arguments]
    if missing:
        raise ModelError(f"{function} needs the argument {missing[0]!r}")
    given = {**parameters.defaults, **arguments}
    found = [
        tuple(_port(function, port, what, given) for port, what in declared[side].items())
        for side in ("inputs", "outputs")
    ]
    return Signature(*found)


@dataclass(frozen=True, slots=True)
class _Parameters:
    """A function's keyword parameters. `defaults`: the default values that are literals."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    defaults: Mapping[str, Any]
    takes_more: bool


def _definition(source: ModuleSource, name: str) -> ast.FunctionDef:
    try:
        tree = ast.parse(source.text, str(source.path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelError(f"module {source.module} is no Python: {describe_error(error)}") from error
    found = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name]
    if not found:
        others = [one.name for one in tree.body if isinstance(one, ast.FunctionDef) and _decorator(one) is not None]
        steps = f"; its steps: {', '.join(others)}" if others else ""
        raise ModelError(f"module {source.module} has no function {name}{steps}")
    return found[-1]


def _decorator(definition: ast.FunctionDef) -> ast.Call | None:
    for one in definition.decorator_list:
        if isinstance(one, ast.Call):
            called = one.func.attr if isinstance(one.func, ast.Attribute) else getattr(one.func, "id", "")
            if called == "step":
                return one
    return None


def _declared(definition: ast.FunctionDef, function: str) -> dict[str, dict[str, Any]]:
    call = _decorator(definition)
    if call is None:
        raise ModelError(f"{function} is no step: it needs {_FORM} above it, from {BUILTIN_STEPS_MODULE}")
    try:
        found = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"{function}: its decorator must be literals: {_FORM}") from error
    sides = [found.get("inputs"), found.get("outputs")]
    if call.args or len(found) != 2 or not all(isinstance(side, dict) and side for side in sides):
        raise ModelError(f"{function}: its decorator must name inputs and outputs: {_FORM}")
    return found


def _parameters(definition: ast.FunctionDef, function: str) -> _Parameters:
    own = definition.args
    if len([*own.posonlyargs, *own.args]) != 1 or own.vararg is not None:
        raise ModelError(f"{function} must take its inputs, then arguments by name: def step(inputs, *, ...)")
    defaults: dict[str, Any] = {}
    for parameter, default in zip(own.kwonlyargs, own.kw_defaults, strict=True):
        if default is not None:
            try:
                defaults[parameter.arg] = ast.literal_eval(default)
            except (ValueError, TypeError, RecursionError):
                continue  # an error only if a tensor's size or dtype refers to it
    required = tuple(p.arg for p, d in zip(own.kwonlyargs, own.kw_defaults, strict=True) if d is None)
    return _Parameters(tuple(p.arg for p in own.kwonlyargs), required, defaults, own.kwarg is not None)


def _port(function: str, name: Any, what: Any, given: Mapping[str, Any]) -> TensorPort:
    """A declared tensor (dtype, sizes); each is a literal, or the name of the argument with its value."""
    if not isinstance(name, str) or not name or not isinstance(what, tuple | list) or len(what) != 2:
        raise ModelError(f"{function}: its decorator must say name: (dtype, shape): {_FORM}")
    dtype, shape = what
    known = given.get(dtype, dtype) if isinstance(dtype, str) and dtype not in WIRE_DTYPES else dtype
    if isinstance(known, str) and is_text(known):
        raise ModelError(f"{function}: {name} {unserved_reason(known)}")
    if not isinstance(known, str) or known not in WIRE_DTYPES:
        raise ModelError(
            f"{function}: {name} has no known dtype ({str(known or dtype)[:40]}); known: {', '.join(WIRE_DTYPES)}"
        )
    if not isinstance(shape, tuple | list) or not shape:
        raise ModelError(f"{function}: {name} needs a shape whose first size is that of the batch: (-1, ...)")
    sizes = [size for item in shape for size in _sizes(function, name, item, given)]
    if len(sizes) > MAX_TENSOR_RANK:
        raise ModelError(f"{function}: {name} has {len(sizes)} dimensions; {MAX_TENSOR_RANK} are the limit")
    return TensorPort(name, known, tuple(sizes))


def _sizes(function: str, name: str, item: Any, given: Mapping[str, Any]) -> list[int]:
    value = given.get(item) if isinstance(item, str) else item
    listed: Sequence[Any] = value if isinstance(value, tuple | list) and isinstance(item, str) else [value]
    if any(
        isinstance(size, bool) or not isinstance(size, int) or not (size == -1 or 0 < size <= _MAX_SIZE)
        for size in listed
    ):
        said = f"argument {item!r}, {str(value)[:40]}," if isinstance(item, str) else str(item)[:40]
        raise ModelError(f"{function}: {said} is no size of {name}: a number from 1, -1 for any, or a list of these")
    return list(listed)
