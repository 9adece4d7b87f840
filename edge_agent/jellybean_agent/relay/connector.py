"""Joins connections to offers of workers and to targets, within limits, and knows all pipes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from jellybean_agent.admission.shares import SharedLimit
from jellybean_agent.errors import AgentError, TransientError, describe_error
from jellybean_agent.relay.endpoints import Endpoint, Sink
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.offers import OfferPool
from jellybean_agent.relay.pipe import Pipe
from jellybean_agent.relay.traffic import FROM_WORKER, TO_WORKER, Traffic
from jellybean_protos.addresses import join_address

OnFailure = Callable[[str, str], None]  # gets a reason, as a metric's label and in words
LOCAL = ""  # who asks for a worker at its port here: the gateways, and workers on this side


class ConnectError(AgentError):
    """A connection cannot be joined to what it asks for. `label`: the reason as a metric's label."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(reason)
        self.label = label


class Waiting(Sink):
    """A connection that waits for its other end, and is not read meanwhile. `on_gone`: called when it is lost."""

    def __init__(self, endpoint: Endpoint, on_gone: Callable[[], object]) -> None:
        self._endpoint, self._on_gone = endpoint, on_gone
        endpoint.sink = self

    def received(self, data: bytes) -> None:
        self._endpoint.reset("it sends more before it has an answer")

    def lost(self, reason: str) -> None:
        self._on_gone()


class PausedSink(Sink):
    """Reads nothing of a new connection until it is piped."""

    def opened(self, endpoint: Endpoint) -> None:
        endpoint.pause_reading()


