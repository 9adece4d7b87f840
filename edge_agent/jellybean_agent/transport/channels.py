"""Creates all channels and servers, and so decides how they are protected.

A Unix socket is protected by the permissions of its folder, TCP by mutual TLS. TCP without TLS is limited to the
loopback interface, and must be requested explicitly (`--insecure`).
"""

from __future__ import annotations

import inspect
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from jellybean_agent.admission.limits import ListeningPort, PortLimits
from jellybean_agent.admission.process import Admission
from jellybean_agent.brain.messages import GATEWAY
from jellybean_agent.errors import PlanViewError, StatusError
from jellybean_agent.rpc.parsed_size import has_large_overhead
from jellybean_agent.rpc.server import RpcServer
from jellybean_agent.rpc.tls.listener import HTTP2_ALPN, SERVER_ALPN, TlsLimits
from jellybean_agent.rpc.unix_socket_frames import STREAMS_ALPN
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.security.identity import Identity, OpenPolicy, Policy, Role, caller_name, identities
from jellybean_agent.security.renewal import renewal_advice, utc_minute
from jellybean_agent.security.tls_context import (
    ReloadingTlsContext,
    TlsSettings,
    client_context,
    tls_error_text,
)
from jellybean_agent.system.addresses import is_loopback, parse_address
from jellybean_agent.system.private_files import is_in_private_folder
from jellybean_agent.telemetry.logs import about, log_fields
from jellybean_agent.tensors.tensors import MAX_MESSAGE_BYTES
from jellybean_protos.addresses import join_address

