"""An event loop whose clock advances to the next timer as soon as nothing else is left to do.

Timers, pauses and deadlines of seconds or minutes then cost no time, and run in their exact order. Sockets are real:
the loop looks for their bytes before it advances. For code in one thread whose times are those of the loop's clock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

Result = TypeVar("Result")
_ROUNDING_S = 1e-9  # so that the timer is due in spite of rounding
_HANG_S = 20.0  # longest wait for a socket when there is no timer


class _AdvancingSelector(selectors.EpollSelector):
    """Advances `now_s` instead of waiting for a timer. `in_flight_s`: real time that bytes may take between sockets."""

    now_s = 1000.0
    in_flight_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(_HANG_S)
            assert events, f"no timer is set, and no socket is ready after {_HANG_S:g} s"
            return events
        events = super().select(0.0)
        if not events and timeout > 0.0 and self.in_flight_s:
            events = super().select(self.in_flight_s)
        if not events and timeout > 0.0:
            self.now_s += timeout + _ROUNDING_S
        return events


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """See the module's docstring."""

    def __init__(self, in_flight_s: float = 0.0) -> None:
        self._clock = _AdvancingSelector()
        self._clock.in_flight_s = in_flight_s
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads without the limit of `asyncio.Runner`, which simulated time reaches at once (3.12)."""
        await super().shutdown_default_executor()


def run_in_simulated_time(work: Callable[[], Coroutine[Any, Any, Result]], in_flight_s: float = 0.0) -> Result:
    """The result of `work` in a `SimulatedTimeLoop`. AssertionError if a callback or a forgotten task failed.

    `in_flight_s`: real seconds to wait for bytes before the clock advances; 0 for Unix sockets, which take none.
    """
    faults: list[Mapping[str, Any]] = []
    with asyncio.Runner(loop_factory=lambda: SimulatedTimeLoop(in_flight_s)) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
        result = runner.run(work())
    assert not faults, faults
    return result
