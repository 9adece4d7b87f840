"""Latency and bandwidth between ranks, measured with the messages that training sends.

A raw ping would be faster: here a message passes the threads, headers and buffers of the transport, as activations do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from jellybean.training.processes.links import GroupCommunicator
from jellybean.training.processes.ranks import NO_TIMEOUT, Rank
from jellybean.training.processes.tensor_messages import ACTIVATIONS, MessageKey
from jellybean.training.processes.transport import StageTransport

_SMALL_BYTES, _LARGE_BYTES = 4 * 2**10, 4 * 2**20  # inline with its header, and as a message of its own
_SMALL_ROUNDS, _LARGE_ROUNDS = 32, 4  # the fastest counts: a slower one waited for a core


@dataclass(frozen=True)
class LinkSpeed:
    """A message of n bytes takes `latency_s` + n / `bytes_per_s`.

    `convert_s`, `convert_s_per_byte`: to convert a float32 tensor to 16 bits and back, whatever its size, and by bytes.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    convert_s: float = 0.0
    convert_s_per_byte: float = 0.0

    def seconds(self, size_bytes: float) -> float:
        """Seconds from the sender's `send` until the receiver has the tensor."""
        return self.latency_s + size_bytes / self.bytes_per_s


def measure_links(rank: Rank) -> LinkSpeed:
    """The slowest latency and bandwidth of neighbouring ranks in host memory. A collective call.

    First 0 exchanges messages with 1, 2 with 3, and so on, then 1 with 2, 3 with 4, and so on.
    """
    world, group = dist.get_world_size(), dist.new_group(backend="gloo", timeout=NO_TIMEOUT)
    neighbours = [one for one in (rank.rank - 1, rank.rank + 1) if 0 <= one < world]
    transport = StageTransport(neighbours, GroupCommunicator(group), patience_s=NO_TIMEOUT.total_seconds())
    transport.start()
    slowest = torch.zeros(2, dtype=torch.float64)
    for first in (0, 1):
        peer = rank.rank + 1 if rank.rank % 2 == first else rank.rank - 1
        if peer in neighbours:
            small_s = _one_way_s(transport, rank, peer, _SMALL_BYTES, _SMALL_ROUNDS)
            large_s = _one_way_s(transport, rank, peer, _LARGE_BYTES, _LARGE_ROUNDS)
            slowest = torch.maximum(slowest, slowest.new_tensor(cost_of_messages(small_s, large_s)))
        dist.barrier(group)  # so that no rank begins with its other neighbour, which still measures
    transport.close()
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    dist.destroy_process_group(group)
    latency_s, s_per_byte = slowest.tolist()
    return LinkSpeed(1.0 / s_per_byte, latency_s)


def with_conversion(link: LinkSpeed, device: torch.device) -> LinkSpeed:
    """The link with measured costs of converting float32 tensors to bfloat16, and back at the receiver."""
    small_s, large_s = (_conversion_s(size, device) for size in (_SMALL_BYTES, _LARGE_BYTES))
    fixed_s, s_per_byte = cost_of_messages(small_s, large_s)
    return replace(link, convert_s=fixed_s, convert_s_per_byte=s_per_byte)


def _conversion_s(size_bytes: int, device: torch.device) -> float:
    values, fastest_s = torch.zeros(size_bytes // 4, device=device), float("inf")
    for _ in range(_SMALL_ROUNDS):
        began = time.perf_counter()
        values.to(torch.bfloat16).to(torch.float32)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return fastest_s


def cost_of_messages(small_s: float, large_s: float) -> tuple[float, float]:
    """Latency and seconds per byte from the times of a small and of a large message.

    On a busy machine the large one may be no slower: then all of its time counts as bandwidth.
    """
    longer_s = large_s - small_s
    return small_s, (longer_s if longer_s > 0 else large_s) / (_LARGE_BYTES - _SMALL_BYTES)


def _one_way_s(transport: StageTransport, rank: Rank, peer: int, size_bytes: int, rounds: int) -> float:
    """Half of the fastest round trip of a message of that size; the lower rank begins."""
    values, fastest_s = (torch.zeros(size_bytes // 4),), float("inf")
    for number in range(rounds):
        there = MessageKey(number, ACTIVATIONS, size_bytes, 0, 0)
        back = MessageKey(number, ACTIVATIONS, size_bytes, 1, 0)
        began = time.perf_counter()
        if rank.rank < peer:
            transport.send(peer, there, values)
            transport.take(back)
        else:
            transport.take(there)
            transport.send(peer, back, values)
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return fastest_s / 2
