"""Alike sites of a plan: the plan says what one site has; here are the names and routes of all of them.

The names are those of the solver's sites.py. Routes of the first place come first, then those of the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

Route = Mapping[str, str]  # operator -> worker


class Sites:
    """Tiers that exist several times. `counts`: tier -> how many; a tier that is not there exists once."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = {tier: count for tier, count in counts.items() if count > 1}
        self.most = max(self.counts.values(), default=1)

    def of(self, tier: str) -> range:
        """Numbers of a tier's sites, from 0."""
        return range(self.counts.get(tier, 1))

    def at(self, tier: str, place: int) -> int:
        """The site of a tier that one of the most numerous places belongs to."""
        return place * self.counts.get(tier, 1) // self.most

    def tier_name(self, tier: str, site: int) -> str:
        """`store-17`; the tier's own name where it exists once."""
        return f"{tier}-{site + 1}" if tier in self.counts else tier

    def name_at(self, tier: str, place: int) -> str:
        """The name of the site of a tier that a place belongs to."""
        return self.tier_name(tier, self.at(tier, place))

    def worker_name(self, tier: str, worker: str, site: int) -> str:
        """`store-17/box-2`; the plan's own name where the tier exists once."""
        return f"{self.tier_name(tier, site)}/{worker}" if tier in self.counts else worker


class SiteRoutes(Sequence[Route]):
    """A plan's routes in every place, made when they are asked for: a thousand sites have as many times the routes."""

    def __init__(self, routes: Sequence[Route], tiers: Mapping[str, str], sites: Sites) -> None:
        """`tiers`: worker -> its tier."""
        self._routes, self._tiers, self._sites = routes, tiers, sites
        self._made: dict[int, Route] = {}

    def __len__(self) -> int:
        return len(self._routes) * self._sites.most

    @overload
    def __getitem__(self, index: int) -> Route: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Route]: ...
    def __getitem__(self, index: int | slice) -> Route | Sequence[Route]:
        """Operator -> worker, by its name in its site."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._sites.most == 1:
            return self._routes[index]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index not in self._made:
            place, number = divmod(index, len(self._routes))
            self._made[index] = {name: self._worker(worker, place) for name, worker in self._routes[number].items()}
        return self._made[index]

    def _worker(self, name: str, place: int) -> str:
        tier = self._tiers[name]
        return self._sites.worker_name(tier, name, self._sites.at(tier, place))
