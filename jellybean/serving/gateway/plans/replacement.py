"""Waits for the workers of a plan that is to take over: no workflow switches before those of all are ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

import grpc

from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean_agent import StatusError

_POLL_S = 0.02


async def await_ready(
    prepared: Sequence[ServedPlan],
    until_s: float,
    used_before: Collection[str],
    on_new_ready: Callable[[], None] = lambda: None,
) -> None:
    """Wait until all workers of these plans are ready. StatusError at CLOCK_MONOTONIC second `until_s`.

    `on_new_ready` is called once the workers are ready that the plan before does not use (`used_before`): until then no
    worker that both use needs to leave the old one.
    """
    began_s = time.monotonic()
    for plan in prepared:
        await _ready(plan, plan.workers.keys() - set(used_before), began_s, until_s)
    on_new_ready()
    for plan in prepared:
        await _ready(plan, plan.workers.keys(), began_s, until_s)


async def _ready(plan: ServedPlan, names: Collection[str], began_s: float, until_s: float) -> None:
    try:
        async with asyncio.timeout(until_s - time.monotonic()):
            while any(plan.workers[name].state != "ready" for name in names):
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        waiting = {name: worker.why for name, worker in plan.workers.items() if name in names}
        reasons = [f"{name} ({reason})" for name, reason in waiting.items() if reason]
        limit_s = round(until_s - began_s, 1)
        late = f"not ready within {limit_s:g} s: {', '.join(reasons) or plan.missing_workers}"
        raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, late) from error
