"""Loads user functions, given as FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from jellybean.errors import JellyBeanError
from jellybean.pipeline.user_errors import place_and_reason, reason_of

_USER_MODULES: dict[str, Path] = {}  # module name -> file of the user; names of other modules are not taken


def load_function(place: str, name: str, directory: Path = Path()) -> Callable[..., Any]:
    """The function `name` of `place`, a module or a file relative to `directory`. JellyBeanError if there is none.

    Exceptions that the function raises become JellyBeanErrors of one line, with the last file and line outside of
    installed libraries.
    """
    return _in_one_line(load_object(place, name, directory), f"{place}:{name}")


def load_object(place: str, name: str, directory: Path = Path()) -> Callable[..., Any]:
    """The function or class itself; see `load_function`."""
    if importlib.util.find_spec("torch") is None:
        raise JellyBeanError("torch is not installed here; it is needed for torch modules: pip install torch")
    try:
        module = _import_file(directory / place) if place.endswith(".py") else importlib.import_module(place)
    except JellyBeanError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise JellyBeanError(f"{place} cannot be imported: {reason_of(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise JellyBeanError(f"{place} has no function {name!r}")
    found: Callable[..., Any] = function
    return found


def _in_one_line(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        try:
            return function(*given)
        except (Exception, SystemExit) as error:
            raise JellyBeanError(f"{what} failed{place_and_reason(error)}") from error

    return call


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise JellyBeanError(f"there is no file {path}")
    changed = path.stat()
    return _run_file(path.resolve(), (changed.st_mtime_ns, changed.st_size))


@lru_cache(maxsize=64)
def _run_file(path: Path, _version: tuple[int, int]) -> ModuleType:
    """Import a file, once per version: its model and its data see the same classes, and register operators once.

    It stays importable by its name, for dataclasses and for processes that data loaders start.
    """
    own = _USER_MODULES.get(path.stem) is not None or path.stem not in sys.modules
    name = path.stem if own else f"jellybean_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise JellyBeanError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    finally:
        sys.path.remove(str(path.parent))
    _USER_MODULES[name] = path
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    return module
