"""Open-loop load generator: requests are sent when they are due, whether or not earlier ones were answered.

Latency counts from the due time, so that a stall of the server or of the generator shows. Requests are serialised
before the measurement and answers are parsed after it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
import numpy as np

from jellybean.serving.endpoint import Endpoint
from jellybean.serving.errors import ServingError
from jellybean_agent import protocol_metadata
from jellybean_solver import Arrivals

INFER = "/jellybean.gateway.v1.Gateway/Infer"
OK, UNANSWERED = "OK", "UNANSWERED"
_TICK_S = 0.25
_CONNECT_S = 10.0
_SENT_AT_ONCE = 64  # requests that are late, between two turns of the event loop: else nothing could end the load

Tick = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. `due_s` and `finished_s` count from the start of the load; `answer`: serialised InferResponse.

    `row`: index of the held-out request. `status`: gRPC status name, `OK` or `UNANSWERED`.
    """

    row: int
    due_s: float
    finished_s: float
    status: str
    reason: str = ""
    answer: bytes = b""

    @property
    def latency_s(self) -> float:
        """Seconds from the due time to the answer; for an unanswered request, to the end of the wait for answers."""
        return self.finished_s - self.due_s


def due_times(rate_per_s: float, duration_s: float, arrivals: Arrivals, seed: int) -> list[float]:
    """Due times in [0, duration_s): evenly spaced, or a Poisson process conditioned on rate x duration arrivals.

    Given their number, the arrivals of a Poisson process are sorted uniform times. A fixed number makes the offered
    rate exact in short runs too.
    """
    count = int(np.ceil(rate_per_s * duration_s - 1e-9))
    if arrivals is Arrivals.PERIODIC:
        return [index / rate_per_s for index in range(count)]
    times: list[float] = np.sort(np.random.default_rng(seed).uniform(0.0, duration_s, count)).tolist()
    return times


async def offer(
    endpoint: Endpoint,
    requests: Sequence[bytes],
    rows: Sequence[int],
    due_s: Sequence[float],
    *,
    settle_s: float,
    end_s: float = 0.0,
    tick: Tick | None = None,
    places: Sequence[bytes] = (),
) -> list[Sample]:
    """Send the serialised request `requests[rows[i]]` at `due_s[i]` seconds; returns one sample per request.

    Requests without an answer `settle_s` after the last due time, or after `end_s` if that is later, are cancelled.
    Lasts at least `end_s` seconds.
    `places[i]`: serialised fields that are added to the request, if given: its place in a stream.
    `tick(elapsed_s)` is awaited about every quarter second, and once more at the end. ServingError if the gateway does
    not answer at all.
    """
    samples: list[Sample] = []
    async with endpoint.transport().channel(endpoint.address) as channel:
        infer: Any = channel.unary_unary(INFER, request_serializer=None, response_deserializer=None)
        metadata = protocol_metadata()
        await _connected(channel, endpoint.address)
        began = time.monotonic()

        async def one(row: int, due: float, place: bytes) -> None:
            status, reason, answer = OK, "", b""
            try:
                answer = await infer(requests[row] + place, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                status, reason = error.code().name, error.details() or ""
            except asyncio.CancelledError:
                status, reason = UNANSWERED, "no answer by the end of the measurement"
            samples.append(Sample(row, due, time.monotonic() - began, status, reason, answer))

        waiting: set[asyncio.Task[None]] = set()
        ticker = asyncio.create_task(_ticks(tick, began)) if tick else None
        requested = zip(rows, due_s, places or itertools.repeat(b"", len(rows)), strict=True)
        for number, (row, due, place) in enumerate(requested):
            rest_s = began + due - time.monotonic()
            if rest_s > 0 or number % _SENT_AT_ONCE == 0:
                await asyncio.sleep(max(0.0, rest_s))
            task = asyncio.create_task(one(row, due, place))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        if waiting:
            until = began + max(due_s[-1] if due_s else 0.0, end_s) + settle_s
            await asyncio.wait(waiting, timeout=max(0.0, until - time.monotonic()))
        await asyncio.sleep(max(0.0, began + end_s - time.monotonic()))
        for task in tuple(waiting):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if ticker is not None:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
        if tick is not None:
            await tick(time.monotonic() - began)
    return sorted(samples, key=lambda sample: sample.due_s)


async def _connected(channel: grpc.aio.Channel, address: str) -> None:
    try:
        await asyncio.wait_for(channel.channel_ready(), _CONNECT_S)
    except TimeoutError as error:
        raise ServingError(f"the gateway at {address} does not answer; is it up? jellybean up DIR") from error


async def _ticks(tick: Tick, began: float) -> None:
    while True:
        await tick(time.monotonic() - began)
        await asyncio.sleep(_TICK_S)
