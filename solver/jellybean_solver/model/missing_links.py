"""Links that are missing for data to go from one tier to another: a link connects its two tiers and no others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Ends = tuple[str, str]  # upstream tier, downstream tier


def missing_links(tiers: Sequence[str], links: Collection[Ends], up: Collection[str], down: Collection[str]) -> str:
    """Which link is missing between tiers `up` and `down`, as a sentence; empty if data would have to go backwards.

    Names the tiers that a chain of links passes: data is not forwarded there. `tiers` are ordered, lowest first.
    """
    pairs = [
        (one, other)
        for one in up
        for other in down
        if tiers.index(one) < tiers.index(other) and (one, other) not in links
    ]
    if not pairs:
        return ""
    one, other = min(pairs, key=lambda pair: tiers.index(pair[1]) - tiers.index(pair[0]))
    text = f"no link from {one} to {other}"
    if between := _chain(links, one, other):
        text += f", and data does not pass through {' and '.join(between)}"
    return f"{text}: add a link {{from: {one}, to: {other}}}"


def _chain(links: Collection[Ends], one: str, other: str) -> list[str]:
    """The tiers between two tiers on a shortest chain of links; empty if there is none."""
    paths = [[one]]
    for path in paths:
        if path[-1] == other:
            return path[1:-1]
        paths += [[*path, down] for up, down in sorted(links) if up == path[-1] and down not in path]
    return []
