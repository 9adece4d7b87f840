"""Identical sites of a plan's tiers: the plan describes one site; this module derives names and routes of every site.

A place is one site of the tier with the most sites, with the sites of other tiers that it sends to. Routes of the first
place come first, then those of the second. Names are as in the solver (`model.sites`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

Route = Mapping[str, str]  # operator -> worker
MAX_SITES = 100_000  # of a tier, as documents allow: each costs memory when a plan is read


class Sites:
    """The sites of each tier. `counts`: tier -> number of sites; default 1. ValueError for more than `MAX_SITES`."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        if any(count > MAX_SITES for count in counts.values()):
            raise ValueError(f"more than {MAX_SITES} sites of a tier")
        self.counts = {tier: count for tier, count in counts.items() if count > 1}
        self.most = max(self.counts.values(), default=1)

    def of(self, tier: str) -> range:
        """Indexes of a tier's sites, from 0."""
        return range(self.counts.get(tier, 1))

    def at(self, tier: str, place: int) -> int:
        """Index of the site of a tier that a place belongs to."""
        return place * self.counts.get(tier, 1) // self.most

    def tier_name(self, tier: str, site: int) -> str:
        """Name of a site, for example `store-17`; for a tier with one site the name of the tier."""
        return f"{tier}-{site + 1}" if tier in self.counts else tier

    def name_at(self, tier: str, place: int) -> str:
        """Name of the site of a tier that a place belongs to."""
        return self.tier_name(tier, self.at(tier, place))

    def worker_name(self, tier: str, worker: str, site: int) -> str:
        """Name of a worker in a site, for example `store-17/box-2`; unchanged if the tier has one site."""
        return f"{self.tier_name(tier, site)}/{worker}" if tier in self.counts else worker


class SiteRoutes(Sequence[Route]):
    """A plan's routes in every place, built on first use: a thousand places have a thousand times the routes."""

    def __init__(self, routes: Sequence[Route], tiers: Mapping[str, str], sites: Sites) -> None:
        """`tiers`: worker -> tier."""
        self._routes, self._tiers, self._sites = routes, tiers, sites
        self._built: dict[int, Route] = {}

    def __len__(self) -> int:
        return len(self._routes) * self._sites.most

    @overload
    def __getitem__(self, index: int) -> Route: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Route]: ...
    def __getitem__(self, index: int | slice) -> Route | Sequence[Route]:
        """The route at an index (operator -> name of the worker in its site), or the routes of a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._sites.most == 1:
            return self._routes[index]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index not in self._built:
            place, number = divmod(index, len(self._routes))
            self._built[index] = {name: self._worker(worker, place) for name, worker in self._routes[number].items()}
        return self._built[index]

    def _worker(self, name: str, place: int) -> str:
        tier = self._tiers[name]
        return self._sites.worker_name(tier, name, self._sites.at(tier, place))
