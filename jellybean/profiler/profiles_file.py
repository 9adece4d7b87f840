"""A project's profiles.yaml: all of it, or the part of it that a cascade adds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jellybean.documents import ProfilesDocument, Project, read_profiles, write_profiles
from jellybean.documents.cascades.measured import profiles_of, with_cascade
from jellybean.documents.schema.profiles import CascadeProfile
from jellybean.documents.schema.provenance import DocumentProvenance
from jellybean.errors import DocumentError
from jellybean.profiler.document import with_noise, without_unused_runs
from jellybean.profiler.errors import ProfileError

PROFILES_FILE = "profiles.yaml"


class ProfilesFile:
    """Reads and writes the profiles as a project sees them; of a project with a cascade, the rest is left alone."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._path: Path = project.directory / PROFILES_FILE

    def read(self, *, fresh: bool) -> ProfilesDocument | None:
        """The profiles that exist; None if there are none, or if `fresh` replaces invalid ones."""
        try:
            found = read_profiles(self.project.directory)
        except DocumentError:
            if fresh:
                return None
            raise
        return found if found is None or self.project.cascade is None else profiles_of(found, self.project.cascade)

    def runs(self) -> frozenset[int]:
        """Numbers of the runs that measured other parts of the file, which stay."""
        try:
            found = read_profiles(self.project.directory)
        except DocumentError:
            found = None
        if found is None:
            return frozenset()
        if self.project.cascade is not None:
            return frozenset(found.runs)
        others = found.model_copy(update={"operators": {}, "provenance": DocumentProvenance()})
        return frozenset(origin.run for origin in others.origins if origin.run is not None)

    def write(self, document: ProfilesDocument) -> None:
        """Write what the project measured. ProfileError if a cascade's rest is gone."""
        cascade = self.project.cascade
        if cascade is None:
            write_profiles(self._path, self.with_cascades(document))
            return
        rest = read_profiles(self.project.directory)
        if rest is None:
            raise ProfileError(f"{self._path} was removed while {cascade.operator} {cascade.variant} was measured")
        write_profiles(self._path, with_noise(without_unused_runs(with_cascade(rest, cascade, document))))

    def with_cascades(self, document: ProfilesDocument) -> ProfilesDocument:
        """The document with the cascades that were measured before and that the workflow still has.

        All of them stay if `--set` options leave out what the workflow has.
        """
        try:
            before = read_profiles(self.project.directory)
        except DocumentError:
            before = None
        if before is None or not before.cascades:
            return document
        kept = before.cascades if self.project.overrides else self._own(before.cascades)
        runs = {**before.runs, **document.runs}
        return without_unused_runs(document.model_copy(update={"cascades": kept, "runs": runs}))

    def _own(self, cascades: Mapping[str, Mapping[str, CascadeProfile]]) -> dict[str, dict[str, CascadeProfile]]:
        own = {(c.operator, c.variant) for one in self.project.alternatives if (c := one.cascade) is not None}
        found = {
            operator: {variant: profile for variant, profile in variants.items() if (operator, variant) in own}
            for operator, variants in cascades.items()
        }
        return {operator: variants for operator, variants in found.items() if variants}
