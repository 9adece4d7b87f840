"""The transport of a rank's messages between stages, with links for its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch.distributed as dist

from jellybean.training.processes.links import GroupCommunicator, Link, StagedLink, device_links
from jellybean.training.processes.ranks import NO_TIMEOUT, Rank
from jellybean.training.processes.tensor_messages import MessageKey
from jellybean.training.processes.transport import StageTransport
from jellybean.training.stages.interpreter import neighbours, peers_of
from jellybean_solver.pipeline import Schedule


def start_transport(
    rank: Rank, schedule: Schedule, replicas: int, messages: dist.ProcessGroup | None, compress: Sequence[str] | str
) -> StageTransport:
    """Start the transport to the stages before and after this rank's. A collective call.

    `messages`: group of all. `compress`: one of COMPRESSIONS, or one for each stage and the next.
    """
    transport = StageTransport(
        peers_of(schedule, rank.device_index, rank.first, rank.tensor),
        GroupCommunicator(messages),
        links=_links(rank, schedule, replicas),
        compress=compress if isinstance(compress, str) else partial(_compression, schedule.stages, tuple(compress)),
        patience_s=NO_TIMEOUT.total_seconds(),
    )
    transport.start()
    return transport


def _compression(stages: int, compress: tuple[str, ...], key: MessageKey) -> str:
    """The type of a message: that of the boundary between its sender and its receiver."""
    return compress[min(divmod(key.stage, stages))]


def _links(rank: Rank, schedule: Schedule, replicas: int) -> Mapping[int, Link] | None:
    """The rank's links in device memory; None: its tensors are in host memory. A collective call."""
    if rank.device.type == "cpu":
        return None
    if rank.shares_device:
        peers = peers_of(schedule, rank.device_index, rank.first, rank.tensor)
        return {peer: StagedLink(peer, GroupCommunicator(), rank.streams) for peer in peers}
    return device_links(neighbours(schedule, replicas, rank.tensor), rank.rank, rank.streams)
