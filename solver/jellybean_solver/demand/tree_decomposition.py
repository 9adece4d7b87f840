"""Tree decomposition of a workflow's graph, with which the assignment models routes exactly.

A route sends a whole request through all operators, so fractions of requests per edge are realisable only if they are
marginals of one joint distribution over the tiers of all operators. On a tree of bags (junction tree; Lauritzen and
Spiegelhalter 1988) distributions per bag that agree on separators are marginals of such a joint distribution. For a
workflow without undirected cycles the bags are its edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bag:
    """One bag of the tree. `parent`: index of its parent among the bags; None for the root of a component."""

    operators: tuple[str, ...]
    parent: int | None
    separator: tuple[str, ...]  # operators shared with the parent


def tree_decomposition(operators: Sequence[str], edges: Sequence[tuple[str, str]]) -> tuple[Bag, ...]:
    """Bags, parents before children: each edge lies in a bag, and the bags of each operator form a subtree.

    Eliminates operators by least fill-in, then least degree, then order: optimal for trees, good for small graphs.
    """
    neighbours: dict[str, set[str]] = {name: set() for name in operators}
    for one, other in edges:
        neighbours[one].add(other)
        neighbours[other].add(one)
    cliques = _eliminate(operators, neighbours)
    return _join(_maximal(cliques), operators)


def _eliminate(operators: Sequence[str], neighbours: Mapping[str, set[str]]) -> list[frozenset[str]]:
    left = {name: set(near) for name, near in neighbours.items()}
    position = {name: index for index, name in enumerate(operators)}
    cliques: list[frozenset[str]] = []
    while left:

        def price(name: str) -> tuple[int, int, int]:
            near = left[name]
            missing = sum(1 for one in near for other in near if one < other and other not in left[one])
            return missing, len(near), position[name]

        name = min(left, key=price)
        near = left.pop(name)
        cliques.append(frozenset(near | {name}))
        for one in near:
            left[one].discard(name)
            left[one] |= near - {one}
    return cliques


def _maximal(cliques: list[frozenset[str]]) -> list[frozenset[str]]:
    return [
        clique
        for index, clique in enumerate(cliques)
        if not any(clique < other or (clique == other and at < index) for at, other in enumerate(cliques))
    ]


def _join(cliques: list[frozenset[str]], operators: Sequence[str]) -> tuple[Bag, ...]:
    """Join cliques to a maximum spanning forest by separator size (Prim).

    For the cliques of a chordal graph it has the running intersection property.
    """
    position = {name: index for index, name in enumerate(operators)}

    def ordered(names: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=position.__getitem__))

    waiting = sorted(cliques, key=lambda clique: [position[name] for name in ordered(clique)])
    placed: list[frozenset[str]] = []
    bags: list[Bag] = []
    while waiting:
        size, _, _, parent, clique = max(
            ((len(clique & other), -index, -at, at, clique) for index, clique in enumerate(waiting)
             for at, other in enumerate(placed)),
            default=(0, 0, 0, 0, waiting[0]), key=lambda found: found[:3],
        )  # fmt: skip
        if size == 0:
            clique = waiting[0]
        bags.append(Bag(ordered(clique), parent if size else None, ordered(clique & placed[parent]) if size else ()))
        waiting.remove(clique)
        placed.append(clique)
    return tuple(bags)
