"""Check the cuts of models: measured in the profiles, with stage files that have the measured hashes."""

from __future__ import annotations

from pathlib import Path

from jellybean.documents.checks.checked import CheckedInfrastructure, CheckedProfiles, CheckedWorkflow
from jellybean.documents.checks.files import inside, sha256_of
from jellybean.documents.checks.profile_checks import check_latency
from jellybean.documents.layout import profile_command
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import CutProfile, StageProfile, VariantProfile
from jellybean.documents.schema.reader import DocPath
from jellybean.quantities import InvalidValueError
from jellybean_solver import head_name


def check_cuts(
    workflow: CheckedWorkflow,
    infrastructure: CheckedInfrastructure,
    profiles: CheckedProfiles | None,
    directory: Path | None,
) -> None:
    """Check that variants for which the workflow allows cuts have measured cuts.

    If `directory` is given, also check that it has the stage files that were measured.
    """
    if workflow.document is None:
        return
    names = {*workflow.document.sources, *workflow.document.operators}
    for operator, spec in workflow.document.operators.items():
        for variant, files in spec.variants.items():
            path: DocPath = ("operators", operator)
            if not spec.cuts_of(variant):
                continue
            if head_name(operator) in names:
                message = f"a cut names the first layers of {operator} {head_name(operator)}, but that name is in use"
                workflow.tree.add(path, message, "rename that one, or set cuts: 0", key=True)
            elif files.python is not None:
                message = f"variant {variant!r} of {operator} is a Python function, which cannot be cut"
                workflow.tree.add((*path, "variants", variant), message, "write cuts: 0 for it", key=True)
            elif files.model is None or files.sha256 is None:
                message = f"variant {variant!r} of {operator} allows cuts, but has no model file"
                workflow.tree.add(path, message, "give it model and sha256, or set cuts: 0", key=True)
            elif profiles is not None and profiles.document is not None and infrastructure.document is not None:
                profile = profiles.document.operators.get(operator, {}).get(variant)
                if profile is not None:
                    upstreams = {edge.upstream for edge in spec.inputs}
                    check = _Check(profiles, infrastructure.document, directory)
                    check.variant(("operators", operator, variant), profile, files.sha256, upstreams)


class _Check:
    """Checks the measured cuts of one variant; adds problems to the profiles' tree."""

    def __init__(self, profiles: CheckedProfiles, fleet: InfrastructureDocument, directory: Path | None) -> None:
        self.profiles, self.fleet, self.directory = profiles, fleet, directory
        self.measure = f"run: {profile_command(profiles.tree.file)}"

    def variant(self, path: DocPath, profile: VariantProfile, sha256: str, upstreams: set[str]) -> None:
        if profile.cuts is None:
            message = "the workflow allows cuts of this variant, but none was measured"
            self.profiles.tree.add(path, message, f"{self.measure}, or set cuts: 0", key=True)
        for index, cut in enumerate(profile.cuts or ()):
            self._cut((*path, "cuts", index), cut, sha256, upstreams)

    def _cut(self, path: DocPath, cut: CutProfile, sha256: str, upstreams: set[str]) -> None:
        if cut.whole != sha256:
            return  # it is stale, and no plan uses it
        for unknown in sorted(set(cut.inputs) - upstreams):
            message = f"the operator has no input {unknown!r}"
            self.profiles.tree.add((*path, "inputs"), message, f"inputs: {', '.join(sorted(upstreams))}")
        for side, stage in (("head", cut.head), ("tail", cut.tail)):
            self._stage((*path, side), stage)

    def _stage(self, path: DocPath, stage: StageProfile) -> None:
        check_latency(self.profiles, (*path, "latency"), stage.latency, self.fleet)
        if self.directory is None:
            return
        try:
            digest = sha256_of(inside(self.directory, stage.model))
        except InvalidValueError as error:
            self.profiles.tree.add((*path, "model"), error.message, error.hint or self.measure)
            return
        if digest != stage.sha256:
            message = f"the file has SHA-256 {digest[:12]}..., the profile says {stage.sha256[:12]}..."
            self.profiles.tree.add((*path, "sha256"), message, self.measure)
