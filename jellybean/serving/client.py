"""A client of a running workflow's gateway.

with Client.of("demo/digits") as client:
    print(client.infer({"strip": image}))
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np

from jellybean.folders import STATE_FOLDER
from jellybean.ledger.errors import LABELLED_ALREADY
from jellybean.serving.endpoint import Endpoint
from jellybean.serving.errors import HandshakeError, KeptError, RequestError, ServingError
from jellybean.serving.run_processes import GATEWAY_NAME
from jellybean.serving.run_state import naming_failing, running_state
from jellybean_agent import (
    AgentError,
    Array,
    CertificateFolder,
    ConnectionFault,
    StatusError,
    Transport,
    UnixSocketClient,
    UnixSocketRpcUnsupportedError,
    connection_fault,
    decode_tensor,
    encode_tensor,
    printable,
    protocol_metadata,
    says_cut_off,
    says_not_connected,
)
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import (
    gateway_pb2,
    gateway_pb2_grpc,
    ledger_pb2,
    ledger_pb2_grpc,
    project_pb2,
    project_pb2_grpc,
)

TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0  # before a refused request is sent again
_FAULT_AGE_S = 5.0  # for which the calls of an outage share a diagnosis, as it takes up to 5 s: 3 to connect, 2 to hear
_NO_METHOD = ("no method ", "Method not found!")  # what servers of ours and of grpc say that have other services
INFER = "/jellybean.gateway.v1.Gateway/Infer"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A request's place in a stream, for workflows that keep a state. `begins`, `ends`: the stream's first, its last.

    `number`: of the chunk, from 1: one that is sent again is answered once. 0: the next.
    """

    stream: str
    begins: bool = False
    ends: bool = False
    number: int = 0


