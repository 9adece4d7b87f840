"""The change of a gateway process to another plan, of all workflows at once: prepared, then made or undone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from jellybean.serving.gateway.plans.current_plan import CurrentPlan
from jellybean.serving.gateway.plans.replacement import await_ready
from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.served_workflow import ServedWorkflow
from jellybean_agent import PlanView

Make = Callable[[PlanView, Mapping[str, str], Path | None], Awaitable[ServedWorkflow]]
Views = Mapping[str, PlanView]  # by workflow, as of `workflow_views`


class Changeover:
    """The parts of a plan that is to take over, until `switch` or `undo`.

    `arriving`: workflows that the plan before does not serve, connected to their workers.
    """

    def __init__(self, served: Mapping[str, ServedWorkflow], make: Make) -> None:
        self._served, self._make = served, make
        self._prepared: list[tuple[CurrentPlan, ServedPlan]] = []
        self._undo = AsyncExitStack()
        self.arriving: list[ServedWorkflow] = []

    async def prepare(self, views: Views, addresses: Mapping[str, str], links: Path | None) -> None:
        """Connect to the workers of the plan, for each workflow."""
        for name, view in views.items():
            if name in self._served:
                plans = self._served[name].gateway.plans
                plan = plans.prepare(view, addresses, links)
                self._prepared.append((plans, plan))
                self._undo.push_async_callback(plans.abandon, plan)
            else:
                arriving = await self._make(view, addresses, links)
                self._undo.push_async_callback(arriving.abandon)
                self.arriving.append(arriving)
                arriving.connect()

    async def ready(self, until_s: float, on_new_ready: Callable[[], None]) -> None:
        """Wait for all workers, then read those of the plan before. StatusError if they are not ready in time.

        Requests in flight on the plan before may last longer than its workers are waited for.
        """
        before = {name for served in self._served.values() for name in served.gateway.plans.served.workers}
        plans = [plan for _, plan in self._prepared]
        plans += [arriving.gateway.plans.served for arriving in self.arriving]
        await await_ready(plans, until_s, before, on_new_ready)
        await asyncio.gather(*(served.gateway.plans.read_for_the_last_time() for served in self._served.values()))

    def switch(self) -> list[asyncio.Task[None]]:
        """Serve new requests of the workflows that stay by the plan; returns the tasks that retire the one before.

        In one step of the event loop, so that no cancellation comes between two workflows.
        """
        self._undo = AsyncExitStack()
        return [plans.switch(plan) for plans, plan in self._prepared]

    async def undo(self) -> None:
        """Leave the workers of the plan again; each part, whatever fails at others."""
        await self._undo.aclose()
