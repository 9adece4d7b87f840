"""One workflow that a gateway process serves: its requests, and the ledger of what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jellybean.serving.gateway.gateway import Gateway

if TYPE_CHECKING:
    from jellybean.serving.gateway.accounting.recorder import Recorder


@dataclass(frozen=True, slots=True, eq=False)
class ServedWorkflow:
    """A gateway of one workflow, from `start` to `close`. `recorder`: writes its ledger; None: none is written."""

    gateway: Gateway
    recorder: Recorder | None = None

    @property
    def name(self) -> str:
        """Name of the workflow."""
        return self.gateway.view.served_name

    async def write_answers(self) -> None:
        """Write the answers that were given since the last interval, so that labels find them."""
        if self.recorder is not None:
            await self.recorder.write_answers()

    def connect(self) -> None:
        """Connect to the workers."""
        self.gateway.connect()

    def start(self) -> None:
        """Serve, once it is connected, and write the ledger."""
        self.gateway.serve_kept()
        if self.recorder is not None:
            self.recorder.start()

    async def abandon(self) -> None:
        """End before it has served anything; its ledger has no line of it."""
        await self.gateway.close()
        await self._end_ledger()

    async def close(self, *, ends_run: bool = True) -> None:
        """End; the last interval is written while the workers still answer.

        `ends_run`: False if other workflows are served on, which cost from then on without it.
        """
        if not ends_run:
            await self.gateway.plans.read_for_the_last_time()
            self.gateway.plans.stop_costs()
        if self.recorder is not None:
            await self.recorder.close(ends_run=ends_run)
        await self.gateway.close()
        await self._end_ledger()

    async def _end_ledger(self) -> None:
        """Close the ledger's files; calls that still arrive are not counted any more."""
        if self.recorder is not None:
            gateway = self.gateway
            gateway.counters.log = gateway.on_answer = gateway.on_inputs = gateway.on_outputs = None
            gateway.audits.on_audit = None
            await self.recorder.end(has_kept=gateway.status().kept > 0)
