"""The problem of each site that differs, from that of the project as it is written.

Models and measured figures are those of all sites, so they are computed once and shared. A variant has service times
only for the workers that the site's data can reach: with those of all other sites, the cost would be quadratic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from jellybean.documents.flow import follow_requests
from jellybean.documents.project import Project
from jellybean_solver import WORKFLOW_SEPARATOR, Link, Operator, Pool, Problem, Source, Variant

Figure = TypeVar("Figure")


@dataclass(frozen=True)
class WholeFleet:
    """Tiers, pools and links of all sites together, which the problem of each site states."""

    tiers: tuple[str, ...]
    pools: tuple[Pool, ...]
    links: tuple[Link, ...]


def site_problem(common: Problem, fleet: WholeFleet, project: Project, sources: tuple[Source, ...]) -> Problem:
    """The problem of one site. `common`: that of the written project. `project`, `sources`: of the site."""
    names = pool_names_of_site(project)
    edges, stated = follow_requests(project.workflow, {}).edges, project.workflow.slo

    def moved(operator: Operator) -> Operator:
        variants = tuple(with_pools(variant, names) for variant in operator.variants)
        tiers = project.workflow.operators[operator.name].tiers
        return replace(operator, inputs=edges[operator.name], variants=variants, tiers=tiers)

    return replace(
        common,
        tiers=fleet.tiers,
        pools=fleet.pools,
        links=fleet.links,
        sources=sources,
        operators=tuple(moved(operator) for operator in common.operators),
        slo=replace(common.slo, accuracy=stated.accuracy, survives=stated.survives, budget_usd_per_h=None),
        stale_profiles=(),
    )


def pool_names_of_site(project: Project) -> Mapping[str, str]:
    """The name of each pool that has workers for a site's project -> the name as written, without the site's."""
    workers = project.infrastructure.workers.items()
    return {name: name.rpartition(WORKFLOW_SEPARATOR)[2] for name, pool in workers if pool.count > 0}


def with_pools(variant: Variant, names: Mapping[str, str]) -> Variant:
    """The variant with its figures in a site's pools. `names`: the site's name of a pool -> the name as written."""

    def of_site(figures: Mapping[str, Figure]) -> dict[str, Figure]:
        return {name: figures[written] for name, written in names.items() if written in figures}

    return replace(
        variant,
        service=of_site(variant.service),
        memory_bytes=of_site(variant.memory_bytes),
        device_memory_bytes=of_site(variant.device_memory_bytes),
    )
