"""Transfers stage outputs and gradients between ranks, overlapped with computation.

`send` only starts a transfer; per peer, one thread completes outgoing transfers and one receives. Receivers always have
buffers posted, so every order of actions that the simulator completes runs without deadlock. Headers go over gloo, with
small tensors in host memory inline. Larger tensors go by a link (`links.py`); the receiver posts their receives in the
order of the headers, which is the order of the sends.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import torch

from jellybean.training.errors import RankLostError
from jellybean.training.processes.links import (
    Arrival,
    Communicator,
    Completion,
    GroupCommunicator,
    HostLink,
    Link,
    Work,
)
from jellybean.training.processes.tensor_messages import (
    EVALUATION,
    MAX_INLINE_BYTES,
    MAX_MESSAGE_BYTES,
    MessageKey,
    StageTensors,
    decode,
    encode,
    goodbye,
    layout_of,
)

_HEADER_TAG = 1
_NO_TIMEOUT = timedelta(days=365)  # receivers wait while their rank is busy; a dead peer ends the wait with an error
_POSTED_BUFFERS = 2  # receive buffers per peer: one being read, one for the next message
_MAX_UNCHECKED_SENDS = 64  # small messages in flight to a peer before the oldest is waited for
_Outbox = queue.SimpleQueue[tuple[list[Completion], list[torch.Tensor]] | None]


class StageTransport:
    """Transfers of one rank. `start` it before use.

    `peers`: the ranks that it exchanges messages with; both sides must name each other. `headers`: transfers of headers
    in host memory. `links`: of tensors, by peer; None: in host memory over the default group, small ones inline.
    `compress`: one of COMPRESSIONS, for all messages or by their keys. `patience_s`: how long an idle
    rank waits for a message.
    """

    def __init__(
        self,
        peers: Iterable[int],
        headers: Communicator,
        *,
        links: Mapping[int, Link] | None = None,
        compress: str | Callable[[MessageKey], str] = "none",
        patience_s: float = 600.0,
    ) -> None:
        self._headers, self._compress, self._patience_s = headers, compress, patience_s
        self._inline = links is None
        self._peers = sorted(set(peers))
        self._links = dict(links) if links is not None else _host_links(self._peers)
        self._arrived: dict[MessageKey, Arrival] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._outboxes: dict[int, _Outbox] = {peer: queue.SimpleQueue() for peer in self._peers}
        self._pending = dict.fromkeys(self._peers, 0)  # messages in outboxes, not yet complete
        self._small: dict[int, deque[tuple[Work, torch.Tensor]]] = {peer: deque() for peer in self._peers}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads, two per peer."""
        for peer in self._peers:
            for run in (self._complete_sends, self._receive_all):
                thread = threading.Thread(target=self._record_failure, args=(run, peer), daemon=True)
                self._threads.append(thread)
                thread.start()

    def send(self, peer: int, key: MessageKey, tensors: StageTensors) -> None:
        """Start to send detached tensors, which must not be modified afterwards.

        Waits only if as many messages as the link allows are in flight; every one of them completes without this rank.
        """
        self._raise_failure()
        layout = layout_of(tensors, self._compression(key))
        values = [
            None if tensor is None or part is None else _plain(tensor.to(part.sent))
            for tensor, part in zip(tensors, layout.parts, strict=True)
        ]
        if self._inline and layout.tensor_bytes <= MAX_INLINE_BYTES:
            self._send_small(peer, encode(key, layout, values))
            return
        self._reserve(peer)
        header, sent = encode(key, layout), [value for value in values if value is not None]
        try:
            completions = [self._headers.send(header, peer, _HEADER_TAG).wait, self._links[peer].send(sent)]
        except RuntimeError as error:
            raise _connection_lost(error) from error
        self._outboxes[peer].put((completions, [header, *sent]))

    def _compression(self, key: MessageKey) -> str:
        if key.kind == EVALUATION:
            return "none"
        return self._compress if isinstance(self._compress, str) else self._compress(key)

    def take(self, key: MessageKey) -> StageTensors:
        """Wait for the tensors of a key. RankLostError if a rank is gone or sends nothing for too long."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._arrived or self._failure is not None, self._patience_s)
            if key not in self._arrived:
                self._raise_failure()
                raise self._silence_error()
            arrival = self._arrived.pop(key)
        return arrival.take()

    def close(self) -> None:
        """Send the goodbye message to all peers and wait for theirs. Every rank must call this."""
        for peer, outbox in self._outboxes.items():
            while self._small[peer]:
                _wait_for(self._small[peer].popleft()[0])
            outbox.put(None)
        until = time.monotonic() + self._patience_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._raise_failure()
        if any(thread.is_alive() for thread in self._threads):
            raise self._silence_error()

    def _send_small(self, peer: int, message: torch.Tensor) -> None:
        """Send a small message; the peer has a buffer posted, so no thread needs to complete it."""
        in_flight = self._small[peer]
        try:
            in_flight.append((self._headers.send(message, peer, _HEADER_TAG), message))
        except RuntimeError as error:
            raise _connection_lost(error) from error
        if len(in_flight) > _MAX_UNCHECKED_SENDS:
            _wait_for(in_flight.popleft()[0])

    def _reserve(self, peer: int) -> None:
        """Count a message in flight, waiting while there are as many as the link allows."""
        limit = self._links[peer].max_pending
        with self._changed:
            if limit is not None:
                self._changed.wait_for(lambda: self._pending[peer] < limit or self._failure is not None)
                self._raise_failure()
            self._pending[peer] += 1

    def _silence_error(self) -> RankLostError:
        return RankLostError(f"another rank sent nothing for {self._patience_s:g} s; if it is busy, raise `timeout`")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RankLostError(f"another rank died or stopped responding: {self._failure}") from self._failure

    def _record_failure(self, run: object, peer: int) -> None:
        try:
            run(peer)  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001  # backends raise anything; re-raised in the rank's main thread
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _complete_sends(self, peer: int) -> None:
        """Thread: complete outgoing transfers in order, keeping their memory alive until then."""
        while (message := self._outboxes[peer].get()) is not None:
            for complete in message[0]:
                complete()
            del message, complete
            with self._changed:
                self._pending[peer] -= 1
                self._changed.notify_all()
        for _ in range(_POSTED_BUFFERS):
            self._headers.send(goodbye(), peer, _HEADER_TAG).wait()

    def _receive_all(self, peer: int) -> None:
        posted = deque(
            self._post_receive(peer, torch.empty(MAX_MESSAGE_BYTES, dtype=torch.uint8)) for _ in range(_POSTED_BUFFERS)
        )
        while posted:
            coming, memory = posted.popleft()
            coming.wait(_NO_TIMEOUT)
            message = decode(memory)
            if message is None:
                continue  # the peer sends one goodbye per posted buffer
            posted.append(self._post_receive(peer, memory))
            inline = message.tensors
            arrival = self._links[peer].receive(message.parts) if inline is None else Arrival(inline)
            with self._changed:
                self._arrived[message.key] = arrival
                self._changed.notify_all()
            del message, inline, arrival  # their memory belongs to the taker

    def _post_receive(self, peer: int, memory: torch.Tensor) -> tuple[Work, torch.Tensor]:
        return self._headers.receive(memory, peer, _HEADER_TAG), memory


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its numbers in memory as they are: not negated or conjugated when they are read."""
    return tensor.resolve_neg().resolve_conj().contiguous()


def _host_links(peers: Iterable[int]) -> dict[int, Link]:
    return {peer: HostLink(peer, GroupCommunicator()) for peer in peers}


def _wait_for(work: Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise _connection_lost(error) from error


def _connection_lost(error: RuntimeError) -> RankLostError:
    return RankLostError(f"lost the connection to another rank: {error}")