LOG = logging.getLogger("jellybean.channels")
CONNECTION_LIFETIME_S = 300.0  # lifetime of a connection, after which a replaced or withdrawn certificate takes effect
CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # limit of one attempt; a refused one is repeated sooner
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
OnCall = Callable[[Any], None]  # gets the context of a call, in the call's task
_HTTP_TLS = TlsSettings()
_RPC_TLS = TlsSettings(minimum=ssl.TLSVersion.TLSv1_2, alpn=SERVER_ALPN)  # TLS 1.2: for clients with older libraries
_OPEN_TLS = replace(_RPC_TLS, clients=False, alpn=(HTTP2_ALPN,))
_OPEN_AGE_S = 60.0  # of connections of clients without a certificate
_GRACE_S = 120.0  # for calls in progress on a connection at the end of its lifetime
_MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class Transport:
    """How a process of a workflow communicates. `insecure`: TCP without TLS on the loopback interface."""

    workflow: str = ""
    certificate: CertificateFolder | None = None
    insecure: bool = False
    renew_s: float = CONNECTION_LIFETIME_S
    admission: Admission = field(default_factory=Admission, compare=False)  # of all servers of the process

    def check(self, address: str) -> str:
        """An address in its plain form, if this transport may listen on it and call it, else PlanViewError."""
        kind, _, rest = address.partition(":")
        if kind == "unix":
            if len(os.fsencode(rest)) >= _MAX_SOCKET_PATH:
                raise PlanViewError(f"{address}: a socket path must be shorter than {_MAX_SOCKET_PATH} bytes")
            return address
        try:
            host, port = parse_address(address, least_port=0)
        except PlanViewError as error:
            raise PlanViewError(f"{error}; or unix:/path") from error
        if self.certificate is not None:
            return join_address(host, port)
        if not self.insecure:
            reason = "TCP needs a certificate (--tls FOLDER, made by `jellybean certs`); unix:/path needs none"
            raise PlanViewError(f"{address}: {reason}")
        if not is_loopback(host):
            raise PlanViewError(f"{address}: --insecure works on 127.0.0.1 and [::1] only")
        return join_address(host, port)

    def channel(self, address: str, worker: str = GATEWAY, answer_bytes: int | None = None) -> grpc.aio.Channel:
        """A channel to a worker, or to the gateway, whose certificate must have that identity.

        `answer_bytes`: of the largest answer; a larger one is RESOURCE_EXHAUSTED.
        """
        address = self.check(address)
        options, credentials = _dialling(self, address, worker)
        if answer_bytes is not None:  # gRPC takes the first of two equal keys
            options.insert(0, ("grpc.max_receive_message_length", answer_bytes))
        if credentials is None:
            return grpc.aio.insecure_channel(_target(address), options=options)
        return grpc.aio.secure_channel(_target(address), credentials, options=options)

    def blocking_channel(
        self, address: str, worker: str = GATEWAY, more_options: Iterable[tuple[str, Any]] = ()
    ) -> grpc.Channel:
        """Like `channel`, but a blocking channel, for callers without an event loop. `more_options`: of gRPC."""
        address = self.check(address)
        options, credentials = _dialling(self, address, worker)
        options += more_options
        if credentials is None:
            return grpc.insecure_channel(_target(address), options=options)
        return grpc.secure_channel(_target(address), credentials, options=options)

    def expected(self, worker: str = GATEWAY) -> tuple[Identity | None, CertificateFolder | None]:
        """The identity that a worker, or the gateway, must prove, and the certificate to show it; without TLS None."""
        if self.certificate is None:
            return None, None
        workflow = self.certificate.current().identity.plan
        return Identity(workflow, Role.AGENT if worker != GATEWAY else Role.GATEWAY, worker), self.certificate

    @property
    def expiry_reason(self) -> str:
        """That the own certificate has expired, which other processes refuse without a reason; empty if it has not."""
        folder = self.certificate
        if folder is None or (found := folder.current()).expires_unix_s > time.time():
            return ""
        when, advice = utc_minute(found.expires_unix_s), renewal_advice(folder.path, found.identity)
        return f"the certificate of this process, in {folder.path}, expired on {when}; {advice}"

    def stream_tls(self, worker: str) -> tuple[ssl.SSLContext, str] | None:
        """TLS of a stream to a worker, or to the gateway, and the name in its certificate; None without TLS."""
        identity, folder = self.expected(worker)
        if identity is None or folder is None:
            return None
        try:
            return client_context(folder.current(), (STREAMS_ALPN, HTTP2_ALPN)), identity.tls_name
        except (ssl.SSLError, ValueError) as error:
            raise PlanViewError(f"{folder.path}: TLS cannot use this certificate: {tls_error_text(error)}") from error

    @property
    def stream_age_s(self) -> float | None:
        """Seconds after which a stream moves to a new connection; None: never, as there is no certificate."""
        return None if self.certificate is None else self.renew_s

    def http_context(self) -> ssl.SSLContext | None:
        """Mutual TLS for an HTTP server, with credentials reloaded at each handshake; None without a certificate."""
        return None if self.certificate is None else ReloadingTlsContext.of(self.certificate, _HTTP_TLS)

    def server(self, policy: Policy, on_call: OnCall | None = None) -> RpcServer:
        """A server that checks every call against the policy. `on_call`: called with each accepted call, for traces."""
        return make_server(policy, on_call, self.admission)

    def bind(self, server: RpcServer, address: str, port: ListeningPort = ListeningPort.CLIENTS) -> int:
        """Listen on an address; returns the port. PlanViewError if the address is in use or not allowed.

        `port`: what it is for. Clients of enrolment need no certificate; the server shows its own in any case.
        """
        clients = port is not ListeningPort.ENROLMENT
        address = self.check(address)
        if address.startswith("unix:"):
            _check_private(Path(address.removeprefix("unix:")))
        try:
            if self.certificate is None or (address.startswith("unix:") and clients):
                return server.add_insecure_port(address, port)
            context = ReloadingTlsContext.of(self.certificate, _RPC_TLS if clients else _OPEN_TLS)
            age_s = 2 * self.renew_s if clients else _OPEN_AGE_S  # clients of ours renew before that
            limits = TlsLimits(age_s=age_s, grace_s=min(_GRACE_S, age_s))
            return server.add_secure_port(address, context, limits, port)
        except RuntimeError as error:
            raise PlanViewError(
                f"cannot listen on {address}: it is in use or may not be used; choose another"
            ) from error