class Client:
    """Calls a gateway; thread-safe, connects at the first call. Close it, or use it as a context manager.

    `tls`: folder of the client's certificate, without which only gateways on this machine can be called. A certificate
    that is replaced there is used from then on. `timeout_s`: time limit of a call that gives none. `workflow`: which
    one it calls, if the gateway serves several; by default that of its certificate. `retry_s`: how long a request that
    is refused with UNAVAILABLE is sent again, while its gateway starts, moves or is replaced; within its time limit.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = TIMEOUT_S,
        tls: Path | str | None = None,
        workflow: str = "",
        retry_s: float = 0.0,
    ) -> None:
        self.address, self.workflow = address, workflow
        self._timeout_s, self._retry_s = _checked_limit_s(timeout_s), retry_s
        self._directory: Path | None = None  # project that the gateway runs for on this machine
        self._lock = threading.Lock()  # held while connections are opened
        self._channel: grpc.Channel | None = None
        self._stub: Any = None  # gRPC stub of the current channel
        self._socket_client: UnixSocketClient | None = None
        self._fault_lock = threading.Lock()  # held while the reason is determined why there is no connection
        self._fault: ConnectionFault | None = None
        self._fault_at_s = -math.inf  # when `_fault` was determined, by the monotonic clock
        self._try_socket = address.startswith("unix:")  # set to False once the gateway proves to speak gRPC only
        try:
            folder = None if tls is None else CertificateFolder(Path(tls))
            self._transport = Transport(certificate=folder, insecure=folder is None)
            self._certificate = None if folder is None else folder.current()  # certificate that the channel presents
            self._transport.check(address)
        except AgentError as error:
            raise ServingError(str(error)) from error

    def _gateway(self) -> Any:
        """The gRPC stub, on a new channel if the certificate was replaced. ServingError for an invalid certificate."""
        with self._lock:
            folder = self._transport.certificate
            certificate = None if folder is None else folder.current()
            if self._channel is None or certificate is not self._certificate:  # open calls finish on the old channel
                try:
                    self._channel = self._transport.blocking_channel(self.address)
                except AgentError as error:
                    raise ServingError(str(error)) from error
                self._stub = gateway_pb2_grpc.GatewayStub(self._channel)  # type: ignore[no-untyped-call]
                self._certificate = certificate
            return self._stub

    @classmethod
    def of(cls, directory: Path | str, *, timeout_s: float = TIMEOUT_S, workflow: str = "") -> Self:
        """A client of a project's run on this machine. NotRunningError when nothing is up.

        The error of a request names the processes of the run that are started again and again, with the reason.
        """
        path = Path(directory).resolve()
        client = cls(running_state(path).gateway_address, timeout_s=timeout_s, workflow=workflow)
        client._directory = path
        return client

    @classmethod
    def at(cls, endpoint: Endpoint, *, timeout_s: float = TIMEOUT_S) -> Self:
        """A client of a gateway's owner."""
        return cls(endpoint.address, timeout_s=timeout_s, tls=endpoint.tls, workflow=endpoint.workflow)

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        chunk: Chunk | None = None,
    ) -> dict[str, Array]:
        """Answer one request: a tensor per source in, a tensor per sink out. RequestError when it is refused or fails.

        KeptError when there is no answer in time and the source has `deliver: eventually`. Such a request may be sent
        repeatedly under one id: it is answered once. `headers`: W3C trace context.
        `chunk`: the request's place in a stream, where an operator keeps a state.
        """
        return self._answer(request_of(inputs, request_id, chunk, self.workflow), timeout_s, headers)

    def answer(self, request_id: str, *, timeout_s: float | None = None) -> dict[str, Array]:
        """Wait up to `timeout_s` for the answer of a kept request; KeptError if there is none yet."""
        return self._answer(gateway_pb2.InferRequest(request_id=request_id, workflow=self.workflow), timeout_s)

    def _answer(
        self, request: gateway_pb2.InferRequest, timeout_s: float | None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Array]:
        with contextlib.nullcontext() if self._directory is None else naming_failing(self._directory):
            limit_s = self._timeout_s if timeout_s is None else _checked_limit_s(timeout_s)
            response = self._infer(request, limit_s, headers)
        if response.kept:
            raise KeptError(response.request_id)
        return {name: decode_tensor(tensor) for name, tensor in response.outputs.items()}

    def _infer(self, request: gateway_pb2.InferRequest, timeout_s: float, headers: Mapping[str, str] | None) -> Any:
        """Send a request, and again while it is refused; a chunk without a number is not: it could be run twice."""
        begin_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        retry_s = 0.0 if request.HasField("stream") and not request.stream.chunk else self._retry_s
        while True:
            try:
                return self._call("Infer", request, timeout_s - (time.monotonic() - begin_s), headers)
            except RequestError as error:
                again_s = time.monotonic() - begin_s + pause_s
                is_refused = error.status == grpc.StatusCode.UNAVAILABLE.name and not isinstance(error, HandshakeError)
                if not is_refused or again_s >= min(retry_s, timeout_s):
                    raise
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def status(self) -> gateway_pb2.StatusResponse:
        """State of the gateway and its workers, and its request counters."""
        status: gateway_pb2.StatusResponse = self._call(
            "Status", gateway_pb2.StatusRequest(workflow=self.workflow), None
        )
        return status

    def metrics(self) -> str:
        """Metrics of the gateway and its workers in Prometheus' text format. For the run's owner only, as `drain`."""
        return str(self._call("Metrics", agent_pb2.MetricsRequest(workflow=self.workflow), None).text.decode())

    def drain(self, timeout_s: float) -> int:
        """Have the gateway refuse new requests and finish those in flight; returns the number left at the timeout.

        0 s: do not wait. Only allowed on the gateway's private socket, not on the clients' port.
        """
        timeout_s = max(timeout_s, 0.0)
        request = agent_pb2.DrainRequest(timeout_s=timeout_s)
        return int(self._call("Drain", request, timeout_s + 5.0).left)

    def stop(self, timeout_s: float) -> int:
        """Drain the gateway and end its process; returns the number of requests left. For the run's owner only."""
        return int(self._call("Stop", agent_pb2.DrainRequest(timeout_s=timeout_s), timeout_s + 5.0).left)

    def plan(self) -> bytes:
        """The document (JSON) of the plan that new requests are served by. For the run's owner only."""
        return bytes(self._call("Plan", gateway_pb2.PlanRequest(), None).plan)

    def label(self, labels: Mapping[str, Any]) -> dict[str, float]:
        """Say what was right of answers to this client's requests, by request id; how right each was, 0 to 1.

        A label is what the workflow's metric compares: a class index for `top1`, a number or list of numbers for
        `exact_match`, text for the others. RequestError names those that no kept answer belongs to; the others count.
        """
        given = [
            ledger_pb2.RequestLabel(id=id_, label=label if isinstance(label, str) else json.dumps(label))
            for id_, label in labels.items()
        ]
        found = self.ask_ledger("Label", ledger_pb2.LabelRequest(labels=given, workflow=self.workflow)).outcomes
        problems = [one.problem for one in found if not one.HasField("verdict")]
        if problems:
            is_labelled = all(problem.endswith(LABELLED_ALREADY) for problem in problems)
            status = grpc.StatusCode.ALREADY_EXISTS if is_labelled else grpc.StatusCode.NOT_FOUND
            raise RequestError(status.name, "; ".join(problems[:3]))
        return {id_: one.verdict for id_, one in zip(labels, found, strict=True)}

    def ask_ledger(self, method: str, request: Any, *, timeout_s: float | None = None) -> Any:
        """Call a method of the service Ledger: a question about the gateway's ledger. For the owner only, but Label."""
        try:
            return self._call(method, request, timeout_s, of=ledger_pb2_grpc.LedgerStub)
        except RequestError as error:
            if error.status == grpc.StatusCode.UNIMPLEMENTED.name:
                reason = f"the gateway at {self.address} answers no questions about its ledger: update its JellyBean"
                raise RequestError(error.status, reason) from error
            raise

    def project_files(self) -> dict[str, bytes]:
        """Documents and held-out data of the gateway's project, by their paths in it. For the run's owner only."""
        found = self._call("Files", project_pb2.ProjectFilesRequest(), None, of=project_pb2_grpc.ProjectStub)
        return {file.path: file.content for file in found.files}

    def report_store(self) -> bytes:
        """What was planned, simulated and measured of the gateway's project: an SQLite file. For the owner only."""
        request = project_pb2.ReportStoreRequest()
        return bytes(self._call("ReportStore", request, None, of=project_pb2_grpc.ProjectStub).database)

    def start_replacement(self, plan: str, peers: Mapping[str, str], links: str, timeout_s: float) -> Any:
        """Have the gateway switch to another plan once its workers are ready; returns a gRPC future.

        `plan`: its document (JSON). `peers`: addresses of workers that are new, or have moved. Workers that joined take
        the plan by themselves, others must have been started with it. For the run's owner only, as `drain`.
        """
        request = gateway_pb2.ReplaceRequest(plan=plan.encode(), peers=peers, links=links, timeout_s=timeout_s)
        return self._gateway().Replace.future(request, timeout=timeout_s + 5.0)

    def close(self) -> None:
        """Close the connections."""
        if self._socket_client is not None:
            self._socket_client.close()
        if self._channel is not None:
            self._channel.close()
        self._socket_client = self._channel = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(
        self,
        method: str,
        request: Any,
        timeout_s: float | None,
        headers: Mapping[str, str] | None = None,
        *,
        of: Callable[[grpc.Channel], Any] | None = None,
    ) -> Any:
        """Call a method of the service Gateway, or of that with the stub `of`."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if method == "Infer" and not headers and (socket := self._unix_socket()) is not None:
            try:
                answer = socket.call(INFER, request.SerializeToString(), limit_s)
                return gateway_pb2.InferResponse.FromString(answer)
            except StatusError as error:
                if error.status is grpc.StatusCode.UNAVAILABLE and error.__cause__ is not None:  # not its own answer
                    raise RequestError(error.status.name, self._ended_reason()) from error
                raise RequestError(error.status.name, printable(str(error)) or "no details") from error
        try:
            stub = self._gateway()
            answer = getattr(stub if of is None else of(self._channel), method)(  # type: ignore[arg-type]
                request, timeout=limit_s, metadata=(*protocol_metadata(), *(headers or {}).items())
            )
        except grpc.RpcError as error:
            raise self._error_of(error) from error
        self._fault_at_s = -math.inf  # an outage is over: the next may have another reason
        return answer

    def _connection_fault(self) -> ConnectionFault | None:
        """Why the gateway cannot be reached, determined by a new connection: once in an outage, and again each
        `_FAULT_AGE_S`, as its reason may change (the host is back, its gateway not yet).
        """
        with self._fault_lock:
            if time.monotonic() - self._fault_at_s > _FAULT_AGE_S:
                self._fault = connection_fault(self.address, *self._transport.expected())
                self._fault_at_s = time.monotonic()
            return self._fault

    def _error_of(self, error: grpc.RpcError) -> RequestError:
        """The error of a failed call. Where there is no connection, the reason is found by making one here."""
        status, details = error.code(), printable(error.details() or "no details")
        is_cut_off = status is grpc.StatusCode.UNAVAILABLE and says_not_connected(details)
        if is_cut_off and not self.address.startswith("unix:"):
            fault = self._connection_fault()
            if fault is not None:
                return HandshakeError(fault.reason) if fault.of_certificate else RequestError(status.name, fault.reason)
            details = self._ended_reason()  # it answers again
        elif is_cut_off or (status is grpc.StatusCode.UNAVAILABLE and says_cut_off(details)):
            details = self._ended_reason()
        else:  # an outage is over
            self._fault_at_s = -math.inf
        if status is grpc.StatusCode.UNIMPLEMENTED and details.startswith(_NO_METHOD):
            details = f"{self.address} is no port of a gateway for clients or workers: check the address"
        return RequestError(status.name, details)

    def _ended_reason(self) -> str:
        """What is said of a gateway that does not answer or went away during a call, with the next step."""
        if self._directory is None:
            reason = "it is not up, or has just ended: look after it, then repeat this"
            return f"no gateway answers at {self.address}: {reason}"
        log = self._directory / STATE_FOLDER / "logs" / f"{GATEWAY_NAME}.log"
        ended = "the gateway does not answer: it has ended, and its run starts it again in seconds"
        return f"{ended}: repeat this; why it ended is in {log}"

    def _unix_socket(self) -> UnixSocketClient | None:
        """The faster RPC client of a Unix socket; None when the gateway speaks gRPC only (with certificates)."""
        with self._lock:
            if self._socket_client is None and self._try_socket:
                try:
                    client = UnixSocketClient(self.address.removeprefix("unix:"), dict(protocol_metadata()))
                    client.connect()
                    self._socket_client = client
                except UnixSocketRpcUnsupportedError:
                    self._try_socket = False
                except OSError:  # no process listens at present: gRPC reports it, or waits
                    return None
            return self._socket_client


def served_document(endpoint: Endpoint) -> dict[str, Any]:
    """The document of the plan that a gateway serves. RequestError if it does not answer."""
    with Client.at(endpoint) as client:
        found: dict[str, Any] = json.loads(client.plan())
    return found


def _checked_limit_s(timeout_s: float) -> float:
    """ServingError for a time limit in which no call could be answered: it is not taken for none at all."""
    if timeout_s > 0.0:  # False for NaN
        return timeout_s
    raise ServingError(f"a time limit of {timeout_s:g} s leaves no time for an answer: give more, for example 0.5")


def request_of(
    inputs: Mapping[str, Any], request_id: str = "", chunk: Chunk | None = None, workflow: str = ""
) -> gateway_pb2.InferRequest:
    """A request as a message. RequestError when a value cannot be a tensor."""
    try:
        tensors = {name: encode_tensor(np.asanyarray(value)) for name, value in inputs.items()}
    except AgentError as error:
        raise RequestError(grpc.StatusCode.INVALID_ARGUMENT.name, str(error)) from error
    request = gateway_pb2.InferRequest(request_id=request_id, inputs=tensors, workflow=workflow)
    if chunk is not None:
        stream = gateway_pb2.Stream(id=chunk.stream, begins=chunk.begins, ends=chunk.ends, chunk=chunk.number)
        request.stream.CopyFrom(stream)
    return request
