"""Transfers stage outputs and gradients between ranks, overlapped with computation.

`send` only starts a transfer; per peer, one thread completes outgoing transfers and one receives. Receivers always have
buffers posted, so sending never blocks, and every order of actions that the simulator completes runs without deadlock.
Headers go over gloo, with small tensors inline. Large tensors use the device's backend (NCCL on GPUs); the receiver
waits for them only after their header has arrived.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from jellybean.training.errors import RankLostError
from jellybean.training.processes.tensor_messages import (
    EVALUATION,
    MAX_INLINE_BYTES,
    MAX_MESSAGE_BYTES,
    MessageKey,
    ReceivedMessage,
    StageTensors,
    decode,
    encode,
    goodbye,
    layout_of,
)

_HEADER_TAG, _TENSOR_TAG = 1, 2
_NO_TIMEOUT = timedelta(days=365)  # receivers wait while their rank is busy; a dead peer ends the wait with an error
_POSTED_BUFFERS = 2  # receive buffers per peer: one being read, one for the next message
_MAX_UNCHECKED_SENDS = 64  # small messages in flight to a peer before the oldest is waited for
Transfer = tuple[Any, torch.Tensor]  # handle, and the memory that it reads or writes


class _PointToPoint:
    """Point-to-point transfers in a group, by global rank, without the lookups of dist.isend on every call (0.1 ms)."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group: Any = group if group is not None else dist.group.WORLD
        self._ranks = {rank: place for place, rank in enumerate(dist.get_process_group_ranks(self._group))}

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        return self._group.send([tensor], self._ranks[peer], tag)

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        return self._group.recv([tensor], self._ranks[peer], tag)


class StageTransport:
    """Transfers of one rank. `start` it before use.

    `peers`: the ranks that it exchanges messages with; both sides must name each other. `patience_s`: how long an idle
    rank waits for a message. `headers`, `tensors`: process groups that contain all peers; None is the default group.
    """

    def __init__(
        self,
        peers: Iterable[int],
        device: torch.device,
        *,
        compress: str = "none",
        patience_s: float = 600.0,
        headers: dist.ProcessGroup | None = None,
        tensors: dist.ProcessGroup | None = None,
    ) -> None:
        self._device, self._compress = device, compress
        self._headers, self._tensors = _PointToPoint(headers), _PointToPoint(tensors)
        self._patience_s = patience_s
        self._arrived: dict[MessageKey, StageTensors] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._outboxes: dict[int, queue.SimpleQueue[list[Transfer] | None]] = {}
        self._small: dict[int, deque[Transfer]] = {}
        for peer in sorted(set(peers)):
            self._small[peer] = deque()
            self._outboxes[peer] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads, two per peer."""
        for peer in self._outboxes:
            for run in (self._complete_sends, self._receive_all):
                thread = threading.Thread(target=self._record_failure, args=(run, peer), daemon=True)
                self._threads.append(thread)
                thread.start()

    def send(self, peer: int, key: MessageKey, tensors: StageTensors) -> None:
        """Start to send detached tensors, which must not be modified afterwards. Returns at once."""
        self._raise_failure()
        layout = layout_of(tensors, "none" if key.kind == EVALUATION else self._compress)
        values = [
            None if tensor is None or part is None else tensor.to(part.sent).contiguous()
            for tensor, part in zip(tensors, layout.parts, strict=True)
        ]
        if self._device.type == "cpu" and layout.tensor_bytes <= MAX_INLINE_BYTES:
            self._send_small(peer, encode(key, layout, values))
            return
        started = [self._start_send(encode(key, layout), peer, self._headers, _HEADER_TAG)]
        for value in values:
            if value is not None and value.numel():
                started.append(self._start_send(value, peer, self._tensors, _TENSOR_TAG))
        self._outboxes[peer].put(started)

    def _send_small(self, peer: int, message: torch.Tensor) -> None:
        """Send a small message; the peer has a buffer posted, so no thread needs to complete it."""
        under_way = self._small[peer]
        under_way.append(self._start_send(message, peer, self._headers, _HEADER_TAG))
        if len(under_way) > _MAX_UNCHECKED_SENDS:
            self._wait_for(under_way.popleft())

    def take(self, key: MessageKey) -> StageTensors:
        """Wait for the tensors of a key. RankLostError if a rank is gone or sends nothing for too long."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._arrived or self._failure is not None, self._patience_s)
            if key not in self._arrived:
                self._raise_failure()
                raise self._silence_error()
            return self._arrived.pop(key)

    def close(self) -> None:
        """Send the goodbye message to all peers and wait for theirs. Every rank must call this."""
        for peer, outbox in self._outboxes.items():
            while self._small[peer]:
                self._wait_for(self._small[peer].popleft())
            outbox.put(None)
        until = time.monotonic() + self._patience_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._raise_failure()
        if any(thread.is_alive() for thread in self._threads):
            raise self._silence_error()

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

    def _start_send(self, tensor: torch.Tensor, peer: int, peers: _PointToPoint, tag: int) -> Transfer:
        try:
            return peers.send(tensor, peer, tag), tensor
        except RuntimeError as error:
            raise RankLostError(f"lost the connection to another rank: {error}") from error

    def _wait_for(self, transfer: Transfer) -> None:
        try:
            transfer[0].wait()
        except RuntimeError as error:
            raise RankLostError(f"lost the connection to another rank: {error}") from error

    def _complete_sends(self, peer: int) -> None:
        """Thread: complete outgoing transfers, keeping their memory alive until then."""
        outbox = self._outboxes[peer]
        while (transfers := outbox.get()) is not None:
            for work, _ in transfers:
                work.wait()
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
            tensors = self._receive_tensors(peer, message) if message.tensors is None else message.tensors
            with self._changed:
                self._arrived[message.key] = tensors
                self._changed.notify_all()

    def _post_receive(self, peer: int, memory: torch.Tensor) -> Transfer:
        return self._headers.receive(memory, peer, _HEADER_TAG), memory

    def _receive_tensors(self, peer: int, message: ReceivedMessage) -> StageTensors:
        """Receive the tensors that a separate-form message announces."""
        tensors: list[torch.Tensor | None] = []
        for part in message.parts:
            if part is None:
                tensors.append(None)
                continue
            tensor = torch.empty(part.shape, dtype=part.sent, device=self._device)
            if tensor.numel():
                self._tensors.receive(tensor, peer, _TENSOR_TAG).wait()
            tensors.append(tensor.to(part.own))
        return tuple(tensors)
