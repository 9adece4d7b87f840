"""Requests to a gateway in this process: how they are sent, why they fail, and what is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from jellybean.serving.outcomes import Result
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.scripted_workers import INPUTS, ScriptedWorker, Served


def refuse(status: grpc.StatusCode, reason: str) -> Callable[[ScriptedWorker, agent_pb2.Message], None]:
    """A worker's behaviour: each message fails with this status."""
    return lambda worker, message: worker.fail(message, status, reason)


def ask(
    found: Served, time_left_s: float | None = 20.0, request_id: str = "", caller: str = ""
) -> asyncio.Task[Result]:
    """A request that is under way, as a task."""
    return asyncio.create_task(found.gateway.infer(INPUTS, time_left_s, request_id, caller))


def reason_of(result: Result, status: grpc.StatusCode) -> str:
    """Why a request has no answer, if it has this status."""
    outcome, outputs = result
    assert outcome is not None
    assert (outcome.status, dict(outputs)) == (status, {})
    return outcome.reason


def assert_nothing_is_left(found: Served) -> None:
    """No request is counted, waits or keeps an attempt at any plan any more, and a new one is admitted."""
    status = found.gateway.status()
    assert (status.requests_in_hand, status.waiting) == (0, 0)
    assert not found.gateway.plans.served.has_attempts
    assert status.answered + status.failed == found.gateway.counters.received
