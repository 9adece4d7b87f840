"""Options that are times: seconds as a number, or a time with its unit as in the documents."""

from __future__ import annotations

import math
from collections.abc import Callable

import typer


def seconds_within(least_s: float, most_s: float = math.inf) -> Callable[[str | float], float]:
    """A parser of an option: takes `20`, `20s` or `2 min` and gives seconds.

    BadParameter for what is neither a number nor a time, or is out of range.
    """

    def parse(given: str | float) -> float:
        seconds = _in_seconds(given) if isinstance(given, str) else given
        if not least_s <= seconds <= most_s:
            limits = f"{least_s:g} s or more" if most_s == math.inf else f"from {least_s:g} to {most_s:g} s"
            raise typer.BadParameter(f"{given} is not {limits}")
        return seconds

    return parse


def _in_seconds(text: str) -> float:
    from jellybean.quantities import DURATION, InvalidValueError, parse_quantity

    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_quantity(DURATION, text)
    except InvalidValueError as error:
        raise typer.BadParameter(f"{error.message}; write seconds, or a time such as 20s or 2min") from error
