"""Repeats calls to the gateway that enrols agents, as long as they fail for a while only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from jellybean_agent.errors import PlanViewError, TransientError

LOG = logging.getLogger("jellybean.agent")
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # pauses between attempts; the last one repeats


async def retried(what: str, attempt: Callable[[], Any]) -> Any:
    """The result of `attempt`, repeated after transient failures. AgentError for a permanent failure."""
    tries = 0
    while True:
        try:
            return await attempt()
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise PlanViewError(f"{what}: {reason} ({error.code().name})") from error
        except TransientError as error:
            reason = str(error)
        LOG.warning("%s: %s; tried again in %g s", what, reason, RETRY_S[min(tries, len(RETRY_S) - 1)])
        await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
        tries += 1
