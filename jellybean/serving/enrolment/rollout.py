"""The plan that the gateway's boxes are to serve, and its replacement: boxes download first and switch afterwards.

A box asks for the plan and waits for an answer until there is another one. While one plan replaces another, boxes that
serve both are told first to download the models of the next plan and to go on serving, then to switch. So requests wait
only while boxes restart, and not at all if a model is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import grpc

from jellybean_agent import PlanView, StatusError
from jellybean_protos.enrol.v1 import enrol_pb2

MAX_WAIT_S = 60.0  # longest time that a box may wait for an answer
_LATE_S = 5.0  # a box that asks again later than this after its answer is not waited for


@dataclass(frozen=True, slots=True, eq=False)
class PlanOffer:
    """A plan as boxes get it: its document (JSON) and the addresses of its processes, by name."""

    view: PlanView
    document: bytes
    addresses: Mapping[str, str]

    def response(self, *, later: bool) -> enrol_pb2.PlanResponse:
        """The answer to a box; `later`: it is to download the models, and to go on serving its plan."""
        peers = json.dumps(dict(self.addresses)).encode()
        return enrol_pb2.PlanResponse(plan=self.document, peers=peers, later=later)

    def uses(self, worker: str) -> bool:
        """True if the plan gives the worker something to do."""
        return any(serving.name == worker for serving in self.view.serving)


@dataclass(frozen=True, slots=True)
class _Box:
    """What a box said when it asked last. `until_s`: when it is to ask again (CLOCK_MONOTONIC).

    `fetched`: hash of the plan whose models it has downloaded; `problem`: why it cannot serve the plan with the hash
    `problem_plan`.
    """

    until_s: float
    fetched: str
    problem: str
    problem_plan: str


Switch = Callable[[float, Callable[[], None]], Coroutine[Any, Any, None]]  # seconds left, allow boxes to switch


class PlanRollout:
    """Answers boxes that ask for the plan. `served`: the plan that the gateway serves."""

    def __init__(self, served: PlanOffer) -> None:
        self.served = served
        self._next: PlanOffer | None = None  # the plan that is replacing it
        self._may_switch = False  # whether boxes may stop serving the plan before
        self._boxes: dict[str, _Box] = {}  # worker -> its box, if it waits for answers
        self._changed = asyncio.Event()  # set, and replaced by another, at every change

    @property
    def offers(self) -> tuple[PlanOffer, ...]:
        """The plan that is served, and the one that is replacing it, if any."""
        return (self.served,) if self._next is None else (self.served, self._next)

    async def answer(self, worker: str, request: enrol_pb2.PlanRequest) -> enrol_pb2.PlanResponse:
        """The plan for a box; empty if it has it already. Waits up to `wait_s` of the request until it is another."""
        wait_s = min(request.wait_s, MAX_WAIT_S) if request.wait_s > 0 else 0.0  # else: also for NaN
        if wait_s > 0:
            until_s = time.monotonic() + wait_s + _LATE_S
            self._boxes[worker] = _Box(until_s, request.fetched, request.problem, request.problem_plan)
            self._notify()
        has_failed = _is_about(request, self._offer(worker)[0])  # such a plan is offered again only after a change
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while has_failed or (response := self._response(worker, request)) is None:
                    has_failed = False
                    await self._changed.wait()
                return response
        return enrol_pb2.PlanResponse()

    def _response(self, worker: str, request: enrol_pb2.PlanRequest) -> enrol_pb2.PlanResponse | None:
        offer, later = self._offer(worker)
        if later and request.wait_s <= 0:  # it starts, or is of a version that cannot download for later
            offer, later = self.served, False
        has = request.fetched if later else request.have
        return None if offer.view.hash == has else offer.response(later=later)

    def _offer(self, worker: str) -> tuple[PlanOffer, bool]:
        if self._next is None or not self._next.uses(worker):
            return self.served, False
        return self._next, not self._may_switch and self.served.uses(worker)

    async def replace(
        self,
        offer: PlanOffer,
        timeout_s: float,
        switch: Switch,
        on_served: Callable[[], None] = lambda: None,
    ) -> None:
        """Have the boxes download the models of `offer`, then switch while `switch` runs.

        `switch` gets the seconds left, and a function that it calls once boxes may stop serving the plan before.
        If `switch` raises, they return to the plan before. `on_served` is called as soon as it returns, even if the
        caller has been cancelled. StatusError if a box cannot serve the plan, or a plan is being replaced already.
        """
        if self._next is not None:
            reason = "the gateway is replacing its plan already: try again later"
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
        began_s, self._next = time.monotonic(), offer
        for name, box in self._boxes.items():
            self._boxes[name] = replace(box, problem="")
        self._notify()
        try:
            await self._fetched(offer, timeout_s)
            left_s = began_s + timeout_s - time.monotonic()
            await self._unless_problem(self._switched(offer, switch(left_s, self._allow_switch), on_served))
        finally:
            self._next, self._may_switch = None, False
            self._notify()

    async def _switched(
        self, offer: PlanOffer, switch: Coroutine[Any, Any, None], on_served: Callable[[], None]
    ) -> None:
        """Await `switch`, then serve `offer`, in one step of the event loop: no cancellation comes between the two."""
        await switch
        self.served = offer
        on_served()

    def _allow_switch(self) -> None:
        self._may_switch = True
        self._notify()

    async def _fetched(self, offer: PlanOffer, timeout_s: float) -> None:
        """Return once each box that serves both plans, and waits for answers, has the models of `offer`."""
        now_s = time.monotonic()
        waiting = [
            name
            for name, box in self._boxes.items()
            if box.until_s > now_s and offer.uses(name) and self.served.uses(name)
        ]
        try:
            async with asyncio.timeout(timeout_s):
                while waiting := [name for name in waiting if self._boxes[name].fetched != offer.view.hash]:
                    self._raise_problem()
                    await self._changed.wait()
        except TimeoutError as error:
            reason = f"the plan's models were not downloaded within {timeout_s:g} s by {', '.join(waiting)}"
            raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, reason) from error

    async def _unless_problem(self, switch: Coroutine[Any, Any, None]) -> None:
        """Await `switch`; if a box reports a problem meanwhile, cancel it and raise StatusError."""
        task = asyncio.create_task(switch)
        try:
            while not task.done():
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait((task, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if not task.done():
                    self._raise_problem()
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _raise_problem(self) -> None:
        for name, box in self._boxes.items():
            if self._next is not None and self._next.uses(name) and _is_about(box, self._next):
                raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, f"worker {name}: {box.problem}")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _is_about(said: _Box | enrol_pb2.PlanRequest, offer: PlanOffer) -> bool:
    """True if a box said that it cannot serve this plan. Agents of earlier versions do not say which plan they mean."""
    return bool(said.problem) and said.problem_plan in ("", offer.view.hash)
