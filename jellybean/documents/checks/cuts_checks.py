"""Checks of models that may be cut in two: the profiles know how, and the stages' files are those measured."""

from __future__ import annotations

from pathlib import Path

from jellybean.documents.checks.files import inside, sha256_of
from jellybean.documents.checks.names import Infrastructure, Workflow
from jellybean.documents.checks.profile_checks import Profiles, check_latency
from jellybean.documents.schema.models import InfrastructureDocument
from jellybean.documents.schema.profiles import CutProfile, StageProfile, VariantProfile
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.units import UnitError
from jellybean_solver import head_name

_MEASURE = "run: jellybean profile"


def check_cuts(
    workflow: Workflow, infrastructure: Infrastructure, profiles: Profiles | None, directory: Path | None
) -> None:
    """Where models may be cut, the profiles know how, and the stages' files in `directory` are those measured."""
    if workflow.document is None:
        return
    names = {*workflow.document.sources, *workflow.document.operators}
    for operator, spec in workflow.document.operators.items():
        for variant, files in spec.variants.items():
            path: DocPath = ("operators", operator)
            if not spec.cuts_of(variant):
                continue
            if head_name(operator) in names:
                message = f"the first layers of {operator} would be called {head_name(operator)}, which is taken"
                workflow.tree.add(path, message, "give that one another name, or set cuts: 0", key=True)
            elif files.python is not None:
                message = f"variant {variant!r} of {operator} is a Python function, which is not cut"
                workflow.tree.add((*path, "variants", variant), message, "write cuts: 0 there", key=True)
            elif files.model is None or files.sha256 is None:
                message = f"variant {variant!r} of {operator} may be cut, but has no model file"
                workflow.tree.add(path, message, "give it model and sha256, or set cuts: 0", key=True)
            elif profiles is not None and profiles.document is not None and infrastructure.document is not None:
                profile = profiles.document.operators.get(operator, {}).get(variant)
                if profile is not None:
                    upstreams = {edge.upstream for edge in spec.inputs}
                    check = _Check(profiles, infrastructure.document, directory)
                    check.variant(("operators", operator, variant), profile, files.sha256, upstreams)


class _Check:
    """Checks of the cuts of one variant's profile."""

    def __init__(self, profiles: Profiles, fleet: InfrastructureDocument, directory: Path | None) -> None:
        self.profiles, self.fleet, self.directory = profiles, fleet, directory

    def variant(self, path: DocPath, profile: VariantProfile, sha256: str, upstreams: set[str]) -> None:
        if profile.cuts is None:
            message = "the workflow allows cuts of this variant, but none were measured"
            self.profiles.tree.add(path, message, f"{_MEASURE}, or set cuts: 0", key=True)
        for index, cut in enumerate(profile.cuts or ()):
            self._cut((*path, "cuts", index), cut, sha256, upstreams)

    def _cut(self, path: DocPath, cut: CutProfile, sha256: str, upstreams: set[str]) -> None:
        if cut.whole != sha256:
            message = f"this is a cut of another model (SHA-256 {cut.whole[:12]}..., the workflow's {sha256[:12]}...)"
            self.profiles.tree.add((*path, "whole"), message, _MEASURE)
            return
        for strange in sorted(set(cut.inputs) - upstreams):
            message = f"the operator has no input {strange!r}"
            self.profiles.tree.add((*path, "inputs"), message, f"inputs: {', '.join(sorted(upstreams))}")
        for side, stage in (("head", cut.head), ("tail", cut.tail)):
            self._stage((*path, side), stage)

    def _stage(self, path: DocPath, stage: StageProfile) -> None:
        check_latency(self.profiles, (*path, "latency"), stage.latency, self.fleet)
        if self.directory is None:
            return
        try:
            found = sha256_of(inside(self.directory, stage.model))
        except UnitError as error:
            self.profiles.tree.add((*path, "model"), error.message, error.hint or _MEASURE)
            return
        if found != stage.sha256:
            message = f"the file has SHA-256 {found[:12]}..., the profile says {stage.sha256[:12]}..."
            self.profiles.tree.add((*path, "sha256"), message, _MEASURE)
