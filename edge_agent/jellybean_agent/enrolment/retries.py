"""Repeats calls to the gateway that enrols agents, as long as they fail for a while only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from jellybean_agent.errors import PlanViewError, TransientError, describe_error
from jellybean_agent.security.connection_fault import ConnectionFault

LOG = logging.getLogger("jellybean.agent")
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # pauses between attempts; the last one repeats
_TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def retried(
    what: str,
    attempt: Callable[[], Any],
    diagnose: Callable[[], ConnectionFault | None] = lambda: None,
    *,
    needs_certificate: bool = False,
) -> Any:
    """The result of `attempt`, repeated after transient failures. AgentError for a permanent failure.

    `diagnose`: says why there is no connection, in a thread; gRPC's own text is used where it returns None.
    `needs_certificate`: a fault of certificates is permanent.
    """
    tries = 0
    while True:
        try:
            return await attempt()
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
            if is_refusal(error):
                raise PlanViewError(f"{what}: {describe_call_error(error)}") from error
            if (fault := await asyncio.to_thread(diagnose)) is not None:
                reason = fault.reason
                if fault.of_certificate and needs_certificate:
                    raise PlanViewError(f"{what}: {reason}") from error
        except TransientError as error:
            reason = str(error)
        LOG.warning("%s: %s; tried again in %g s", what, reason, RETRY_S[min(tries, len(RETRY_S) - 1)])
        await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
        tries += 1


def is_refusal(error: Exception) -> bool:
    """True if the gateway answered a call with an error that stays until something changes."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() not in _TRANSIENT


def describe_call_error(error: Exception) -> str:
    """One line for a person about why a call failed; a refusal with its status."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return describe_error(error)
    reason = error.details() or error.code().name
    return f"{reason} ({error.code().name})" if is_refusal(error) else reason
