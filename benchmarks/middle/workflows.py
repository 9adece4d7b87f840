"""Random workflow graphs: several sources, joins, branches, fan-outs and gathers, and where data may be."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from jellybean_solver import Edge, EdgeKind

UPWARD = ("edge", "hub", "cloud")
RATIOS = (0.3, 0.5, 2.0, 3.0)
DEEPEST = 2  # fan-outs inside each other


@dataclass(frozen=True)
class Wiring:
    """A graph in topological order.

    `sources`: name -> (tier, rate as a share of the workflow's rate); `inputs`: operator -> edges; `rate`: operator ->
    requests per request at share 1.
    """

    sources: dict[str, tuple[str, float]]
    inputs: dict[str, tuple[Edge, ...]]
    rate: dict[str, float]


@dataclass(frozen=True)
class _Level:
    """What joined inputs must have in common: the rate of their sources and the fan-outs that are open."""

    source_rate: float
    open: tuple[tuple[str, float], ...] = ()  # (the operator that the fan-out leads to, ratio)

    @property
    def rate(self) -> float:
        """Requests per request at share 1."""
        return self.source_rate * (self.open[-1][1] if self.open else 1.0)


def wiring(rng: random.Random, count: int) -> Wiring:
    """A graph of `count` operators in which every source is read."""
    sources = {}
    for index in range(rng.choice((1, 1, 2, 3)) if count > 2 else 1):
        tier = rng.choice(("edge", "edge", "hub")) if index else "edge"
        sources[f"s{index}"] = (tier, 1.0 if index == 0 or rng.random() < 0.75 else rng.choice((0.2, 0.5)))
    levels = {name: _Level(factor) for name, (_, factor) in sources.items()}
    unread = list(sources)
    inputs: dict[str, tuple[Edge, ...]] = {}
    for index in range(count):
        name = f"o{index}"
        first = unread.pop(0) if unread and (index == 0 or rng.random() < 0.6 or count - index <= len(unread)) else None
        first = first or rng.choice(list(inputs)[-4:] or list(sources))
        inputs[name], levels[name] = _inputs(rng, name, first, levels)
        unread = [source for source in unread if all(edge.upstream != source for edge in inputs[name])]
    return Wiring(sources, inputs, {name: levels[name].rate for name in inputs})


def _inputs(rng: random.Random, name: str, first: str, levels: dict[str, _Level]) -> tuple[tuple[Edge, ...], _Level]:
    """The edges into a new operator, the first from `first`, and the operator's level."""
    level = levels[first]
    if rng.random() < 0.18 and len(level.open) < DEEPEST:
        ratio = rng.choice(RATIOS)
        inner = replace(level, open=(*level.open, (name, ratio * (level.open[-1][1] if level.open else 1.0))))
        return (Edge(first, name, EdgeKind.FAN_OUT, ratio),), inner
    if level.open and rng.random() < 0.35:
        edges, level = [_gather(first, name, level)], replace(level, open=level.open[:-1])
    else:
        edges = [Edge(first, name)]
    others = [other for other in levels if other != first]
    rng.shuffle(others)
    for other in others[: rng.choice((0, 0, 1, 2, 3))]:
        if levels[other] == level:
            edges.append(Edge(other, name))
        elif levels[other].open and replace(levels[other], open=levels[other].open[:-1]) == level:
            edges.append(_gather(other, name, levels[other]))
    return tuple(edges), level


def _gather(upstream: str, name: str, level: _Level) -> Edge:
    outer = level.open[-2][1] if len(level.open) > 1 else 1.0
    return Edge(upstream, name, EdgeKind.GATHER, outer / level.open[-1][1])


def restricted_to_tiers(
    rng: random.Random, graph: Wiring
) -> tuple[dict[str, tuple[Edge, ...]], dict[str, tuple[str, ...]]]:
    """Residency: edges with tiers that their data may be in, and operator -> tiers that it may run in.

    Every restriction leaves each operator a tier above or level with the lowest tiers that its inputs can be in.
    """
    lowest = {name: UPWARD.index(tier) for name, (tier, _) in graph.sources.items()}
    inputs: dict[str, tuple[Edge, ...]] = {}
    tiers: dict[str, tuple[str, ...]] = {}
    for name, edges in graph.inputs.items():
        low = max(lowest[edge.upstream] for edge in edges)
        if rng.random() < 0.2:
            allowed = rng.choice([one for one in (UPWARD[:2], UPWARD[1:], UPWARD[2:]) if _reaches(one, low)])
            tiers[name] = allowed
            low = max(low, UPWARD.index(allowed[0]))
        inputs[name] = tuple(
            replace(edge, tiers=UPWARD[:2]) if low <= 1 and rng.random() < 0.08 else edge for edge in edges
        )
        lowest[name] = low
    return inputs, tiers


def _reaches(allowed: tuple[str, ...], low: int) -> bool:
    return UPWARD.index(allowed[-1]) >= low
