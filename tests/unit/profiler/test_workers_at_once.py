"""Workers that measure at once: an error that nobody expects is told as it is, a time limit as a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jellybean.profiler.remote.measure import measure_on_workers
from jellybean_solver import OutOfTimeError, limited_work


class Part:
    """The part of a worker that goes on until its agent is closed, or ends with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        closed = threading.Event()
        self._error, self._wait = error, closed.wait
        self.agent = SimpleNamespace(close=closed.set)

    def measured(self, _advance: Callable[[str, float], None]) -> Iterator[Any]:
        if self._error is not None:
            raise self._error
        self._wait()
        yield from ()


def measure(**parts: Part) -> None:
    rows = SimpleNamespace(add=lambda *_: None, done=lambda _: 1, count=lambda _: 2)
    measure_on_workers(parts, rows, lambda *_: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [None, 3600.0])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("row"), AssertionError("state")])
def test_an_unexpected_error_is_no_time_limit(error: Exception, seconds: float | None) -> None:
    with pytest.raises(type(error)) as raised, limited_work(seconds, lambda: 0.0):
        measure(box=Part(error), gpu=Part())
    assert raised.value is error


def test_the_time_limit_ends_workers_that_go_on() -> None:
    with pytest.raises(OutOfTimeError, match="1 of 2 rows of box are measured and kept"):  # noqa: SIM117
        with limited_work(0.0, lambda: 0.0):
            measure(box=Part(), gpu=Part())
