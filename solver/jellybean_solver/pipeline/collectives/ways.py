"""Generators of all-reduces, one per published way, for any number of workers."""

from __future__ import annotations

from collections.abc import Callable

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.collectives.all_reduce import AllReduce, Transfer, require_workers


def naive(workers: int) -> AllReduce:
    """Every worker sends its whole vector to every other, in one round."""
    everyone = range(workers)
    transfers = tuple(Transfer(one, other, 0, True) for one in everyone for other in everyone if one != other)
    return AllReduce("naive", workers, 1, (transfers,) if transfers else ())


def ring(workers: int) -> AllReduce:
    """Chunks of 1/N go around a ring: N - 1 rounds that add, then N - 1 that distribute the sums.

    Bandwidth-optimal (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations").
    """

    def around(step: int, *, reduce: bool) -> tuple[Transfer, ...]:
        first = 0 if reduce else 1  # after the additions worker w holds the sum of chunk w + 1
        return tuple(Transfer(w, (w + 1) % workers, (w + first - step) % workers, reduce) for w in range(workers))

    steps = range(workers - 1)
    rounds = (*(around(step, reduce=True) for step in steps), *(around(step, reduce=False) for step in steps))
    return AllReduce("ring", workers, workers, rounds)


def tree(workers: int) -> AllReduce:
    """A binomial tree adds everything up at worker 0 and broadcasts the sum: 2 ceil(log2 N) rounds.

    Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    up = []
    distance = 1
    while distance < workers:
        senders = range(distance, workers, 2 * distance)
        up.append(tuple(Transfer(w, w - distance, 0, True) for w in senders))
        distance *= 2
    down = [tuple(Transfer(t.receiver, t.sender, 0, False) for t in transfers) for transfers in reversed(up)]
    return AllReduce("tree", workers, 1, (*up, *down))


def butterfly(workers: int) -> AllReduce:
    """Recursive doubling: partners at doubling distances exchange and add whole vectors, in log2 N rounds.

    With r workers more than a power of two, the first 2 r fold in pairs: the odd one adds its vector to its neighbour's
    before, and receives the sum after (Thakur, Rabenseifner and Gropp 2005): two rounds more.
    """
    power = 1 << (workers.bit_length() - 1)
    folded = workers - power
    fold = tuple(Transfer(2 * pair + 1, 2 * pair, 0, True) for pair in range(folded))
    unfold = tuple(Transfer(2 * pair, 2 * pair + 1, 0, False) for pair in range(folded))
    left = [*range(0, 2 * folded, 2), *range(2 * folded, workers)]  # the `power` workers that exchange
    rounds = []
    distance = 1
    while distance < power:
        rounds.append(tuple(Transfer(left[i], left[i ^ distance], 0, True) for i in range(power)))
        distance *= 2
    return AllReduce("butterfly", workers, 1, (*((fold,) if fold else ()), *rounds, *((unfold,) if unfold else ())))


def parameter_server(workers: int, servers: int = 1) -> AllReduce:
    """Workers push to a server, which adds, and pull the sum from it (Li et al. 2014).

    With several servers each holds one chunk (a shard). They are participants N, N + 1, ...
    """
    if servers < 1:
        raise SolverError(f"parameter-server needs at least 1 server, not {servers}")
    pairs = [(worker, shard) for worker in range(workers) for shard in range(servers)]
    push = tuple(Transfer(worker, workers + shard, shard, True) for worker, shard in pairs)
    pull = tuple(Transfer(workers + shard, worker, shard, False) for worker, shard in pairs)
    return AllReduce("parameter-server", workers, servers, (push, pull), servers)


WAYS: dict[str, Callable[[int], AllReduce]] = {
    "parameter-server": parameter_server,
    "naive": naive,
    "ring": ring,
    "tree": tree,
    "butterfly": butterfly,
}


def make_all_reduce(name: str, workers: int) -> AllReduce:
    """The all-reduce of that name. SolverError for an unknown name or less than one worker."""
    if name not in WAYS:
        raise SolverError(f"unknown all-reduce {name}; there are {', '.join(WAYS)}")
    require_workers(name, workers)
    return WAYS[name](workers)
