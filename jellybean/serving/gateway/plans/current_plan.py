"""The plan that serves new requests, its replacement under load, and the retirement of the plan before."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from jellybean.serving.gateway.byte_limits import MAX_BYTES_IN_FLIGHT, MAX_INCOMPLETE_BYTES
from jellybean.serving.gateway.plans.closed_routes import ClosedRoutes
from jellybean.serving.gateway.plans.cost_so_far import CostAccount
from jellybean.serving.gateway.plans.served_plan import OnSent, ServedPlan
from jellybean_agent import EmulatedLinks, PlanView, RefusedClaims, ReplyAddress, SharedLimit, Transport

LOG = logging.getLogger("jellybean.gateway")
_POLL_S = 0.02
OnRead = Callable[[Mapping[str, Sequence[bytes]]], Awaitable[None]]  # gets hash of a plan -> its workers' metrics


@dataclass(frozen=True, slots=True)
class WorkerNetwork:
    """How workers are reached. `known`: workers that may call the gateway; workers of later plans are added to it.

    `emulate`: emulate the links of later plans too. `reply`: where this gateway takes answers, if it is one of several.
    `claims`: what workers claimed beyond the plan. Of all workflows of the process: `in_flight_bytes`, of the inputs
    of requests, shared by clients; `incomplete_bytes`, of answers that are not complete, shared by workers.
    """

    transport: Transport
    known: set[str]
    emulate: bool = True
    reply: ReplyAddress | None = None
    claims: RefusedClaims = field(init=False)
    in_flight_bytes: SharedLimit = field(default_factory=lambda: SharedLimit(MAX_BYTES_IN_FLIGHT))
    incomplete_bytes: SharedLimit = field(default_factory=lambda: SharedLimit(MAX_INCOMPLETE_BYTES))
    _closed: WeakValueDictionary[str, ClosedRoutes] = field(default_factory=WeakValueDictionary)

    def __post_init__(self) -> None:
        object.__setattr__(self, "claims", RefusedClaims(LOG, self.known))

    def closed_routes(self, plan: str) -> ClosedRoutes:
        """The closed routes of a plan, given its hash, which all its workflows share."""
        return self._closed.setdefault(plan, ClosedRoutes())

    @property
    def request_prefix(self) -> str:
        """What the ids of attempts begin with, by which workers tell several gateways apart."""
        return "" if self.reply is None else self.reply.request_prefix


class CurrentPlan:
    """The plan that serves new requests; a replaced plan is retired once its last attempt has ended."""

    def __init__(
        self,
        view: PlanView,
        addresses: Mapping[str, str],
        links: EmulatedLinks,
        network: WorkerNetwork,
        *,
        on_change: Callable[[], None],
        on_worker_lost: Callable[[ServedPlan, str, str], None],
    ) -> None:
        self._network, self._on_change, self._on_worker_lost = network, on_change, on_worker_lost
        self._retiring: dict[ServedPlan, asyncio.Task[None]] = {}
        self.costs = CostAccount()
        self.billed: tuple[ServedPlan, ...] = ()  # plans that cost money now
        self.on_billed: Callable[[], None] | None = None  # called when they change
        self.on_read: OnRead | None = None  # awaited when a plan's workers, soon to be gone, were read
        self._on_sent: OnSent | None = None
        self.served = self._served_plan(view, addresses, links)

    def _served_plan(self, view: PlanView, addresses: Mapping[str, str], links: EmulatedLinks) -> ServedPlan:
        plan = ServedPlan(
            view,
            addresses,
            links,
            self._network.transport,
            on_change=self._on_change,
            on_worker_lost=self._on_worker_lost,
            reply=self._network.reply,
            claims=self._network.claims,
            closed=self._network.closed_routes(view.hash),
        )
        plan.on_sent = self._on_sent
        return plan

    def log_bytes(self, on_sent: OnSent) -> None:
        """Have `on_sent` called for data of sources that crosses a link, in this plan and later ones."""
        self._on_sent = self.served.on_sent = on_sent

    def start(self) -> None:
        """Connect to the plan's workers."""
        self._start(self.served)

    def _start(self, plan: ServedPlan) -> None:
        self.costs.begin(plan)
        self._bill((*self.billed, plan))
        plan.start()

    def _end_costs(self, plan: ServedPlan) -> None:
        self.costs.end(plan)
        self._bill(tuple(one for one in self.billed if one is not plan))

    def _bill(self, plans: tuple[ServedPlan, ...]) -> None:
        self.billed = plans
        if self.on_billed is not None:
            self.on_billed()

    def stop_costs(self) -> None:
        """Stop billing the plan that is served: nothing is served any more, though others are."""
        self._end_costs(self.served)

    async def close(self) -> None:
        """End all streams, also those of plans that are being retired."""
        for plan, task in list(self._retiring.items()):  # a task that ends removes its plan
            task.cancel()
            await plan.close()
        await self.served.close()
        self.served.links.close()

    def block(self, worker: str, reason: str) -> None:
        """Note why the box of a worker of the plan that is served cannot become ready; empty: no such reason."""
        self.served.block(worker, reason)

    async def worker_metrics(self) -> dict[str, bytes]:
        """Metrics of every worker that answers, in Prometheus' text format; their link costs are billed."""
        return await self.read(self.served)

    async def read(self, plan: ServedPlan) -> dict[str, bytes]:
        """Metrics of a plan's workers that answer; their link costs are billed."""
        asked_s = time.monotonic()
        texts = await plan.metrics()
        self.costs.report(plan, texts.values(), asked_s)
        return texts

    def prepare(self, view: PlanView, addresses: Mapping[str, str], links: Path | None) -> ServedPlan:
        """Connect to the workers of a plan that is to replace this one; it costs money from now on.

        `links`: file with the state of its emulated links.
        """
        emulated = (EmulatedLinks(view.links, links) if self._network.emulate else EmulatedLinks((), None)).open()
        plan = self._served_plan(view, addresses, emulated)
        self._start(plan)
        return plan

    async def abandon(self, plan: ServedPlan) -> None:
        """Leave a prepared plan again."""
        self._end_costs(plan)
        await plan.close()
        plan.links.close()

    def switch(self, plan: ServedPlan) -> asyncio.Task[None]:
        """Serve new requests by a prepared plan; requests in flight finish on the old one.

        Returns the task that retires the old one: when it is done, its workers' counters are read.
        """
        retiring = self.retire(self.served)
        self.served = plan
        self._on_change()
        return retiring

    async def read_for_the_last_time(self) -> None:
        """Bill the bytes that the served plan has sent until now; the workers may be ended then."""
        await self._read_for_the_last_time(self.served)

    async def _read_for_the_last_time(self, plan: ServedPlan) -> None:
        texts = await self.read(plan)
        if self.on_read is not None:
            await self.on_read({plan.view.hash: list(texts.values())})

    def retire(self, plan: ServedPlan) -> asyncio.Task[None]:
        """Close a plan's streams once its last attempt has ended."""
        self._retiring[plan] = asyncio.create_task(self._retire(plan))
        return self._retiring[plan]

    async def _retire(self, plan: ServedPlan) -> None:
        while plan.has_attempts:
            await asyncio.sleep(_POLL_S)
        await self._read_for_the_last_time(plan)  # bill the last bytes sent over its links
        self._end_costs(plan)
        await plan.close()
        plan.links.close()
        del self._retiring[plan]
