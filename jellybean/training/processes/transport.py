"""Moves stages' outputs and gradients between ranks while these compute.

Sending only starts a transfer; per other rank one thread sees its transfers through and one receives. Receivers always
take what comes, so no order of actions that the simulator can finish stands still here: nobody waits to send. Headers
go over gloo, small tensors in host memory with them; others over the device's own backend (NCCL on GPUs), awaited only
when they are under way.
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

from jellybean.training.errors import LostError
from jellybean.training.processes.messages import (
    MESSAGE,
    MOST_WITHIN,
    Key,
    Message,
    Tensors,
    decode,
    encode,
    goodbye,
    layout_of,
)

_HEADER_TAG, _TENSOR_TAG = 1, 2
_ANY_TIME = timedelta(days=365)  # receivers wait while their rank is busy with something else; a dead peer ends them
_AHEAD = 2  # messages that a receiver has a place for, so that the next one needs not wait for it either
_UNSEEN = 64  # small messages that may be on their way to a peer before a sender looks whether the first has gone
Transfer = tuple[Any, torch.Tensor]  # under way, and the memory that it reads


class _Peers:
    """Point to point in a group, by the ranks of the world; dist.isend without what it looks up every time (0.1 ms)."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group: Any = group if group is not None else dist.group.WORLD
        self._ranks = {rank: place for place, rank in enumerate(dist.get_process_group_ranks(self._group))}

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        return self._group.send([tensor], self._ranks[peer], tag)

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        return self._group.recv([tensor], self._ranks[peer], tag)


class Transport:
    """Of one rank. `peers`: the other ranks that it exchanges messages with; both sides must name each other.

    `patience_s`: how long a rank that has nothing else to do waits for a message.
    `headers`, `tensors`: process groups that hold all of them; None is the default group.
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
        self._headers, self._tensors = _Peers(headers), _Peers(tensors)
        self._patience_s = patience_s
        self._arrived: dict[Key, Tensors] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._outboxes: dict[int, queue.SimpleQueue[list[Transfer] | None]] = {}
        self._threads: list[threading.Thread] = []
        self._small: dict[int, deque[Transfer]] = {}
        for peer in sorted(set(peers)):
            self._small[peer] = deque()
            self._outboxes[peer] = queue.SimpleQueue()
            for run in (self._see_through, self._receive_all):
                thread = threading.Thread(target=self._guarded, args=(run, peer), daemon=True)
                self._threads.append(thread)
                thread.start()

    def send(self, peer: int, key: Key, tensors: Tensors) -> None:
        """Hand over tensors, of no graph, that nobody writes to any more. Returns at once."""
        self._raise()
        layout = layout_of(tensors, self._compress)
        values = [
            None if tensor is None or part is None else tensor.to(part.sent).contiguous()
            for tensor, part in zip(tensors, layout.parts, strict=True)
        ]
        if self._device.type == "cpu" and layout.tensor_bytes <= MOST_WITHIN:
            self._send_small(peer, encode(key, layout, values))
            return
        started = [self._started(encode(key, layout), peer, self._headers, _HEADER_TAG)]
        for value in values:
            if value is not None and value.numel():
                started.append(self._started(value, peer, self._tensors, _TENSOR_TAG))
        self._outboxes[peer].put(started)

    def _send_small(self, peer: int, message: torch.Tensor) -> None:
        """The peer has a place for it, so it is gone soon: no thread looks after it."""
        under_way = self._small[peer]
        under_way.append(self._started(message, peer, self._headers, _HEADER_TAG))
        if len(under_way) > _UNSEEN:
            self._waited(under_way.popleft())

    def take(self, key: Key) -> Tensors:
        """What was sent under a key; waits for it. LostError when a rank is gone or silent for too long."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._arrived or self._failure is not None, self._patience_s)
            if key not in self._arrived:
                self._raise()
                raise self._silent()
            return self._arrived.pop(key)

    def close(self) -> None:
        """Say goodbye to the peers and wait for theirs. Every rank does so."""
        for peer, outbox in self._outboxes.items():
            while self._small[peer]:
                self._waited(self._small[peer].popleft())
            outbox.put(None)
        until = time.monotonic() + self._patience_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._raise()
        if any(thread.is_alive() for thread in self._threads):
            raise self._silent()

    def _silent(self) -> LostError:
        return LostError(f"another rank sent nothing for {self._patience_s:g} s; if it is busy, raise `timeout`")

    def _raise(self) -> None:
        if self._failure is not None:
            raise LostError(f"another rank went away or fell silent: {self._failure}") from self._failure

    def _guarded(self, run: object, peer: int) -> None:
        try:
            run(peer)  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001  # whatever a backend raises; told to the rank's own thread
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _started(self, tensor: torch.Tensor, peer: int, peers: _Peers, tag: int) -> Transfer:
        try:
            return peers.send(tensor, peer, tag), tensor
        except RuntimeError as error:
            raise LostError(f"another rank went away: {error}") from error

    def _waited(self, transfer: Transfer) -> None:
        try:
            transfer[0].wait()
        except RuntimeError as error:
            raise LostError(f"another rank went away: {error}") from error

    def _see_through(self, peer: int) -> None:
        """Wait for what was started, holding on to its memory until it is gone."""
        outbox = self._outboxes[peer]
        while (transfers := outbox.get()) is not None:
            for work, _ in transfers:
                work.wait()
        for _ in range(_AHEAD):
            self._headers.send(goodbye(), peer, _HEADER_TAG).wait()

    def _receive_all(self, peer: int) -> None:
        places = deque(self._place(peer, torch.empty(MESSAGE, dtype=torch.uint8)) for _ in range(_AHEAD))
        while places:
            coming, memory = places.popleft()
            coming.wait(_ANY_TIME)
            told = decode(memory)
            if told is None:
                continue  # as many of them as places
            places.append(self._place(peer, memory))
            tensors = self._received(peer, told) if told.tensors is None else told.tensors
            with self._changed:
                self._arrived[told.key] = tensors
                self._changed.notify_all()

    def _place(self, peer: int, memory: torch.Tensor) -> Transfer:
        return self._headers.receive(memory, peer, _HEADER_TAG), memory

    def _received(self, peer: int, told: Message) -> Tensors:
        """The tensors that a message announced."""
        found: list[torch.Tensor | None] = []
        for part in told.parts:
            if part is None:
                found.append(None)
                continue
            tensor = torch.empty(part.shape, dtype=part.sent, device=self._device)
            if tensor.numel():
                self._tensors.receive(tensor, peer, _TENSOR_TAG).wait()
            found.append(tensor.to(part.own))
        return tuple(found)
