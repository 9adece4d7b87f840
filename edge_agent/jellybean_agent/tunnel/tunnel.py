"""The tunnel of one worker: keeps offers open at the relay, and dials it for the agent's connections to its peers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jellybean_agent.errors import PlanViewError, TransientError, describe_error
from jellybean_agent.relay.connector import ConnectError, Pipes, Waiting, dial
from jellybean_agent.relay.endpoints import Endpoint, Sink, read_buffer
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.traffic import FROM_WORKER, TO_WORKER, ReasonLog, Traffic
from jellybean_agent.relay.wire import STARTED, UNREACHABLE
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.tunnel.conversation import Conversation
from jellybean_agent.tunnel.dialling import Dialler

LOG = logging.getLogger("jellybean.tunnel")


@dataclass(frozen=True, slots=True)
class TunnelSettings:
    """Settings of a tunnel. `peers`: local port, at the host `bind` -> name of a remote peer. `offers`: idle ones that
    it keeps open.

    Pauses between dials to a relay that fails double from `retry_s` to `most_retry_s`, and are shortened at random by
    up to half, so that tunnels do not dial all at once.
    """

    relay: tuple[str, int]
    worker: str
    agent: tuple[str, int]
    peers: Mapping[int, str] = field(default_factory=dict)
    offers: int = 4
    retry_s: float = 0.1
    most_retry_s: float = 10.0
    bind: str = "127.0.0.1"
    limits: RelayLimits = field(default_factory=RelayLimits)


class Tunnel:
    """A tunnel, from `start` to `stop`. It is ready while the relay has accepted an offer of it."""

    def __init__(self, settings: TunnelSettings, certificate: CertificateFolder) -> None:
        self.traffic = Traffic()
        self._settings, self._buffer = settings, read_buffer()
        self._dialler = Dialler(settings.relay, certificate, settings.limits.dial_s, self._buffer)
        self._pipes = Pipes(self.traffic, settings.limits)
        self._reasons = ReasonLog(LOG)
        self._idle = 0  # offers that the relay has accepted
        self._is_ready = False
        self._on_ready: Callable[[bool], None] = lambda _: None
        self._slots: list[asyncio.Task[None]] = []
        self._servers: list[asyncio.Server] = []

    async def start(self, on_ready: Callable[[bool], None]) -> None:
        """Listen on the peers' ports, and begin to offer connections. PlanViewError if it cannot listen."""
        self._on_ready = on_ready
        loop, host = asyncio.get_running_loop(), self._settings.bind
        for port, name in self._settings.peers.items():
            try:
                self._servers.append(await loop.create_server(self._accept(name), host, port))
            except (OSError, UnicodeError) as error:
                for opened in self._servers:
                    opened.close()
                raise PlanViewError(f"cannot listen on {host}:{port}: {describe_error(error)}") from error
        self._slots = [asyncio.create_task(self._keep_offering()) for _ in range(self._settings.offers)]

    async def stop(self, drain_s: float) -> int:
        """Accept nothing more, and wait for the pipes to end; returns how many were reset after `drain_s`."""
        for server in self._servers:
            server.close()
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
        return await self._pipes.stop(drain_s)

    def offers(self) -> dict[str, int]:
        """Idle offers that the relay has accepted."""
        return {self._settings.worker: self._idle}

    # -- from the relay to the agent ----------------------------------------------------------------------------------

    async def _keep_offering(self) -> None:
        """Keep one idle offer open at the relay."""
        settings, loop = self._settings, asyncio.get_running_loop()
        pause_s = settings.retry_s
        while True:
            began_s = loop.time()
            try:
                if await self._offer():
                    continue
                reason = "the relay has ended it"
            except TransientError as error:
                reason = str(error)
            if loop.time() - began_s > settings.most_retry_s:  # it had stood: dial again soon
                pause_s = settings.retry_s
            else:
                self._reasons.failed("relay", "offer", f"no offer at the relay, dialled again and again: {reason}")
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, settings.most_retry_s)

    async def _offer(self) -> bool:
        """Make an offer; returns once the relay starts it, False if it ends it. TransientError if it fails."""
        try:
            endpoint = await self._dialler.dial()
        except TransientError:
            self.traffic.failed_dials["relay"] += 1
            raise
        conversation = Conversation(endpoint, self._settings.limits.silence_s)
        accepted: list[bool] = []

        def on_accepted() -> None:
            accepted.append(True)
            self._idle += 1
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
        return lambda: Endpoint(_Accepted(lambda endpoint: self._connect_peer(endpoint, name)), self._buffer)

    def _connect_peer(self, local: Endpoint, name: str) -> None:
        """Join a connection of the agent to a peer, through the relay."""
        local.pause_reading()
        worker, peer = self._settings.worker, name or "gateway"

        async def connect() -> None:
            try:
                with self._pipes.reserve(worker, FROM_WORKER) as room:
                    limits = self._settings.limits
                    async with asyncio.timeout(limits.dial_s + limits.offer_wait_s):
                        remote = await self._dialler.dial()
                        conversation = Conversation(remote, limits.silence_s)
                        await conversation.ask(name)
                    self._pipes.join(remote, local, [(worker, FROM_WORKER)], room.pop_all(), conversation.early)
            except (ConnectError, TransientError, TimeoutError) as error:
                reason = "no answer" if isinstance(error, TimeoutError) else str(error)
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


class _Accepted(Sink):
    """A new connection of the agent."""

    def __init__(self, connect: Callable[[Endpoint], None]) -> None:
        self._connect = connect

    def opened(self, endpoint: Endpoint) -> None:
        self._connect(endpoint)
