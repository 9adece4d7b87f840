"""Measures variants on this machine for their profiles, as `jellybean profile` measures its own machine.

A model runs in a process of its own, which the worker's limits and control group apply to. Requests that are served
meanwhile spoil the times, so a worker that serves refuses unless it is told otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from jellybean_agent.brain.plan_view import PlanView
from jellybean_agent.errors import AgentError, InvalidInputError, ModelError, StatusError, status_of
from jellybean_agent.execution.model_files import data_path, file_sha256
from jellybean_agent.execution.model_process import LOAD_LIMIT_S
from jellybean_agent.execution.python_code import PythonStep, require_source
from jellybean_agent.measuring.job import Job
from jellybean_agent.measuring.processes import measured_lines
from jellybean_agent.process.agent_service import AgentService
from jellybean_agent.process.content_store import ContentStore
from jellybean_agent.process.machine_message import machine_message
from jellybean_agent.system.device import Device
from jellybean_agent.system.memory import machine_memory_bytes
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.agent")
MEASURE_METHOD = "/jellybean.agent.v1.Agent/Measure"
_PART_S = 60.0  # longest pause between two parts of a file
_TURN_S = 5.0  # for the measurement before to end, whose caller is gone
Measure = Callable[[Job, float], AsyncIterator[dict[str, Any]]]
_RUNS_PER_BLOCK = 4  # runs of a block of a slow model: two timed ones, two to warm up


@dataclass(frozen=True, slots=True)
class MeasurementLimits:
    """`run_s`: seconds of one run. `memory_bytes`: of the process that measures, and so of a model's files."""

    run_s: float
    memory_bytes: int


