"""Checks a workflow with a cascade as the ordinary workflow that it is, and reports problems where it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jellybean.documents.cascades.cascade import Cascade
from jellybean.documents.cascades.expansion import CascadeTensors, cascade_workflow, tensors_of
from jellybean.documents.cascades.measured import profiles_of
from jellybean.documents.checks.checked import CheckedInfrastructure, CheckedProfiles, CheckedWorkflow
from jellybean.documents.checks.files import declared_signature
from jellybean.documents.checks.model_fit import Models, check_model_fit
from jellybean.documents.checks.profile_checks import check_profiles
from jellybean.documents.checks.tensors import ModelSignature
from jellybean.documents.checks.workflow_checks import check_reachable_workers, check_workflow
from jellybean.documents.layout import profile_command
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.reader import Tree
from jellybean.documents.schema.validation import CheckedDocument
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.errors import DocumentProblem
from jellybean.quantities import InvalidValueError


@dataclass(frozen=True)
class CheckedProject:
    """The documents of a project without cascades, which have no problems, and the signatures of its models."""

    workflow: CheckedWorkflow
    infrastructure: CheckedInfrastructure
    profiles: CheckedProfiles | None
    models: Models

    @property
    def problems(self) -> list[DocumentProblem]:
        """What was reported since."""
        return [*self.workflow.tree.problems, *(self.profiles.tree.problems if self.profiles is not None else ())]


Expanded = tuple[WorkflowDocument, InfrastructureDocument, CheckedProfiles | None, Models]


def checked_cascade(cascade: Cascade, project: CheckedProject) -> Expanded | None:
    """The documents with the cascade in place of its operator; None if they have problems, which are reported."""
    plain, fleet = project.workflow.document, project.infrastructure.document
    if plain is None or fleet is None:
        return None
    tensors: CascadeTensors | None = None
    own = project.models.get(cascade.operator, {})
    if cascade.whole.variants[cascade.spec.first].is_served:
        try:
            tensors = tensors_of(cascade, own)
        except InvalidValueError as error:
            project.workflow.tree.add(cascade.path, error.message, error.hint)
            return None
    document = cascade_workflow(cascade, plain, tensors)
    models = project.models
    if tensors is not None and own:
        models = _signatures(cascade, document, models)
    workflow = CheckedDocument(Tree(project.workflow.tree.file), document)
    infrastructure = CheckedDocument(Tree(project.infrastructure.tree.file), fleet)
    flow = check_workflow(workflow, infrastructure)
    check_model_fit(workflow, flow, models, {})
    profiles = _profiles(cascade, project)
    runs_on: Mapping[str, tuple[str, ...]] = {}
    if profiles is not None:
        runs_on = check_profiles(workflow, infrastructure, profiles, flow)
    check_reachable_workers(workflow, infrastructure, flow, runs_on)
    for problem in workflow.tree.problems:
        project.workflow.tree.add(cascade.path, problem.message, problem.hint)
    if profiles is not None and project.profiles is not None:
        for problem in profiles.tree.problems:
            path = ("cascades", cascade.operator, cascade.variant)
            project.profiles.tree.add(path, problem.message, problem.hint)
    return None if project.problems else (document, fleet, profiles, models)


def _signatures(cascade: Cascade, document: WorkflowDocument, models: Models) -> Models:
    """The signatures of the workflow's models, those of the cascade's operators among them."""
    folder = Path()
    found: dict[str, Mapping[str, ModelSignature]] = {**models}
    whole = models[cascade.operator]
    for operator, variant in cascade.variants.items():
        spec = document.operators[operator].variants[variant]
        if variant == cascade.variant:
            found[operator] = {variant: declared_signature(folder, spec)}
        else:
            found[operator] = {variant: replace(whole[variant], names=spec.port_names)}
    return found


def _profiles(cascade: Cascade, project: CheckedProject) -> CheckedDocument[ProfilesDocument] | None:
    """The profiles as the workflow with the cascade has them; None if there are none, which is reported."""
    known = project.profiles
    if known is None or known.document is None:
        return None
    if cascade.variant not in known.document.cascades.get(cascade.operator, {}):
        command = profile_command(project.workflow.tree.file)
        message = f"variant {cascade.variant!r} of {cascade.operator}, a cascade, has no profile"
        project.workflow.tree.add(cascade.path[:-1], message, f"run `{command}`")
        return None
    return CheckedDocument(Tree(known.tree.file), profiles_of(known.document, cascade))
