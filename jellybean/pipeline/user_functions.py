"""Loads user functions, given as FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from jellybean.errors import JellyBeanError
from jellybean.pipeline.user_errors import place_and_reason, reason_of
from jellybean.user_modules import enter_project, import_file
from jellybean_protos.extras import install_command


def load_function(place: str, name: str, directory: Path = Path()) -> Callable[..., Any]:
    """The function `name` of `place`, a module or a file relative to `directory`. JellyBeanError if there is none.

    Exceptions that the function raises become JellyBeanErrors of one line, with the last file and line outside of
    installed libraries.
    """
    return _in_one_line(load_object(place, name, directory), f"{place}:{name}")


def load_object(place: str, name: str, directory: Path = Path()) -> Callable[..., Any]:
    """The function or class itself; see `load_function`."""
    if importlib.util.find_spec("torch") is None:
        raise JellyBeanError(f"torch is not installed here; it is needed for torch modules: {install_command('train')}")
    enter_project(directory)
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
    return import_file(path)
