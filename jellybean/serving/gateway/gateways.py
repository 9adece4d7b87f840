"""The workflows that a gateway process serves, each with its own limits, targets, routes, counters and clients.

They share the workers and a plan, which all of them replace at once. A flood of one is shed at its own limit of
requests in flight, and workers share their time out among workflows as planned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import lru_cache
from pathlib import Path

import grpc

from jellybean.serving.gateway.changeover import Changeover, Make, Views
from jellybean.serving.gateway.gateway import WORKER_STATES, Gateway
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.served_workflow import ServedWorkflow
from jellybean_agent import PlanView, StatusError, StreamSource, parse_identity
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
RETIRE_WAIT_S = 2.0  # for requests in flight on a replaced plan, whose workers may be ended then
_SUMS = (
    *("requests_in_hand", "answered", "failed", "refused", "expired", "retried", "waiting", "left_out", "kept"),
    *("kept_bytes", "hedged"),
)


class Gateways:
    """One gateway for each workflow of the plan that is served; of a plan of one workflow, one."""

    def __init__(self, view: PlanView, network: WorkerNetwork, make: Make) -> None:
        """`view`: of the whole plan. `make`: makes a workflow's gateway of its view, the addresses of the workers, and
        the file of the emulated links.
        """
        self.view = view
        self.changed = asyncio.Event()  # set whenever requests of a workflow may be served again, or no longer
        self._network, self._make = network, make
        self._served: dict[str, ServedWorkflow] = {}  # by workflow
        self._leaving: dict[ServedWorkflow, asyncio.Task[None]] = {}
        self._ending: list[asyncio.Task[None]] = []  # what the last replacement has not ended yet
        self._replacing = self._draining = False

    async def add(self, views: Views, addresses: Mapping[str, str], links: Path | None) -> None:
        """Make the gateways of these workflows."""
        for view in views.values():
            self.adopt(await self._make(view, addresses, links))

    def adopt(self, served: ServedWorkflow) -> None:
        """Serve a workflow whose gateway is made already."""
        served.gateway.changed = self.changed
        self._served[served.gateway.view.served_name] = served
        if served.recorder is not None:
            served.recorder.of_process = lambda: [one.recorder for one in self._served.values()]

    def start(self) -> None:
        """Connect to the workers."""
        for served in self._served.values():
            served.connect()
            served.start()

    async def close(self) -> None:
        """Fail the requests in flight, and write the last intervals of the ledger."""
        for task in self._leaving.values():
            task.cancel()
        async with AsyncExitStack() as stack:  # closes all, whatever fails
            for served in (*self._served.values(), *self._leaving):
                stack.push_async_callback(served.close)

    # -- requests -----------------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The workflows."""
        return tuple(self._served)

    def __iter__(self) -> Iterator[Gateway]:
        return (served.gateway for served in self._served.values())

    @property
    def first(self) -> Gateway:
        """Of a plan of one workflow, its gateway."""
        return next(iter(self))

    def of(self, workflow: str, caller: str = "") -> Gateway:
        """The gateway of a workflow, as of `served`."""
        return self.served(workflow, caller).gateway

    def served(self, workflow: str, caller: str = "") -> ServedWorkflow:
        """A workflow that is served. `caller`: URI of the caller's identity; empty: it may call any.

        `workflow` empty: the only one, or that in the caller's certificate. StatusError if there is no such workflow
        here, it is not said which, or the caller's certificate is of another one.
        """
        wanted = workflow or own_workflow(caller) or (self.names[0] if len(self._served) == 1 else "")
        self.check_caller(wanted, caller)
        served = self._served.get(wanted)
        if served is None and not wanted:
            reason = (
                f"this gateway serves {', '.join(self.names)}: say which workflow: `workflow=`, or `--workflow NAME`"
            )
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, reason)
        if served is None:
            reason = f"no workflow {wanted[:60]!r} is served here, but {', '.join(self.names) or 'none'}"
            raise StatusError(grpc.StatusCode.NOT_FOUND, reason)
        return served

    def check_caller(self, workflow: str, caller: str) -> None:
        """StatusError if the caller's certificate is of another workflow. `caller`: URI of its identity, or empty."""
        own = own_workflow(caller)
        if own and workflow != own:
            reason = f"the certificate is of workflow {own} only, not of {workflow[:60]!r}"
            raise StatusError(grpc.StatusCode.PERMISSION_DENIED, reason)

    def receive(self, message: agent_pb2.Message, source: StreamSource) -> None:
        """Take an output or a failure from a worker, for the workflow whose attempt or audit it is of."""
        prefix = message.request_id.partition("-")[0]
        for served in (*self._served.values(), *self._leaving):
            if prefix in served.gateway.key_prefixes:
                served.gateway.receive(message, source)
                return

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """True if requests of a workflow would reach a worker now."""
        return any(not gateway.unavailable_reason for gateway in self)

    def status(self) -> gateway_pb2.StatusResponse:
        """State and counters of all workflows together."""
        parts = [gateway.status() for gateway in self]
        if not self.view.workflows:
            return parts[0]
        found = gateway_pb2.StatusResponse(workflow=self.view.name, plan=self.view.hash, state=_state(parts))
        found.workflows.extend(self.names)
        for part in parts:
            for name, state in part.workers.items():
                found.workers[name] = max(state, found.workers.get(name, state), key=WORKER_STATES.index)
                if name in part.reasons:
                    found.reasons[name] = part.reasons[name]
        for figure in _SUMS:
            setattr(found, figure, sum(getattr(part, figure) for part in parts))
        return found

    def block(self, worker: str, reason: str) -> None:
        """Note why the box of a worker cannot become ready; empty: no such reason."""
        for gateway in self:
            gateway.plans.block(worker, reason)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests and wait for those in flight; returns the number left. Timeout 0: do not wait."""
        self._draining = True
        all_ = [*self, *(served.gateway for served in self._leaving)]
        return sum(await asyncio.gather(*(gateway.drain(timeout_s) for gateway in all_)))

    # -- another plan -------------------------------------------------------------------------------------------------

    def expect(self, view: PlanView, views: Views, addresses: Mapping[str, str]) -> None:
        """Accept calls of a plan's workers from now on. StatusError if it cannot replace the one that is served."""
        missing = [worker.name for worker in view.serving if worker.name not in addresses]
        reason = ""
        if self._replacing:
            reason = "the gateway is replacing its plan already: try again later"
        elif view.name != self.view.name:
            reason = f"the gateway serves {self.view.name}, the plan is of {view.name}"
        elif bool(view.workflows) != bool(self.view.workflows):
            reason = "a plan of one workflow cannot replace one of several, nor the reverse: stop it and start anew"
        elif missing:
            reason = f"no address of {missing[0]}"
        if reason:
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
        for name, served in self._served.items():
            if name in views:
                served.gateway.require_replaceable_by(views[name])
        self._network.known.update(worker.name for worker in view.serving)

    async def replace(
        self,
        view: PlanView,
        views: Views,
        addresses: Mapping[str, str],
        links: Path | None,
        timeout_s: float,
        on_new_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve new requests by another plan, which is expected, once its workers are ready for all workflows.

        Requests in flight finish on the old plan. StatusError, and the old plan stays, if not within `timeout_s`.
        `on_new_ready`: as of `await_ready`. Workflows that the old plan left out are served from then on, those that
        the new one leaves out are refused.
        """
        self._replacing = True
        until_s = time.monotonic() + timeout_s
        change = Changeover(self._served, self._make)
        try:
            await self._await_left(views, until_s)
            await change.prepare(views, addresses, links)
            await change.ready(until_s, on_new_ready)
            if self._draining:
                raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, "the gateway is draining")
        except BaseException:
            await change.undo()
            raise
        finally:
            self._replacing = False
        self._switch(view, views, change)

    async def _await_left(self, views: Views, until_s: float) -> None:
        """Wait for workflows that are to be served again and have not ended yet. StatusError if they do not in time."""
        for served, leaving in list(self._leaving.items()):
            if served.name in views:
                await asyncio.wait([leaving], timeout=until_s - time.monotonic())
                if not leaving.done():
                    reason = f"{served.name} still answers requests of the time when it was served before"
                    raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, reason)

    def _switch(self, view: PlanView, views: Views, change: Changeover) -> None:
        """Serve the workflows of a plan; what others have in flight finishes. In one step of the event loop."""
        self.view = view
        self._ending = change.switch()
        for name in [name for name in self._served if name not in views]:
            served = self._served.pop(name)
            served.gateway.leave_out()
            self._leaving[served] = leaving = asyncio.create_task(self._leave(served))
            self._ending.append(leaving)
        for served in change.arriving:
            self.adopt(served)
            served.start()
        self.changed.set()

    async def await_ended(self) -> None:
        """Wait for requests in flight on the plan before, for a while: then its workers are read, and may be ended."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=RETIRE_WAIT_S)

    async def _leave(self, served: ServedWorkflow) -> None:
        try:
            await served.gateway.finished()
            await served.close(ends_run=False)
        except Exception:  # a boundary: the others are served on
            LOG.exception("%s, which is served no more, did not end in order", served.name)
        finally:
            del self._leaving[served]


@lru_cache(4096)
def own_workflow(caller: str) -> str:
    """The workflow, of a plan's several, that a caller's certificate is limited to; empty: none, or no certificate."""
    identity = parse_identity(caller) if caller else None
    return "" if identity is None else identity.own_workflow


def _state(parts: list[gateway_pb2.StatusResponse]) -> str:
    """One of: starting, ready, degraded, draining."""
    states = {part.state for part in parts}
    if "draining" in states:
        return "draining"
    return states.pop() if len(states) == 1 else "degraded"  # some workflow is served while another one starts
