"""While only relays of other deployments answer, one slot of a tunnel dials, as in a half-open circuit breaker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from jellybean_agent.system.timers import loop_s
from jellybean_agent.tunnel.backoff import Backoff


class ProbeGate:
    """Open: all slots dial. Closed, from an answer of another deployment until `open`: one slot probes, others wait.

    Pauses between probes double from `first_s` to `most_s`, and once the gate was closed for `patience_s` to
    `most_later_s`.
    """

    def __init__(
        self,
        first_s: float,
        most_s: float,
        patience_s: float,
        most_later_s: float,
        clock_s: Callable[[], float] = loop_s,
    ) -> None:
        self._backoff = Backoff(first_s, most_s)
        self._most_s, self._patience_s, self._most_later_s = most_s, patience_s, max(most_s, most_later_s)
        self._opened = asyncio.Event()
        self._opened.set()
        self._prober: int | None = None  # the slot that probes
        self._closed_since_s = 0.0
        self._clock_s = clock_s

    @property
    def is_patience_over(self) -> bool:
        """True if the gate has been closed for `patience_s`."""
        return self._prober is not None and self._clock_s() - self._closed_since_s >= self._patience_s

    def open(self) -> None:
        """A relay of the own deployment has answered: let all slots dial, without a pause."""
        self._prober = None
        self._opened.set()

    def close(self, slot: int) -> None:
        """A relay of another deployment has answered a slot, which becomes the prober unless there is one."""
        if self._prober is None:
            self._prober, self._closed_since_s = slot, self._clock_s()
            self._opened.clear()
            self._backoff.reset()

    async def may_dial(self, slot: int) -> None:
        """Return when a slot may dial: at once, unless another one probes."""
        if self._prober not in (None, slot):
            await self._opened.wait()

    async def pause(self, slot: int) -> None:
        """The prober's pause until its next dial, or until the gate opens. The others have none."""
        if slot == self._prober:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.next_pause_s()):
                    await self._opened.wait()

    def next_pause_s(self) -> float:
        """The length of the prober's pause, after which the next one is twice as long."""
        self._backoff.most_s = self._most_later_s if self.is_patience_over else self._most_s
        return self._backoff.next_s()
