"""Moves stages' outputs and gradients between ranks while these compute.

Sending only starts a transfer; per other rank one thread sees its transfers through and one receives. Receivers always
take what comes, so no order of actions that the simulator can finish stands still here: nobody waits to send. Headers
go over gloo; what they announce over the device's own backend (NCCL on GPUs), awaited only when it is under way.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from jellybean.training.errors import TrainingError
from jellybean.training.messages import HEADER, Key, Tensors, decode, encode, goodbye, parts_of

_HEADER_TAG, _TENSOR_TAG = 1, 2
_ANY_TIME = timedelta(days=365)  # receivers wait while their rank is busy with something else; a dead peer ends them
Transfer = tuple[Any, torch.Tensor]  # under way, and the memory that it reads


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
        self._device, self._compress, self._headers, self._tensors = device, compress, headers, tensors
        self._patience_s = patience_s
        self._arrived: dict[Key, Tensors] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._outboxes: dict[int, queue.SimpleQueue[list[Transfer] | None]] = {}
        self._threads: list[threading.Thread] = []
        for peer in sorted(set(peers)):
            self._outboxes[peer] = queue.SimpleQueue()
            for run in (self._see_through, self._receive_all):
                thread = threading.Thread(target=self._guarded, args=(run, peer), daemon=True)
                self._threads.append(thread)
                thread.start()

    def send(self, peer: int, key: Key, tensors: Tensors) -> None:
        """Hand over tensors that nobody writes to any more. Returns at once."""
        self._raise()
        parts = parts_of(tensors, self._compress)
        started = [self._started(encode(key, parts), peer, self._headers, _HEADER_TAG)]
        for tensor, part in zip(tensors, parts, strict=True):
            if tensor is not None and part is not None and tensor.numel():
                sent = tensor.detach().to(part.sent).contiguous()
                started.append(self._started(sent, peer, self._tensors, _TENSOR_TAG))
        self._outboxes[peer].put(started)

    def take(self, key: Key) -> Tensors:
        """What was sent under a key; waits for it. TrainingError when a rank is gone or silent for too long."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._arrived or self._failure is not None, self._patience_s)
            if key not in self._arrived:
                self._raise()
                raise self._silent()
            return self._arrived.pop(key)

    def close(self) -> None:
        """Say goodbye to the peers and wait for theirs. Every rank does so."""
        for outbox in self._outboxes.values():
            outbox.put(None)
        until = time.monotonic() + self._patience_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._raise()
        if any(thread.is_alive() for thread in self._threads):
            raise self._silent()

    def _silent(self) -> TrainingError:
        return TrainingError(f"another rank sent nothing for {self._patience_s:g} s; if it is busy, raise `timeout`")

    def _raise(self) -> None:
        if self._failure is not None:
            raise TrainingError(f"another rank went away or fell silent: {self._failure}") from self._failure

    def _guarded(self, run: object, peer: int) -> None:
        try:
            run(peer)  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001  # whatever a backend raises; told to the rank's own thread
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _started(self, tensor: torch.Tensor, peer: int, group: dist.ProcessGroup | None, tag: int) -> Transfer:
        try:
            return dist.isend(tensor, peer, group, tag), tensor
        except RuntimeError as error:
            raise TrainingError(f"another rank went away: {error}") from error

    def _see_through(self, peer: int) -> None:
        """Wait for what was started, holding on to its memory until it is gone."""
        outbox = self._outboxes[peer]
        while (transfers := outbox.get()) is not None:
            for work, _ in transfers:
                work.wait()
        dist.send(goodbye(), peer, self._headers, _HEADER_TAG)

    def _receive_all(self, peer: int) -> None:
        header = torch.empty(HEADER, dtype=torch.int64)
        while True:
            coming = dist.irecv(header, peer, self._headers, _HEADER_TAG)
            if coming is None:
                raise TrainingError(f"rank {peer} is not in the group of this transport")
            coming.wait(_ANY_TIME)
            told = decode(header)
            if told is None:
                return
            key, parts = told
            found: list[torch.Tensor | None] = []
            for part in parts:
                if part is None:
                    found.append(None)
                    continue
                tensor = torch.empty(part.shape, dtype=part.sent, device=self._device)
                if tensor.numel():
                    dist.recv(tensor, peer, self._tensors, _TENSOR_TAG)
                found.append(tensor.to(part.own))
            with self._changed:
                self._arrived[key] = tuple(found)
                self._changed.notify_all()
