"""The columns that a file of sites may have: what one site may state, in the notation of `--set`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jellybean.documents.schema.infrastructure import LinkSpec, WorkerPoolSpec
from jellybean.documents.schema.slo import SloSpec
from jellybean.documents.schema.validation import FieldReader
from jellybean.documents.schema.workflow import AdmissionSpec, SourceSpec
from jellybean.quantities import did_you_mean, quoted

SITE, NOTES = "site", ("note", "region")
_MOST_LISTED = 12
_ADMISSION_KEYS = ("worth", "priority", "owner")
_SOURCE_KEYS, _POOL_KEYS, _LINK_KEYS = ("rate",), ("count", "price"), ("price", "bandwidth", "latency")


@dataclass(frozen=True)
class SiteColumn:
    """A column with a value of each site. `section`, `entry`: the part of the documents that it changes."""

    name: str
    section: str
    entry: str
    reader: FieldReader

    @property
    def field(self) -> str:
        """The changed field of the entry's model."""
        return self.reader.name


@dataclass(frozen=True)
class SiteColumns:
    """The columns of a project's file of sites of the tier `tier`. `shared`: pool -> tier, of those of all sites."""

    tier: str
    by_name: Mapping[str, SiteColumn]
    shared: Mapping[str, str]

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
    tier: str, sources: Sequence[str], pools: Sequence[str], above: Sequence[str], shared: Mapping[str, str]
) -> SiteColumns:
    """The columns for sites of `tier`, with these sources and pools, and links to the tiers `above`."""
    columns = [
        *_columns("sources", sources, SourceSpec, _SOURCE_KEYS),
        *_columns("workers", pools, WorkerPoolSpec, _POOL_KEYS),
        *_columns("links", above, LinkSpec, _LINK_KEYS),
        SiteColumn("slo.accuracy", "slo", "", FieldReader(SloSpec, "accuracy")),
        *(SiteColumn(f"admission.{key}", "admission", "", FieldReader(AdmissionSpec, key)) for key in _ADMISSION_KEYS),
    ]
    return SiteColumns(tier, {column.name: column for column in columns}, shared)


def _columns(section: str, entries: Sequence[str], model: type[Any], keys: Sequence[str]) -> list[SiteColumn]:
    readers = {key: FieldReader(model, key) for key in keys}
    return [SiteColumn(f"{section}.{name}.{key}", section, name, readers[key]) for name in entries for key in keys]
