"""Small problems whose optimum can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean_solver import (
    AccuracyModel,
    Edge,
    EndToEnd,
    Link,
    Operator,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Variant,
)

GIB = 2.0**30


def variant(
    name: str,
    loads_s: Mapping[str, float],
    message_bytes: Mapping[str, float] | None = None,
    memory_bytes: Mapping[str, float] | None = None,
) -> Variant:
    """A variant with a load per pool."""
    service = {pool: {1: ServiceTime(load, load)} for pool, load in loads_s.items()}
    return Variant(name, service, message_bytes or {}, memory_bytes or {})


def operator(name: str, inputs: Sequence[str | Edge], *variants: Variant) -> Operator:
    """An operator fed one to one unless an edge says otherwise."""
    edges = tuple(edge if isinstance(edge, Edge) else Edge(edge, name) for edge in inputs)
    return Operator(name, edges, variants)


def problem(
    *operators: Operator,
    pools: Sequence[Pool],
    rate_per_s: float = 10.0,
    message_bytes: float = 0.0,
    links: Sequence[Link] = (Link("edge", "cloud", 0.1),),
    accuracy: AccuracyModel | None = None,
    slo: Slo | None = None,
) -> Problem:
    """One source `camera` at the edge, two tiers."""
    return Problem(
        name="hand-made",
        tiers=("edge", "cloud"),
        sources=(Source("camera", "edge", rate_per_s, message_bytes),),
        operators=operators,
        pools=tuple(pools),
        links=tuple(links),
        accuracy=accuracy or EndToEnd((), {}),
        slo=slo or Slo(),
        utilisation=1.0,
    )


def box(count: int = 1, price: float = 1.0, sharing: Sharing = Sharing.SHARED, memory: float | None = None) -> Pool:
    """A pool at the edge."""
    return Pool("box", "edge", count, price, sharing, memory)


def gpu(count: int = 1, price: float = 3.0, sharing: Sharing = Sharing.SHARED, memory: float | None = None) -> Pool:
    """A pool in the cloud."""
    return Pool("gpu", "cloud", count, price, sharing, memory)
