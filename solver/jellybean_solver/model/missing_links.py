"""Links that are missing for data to go from one tier to another: a link connects its two tiers and no others."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

Ends = tuple[str, str]  # upstream tier, downstream tier


def missing_links(
    tiers: Sequence[str], links: Collection[Ends], inputs: Iterable[Collection[str]], down: Collection[str]
) -> tuple[Ends, ...]:
    """The fewest links with which each input, in one of its tiers, reaches the same tier of `down`.

    Empty if no link is missing, or if data would have to go backwards. `tiers` are ordered, lowest first.
    """
    rank, inputs = {tier: index for index, tier in enumerate(tiers)}, [*inputs]
    ways: list[tuple[Ends, ...]] = []
    for target in sorted(down, key=rank.__getitem__):
        apart = [at for at in inputs if not any(up == target or (up, target) in links for up in at)]
        below = [[up for up in at if rank[up] < rank[target]] for at in apart]
        if all(below):
            ways.append(tuple(dict.fromkeys((max(at, key=rank.__getitem__), target) for at in below)))
    return min(ways, key=len, default=())


def missing_link_text(links: Collection[Ends], ends: Ends) -> str:
    """That a link is missing and how to declare it, with the tiers of a chain of links: data is not forwarded there."""
    one, other = ends
    passed = _chain(links, one, other)
    between = f", and data does not pass through {' and '.join(passed)}" if passed else ""
    return f"no link from {one} to {other}{between}: add a link {{from: {one}, to: {other}}}"


def _chain(links: Collection[Ends], one: str, other: str) -> list[str]:
    """The tiers between two tiers on a shortest chain of links (breadth-first search); empty if there is none."""
    previous = {one: ""}
    pending = deque([one])
    while pending and other not in previous:
        tier = pending.popleft()
        for up, down in sorted(links):
            if up == tier and down not in previous:
                previous[down] = tier
                pending.append(down)
    chain: list[str] = []
    tier = previous.get(other, "")
    while tier not in ("", one):
        chain.insert(0, tier)
        tier = previous[tier]
    return chain
