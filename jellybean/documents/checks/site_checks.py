"""Check the file of sites that differ: which tier may have one, with which workflow, and whether each site is valid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jellybean.documents.checks.checked import CheckedInfrastructure, CheckedProfiles, CheckedWorkflow
from jellybean.documents.checks.files import inside
from jellybean.documents.checks.workflow_checks import connected_sources
from jellybean.documents.overrides import NULL_TEXTS, apply_overrides, option_text
from jellybean.documents.schema.infrastructure import SITE_FILE_SUFFIX, InfrastructureDocument, WorkerPoolSpec
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.documents.site_columns import SiteColumns, site_columns
from jellybean.documents.site_table import Site, SiteTable, read_site_table
from jellybean.errors import DocumentProblem
from jellybean.quantities import InvalidValueError, did_you_mean
from jellybean_solver import rate_text

_RATE_TOLERANCE = 1e-9  # relative difference of rates that are equal


def check_sites_that_differ(
    workflows: Mapping[str, CheckedWorkflow],
    infrastructure: CheckedInfrastructure,
    profiles: Mapping[str, CheckedProfiles],
    *,
    others: Collection[str] = (),
    overrides: Sequence[str] = (),
) -> SiteTable | None:
    """Read and check the file of sites; None if no tier has one. Problems are added to the documents' trees.

    The only workflow has the name "". `others`: workflows on the same fleet, whose columns are not looked at.
    `overrides`: `--set` options that change values of sites.
    """
    fleet = infrastructure.document
    if fleet is None or not fleet.site_files or infrastructure.is_broken("sites"):
        return None
    tier, name = next(iter(fleet.site_files.items()))
    _check_tiers(infrastructure, fleet, tier)
    for workflow in workflows.values() if tier in fleet.tiers else ():
        if workflow.document is not None:
            _check_sources(workflow, infrastructure, workflow.document, tier)
    file = Path(infrastructure.tree.file).with_name(name)
    if not file.is_file():
        infrastructure.tree.add(("sites", tier), f"{file}: file not found", _missing_hint(file))
        return None
    try:
        inside(file.parent, name)
    except InvalidValueError as error:
        infrastructure.tree.add(("sites", tier), error.message, error.hint)
        return None
    table, problems = read_site_table(file, _columns(workflows, infrastructure, tier, others))
    table, wrong = _with_overrides(table, overrides, [name for name in workflows if name])
    problems += wrong
    for of, workflow in workflows.items():
        if workflow.document is not None:
            own = table.of_workflow(of)
            problems += [*_unequal_sources(own, of, workflow.document), *_unknown_accuracies(own, profiles.get(of))]
    infrastructure.tree.problems += problems
    return table


def _with_overrides(
    table: SiteTable, overrides: Sequence[str], workflows: Sequence[str]
) -> tuple[SiteTable, list[DocumentProblem]]:
    """The table with the overrides SITE.column=value, and the problems with others."""
    sites = [site.name for site in table.sites]
    changes: dict[str, dict[str, Any]] = {}
    problems: list[DocumentProblem] = []
    for text in overrides:
        path, equals, value = (part.strip() for part in text.partition("="))
        name = max((site for site in sites if path.startswith(f"{site}.")), key=len, default=None)
        if name is None or not equals:
            problems += apply_overrides({}, [text], [*workflows, *sites])
            continue
        column = path.removeprefix(f"{name}.")
        try:
            changes.setdefault(name, {})[column] = None if value in NULL_TEXTS else table.read(column, value)
        except InvalidValueError as error:
            problems.append(DocumentProblem(option_text(text), None, None, path, error.message, error.hint))
    return table.with_values(changes), problems


def _missing_hint(file: Path) -> str:
    others = sorted(path.name for path in file.parent.glob(f"*{SITE_FILE_SUFFIX}"))
    return did_you_mean(file.name, others) or "write it beside infrastructure.yaml, with a column site"


def _check_tiers(infrastructure: CheckedInfrastructure, fleet: InfrastructureDocument, tier: str) -> None:
    """Check that no other tier has sites: a site's requests meet those of the others only in tiers of one site."""
    for other in fleet.written_sites:
        if other != tier:
            message = f"{tier} has sites that differ, and then no other tier can have sites"
            infrastructure.tree.add(("sites", other), message, "remove it, or write a number of sites for both")


