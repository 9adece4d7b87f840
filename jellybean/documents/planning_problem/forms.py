"""Build the forms of operators, cut models and cascades, as the solver's search over forms needs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from jellybean.documents.cascades.cascade import Cascade
from jellybean.documents.flow import follow_requests
from jellybean.documents.multi_workflow import AnyProject, MultiWorkflowProject, written_projects
from jellybean.documents.planning_problem.build import (
    max_batch_size,
    of_one_workflow,
    problems_of_sites,
    readers_by_upstream,
)
from jellybean.documents.planning_problem.model_files import model_ref, with_model_path
from jellybean.documents.planning_problem.site_problems import pool_names_of_site, with_pools
from jellybean.documents.planning_problem.variants import build_variant, fan_out_ratios
from jellybean.documents.project import Project
from jellybean.documents.schema.profiles import ANY_DOWNSTREAM, VariantProfile
from jellybean_agent import PortNames
from jellybean_solver import Form, Forms, Problem, Stage, Variant, cut_form, qualified_forms

CutStages = tuple[Variant, Variant, tuple[str, ...]]  # head, tail, and the upstreams that the head reads


def build_forms(project: AnyProject) -> Forms:
    """Operator -> its forms: cuts that the workflow allows and the profiles have measured, and cascades."""
    if not any(map(_may_have_forms, written_projects(project).values())):
        return {}
    if not isinstance(project, MultiWorkflowProject):
        return _forms(project, of_one_workflow, _cut_stages)
    found: dict[str, tuple[Form, ...]] = {}
    of_site = problems_of_sites(project) if project.written else None
    for name, part in project.workflows.items():
        if of_site is None:
            forms = _with_model_paths(_forms(part, of_one_workflow, _cut_stages), name)
        else:
            forms = _forms(part, of_site(name), _cut_stages_of_site(project, name))
        found |= qualified_forms(name, forms)
    return found


def _may_have_forms(project: Project) -> bool:
    operators = project.workflow.operators.values()
    return bool(project.alternatives) or any(one.cuts_of(variant) for one in operators for variant in one.variants)


def _forms(
    project: Project,
    problem_of: Callable[[Project], Problem],
    cuts_of: Callable[[Project, str], Iterator[CutStages]],
) -> Forms:
    """The forms of one workflow. `problem_of`: its problem without forms, also of a workflow with a cascade."""
    forms: dict[str, list[Form]] = {}
    for operator in problem_of(project).operators:
        forms[operator.name] = [cut_form(operator, *stages) for stages in cuts_of(project, operator.name)]
    for own in project.alternatives:
        if own.cascade is not None:
            forms[own.cascade.operator].append(_cascade_form(own.cascade, problem_of(own)))
    return {name: tuple(own) for name, own in forms.items() if own}


def _cascade_form(cascade: Cascade, problem: Problem) -> Form:
    """The form of a cascade, from the problem of the workflow with it."""
    operators = tuple(operator for operator in problem.operators if operator.name in cascade.variants)
    return Form(operators, problem.accuracy, has_one_output=True, stale_profiles=problem.stale_profiles)


def _with_model_paths(forms: Forms, workflow: str) -> Forms:
    """The forms with model paths relative to the folder that holds all workflows."""

    def moved(form: Form) -> Form:
        operators = (
            replace(one, variants=tuple(with_model_path(variant, workflow) for variant in one.variants))
            for one in form.operators
        )
        return replace(form, operators=tuple(operators))

    return {name: tuple(map(moved, own)) for name, own in forms.items()}


def _cut_stages_of_site(project: MultiWorkflowProject, name: str) -> Callable[[Project, str], Iterator[CutStages]]:
    """The measured cuts of one of the sites that differ, with figures for the pools that its data can reach."""

    workflow = project.written_name(name)

    def of_site(part: Project, variant: Variant) -> Variant:
        moved = with_model_path(variant, workflow) if workflow else variant
        return with_pools(moved, pool_names_of_site(part))

    def cuts_of(part: Project, operator: str) -> Iterator[CutStages]:
        for head, tail, inputs in _cut_stages(project.written[workflow], operator):
            yield of_site(part, head), of_site(part, tail), inputs

    return cuts_of


def stage_names(names: PortNames, head_inputs: Collection[str]) -> tuple[PortNames, PortNames]:
    """The port names of head and tail of a model with these names. `head_inputs`: upstreams that the head reads."""
    early = {upstream: name for upstream, name in names.inputs.items() if upstream in head_inputs}
    late = {upstream: name for upstream, name in names.inputs.items() if upstream not in head_inputs}
    return PortNames(early), PortNames(late, names.output, names.outputs, names.rows, names.rows_of)


def _cut_stages(project: Project, operator: str) -> Iterator[CutStages]:
    """The measured cuts of an operator's variants."""
    workflow, fleet, profiles = project.workflow, project.infrastructure, project.profiles
    if profiles is None:
        return
    flow = follow_requests(workflow, fleet.sites)
    readers = readers_by_upstream(flow).get(operator, [])
    for variant in workflow.operators[operator].variants:
        whole = profiles.operators[operator][variant]
        ratios = fan_out_ratios(workflow, operator, variant, whole)
        max_batch = max_batch_size(operator, variant, workflow, fleet, flow)
        for cut in (whole.cuts or ()) if workflow.operators[operator].cuts_of(variant) else ():
            head_stage = Stage(operator, variant, 1, cut.layers, cut.of)
            if cut.whole != workflow.operators[operator].variants[variant].sha256:
                continue  # accepted as stale, but its stages would serve another model
            sent = {ANY_DOWNSTREAM: cut.crossing_bytes}
            head_profile = VariantProfile(message=sent, latency=cut.head.latency)
            tail_profile = VariantProfile(
                message=whole.message_bytes, latency=cut.tail.latency, children=whole.children
            )
            names = stage_names(workflow.operators[operator].variants[variant].port_names, cut.inputs)
            parts = zip((cut.head, cut.tail), names, strict=True)
            files = [model_ref(project.directory, part.model, part.sha256, own) for part, own in parts]
            head = build_variant(f"{variant}.1-{cut.layers}", files[0], head_profile, fleet, [operator], max_batch, {})
            tail = build_variant(variant, files[1], tail_profile, fleet, readers, max_batch, ratios)
            tail_stage = replace(head_stage, first=cut.layers + 1, last=cut.of)
            yield replace(head, stage=head_stage), replace(tail, stage=tail_stage), cut.inputs
