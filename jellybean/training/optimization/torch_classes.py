"""Classes of torch by the name and the arguments that a document gives; mistakes are reported in plain English."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from jellybean.quantities import did_you_mean
from jellybean.training.errors import TrainingError


def find_class(module: ModuleType, base: type, name: str, refused: Mapping[str, str]) -> type[Any]:
    """The subclass of `base` in a module, by its name in any case.

    TrainingError if there is none, or if it is in `refused` (name -> reason).
    """
    known = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base and not key.startswith("_")
    }
    exact = {key.lower(): key for key in known}.get(name.lower())
    if exact is None:
        usable = sorted(set(known) - set(refused))
        raise TrainingError(
            f"{module.__name__} has no {name}: {did_you_mean(name, usable) or 'it has ' + ', '.join(usable)}"
        )
    if exact in refused:
        raise TrainingError(f"{exact} cannot be used: {refused[exact]}")
    return known[exact]


def check_arguments(made: type[Any], given: Iterable[str], where: str, reserved: Iterable[str]) -> None:
    """TrainingError if a class has no such argument, or needs one that is not given. `reserved`: not for documents."""
    accepted = {
        name: parameter
        for name, parameter in inspect.signature(made).parameters.items()
        if name not in set(reserved) and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    names = list(given)
    for name in names:
        if name not in accepted:
            known = did_you_mean(name, accepted) or f"it has {', '.join(accepted)}"
            raise TrainingError(f"{where}: {made.__name__} has no argument {name!r}; {known}")
    for name, parameter in accepted.items():
        if parameter.default is inspect.Parameter.empty and name not in names:
            raise TrainingError(f"{where}: {made.__name__} needs the argument {name!r}")


def without_lists(value: Any) -> Any:
    """The value of a document with tuples in place of lists, as torch's classes expect."""
    return tuple(map(without_lists, value)) if isinstance(value, list) else value
