"""Classes of torch or of the user by the name and the arguments that a document gives; mistakes in plain English."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from jellybean.pipeline.user_functions import load_object
from jellybean.quantities import did_you_mean
from jellybean.training.errors import TrainingError


def find_class(module: ModuleType, base: type, name: str, refused: Mapping[str, str], where: str) -> type[Any]:
    """The subclass of `base` in a module, by its name in any case. `where`: the key of the document.

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
        hint = did_you_mean(name, usable) or f"it has {', '.join(usable)}; a class of your own is FILE.py:NAME"
        raise TrainingError(f"{where}: {module.__name__} has no {name}: {hint}")
    if exact in refused:
        raise TrainingError(f"{where}: {exact} cannot be used: {refused[exact]}")
    return known[exact]


def load_class(name: str, base: type, directory: Path, where: str) -> type[Any]:
    """The subclass of `base` that FILE.py:NAME or MODULE:NAME names. TrainingError if it is none."""
    place, _, attribute = name.rpartition(":")
    value = load_object(place, attribute, directory)
    if not inspect.isclass(value) or not issubclass(value, base):
        what = value.__name__ if inspect.isclass(value) else f"a {type(value).__name__}"
        raise TrainingError(f"{where}: {name} is {what}, and must be a class derived from torch's {base.__name__}")
    return value


def check_arguments(made: type[Any], given: Iterable[str], where: str, reserved: Iterable[str]) -> None:
    """TrainingError if a class has no such argument, or needs one that is not given. `reserved`: not for documents."""
    names = set(given)
    check_names(made, names, where, reserved)
    for name, parameter in _arguments(made, reserved).items():
        if parameter.default is inspect.Parameter.empty and name not in names:
            raise TrainingError(f"{where}: {made.__name__} needs the argument {name!r}")


def check_names(made: type[Any], given: Iterable[str], where: str, reserved: Iterable[str]) -> None:
    """TrainingError if a class has no such argument."""
    accepted = _arguments(made, reserved)
    kinds = {parameter.kind for parameter in inspect.signature(made).parameters.values()}
    for name in given:
        if name not in accepted and (inspect.Parameter.VAR_KEYWORD not in kinds or name in set(reserved)):
            known = did_you_mean(name, accepted) or f"it has {', '.join(accepted) or 'none'}"
            raise TrainingError(f"{where}: {made.__name__} has no argument {name!r}; {known}")


def _arguments(made: type[Any], reserved: Iterable[str]) -> dict[str, inspect.Parameter]:
    """The named arguments behind the first, which is what the class works on: parameters, or an optimizer."""
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {
        name: parameter
        for name, parameter in list(inspect.signature(made).parameters.items())[1:]
        if name not in set(reserved) and parameter.kind not in variadic
    }


def without_lists(value: Any) -> Any:
    """The value of a document with tuples in place of lists, as torch's classes expect."""
    return tuple(map(without_lists, value)) if isinstance(value, list) else value
