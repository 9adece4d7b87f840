"""Tree decomposition of a workflow's graph, with which the assignment models routes exactly.

A route sends a whole request through all operators, so fractions of requests per edge are realisable only if they are
marginals of one joint distribution over the tiers of all operators. On a tree of bags (junction tree; Lauritzen and
Spiegelhalter 1988) distributions per bag that agree on separators are marginals of such a joint distribution. For a
workflow without undirected cycles the bags are its edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bag:
    """One bag of the tree. `parent`: index of its parent among the bags; None for the root of a component."""

    operators: tuple[str, ...]
    parent: int | None
    separator: tuple[str, ...]  # operators shared with the parent


def tree_decomposition(operators: Sequence[str], edges: Sequence[tuple[str, str]]) -> tuple[Bag, ...]:
    """Bags, parents before children: each edge lies in a bag, and the bags of each operator form a subtree.

    Eliminates operators by least fill-in, then least degree, the last ones first: optimal for trees, good for small
    graphs.
    """
    position = {name: index for index, name in enumerate(operators)}
    left: dict[str, set[str]] = {name: set() for name in operators}
    for one, other in edges:
        left[one].add(other)
        left[other].add(one)

    def price(name: str) -> tuple[int, int, int]:
        near = left[name]
        missing = sum(1 for one in near for other in near if one < other and other not in left[one])
        return missing, len(near), -position[name]

    eliminated: dict[str, frozenset[str]] = {}  # operator -> its neighbours among those that were left
    while left:
        name = min(left, key=price)
        near = eliminated[name] = frozenset(left.pop(name))
        for one in near:
            left[one] |= near - {one}
            left[one].discard(name)
    return _bags(eliminated, position)


def _bags(eliminated: dict[str, frozenset[str]], position: Mapping[str, int]) -> tuple[Bag, ...]:
    """The maximal cliques as a tree, from the last operator back to the first (Blair and Peyton, 1993).

    The neighbours of an operator lie together in the bag of the first of them that was eliminated. The operator joins
    that bag if they are all of it, and opens one below it otherwise.
    """
    turn = {name: index for index, name in enumerate(eliminated)}
    bags: list[set[str]] = []
    tops: list[tuple[int | None, frozenset[str]]] = []  # of each bag: its parent and separator
    home: dict[str, int] = {}
    for name, near in reversed(eliminated.items()):
        parent = home[min(near, key=turn.__getitem__)] if near else None
        if parent is not None and bags[parent] == near:
            bags[parent].add(name)
            home[name] = parent
        else:
            home[name] = len(bags)
            bags.append({name, *near})
            tops.append((parent, near))

    def ordered(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=position.__getitem__))

    return tuple(Bag(ordered(bag), parent, ordered(near)) for bag, (parent, near) in zip(bags, tops, strict=True))
