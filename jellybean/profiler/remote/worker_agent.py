"""The agent of a worker that measures: its machine, and measurements as they are made there."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import grpc

from jellybean.errors import InputError
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.remote.workers import RemoteWorker
from jellybean_agent import AgentError, Machine, connection_fault, printable, protocol_metadata, says_not_connected
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc

_DESCRIBE_S = 10.0
_PART_BYTES = 2**20
_MAX_TEXT = 200  # characters of what a worker says of its machine
_MOST_BYTES = 2**50
_LOST_S = 5  # after which a worker that does not answer pings is asked again, and after as long again is lost
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 1000 * _LOST_S),
    ("grpc.keepalive_timeout_ms", 1000 * _LOST_S),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000 * _LOST_S),
)
_REFUSALS = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
)
Content = Path | bytes


class WorkerRefusedError(ProfileError, InputError):
    """A worker cannot be called with this certificate, or does not measure this; says why and what to do."""


class WorkerLostError(ProfileError):
    """A worker does not answer any more."""


class WorkerAgent:
    """Calls the agent of a worker. `force`: have it measured even while it serves requests.

    `machine`, `jellybean`, `driver`: the worker's machine, version of JellyBean, and driver of its device, after
    `describe`.
    """

    def __init__(self, worker: RemoteWorker, *, force: bool = False) -> None:
        """ProfileError if there can be no channel to the worker."""
        self.worker, self.force = worker, force
        self.machine = Machine()
        self.jellybean: str | None = None
        self.driver: str | None = None
        try:
            self._channel = worker.transport.blocking_channel(worker.address, worker.name, _KEEPALIVE)
        except AgentError as error:
            raise WorkerRefusedError(f"--on {worker.name}: {error}") from error
        self._stub: Any = agent_pb2_grpc.AgentStub(self._channel)  # type: ignore[no-untyped-call]

    def describe(self) -> Self:
        """Ask for the worker's machine. WorkerRefusedError if it may not be called, or is of an older version."""
        request = agent_pb2.DescribeRequest()
        try:
            status = self._stub.Describe(request, timeout=_DESCRIBE_S, metadata=protocol_metadata())
        except grpc.RpcError as error:
            found = self._error_of(error)
            if isinstance(found, WorkerLostError):  # it was never there
                raise WorkerRefusedError(f"{found}; has it joined, and is its agent up?") from error
            raise found from error
        if not status.HasField("machine"):
            raise WorkerRefusedError(f"--on {self.worker.name}: its agent is older and measures nothing: update it")
        described = status.machine
        cpu, system, onnxruntime, jellybean, driver = (
            printable(text, _MAX_TEXT) or None
            for text in (
                described.cpu,
                described.system,
                described.onnxruntime,
                described.jellybean,
                described.driver,
            )
        )
        self.machine = Machine(cpu, described.cores or None, system, onnxruntime, described.threads or None)
        self.jellybean, self.driver = jellybean, driver
        return self

    def measure(
        self, subject: agent_pb2.Subject, contents: Mapping[str, Content]
    ) -> Iterator[agent_pb2.MeasureResponse]:
        """Measurements of a variant, each as it is made. `contents`: sha256 -> file, of those that it may lack.

        WorkerLostError if the worker is gone, other ProfileErrors if it refuses or the model fails.
        """
        subject.force, began_s = self.force, time.monotonic()
        lacking: SimpleQueue[Sequence[agent_pb2.Lacking]] = SimpleQueue()
        try:
            call = self._stub.Measure(_requests(subject, contents, lacking), metadata=protocol_metadata())
        except ValueError as error:  # the channel is closed: the command ends
            raise WorkerLostError(f"--on {self.worker.name}: {error}") from error
        try:
            for response in call:
                if problem := problem_of_response(subject, contents, response, time.monotonic() - began_s):
                    raise ProfileError(f"--on {self.worker.name}: it {problem}: its measurements are not used")
                if response.WhichOneof("part") == "accepted":
                    self.driver = printable(response.accepted.machine.driver, _MAX_TEXT) or None
                    lacking.put(response.accepted.lacking)
                else:
                    yield response
        except grpc.RpcError as error:
            raise self._error_of(error) from error
        finally:
            lacking.put(())  # the thread that sends requests ends
            with contextlib.suppress(ValueError):
                call.cancel()

    def close(self) -> None:
        """End all calls."""
        self._channel.close()

    def _error_of(self, error: Any) -> ProfileError:
        """The error of a failed call. Where there is no connection, the reason is found by making one here."""
        status, details = error.code(), printable(error.details() or "no details")
        name, address = self.worker.name, self.worker.address
        if status is grpc.StatusCode.UNAVAILABLE:
            if says_not_connected(details) and not address.startswith("unix:"):
                fault = connection_fault(address, *self.worker.transport.expected(name))
                if fault is not None and fault.of_certificate:
                    return WorkerRefusedError(f"--on {name}: {fault.reason}")
                details = details if fault is None else fault.reason
            return WorkerLostError(f"--on {name}: {details}")
        if status in _REFUSALS:
            return WorkerRefusedError(f"--on {name}: {details}")
        return ProfileError(f"--on {name}: {details}")


def problem_of_response(
    subject: agent_pb2.Subject,
    contents: Mapping[str, Content],
    response: agent_pb2.MeasureResponse,
    passed_s: float,
) -> str:
    """What is wrong with what a worker states, by what it was asked and the time since; empty if nothing.

    How fast a box is only the box can say. But a NaN is no time, and runs do not last longer than the
    time that has passed.
    """
    part = response.WhichOneof("part")
    if part == "accepted":
        lacking = [file.sha256 for file in response.accepted.lacking]
        is_offered = len(lacking) <= len(contents) and all(sha256 in contents for sha256 in lacking)
        return "" if is_offered else "wants files that it was not offered"
    if part == "memory_bytes":
        sizes = response.memory_bytes, response.device_memory_bytes
        return "" if all(0 <= size <= _MOST_BYTES for size in sizes) else "states a memory that no machine has"
    timed = response.timed
    if not any(timed.batch == point.batch and timed.block in point.blocks for point in subject.points):
        return "states times that were not asked for"
    if not timed.seconds or not all(0 < seconds < math.inf for seconds in timed.seconds):
        return "states times that are none"
    return "states times longer than the time that has passed" if sum(timed.seconds) > passed_s else ""


def _requests(
    subject: agent_pb2.Subject, contents: Mapping[str, Content], lacking: SimpleQueue[Sequence[agent_pb2.Lacking]]
) -> Iterator[agent_pb2.MeasureRequest]:
    """What is measured, then the files that the agent says it lacks."""
    yield agent_pb2.MeasureRequest(subject=subject)
    for file in lacking.get():
        for data in _parts(contents[file.sha256], file.offset):
            yield agent_pb2.MeasureRequest(file=agent_pb2.FilePart(sha256=file.sha256, data=data))


def _parts(content: Content, offset: int) -> Iterator[bytes]:
    """The bytes of a file from `offset` on."""
    if isinstance(content, bytes):
        for begin in range(offset, len(content), _PART_BYTES):
            yield content[begin : begin + _PART_BYTES]
        return
    with content.open("rb") as file:
        file.seek(offset)
        while data := file.read(_PART_BYTES):
            yield data
