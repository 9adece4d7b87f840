"""The tunnel of one worker: keeps offers open at the relay, and dials it for the agent's connections to its peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jellybean_agent.admission.gate import ConnectionGate
from jellybean_agent.admission.limits import PORT_LIMITS, ListeningPort
from jellybean_agent.admission.process import Admission
from jellybean_agent.errors import TransientError
from jellybean_agent.relay.connector import ConnectError, Pipes, Waiting, dial
from jellybean_agent.relay.endpoints import Endpoint, Sink, read_buffer
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.listeners import Listeners
from jellybean_agent.relay.server import enter_gate
from jellybean_agent.relay.traffic import FROM_WORKER, TO_WORKER, ReasonLog, Traffic
from jellybean_agent.relay.wire import STARTED, UNREACHABLE
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.tunnel.backoff import Backoff
from jellybean_agent.tunnel.conversation import Conversation, OtherDeploymentError
from jellybean_agent.tunnel.dialling import Dialler
from jellybean_agent.tunnel.probing import ProbeGate
from jellybean_protos.addresses import join_address

LOG = logging.getLogger("jellybean.tunnel")


@dataclass(frozen=True, slots=True)
class TunnelSettings:
    """Settings of a tunnel. `peers`: local port, at the host `bind` -> name of a remote peer. `offers`: idle ones that
    it keeps open. `deployment`: ID of the relays that accept it; others may be behind the same address.

    Pauses between dials to a relay that fails double from `retry_s` to `most_retry_s`. While only relays of other
    deployments answer, a single offer is tried again, after pauses that double from `other_retry_s` to
    `most_other_retry_s`, and from `other_warning_s` on, when this is logged, to `most_retry_s`. Shorter ones find the
    own relay sooner, and cost the others more TLS handshakes.
    """

    relay: tuple[str, int]
    worker: str
    agent: tuple[str, int]
    peers: Mapping[int, str] = field(default_factory=dict)
    offers: int = 4
    retry_s: float = 0.1
    most_retry_s: float = 10.0
    deployment: str = ""
    bind: str = "127.0.0.1"
    other_retry_s: float = 0.1
    most_other_retry_s: float = 1.0
    other_warning_s: float = 30.0
    limits: RelayLimits = field(default_factory=RelayLimits)


class Tunnel:
    """A tunnel, from `start` to `stop`. It is ready while the relay has accepted an offer of it."""

    def __init__(self, settings: TunnelSettings, certificate: CertificateFolder) -> None:
        self.traffic = Traffic()
        self.admission = Admission()
        self._settings, self._buffer = settings, read_buffer()
        self._dialler = Dialler(settings.relay, certificate, settings.limits.dial_s, self._buffer)
        self._pipes = Pipes(self.traffic, settings.limits)
        self._reasons = ReasonLog(LOG)
        self._idle = 0  # offers that the relay has accepted
        self._is_ready = False
        self._gate = ProbeGate(
            settings.other_retry_s, settings.most_other_retry_s, settings.other_warning_s, settings.most_retry_s
        )
        self._on_ready: Callable[[bool], None] = lambda _: None
        self._slots: list[asyncio.Task[None]] = []
        self._listeners = Listeners()

    async def start(self, on_ready: Callable[[bool], None]) -> None:
        """Listen on the peers' ports, and begin to offer connections. PlanViewError if it cannot listen."""
        self._on_ready = on_ready
        for port, name in self._settings.peers.items():
            await self._listeners.open(self._accept(name), self._settings.bind, port)
        self._slots = [asyncio.create_task(self._keep_offering(slot)) for slot in range(self._settings.offers)]

    async def stop(self, drain_s: float) -> int:
        """Accept nothing more, and wait for the pipes to end; returns how many were reset after `drain_s`."""
        self._listeners.close()
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
        return await self._pipes.stop(drain_s)

    def offers(self) -> dict[str, int]:
        """Idle offers that the relay has accepted."""
        return {self._settings.worker: self._idle}

    # -- from the relay to the agent ----------------------------------------------------------------------------------

    async def _keep_offering(self, slot: int) -> None:
        """Keep one idle offer open at the relay."""
        settings, loop = self._settings, asyncio.get_running_loop()
        after_failure = Backoff(settings.retry_s, settings.most_retry_s)
        while True:
            await self._gate.may_dial(slot)
            began_s = loop.time()
            is_started, reason = False, "the relay has ended it"
            try:
                is_started = await self._offer()
            except OtherDeploymentError:
                self._gate.close(slot)
                self._warn_of_other_deployments()
                await self._gate.pause(slot)
                continue
            except TransientError as error:
                reason = str(error)
            if is_started:
                continue
            if loop.time() - began_s > settings.most_retry_s:  # it had stood: dial again soon
                after_failure.reset()
            else:
                self._reasons.failed("relay", "offer", f"no offer at the relay, dialled again and again: {reason}")
            await after_failure.pause()

    async def _offer(self) -> bool:
        """Make an offer; returns once the relay starts it, False if it ends it. TransientError if it fails."""
        try:
            conversation = await self._dial()
        except TransientError:
            self.traffic.failed_dials["relay"] += 1
            raise
        accepted: list[bool] = []

        def on_accepted() -> None:
            accepted.append(True)
            self._idle += 1
            self._gate.open()
            if self._reasons.succeeded("relay"):
                LOG.info("offers are accepted at the relay")
            self._tell_ready()

        try:
            is_started = await conversation.offer(on_accepted)
        finally:
            self._idle -= len(accepted)
            self._tell_ready()
        if is_started:
            self._pipes.start(self._connect_agent(conversation))
        return is_started

    def _warn_of_other_deployments(self) -> None:
        """Warn if relays of other deployments have refused all offers for long."""
        if self._gate.is_patience_over:
            text = f"no new offer is accepted for {self._settings.other_warning_s:g} s: {self._only_others()}"
            self._reasons.failed("relay", "deployment", text)

    async def _connect_agent(self, conversation: Conversation) -> None:
        endpoint, worker = conversation.endpoint, self._settings.worker
        try:
            with self._pipes.reserve(worker, TO_WORKER) as room:
                agent = await dial(*self._settings.agent, self._settings.limits.start_s / 2, self._buffer)
                endpoint.send(STARTED)
                self._pipes.join(agent, endpoint, [(worker, TO_WORKER)], room.pop_all())
        except ConnectError as error:
            self._reasons.failed("agent", "dial", str(error))
            self._unreachable(endpoint)
        except TransientError as error:
            self.traffic.failed_dials["agent"] += 1
            self._reasons.failed("agent", "dial", f"the agent is not reached: {error}")
            self._unreachable(endpoint)
        else:
            self._reasons.succeeded("agent")

    def _unreachable(self, endpoint: Endpoint) -> None:
        endpoint.send(UNREACHABLE)
        endpoint.close()

    def _tell_ready(self) -> None:
        is_ready = self._idle > 0
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            self._on_ready(is_ready)

    # -- from the agent to its peers ----------------------------------------------------------------------------------

    def _accept(self, name: str) -> Callable[[], Endpoint]:
        gate = ConnectionGate(ListeningPort.PEERS, PORT_LIMITS[ListeningPort.PEERS], self.admission)

        def connect(endpoint: Endpoint) -> None:
            if enter_gate(gate, endpoint):
                self._connect_peer(endpoint, name)

        return lambda: Endpoint(_Accepted(connect), self._buffer)

    def _connect_peer(self, local: Endpoint, name: str) -> None:
        """Join a connection of the agent to a peer, through the relay."""
        local.pause_reading()
        worker, peer = self._settings.worker, name or "gateway"

        async def connect() -> None:
            try:
                with self._pipes.reserve(worker, FROM_WORKER) as room:
                    asked = await self._ask(name)
                    self._pipes.join(asked.endpoint, local, [(worker, FROM_WORKER)], room.pop_all(), asked.early)
            except (ConnectError, TransientError) as error:
                reason = str(error)
                self.traffic.failed_dials[peer] += 1
                self._reasons.failed(peer, "ask", f"{peer} is not reached through the relay: {reason}")
                local.reset(reason)
            except asyncio.CancelledError:
                local.reset("the tunnel ends")
                raise
            else:
                self._reasons.succeeded(peer)

        task = self._pipes.start(connect())
        Waiting(local, task.cancel)

    async def _ask(self, name: str) -> Conversation:
        """Ask for a peer, again while relays of other deployments answer. TransientError if it is not reached."""
        settings, limits = self._settings, self._settings.limits
        after_other = Backoff(settings.other_retry_s, settings.most_other_retry_s)
        reason = "no answer"
        try:
            async with asyncio.timeout(limits.dial_s + limits.offer_wait_s):
                while True:
                    conversation = await self._dial()
                    reason = "no answer"
                    try:
                        await conversation.ask(name)
                    except OtherDeploymentError:
                        reason = self._only_others()
                        await after_other.pause()
                    else:
                        self._gate.open()
                        return conversation
        except TimeoutError as error:
            raise TransientError(reason) from error

    # -- dialling -----------------------------------------------------------------------------------------------------

    async def _dial(self) -> Conversation:
        settings = self._settings
        return Conversation(await self._dialler.dial(), settings.limits.silence_s, settings.deployment)

    def _only_others(self) -> str:
        at, deployment = join_address(*self._settings.relay), self._settings.deployment
        return f"only relays of other deployments answer at {at}, none with --deployment {deployment!r}"


class _Accepted(Sink):
    """A new connection of the agent."""

    def __init__(self, connect: Callable[[Endpoint], None]) -> None:
        self._connect = connect

    def opened(self, endpoint: Endpoint) -> None:
        self._connect(endpoint)
