"""Build the cuts of models into two stages, as the solver's search over cuts needs them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from jellybean.documents.flow import follow_requests
from jellybean.documents.multi_workflow import AnyProject, MultiWorkflowProject
from jellybean.documents.planning_problem.build import max_batch_size, readers_by_upstream
from jellybean.documents.planning_problem.model_files import model_ref, with_model_path
from jellybean.documents.planning_problem.variants import build_variant, fan_out_ratios
from jellybean.documents.project import Project
from jellybean.documents.schema.profiles import ANY_DOWNSTREAM, VariantProfile
from jellybean_agent import PortNames
from jellybean_solver import Cut, Cuts, Stage, qualified_cuts


def build_cuts(project: AnyProject) -> Cuts:
    """Operator -> its cuts that the workflow allows and the profiles have measured."""
    if isinstance(project, MultiWorkflowProject):
        if project.written is not None:
            return {}  # models of sites that differ stay whole
        parts = {name: _with_model_paths(build_cuts(part), name) for name, part in project.workflows.items()}
        return {name: cuts for workflow, part in parts.items() for name, cuts in qualified_cuts(workflow, part).items()}
    return {name: cuts for name in project.workflow.operators if (cuts := tuple(_cuts(project, name)))}


def _with_model_paths(cuts: Cuts, workflow: str) -> Cuts:
    return {
        name: tuple(
            replace(cut, head=with_model_path(cut.head, workflow), tail=with_model_path(cut.tail, workflow))
            for cut in own
        )
        for name, own in cuts.items()
    }


def stage_names(names: PortNames, head_inputs: Collection[str]) -> tuple[PortNames, PortNames]:
    """The port names of head and tail of a model with these names. `head_inputs`: upstreams that the head reads."""
    early = {upstream: name for upstream, name in names.inputs.items() if upstream in head_inputs}
    late = {upstream: name for upstream, name in names.inputs.items() if upstream not in head_inputs}
    return PortNames(early), PortNames(late, names.output, names.outputs, names.rows, names.rows_of)


def _cuts(project: Project, operator: str) -> Iterator[Cut]:
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
            yield Cut(replace(head, stage=head_stage), replace(tail, stage=tail_stage), cut.inputs)
