"""Bytes and time of an all-reduce, counted transfer by transfer.

Every participant has one link of bandwidth b to a switch that is never the bottleneck; a round takes the latency a plus
the time of its busiest link. Full-duplex links carry b in each direction at once, half-duplex links b in total.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from jellybean_solver.pipeline.collectives.all_reduce import AllReduce


class Duplex(Enum):
    """Whether a link sends and receives at once (FULL) or in turn (HALF)."""

    FULL = "full"
    HALF = "half"

    def load(self, sent: float, received: float) -> float:
        """Bytes that occupy a link which sends and receives these bytes."""
        return max(sent, received) if self is Duplex.FULL else sent + received


@dataclass(frozen=True, slots=True)
class Link:
    """A participant's link: bytes per second, seconds per message, duplex."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    duplex: Duplex = Duplex.FULL


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counted bytes of one all-reduce. `sent[p]`, `received[p]`: of participant p.

    `round_bytes[r]`: bytes that occupy the busiest link of round r.
    """

    sent: tuple[float, ...]
    received: tuple[float, ...]
    round_bytes: tuple[float, ...]
    duplex: Duplex

    @property
    def total_bytes(self) -> float:
        """Bytes sent by all participants."""
        return sum(self.sent)

    @property
    def busiest(self) -> int:
        """The participant with the busiest link; of equal ones the first."""
        loads = [self.duplex.load(*both) for both in zip(self.sent, self.received, strict=True)]
        return loads.index(max(loads))

    @property
    def busiest_bytes(self) -> float:
        """Bytes that occupy the busiest link, over all rounds: the bottleneck."""
        return self.duplex.load(self.sent[self.busiest], self.received[self.busiest])

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.round_bytes)

    def seconds(self, link: Link) -> float:
        """Simulated duration: the rounds one after the other."""
        return self.rounds * link.latency_s + sum(self.round_bytes) / link.bandwidth_bytes_per_s


def count_traffic(way: AllReduce, size_bytes: float, duplex: Duplex = Duplex.FULL) -> Traffic:
    """Count the bytes of an all-reduce of `size_bytes`, in chunks of equal size."""
    chunk_bytes = size_bytes / way.chunks
    everyone = range(way.participants)
    total_sent, total_received = [0] * way.participants, [0] * way.participants
    round_bytes = []
    for transfers in way.rounds:
        sent, received = [0] * way.participants, [0] * way.participants  # chunks
        for one in transfers:
            sent[one.sender] += 1
            received[one.receiver] += 1
        round_bytes.append(chunk_bytes * max(duplex.load(sent[p], received[p]) for p in everyone))
        for p in everyone:
            total_sent[p] += sent[p]
            total_received[p] += received[p]
    return Traffic(
        tuple(chunk_bytes * count for count in total_sent),
        tuple(chunk_bytes * count for count in total_received),
        tuple(round_bytes),
        duplex,
    )
