"""The columns that a file of sites may have: what one site may state, in the notation of `--set`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jellybean.documents.schema.infrastructure import LinkSpec, WorkerPoolSpec
from jellybean.documents.schema.slo import SloSpec
from jellybean.documents.schema.validation import FieldReader
from jellybean.documents.schema.workflow import AdmissionSpec, SourceSpec
from jellybean.quantities import did_you_mean, quoted

SITE, NOTES = "site", ("note", "region")
_MOST_LISTED = 12
_ADMISSION_KEYS = ("worth", "priority", "owner")
_SOURCE_KEYS, _POOL_KEYS, _LINK_KEYS = (
    ("rate", "streams"),
    ("count", "price", "power", "carbon"),
    ("price", "bandwidth", "latency"),
)


@dataclass(frozen=True)
class SiteColumn:
    """A column with a value of each site. `section`, `entry`: the part of the documents that it changes.

    `workflow`: of several the one that it is of, whose name comes first in the column's; empty for the fleet's.
    """

    name: str
    section: str
    entry: str
    reader: FieldReader
    workflow: str = ""

    @property
    def field(self) -> str:
        """The changed field of the entry's model."""
        return self.reader.name


@dataclass(frozen=True)
class SiteColumns:
    """The columns of a project's file of sites of the tier `tier`. `shared`: pool -> tier, of those of all sites.

    `others`: workflows whose columns are not looked at.
    """

    tier: str
    by_name: Mapping[str, SiteColumn]
    shared: Mapping[str, str]
    others: tuple[str, ...] = ()

    def is_of_another(self, name: str) -> bool:
        """True for a column of a workflow that is not looked at."""
        return any(name.startswith(f"{other}.") for other in self.others)

    @property
    def example(self) -> str:
        """A header, for hints."""
        return ",".join([SITE, *self.by_name][:3])

    def refusal(self, name: str) -> tuple[str, str]:
        """Message and hint for a column that the file cannot have."""
        known = [SITE, *self.by_name, *NOTES]
        parts = name.split(".")
        pool = ".".join(parts[1:-1])
        if parts[0] == "workers" and pool in self.shared:
            message = f"{pool} is in {self.shared[pool]}, so it does not belong to a site of {self.tier}"
            return message, "write it into infrastructure.yaml"
        listed = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
        return f"a site has no {quoted(name)}", did_you_mean(name, known) or f"columns: {listed}"


def site_columns(
    tier: str,
    sources: Mapping[str, Sequence[str]],
    pools: Sequence[str],
    above: Sequence[str],
    shared: Mapping[str, str],
    stateful: Collection[str],
    others: tuple[str, ...] = (),
) -> SiteColumns:
    """The columns for sites of `tier`, with these pools, and links to the tiers `above`.

    `sources`: workflow -> its sources; the only workflow has the name "". `stateful`: workflows whose sources state
    their streams. `others`: as of `SiteColumns`.
    """
    columns = [
        *(
            column
            for workflow, names in sources.items()
            for column in _of_workflow(workflow, names, has_streams=workflow in stateful)
        ),
        *_columns("workers", pools, WorkerPoolSpec, _POOL_KEYS),
        *_columns("links", above, LinkSpec, _LINK_KEYS),
    ]
    return SiteColumns(tier, {column.name: column for column in columns}, shared, others)


def _of_workflow(workflow: str, sources: Sequence[str], *, has_streams: bool) -> list[SiteColumn]:
    own = [
        *_columns("sources", sources, SourceSpec, _SOURCE_KEYS if has_streams else _SOURCE_KEYS[:1]),
        *(SiteColumn(f"slo.{key}", "slo", "", FieldReader(SloSpec, key)) for key in ("accuracy", "survive")),
        *(SiteColumn(f"admission.{key}", "admission", "", FieldReader(AdmissionSpec, key)) for key in _ADMISSION_KEYS),
    ]
    prefix = f"{workflow}." if workflow else ""
    return [replace(column, name=f"{prefix}{column.name}", workflow=workflow) for column in own]


def _columns(section: str, entries: Sequence[str], model: type[Any], keys: Sequence[str]) -> list[SiteColumn]:
    readers = {key: FieldReader(model, key) for key in keys}
    return [SiteColumn(f"{section}.{name}.{key}", section, name, readers[key]) for name in entries for key in keys]
