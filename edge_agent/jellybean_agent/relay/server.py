"""The relay: accepts tunnels of remote workers, and joins them with who asks for a worker or is asked for by one."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jellybean_agent.admission.gate import ConnectionGate
from jellybean_agent.admission.handshakes import Handshakes
from jellybean_agent.admission.limits import PORT_LIMITS, ListeningPort
from jellybean_agent.admission.process import Admission
from jellybean_agent.relay.connector import Connector, Pipes
from jellybean_agent.relay.endpoints import Endpoint, Sink, TlsEndpoint, WrapBio, read_buffer
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.listeners import Listeners
from jellybean_agent.relay.traffic import ReasonLog, Traffic
from jellybean_agent.relay.wire import (
    OFFER,
    OTHER_DEPLOYMENT,
    RELAY_ALPN,
    STARTED,
    Greeting,
    GreetingError,
    parse_greeting,
    refusal,
)
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.security.identity import Role, identities, tls_auth_context
from jellybean_agent.security.tls_context import ReloadingTlsContext, TlsSettings
from jellybean_agent.system.addresses import client_network

LOG = logging.getLogger("jellybean.relay")


@dataclass(frozen=True, slots=True)
class Routes:
    """Whom a relay connects. `workers`: local port -> remote worker. `targets`: name of a peer -> host and port."""

    workers: Mapping[int, str]
    targets: Mapping[str, tuple[str, int]]


class Relay:
    """A relay, from `start` to `stop`. Its workflow is the one of its certificate.

    `deployment`: ID of the tunnels that it accepts. Relays of two deployments may be behind one address.
    """

    def __init__(
        self, certificate: CertificateFolder, routes: Routes, limits: RelayLimits | None = None, deployment: str = ""
    ) -> None:
        self.traffic = Traffic()
        self.admission = Admission()
        self._gate = ConnectionGate(ListeningPort.TUNNELS, PORT_LIMITS[ListeningPort.TUNNELS], self.admission)
        self.limits = limits or RelayLimits()
        self.buffer = read_buffer()
        self._certificate, self._routes, self._deployment = certificate, routes, deployment
        self._reasons = ReasonLog(LOG)
        self._context = ReloadingTlsContext.of(certificate, TlsSettings(alpn=(RELAY_ALPN,)))
        self._pipes = Pipes(self.traffic, self.limits)
        self._connector = Connector(set(routes.workers.values()), routes.targets, self._pipes, self.buffer)
        self._callers: Handshakes[_Caller] = Handshakes(self.limits.unknown)  # without a complete greeting
        self._listeners = Listeners()
        self._is_draining = False

    async def start(self, listen: tuple[str, int], bind: str) -> None:
        """Listen for tunnels at `listen`, and on each worker's port at the host `bind`. PlanViewError if it cannot."""
        await self._listeners.open(self._accept_tunnel, *listen)
        for port, worker in self._routes.workers.items():
            await self._listeners.open(self._accept_local(worker), bind, port)

    async def stop(self, drain_s: float) -> int:
        """Accept nothing more, and wait for the pipes to end; returns how many were reset after `drain_s`."""
        self._is_draining = True
        self._listeners.close()
        for pool in self._connector.pools.values():
            pool.end_all()
        for caller in list(self._callers):
            caller.endpoint.reset("the relay ends")
        return await self._pipes.stop(drain_s)

    def offers(self) -> dict[str, int]:
        """Idle offers by worker."""
        return {name: len(pool) for name, pool in self._connector.pools.items()}

    def _accept_local(self, worker: str) -> Callable[[], Endpoint]:
        gate = ConnectionGate(ListeningPort.RELAYED, PORT_LIMITS[ListeningPort.RELAYED], self.admission)

        def fail(label: str, reason: str) -> None:
            self._count_refusal(label, worker, f"a connection to {worker}: {reason}")

        def connect(endpoint: Endpoint) -> None:
            if enter_gate(gate, endpoint):
                self._connector.from_local(endpoint, worker, fail)

        return lambda: Endpoint(_Accepted(connect), self.buffer)

    # -- tunnels ------------------------------------------------------------------------------------------------------

    def _accept_tunnel(self) -> Endpoint:
        def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
            return self._context.wrap_bio(incoming, outgoing, server_side=True)

        return _Caller(self, wrap).endpoint

    def begin(self, caller: _Caller) -> None:
        """A connection begins; another one may have to end for it."""
        if self._is_draining:
            caller.endpoint.reset("the relay ends")
            return
        endpoint, address = caller.endpoint, client_network(caller.endpoint.peer)
        victim = self._callers.begin(caller, address)
        if victim is not None:
            victim.endpoint.reset("too many connections without a greeting")
        endpoint.entry = self._gate.enter(address, endpoint.reset)
        if endpoint.entry is None:
            endpoint.reset("too many connections")
        endpoint.turn = self.admission.turns.of(address)

    def identify(self, endpoint: TlsEndpoint) -> tuple[str, str, str]:
        """The worker that is the caller; or an empty name, and why it is refused: a metric's label, and in words.

        Whether it is a worker of this relay is decided after its greeting, as another deployment may have others.
        """
        try:
            certificate = endpoint.tls.getpeercert() or {}
        except ValueError:
            certificate = {}
        names = [str(item[1]) for item in certificate.get("subjectAltName", ()) if item[0] == "URI"]
        found = identities(tls_auth_context(names))
        workflow = self._certificate.current().identity.plan
        if len(found) != 1 or found[0].role is not Role.AGENT:
            return "", "role", f"{found[0] if len(found) == 1 else 'a certificate without an identity'} is no agent"
        worker = found[0]
        if worker.workflow != workflow:
            return "", "workflow", f"{worker} is of workflow {worker.workflow}, this is {workflow}"
        if endpoint.tls.selected_alpn_protocol() != RELAY_ALPN:
            return "", "greeting", f"{worker} does not speak {RELAY_ALPN}"
        if endpoint.entry is None or not endpoint.entry.identify(worker.uri):
            return "", "too_many_connections", f"{worker} has too many connections"
        return worker.name, "", ""

    def forget(self, caller: _Caller, label: str = "", reason: str = "") -> None:
        """A connection has a complete greeting, or is refused (`label`, `reason`) or gone."""
        self._callers.finish(caller)
        if label:
            peer = caller.endpoint.peer
            self._count_refusal(label, peer, f"a tunnel at {peer}: {reason}")

    def greeted(self, endpoint: TlsEndpoint, worker: str, greeting: Greeting) -> None:
        """A worker offers a connection, or asks for a peer by its name."""
        name = greeting.name

        def fail(label: str, reason: str) -> None:
            self._count_refusal(label, f"{worker} {name}", f"worker {worker}: {reason}")
            endpoint.send(refusal(reason))
            endpoint.close()

        self._reasons.succeeded(endpoint.peer)
        if greeting.deployment != self._deployment:
            self._refuse_deployment(endpoint, worker, greeting.deployment)
        elif worker not in self._connector.pools:
            fail("unknown_worker", f"agent {worker} is no remote worker of this relay")
        elif self._is_draining:
            fail("draining", "the relay ends")
        elif greeting.kind == OFFER:
            pool = self._connector.pools[worker]
            if len(pool) >= self.limits.offers:
                fail("too_many_offers", f"it has {self.limits.offers} idle offers, which is the limit")
            else:
                _has_called(endpoint)
                pool.add(endpoint)
                self._reasons.succeeded(f"{worker} {name}")
        else:
            _has_called(endpoint)
            self._connector.from_worker(endpoint, worker, name, (lambda: endpoint.send(STARTED), fail))

    def _refuse_deployment(self, endpoint: TlsEndpoint, worker: str, deployment: str) -> None:
        """Refuse a tunnel of another deployment, which is expected while one deployment replaces another."""
        reason = f"worker {worker}: its tunnel has --deployment {deployment!r}, this relay {self._deployment!r}"
        self._count_refusal("deployment", f"{worker} of {deployment}", reason, logging.INFO)
        endpoint.send(OTHER_DEPLOYMENT)
        endpoint.close()

    def _count_refusal(self, label: str, who: str, text: str, level: int = logging.WARNING) -> None:
        self.traffic.refusals[label] += 1
        self._reasons.failed(who, label, f"refused: {text}", level)


