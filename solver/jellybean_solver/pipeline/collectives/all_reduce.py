"""An all-reduce as data: rounds of transfers of chunks between participants.

The generators in `ways.py` create them, `validate.py` checks them, `traffic.py` counts their bytes and their time. The
training runtime reads nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jellybean_solver.errors import SolverError


class Transfer(NamedTuple):
    """One message of a round: `sender`'s value of `chunk`, as it is at the start of the round, to `receiver`.

    `reduce`: the receiver adds it to its own value of the chunk; False: it replaces that value. All values that a
    receiver adds to a chunk in one round, its own included, are added in the order of their participants, so that
    participants that add the same values get the same bits.
    """

    sender: int
    receiver: int
    chunk: int
    reduce: bool


@dataclass(frozen=True, slots=True)
class AllReduce:
    """An all-reduce of a vector that is divided into `chunks` parts of nearly equal size.

    Participants 0 to `workers` - 1 begin with a vector each and end with the sum. `servers` further participants
    follow; they begin with nothing. A round begins for a participant when its transfers of the round before are done.
    """

    name: str
    workers: int
    chunks: int
    rounds: tuple[tuple[Transfer, ...], ...]
    servers: int = 0

    @property
    def participants(self) -> int:
        """Number of workers and servers."""
        return self.workers + self.servers


@dataclass(frozen=True, slots=True)
class ParticipantRound:
    """One participant's transfers of one round. Two participants list the messages between them in the same order."""

    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


def participant_rounds(way: AllReduce, participant: int) -> tuple[ParticipantRound, ...]:
    """All rounds of one participant; also those in which it transfers nothing, so that all count rounds alike."""
    return tuple(
        ParticipantRound(
            tuple(one for one in transfers if one.sender == participant),
            tuple(one for one in transfers if one.receiver == participant),
        )
        for transfers in way.rounds
    )


def chunk_bounds(size: int, chunks: int) -> tuple[tuple[int, int], ...]:
    """(begin, end) of each chunk of a vector of `size` elements; sizes differ by at most one."""
    return tuple((size * chunk // chunks, size * (chunk + 1) // chunks) for chunk in range(chunks))


def require_workers(name: str, workers: int) -> None:
    """SolverError unless there is at least one worker."""
    if workers < 1:
        raise SolverError(f"{name} needs at least 1 worker, not {workers}")