def measurement_limits(max_run_s: float, model_memory_mib: int | None) -> MeasurementLimits:
    """The limits of a worker's models apply to those that it measures; half of the memory unless given."""
    return MeasurementLimits(max_run_s, (model_memory_mib or 0) * 2**20 or machine_memory_bytes() // 2)


class Measurements:
    """The method Measure of the Agent service. One measurement at a time."""

    def __init__(
        self,
        service: AgentService,
        root: Path,
        allow_python: frozenset[str],
        limits: MeasurementLimits,
        measure: Measure = measured_lines,
    ) -> None:
        """`root`: folder that the plan's model paths start from; models that are there need not be sent.

        `measure`: runs a job, with the longest time until its next line in seconds; returns its lines.
        """
        self._service, self._root, self._allow_python, self._limits = service, root, allow_python, limits
        self._run_job = measure
        self._store = ContentStore()
        self._turn = asyncio.Lock()

    def handler(self) -> Any:
        """The method's handler, for a server."""
        measure = grpc.stream_stream_rpc_method_handler(
            self.Measure, agent_pb2.MeasureRequest.FromString, agent_pb2.MeasureResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("jellybean.agent.v1.Agent", {"Measure": measure})

    def close(self) -> None:
        """Remove what was received."""
        self._store.close()

    async def Measure(self, requests: Any, context: Any) -> AsyncIterator[agent_pb2.MeasureResponse]:
        """Measure one variant; see the protocol."""
        try:
            async for response in self._in_turn(requests):
                yield response
        except AgentError as error:
            await context.abort(status_of(error), str(error))

    async def _in_turn(self, requests: Any) -> AsyncIterator[agent_pb2.MeasureResponse]:
        try:
            async with asyncio.timeout(_TURN_S):
                await self._turn.acquire()
        except TimeoutError as error:
            raise _refused(f"{self._service.worker.name} is measuring for another caller: try again later") from error
        try:
            async for response in self._measure(requests):
                yield response
        finally:
            self._turn.release()

    async def _measure(self, requests: Any) -> AsyncIterator[agent_pb2.MeasureResponse]:
        subject = (await _next(requests)).subject
        handled = self._require_idle(subject)
        files = [*subject.files, subject.sample]
        self._require_room(subject)
        present = await asyncio.to_thread(self._present, subject)
        absent = [file for file in files if file.sha256 not in present]
        device = _device(subject)
        lacking = [
            agent_pb2.Lacking(sha256=file.sha256, offset=self._store.received_bytes(file.sha256)) for file in absent
        ]
        yield agent_pb2.MeasureResponse(
            accepted=agent_pb2.Accepted(lacking=lacking, machine=machine_message(device)),
        )
        for file in absent:
            await self._receive(requests, file)
            present[file.sha256] = self._store.path(file.sha256)
        LOG.info("measuring %s on %s", subject.name, device)
        with tempfile.TemporaryDirectory(prefix="job-", dir=self._store.folder) as folder:
            job = self._job(subject, device, Path(folder), present)
            async for line in self._lines(subject, job):
                response = _response(line)
                response.served = self._service.requests_handled - handled
                if response.served and not subject.force:
                    raise self._busy(f"was sent {response.served} requests while it measured {subject.name}")
                yield response
        self._store.keep_only({subject.sample.sha256})

    def _require_idle(self, subject: agent_pb2.Subject) -> int:
        """StatusError if this worker is not ready, or serves requests; else the number of those that it has served."""
        service = self._service
        if service.state != "ready":
            raise StatusError(grpc.StatusCode.UNAVAILABLE, f"{service.worker.name} is {service.state}")
        if service.requests_in_flight and not subject.force:
            raise self._busy(f"has {service.requests_in_flight} requests in flight")
        return service.requests_handled

    def _busy(self, state: str) -> StatusError:
        name = self._service.worker.name
        return _refused(f"{name} {state}, which spoils the times: measure when it is idle, or measure it with --force")

    def _require_room(self, subject: agent_pb2.Subject) -> None:
        """StatusError if a variant's files are larger than a model's memory, or than the disk's free space."""
        size, free = sum(file.size for file in subject.files), self._store.free_bytes()
        name, limit = self._service.worker.name, self._limits.memory_bytes
        if size > limit:
            what = f"{_mib(limit)} of memory for a model (--model-memory-mib)"
        elif size + subject.sample.size > free:
            what = f"{_mib(free)} left on the disk of {self._store.folder.parent} (TMPDIR names another)"
        else:
            return
        reason = f"{subject.name} is too big for {name}: its files have {_mib(size)}, {name} has {what}"
        raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)

    def _present(self, subject: agent_pb2.Subject) -> dict[str, Path]:
        """sha256 -> file, of those that are here: received before, or of the plan that is served."""
        view: PlanView = self._service.view
        planned = {sha256: self._root / path for op in view.operators.values() for path, sha256 in op.model_files}
        present: dict[str, Path] = {}
        for file in (*subject.files, subject.sample):
            received, served = self._store.path(file.sha256), planned.get(file.sha256)
            if received.exists():
                present[file.sha256] = received
            elif served is not None and served.is_file() and file_sha256(served) == file.sha256:
                present[file.sha256] = served.resolve()
        return present

    async def _receive(self, requests: Any, file: agent_pb2.ContentFile) -> None:
        """Receive the rest of a file. InvalidInputError if it is longer than announced, or another one."""
        size = self._store.received_bytes(file.sha256)
        while size < file.size:
            try:
                async with asyncio.timeout(_PART_S):
                    part = (await _next(requests)).file
            except TimeoutError as error:
                raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no more came in {_PART_S:g} s") from error
            if part.sha256 != file.sha256 or size + len(part.data) > file.size:
                raise InvalidInputError("parts of files came in another order, or more than was announced")
            size = await self._store.append(file.sha256, part.data)
        await self._store.complete(file.sha256)

    def _job(self, subject: agent_pb2.Subject, device: Device, folder: Path, present: Mapping[str, Path]) -> Job:
        """The job, for which the model's files are linked under their names. ModelError if a function may not run."""
        model = folder / "model.onnx"
        if subject.function:
            PythonStep(subject.function, subject.arguments, self._allow_python)
            require_source(subject.function, subject.sha256)
        for file in subject.files:
            link = data_path(model, file.name) if file.name else model
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(present[file.sha256])
        return Job(
            path=str(model),
            sha256=subject.sha256,
            function=subject.function,
            arguments=subject.arguments,
            upstreams={edge.upstream: edge.port for edge in subject.inputs},
            device=(device.name, device.options),
            sample=str(present[subject.sample.sha256]),
            points=tuple((point.batch, point.seconds, tuple(point.blocks)) for point in subject.points),
            folders=tuple(sys.path),
            memory_bytes=self._limits.memory_bytes,
            memory=subject.memory,
        )

    async def _lines(self, subject: agent_pb2.Subject, job: Job) -> AsyncIterator[dict[str, Any]]:
        """The lines of the measuring process."""
        block_s = max((seconds for _, seconds, _ in job.points), default=0.0)
        limit_s = LOAD_LIMIT_S + block_s + _RUNS_PER_BLOCK * self._limits.run_s
        try:
            async for line in self._run_job(job, limit_s):
                yield line
        except ModelError as error:
            raise ModelError(f"{subject.name}: {error}") from error


async def _next(requests: Any) -> agent_pb2.MeasureRequest:
    """The caller's next request. InvalidInputError if it has ended."""
    async for request in requests:
        found: agent_pb2.MeasureRequest = request
        return found
    raise InvalidInputError("the caller ended before it had sent what is measured")


def _device(subject: agent_pb2.Subject) -> Device:
    try:
        return Device(subject.device, tuple(sorted(subject.device_options.items())))
    except ValueError as error:
        raise InvalidInputError(str(error)) from error


def _response(line: Mapping[str, Any]) -> agent_pb2.MeasureResponse:
    if "memory_bytes" in line:
        device = line["device_memory_bytes"]
        return agent_pb2.MeasureResponse(memory_bytes=line["memory_bytes"], device_memory_bytes=device)
    return agent_pb2.MeasureResponse(timed=agent_pb2.TimedBlock(**line))


def _refused(reason: str) -> StatusError:
    return StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"