class Pipes:
    """The pipes of a process, how many each worker has by direction, and the tasks that make further ones."""

    def __init__(self, traffic: Traffic, limits: RelayLimits) -> None:
        self.traffic, self.limits = traffic, limits
        self._busy: dict[tuple[str, str], SharedLimit] = {}  # pipes, and connections that wait to become one
        self._open: set[Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def reserve(self, worker: str, direction: str, asker: str | None = None) -> contextlib.ExitStack:
        """Room for a pipe until the result is closed. ConnectError if the worker has too many in this direction.

        `asker`: who wants the pipe, if others may want one too: they share the worker's pipes.
        """
        limit = self._busy.setdefault((worker, direction), SharedLimit(self.limits.pipes))
        share = limit.share_of(asker or "")
        if limit.held >= limit.total or not (asker is None or share.may_take()):
            raise ConnectError("too_many_connections", f"worker {worker} has {limit.held} connections")
        share.add()
        found = contextlib.ExitStack()
        found.callback(share.give)
        return found

    def join(
        self,
        first: Endpoint,
        second: Endpoint,
        ends: list[tuple[str, str]],
        room: contextlib.ExitStack,
        early: bytes = b"",
    ) -> None:
        """Pipe two connections. `ends`: per worker concerned, its name and who connected; the first end of a pipe is
        the worker's if the direction is TO_WORKER, the second one otherwise. `room` is closed at the end of the pipe.
        `early`: bytes that the first one has received.
        """
        traffic = self.traffic
        forth, back = [], []
        for worker, direction in ends:
            is_first = direction == TO_WORKER
            forth.append(traffic.counter(worker, FROM_WORKER if is_first else TO_WORKER))
            back.append(traffic.counter(worker, TO_WORKER if is_first else FROM_WORKER))
            traffic.begin(worker, direction)

        def over(pipe: Pipe) -> None:
            self._open.discard(pipe)
            room.close()
            for key in ends:
                traffic.end(*key)
            if not self._open:
                self._all_ended.set()

        counts = (_all_of(forth), _all_of(back))
        self._open.add(Pipe(first, second, counts, over, self.limits.half_closed_s, early))

    def start(self, connecting: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that makes a pipe; it is cancelled at the end."""
        task = asyncio.create_task(connecting)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self, drain_s: float) -> int:
        """Wait for the pipes to end; returns how many were reset after `drain_s`."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._all_ended.clear()
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._all_ended.wait()
        left = list(self._open)
        for pipe in left:
            pipe.reset("the process ends")
        await asyncio.sleep(0.01)  # connections close in the loop's next steps
        return len(left)


class Connector:
    """Whom a relay connects. `targets`: name of a peer -> host and port. `workers`: that offer connections."""

    def __init__(
        self, workers: set[str], targets: Mapping[str, tuple[str, int]], pipes: Pipes, buffer: memoryview
    ) -> None:
        self.pools = {name: OfferPool(name, pipes.limits) for name in workers}
        self._targets, self._pipes, self._buffer = targets, pipes, buffer

    def from_local(self, endpoint: Endpoint, worker: str, on_failure: OnFailure) -> None:
        """Join a local connection to an offer of a worker; it is reset if that fails."""
        endpoint.pause_reading()

        async def connect() -> None:
            try:
                with self._pipes.reserve(worker, TO_WORKER, LOCAL) as room:
                    offer = await self.pools[worker].started()
                    self._pipes.join(offer.endpoint, endpoint, [(worker, TO_WORKER)], room.pop_all(), offer.early)
            except (ConnectError, TransientError) as error:
                label = error.label if isinstance(error, ConnectError) else "no_offer"
                on_failure(label, str(error))
                endpoint.reset(str(error))
            except asyncio.CancelledError:
                endpoint.reset("the relay ends")
                raise

        task = self._pipes.start(connect())
        Waiting(endpoint, task.cancel)

    def from_worker(
        self, endpoint: Endpoint, worker: str, name: str, answers: tuple[Callable[[], None], OnFailure]
    ) -> None:
        """Join a worker that asks for a peer to it. `answers`: called before the pipe begins, and on failure."""
        on_success, on_failure = answers

        async def connect() -> None:
            try:
                with self._pipes.reserve(worker, FROM_WORKER) as room:
                    ends, early = [(worker, FROM_WORKER)], b""
                    other: Endpoint
                    if name in self.pools:
                        room.enter_context(self._pipes.reserve(name, TO_WORKER, worker))
                        ends.append((name, TO_WORKER))
                        offer = await self.pools[name].started(worker)
                        other, early = offer.endpoint, offer.early
                    else:
                        other = await self._dial(name)
                    on_success()
                    self._pipes.join(other, endpoint, ends, room.pop_all(), early)
            except (ConnectError, TransientError) as error:
                on_failure(error.label if isinstance(error, ConnectError) else "no_offer", str(error))

        task = self._pipes.start(connect())
        Waiting(endpoint, task.cancel)

    async def _dial(self, name: str) -> Endpoint:
        if name not in self._targets:
            raise ConnectError("unknown_target", f"this relay has no peer {name or 'gateway'!r}")
        host, port = self._targets[name]
        try:
            return await dial(host, port, self._pipes.limits.dial_s, self._buffer)
        except TransientError as error:
            target = name or "gateway"
            self._pipes.traffic.failed_dials[target] += 1
            raise ConnectError("dial", f"{target} at {error}") from error


async def dial(host: str, port: int, timeout_s: float, buffer: memoryview) -> Endpoint:
    """A new connection that is not read yet; its host name is resolved anew. TransientError if there is none."""
    try:
        async with asyncio.timeout(timeout_s):
            loop = asyncio.get_running_loop()
            _, endpoint = await loop.create_connection(lambda: Endpoint(PausedSink(), buffer), host, port)
            return endpoint
    except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
        raise TransientError(f"{join_address(host, port)}: {dial_failure(error)}") from error


def dial_failure(error: Exception) -> str:
    """Why a connection could not be made, in words."""
    return "no answer" if isinstance(error, TimeoutError) else describe_error(error)


def _all_of(counts: list[Callable[[int], None]]) -> Callable[[int], None]:
    if len(counts) == 1:
        return counts[0]

    def count(size: int) -> None:
        for one in counts:
            one(size)

    return count
