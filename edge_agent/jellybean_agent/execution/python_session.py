"""Runs a Python function in place of a model. Its outputs are checked against its declaration."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from jellybean_agent.errors import InvalidInputError, ModelError, PermanentError, describe_error
from jellybean_agent.execution.python_code import (
    ModuleSource,
    PythonStep,
    arguments_of,
    require_source,
    split_function_name,
    step_signature,
)
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array, dtype_name, plain_array, tensor_mismatch

_SET_THREADS = tuple(  # OpenBLAS's function, under its names in the wheels and packages of numpy and scipy
    f"{first}openblas_set_num_threads{last}" for first in ("", "scipy_") for last in ("", "64_", "_64")
)
_loaded: dict[tuple[str, str], ModuleType] = {}  # by module and sha256: shared by the operators of a process


class PythonSession:
    """A function in this process. Its source has the planned sha256, and the hashed bytes are the bytes executed."""

    def __init__(self, step: PythonStep, sha256: str) -> None:
        _, name = split_function_name(step.function)
        source = require_source(step.function, sha256)
        self._step, self._arguments = step, arguments_of(step.arguments)
        signature = step_signature(source, step.function, self._arguments)
        self.inputs, self.outputs = signature.inputs, signature.outputs
        function = getattr(_load(source), name, None)
        if not callable(function):
            raise ModelError(f"python {step}: the module holds no such function once it is loaded")
        self._function: Callable[..., Any] = function
        _limit_threads()

    def run(self, feed: Mapping[str, Array]) -> Sequence[Array]:
        """All outputs. PermanentError when the function raises or its outputs are not as declared; passes on
        InvalidInputError."""
        try:
            found = self._function({name: _read_only(array) for name, array in feed.items()}, **self._arguments)
        except MemoryError:
            raise
        except InvalidInputError as error:
            raise InvalidInputError(f"python {self._step}: {describe_error(error)[:300]}") from error
        except (Exception, SystemExit) as error:  # any exception fails this request only
            raise PermanentError(f"python {self._step}: {_error_text(error)}") from error
        return self._checked(found, feed)

    def _checked(self, found: Any, feed: Mapping[str, Array]) -> list[Array]:
        names = [port.name for port in self.outputs]
        if not isinstance(found, Mapping) or set(found) != set(names):
            got = ", ".join(map(str, found))[:200] if isinstance(found, Mapping) else type(found).__name__
            raise PermanentError(
                f"python {self._step}: it declares outputs {', '.join(names)}, and gave {got or 'none'}"
            )
        return [self._output(port, found[port.name], feed) for port in self.outputs]

    def _output(self, port: TensorPort, array: Any, feed: Mapping[str, Array]) -> Array:
        if not isinstance(array, np.ndarray):
            raise PermanentError(f"python {self._step}: output {port.name} is a {type(array).__name__}, not an array")
        try:
            plain: Array = plain_array(array)
        except InvalidInputError as error:
            raise PermanentError(f"python {self._step}: output {port.name}: {error}") from error
        why = tensor_mismatch(dtype_name(plain), plain.shape, port.dtype, port.shape)
        if why is not None:
            raise PermanentError(f"python {self._step}: output {port.name}: {why}")
        # Outputs are written over the inputs in shared memory, so an output must not be a view of an input.
        return plain.copy() if any(np.may_share_memory(plain, one) for one in feed.values()) else plain


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _load(source: ModuleSource) -> ModuleType:
    """Execute the hashed source bytes as a module. ModelError if that fails."""
    key = (source.module, source.sha256)
    if key in _loaded:
        return _loaded[key]
    spec = importlib.util.spec_from_file_location(
        source.module, source.path, submodule_search_locations=[str(source.path.parent)] if source.is_package else None
    )
    if spec is None:
        raise ModelError(f"module {source.module}: {source.path} cannot be loaded")
    before = sys.modules.get(source.module)
    try:
        if parent := source.module.rpartition(".")[0]:
            importlib.import_module(parent)
        module = importlib.util.module_from_spec(spec)
        sys.modules[source.module] = module
        exec(compile(source.text, str(source.path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        if before is None:
            sys.modules.pop(source.module, None)
        else:
            sys.modules[source.module] = before
        raise ModelError(f"module {source.module} cannot be loaded: {_error_text(error)}") from error
    _loaded[key] = module
    return module


def _limit_threads() -> None:
    """Limit numpy's matrix products to one thread, like models: the other cores are for other workers."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in lines if "openblas" in line}:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _SET_THREADS:
                if hasattr(library, name):
                    getattr(library, name)(1)


def _error_text(error: BaseException) -> str:
    """Type and first line of an exception."""
    if isinstance(error, SystemExit):
        return f"SystemExit: it asked the process to end ({str(error)[:100]})"
    return f"{type(error).__name__}: {describe_error(error)[:300]}"
