"""A client of a running workflow.

with Client.of("demo/digits") as client:
    print(client.infer({"strip": image}))
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np

from jellybean.serving.errors import KeptError, RequestError, ServingError
from jellybean.serving.run_state import running_state
from jellybean_agent import (
    AgentError,
    Array,
    CertificateFolder,
    InvalidInputError,
    StatusError,
    Transport,
    UnixSocketClient,
    UnixSocketRpcUnsupportedError,
    decode_tensor,
    encode_tensor,
    protocol_metadata,
)
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc

TIMEOUT_S = 60.0
INFER = "/jellybean.gateway.v1.Gateway/Infer"


class Client:
    """Talks to a gateway; safe for several threads. Close it, or use it as a context manager.

    `tls`: the folder of a client's certificate, without which only this machine is talked to. A certificate that is
    replaced there is used from then on.
    """

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S, tls: Path | str | None = None) -> None:
        self.address, self._timeout_s = address, timeout_s
        self._opening = threading.Lock()
        self._lane: UnixSocketClient | None = None
        self._has_lane = address.startswith("unix:")  # until it is known that there is none
        try:
            folder = None if tls is None else CertificateFolder(Path(tls))
            self._transport = Transport(certificate=folder, insecure=folder is None)
            self._open()
        except AgentError as error:
            raise ServingError(str(error)) from error

    def _open(self) -> None:
        self._close_lane()
        self._channel = self._transport.blocking_channel(self.address)
        self._stub = gateway_pb2_grpc.GatewayStub(self._channel)  # type: ignore[no-untyped-call]
        folder = self._transport.certificate
        self._shown = None if folder is None else folder.current()

    @classmethod
    def of(cls, directory: Path | str, *, timeout_s: float = TIMEOUT_S) -> Self:
        """A client of what is up for a project's folder. NotRunningError when nothing is."""
        return cls(running_state(Path(directory)).gateway_address, timeout_s=timeout_s)

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Array]:
        """One request: a tensor per source in, a tensor per sink out. RequestError when it is refused or fails.

        KeptError when there is no answer in time and the source has `deliver: eventually`. Such a request may be sent
        any number of times under one id: it is served once, and the answer is the same. `headers`: W3C trace context.
        """
        return self._answer(request_of(inputs, request_id), timeout_s, headers)

    def answer(self, request_id: str, *, timeout_s: float | None = None) -> dict[str, Array]:
        """The answer of a request that was kept, waited for so long; KeptError when there is none yet."""
        return self._answer(gateway_pb2.InferRequest(request_id=request_id), timeout_s)

    def _answer(
        self, request: gateway_pb2.InferRequest, timeout_s: float | None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Array]:
        response = self._call("Infer", request, timeout_s, headers)
        if response.kept:
            raise KeptError(response.request_id)
        return {name: decode_tensor(tensor) for name, tensor in response.outputs.items()}

    def status(self) -> gateway_pb2.StatusResponse:
        """State of the gateway and of every worker."""
        status: gateway_pb2.StatusResponse = self._call("Status", gateway_pb2.StatusRequest(), None)
        return status

    def metrics(self) -> str:
        """The gateway's and its workers', in Prometheus' text format. For who owns the run alone, as `drain`."""
        return str(self._call("Metrics", agent_pb2.MetricsRequest(), None).text.decode())

    def drain(self, timeout_s: float) -> int:
        """Let the gateway finish what it has in hand and take nothing new; the number of requests left.

        0 s: do not wait. Only the gateway's private socket takes this, not the port that clients use.
        """
        timeout_s = max(timeout_s, 0.0)
        request = agent_pb2.DrainRequest(timeout_s=timeout_s)
        return int(self._call("Drain", request, timeout_s + 5.0).left)

    def start_replacement(self, plan: str, peers: Mapping[str, str], links: str, timeout_s: float) -> Any:
        """The call, under way, that has the gateway serve another plan, whose workers have been started.

        `plan`: its document, JSON. For who owns the run alone, as `drain`.
        """
        request = gateway_pb2.ReplaceRequest(plan=plan.encode(), peers=peers, links=links, timeout_s=timeout_s)
        return self._stub.Replace.future(request, timeout=timeout_s + 5.0)

    def close(self) -> None:
        self._close_lane()
        self._channel.close()

    def _close_lane(self) -> None:
        if self._lane is not None:
            self._lane.close()
        self._lane = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(
        self, method: str, request: Any, timeout_s: float | None, headers: Mapping[str, str] | None = None
    ) -> Any:
        if method == "Infer" and not headers and (lane := self._lane_there()) is not None:
            try:
                told = lane.call(INFER, request.SerializeToString(), timeout_s or self._timeout_s)
                return gateway_pb2.InferResponse.FromString(told)
            except StatusError as error:
                raise RequestError(error.status.name, str(error) or "no details") from error
        folder = self._transport.certificate
        if folder is not None and folder.current() is not self._shown:
            self._open()  # calls under way end on the channel before it
        try:
            return getattr(self._stub, method)(
                request, timeout=timeout_s or self._timeout_s, metadata=(*protocol_metadata(), *(headers or {}).items())
            )
        except grpc.RpcError as error:
            raise RequestError(error.code().name, error.details() or "no details") from error

    def _lane_there(self) -> UnixSocketClient | None:
        """The fast lane of a Unix socket that has one: a gateway that runs with certificates has none."""
        with self._opening:
            if self._lane is None and self._has_lane:
                try:
                    lane = UnixSocketClient(self.address.removeprefix("unix:"), dict(protocol_metadata()))
                    lane.connect()
                    self._lane = lane
                except UnixSocketRpcUnsupportedError:
                    self._has_lane = False
                except OSError:  # nobody listens just now: gRPC says so, or waits
                    return None
            return self._lane


def request_of(inputs: Mapping[str, Any], request_id: str = "") -> gateway_pb2.InferRequest:
    """A request on the wire. RequestError when a value cannot be a tensor."""
    try:
        tensors = {name: encode_tensor(np.asarray(value)) for name, value in inputs.items()}
    except InvalidInputError as error:
        raise RequestError(grpc.StatusCode.INVALID_ARGUMENT.name, str(error)) from error
    return gateway_pb2.InferRequest(request_id=request_id, inputs=tensors)
