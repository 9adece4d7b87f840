"""Chains: the order of operators on the workers of a shared class in which nearly all workers are full.

Loads laid end to end are cut where a worker is full (McNaughton's wrap-around rule, 1959): a worker then holds the end
of one operator and the beginning of the next, so neighbours in a chain must fit into its memory together. A chain
wastes less than a worker. Models of more than half of a memory fit only beside smaller ones, the links between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean_solver.demand.model_sets import fits
from jellybean_solver.fleet.packing.bin_packing import LITTLE, Load, share_of
from jellybean_solver.fleet.worker_classes import WorkerClass

WHOLE = 1.0  # workers that a link keeps busy at least: a worker with less of it would hold three models

Chain = tuple[int, ...]
Seats = list[tuple[int, dict[str, float]]]


def chains_of(
    kind: WorkerClass, memory_bytes: Mapping[int, float], loads: Mapping[int, float], others: Mapping[int, float]
) -> list[Chain]:
    """Chains over all operators of `memory_bytes`, which keep `loads` workers busy, as few as that takes.

    `others`: memory of operators that are not there yet; each goes where it fits beside any, or has its own chain.
    """
    limit = kind.memory_bytes
    chains = _linked(memory_bytes, loads, limit)
    for operator, needed in sorted(others.items()):
        chain = next((c for c in chains if all(fits(needed + _held(memory_bytes, others, o), limit) for o in c)), None)
        if chain is None:
            chains.append([operator])
        else:
            chain.append(operator)
    return [tuple(chain) for chain in chains]


def _held(memory_bytes: Mapping[int, float], others: Mapping[int, float], operator: int) -> float:
    return memory_bytes[operator] if operator in memory_bytes else others[operator]


def _linked(memory_bytes: Mapping[int, float], loads: Mapping[int, float], limit: float | None) -> list[list[int]]:
    def small(operator: int) -> bool:
        return fits(2.0 * memory_bytes[operator], limit)

    order = sorted(memory_bytes, key=lambda operator: (memory_bytes[operator], operator))
    large = [operator for operator in order if not small(operator)]
    links = [operator for operator in order if small(operator) and loads[operator] >= WHOLE]
    rest = [operator for operator in order if small(operator) and loads[operator] < WHOLE]
    chains: list[list[int]] = []
    for operator in large:  # the more memory, the less may be beside it: smaller links are left for later
        fitting = [link for link in links if fits(memory_bytes[link] + memory_bytes[operator], limit)]
        if chains and fitting:
            chains[-1] += [fitting[-1], operator]
            links.remove(fitting[-1])
        else:
            chains.append([operator])
    tail = _in_turn(links, rest)
    if not tail:
        return chains
    end = next((c for c in chains if fits(memory_bytes[c[-1]] + memory_bytes[tail[0]], limit)), None)
    if end is None:
        return [*chains, tail]
    end += tail
    return chains


def _in_turn(links: Sequence[int], rest: Sequence[int]) -> list[int]:
    """Small loads each beside larger ones."""
    found: list[int] = []
    left = list(rest)
    for number, link in enumerate(links):
        found.append(link)
        share = -(-len(left) // (len(links) - number))
        found += left[:share]
        left = left[share:]
    return found + left


def seated_in(loads: Sequence[Load], count: int, limit_bytes: float | None) -> Seats | None:
    """Loads of a chain end to end, on workers equally busy or full; None where memory is too small."""
    even = max(sum(load.workers for load in loads) / count, LITTLE)
    for time in (even, 1.0):
        seats = _end_to_end(loads, time, limit_bytes)
        if seats is not None and sum(number for number, _ in seats) <= count:
            return seats
    return None


def _end_to_end(loads: Sequence[Load], time: float, limit_bytes: float | None) -> Seats | None:
    seats: Seats = []
    left, held, parts = time, 0.0, dict[str, float]()

    def close() -> None:
        nonlocal left, held, parts
        if parts:
            seats.append((1, parts))
        left, held, parts = time, 0.0, {}

    for load in loads:
        rest = load.workers
        if left <= LITTLE:
            close()
        if parts and not fits(held + load.memory_bytes, limit_bytes):
            return None
        first = min(rest, left)
        parts[load.name] = share_of(load, first)
        held += load.memory_bytes
        left -= first
        rest -= first
        if rest <= LITTLE:
            continue
        close()
        whole = int((rest + LITTLE) / time)
        if whole:
            seats.append((whole, {load.name: share_of(load, whole * time)}))
            rest -= whole * time
        if rest > LITTLE:
            parts, held, left = {load.name: share_of(load, rest)}, load.memory_bytes, time - rest
    close()
    return seats
