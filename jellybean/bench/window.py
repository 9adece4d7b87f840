"""Busy time of workers and bytes over links during the counted window of a load test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import grpc.aio

from jellybean.serving.errors import ServingError
from jellybean.serving.run_state import GATEWAY_NAME, RunState, read_state
from jellybean_agent import EmulatedLinks, PlanView, Transport
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from jellybean_solver import GIB, Plan, link_ends

Progress = Callable[[float, float, str], None]
_DESCRIBE_S = 2.0


class Busy(NamedTuple):
    """Busy seconds of a worker; `late_s`: seconds by which its runs were slower than on the emulated device."""

    busy_s: float
    late_s: float


@dataclass(frozen=True, slots=True)
class Meters:
    """Counters of a run, read from its workers and links."""

    directory: Path
    state: RunState
    view: PlanView

    def require_served(self) -> None:
        """ServingError if the plan was stopped or replaced, because the counters would then mix two plans."""
        now = read_state(self.directory)
        if now is not None and now.plan_folder == self.state.plan_folder and self.state.links_path.exists():
            return
        gone = now is None or now.folder != self.state.folder or now.plan_folder == self.state.plan_folder
        raise ServingError(
            f"{self.state.workflow}: the plan that is measured ({self.view.hash[:12]}) is served no more: "
            + ("it was stopped" if gone else "another took over (jellybean apply)")
            + "; nothing was stored: measure again, while nothing changes"
        )

    async def busy(self) -> dict[str, Busy]:
        """Worker -> its busy time since its start; workers that do not answer are missing."""
        found: dict[str, Busy] = {}
        for process in self.state.processes:
            if process.name == GATEWAY_NAME:
                continue
            async with Transport().channel(process.address, process.name) as channel:
                stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
                try:
                    status = await stub.Describe(agent_pb2.DescribeRequest(), timeout=_DESCRIBE_S)
                except grpc.aio.AioRpcError:
                    continue
            found[process.name] = Busy(sum(status.busy_s.values()), sum(status.late_s.values()))
        return found

    def bytes_sent(self) -> dict[tuple[str, str], float]:
        """(upstream tier, downstream tier) -> bytes sent over this link since the start of serving."""
        with EmulatedLinks(self.view.links, self.state.links_path) as links:
            return links.bytes_sent()


@dataclass(frozen=True, slots=True)
class _Reading:
    """All counters at one moment; `at_s`: seconds of CLOCK_MONOTONIC."""

    at_s: float
    busy: dict[str, Busy]
    bytes_sent: dict[tuple[str, str], float]


class Window:
    """Reads the meters at the start and the end of the counted window, and reports progress."""

    def __init__(self, meters: Meters, begin_s: float, end_s: float, progress: Progress) -> None:
        self._meters, self._begin_s, self._end_s, self._progress = meters, begin_s, end_s, progress
        self._readings: list[_Reading] = []

    async def tick(self, elapsed_s: float) -> None:
        """Called regularly during the load, and once after its end."""
        label = "warm-up" if elapsed_s < self._begin_s else "offering load"
        self._progress(min(elapsed_s, self._end_s), self._end_s, label if elapsed_s < self._end_s else "settling")
        if len(self._readings) < 2 and elapsed_s >= (self._begin_s, self._end_s)[len(self._readings)]:
            self._meters.require_served()
            at_s = time.monotonic()
            self._readings.append(_Reading(at_s, await self._meters.busy(), self._meters.bytes_sent()))

    def utilisation(self) -> dict[str, float]:
        """Worker of the plan -> busy fraction of the window, as the mean over sites; empty before the window's end."""
        if len(self._readings) < 2:
            return {}
        seconds = self._readings[1].at_s - self._readings[0].at_s
        found: dict[str, list[float]] = {}
        for name, (busy_s, _) in self._spent().items():
            planned = name.rpartition("/")[2]  # process `store-1/box-2` is the plan's worker box-2 at site store-1
            found.setdefault(planned, []).append(busy_s / seconds)
        return {name: fmean(shares) for name, shares in found.items()}

    def late(self) -> dict[str, float]:
        """Worker -> share of its busy time by which it was slower than its emulated device; without shares of 0."""
        return {name: late_s / busy_s for name, (busy_s, late_s) in self._spent().items() if late_s > 0 and busy_s > 0}

    def _spent(self) -> dict[str, Busy]:
        """Worker -> its busy time in the window; workers that were restarted in the window are missing."""
        if len(self._readings) < 2:
            return {}
        began, ended = (reading.busy for reading in self._readings)
        return {
            name: Busy(ended[name].busy_s - before.busy_s, ended[name].late_s - before.late_s)
            for name, before in began.items()
            if name in ended and ended[name].busy_s >= before.busy_s  # a restart resets the counters
        }

    def cost_usd_per_h(self, plan: Plan) -> float | None:
        """Cost in USD/h: worker prices, plus traffic over links at the window's byte rates; None before its end."""
        if len(self._readings) < 2:
            return None
        begin, end = self._readings
        cost = sum(worker.price_usd_per_h * plan.sites.get(worker.tier, 1) for worker in plan.workers)
        for link in plan.links:
            for tiers in link_ends(plan, link):
                sent = (end.bytes_sent[tiers] - begin.bytes_sent[tiers]) / (end.at_s - begin.at_s)
                cost += sent * 3600 / GIB * link.price_usd_per_gib
        return cost
