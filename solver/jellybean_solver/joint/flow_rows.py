"""Routed flows as rows: fractions of requests per bag of the tree decomposition, consistent along the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jellybean_solver.demand.demand import Demand, EdgeKey, Network, Tiers
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats, Program
from jellybean_solver.time_limit import work_limit

MANY = 10_000  # columns; fewer are written down in a few hundredths of a second
BagTiers = tuple[str, ...]


@dataclass(frozen=True)
class Flows:
    """Indices of the columns and rows of routed flows; the columns are fractions between 0 and 1.

    `fractions`: per bag, tiers of its operators -> column. `marginal`: columns that sum to an operator's fraction in a
    tier. `between`: columns that sum to an edge's fraction between two tiers. `total`: rows in which all fractions of a
    root bag sum to 1.
    """

    fractions: tuple[Mapping[BagTiers, int], ...]
    marginal: Mapping[tuple[str, str], Sequence[int]]
    between: Mapping[EdgeKey, Mapping[Tiers, Sequence[int]]]
    total: tuple[int, ...]

    def at(self, values: Floats) -> tuple[Mapping[BagTiers, float], ...]:
        """Per bag, tiers of its operators -> fraction of requests at a point; rounding errors are dropped."""
        taken = ({tiers: float(values[column]) for tiers, column in table.items()} for table in self.fractions)
        return tuple(
            {tiers: share for tiers, share in table.items() if share > FEASIBILITY_TOLERANCE} for table in taken
        )


def add_flows(program: Program, network: Network, demand: Demand) -> Flows:
    """Add columns and rows for the tiers that `demand` allows; columns cost the traffic from sources (USD per h).

    Bags of many operators have many columns: OutOfTimeError at the time limit of the work.
    """
    fractions: list[dict[BagTiers, int]] = []
    total: list[int] = []
    marginal: dict[tuple[str, str], list[int]] = {}
    between: dict[EdgeKey, dict[Tiers, list[int]]] = {key: {} for key in network.inner}
    for bag, (home, edges) in zip(network.bags, network.homes, strict=True):
        if sum(map(len, fractions)) > MANY and work_limit().left() == 0.0:
            raise OutOfTimeError("time ended while the program was written down; allow more time")
        table = _columns(program, network, demand, bag.operators, home, edges)
        fractions.append(table)
        if bag.parent is None:
            total.append(program.row(1.0, 1.0, [*table.values()]))
        else:
            above = network.bags[bag.parent].operators
            _agree(program, (bag.operators, table), (above, fractions[bag.parent]), bag.separator)
        for tiers, column in table.items():
            at = dict(zip(bag.operators, tiers, strict=True))
            for name in home:
                marginal.setdefault((name, at[name]), []).append(column)
            for up, down in edges:
                between[up, down].setdefault((at[up], at[down]), []).append(column)
    return Flows(tuple(fractions), marginal, between, tuple(total))


def _columns(
    program: Program,
    network: Network,
    demand: Demand,
    names: Sequence[str],
    home: Sequence[str],
    edges: Sequence[EdgeKey],
) -> dict[BagTiers, int]:
    found: list[BagTiers] = [()]
    for index, name in enumerate(names):
        tiers = dict.fromkeys(network.tier_of[pool] for pool in demand.workers[name])
        within = [(key, names.index(key[0]), names.index(key[1])) for key in edges if name in key]
        ready = [(key, up, down) for key, up, down in within if max(up, down) == index]
        found = [
            (*start, tier)
            for start in found
            for tier in tiers
            if tier in demand.entry[name]
            and all(((*start, tier)[up], (*start, tier)[down]) in demand.traffic[key] for key, up, down in ready)
        ]
    at_home = [names.index(name) for name in home]
    cost = [sum(demand.entry[names[i]][tiers[i]] for i in at_home) for tiers in found]
    columns = program.add_columns(cost, 1.0)
    return dict(zip(found, columns.tolist(), strict=True))


def _agree(
    program: Program,
    own: tuple[Sequence[str], Mapping[BagTiers, int]],
    above: tuple[Sequence[str], Mapping[BagTiers, int]],
    shared: Sequence[str],
) -> None:
    rows: dict[BagTiers, tuple[list[int], list[float]]] = {}
    for (names, table), sign in ((own, 1.0), (above, -1.0)):
        at = [names.index(name) for name in shared]
        for tiers, column in table.items():
            columns, signs = rows.setdefault(tuple(tiers[i] for i in at), ([], []))
            columns.append(column)
            signs.append(sign)
    for columns, signs in rows.values():
        program.row(0.0, 0.0, columns, signs)


def entry_shares(network: Network, flows: Flows) -> dict[Tiers, list[tuple[int, float]]]:
    """Limited link -> columns, each with the share of the link's bandwidth that its requests take from sources."""
    found: dict[Tiers, list[tuple[int, float]]] = {link: [] for link in network.bandwidth}
    for (name, tier), columns in flows.marginal.items():
        for link, sent in network.entry_bytes_per_s(name, tier).items():
            if link in found and sent > 0:
                found[link] += [(column, sent / network.bandwidth[link]) for column in columns]
    return found
