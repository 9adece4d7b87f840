"""Layered layout of the topology drawing (Sugiyama, Tagawa, Toda, 1981: layers, dummy vertices, barycentres).

Rows follow the tiers from top to bottom, and the depth inside a tier. A flow that crosses a row gets a slot in it (a
dummy vertex), so that its curve runs between the boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jellybean_solver import Flow, Plan

BoxKey = tuple[str, str | None]  # (operator, pool) for a placement, (source, None) for a source


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a row: the box `key` (placement or source), or the passage of the flow with index `flow`."""

    key: BoxKey | None
    flow: int | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Slots of each row, rows from top to bottom; `tiers` has the tier index of each row."""

    slots: tuple[tuple[Slot, ...], ...]
    tiers: tuple[int, ...]

    def row_of(self) -> Mapping[BoxKey, int]:
        return {slot.key: index for index, row in enumerate(self.slots) for slot in row if slot.key is not None}


def ends(flow: Flow) -> tuple[BoxKey, BoxKey]:
    """The upstream and the downstream box of a flow."""
    return (flow.upstream, flow.upstream_pool), (flow.downstream, flow.downstream_pool)


def arrange(plan: Plan, flows: Sequence[Flow], columns: int) -> Rows:
    """Assign every source and placement to a row, with at most `columns` boxes per row."""
    tier_of = _tiers(plan)
    rank = _ranks(tier_of, flows, plan)
    boxes: list[list[BoxKey]] = []
    tiers: list[int] = []
    for tier in range(len(plan.tiers)):
        members = [key for key in rank if tier_of[key] == tier]
        for depth in sorted({rank[key] for key in members}):
            level = [key for key in members if rank[key] == depth]
            for start in range(0, len(level), columns):
                boxes.append(level[start : start + columns])
                tiers.append(tier)
    rows: list[list[Slot]] = [[Slot(key) for key in row] for row in boxes]
    row_of = {key: index for index, row in enumerate(boxes) for key in row}
    for index, flow in enumerate(flows):
        above, below = (row_of[key] for key in ends(flow))
        for row in range(above + 1, below):
            rows[row].append(Slot(None, index))
    return Rows(_ordered(rows, flows), tuple(tiers))


def _tiers(plan: Plan) -> dict[BoxKey, int]:
    index = {tier: position for position, tier in enumerate(plan.tiers)}
    found: dict[BoxKey, int] = {(source.name, None): index[source.tier] for source in plan.sources}
    found |= {(item.operator, item.pool): index[item.tier] for item in plan.placements}
    return found


def _ranks(tier_of: Mapping[BoxKey, int], flows: Sequence[Flow], plan: Plan) -> dict[BoxKey, int]:
    """Depth of each box inside its tier; placements are below the tier's sources."""
    with_sources = {tier_of[source.name, None] for source in plan.sources}
    rank: dict[BoxKey, int] = {}
    for key, tier in tier_of.items():  # sources first, then operators in topological order
        upstream = [ends(flow)[0] for flow in flows if ends(flow)[1] == key]
        depths = [rank[other] + 1 for other in upstream if tier_of[other] == tier]
        lowest = 1 if tier in with_sources and key[1] is not None else 0
        rank[key] = max(depths, default=lowest)
    return rank


def _ordered(rows: Sequence[Sequence[Slot]], flows: Sequence[Flow]) -> tuple[tuple[Slot, ...], ...]:
    """Sort each row by the mean position of its upstream boxes (barycentre heuristic)."""
    position: dict[Slot, float] = {}
    found: list[tuple[Slot, ...]] = []
    for row in rows:
        barycentre = {slot: _mean(_above(slot, flows, position), 0.5) for slot in row}
        ordered = tuple(sorted(row, key=lambda slot: barycentre[slot]))
        position |= {slot: (index + 0.5) / len(ordered) for index, slot in enumerate(ordered)}
        found.append(ordered)
    return tuple(found)


def _above(slot: Slot, flows: Sequence[Flow], position: Mapping[Slot, float]) -> Iterable[float]:
    """Positions from which flows enter a slot: the flow's previous passage, or its upstream box."""
    for index, flow in enumerate(flows):
        upstream, downstream = ends(flow)
        if slot.flow == index or slot.key == downstream:
            passage = position.get(Slot(None, index))
            start = passage if passage is not None else position.get(Slot(upstream))
            if start is not None:
                yield start


def _mean(values: Iterable[float], default: float) -> float:
    found = list(values)
    return sum(found) / len(found) if found else default