def enter_gate(gate: ConnectionGate, endpoint: Endpoint) -> bool:
    """Let a local connection in, which wants a pipe at once. False: there are too many, and it was reset."""
    endpoint.entry = gate.enter(client_network(endpoint.peer), endpoint.reset)
    if endpoint.entry is None:
        endpoint.reset("too many connections")
        return False
    endpoint.entry.call_began()
    return True


def _has_called(endpoint: Endpoint) -> None:
    """A connection is of use from now on until its end: it is ended for no other one."""
    if endpoint.entry is not None:
        endpoint.entry.call_began()


class _Accepted(Sink):
    """A new local connection."""

    def __init__(self, connect: Callable[[Endpoint], None]) -> None:
        self._connect = connect

    def opened(self, endpoint: Endpoint) -> None:
        self._connect(endpoint)


class _Caller(Sink):
    """A tunnel's connection until its greeting is complete."""

    def __init__(self, relay: Relay, wrap: WrapBio) -> None:
        self.endpoint = TlsEndpoint(wrap, self, relay.buffer, is_server=True)
        self._relay, self._data, self._worker, self._label = relay, b"", "", "handshake"
        limit_s = relay.limits.greeting_s
        reason = f"no TLS handshake and greeting within {limit_s:g} s"
        self._timer = asyncio.get_running_loop().call_later(limit_s, self.endpoint.reset, reason)

    def connected(self, endpoint: Endpoint) -> None:
        self._relay.begin(self)

    def opened(self, endpoint: Endpoint) -> None:
        self._label = "greeting"
        self._worker, label, reason = self._relay.identify(self.endpoint)
        if label:
            self._refuse(label, reason)

    def received(self, data: bytes) -> None:
        self._data += data
        try:
            found = parse_greeting(self._data)
        except GreetingError as error:
            self._refuse("greeting", str(error))
            return
        if found is not None:
            self._timer.cancel()
            self._label = ""  # what follows is counted by `greeted`
            self._relay.forget(self)
            self._relay.greeted(self.endpoint, self._worker, found)

    def ended(self) -> None:
        self.endpoint.reset("it ended before its greeting")

    def lost(self, reason: str) -> None:
        self._timer.cancel()
        self._relay.forget(self, self._label, reason)

    def _refuse(self, label: str, reason: str) -> None:
        self._timer.cancel()
        self._relay.forget(self, label, reason)
        self._label = ""  # counted
        self.endpoint.send(refusal(reason))
        self.endpoint.close()
