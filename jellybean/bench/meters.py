"""Counters of a served plan: busy time of workers, bytes over links, and deaths.

Where the workers are processes of this machine, they and the links' file are read themselves; otherwise the gateway
reports for its workers, which may be out of reach from here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc.aio
import psutil

from jellybean.display import formats
from jellybean.folders import shell_text
from jellybean.serving.endpoint import Endpoint
from jellybean.serving.errors import ServingError
from jellybean.serving.run_processes import GATEWAY_NAME
from jellybean.serving.run_state import RunState, read_state, run_of
from jellybean.serving.top.top import parse
from jellybean_agent import EmulatedLinks, PlanView, Transport, protocol_metadata
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc

_DESCRIBE_S = 2.0
_METRICS_S = 10.0


class Busy(NamedTuple):
    """Busy seconds of a worker; `late_s`: seconds by which its runs were slower than on the emulated device."""

    busy_s: float
    late_s: float


class CpuTime(NamedTuple):
    """CPU seconds of all cores of a machine since its start, and those in which a process ran."""

    all_s: float
    used_s: float

    @classmethod
    def now(cls) -> CpuTime:
        """Read the counters. Time that a hypervisor gave to other machines counts as used: it was not to be had."""
        times = psutil.cpu_times()
        all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # user has these too
        return cls(all_s, all_s - times.idle - getattr(times, "iowait", 0.0))


@dataclass(frozen=True, slots=True)
class Reading:
    """All counters at one moment, since the start of serving. `at_s`: seconds of CLOCK_MONOTONIC.

    `busy`: by worker; workers that do not answer are missing. `bytes_sent`: by (sender, upstream tier,
    downstream tier); a sender that is started again counts from 0. `cpu`: of this machine, where the workers are here.
    """

    at_s: float
    busy: Mapping[str, Busy]
    bytes_sent: Mapping[tuple[str, str, str], float]
    cpu: CpuTime | None = None


class Meters(Protocol):
    """The counters of a plan that is served. `endpoint`: the gateway that takes the load."""

    @property
    def view(self) -> PlanView: ...
    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def is_emulated(self) -> bool:
        """True if the devices of the workers are emulated: they are processes of this machine."""
        ...

    async def read(self) -> Reading:
        """All counters now. ServingError if the plan was stopped or replaced: they would then mix two plans."""
        ...

    def deaths(self) -> Iterator[str]:
        """One sentence per process that died during the measurement."""
        ...


@dataclass(frozen=True, slots=True)
class RunMeters:
    """Counters of a run whose workers are processes of this machine."""

    directory: Path
    state: RunState
    view: PlanView

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.state.gateway_address)

    @property
    def is_emulated(self) -> bool:
        return True

    async def read(self) -> Reading:
        self.require_served()
        return Reading(time.monotonic(), await self._busy(), self._bytes_sent(), CpuTime.now())

    def require_served(self) -> None:
        """ServingError if the plan was stopped or replaced."""
        now = run_of(self.directory)
        if now is not None and now.plan_folder == self.state.plan_folder:
            self._require_links()
            return
        gone = now is None or now.folder != self.state.folder or now.plan_folder == self.state.plan_folder
        raise _served_no_more(self.view, "it was stopped" if gone else "another took over (jellybean apply)")

    def _require_links(self) -> None:
        """ServingError unless all processes of the run count what links carry in the file that is read here."""
        path, removed = self.state.links_path, f"{self.state.links_path} (deleted)"
        counts_elsewhere = any(removed in _open_files(process.pid) for _, process in self.state.alive())
        if counts_elsewhere or not path.exists():
            raise ServingError(
                f"{path} was removed while the plan was served: what its links carry cannot be measured until "
                f"`jellybean down {shell_text(self.directory)}` and `jellybean up {shell_text(self.directory)}`"
            )

    async def _busy(self) -> dict[str, Busy]:
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

    def _bytes_sent(self) -> dict[tuple[str, str, str], float]:
        with EmulatedLinks(self.view.links, self.state.links_path) as links:  # all processes count in one file
            return {("", *tiers): count for tiers, count in links.bytes_sent().items()}

    def deaths(self) -> Iterator[str]:
        now = read_state(self.directory)
        for before in self.state.processes:
            after = next((process for process in now.processes if process.name == before.name), None) if now else None
            times = 0 if after is None else after.restarts - before.restarts
            again = f", {formats.count(times, 'time')}" if times > 1 else ""
            if after is None or after.process() is None:
                reason = f" after it was started again{again}: {after.reason}" if after is not None and times else ""
                yield f"{before.name} is gone{reason or ': the plan is served without it'}"
            elif times > 0:
                yield f"{before.name} died and was started again{again}: {after.reason}"


def _open_files(pid: int) -> list[str]:
    """The paths of the files that a process has open; those that were removed end with ` (deleted)`."""
    paths = []
    with contextlib.suppress(OSError):  # it has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                paths.append(str(link.readlink()))
    return paths


@dataclass(slots=True)
class GatewayMeters:
    """Counters that a gateway reports, of itself and of its workers; of several workflows, those of one."""

    endpoint: Endpoint
    view: PlanView
    is_emulated: bool = False
    _first: gateway_pb2.StatusResponse | None = dataclasses.field(default=None, init=False)
    _last: gateway_pb2.StatusResponse | None = dataclasses.field(default=None, init=False)

    async def read(self) -> Reading:
        async with self.endpoint.transport().channel(self.endpoint.address) as channel:
            stub: Any = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
            workflow = self.endpoint.workflow
            options = {"timeout": _METRICS_S, "metadata": protocol_metadata()}
            try:
                status = await stub.Status(gateway_pb2.StatusRequest(workflow=workflow), **options)
                at_s = time.monotonic()
                metrics = await stub.Metrics(agent_pb2.MetricsRequest(workflow=workflow), **options)
            except grpc.aio.AioRpcError as error:
                reason = error.details() or error.code().name
                raise ServingError(f"the gateway does not report its workers' counters: {reason}") from error
        if status.plan != self.view.hash:
            raise _served_no_more(self.view, "another took over (jellybean apply)")
        if self._last is not None and status.answered < self._last.answered:
            raise _served_no_more(self.view, "the gateway was started again")
        self._first, self._last = self._first or status, status
        return self._reading(at_s, parse(metrics.text.decode()))

    def _reading(self, at_s: float, samples: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]) -> Reading:
        seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for index, name in enumerate(("jellybean_busy_seconds_total", "jellybean_late_seconds_total")):
            for labels, value in samples.get(name, {}).items():
                seconds[dict(labels)["worker"]][index] += value
        sent: dict[tuple[str, str, str], float] = {}
        for name in ("jellybean_link_bytes_total", "jellybean_gateway_link_bytes_total"):
            for labels, value in samples.get(name, {}).items():
                given = dict(labels)
                key = given.get("worker", ""), given["tier"], given["to_tier"]  # no worker: the gateway
                sent[key] = sent.get(key, 0.0) + value
        return Reading(at_s, {worker: Busy(*spent) for worker, spent in seconds.items()}, sent)

    def deaths(self) -> Iterator[str]:
        if self._first is not None and self._last is not None:
            if lost := self._last.left_out - self._first.left_out:
                yield f"workers were gone {lost} times, and were left out until they came back"
            for name, state in self._last.workers.items():
                if state == "gone" and self._first.workers[name] != "gone":
                    yield f"{name} is gone: the plan is served without it"


def _served_no_more(view: PlanView, why: str) -> ServingError:
    return ServingError(
        f"{view.served_name}: the plan that is measured ({view.hash[:12]}) is served no more: {why}"
        "; nothing was stored: measure again, while nothing changes"
    )
