"""Public surfaces of packages whose names are loaded on first use (PEP 562): a process pays for what it uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_surface(package: str, names: Mapping[str, Sequence[str]]) -> tuple[list[str], Callable[[str], Any]]:
    """A package's `__all__` and `__getattr__`, from its public names by module (relative to the package).

    A `.pyi` file beside the package's `__init__` lists the same names for type checkers. The `__getattr__` raises
    AttributeError for an unknown name.
    """
    module_of = {name: module for module, public in names.items() for name in public}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next use does not come here
        return value

    return sorted(module_of), load