def make_transport(
    workflow: str, me: tuple[Role, str], tls: Path | None, *, insecure: bool, renew_s: float = CONNECTION_LIFETIME_S
) -> Transport:
    """The transport of the process `me` (role, name). PlanViewError when the certificate has another identity."""
    if tls is not None and insecure:
        raise PlanViewError("--tls and --insecure exclude each other: give one of them")
    if tls is None:
        return Transport(workflow, None, insecure)
    folder, wanted = CertificateFolder(tls), Identity(workflow, *me)
    found = folder.current().identity
    if found != wanted:
        raise PlanViewError(f"{tls}: the certificate is of {found.uri}, this is {wanted.uri}")
    return Transport(workflow, folder, renew_s=renew_s)


def _target(address: str) -> str:
    """The address as gRPC reads it: a URI, in which `#`, `%` and `?` of a path are escaped."""
    path = address.removeprefix("unix:")
    return address if path == address else f"unix:{quote(os.fsencode(path))}"


def _dialling(
    transport: Transport, address: str, worker: str
) -> tuple[list[tuple[str, Any]], grpc.ChannelCredentials | None]:
    options = list(CHANNEL_OPTIONS)
    peer, folder = transport.expected(worker)
    if peer is None or folder is None or address.startswith("unix:"):
        return options, None
    found = folder.current()
    options.append(("grpc.ssl_target_name_override", peer.tls_name))
    return options, grpc.ssl_channel_credentials(found.ca, found.key, found.chain)


def caller_identity(context: Any) -> Identity | None:
    """The identity in the caller's certificate; None without one."""
    found = identities(context.auth_context())
    return found[0] if len(found) == 1 else None


def _check_private(socket: Path) -> None:
    """PlanViewError if other users could reach the socket."""
    if not is_in_private_folder(socket):
        raise PlanViewError(f"unix:{socket}: other users could reach it; put it into a private folder (chmod 700)")


def make_server(
    policy: Policy | OpenPolicy,
    on_call: OnCall | None = None,
    admission: Admission | None = None,
    limits: PortLimits | None = None,
) -> RpcServer:
    """A server that checks every call against the policy. `on_call`: called with each accepted call.

    `admission`: of the process; its own if there is none. `limits`: instead of those of its ports.
    """

    def check(method: str, context: Any) -> bool:
        return check_caller(policy, method, context)

    def guard(handler: Any, method: str) -> Any:
        return _guarded(handler, method, policy, on_call)

    return RpcServer(guard, check, admission, limits)


def check_caller(policy: Policy | OpenPolicy, method: str, context: Any) -> bool:
    """StatusError, which is also logged, when the policy refuses a call; else what `Policy.check` returns."""
    try:
        return policy.check(method, context)
    except StatusError as error:
        fields = log_fields(method=method, status=error.status.name)
        LOG.warning("refused: %s", error, extra=fields | about(caller_name(context)))
        error.is_logged = True
        raise


def _parsed(parse: Any, method: str, request: bytes) -> Any:
    """A request's message. StatusError if it would take far more memory than its bytes."""
    kind = getattr(parse, "__self__", None)  # the class whose FromString it is
    if kind is not None and has_large_overhead(kind.DESCRIPTOR, request):
        reason = f"the request of {method} has too many small parts"
        raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
    return parse(request)


def _guarded(handler: Any, method: str, policy: Policy | OpenPolicy, on_call: OnCall | None) -> Any:
    """Wrap a handler so that the policy is checked first. A unary request is parsed here, so that invalid bytes get a
    clear status.
    """
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    behaviour, parse = getattr(handler, kind), None if handler.request_streaming else handler.request_deserializer

    async def checked(request: Any, context: Any) -> Any:
        try:
            if not getattr(context, "is_authorised", False):  # `RpcServer` has checked it already
                check_caller(policy, method, context)
            if on_call is not None:
                on_call(context)
            return request if parse is None else _parsed(parse, method, request)
        except StatusError as error:
            await context.abort(error.status, str(error))  # which raises
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the bytes are no request of {method}")

    async def call(request: Any, context: Any) -> Any:
        return await behaviour(await checked(request, context), context)

    async def generate(request: Any, context: Any) -> Any:
        async for response in behaviour(await checked(request, context), context):
            yield response

    make = getattr(grpc, f"{kind}_rpc_method_handler")
    found = generate if inspect.isasyncgenfunction(behaviour) else call
    return make(found, None if parse else handler.request_deserializer, handler.response_serializer)
