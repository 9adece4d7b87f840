"""The documents of each site that differs: a workflow of its own, on its own tier and what lies above it.

Tiers and pools of a site are named after it (tier `store/berlin`, pool `berlin/box`), with a separator that is in no
name of the documents. What all sites share stays as it is, so that their workflows meet there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from jellybean.documents.project import Project
from jellybean.documents.schema.infrastructure import InfrastructureDocument, LinkSpec, WorkerPoolSpec
from jellybean.documents.schema.workflow import OperatorSpec, WorkflowDocument
from jellybean.documents.site_table import Site, SiteTable
from jellybean_solver import WORKFLOW_SEPARATOR

Pools = Mapping[str, WorkerPoolSpec]
Links = tuple[LinkSpec, ...]
Tiers = tuple[str, ...]


@dataclass(frozen=True)
class UnlikeSites:
    """A project with sites that differ. `table`: its sites."""

    project: Project
    table: SiteTable

    def fleet(self, budget_usd_per_h: float | None) -> InfrastructureDocument:
        """The infrastructure of all sites together, with the budget of all of them."""
        written, tier, sites = self.project.infrastructure, self.table.tier, self.table.sites
        own = {name: pool for site in sites for name, pool in self._pools(site).items()}
        links = tuple(link for link in written.links if tier not in (link.upstream_tier, link.downstream_tier))
        return written.model_copy(
            update={
                "tiers": (*self._below, *(self._tier(site) for site in sites), *self._above),
                "written_sites": {},
                "workers": {n: pool for n, pool in written.workers.items() if pool.tier != tier} | own,
                "links": (*links, *(link for site in sites for link in self._links(site))),
                "limits": written.limits.model_copy(update={"budget_usd_per_h": budget_usd_per_h}),
            }
        )

    def workflows(self) -> dict[str, Project]:
        """Site -> the project of its workflow, on the part of the fleet that its data can reach."""
        cascades = [UnlikeSites(own, self.table) for own in self.project.alternatives]
        return {
            site.name: replace(self._project(site), alternatives=tuple(own._project(site) for own in cascades))
            for site in self.table.sites
        }

    def _project(self, site: Site) -> Project:
        written = self.project.infrastructure
        fleet = written.model_copy(
            update={
                "tiers": (self._tier(site), *self._above),
                "written_sites": {},
                "workers": {**self._pools(site), **self._shared_pools},
                "links": (*self._links(site), *self._shared_links),
            }
        )
        return replace(
            self.project,
            workflow=self._workflow(site),
            infrastructure=fleet,
            stale=(),
            figure_notes=(),
            site_table=None,
        )

    def _workflow(self, site: Site) -> WorkflowDocument:
        document, changes = self.project.workflow, self.table.changes(site, "sources")
        sources = {
            name: source.model_copy(
                update={
                    "tier": self._tier(site),
                    "stays_in": self._moved(source.stays_in, site),
                    **changes.get(name, {}),
                }
            )
            for name, source in document.sources.items()
        }
        targets = {"budget_usd_per_h": None, **self.table.changes(site, "slo").get("", {})}
        return document.model_copy(
            update={
                "sources": sources,
                "operators": {name: self._operator(spec, site) for name, spec in document.operators.items()},
                "slo": document.slo.model_copy(update=targets),
                "admission": document.admission.model_copy(update=self.table.changes(site, "admission").get("", {})),
            }
        )

    def _operator(self, spec: OperatorSpec, site: Site) -> OperatorSpec:
        if spec.tiers is None and all(edge.stays_in is None for edge in spec.inputs):
            return spec
        inputs = (edge.model_copy(update={"stays_in": self._moved(edge.stays_in, site)}) for edge in spec.inputs)
        return spec.model_copy(update={"tiers": self._moved(spec.tiers, site), "inputs": tuple(inputs)})

    def _moved(self, tiers: Tiers | None, site: Site) -> Tiers | None:
        """These tiers with that of the sites replaced by that of one site."""
        if tiers is None:
            return None
        return tuple(self._tier(site) if tier == self.table.tier else tier for tier in tiers)

    def _tier(self, site: Site) -> str:
        return f"{self.table.tier}{WORKFLOW_SEPARATOR}{site.name}"

    def _pools(self, site: Site) -> dict[str, WorkerPoolSpec]:
        changes, tier = self.table.changes(site, "workers"), self._tier(site)
        return {
            f"{site.name}{WORKFLOW_SEPARATOR}{name}": pool.model_copy(
                update={"tier": tier, "type": pool.type or name, **changes.get(name, {})}
            )
            for name, pool in self.project.infrastructure.workers.items()
            if pool.tier == self.table.tier
        }

    def _links(self, site: Site) -> Links:
        changes, tier = self.table.changes(site, "links"), self._tier(site)
        return tuple(
            link.model_copy(update={"upstream_tier": tier, **changes.get(link.downstream_tier, {})})
            for link in self.project.infrastructure.links
            if link.upstream_tier == self.table.tier
        )

    @cached_property
    def _below(self) -> Tiers:
        tiers = self.project.infrastructure.tiers
        return tiers[: tiers.index(self.table.tier)]

    @cached_property
    def _above(self) -> Tiers:
        tiers = self.project.infrastructure.tiers
        return tiers[tiers.index(self.table.tier) + 1 :]

    @cached_property
    def _shared_pools(self) -> Pools:
        return {name: pool for name, pool in self.project.infrastructure.workers.items() if pool.tier in self._above}

    @cached_property
    def _shared_links(self) -> Links:
        return tuple(link for link in self.project.infrastructure.links if link.upstream_tier in self._above)
