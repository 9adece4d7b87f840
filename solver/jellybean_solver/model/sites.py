"""Identical sites: a plan describes one site of a tier; this module names the workers and links of every site.

A tier with n sites exists n times. If a tier has fewer sites than the tier below, each of its sites serves a block of
consecutive lower sites: of 1,000 stores and 10 regions, stores 1 to 100 belong to region 1. So each site of the most
numerous tier belongs to one site of every higher tier, and its data flows through those sites only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Link

Sites = Mapping[str, int]  # tier -> number of sites; default 1


def most_sites(sites: Sites) -> int:
    """Number of sites of the most numerous tier."""
    return max(sites.values(), default=1)


def both_sites(before: Sites, after: Sites, tier: str) -> int:
    """Number of sites of a tier that exist both before and after a change of plan."""
    return min(before.get(tier, 1), after.get(tier, 1))


def site_of(sites: Sites, tier: str, place: int) -> int:
    """The site of `tier` (numbered from 0) that serves `place`, a site (from 0) of the most numerous tier."""
    return place * sites.get(tier, 1) // most_sites(sites)


def tier_at(sites: Sites, tier: str, site: int) -> str:
    """`store-17`: name of one site of a tier, by its number from 0; the tier's name if it has one site."""
    return tier if sites.get(tier, 1) == 1 else f"{tier}-{site + 1}"


def worker_at(sites: Sites, tier: str, worker: str, site: int) -> str:
    """`store-17/box-2`: name of a worker in one site; the name unchanged if the tier has one site."""
    return worker if sites.get(tier, 1) == 1 else f"{tier_at(sites, tier, site)}/{worker}"


def link_ends(plan: Plan, link: Link) -> Iterator[tuple[str, str]]:
    """Names of the two sites (upstream, downstream) that each copy of a link connects.

    There is one copy for each site of the lower tier.
    """
    low, high = link.upstream_tier, link.downstream_tier
    count = plan.sites_of(low)
    for site in range(count):
        above = site * plan.sites_of(high) // count
        yield tier_at(plan.sites, low, site), tier_at(plan.sites, high, above)
