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
from jellybean_solver import WORKFLOW_SEPARATOR, Form, Link, Operator, Pool, Problem, Source, Variant, cut_form

Figure = TypeVar("Figure")


@dataclass(frozen=True)
class WholeFleet:
    """Tiers, pools and links of all sites together, which the problem of each site states."""

    tiers: tuple[str, ...]
    pools: tuple[Pool, ...]
    links: tuple[Link, ...]


def site_problem(common: Problem, fleet: WholeFleet, project: Project, sources: tuple[Source, ...]) -> Problem:
    """The problem of one site. `common`: that of the written project. `project`, `sources`: of the site."""
    names, stated = _pool_names(project), project.workflow.slo
    cascades = {own.chosen_cascade: own for own in project.alternatives}
    edges = {own: follow_requests(one.workflow, {}).edges for own, one in ((None, project), *cascades.items())}

    def moved(operator: Operator, own: tuple[str, str] | None = None) -> Operator:
        """The operator, or a part of the cascade `own`, in the site's tiers and pools."""
        tiers = cascades.get(own, project).workflow.operators[operator.name].tiers
        placed = replace(operator, inputs=edges[own][operator.name], tiers=tiers, forms=())
        placed = placed.with_variants(lambda variant: _with_pools(variant, names))
        return replace(placed, forms=tuple(form_of(placed, form) for form in operator.forms))

    def form_of(operator: Operator, form: Form) -> Form:
        if form.is_cut:
            head, tail = (_with_pools(part.variants[0], names) for part in form.operators)
            return cut_form(operator, head, tail, [edge.upstream for edge in form.operators[0].inputs])
        return replace(form, operators=tuple(moved(part, (form.name, form.variant)) for part in form.operators))

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


def _pool_names(project: Project) -> Mapping[str, str]:
    """The name of each pool that has workers for a site's project -> the name as written, without the site's."""
    workers = project.infrastructure.workers.items()
    return {name: name.rpartition(WORKFLOW_SEPARATOR)[2] for name, pool in workers if pool.count > 0}


def _with_pools(variant: Variant, names: Mapping[str, str]) -> Variant:
    """The variant with its figures in a site's pools. `names`: the site's name of a pool -> the name as written."""

    def of_site(figures: Mapping[str, Figure]) -> dict[str, Figure]:
        return {name: figures[written] for name, written in names.items() if written in figures}

    return replace(
        variant,
        service=of_site(variant.service),
        memory_bytes=of_site(variant.memory_bytes),
        device_memory_bytes=of_site(variant.device_memory_bytes),
    )
