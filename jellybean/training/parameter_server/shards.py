"""Divides the weights among servers by bytes: pure arithmetic, so that every process knows the division."""

from __future__ import annotations

from collections.abc import Mapping

from jellybean.training.errors import TrainingError


def divide_weights(sizes: Mapping[str, int], servers: int) -> tuple[tuple[str, ...], ...]:
    """Names of the weights of each server. `sizes`: bytes by name. TrainingError if a server would have none.

    The largest weight goes first, each to the server that has least so far (longest processing time first; Graham
    1969): no server has more than 4/3 of the least possible largest share.
    """
    if len(sizes) < servers:
        raise TrainingError(f"the model has {len(sizes)} trained weights, too few for {servers} parameter servers")
    shares: list[list[str]] = [[] for _ in range(servers)]
    totals = [0] * servers
    for name in sorted(sizes, key=lambda one: (-sizes[one], one)):
        least = min(range(servers), key=lambda server: (totals[server], len(shares[server])))
        shares[least].append(name)
        totals[least] += sizes[name]
    return tuple(map(tuple, shares))
