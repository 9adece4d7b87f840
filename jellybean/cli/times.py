"""Options that are times: seconds as a number, or a time with its unit as in the documents; and time limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any

import typer

_started_s: ContextVar[float] = ContextVar("start of the command")

# Of a time limit: what is kept for the result to be written and printed, at most so many seconds; and what is left for
# the work however long the documents take to read.
FINISH_PART, MOST_FINISH_S, LEAST_PART = 0.1, 0.4, 0.3


def note_start() -> None:
    """Note that a command line begins, from which on its time limit counts."""
    _started_s.set(time.monotonic())


@contextmanager
def command_limit(seconds: float | None, *, most_finish_s: float = MOST_FINISH_S) -> Iterator[None]:
    """Limit the block so that the command ends about `seconds` after it was started; no limit for None.

    Entered once the documents are read: that cannot be cut short, and takes seconds for thousands of profiles.
    `most_finish_s`: that what follows the block takes at most.
    """
    from jellybean_solver import limited_work

    if seconds is None:
        yield
        return
    now_s = time.monotonic()
    spent_s = now_s - _started_s.get(now_s)
    left_s = max(seconds - min(most_finish_s, FINISH_PART * seconds) - spent_s, LEAST_PART * seconds)
    with limited_work(left_s, time.monotonic):
        yield


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


def _time_limit(then: str) -> Any:
    text = f"Seconds of the whole command, or a time such as 2min; {then}"
    return typer.Option("--time-limit", parser=seconds_within(0.01), metavar="TIME", help=text)


TimeLimit = Annotated[float | None, _time_limit("the best found by then is kept.")]
SimulationLimit = Annotated[float | None, _time_limit("then the figures are of what was simulated.")]
CheckLimit = Annotated[float | None, _time_limit("what was not checked by then is named.")]
MeasurementLimit = Annotated[float | None, _time_limit("what was measured by then is kept, and the rest is named.")]
