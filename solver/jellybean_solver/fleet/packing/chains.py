"""Chains: orders of the operators on a shared class in which nearly all workers are full.

Loads are laid end to end and cut where a worker is full (McNaughton's wrap-around rule, 1959). A worker then holds the
end of one operator and the beginning of the next, so neighbours in a chain must fit into its memory together. A chain
wastes less than one worker. Models larger than half a worker's memory cannot be neighbours; smaller models ("links")
go between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean_solver.demand.memory import fits
from jellybean_solver.fleet.worker_classes import WorkerClass

WHOLE = 1.0  # least load of a link, in workers: with less, a worker would hold it and both of its neighbours

Chain = tuple[int, ...]


def chains_of(
    kind: WorkerClass, memory_bytes: Mapping[int, float], loads: Mapping[int, float], others: Mapping[int, float]
) -> list[Chain]:
    """Order the operators of `memory_bytes` into few chains; `loads`: operator -> workers that it keeps busy.

    `others`: model bytes of operators that do not use the class yet; each is appended to a chain where it fits beside
    every operator, or gets a chain of its own.
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
    for operator in large:  # ascending: the largest link that fits is used, as larger models need the smaller links
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
    """Order that spreads the small loads `rest` evenly behind the large loads `links`."""
    found: list[int] = []
    left = list(rest)
    for number, link in enumerate(links):
        found.append(link)
        share = -(-len(left) // (len(links) - number))
        found += left[:share]
        left = left[share:]
    return found + left
