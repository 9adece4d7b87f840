"""Alike sites: a plan says what one site of a tier has and does; this names what stands where.

A tier with n sites exists n times, all alike. Where a tier has fewer sites than the one below, each serves as many of
those in a row: of 1,000 stores and 10 regions, stores 1 to 100 belong to region 1. So each of the most numerous sites
has one place in every tier above, and data that is born there stays in its own places: it only goes up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Link

Sites = Mapping[str, int]  # tier -> how many of it there are; 1 unless given


def most_sites(sites: Sites) -> int:
    """How many places there are at the finest."""
    return max(sites.values(), default=1)


def both_sites(before: Sites, after: Sites, tier: str) -> int:
    """How many sites of a tier there were and still are."""
    return min(before.get(tier, 1), after.get(tier, 1))


def site_of(sites: Sites, tier: str, place: int) -> int:
    """The site of a tier, from 0, that one of the most numerous places, from 0, belongs to."""
    return place * sites.get(tier, 1) // most_sites(sites)


def tier_at(sites: Sites, tier: str, site: int) -> str:
    """`store-17`: one site of a tier by its number from 0; the tier's own name where it has no others."""
    return tier if sites.get(tier, 1) == 1 else f"{tier}-{site + 1}"


def worker_at(sites: Sites, tier: str, worker: str, site: int) -> str:
    """`store-17/box-2`: the worker of one site; the plan's own name where the tier has no other sites."""
    return worker if sites.get(tier, 1) == 1 else f"{tier_at(sites, tier, site)}/{worker}"


def link_ends(plan: Plan, link: Link) -> Iterator[tuple[str, str]]:
    """The sites that each link between two tiers joins: one for each site of the lower tier."""
    low, high = link.upstream_tier, link.downstream_tier
    count = plan.sites.get(low, 1)
    for site in range(count):
        above = site * plan.sites.get(high, 1) // count
        yield tier_at(plan.sites, low, site), tier_at(plan.sites, high, above)