def _check_sources(
    workflow: CheckedWorkflow, infrastructure: CheckedInfrastructure, document: WorkflowDocument, tier: str
) -> None:
    """Check that all requests begin in the sites."""
    if document.sources and all(source.tier != tier for source in document.sources.values()):
        tiers = " or ".join(dict.fromkeys(source.tier for source in document.sources.values()))
        message = f"sites that differ are those of the tier with the sources, and no source is in {tier}"
        infrastructure.tree.add(("sites", tier), message, f"write sites: {{{tiers}: ...}}")
        return
    for name, source in document.sources.items():
        if source.tier != tier:
            message = f"this source is in {source.tier}, but with sites that differ each request begins in one site"
            workflow.tree.add(("sources", name, "tier"), message, f"write {tier}")


def _unequal_sources(table: SiteTable, workflow: str, document: WorkflowDocument) -> Iterator[DocumentProblem]:
    """Sites in which sources of one request have unlike rates, or unlike numbers of streams."""

    def column(source: str, key: str) -> str:
        return f"{f'{workflow}.' * bool(workflow)}sources.{source}.{key}"

    def stated(site: Site, source: str, key: str) -> float:
        spec = document.sources[source]
        return float(site.values.get(column(source, key), spec.rate_per_s if key == "rate" else spec.streams or 0))

    for first, *others in connected_sources(document):
        for site, name, key in itertools.product(table.sites, others, ("rate", "streams")):
            own, other = stated(site, name, key), stated(site, first, key)
            if not math.isclose(own, other, rel_tol=_RATE_TOLERANCE):
                texts = [rate_text(one) if key == "rate" else f"{one:g}" for one in (own, other)]
                what = "rates differ" if key == "rate" else "numbers of streams differ"
                message = f"a request has one message of each source, but their {what}: "
                message += f"{name} {texts[0]}, {first} {texts[1]}"
                columns = (column(name, key), column(first, key))
                where = next((one for one in columns if one in site.values), columns[0])
                yield table.problem(site, where, message, "give them one rate" if key == "rate" else "give them one")


def _unknown_accuracies(table: SiteTable, profiles: CheckedProfiles | None) -> Iterator[DocumentProblem]:
    """The first accuracy target, if the profiles have no accuracy."""
    if profiles is None or profiles.document is None or profiles.is_broken("accuracy"):
        return
    column = next((name for name, one in table.columns.items() if one.section == "slo"), "")
    site = next((site for site in table.sites if column in site.values), None)
    if site is not None and profiles.document.accuracy is None:
        message = f"the target is accuracy {site.values[column]:g}, but the profiles have no accuracy"
        yield table.problem(site, column, message, "add an accuracy section to profiles.yaml")


def most_of_any_site(fleet: InfrastructureDocument, table: SiteTable) -> InfrastructureDocument:
    """The infrastructure with the workers of whichever site has most, to check what can run anywhere at all."""
    changes = [table.changes(site, "workers") for site in table.sites]

    def most(name: str, pool: WorkerPoolSpec) -> WorkerPoolSpec:
        counts = (own.get(name, {}).get("count", pool.count) for own in changes)
        return pool.model_copy(update={"count": max(counts, default=pool.count)}) if pool.tier == table.tier else pool

    return fleet.model_copy(update={"workers": {name: most(name, pool) for name, pool in fleet.workers.items()}})


def _columns(
    workflows: Mapping[str, CheckedWorkflow],
    infrastructure: CheckedInfrastructure,
    tier: str,
    others: Collection[str],
) -> SiteColumns:
    """The columns of the documents' names; those of broken entries count, as their values are another problem."""
    fleet = infrastructure.document
    pools = fleet.workers if fleet is not None else {}
    broken = (name for name in infrastructure.names("workers") if name not in pools)
    above = [link.downstream_tier for link in fleet.links if link.upstream_tier == tier] if fleet is not None else []
    return site_columns(
        tier,
        {name: workflow.names("sources") for name, workflow in workflows.items()},
        [*(name for name, pool in pools.items() if pool.tier == tier), *broken],
        above,
        {name: pool.tier for name, pool in pools.items() if pool.tier != tier},
        {name for name, workflow in workflows.items() if _keeps_states(workflow)},
        tuple(name for name in others if name not in workflows),
    )


def _keeps_states(workflow: CheckedWorkflow) -> bool:
    """True if an operator keeps a state, or may: the document is broken."""
    document = workflow.document
    return document is None or any(operator.state is not None for operator in document.operators.values())
